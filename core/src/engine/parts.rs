//! The arrays of a step before they become bytes, filled from what the scheduler planned. Decoding rows come first.

use tokenspeed_backend_api::abi::{ts_step_row, ts_table_delta};

use super::Plan;
use crate::{
    bug::seeded,
    scheduler::queue::{Queues, Running},
    step::{StepBuffer, StepCapacity, StepContent},
};

/// Reusable arrays.
pub(super) struct StepParts {
    rows: Vec<ts_step_row>,
    /// Tokens of the rows, row after row.
    ids: Vec<u32>,
    logit_rows: Vec<u32>,
    /// Tokens on side branches.
    pub branch_tokens: u32,
}

impl std::fmt::Debug for StepParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepParts({} rows, {} tokens)", self.rows.len(), self.ids.len())
    }
}

impl StepParts {
    pub fn new(capacity: StepCapacity) -> Self {
        Self {
            rows: Vec::with_capacity(capacity.rows as usize),
            ids: Vec::with_capacity(capacity.tokens as usize),
            logit_rows: Vec::with_capacity(capacity.logit_rows as usize),
            branch_tokens: 0,
        }
    }

    /// Write them as the step's parameter block.
    pub fn write(&self, sequence: u64, deltas: &[ts_table_delta], step: &mut StepBuffer) {
        let content = StepContent { sequence, rows: &self.rows, tokens: &[], logit_rows: &self.logit_rows, deltas };
        step.write_ids(&content, &self.ids);
    }

    /// Collect the planned requests that `belong` and give each its first row of logits; the plan lacks only its number
    /// and other passes.
    pub fn collect(&mut self, queues: &mut Queues, belongs: impl Fn(&Running) -> bool) -> Plan {
        self.rows.clear();
        self.ids.clear();
        self.logit_rows.clear();
        self.branch_tokens = 0;
        let mut attention_pairs = 0;
        let mut n_decode_tokens = 0;
        for wants_decoding in [true, false] {
            for running in queues.running.iter_mut().flatten() {
                if matches!(running, Running::Decoding(_)) == wants_decoding
                    && running.parts().1.planned > 0
                    && belongs(running)
                {
                    attention_pairs += self.add(running);
                }
            }
            if wants_decoding {
                n_decode_tokens = self.ids.len() as u32;
            }
        }
        Plan {
            sequence: 0,
            n_tokens: self.ids.len() as u32,
            n_rows: self.rows.len() as u32,
            n_logit_rows: self.logit_rows.len() as u32,
            verify: None,
            n_decode_tokens,
            attention_pairs,
        }
    }

    /// Returns query length times context length.
    fn add(&mut self, running: &mut Running) -> u64 {
        let (body, active) = running.parts_mut();
        let query_start = self.ids.len() as u32;
        let end = active.computed + active.planned;
        let (state_read, state_write) = active.lease.state_slots().unwrap_or((0, 0));
        self.rows.push(ts_step_row {
            table_row: active.lease.row(),
            computed: active.computed,
            query_start,
            query_len: active.planned,
            state_read: if seeded!(LaterChunkStartsFromScratch) && active.planned > 1 { 0 } else { state_read },
            state_write,
            state_tokens: active
                .lease
                .state_slots()
                .map_or(0, |_| active.computed.saturating_sub(u32::from(seeded!(StateCountLagsBehind)))),
            branch_offset: 0,
        });
        self.ids.extend_from_slice(&body.tokens[active.computed as usize..end.min(body.len()) as usize]);
        self.ids.extend(body.drafts.ids.iter().take(end.saturating_sub(body.len()) as usize));
        active.first_logit_row = self.logit_rows.len() as u32;
        if active.n_prompt_logit_rows > 0 {
            let next = body.next_prompt_logits().expect("planned rows are wanted").max(active.computed);
            let first = query_start + (next - active.computed);
            self.logit_rows.extend(first..first + active.n_prompt_logit_rows);
        }
        if end >= body.len() && body.len() < body.max_len {
            // The last token's, and each guess's.
            self.logit_rows.extend(query_start + (body.len() - 1 - active.computed)..query_start + active.planned);
            if let Some(guard) = body.guide.guard() {
                guard.expect(&body.drafts.ids);
            }
        }
        u64::from(active.planned) * u64::from(end) + self.add_branches(running)
    }

    /// A row for each side branch: the request's own tokens again, the guesses it shares, and its own guesses. Their cache
    /// rows lie behind those of the request's row and of the branches before.
    fn add_branches(&mut self, running: &mut Running) -> u64 {
        let (body, active) = running.parts_mut();
        let own = &body.tokens[active.computed as usize..];
        let (state_read, state_write) = active.lease.state_slots().unwrap_or((0, 0));
        let (mut offset, mut pairs) = (active.planned, 0);
        let chain = &body.drafts.ids;
        for branch in body.drafts.branches.open_mut() {
            let query_start = self.ids.len() as u32;
            let ids = own.iter().chain(&chain[..branch.fork as usize]).chain(&branch.ids);
            self.ids.extend(ids);
            let query_len = self.ids.len() as u32 - query_start;
            self.rows.push(ts_step_row {
                table_row: active.lease.row(),
                computed: active.computed,
                query_start,
                query_len,
                state_read,
                state_write,
                state_tokens: active.lease.state_slots().map_or(0, |_| active.computed),
                branch_offset: offset,
            });
            (branch.offset, branch.first_logit_row) = (offset, self.logit_rows.len() as u32);
            let end = query_start + query_len;
            self.logit_rows.extend(end - branch.ids.len() as u32..end);
            offset += if seeded!(BranchesShareCacheRows) { 0 } else { query_len };
            self.branch_tokens += query_len;
            pairs += u64::from(query_len) * u64::from(active.computed + query_len);
        }
        pairs
    }
}
