//! Guesses by a draft model: passes that the caller runs on the device between two turns.
//!
//! After a turn's [`EngineState::advance`] and replay, requests that go on decoding may get guesses for the next turn:
//! one first pass computes the draft's rows that are missing, up to the newest token, and gives the first guess of each;
//! one next pass per further guess computes a row per request. As everywhere in this module the state machine only writes
//! parameter blocks and reads logits: [`EngineState::draft_step`] and [`EngineState::drafted`] alternate until there is
//! nothing more to run. Not running them, or aborting in between, costs guesses and nothing else.
//!
//! # The draft's rows and the prefix cache
//!
//! The draft has a component of its own in the cache, with the same page numbers and tables as the target's. Its row at
//! position p is made from token p and what came before (for EAGLE3: the target's hidden states at p - 1), so the rows of a
//! page depend on tokens of that page and earlier ones only: they are right for every continuation, and whoever hits the
//! page can use them. Rows of guesses lie behind the newest token, hence never in a cached page.
//!
//! Rows are made when they are wanted, not when the prompt is: a draft that does not pay is not run at all. So a cached page
//! may lack them. The memory knows which pages have all their draft rows; a request starts drafting behind the last of
//! its leading pages that do, and computes the others' rows, even in pages it shares: they are the same values for
//! everybody, and nobody reads a row it has not found marked or written itself.
//!
//! Rejected: an EAGLE row at p for the token at p + 1, as it is usually described. The last row of each page would belong to
//! one continuation. Rejected: cutting hits to where the draft has rows. A drafts' rows are cheap, the target's are not.

mod verdict;

use tokenspeed_backend_api::abi::{ts_step_row, ts_step_token, ts_table_delta};

use super::{Counters, EngineState, InFlight, Pass, seen::Seen};
use crate::{
    cache::memory::Memory,
    request::RequestId,
    scheduler::{
        outlook::Outlook,
        plan::StepLimits,
        queue::{Queues, Running},
        sequence::{Active, Body},
    },
    speculation::{
        DRAFT_MAX, DraftModel,
        ledger::Ledger,
        looks::Checked,
        width::{Offer, Record, StepCost},
    },
    step::{StepBuffer, StepCapacity, StepContent},
};

/// A pass of the draft to run; then [`EngineState::drafted`] takes its logits.
#[derive(Debug)]
pub struct DraftStep<'a> {
    /// [`Pass::DraftFirst`] or [`Pass::DraftNext`].
    pub pass: Pass,
    /// Its parameter block.
    pub step: &'a StepBuffer,
    /// Rows of logits.
    pub n_logit_rows: u32,
}

/// A request that gets guesses.
#[derive(Clone, Copy, Debug)]
struct Lane {
    id: RequestId,
    /// Where it was among the running.
    at: usize,
    /// Length of its text.
    len: u32,
    /// Draft rows it will have after the first pass.
    end: u32,
    /// Guesses wanted.
    width: u32,
    /// Its row of logits in the pass that runs, if it has one.
    logit_row: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing to draft before the next turn.
    Idle,
    /// A turn was taken in.
    Due,
    /// A pass was handed out; so many guesses were made before.
    Running(u32),
    /// A pass was taken in; each open lane has so many guesses.
    Made(u32),
}

/// What is to be known of a turn when the next begins.
#[derive(Clone, Copy, Debug)]
struct Turn {
    planned_ns: u64,
    /// Requests that decoded.
    decoding: u32,
    /// Something else ran beside them.
    is_mixed: bool,
    /// Tokens it generated.
    generated: u64,
    /// Guesses checked, and those of them that were right.
    guesses: u32,
    accepted: u32,
    /// Time of the draft's passes behind it.
    draft_ns: u64,
}

/// A text that lags further behind than this is caught up with only if that will probably pay.
const BEHIND: u32 = 16;
/// Times its expected cost that a turn may count.
const DISTURBED: f64 = 2.0;
/// Turns between two that are not drafted for, at first and in the end: what a turn costs without guesses must not be
/// remembered from a cold start.
const REMEASURE: [u32; 2] = [4, 64];

