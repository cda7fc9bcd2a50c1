//! An engine that follows a script chosen by the last byte of the prompt.
//!
//! A: characters cut inside, B: three long tokens, C and D: one and two tool calls, E: endless (1 ms per token), F: ends
//! at once, H: JSON, J: ends with the second end-of-sequence id, R: depends on seed and choice, X: fails after three
//! tokens, Y: fails before the first, W: never says anything.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokenspeed_core::{
    client::{Engine, EventStream, Limits, Mailbox, Metrics, SubmitError},
    request::{Event, FinishReason, Request, RequestId, TokenLogprobs, Usage},
};

use super::{
    CONTEXT,
    frontend::{EOS, SECOND_EOS, VOCAB},
};

pub const TEXT_A: &str = "ok 🙂 🦜 e\u{301} fin";
pub const CALL: &str = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Par\"is"}}</tool_call>"#;
pub const TWO_CALLS: &str = concat!(
    r#"<tool_call>{"name": "f_one", "arguments": {"x": 1}}</tool_call>"#,
    r#"<tool_call>{"name": "f_two", "arguments": {}}</tool_call>"#
);

#[derive(Default)]
struct Shared {
    running: AtomicU64,
    aborted: AtomicU64,
    released: AtomicBool,
    dead: AtomicBool,
    draining: AtomicBool,
    prompts: Mutex<Vec<(Option<String>, Vec<u32>)>>,
    requests: Mutex<Vec<Request>>,
    next_id: AtomicU64,
    overloaded: AtomicBool,
}

#[derive(Default)]
pub struct ScriptEngine {
    shared: Arc<Shared>,
}

impl ScriptEngine {
    pub fn running(&self) -> u64 {
        self.shared.running.load(Ordering::SeqCst)
    }

    /// Sequences whose reader left before the end.
    pub fn aborted(&self) -> u64 {
        self.shared.aborted.load(Ordering::SeqCst)
    }

    /// Everything submitted so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("not poisoned").clone()
    }

    /// End hanging sequences.
    pub fn release(&self) {
        self.shared.released.store(true, Ordering::SeqCst);
    }

    /// From now on as if the engine thread had panicked: no event ever comes.
    pub fn kill(&self) {
        self.shared.dead.store(true, Ordering::SeqCst);
    }

    pub fn overload(&self, on: bool) {
        self.shared.overloaded.store(on, Ordering::SeqCst);
    }
}

impl Engine for ScriptEngine {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let shared = self.shared.clone();
        if shared.dead.load(Ordering::SeqCst) {
            return Err(SubmitError::Dead("a test killed it".into()));
        }
        if shared.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::Draining);
        }
        if shared.overloaded.load(Ordering::SeqCst) {
            return Err(SubmitError::Overloaded { retry_after_s: 7 });
        }
        assert!(!request.prompt.is_empty(), "an empty prompt must not reach the engine");
        assert!(request.prompt.iter().all(|id| *id < VOCAB), "an unknown id must not reach the engine");
        assert!(request.prompt.len() as u32 + request.sampling.max_tokens <= CONTEXT, "too long for the engine");
        assert!(request.sampling.max_tokens > 0, "nothing to generate");
        let cached = cached_tokens(&shared, &request);
        shared.requests.lock().expect("not poisoned").push(request.clone());
        let id = RequestId(shared.next_id.fetch_add(1, Ordering::SeqCst));
        let mailbox = Mailbox::new(64);
        let aborts = shared.clone();
        let stream = EventStream::new(id, mailbox.clone(), move |_| {
            aborts.aborted.fetch_add(1, Ordering::SeqCst);
        });
        shared.running.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            play(&shared, &request, &mailbox, cached);
            shared.running.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(stream)
    }

    fn metrics(&self) -> Metrics {
        let running = self.running();
        Metrics { running, pages_used: running, pages_total: 100, ..Metrics::default() }
    }

    fn limits(&self) -> Limits {
        Limits { max_model_len: CONTEXT, vocab_size: VOCAB, max_num_seqs: 64, prefix_granularity: 16 }
    }

    fn health(&self) -> Result<(), String> {
        if self.shared.dead.load(Ordering::SeqCst) { Err("a test killed it".into()) } else { Ok(()) }
    }

    fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
    }

    fn flush_cache(&self) -> Result<(), String> {
        if self.running() > 0 {
            return Err("requests are running".into());
        }
        self.shared.prompts.lock().expect("not poisoned").clear();
        Ok(())
    }
}

