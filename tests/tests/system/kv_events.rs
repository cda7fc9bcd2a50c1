//! Block events of the real engine, read from a socket by hand and decoded by another msgpack library.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use serde_json::{Value, json};
use tokenspeed_server::kv_events::{KvEventsArgs, Publisher};

use crate::{
    batch_invariance::ids,
    support::{self, models, serving::Serving},
};

/// A subscriber of everything, in ZMTP 3.0.
struct Subscriber(TcpStream);

impl Subscriber {
    fn new(endpoint: &str) -> Self {
        let stream = TcpStream::connect(endpoint.trim_start_matches("tcp://")).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let mut subscriber = Self(stream);
        let mut greeting = [0u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        subscriber.send(&greeting);
        subscriber.send(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        // A subscription to the empty prefix.
        subscriber.send(b"\0\x01\x01");
        assert_eq!(subscriber.read(64)[..10], [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]);
        assert_eq!(subscriber.frame().0, 4, "READY");
        subscriber
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    fn read(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.0.read_exact(&mut bytes).expect("in time");
        bytes
    }

    /// Flags and body.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.read(1)[0];
        let length = match flags & 2 {
            0 => self.read(1)[0].into(),
            _ => u64::from_be_bytes(self.read(8).try_into().expect("8")),
        };
        (flags & !2, self.read(length as usize))
    }

    /// Topic, sequence number, payload.
    fn message(&mut self) -> (Vec<u8>, u64, Value) {
        let parts = [(); 3].map(|()| self.frame());
        assert_eq!([parts[0].0, parts[1].0, parts[2].0], [1, 1, 0], "three parts");
        let [(_, topic), (_, number), (_, payload)] = parts;
        let number = u64::from_be_bytes(number.try_into().expect("8 bytes"));
        (topic, number, rmp_serde::from_slice(&payload).expect("msgpack"))
    }
}

#[test]
fn a_subscriber_hears_what_is_stored_removed_and_cleared() {
    let args = KvEventsArgs {
        kv_events_config: Some(r#"{"publisher":"zmq","endpoint":"tcp://127.0.0.1:0","topic":"kv"}"#.into()),
        kv_events_endpoint: None,
    };
    let config = args.config().expect("understood").expect("on");
    let small = "--mode exact --max-model-len 256 --max-num-seqs 1 --memory 900MiB --threads 1";
    let folder = models::tiny();
    let mut options = support::options(&folder.model(), small);
    options.cache_events = config.max_queue_size;
    let loaded = tokenspeed_server::engine_setup::load(&options, &mut tokenspeed_server::progress::Silent);
    let server = Serving::start(loaded.expect("loaded"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let mut subscriber = runtime.block_on(async {
        let publisher = Publisher::bind(config).await.expect("bound");
        let endpoint = publisher.endpoint.clone();
        publisher.start(server.engine.block_events().expect("switched on"));
        tokio::task::spawn_blocking(move || Subscriber::new(&endpoint)).await.expect("connected")
    });
    // Subscriptions travel: prompts until something is heard.
    let ask = |prompt: &[u32], salt: &str| {
        server.completion(json!(prompt), json!({"max_tokens": 1, "ignore_eos": true, "cache_salt": salt}));
    };
    subscriber.0.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut n = 0;
    while subscriber.0.peek(&mut [0]).is_err() {
        ask(&ids(3, 70), &format!("early {n}"));
        n += 1;
    }
    subscriber.0.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let (topic, mut number, _) = subscriber.message();
    assert_eq!(topic, b"kv");
    let mut next = |kind: &str| loop {
        let (_, at, payload) = subscriber.message();
        assert_eq!(at, number + 1, "no gap");
        number = at;
        assert_eq!(payload[2], json!(0), "rank");
        let events = payload[1].as_array().expect("events").clone();
        if let Some(event) = events.into_iter().find(|event| event[0] == kind) {
            break event;
        }
    };
    assert_eq!(server.post("/flush_cache", &json!({})).status, 200);
    assert_eq!(next("AllBlocksCleared"), json!(["AllBlocksCleared"]));

    let prompt = ids(4, 130);
    ask(&prompt, "tenant");
    let stored = next("BlockStored");
    let hashes = stored[1].as_array().expect("hashes").clone();
    assert_eq!((hashes.len(), &stored[2], &stored[4], &stored[6]), (2, &json!(null), &json!(64), &json!("GPU")));
    assert_eq!(stored[3], json!(prompt[..128]));
    assert_eq!(stored[8], json!([["tenant"], null]));
    ask(&[&prompt[..], &ids(5, 70)].concat(), "tenant");
    let more = next("BlockStored");
    assert_eq!((&more[2], &more[3]), (&hashes[1], &json!([&prompt[128..], &ids(5, 70)[..62]].concat())));

    // Four pages on the device: another text takes them, deepest first.
    ask(&ids(6, 250), "tenant");
    let removed = next("BlockRemoved");
    assert_eq!((&removed[1][0], &removed[2]), (&more[1][0], &json!("GPU")));
}