/// The drafting half of an engine.
pub(super) struct Drafting {
    model: DraftModel,
    capacity: StepCapacity,
    step: StepBuffer,
    rows: Vec<ts_step_row>,
    tokens: Vec<ts_step_token>,
    logit_rows: Vec<u32>,
    deltas: Vec<ts_table_delta>,
    lanes: Vec<Lane>,
    offers: Vec<Offer>,
    stage: Stage,
    began_ns: u64,
    turn: Option<Turn>,
    /// Of turns of nothing but decoding, without guesses.
    plain: StepCost,
    n_unmeasured: u32,
    /// Turns drafted for since the last one that was not, and how many there may be.
    n_drafted: u32,
    remeasure: u32,
    first: StepCost,
    next: StepCost,
    /// Of each token in long first passes.
    token_ns: Option<f64>,
    /// All requests together: where new ones start.
    record: Record,
    ledger: Ledger,
    /// Turns of the warm-up, while there is one.
    warming: Option<u32>,
    /// Nothing will be drafted behind the turn in flight.
    is_resting: bool,
}

impl std::fmt::Debug for Drafting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drafting({:?}, {} lanes, {:?})", self.stage, self.lanes.len(), self.ledger)
    }
}

impl Drafting {
    pub fn new(model: DraftModel, capacity: StepCapacity) -> Self {
        let rows = capacity.rows as usize;
        Self {
            model,
            capacity,
            step: StepBuffer::new(capacity),
            rows: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(capacity.tokens as usize),
            logit_rows: Vec::with_capacity(rows),
            deltas: Vec::with_capacity(capacity.deltas as usize),
            lanes: Vec::with_capacity(rows),
            offers: Vec::with_capacity(rows),
            stage: Stage::Idle,
            began_ns: 0,
            turn: None,
            plain: StepCost::default(),
            n_unmeasured: 0,
            n_drafted: 0,
            remeasure: REMEASURE[0],
            first: StepCost::default(),
            next: StepCost::default(),
            token_ns: None,
            record: Record::default(),
            ledger: Ledger::default(),
            warming: None,
            is_resting: false,
        }
    }

    /// Everything failed: no turn, nothing to draft.
    pub fn clear(&mut self) {
        (self.stage, self.turn, self.is_resting) = (Stage::Idle, None, false);
        self.lanes.clear();
    }

    /// A turn was taken in, all but the replay.
    pub fn taken_in(&mut self, in_flight: &InFlight, checked: Checked, now_ns: u64) {
        self.record.observe_many(checked.tried, checked.accepted);
        let turn = Turn {
            planned_ns: in_flight.planned_ns,
            decoding: in_flight.decoding(checked.guesses),
            is_mixed: in_flight.is_mixed,
            generated: checked.generated,
            guesses: checked.guesses,
            accepted: checked.accepted,
            draft_ns: 0,
        };
        if !turn.is_mixed && turn.guesses == 0 {
            self.plain.observe_plain(turn.decoding, now_ns.saturating_sub(turn.planned_ns));
        }
        let stage = if std::mem::take(&mut self.is_resting) { Stage::Idle } else { Stage::Due };
        (self.turn, self.stage) = (Some(turn), stage);
    }

