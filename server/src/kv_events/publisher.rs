//! The sockets: one that publishes, one that sends past messages again.
//!
//! A thread waits for the engine's events and encodes them into a bounded list of messages; each reader has a task with its
//! own place in that list. Nobody waits for a slow reader: what it has not read when it falls off the list is lost to it, and
//! the sequence numbers say so. When this thread itself lags behind the engine, one number is skipped, which every reader must
//! take for a loss too.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokenspeed_core::driver::BlockEvents;
use tokio::{
    io::{ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
};

use super::{
    KvEventsConfig,
    config::address,
    payload,
    zmtp::{self, Incoming},
};
use crate::error::CliError;

/// How often the thread looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Messages kept at least, so that a reader need not be as quick as the engine.
const KEPT_MIN: usize = 1024;
/// Marks the end of a replay.
const END: u64 = u64::MAX;

/// Messages sent and to be sent.
struct Messages {
    /// Sequence number and payload; numbers ascend.
    kept: Mutex<VecDeque<(u64, Bytes)>>,
    capacity: usize,
    /// Number after the newest.
    next: watch::Sender<u64>,
    has_stopped: AtomicBool,
}

impl Messages {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Bytes)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, number: u64, payload: Bytes) {
        let mut kept = self.lock();
        if kept.len() == self.capacity {
            kept.pop_front();
        }
        kept.push_back((number, payload));
        drop(kept);
        self.next.send_replace(number + 1);
    }

    /// The oldest kept message whose number is at least `number`.
    fn from(&self, number: u64) -> Option<(u64, Bytes)> {
        let kept = self.lock();
        let at = kept.partition_point(|(other, _)| *other < number);
        kept.get(at).cloned()
    }
}

/// Bound sockets, before there is an engine.
pub struct Publisher {
    config: KvEventsConfig,
    live: TcpListener,
    replay: Option<TcpListener>,
    /// Where subscribers connect, with the port that was free.
    pub endpoint: String,
    /// Where replays are asked for; empty if nowhere.
    pub replay_endpoint: String,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

async fn bind(endpoint: &str) -> Result<(TcpListener, String), CliError> {
    let failed = |error: io::Error| {
        let what = format!("cannot publish block events: {error}");
        CliError::new(what, endpoint, "give another address in --kv-events-config or --kv-events-endpoint")
    };
    let listener = TcpListener::bind(address(endpoint).unwrap_or_default()).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, format!("tcp://{bound}")))
}

impl Publisher {
    /// Bind; on the runtime that will carry the sockets.
    pub async fn bind(config: KvEventsConfig) -> Result<Self, CliError> {
        let (live, endpoint) = bind(&config.endpoint).await?;
        let (replay, replay_endpoint) = match &config.replay_endpoint {
            Some(wanted) => bind(wanted).await.map(|(listener, endpoint)| (Some(listener), endpoint))?,
            None => (None, String::new()),
        };
        Ok(Self { config, live, replay, endpoint, replay_endpoint })
    }

    /// Publish until the engine ends or the runtime does.
    pub fn start(self, events: BlockEvents) {
        let messages = Arc::new(Messages {
            kept: Mutex::new(VecDeque::new()),
            capacity: self.config.buffer_steps.max(KEPT_MIN),
            next: watch::Sender::new(0),
            has_stopped: AtomicBool::new(false),
        });
        let topic: Arc<[u8]> = Arc::from(self.config.topic.as_bytes());
        let guard = StopsThread(Arc::clone(&messages));
        let for_live = Arc::clone(&messages);
        tokio::spawn(async move {
            let messages = &guard.0;
            loop {
                let stream = accept(&self.live).await;
                let (messages, topic) = (Arc::clone(messages), Arc::clone(&topic));
                // A reader that goes away or sends nonsense only ends its own task.
                tokio::spawn(async move { publish(stream, &messages, &topic).await });
            }
        });
        if let Some(replay) = self.replay {
            tokio::spawn(async move {
                loop {
                    let stream = accept(&replay).await;
                    let messages = Arc::clone(&for_live);
                    tokio::spawn(async move { send_again(stream, &messages).await });
                }
            });
        }
        std::thread::Builder::new()
            .name("kv-events".into())
            .spawn(move || encode(events, &messages))
            .expect("a thread can be started");
    }
}

/// When the runtime drops the task that holds it, nobody reads any more.
struct StopsThread(Arc<Messages>);

