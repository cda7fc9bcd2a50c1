//! A device that is a page memory and a pure function.
//!
//! Each cache row holds the fingerprint of all tokens up to its position, made from the row before it *as found through
//! the block table* and the token in the parameter block. Logits are a function of the fingerprint. A wrong page, a
//! stale row, an overwritten shared page or a chunk off by one therefore changes the text, which the oracle notices.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cache::copies::{CopyOrder, Direction},
    engine::{ComponentClass, EngineConfig, EngineState, Logits, Pass, Plan},
    request::{Event, RequestId},
    scheduler::decision::{WAITING_NAMED_MAX, What},
    step::{StepBuffer, StepReader},
};

/// Fingerprint of no tokens.
pub const EMPTY: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fingerprint of a history and one more token.
pub fn mix(fingerprint: u64, token: u32) -> u64 {
    let mut x = fingerprint.rotate_left(7) ^ (u64::from(token) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 29
}

/// The model: logits after a history. Padding columns are the largest of all.
pub fn logits(fingerprint: u64, config: &EngineConfig, row: &mut Vec<f32>) {
    for id in 0..config.vocab_size {
        let noise = (mix(fingerprint, id) >> 40) as f32 / (1 << 24) as f32;
        row.push(if id < config.tokenizer_vocab_size { noise * 8.0 - 3.0 } else { 1e9 });
    }
}

/// The device.
#[derive(Debug)]
pub struct FakeDevice {
    config: EngineConfig,
    /// `[component][table row][index]`.
    tables: Vec<Vec<Vec<u32>>>,
    /// `[component][block][slot]`.
    pages: Vec<Vec<Vec<u64>>>,
    /// `[slot]`: tokens and fingerprint.
    states: Vec<(u32, u64)>,
    /// `[slot, branch]`: what a verify pass left for the replay: tokens before it, and the fingerprint after each of its tokens.
    records: BTreeMap<(u32, u32), (u32, Vec<u64>)>,
    /// Host memory: each page by component, and states.
    host_pages: BTreeMap<u32, Vec<Vec<u64>>>,
    host_states: BTreeMap<u32, (u32, u64)>,
}

impl FakeDevice {
    pub fn new(config: &EngineConfig) -> Self {
        let n_slots = config.block_tokens as usize;
        Self {
            tables: vec![
                vec![vec![u32::MAX; config.blocks_per_row as usize]; config.table_rows as usize];
                config.components.len()
            ],
            pages: config.components.iter().map(|c| vec![vec![0; n_slots]; c.n_blocks as usize]).collect(),
            states: vec![(u32::MAX, 0); 1000],
            records: BTreeMap::new(),
            host_pages: BTreeMap::new(),
            host_states: BTreeMap::new(),
            config: config.clone(),
        }
    }

    /// Copy between the device and host memory. A copy that fails leaves rubbish behind.
    pub fn copy(&mut self, order: &CopyOrder, is_ok: bool) {
        let paged: Vec<usize> = self.config.components_of(ComponentClass::Paged).collect();
        if let Some(ends) = order.page {
            if order.direction == Direction::Store {
                let page = paged.iter().map(|&component| self.pages[component][ends.device as usize].clone());
                let mut page: Vec<Vec<u64>> = page.collect();
                page.iter_mut().flatten().for_each(|row| *row ^= u64::from(!is_ok));
                self.host_pages.insert(ends.host, page);
            } else {
                for (&component, page) in paged.iter().zip(&self.host_pages[&ends.host]) {
                    let rows = page.iter().map(|row| row ^ u64::from(!is_ok)).collect();
                    self.pages[component][ends.device as usize] = rows;
                }
            }
        }
        if let Some(ends) = order.state {
            let slot = &mut self.states[ends.device as usize];
            if order.direction == Direction::Store {
                self.host_states.insert(ends.host, (slot.0, slot.1 ^ u64::from(!is_ok)));
            } else {
                let (tokens, state) = self.host_states[&ends.host];
                *slot = (tokens, state ^ u64::from(!is_ok));
            }
        }
    }

    /// Commit what a verify pass recorded.
    pub fn replay(&mut self, step: &StepBuffer) {
        let step = StepReader::read(step.bytes()).unwrap();
        assert!(step.deltas.is_empty() && step.logit_rows.is_empty());
        for row in &step.rows {
            // Rows of a branch move to where the request's own belong, in order.
            for position in (row.computed..row.computed + row.query_len).filter(|_| row.branch_offset > 0) {
                for component in self.paged() {
                    let value = *self.slot(component, row.table_row, row.cache_row(position));
                    *self.slot(component, row.table_row, position) = value;
                }
            }
            for component in self.paged() {
                for at in row.query_start..row.query_start + row.query_len {
                    let token = step.tokens[at as usize];
                    let before = token.position.checked_sub(1);
                    let before = before.map_or(EMPTY, |p| *self.slot(component, row.table_row, p));
                    let own = *self.slot(component, row.table_row, token.position);
                    assert_eq!(own, mix(before, token.id.cast_unsigned()), "row {} after a replay", token.position);
                }
            }
            if self.config.components_of(ComponentClass::State).next().is_none() {
                continue;
            }
            let (tokens, fingerprints) = &self.records[&(row.state_write, row.branch_offset)];
            assert_eq!((*tokens, row.computed), (row.state_tokens, row.state_tokens), "recorded from another state");
            assert_eq!(self.states[row.state_read as usize].0, row.computed, "the state moved since it was verified");
            let state = fingerprints[row.query_len as usize - 1];
            self.states[row.state_write as usize] = (row.computed + row.query_len, state);
        }
    }

    fn take_deltas(&mut self, step: &StepReader) {
        let mut changed = BTreeSet::new();
        for delta in &step.deltas {
            assert_ne!(delta.block, 0, "block 0 is scratch");
            let entry = (delta.component, delta.table_row, delta.index);
            assert!(changed.insert(entry), "a step changes an entry at most once, so order does not matter");
            self.tables[delta.component as usize][delta.table_row as usize][delta.index as usize] = delta.block;
        }
    }

    /// The component of a draft model; the target's passes write all others.
    fn draft(&self) -> Option<usize> {
        self.config.draft.as_ref()?;
        self.config.components.iter().position(|c| c.name == "draft")
    }

    /// The paged components of the target.
    fn paged(&self) -> Vec<usize> {
        let draft = self.draft();
        self.config.components_of(ComponentClass::Paged).filter(|&at| Some(at) != draft).collect()
    }

    /// Run a pass of the draft model, which guesses as the target samples, but is often mistaken. In the first pass all rows
    /// before the step's own must be those of the text: the target's rows tell.
    pub fn run_draft(&mut self, step: &StepBuffer, pass: Pass) -> Vec<f32> {
        let step = StepReader::read(step.bytes()).unwrap();
        self.take_deltas(&step);
        let (draft, target) = (self.draft().expect("the engine has a draft"), self.paged()[0]);
        let mut last = vec![0; step.tokens.len()];
        for row in &step.rows {
            if pass == Pass::DraftFirst {
                for position in 0..row.computed {
                    let [own, theirs] = [draft, target].map(|c| *self.slot(c, row.table_row, position));
                    assert_eq!(own, theirs, "the draft's row at {position} of {} is of another text", row.computed);
                }
            }
            for (at, position) in (row.query_start..row.query_start + row.query_len).zip(row.computed..) {
                let token = step.tokens[at as usize];
                assert_eq!(token.position, position);
                let before = position.checked_sub(1).map_or(EMPTY, |p| *self.slot(draft, row.table_row, p));
                let fingerprint = mix(before, token.id.cast_unsigned());
                *self.slot(draft, row.table_row, position) = fingerprint;
                last[at as usize] = fingerprint;
            }
        }
        let mut rows = Vec::new();
        for &at in &step.logit_rows {
            let fingerprint = last[at as usize];
            logits(fingerprint ^ u64::from(fingerprint.is_multiple_of(4)), &self.config, &mut rows);
        }
        rows
    }

    /// Run the parameter block of a forward or a verify pass; returns the logits.
    pub fn run(&mut self, step: &StepBuffer, pass: Pass) -> Vec<f32> {
        let step = StepReader::read(step.bytes()).unwrap();
        self.take_deltas(&step);
        let paged = self.paged();
        let mut last = vec![0; step.tokens.len()];
        let mut next_token = 0;
        let mut writers = BTreeMap::new();
        let mut written = BTreeSet::new();
        for (row_at, row) in step.rows.iter().enumerate() {
            assert_eq!(row.query_start, next_token, "rows cover the tokens in order");
            next_token += row.query_len;
            let mut state = EMPTY;
            let mut fingerprints = Vec::new();
            for token_at in row.query_start..next_token {
                let token = step.tokens[token_at as usize];
                assert_eq!((token.row as usize, token.position), (row_at, row.computed + token_at - row.query_start));
                for &component in &paged {
                    let before = token.position.checked_sub(1);
                    let before = before.map_or(EMPTY, |p| *self.slot(component, row.table_row, row.cache_row(p)));
                    let fingerprint = mix(before, token.id.cast_unsigned());
                    let at = row.cache_row(token.position);
                    *self.slot(component, row.table_row, at) = fingerprint;
                    assert!(written.insert((component, row.table_row, at)), "cache row {at} is written twice");
                    let index = (at / self.config.block_tokens) as usize;
                    let block = self.tables[component][row.table_row as usize][index];
                    let writer = *writers.entry((component, block)).or_insert(row.table_row);
                    assert_eq!(writer, row.table_row, "two requests write block {block}");
                    last[token_at as usize] = fingerprint;
                }
                state = last[token_at as usize];
                fingerprints.push(state);
            }
            if self.config.components_of(ComponentClass::State).next().is_some() {
                assert!(row.state_write != 0 && row.state_tokens == row.computed);
                if row.computed > 0 {
                    let (tokens, fingerprint) = self.states[row.state_read as usize];
                    assert_eq!(tokens, row.computed, "the state encodes another number of tokens");
                    assert_eq!(fingerprint, *self.slot(paged[0], row.table_row, row.computed - 1));
                }
                if pass == Pass::Verify {
                    self.records.insert((row.state_write, row.branch_offset), (row.computed, fingerprints));
                } else {
                    self.states[row.state_write as usize] = (row.computed + row.query_len, state);
                }
            }
        }
        assert_eq!(next_token as usize, step.tokens.len());
        let mut rows = Vec::new();
        for &at in &step.logit_rows {
            logits(last[at as usize], &self.config, &mut rows);
        }
        rows
    }

    fn slot(&mut self, component: usize, table_row: u32, position: u32) -> &mut u64 {
        let (index, slot) = (position / self.config.block_tokens, position % self.config.block_tokens);
        let block = self.tables[component][table_row as usize][index as usize];
        &mut self.pages[component][block as usize][slot as usize]
    }
}

/// What one request heard.
pub type Heard = BTreeMap<RequestId, Vec<Event>>;

/// Engine, device and ears.
#[derive(Debug)]
pub struct Rig {
    pub engine: EngineState,
    pub device: FakeDevice,
    pub step: StepBuffer,
    pub heard: Heard,
    pub now_ns: u64,
    /// Copies handed out and not ended.
    pub copies: Vec<CopyOrder>,
    /// Plan every step ahead.
    pub plans_ahead: bool,
    /// Plans made ahead.
    pub n_ahead: u64,
    /// What a pass of the draft takes.
    pub draft_ns: u64,
}

impl Rig {
    pub fn new(config: EngineConfig) -> Self {
        let device = FakeDevice::new(&config);
        let engine = EngineState::new(config).unwrap();
        Self {
            step: engine.new_step_buffer(),
            device,
            engine,
            heard: Heard::new(),
            now_ns: 0,
            copies: Vec::new(),
            plans_ahead: false,
            n_ahead: 0,
            draft_ns: 10,
        }
    }

    pub fn submit(&mut self, request: crate::request::Request) -> RequestId {
        self.engine.submit(request, self.now_ns).unwrap()
    }

    pub fn plan(&mut self) -> Option<Plan> {
        self.now_ns += 1000;
        let plan = self.engine.plan(self.now_ns, &mut self.step);
        if let Some(plan) = &plan {
            self.check_decisions(plan);
        }
        if plan.is_some() && self.plans_ahead {
            self.n_ahead += u64::from(self.engine.plan_ahead());
        }
        plan
    }

    /// Take over what is to be copied.
    pub fn take_orders(&mut self) {
        self.copies.extend(std::iter::from_fn(|| self.engine.next_copy()));
    }

    /// End one of the copies under way.
    pub fn end_copy(&mut self, at: usize, is_ok: bool) {
        let order = self.copies.swap_remove(at);
        self.device.copy(&order, is_ok);
        self.engine.copied(order.id, is_ok);
    }

    /// Carry out all copies.
    pub fn copy_all(&mut self) -> bool {
        self.take_orders();
        let any = !self.copies.is_empty();
        while !self.copies.is_empty() {
            self.end_copy(0, true);
        }
        any
    }

    /// Who runs and who waits is written down once each, and adds up.
    fn check_decisions(&self, plan: &Plan) {
        let decisions = self.engine.decisions();
        assert_eq!((decisions.sequence, decisions.planned_ns), (plan.sequence, self.now_ns));
        // Rows of side branches belong to nobody's count.
        let branches = self.engine.in_flight.as_ref().map_or(0, |step| step.branch_tokens);
        assert_eq!(decisions.decode_tokens + branches, plan.n_decode_tokens);
        assert_eq!(decisions.decode_tokens + decisions.prefill_tokens + branches, plan.n_tokens);
        let mut said = BTreeMap::new();
        for decision in &decisions.list {
            let tokens = match decision.what {
                What::Prefills { tokens, .. } | What::Decodes { tokens, .. } => tokens,
                What::Waits(_) => 0,
                What::Admitted { .. } | What::Preempted { .. } => continue,
            };
            assert!(said.insert(decision.id, tokens).is_none(), "{:?} is named twice", decision.id);
        }
        for holder in self.engine.holders() {
            assert_eq!(said.remove(&holder.id), Some(holder.planned));
        }
        let waiting = (decisions.waiting as usize).min(WAITING_NAMED_MAX);
        assert!(said.len() == waiting && said.values().all(|tokens| *tokens == 0), "waiting ones: {said:?}");
    }

    pub fn abort(&mut self, id: RequestId) -> bool {
        let heard = &mut self.heard;
        self.engine.abort(id, &mut |id, event| heard.entry(id).or_default().push(event))
    }

    /// Run the planned step, and all that is drafted after it.
    pub fn finish_step(&mut self, plan: Plan) {
        self.finish_turn(plan);
        while self.draft_pass() {}
    }

    /// Run the next pass of the draft, if there is one.
    pub fn draft_pass(&mut self) -> bool {
        let Some(draft) = self.engine.draft_step(self.now_ns) else { return false };
        let logits = self.device.run_draft(draft.step, draft.pass);
        self.now_ns += self.draft_ns;
        self.engine.drafted(self.now_ns, &logits);
        true
    }

    /// Run the planned step alone.
    pub fn finish_turn(&mut self, plan: Plan) {
        let verify = plan.verify.is_some();
        let forward = if plan.n_rows > 0 { self.device.run(&self.step, Pass::Forward) } else { Vec::new() };
        let verify = if verify { self.device.run(self.engine.verify_step(), Pass::Verify) } else { Vec::new() };
        self.take_in(plan, Logits { forward: &forward, verify: &verify });
        if let Some(step) = self.engine.replay_step() {
            self.device.replay(step);
            self.engine.replayed(self.now_ns);
        }
    }

    pub fn finish_step_with(&mut self, plan: Plan, logits: &[f32]) {
        self.take_in(plan, logits.into());
    }

    fn take_in(&mut self, plan: Plan, logits: Logits<'_>) {
        self.now_ns += 1000;
        let heard = &mut self.heard;
        self.engine.advance(self.now_ns, plan, logits, &mut |id, event| heard.entry(id).or_default().push(event));
    }

    /// Plan and run one step; false when idle.
    pub fn turn(&mut self) -> bool {
        let plan = self.plan();
        plan.map(|plan| self.finish_step(plan)).is_some()
    }

    pub fn run_to_idle(&mut self, max_steps: usize) {
        for _ in 0..max_steps {
            if !self.turn() {
                return;
            }
        }
        panic!("not idle after {max_steps} steps: {:?}", self.engine.metrics());
    }

    /// Generated ids so far.
    pub fn ids(&self, id: RequestId) -> Vec<u32> {
        let token = |event: &Event| if let Event::Token { id, .. } = event { Some(*id) } else { None };
        self.heard.get(&id).into_iter().flatten().filter_map(token).collect()
    }

    /// The last event, which ends the request.
    pub fn end(&self, id: RequestId) -> &Event {
        self.heard[&id].last().unwrap()
    }
}