    /// The turn before, its drafting included, has ended.
    pub fn settle(&mut self, now_ns: u64, cost: &StepCost) {
        self.stage = Stage::Idle;
        let Some(turn) = self.turn.take() else { return };
        let n = turn.decoding;
        let (all_ns, draft_ns) = (now_ns.saturating_sub(turn.planned_ns) as f64, turn.draft_ns as f64);
        // A machine that was busy with something else is nobody's loss.
        let most_ns = cost.ns(n + turn.guesses).filter(|_| !turn.is_mixed).map_or(f64::INFINITY, |ns| DISTURBED * ns);
        let ns = (all_ns - draft_ns).max(0.0).min(most_ns) + draft_ns;
        let has_paid = turn.guesses > 0 || turn.draft_ns > 0;
        // A mixed turn is compared with whatever is known, so that none is off the account.
        let known_ns = if turn.is_mixed { self.plain.ns(n) } else { self.plain.near(n) };
        let plain_ns = known_ns.filter(|_| has_paid).map(|plain_ns| {
            let token_ns = plain_ns / f64::from(n);
            if !turn.is_mixed {
                return turn.generated as f64 * token_ns;
            }
            // What the others cost is not known apart, so the guesses are held against what they cost without them.
            let step_ns = |tokens| cost.ns(tokens).unwrap_or(plain_ns);
            let guessing_ns = draft_ns + (step_ns(n + turn.guesses) - step_ns(n)).max(0.0);
            ns - guessing_ns + f64::from(turn.accepted) * token_ns
        });
        self.ledger.turn(ns, plain_ns);
    }

    /// Decide who gets how many guesses, and write the first pass; false if nobody does.
    fn begin(&mut self, queues: &mut Queues, memory: &mut Memory, limits: &StepLimits, cost: &StepCost) -> bool {
        let is_open = |running: &Running| matches!(running, Running::Decoding(_)) && running.parts().1.planned == 0;
        self.open_lanes(queues, memory, limits, is_open);
        let n = self.lanes.len() as u32;
        if n == 0 {
            return false;
        }
        let verdict = self.judge(queues, limits, n, cost);
        self.conclude(verdict);
        if !self.lanes.iter().any(|lane| lane.width > 0) {
            return false;
        }
        self.clear_parts();
        let plain_ns = self.plain.ns(n);
        // Catching up never takes longer than a turn does.
        let room = match (plain_ns, self.token_ns) {
            (Some(turn), Some(token)) => ((turn / token.max(1.0)) as u32).max(memory.page_tokens()),
            _ => self.capacity.tokens,
        };
        let mut room = room.min(self.capacity.tokens);
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            if lane.width > 0 && room > 0 {
                let Some(Running::Decoding(sequence)) = &mut queues.running[lane.at] else { continue };
                let (body, active) = sequence.parts_mut();
                body.drafts.run_ahead(lane.len);
                self.catch_up(lane, body, active, memory, limits, n, &mut room);
            }
        }
        self.lanes = lanes;
        !self.rows.is_empty()
    }

    fn clear_parts(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.logit_rows.clear();
        self.deltas.clear();
    }

    /// Make a lane part of the first pass, as far as there is room.
    #[allow(clippy::too_many_arguments)]
    fn catch_up(
        &mut self,
        lane: &mut Lane,
        body: &Body,
        active: &mut Active,
        memory: &mut Memory,
        limits: &StepLimits,
        n: u32,
        room: &mut u32,
    ) {
        let (page_tokens, paged) = (memory.page_tokens(), &limits.paged_components);
        let wanted = memory.pages_of((lane.len + lane.width - 1).min(body.max_len));
        let n_new = wanted.saturating_sub(active.lease.n_pages());
        let n_deltas = (active.lease.renumbered().len() + n_new as usize) * paged.len();
        if self.deltas.len() + n_deltas > self.capacity.deltas as usize {
            lane.width = 0;
            return;
        }
        let announce = |deltas: &mut Vec<ts_table_delta>, active: &Active, index| {
            let (table_row, block) = (active.lease.row(), active.lease.page(index));
            deltas.extend(paged.iter().map(|&component| ts_table_delta { component, table_row, index, block }));
        };
        while let Some(index) = active.lease.next_renumbered() {
            announce(&mut self.deltas, active, index);
        }
        // A guess is never worth another request's pages: one is left for each.
        while active.lease.n_pages() < wanted && memory.n_available() > n && active.lease.grow(memory) {
            announce(&mut self.deltas, active, active.lease.n_pages() - 1);
        }
        let held = active.lease.n_pages() * page_tokens;
        let lag = lane.len.min(held).saturating_sub(active.drafted).min(*room);
        // At least the renumbered pages must be told; a row that is there already is computed again.
        let start = active.drafted.min(lane.len.min(held) - 1);
        let count = lag.max(1);
        *room = room.saturating_sub(count);
        lane.end = start + count;
        let is_there = lane.end == lane.len;
        // The last guess needs no row.
        lane.width = if is_there { lane.width.min(held + 1 - lane.len) } else { 0 };
        let (row, query_start) = (self.rows.len() as u32, self.tokens.len() as u32);
        self.rows.push(draft_row(active.lease.row(), start, query_start, count));
        let ids = &body.tokens[start as usize..lane.end as usize];
        self.tokens.extend((start..).zip(ids).map(|(position, &id)| draft_token(id, position, row)));
        lane.logit_row = is_there.then(|| {
            self.logit_rows.push(query_start + count - 1);
            self.logit_rows.len() as u32 - 1
        });
    }

    /// Write the pass that gives each open lane one more guess than `made`; false if none is open.
    fn go_on(&mut self, made: u32, queues: &mut Queues) -> bool {
        self.clear_parts();
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            lane.logit_row = None;
            if lane.width <= made {
                continue;
            }
            let Some((body, active)) = find(queues, lane) else { continue };
            let Some(&id) = body.drafts.ahead(lane.len).get(made as usize - 1) else { continue };
            let (row, position) = (self.rows.len() as u32, lane.len + made - 1);
            self.rows.push(draft_row(active.lease.row(), position, row, 1));
            self.tokens.push(draft_token(id, position, row));
            self.logit_rows.push(row);
            lane.logit_row = Some(row);
        }
        self.lanes = lanes;
        !self.rows.is_empty()
    }

    fn write(&mut self, sequence: u64) {
        self.step.write(&StepContent {
            sequence,
            rows: &self.rows,
            tokens: &self.tokens,
            logit_rows: &self.logit_rows,
            deltas: &self.deltas,
        });
    }

    fn take_in(&mut self, made: u32, logits: &[f32], n_ids: u32, queues: &mut Queues, memory: &mut Memory, ns: u64) {
        let n_tokens = self.tokens.len() as u32;
        if made == 0 {
            self.first.observe(n_tokens, ns);
            if n_tokens > BEHIND {
                let each = ns as f64 / f64::from(n_tokens);
                self.token_ns = Some(self.token_ns.map_or(each, |known| known + 0.2 * (each - known)));
            }
        } else {
            self.next.observe(n_tokens, ns);
        }
        let width = self.model.vocab_size as usize;
        for lane in &self.lanes {
            let Some((body, active)) = find(queues, lane) else { continue };
            if made == 0 && lane.end > active.drafted {
                let page_tokens = memory.page_tokens();
                for page in active.drafted / page_tokens..lane.end / page_tokens {
                    memory.mark_drafted(active.lease.page(page));
                }
                active.drafted = lane.end;
            }
            let Some(at) = lane.logit_row.filter(|_| lane.width > made) else { continue };
            if let [Some(id), second] = self.model.choices(&logits[at as usize * width..][..width], n_ids) {
                body.drafts.push_ahead(id, second);
            }
        }
    }
}