/// The longest prefix of an earlier prompt with the same salt, on a grid of 16, never the whole prompt.
fn cached_tokens(shared: &Shared, request: &Request) -> u32 {
    let mut prompts = shared.prompts.lock().expect("not poisoned");
    let common = |earlier: &[u32]| earlier.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
    let longest = prompts.iter().filter(|(salt, _)| *salt == request.cache_salt).map(|(_, ids)| common(ids)).max();
    prompts.push((request.cache_salt.clone(), request.prompt.clone()));
    let usable = longest.unwrap_or(0).min(request.prompt.len() - 1);
    (usable / 16 * 16) as u32
}

fn logprobs(id: u32, top: u32) -> TokenLogprobs {
    // The second likeliest is impossible, as a masked token is.
    let likely = [(id, -0.25), ((id + 1) % VOCAB, f32::NEG_INFINITY), ((id + 2) % VOCAB, f32::NEG_INFINITY)];
    TokenLogprobs { logprob: -0.25, rank: 1, top: likely.into_iter().take(top as usize).collect() }
}

fn script(request: &Request) -> Vec<u32> {
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    match request.prompt.last().map(|id| *id as u8) {
        Some(b'A') => bytes(TEXT_A),
        Some(b'B') => vec![258, 259, 260],
        Some(b'C') => bytes(CALL),
        Some(b'D') => bytes(TWO_CALLS),
        Some(b'E' | b'W') => bytes(&"tick tock ".repeat(100)),
        Some(b'F') => vec![],
        Some(b'H') => bytes(r#"{"a": [1, 2]}"#),
        Some(b'J') => [bytes("hi"), vec![SECOND_EOS]].concat(),
        Some(b'R') => bytes(&format!("{}-{}", request.sampling.seed, request.sampling.sample_index)),
        Some(b'X' | b'Y') => bytes("abc"),
        _ => bytes("?"),
    }
}

fn play(shared: &Shared, request: &Request, mailbox: &Mailbox, cached_tokens: u32) {
    let sampling = &request.sampling;
    let kind = request.prompt.last().map_or(0, |id| *id as u8);
    let gone = || mailbox.is_abandoned() || shared.dead.load(Ordering::SeqCst);
    while kind == b'W' && !gone() && !shared.released.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let prompt_logprobs =
        sampling.prompt_logprobs.map(|top| request.prompt.iter().skip(1).map(|id| logprobs(*id, top)).collect());
    mailbox.push(Event::Started { cached_tokens, prompt_logprobs });
    if kind == b'Y' {
        return mailbox.push(Event::Failed { message: "the device was lost".into() });
    }
    let mut count = 0;
    let mut script = script(request).into_iter();
    let (reason, completion_tokens) = loop {
        if gone() {
            return;
        }
        if count == sampling.max_tokens {
            break (FinishReason::Length, count);
        }
        if kind == b'E' {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ends = |id: u32| (id == EOS || id == SECOND_EOS) && !sampling.ignore_eos;
        let mut id = script.next().unwrap_or(if kind == b'X' { u32::MAX } else { EOS });
        if id == u32::MAX {
            return mailbox.push(Event::Failed { message: "the device was lost".into() });
        }
        if count < sampling.min_tokens && (ends(id) || sampling.stop_token_ids.contains(&id)) {
            id = u32::from(b'z');
        }
        count += 1;
        mailbox.push(Event::Token { id, logprobs: sampling.logprobs.map(|top| logprobs(id, top)) });
        if ends(id) || sampling.stop_token_ids.contains(&id) {
            break (FinishReason::Stop, count);
        }
    };
    let usage = Usage { prompt_tokens: request.prompt.len() as u32, cached_tokens, completion_tokens };
    mailbox.push(Event::Finished { reason, usage });
}
