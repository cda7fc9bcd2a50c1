//! The truth, told to the device out of band: which request each row of a step belongs to, and its history of tokens.
//!
//! The device compares what it reads through tables and slots with this, and never takes a history from a table. It
//! also keeps here what it has learned about pages and slots, so that a step which touches somebody else's is noticed
//! when it does, not when the damage is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokenspeed_backend_api::abi::ts_step_row;
use tokenspeed_core::{
    engine::Pass,
    request::{RequestId, SamplingParams},
};

use crate::{
    check::{Check, Failure},
    fingerprint::{mix, start},
    grammar::Grammar,
};

/// Tokens of a request, and the fingerprint after each.
#[derive(Clone, Debug)]
pub struct Truth {
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Entry n is the fingerprint of the first n tokens.
    pub prefix: Vec<u64>,
}

impl Truth {
    /// A prompt under a salt.
    pub fn new(salt: Option<&str>, prompt: &[u32]) -> Self {
        let mut truth = Self { tokens: Vec::new(), prefix: vec![start(salt)] };
        prompt.iter().for_each(|&token| truth.push(token));
        truth
    }

    /// One more token.
    pub fn push(&mut self, token: u32) {
        let last = *self.prefix.last().expect("the empty prefix is there");
        self.tokens.push(token);
        self.prefix.push(mix(last, token));
    }

    /// The same with other tokens behind, one guess after the other.
    pub fn guess(&self, ids: impl Iterator<Item = u32>) -> Self {
        let mut guessed = self.clone();
        ids.for_each(|id| guessed.push(id));
        guessed
    }

    /// Fingerprint of all tokens.
    pub fn last(&self) -> u64 {
        *self.prefix.last().expect("the empty prefix is there")
    }
}

/// A request that holds memory while a step runs.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Which.
    pub id: RequestId,
    /// Its row of the block tables.
    pub table_row: u32,
    /// Tokens computed before the step.
    pub computed: u32,
    /// Tokens of the step.
    pub planned: u32,
}

/// What goes wrong on the device in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// The step ends with an error after it wrote rubbish where it may write.
    Fails,
    /// The device is gone.
    Lost,
    /// Logit row number (modulo how many there are) gets a value that is not finite.
    NotFinite(u32),
}

/// Sizes the device checks numbers against.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Pages of each paged component.
    pub blocks: u32,
    /// State slots.
    pub states: u32,
    /// Tokens per page.
    pub block_tokens: u32,
    /// Guesses of a request in a step, at most.
    pub draft_max: u32,
    /// Side branches of a request in a step, at most.
    pub branches: u32,
    /// A draft model makes the guesses.
    pub drafts: bool,
    /// Chunks that do not complete what is wanted end on multiples of this.
    pub chunk_grid: u32,
    /// Most tokens of a chunk.
    pub chunk_cap: u32,
    /// Real token ids.
    pub n_ids: u32,
    /// Rows of the block tables, each with a relay slot; more slots lie behind them.
    pub table_rows: u32,
}

/// A token sampled on the device, in the slot where the next step may find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relayed {
    /// Whose.
    pub id: RequestId,
    /// Its place in the text.
    pub position: u32,
    /// As it lies in the slot; not an id if the row was not finite.
    pub token: u32,
}

/// What a request asks of the sampler, for those who check the side tables.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// As submitted.
    pub sampling: SamplingParams,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Ids that end its answer.
    pub eos_ids: Vec<u32>,
    /// What its answer must look like.
    pub grammar: Option<Grammar>,
}

/// What the device knows about a page of a component.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageNotes {
    /// Who has had it in its table since its first row was last written.
    pub users: Vec<RequestId>,
    /// Its place in the table of the last who had it.
    pub index: u32,
    /// Written by a request whose logits were not finite, and by nobody else used since.
    pub is_doubtful: bool,
}

