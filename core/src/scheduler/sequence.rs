//! A request's life as typestate: `Queued -> Prefilling -> Decoding -> Finished`, with `Preempted` (lost its memory,
//! waits with its tokens) and `Leaving` (ended while a step that writes its pages is in flight).
//!
//! Each transition consumes the old state, so an illegal one does not compile; memory is held exactly in the states that
//! have a [`Lease`]. `tests/compile_fail/` has what must not compile.

use crate::{
    bug::seeded,
    cache::{index::FoundPath, lease::Lease, memory::Memory, namespace::Namespace},
    grammar::Guide,
    request::{RequestId, SamplingParams, TokenLogprobs, Usage},
    sampler::{History, side::Side},
    scheduler::{decision::Why, marks::Mark},
    speculation::drafts::Drafts,
};

/// Order of service: smaller first.
pub type Rank = (i32, u64);

/// What stays with a request through all states.
#[derive(Debug)]
pub struct Body {
    /// The engine's id.
    pub id: RequestId,
    /// (priority class, arrival).
    pub rank: Rank,
    /// Validated.
    pub sampling: SamplingParams,
    /// Prompt, then generated tokens; has room for all of them.
    pub tokens: Vec<u32>,
    /// Of `tokens`, the prompt.
    pub prompt_tokens: u32,
    /// Generation ends at this length, for `max_tokens` or the context.
    pub max_len: u32,
    /// Counts for the penalties.
    pub history: History,
    /// What it needs of the device's side tables.
    pub side: Side,
    /// Who it may share prefixes with.
    pub namespace: Namespace,
    /// Hash chain over its whole pages, as far as it was needed.
    pub hashes: Vec<u64>,
    /// The cached pages it starts with, as found when it waited.
    pub found: FoundPath,
    /// See [`crate::request::Request::boundaries`].
    pub boundaries: Vec<u32>,
    /// Boundaries at which its recurrent state is to be stored, ascending; passed ones are gone.
    pub marks: Vec<Mark>,
    /// Guesses being checked in the planned step, and what they are made from; nothing for requests that do not speculate.
    pub drafts: Drafts,
    /// What its answer must look like, and the masks of its rows.
    pub(crate) guide: Guide,
    /// Prompt tokens found in the cache at first admission.
    pub cached_tokens: Option<u32>,
    /// Reports so far, if asked for; entry i is about prompt token i + 1.
    pub prompt_logprobs: Option<Vec<TokenLogprobs>>,
    /// Times it waited for pages from host memory.
    pub n_loads: u32,
    /// `Started` was delivered.
    pub is_started: bool,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// While it waits: tokens that the cache did not have when it was last asked.
    pub uncached: u32,
    /// See [`super::policy::Prefill`].
    pub overtaken_steps: u32,
}

impl Body {
    /// Length in tokens.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Never: a prompt has at least one token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Generated tokens.
    pub fn n_generated(&self) -> u32 {
        self.len() - self.prompt_tokens
    }

    /// First position whose logits prompt reports still need; `None` if no more are needed.
    pub fn next_prompt_logits(&self) -> Option<u32> {
        self.next_prompt_logits_after(0)
    }

    /// The same, once `n` more rows have been reported.
    pub fn next_prompt_logits_after(&self, n: u32) -> Option<u32> {
        let reported = self.prompt_logprobs.as_ref()?.len() as u32 + n;
        (reported + 1 < self.prompt_tokens).then_some(reported)
    }

    /// The boundary that a chunk behind `computed` tokens may not pass.
    pub fn next_mark(&self, computed: u32) -> Option<u32> {
        self.marks.iter().map(|mark| mark.tokens).find(|&tokens| tokens > computed)
    }

    /// Counts for the caller.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.n_generated(),
        }
    }
}

/// Memory and progress of a request that runs; boxed like the body, because every step moves every request twice.
#[derive(Debug)]
pub struct Active {
    /// What it holds.
    pub lease: Lease,
    /// Tokens whose cache rows are written (by completed steps).
    pub computed: u32,
    /// Tokens whose rows in the draft's component are written.
    pub drafted: u32,
    /// Tokens of the step in flight, 0 if it is not part of one.
    pub planned: u32,
    /// Its first row of logits in the step in flight.
    pub first_logit_row: u32,
    /// Rows of prompt logits it has there.
    pub n_prompt_logit_rows: u32,
    /// Its part in the step planned ahead.
    pub ahead: Share,
    /// Its part in the step behind the one in flight, if that runs already.
    pub behind: Option<Behind>,
    /// Why it has no part in the step planned last, if it has none and computes a prompt.
    pub lacks: Why,
    /// How it leaves, for [`Leaving`].
    pub ending: Ending,
}