/// The lane's request, unless it has ended or lost its memory meanwhile.
fn find<'q>(queues: &'q mut Queues, lane: &Lane) -> Option<(&'q mut Body, &'q mut Active)> {
    let is_it = |running: &Option<Running>| running.as_ref().is_some_and(|r| r.parts().0.id == lane.id);
    let at = match queues.running.get(lane.at) {
        Some(running) if is_it(running) => lane.at,
        _ => queues.running.iter().position(is_it)?,
    };
    match queues.running[at].as_mut()? {
        Running::Decoding(sequence) if sequence.body.len() == lane.len => Some(sequence.parts_mut()),
        _ => None,
    }
}

fn draft_row(table_row: u32, computed: u32, query_start: u32, query_len: u32) -> ts_step_row {
    ts_step_row {
        table_row,
        computed,
        query_start,
        query_len,
        state_read: 0,
        state_write: 0,
        state_tokens: 0,
        branch_offset: 0,
    }
}

fn draft_token(id: u32, position: u32, row: u32) -> ts_step_token {
    ts_step_token { id: id.cast_signed(), position, row, reserved: 0 }
}

impl EngineState {
    /// From now on guesses are made for the sake of their costs. False, and nothing is done, without a draft model.
    pub(crate) fn begin_warm_up(&mut self) -> bool {
        let Some(drafting) = &mut self.drafting else { return false };
        drafting.warming = Some(0);
        true
    }

