//! Requests of the engine's own, before anybody else's, so that the first guesses of a draft model are decided on known costs.
//!
//! Whether guessing pays depends on what a turn costs without guesses, with some, and on each pass of the draft. Found out
//! while serving, the first tries cost several turns each, and more than that where a program runs for the first time. So a
//! few made-up requests are run at start, one at a time, then several at once; meanwhile widths follow a pattern instead
//! of expectations ([`EngineState::begin_warm_up`]). Afterwards nothing of them is left but the costs.
//!
//! The time is bounded: a large model on a slow device gets fewer of them. Rejected: the backend's forecast in
//! its place; it knows a device's throughput, not this machine's, nor what a draft takes.

use super::EngineThread;
use crate::request::{Request, RequestId, SamplingParams};

/// Requests at once, one group after the other: a group's costs hold up to the next.
const GROUPS: [u32; 3] = [1, 4, 16];
/// Tokens of a prompt.
const PROMPT: u32 = 64;
/// Tokens of an answer: each width of the pattern several times.
const ANSWER: u32 = 32;
/// After this many nanoseconds no step begins.
const LONGEST_NS: u64 = 3_000_000_000;

impl EngineThread {
    /// `Err` if the device is lost. What else goes wrong leaves costs unknown, as without a warm-up.
    pub(super) fn warm_up(&mut self) -> Result<(), String> {
        if !self.state.begin_warm_up() {
            return Ok(());
        }
        let began_ns = self.shared.now_ns();
        self.free_ns = began_ns;
        let most = self.state.config().max_num_seqs;
        for n in GROUPS.into_iter().filter(|n| *n <= most) {
            let ids: Vec<RequestId> = (0..n).filter_map(|i| self.submit_made_up(n + i)).collect();
            while !self.state.is_idle() {
                let in_time = self.shared.now_ns() - began_ns < LONGEST_NS;
                if !(in_time && self.begin()) {
                    for id in &ids {
                        self.state.abort(*id, &mut |_, _| {});
                    }
                    break;
                }
                self.end()?;
            }
        }
        self.copy();
        self.state.end_warm_up();
        self.shared.steps.forget();
        Ok(())
    }

    /// A request whose ids are its own, so that no two share a prefix; `None` if the engine is too small for it.
    fn submit_made_up(&mut self, seed: u32) -> Option<RequestId> {
        let n_ids = self.state.config().tokenizer_vocab_size;
        let prompt = (0..PROMPT).map(|at| (seed * PROMPT + at).wrapping_mul(2_654_435_761) % n_ids).collect();
        let sampling =
            SamplingParams { max_tokens: ANSWER, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
        let now_ns = self.shared.now_ns();
        self.state.submit(Request { prompt, sampling, ..Request::default() }, now_ns).ok()
    }
}