impl Active {
    /// Take part in the next step, the last `n_drafts` tokens of it being guesses.
    pub fn start(&mut self, share: Share, memory: &mut Memory, n_drafts: u32) {
        self.planned = share.n_tokens;
        self.n_prompt_logit_rows = share.n_prompt_logit_rows;
        // Guesses may be wrong: the state is planned for a step that ends off the boundary.
        let may_be_wrong = n_drafts > 0 && !seeded!(GuessesOverwriteTheKeptState);
        let end = self.computed + self.planned - u32::from(may_be_wrong);
        self.lease.plan_state(memory, end);
    }
}

/// A request's part in a step that was given to the device behind another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Tokens and rows.
    pub share: Share,
    /// Its first row of logits there.
    pub first_logit_row: u32,
}

/// What becomes of the memory of a request that ended while a step was in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It is given back; nothing more is cached.
    #[default]
    Release,
    /// Its values are in doubt: what it cached is forgotten.
    Discard,
}

impl Active {
    /// A step that runs still reads and writes its memory.
    pub fn is_in_flight(&self) -> bool {
        self.planned > 0 || self.behind.is_some()
    }

    /// Take part in the step behind the one in flight.
    pub fn start_behind(&mut self, share: Share, memory: &mut Memory) {
        let computed = self.computed + self.planned;
        if self.planned > 0 {
            self.lease.plan_state_behind(memory, computed);
        } else {
            self.lease.plan_state(memory, computed + share.n_tokens);
        }
        self.behind = Some(Behind { share, first_logit_row: 0 });
    }

    /// The step in flight has been taken in; the one behind it is in flight now.
    pub fn move_up(&mut self) {
        assert_eq!(self.planned, 0, "taken in");
        if let Some(Behind { share, first_logit_row }) = self.behind.take() {
            (self.planned, self.n_prompt_logit_rows) = (share.n_tokens, share.n_prompt_logit_rows);
            self.first_logit_row = first_logit_row;
        }
    }
}

/// A request's part in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Tokens.
    pub n_tokens: u32,
    /// Rows of prompt logits.
    pub n_prompt_logit_rows: u32,
}

impl Active {
    /// Start behind the pages whose draft rows are there already.
    pub fn find_drafted(&mut self, memory: &Memory) {
        let n_whole = (self.computed / memory.page_tokens()) as usize;
        let pages = self.lease.pages_from(0).take(n_whole).take_while(|&page| memory.is_drafted(page));
        self.drafted = pages.count() as u32 * memory.page_tokens();
    }

    /// Pages given up for equal ones may have had rows that those lack.
    pub fn recheck_drafted(&mut self, memory: &Memory) {
        for &at in self.lease.renumbered() {
            if !memory.is_drafted(self.lease.page(at)) {
                self.drafted = self.drafted.min(at * memory.page_tokens());
            }
        }
    }
}

/// Waits for its first admission.
#[derive(Debug)]
pub struct Queued(());
/// Lost its memory and waits to compute its tokens again.
#[derive(Debug)]
pub struct Preempted(());
/// Computes tokens it has.
#[derive(Debug)]
pub struct Prefilling(Box<Active>);
/// Computes its last token and samples the next.
#[derive(Debug)]
pub struct Decoding(Box<Active>);
/// Ended for the caller; its memory waits for the step in flight.
#[derive(Debug)]
pub struct Leaving(Box<Active>);
/// Ended; holds nothing.
#[derive(Debug)]
pub struct Finished(());

/// A request in state `S`.
#[derive(Debug)]
#[must_use]
pub struct Sequence<S> {
    /// What stays through all states; boxed so that changing state moves a few words.
    pub body: Box<Body>,
    state: S,
}

/// States that hold memory.
pub trait HoldsMemory {
    /// Look.
    fn active(&self) -> &Active;
    /// Change.
    fn active_mut(&mut self) -> &mut Active;
    /// Leave the state.
    fn into_active(self) -> Box<Active>;
}

macro_rules! holds_memory {
    ($($state:ident),*) => {$(
        impl HoldsMemory for $state {
            fn active(&self) -> &Active {
                &self.0
            }
            fn active_mut(&mut self) -> &mut Active {
                &mut self.0
            }
            fn into_active(self) -> Box<Active> {
                self.0
            }
        }
    )*};
}
holds_memory!(Prefilling, Decoding, Leaving);

/// States of which the device still computes something for the caller.
pub trait Runs: HoldsMemory {}
impl Runs for Prefilling {}
impl Runs for Decoding {}

/// States that hold nothing and wait to run.
pub trait Waits {}
impl Waits for Queued {}
impl Waits for Preempted {}

impl Sequence<Queued> {
    /// A new request.
    pub fn new(body: Box<Body>) -> Self {
        Self { body, state: Queued(()) }
    }
}