    /// From now on guesses are to pay. Nothing stays of the requests so far but measured costs: not what was right, nor cached
    /// pages, nor counts.
    ///
    /// # Panics
    /// If a request runs or waits.
    pub(crate) fn end_warm_up(&mut self) {
        let drafting = self.drafting.as_mut().expect("a warm-up has begun");
        drafting.clear();
        (drafting.warming, drafting.n_drafted, drafting.remeasure) = (None, 0, REMEASURE[1]);
        (drafting.record, drafting.ledger) = (Record::default(), Ledger::default());
        (self.counters, self.seen) = (Counters::default(), Seen::default());
        self.flush_cache().expect("the warm-up's requests have ended");
    }

    /// Whether requests may have guesses in the turn after the one in flight. If they cannot, that is decided now: nobody looks
    /// for any, or the draft model makes none, before that turn.
    pub(super) fn may_guess(&mut self) -> bool {
        if self.scheduler.limits().draft_max == 0 {
            return false;
        }
        let (queues, memory, cost) = (&mut self.queues, &self.memory, &self.step_cost);
        match &mut self.drafting {
            Some(drafting) => !drafting.rests(queues, memory, self.scheduler.limits(), cost),
            None => !self.scheduler.rests(queues, memory, cost),
        }
    }

    /// The next pass of the draft model, if there is one to run before the next turn. Call it after
    /// [`EngineState::replayed`], run what it returns, hand the logits to [`EngineState::drafted`], and call it again.
    ///
    /// # Panics
    /// If the pass handed out before was not taken in.
    pub fn draft_step(&mut self, now_ns: u64) -> Option<DraftStep<'_>> {
        let drafting = self.drafting.as_mut()?;
        let (pass, made) = match drafting.stage {
            Stage::Idle => return None,
            Stage::Running(_) => panic!("the draft pass handed out before has been taken in"),
            Stage::Due => (Pass::DraftFirst, 0),
            Stage::Made(made) => (Pass::DraftNext, made),
        };
        let goes_on = match made {
            0 => drafting.begin(&mut self.queues, &mut self.memory, self.scheduler.limits(), &self.step_cost),
            _ => drafting.go_on(made, &mut self.queues),
        };
        if !goes_on {
            drafting.stage = Stage::Idle;
            return None;
        }
        (drafting.stage, drafting.began_ns) = (Stage::Running(made), now_ns);
        drafting.n_drafted += u32::from(made == 0);
        drafting.write(self.sequence);
        Some(DraftStep { pass, step: &drafting.step, n_logit_rows: drafting.logit_rows.len() as u32 })
    }

    /// The pass handed out has run; `logits` are its rows, `[n_logit_rows, the draft's vocabulary]`.
    ///
    /// # Panics
    /// If there is no such pass or `logits` has another size.
    pub fn drafted(&mut self, now_ns: u64, logits: &[f32]) {
        let drafting = self.drafting.as_mut().expect("a pass of the draft was handed out");
        let Stage::Running(made) = drafting.stage else { panic!("a pass of the draft was handed out") };
        let expected = drafting.logit_rows.len() * drafting.model.vocab_size as usize;
        assert_eq!(logits.len(), expected, "one row of logits per logit row");
        let (ns, n_ids) = (now_ns.saturating_sub(drafting.began_ns), self.config.tokenizer_vocab_size);
        if let Some(turn) = &mut drafting.turn {
            turn.draft_ns += ns;
        }
        drafting.take_in(made, logits, n_ids, &mut self.queues, &mut self.memory, ns);
        drafting.stage = Stage::Made(made + 1);
    }
}