impl Drop for StopsThread {
    fn drop(&mut self) {
        self.0.has_stopped.store(true, Ordering::SeqCst);
    }
}

/// The next reader. Failures of single connections and short shortages are no reason to stop.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Only a matter of speed.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Topics that a reader wants, each perhaps several times.
type Topics = Mutex<Vec<Vec<u8>>>;

async fn publish(mut stream: TcpStream, messages: &Messages, topic: &[u8]) -> io::Result<()> {
    zmtp::greet(&mut stream, "PUB").await?;
    let (reader, writer) = tokio::io::split(stream);
    let (topics, changed) = (Topics::default(), Notify::new());
    tokio::select! {
        ended = subscriptions(reader, &topics, &changed) => ended,
        ended = deliver(writer, messages, topic, &topics, &changed) => ended,
    }
}

/// Keep `topics` as the reader says, as messages (3.0) or as commands (3.1).
async fn subscriptions(mut reader: ReadHalf<TcpStream>, topics: &Topics, changed: &Notify) -> io::Result<()> {
    loop {
        let (wants, topic) = match zmtp::read(&mut reader).await? {
            Incoming::Message(parts) => match parts.first().and_then(|part| part.split_first()) {
                Some((1, topic)) => (true, topic.to_vec()),
                Some((0, topic)) => (false, topic.to_vec()),
                _ => continue,
            },
            Incoming::Command(name, topic) => match &name[..] {
                b"SUBSCRIBE" => (true, topic),
                b"CANCEL" => (false, topic),
                _ => continue,
            },
        };
        let mut all = topics.lock().unwrap_or_else(PoisonError::into_inner);
        if wants {
            if all.len() == TOPICS_MAX {
                return Err(io::Error::other("more topics than anybody wants"));
            }
            all.push(topic);
        } else if let Some(at) = all.iter().position(|other| *other == topic) {
            all.swap_remove(at);
        }
        changed.notify_one();
    }
}

/// Topics of one reader, at most.
const TOPICS_MAX: usize = 1024;

async fn deliver(
    mut writer: WriteHalf<TcpStream>,
    messages: &Messages,
    topic: &[u8],
    topics: &Topics,
    changed: &Notify,
) -> io::Result<()> {
    let is_wanted = || topics.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|want| topic.starts_with(want));
    let mut next = messages.next.subscribe();
    loop {
        while !is_wanted() {
            changed.notified().await;
        }
        // A subscription is for what comes from now on.
        let mut number = *next.borrow_and_update();
        while is_wanted() {
            match messages.from(number) {
                Some((at, payload)) => {
                    zmtp::write(&mut writer, &[topic, &at.to_be_bytes(), &payload]).await?;
                    number = at + 1;
                }
                None => tokio::select! {
                    changed = next.changed() => changed.map_err(io::Error::other)?,
                    () = changed.notified() => {}
                },
            }
        }
    }
}

/// Answer each `["", first sequence number]` with one `["", number, payload]` for each message kept from there on, and one
/// that says that it was the last.
async fn send_again(mut stream: TcpStream, messages: &Messages) -> io::Result<()> {
    zmtp::greet(&mut stream, "ROUTER").await?;
    loop {
        let Incoming::Message(parts) = zmtp::read(&mut stream).await? else { continue };
        let [empty, first] = &parts[..] else { continue };
        let Ok(first) = <[u8; 8]>::try_from(&first[..]) else { continue };
        if !empty.is_empty() {
            continue;
        }
        let end = *messages.next.borrow();
        let mut number = u64::from_be_bytes(first);
        while let Some((at, payload)) = messages.from(number).filter(|(at, _)| *at < end) {
            zmtp::write(&mut stream, &[b"", &at.to_be_bytes(), &payload]).await?;
            number = at + 1;
        }
        zmtp::write(&mut stream, &[b"", &END.to_be_bytes(), b""]).await?;
    }
}

fn encode(mut events: BlockEvents, messages: &Messages) {
    let mut number = 0;
    while !messages.has_stopped.load(Ordering::SeqCst) {
        let batch = events.next(LOOK_AGAIN);
        number += u64::from(batch.lost > 0);
        if !batch.events.is_empty() {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
            messages.push(number, Bytes::from(payload(seconds, &batch.events)));
            number += 1;
        }
        if batch.has_ended {
            return;
        }
    }
}