/// Everything both sides know.
#[derive(Debug)]
pub struct World {
    /// Sizes.
    pub sizes: Sizes,
    /// Histories of all requests that have not ended, or are still in a step.
    pub truths: BTreeMap<RequestId, Truth>,
    /// What requests ask of the sampler; nothing, if they are not here.
    pub wishes: BTreeMap<RequestId, Wishes>,
    /// Histories with the guesses of the turn that runs behind them, by the offset of their branch; 0 is the chain.
    pub(crate) guessed: BTreeMap<(RequestId, u32), Truth>,
    /// What the draft guessed since it last went over a request's text.
    pub(crate) ahead: BTreeMap<RequestId, Ahead>,
    /// The token of each column of the draft's logits; empty = its own number.
    pub draft_ids: Vec<u32>,
    /// Guesses of all steps.
    pub n_guesses: u64,
    /// Who holds memory in the turn that runs.
    pub held: Vec<Held>,
    /// The pass that runs.
    pub(crate) pass: Pass,
    /// No pass of the turn but a replay follows.
    pub(crate) is_last_pass: bool,
    /// Planned for this turn and in no pass so far.
    pub(crate) unseen: BTreeSet<RequestId>,
    /// Rows of the turn that checked guesses, by the offset of their branch.
    pub(crate) verified: BTreeMap<(RequestId, u32), ts_step_row>,
    /// Requests whose tokens of this turn were never heard: aborted or failed while it ran.
    pub(crate) unheard: BTreeSet<RequestId>,
    /// Pages the cache owns.
    pub cached_pages: BTreeSet<u32>,
    /// State slots the cache owns.
    pub cached_states: BTreeSet<u32>,
    /// State slots of requests, each with its owner.
    pub held_states: BTreeMap<u32, RequestId>,
    /// What goes wrong in this pass.
    pub fault: Option<StepFault>,
    /// The first thing found wrong.
    pub failure: Option<Failure>,
    /// The request, length of its history, token id whose logit was made not finite in this step, and the history's
    /// fingerprint: branches have several histories of one length.
    pub poisoned: Option<(RequestId, u32, u32, u64)>,
    /// By page in host memory: whether what was copied there is doubtful, by component.
    pub(crate) doubtful_copies: BTreeMap<u32, Vec<bool>>,
    /// Set once the device is gone.
    pub is_lost: bool,
    /// `[component][block]`.
    pub(crate) pages: Vec<Vec<PageNotes>>,
    /// `[component][block]`: index into `held` of the one holder of the page, in the step that runs.
    pub(crate) owners: Vec<Vec<Owner>>,
    /// By relay slot.
    pub(crate) relayed: BTreeMap<u32, Relayed>,
    /// Rows sampled on the device.
    pub n_sampled: u64,
    /// The same, behind guesses.
    pub n_sampled_guesses: u64,
    /// Rows sampled with the help of side tables.
    pub n_side_rows: u64,
    /// The same, behind guesses, with counts of their own.
    pub n_side_guesses: u64,
    /// Rows sampled with a mask that a grammar made.
    pub n_guided_rows: u64,
    /// Steps that ran.
    pub n_steps: u64,
    /// Rows that went on in another state slot than they came from.
    pub n_state_moves: u64,
    /// Rows that were replayed.
    pub n_replays: u64,
    /// Side branches that were checked.
    pub n_branches: u64,
    /// Cache rows of right side branches, moved to their places.
    pub n_moves: u64,
    /// Rows of draft passes.
    pub n_draft_rows: u64,
}

/// A draft model's guesses for a request.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    /// The text, and the guesses behind it.
    pub text: Truth,
    /// Tokens of the text.
    pub len: u32,
    /// In place of each guess, what would have been the next best.
    pub seconds: Vec<Option<u32>>,
}

/// Who has a page in its table in this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    #[default]
    Nobody,
    One(usize),
    Several,
}

