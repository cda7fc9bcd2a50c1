//! The requests of the race, from numbers alone, so that another program can make the same ones.
//!
//! Request 0 computes the shared prefix alone; from step 2 on requests come at a rate that, with the length of their
//! answers, keeps `running` of them in the engine: 1% come and 1% end per step.

use tokenspeed_core::request::{Request, SamplingParams};

use crate::options::{BLOCK, Options};

/// The token that every row of logits prefers.
pub const ANSWER: u32 = 7;

/// When requests come and what they ask.
#[derive(Clone, Debug)]
pub struct Trace {
    running: u32,
    total: u32,
    shared: u32,
    /// Tokens each generates.
    pub life: u32,
    /// Steps in which `running` requests come.
    period: u32,
    /// Requests in all.
    end: u32,
}

impl Trace {
    pub fn new(options: &Options) -> Self {
        let Options { running, total, shared, life, steps, warm, guesses, .. } = *options;
        let period = if life > 0 { life } else { 100 };
        let (life, end) =
            if life > 0 { (life, u32::MAX) } else { ((period + warm + steps + 8) * (1 + guesses), running) };
        Self { running, total, shared, life, period, end }
    }

    /// The first step with all requests at work.
    pub fn full_at(&self) -> u32 {
        self.period + 2
    }

    /// Whether request `i` comes before step `step` or at its start.
    pub fn has_come(&self, i: u32, step: u32) -> bool {
        i < self.end
            && (i == 0 || 2 + u64::from(i - 1) * u64::from(self.period) / u64::from(self.running) <= step.into())
    }

    /// Request `i`.
    pub fn request(&self, i: u32) -> Request {
        request(i, self.total + i * 37 % BLOCK, self.shared, self.life)
    }
}

/// `len` tokens of which the first `shared` are everybody's; answered by `life` tokens.
pub fn request(i: u32, len: u32, shared: u32, life: u32) -> Request {
    let token = |at: u32| {
        let who = if at < shared { 0 } else { i + 1 };
        let x = at.wrapping_add(who.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b);
        ((x ^ x >> 15).wrapping_mul(0xc2b2_ae35) >> 16) % 13 + 1
    };
    let sampling = SamplingParams { temperature: 0.0, max_tokens: life, ignore_eos: true, ..SamplingParams::default() };
    // With room for the answer, as the driver's callers make it on their own threads.
    let mut prompt = Vec::with_capacity((len + life) as usize);
    prompt.extend((0..len).map(token));
    Request { prompt, sampling, ..Request::default() }
}
