//! What a step decided about each request, and why: filled while the step is planned, read by whoever wants to know.
//!
//! Always on: a few words per running request, into room reserved at start. Of the waiting requests only the first few are
//! named, because the others wait behind them for the same reason. Rejected: log lines. They cost an allocation each, and
//! what was not logged cannot be asked for afterwards.

use crate::{
    request::RequestId,
    scheduler::{
        outlook::Outlook,
        queue::{Queues, Running},
        sequence::Behind,
    },
};

/// Waiting requests named per step.
pub const WAITING_NAMED_MAX: usize = 8;

/// Why a request had no part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No pages for its next tokens.
    NoPages,
    /// All seats, table rows or state slots are taken.
    NoSeat,
    /// The step's tokens went to others before it.
    StepBudget,
    /// The step's table changes or rows of logits went to others before it.
    StepRoom,
    /// Kept waiting so that others can share its forward pass.
    Coalescing,
    /// Somebody goes first by policy.
    Policy,
}

impl Why {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoPages => "no pages",
            Self::NoSeat => "no seat",
            Self::StepBudget => "step budget",
            Self::StepRoom => "step room",
            Self::Coalescing => "coalescing",
            Self::Policy => "policy",
        }
    }
}

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It starts to run, or comes back. Another entry says what it does in this step.
    Admitted {
        /// Tokens found in the prefix cache.
        cached: u32,
        /// It had lost its memory before.
        returns: bool,
    },
    /// It computes prompt tokens.
    Prefills {
        /// Computed before.
        computed: u32,
        /// In this step.
        tokens: u32,
    },
    /// It generates.
    Decodes {
        /// Computed before.
        computed: u32,
        /// In this step, guesses included.
        tokens: u32,
    },
    /// It has no part in this step.
    Waits(Why),
    /// It lost its memory.
    Preempted {
        /// To whom.
        by: RequestId,
    },
}

/// A decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Who.
    pub id: RequestId,
    /// What.
    pub what: What,
}

/// All decisions of a step, in the order in which they were taken, running requests in order of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The step's number.
    pub sequence: u64,
    /// When it was planned.
    pub planned_ns: u64,
    /// Tokens wanted for the step, decoding ones included.
    pub budget_tokens: u32,
    /// Decoding tokens.
    pub decode_tokens: u32,
    /// Prompt tokens.
    pub prefill_tokens: u32,
    /// Requests that hold memory.
    pub running: u32,
    /// Requests that wait; of these the first [`WAITING_NAMED_MAX`] are in the list.
    pub waiting: u32,
    /// Who and what.
    pub list: Vec<Decision>,
}

impl Decisions {
    /// With room for every step.
    pub fn new(max_running: u32) -> Self {
        // Each running request: an entry, an admission, and a loss.
        Self { list: Vec::with_capacity(3 * max_running as usize + WAITING_NAMED_MAX), ..Self::default() }
    }

    /// Note something about a request.
    pub fn note(&mut self, id: RequestId, what: What) {
        self.list.push(Decision { id, what });
    }

    /// The step is planned: note what everybody does. `stopped`: why the next waiting request was not admitted.
    pub fn conclude(&mut self, queues: &Queues, stopped: Option<Why>) {
        (self.decode_tokens, self.prefill_tokens) = (0, 0);
        for running in queues.iter_running() {
            let (body, active) = running.parts();
            let (computed, tokens) = (active.computed, active.planned);
            let what = match running {
                Running::Leaving(_) => continue,
                Running::Decoding(_) if tokens > 0 => What::Decodes { computed, tokens },
                Running::Prefilling(_) if tokens > 0 => What::Prefills { computed, tokens },
                Running::Decoding(_) => What::Waits(Why::NoPages),
                Running::Prefilling(_) => What::Waits(active.lacks),
            };
            match what {
                What::Decodes { .. } => self.decode_tokens += tokens,
                _ => self.prefill_tokens += tokens,
            }
            self.note(body.id, what);
        }
        // Where nobody had to wait at first, somebody lost memory since.
        self.conclude_waiting(queues, stopped.unwrap_or(Why::NoPages));
    }

    /// The same of a step behind the one in flight, in which every request that goes on has its part or lacks the budget.
    pub fn conclude_behind(&mut self, queues: &Queues, stopped: Option<Why>) {
        (self.decode_tokens, self.prefill_tokens) = (0, 0);
        for running in queues.iter_running() {
            let (body, active) = running.parts();
            let outlook = Outlook::of(running);
            let computed = outlook.computed;
            let what = match active.behind {
                _ if outlook.ends => continue,
                Some(Behind { share, .. }) if outlook.is_decoding => {
                    self.decode_tokens += share.n_tokens;
                    What::Decodes { computed, tokens: share.n_tokens }
                }
                Some(Behind { share, .. }) => {
                    self.prefill_tokens += share.n_tokens;
                    What::Prefills { computed, tokens: share.n_tokens }
                }
                None => What::Waits(active.lacks),
            };
            self.note(body.id, what);
        }
        self.conclude_waiting(queues, stopped.unwrap_or(Why::NoPages));
    }

    fn conclude_waiting(&mut self, queues: &Queues, why: Why) {
        for waiting in queues.waiting.iter().take(WAITING_NAMED_MAX) {
            self.note(waiting.body().id, What::Waits(why));
        }
        (self.running, self.waiting) = (queues.running.len() as u32, queues.waiting.len() as u32);
    }
}