impl World {
    /// Nothing has happened yet.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            truths: BTreeMap::new(),
            wishes: BTreeMap::new(),
            guessed: BTreeMap::new(),
            ahead: BTreeMap::new(),
            draft_ids: Vec::new(),
            n_guesses: 0,
            held: Vec::new(),
            pass: Pass::Forward,
            is_last_pass: true,
            unseen: BTreeSet::new(),
            verified: BTreeMap::new(),
            unheard: BTreeSet::new(),
            cached_pages: BTreeSet::new(),
            cached_states: BTreeSet::new(),
            held_states: BTreeMap::new(),
            fault: None,
            failure: None,
            poisoned: None,
            doubtful_copies: BTreeMap::new(),
            is_lost: false,
            pages: Vec::new(),
            owners: Vec::new(),
            relayed: BTreeMap::new(),
            n_sampled: 0,
            n_sampled_guesses: 0,
            n_side_rows: 0,
            n_side_guesses: 0,
            n_guided_rows: 0,
            n_steps: 0,
            n_state_moves: 0,
            n_replays: 0,
            n_branches: 0,
            n_moves: 0,
            n_draft_rows: 0,
        }
    }

    /// A turn was planned: who holds memory, and how many tokens each has in it.
    pub fn begin_turn(&mut self, held: Vec<Held>) {
        self.unseen = held.iter().filter(|holder| holder.planned > 0).map(|holder| holder.id).collect();
        // Whoever left while its token was sampled never hears it, and may be in the step behind with it.
        for relayed in self.relayed.values() {
            let is_planned = held.iter().any(|holder| holder.id == relayed.id && holder.planned > 0);
            if let Some(truth) = self.truths.get_mut(&relayed.id).filter(|_| is_planned)
                && truth.tokens.len() == relayed.position as usize
            {
                truth.push(relayed.token);
            }
        }
        self.held = held;
        self.guessed.clear();
        self.verified.clear();
        self.unheard.clear();
    }

    /// The next pass that computes tokens of the turn; what goes wrong in it.
    pub fn begin_pass(&mut self, pass: Pass, is_last: bool, fault: Option<StepFault>) {
        (self.pass, self.is_last_pass, self.fault) = (pass, is_last, fault);
    }

    /// The turn was taken in, `unheard` of it were not; right guesses are replayed.
    pub fn begin_replay(&mut self, unheard: BTreeSet<RequestId>, fault: Option<StepFault>) {
        self.begin_pass(Pass::Replay, true, fault);
        self.guessed.clear();
        self.unheard = unheard;
    }

    /// The turn was taken in; the draft guesses on. Memory is held by other requests than before.
    pub fn begin_draft(&mut self, pass: Pass, held: Vec<Held>, cached_pages: BTreeSet<u32>, fault: Option<StepFault>) {
        self.begin_pass(pass, true, fault);
        self.guessed.clear();
        (self.held, self.cached_pages) = (held, cached_pages);
    }

    /// Whether the pass that runs is the draft model's.
    pub(crate) fn is_drafting(&self) -> bool {
        matches!(self.pass, Pass::DraftFirst | Pass::DraftNext)
    }

    /// A request's history, with the guesses behind it that the row at `branch_offset` has, or that the draft made so far.
    pub(crate) fn history(&self, id: RequestId, branch_offset: u32) -> &Truth {
        let guessed = match self.is_drafting() {
            true => self.ahead.get(&id).map(|ahead| &ahead.text),
            false => self.guessed.get(&(id, branch_offset)),
        };
        guessed.unwrap_or_else(|| &self.truths[&id])
    }

    /// A page was copied to host memory or back: who had it before does not matter, that it is doubtful does.
    pub(crate) fn copied_page(&mut self, is_store: bool, device: u32, host: u32) {
        let notes = self.pages.iter_mut().filter_map(|pages| pages.get_mut(device as usize));
        if is_store {
            self.doubtful_copies.insert(host, notes.map(|notes| notes.is_doubtful).collect());
        } else {
            let copied = self.doubtful_copies.get(&host).into_iter().flatten();
            notes.for_each(|notes| *notes = PageNotes::default());
            let notes = self.pages.iter_mut().filter_map(|pages| pages.get_mut(device as usize));
            notes.zip(copied).for_each(|(notes, is_doubtful)| notes.is_doubtful = *is_doubtful);
        }
    }

    /// Note the first failure.
    pub fn fail(&mut self, check: Check, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(Failure::new(check, what()));
        }
    }
}

impl World {
    /// Pages that a request holds, from number `first` on, and that only this request has ever had, may not be used
    /// again as they are.
    pub fn doubt(&mut self, id: RequestId, first: u32) {
        let own = self.held.iter().position(|holder| holder.id == id);
        for (notes, owner) in self.pages.iter_mut().flatten().zip(self.owners.iter().flatten()) {
            let is_held = own.is_some_and(|own| *owner == Owner::One(own));
            notes.is_doubtful |= is_held && notes.users == [id] && notes.index >= first;
        }
    }
}

/// Shared by the simulator and the device behind the C table.
#[derive(Clone, Debug)]
pub struct SharedWorld(Arc<Mutex<World>>);

/// Worlds of open simulations, by the number that goes through the device's options.
static WORLDS: Mutex<BTreeMap<u64, SharedWorld>> = Mutex::new(BTreeMap::new());
static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl SharedWorld {
    /// The world.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world with a number; `None` if its simulation is over.
    pub fn find(number: u64) -> Option<Self> {
        WORLDS.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }
}

/// A world that devices can find while this lives.
#[derive(Debug)]
pub struct Registered {
    /// The world.
    pub world: SharedWorld,
    /// Its number.
    pub number: u64,
}

impl Registered {
    /// A new world.
    pub fn new(world: World) -> Self {
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let world = SharedWorld(Arc::new(Mutex::new(world)));
        WORLDS.lock().unwrap_or_else(PoisonError::into_inner).insert(number, world.clone());
        Self { world, number }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        WORLDS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}