impl<S: Waits> Sequence<S> {
    /// Start to run with `computed` tokens in the cache already.
    pub fn admit(mut self, lease: Lease, computed: u32) -> Sequence<Prefilling> {
        if self.body.cached_tokens.is_none() || seeded!(CachedTokensAreOverwritten) {
            self.body.cached_tokens = Some(computed);
        }
        let active = Active {
            lease,
            computed,
            drafted: 0,
            planned: 0,
            first_logit_row: 0,
            n_prompt_logit_rows: 0,
            ahead: Share::default(),
            behind: None,
            lacks: Why::StepBudget,
            ending: Ending::default(),
        };
        Sequence { body: self.body, state: Prefilling(Box::new(active)) }
    }

    /// End without having run, or without running again.
    pub fn cancel(self) -> Sequence<Finished> {
        Sequence { body: self.body, state: Finished(()) }
    }
}

impl<S: HoldsMemory> Sequence<S> {
    /// Memory and progress.
    pub fn active(&self) -> &Active {
        self.state.active()
    }

    /// Memory and progress, and what stays.
    pub fn parts_mut(&mut self) -> (&mut Body, &mut Active) {
        (&mut self.body, self.state.active_mut())
    }

    /// The planned step has run; all of its tokens but the last `n_rejected` count.
    pub fn complete_step(&mut self, memory: &mut Memory, n_rejected: u32) {
        let active = self.state.active_mut();
        active.computed += std::mem::take(&mut active.planned) - n_rejected;
        active.lease.complete_step(memory, active.computed);
    }

    /// End, and forget what was published: the values are in doubt.
    pub fn discard(self, memory: &mut Memory) -> Sequence<Finished> {
        self.state.into_active().lease.discard(memory);
        Sequence { body: self.body, state: Finished(()) }
    }
}

impl<S: Runs> Sequence<S> {
    /// Cache the whole computed pages, and the recurrent state if this is a place for it.
    pub fn publish(&mut self, memory: &mut Memory) {
        let active = self.state.active_mut();
        let body = &mut *self.body;
        active.lease.publish(memory, &body.namespace, &body.tokens, active.computed, &mut body.hashes);
        if let Some(&mark) = body.marks.first()
            && mark.tokens <= active.computed
        {
            assert_eq!(mark.tokens, active.computed, "chunks end at marks");
            body.marks.remove(0);
            active.lease.share_state(memory, mark.may_evict);
        }
    }

    /// End well: whole pages stay cached, and the recurrent state at the last of them.
    pub fn finish(mut self, memory: &mut Memory) -> Sequence<Finished> {
        if !seeded!(OutputIsNotPublished) {
            self.publish(memory);
        }
        self.state.into_active().lease.retire(memory);
        Sequence { body: self.body, state: Finished(()) }
    }

    /// Ended well, while the step behind is under way: whole pages stay cached, and so does the recurrent state at the last of
    /// them, which that step may read and does not write. The rest is held until it has been taken in.
    pub fn finish_behind(mut self, memory: &mut Memory) -> Sequence<Leaving> {
        if !seeded!(OutputIsNotPublished) {
            self.publish(memory);
        }
        self.state.active_mut().lease.share_state(memory, false);
        self.leave(Ending::Release)
    }

    /// End and publish nothing more.
    pub fn drop_memory(self, memory: &mut Memory) -> Sequence<Finished> {
        self.state.into_active().lease.release(memory);
        Sequence { body: self.body, state: Finished(()) }
    }

    /// Give up the memory and wait. Whole pages are cached: if nobody needs them they shorten the return.
    pub fn preempt(mut self, memory: &mut Memory) -> Sequence<Preempted> {
        assert_eq!(self.active().planned, 0, "pages of a step in flight cannot be taken away");
        self.publish(memory);
        self.body.drafts.clear();
        if seeded!(PreemptedLosesItsLastToken) {
            self.body.tokens.pop();
        }
        self.state.into_active().lease.retire(memory);
        Sequence { body: self.body, state: Preempted(()) }
    }

    /// Ended for the caller while a step is in flight.
    pub fn leave(mut self, ending: Ending) -> Sequence<Leaving> {
        self.state.active_mut().ending = ending;
        Sequence { body: self.body, state: Leaving(self.state.into_active()) }
    }
}

impl Sequence<Leaving> {
    /// No step reads or writes its memory any more.
    pub fn let_go(self, memory: &mut Memory) -> Sequence<Finished> {
        let active = self.state.0;
        match active.ending {
            Ending::Release => active.lease.release(memory),
            Ending::Discard => active.lease.discard(memory),
        }
        Sequence { body: self.body, state: Finished(()) }
    }
}

impl Sequence<Prefilling> {
    /// All its tokens are computed or will be in the step that just ended.
    pub fn complete(self) -> Sequence<Decoding> {
        Sequence { body: self.body, state: Decoding(self.state.0) }
    }
}

impl Sequence<Finished> {
    /// The end of the record: leaves its namespace.
    pub fn close(self, memory: &mut Memory) {
        memory.index.close(self.body.namespace);
    }
}
