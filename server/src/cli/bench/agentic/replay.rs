//! Sessions against a target: several at once, or many alive and one request at a time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    maximum::{Maximum, Placed, maxima},
    pages::{Pages, Path},
    random::Random,
    session::{Session, Work},
    target::{Answer, Ask, EngineCounters, Prompt, Target},
    trace::Kind,
};

/// One answered request.
#[derive(Clone, Debug)]
pub struct Served {
    /// How it came about.
    pub kind: Kind,
    /// Its place in its session, from 0.
    pub turn: usize,
    /// Order of sends and ends of all requests.
    pub sent: u64,
    /// The same, when the answer was complete.
    pub done: u64,
    /// What was asked.
    pub prompt: Prompt,
    /// What was answered.
    pub answer: Answer,
}

/// All requests of one pass.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// In the order they were sent.
    pub served: Vec<Served>,
    /// Messages of those that failed.
    pub failures: Vec<String>,
    /// From the first request to the last answer.
    pub wall: Duration,
    /// What the engine counted meanwhile.
    pub counted: Option<EngineCounters>,
}

/// How sessions are run.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// Separates this pass in the cache.
    pub salt: &'a str,
    /// Mean time between an answer and the next turn.
    pub think: Duration,
    /// Of think times and of the order of [`rotate`].
    pub seed: u64,
    /// See [`Ask::shared`].
    pub tells_shared: bool,
}

struct Room<'a> {
    target: &'a dyn Target,
    manner: Manner<'a>,
    order: AtomicU64,
    pass: Mutex<Pass>,
}

impl Room<'_> {
    fn pass(&self) -> std::sync::MutexGuard<'_, Pass> {
        // Nothing panics while holding the lock.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a session one turn further; false at its end, and when the request failed.
    fn step(&self, session: &mut Session<'_>) -> bool {
        let Some(next) = session.next() else { return false };
        let turn = session.turn();
        let seed = (next.kind == Kind::Retry).then_some(turn as u64);
        let shared = next.shared.filter(|_| self.manner.tells_shared);
        let (prompt, salt) = (next.prompt.clone(), self.manner.salt.into());
        let ask = Ask { prompt, shared, max_tokens: next.answer, seed, salt };
        let sent = self.order.fetch_add(1, Ordering::SeqCst);
        let result = self.target.ask(ask);
        let done = self.order.fetch_add(1, Ordering::SeqCst);
        let (kind, prompt) = (next.kind, next.prompt.clone());
        let result = result.and_then(|answer| session.answered(next, &answer).map(|()| answer));
        let mut pass = self.pass();
        match result {
            Ok(answer) => pass.served.push(Served { kind, turn, sent, done, prompt, answer }),
            Err(message) => {
                pass.failures.push(message);
                return false;
            }
        }
        true
    }

    fn has_failed(&self) -> bool {
        self.pass().failures.len() >= FAILURES_MAX
    }

    fn end(self, start: Instant, before: Option<EngineCounters>) -> Pass {
        let after = self.target.counters();
        let mut pass = self.pass.into_inner().unwrap_or_else(PoisonError::into_inner);
        pass.wall = start.elapsed();
        pass.served.sort_by_key(|served| served.sent);
        pass.counted = before.zip(after).map(|(before, after)| EngineCounters {
            preemptions: after.preemptions - before.preemptions,
            cut_tokens: after.cut_tokens - before.cut_tokens,
            steps: after.steps - before.steps,
            pages: after.pages,
        });
        pass
    }
}

/// A pass with so many failures is given up.
const FAILURES_MAX: usize = 16;

fn room<'a>(target: &'a dyn Target, manner: Manner<'a>) -> Room<'a> {
    Room { target, manner, order: AtomicU64::new(0), pass: Mutex::new(Pass::default()) }
}

/// Replay all sessions, `concurrency` of them at once, each turn when the one before it is answered.
pub fn replay(target: &dyn Target, work: &Work, concurrency: u32, manner: Manner<'_>) -> Pass {
    let (room, taken) = (room(target, manner), AtomicUsize::new(0));
    let (before, start) = (target.counters(), Instant::now());
    thread::scope(|scope| {
        for _ in 0..concurrency {
            scope.spawn(|| {
                loop {
                    let number = taken.fetch_add(1, Ordering::Relaxed);
                    if number >= work.n_sessions() || room.has_failed() {
                        return;
                    }
                    let mut session = Session::new(work, number, target.pool());
                    while room.step(&mut session) {
                        let mut random = Random::new(manner.seed, (number as u64) << 32 | session.turn() as u64);
                        thread::sleep(manner.think.mul_f64(0.5 + random.unit()));
                    }
                }
            });
        }
    });
    room.end(start, before)
}

/// Replay all sessions, `alive` of them at a time, one request at a time: whose turn is next is drawn at random, as if
/// every agent thought for a while. What a cache must hold is then `alive` sessions, of which one is running.
pub fn rotate(target: &dyn Target, work: &Work, alive: usize, manner: Manner<'_>) -> Pass {
    let room = room(target, manner);
    let mut random = Random::new(manner.seed, u64::MAX);
    let mut coming = (0..work.n_sessions()).map(|number| Session::new(work, number, target.pool()));
    let mut sessions: Vec<Session<'_>> = coming.by_ref().take(alive).collect();
    let (before, start) = (target.counters(), Instant::now());
    while !sessions.is_empty() && !room.has_failed() {
        let at = random.between(0, sessions.len() as u32 - 1) as usize;
        if !room.step(&mut sessions[at]) || sessions[at].next().is_none() {
            match coming.next() {
                Some(session) => sessions[at] = session,
                None => drop(sessions.swap_remove(at)),
            }
        }
    }
    room.end(start, before)
}

/// What a pass could have found in a cache.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Pages of each request.
    pub paths: Vec<Path>,
    /// The bounds of each request, in pages.
    pub maxima: Vec<Maximum>,
    /// Answers whose ids were not told exactly: they count as unknown, so bounds rest on prompts there.
    pub n_unknown: usize,
}

/// Judge a pass by the ids that were served; `None` if they are unknown. Asks the target for the ids of chats.
pub fn judge(target: &dyn Target, pass: &Pass) -> Result<Option<Judged>, String> {
    let page_tokens = target.page_tokens();
    let mut pages = Pages::new(page_tokens);
    let (mut paths, mut n_prompts, mut n_unknown) = (Vec::new(), Vec::new(), 0);
    for served in &pass.served {
        let encoded;
        let prompt = match &served.answer.prompt {
            Some(ids) => ids,
            None => match target.encode(&served.prompt)? {
                Some(ids) => {
                    encoded = ids;
                    &encoded
                }
                None => return Ok(None),
            },
        };
        let answer = served.answer.ids.as_deref().filter(|_| served.answer.is_exact);
        n_unknown += usize::from(answer.is_none());
        paths.push(pages.path(prompt, answer.unwrap_or_default()));
        n_prompts.push(prompt.len() / page_tokens.max(1) as usize);
    }
    let placed = pass.served.iter().zip(&paths).zip(n_prompts);
    let placed: Vec<Placed<'_>> = placed
        .map(|((served, path), n_prompt)| Placed { sent: served.sent, done: served.done, path, n_prompt })
        .collect();
    let maxima = maxima(&placed);
    Ok(Some(Judged { paths, maxima, n_unknown }))
}
