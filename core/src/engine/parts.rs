//! The arrays of a step before they become bytes, filled from what the scheduler planned. Decoding rows come first.
//!
//! Where the device samples, every row of logits has a record, the rows behind guesses too: the generator counts by position, so
//! what follows n right guesses is what their row samples at its own position. Each record needs a slot of its own for its
//! id. The row behind a request's text has the request's relay slot; nobody ever reads what other rows leave, so they have slots
//! behind those, by their number in the step. Rejected: a record without a slot, which the op takes for a row not to be
//! sampled. Rows of side tables are given out here too, to whoever is sampled.

use tokenspeed_backend_api::abi::{ts_sample, ts_step_row, ts_table_delta};

use super::{EngineConfig, Plan};
use crate::{
    bug::seeded,
    grammar::Guide,
    request::{RequestId, SamplingParams},
    sampler::{
        device::{self, HostOnly},
        side::{Handles, SideTables, SideText},
    },
    scheduler::{
        outlook::Outlook,
        queue::{Queues, Running},
        sequence::{Body, Share},
    },
    speculation::DRAFT_MAX,
    step::{StepBuffer, StepContent},
};

/// Reusable arrays.
pub(super) struct StepParts {
    rows: Vec<ts_step_row>,
    /// Tokens of the rows, row after row.
    ids: Vec<u32>,
    logit_rows: Vec<u32>,
    /// One per row of logits, as long as the device can sample them all.
    samples: Vec<ts_sample>,
    /// Rows whose masks are to be made.
    guided: Vec<Guided>,
    /// The device samples, if it can.
    relays: bool,
    /// Of the request looked at last.
    own_handles: Handles,
    /// Guesses before a row on a side branch.
    path: Vec<u32>,
    /// The relay slot of row of logits 0, if nobody reads what it samples.
    unread_slots: u32,
    /// Why it does not sample this step.
    pub host_only: Option<HostOnly>,
    /// Tokens on side branches.
    pub branch_tokens: u32,
}

impl std::fmt::Debug for StepParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepParts({} rows, {} tokens)", self.rows.len(), self.ids.len())
    }
}

/// A row behind `n` guesses whose mask its request's constraint makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guided {
    pub id: RequestId,
    /// Row of the table of masks.
    pub handle: u32,
    pub n: u32,
}

/// Where a request's row begins and what it is to do, in the step being planned or in the one behind that in flight.
struct Place {
    computed: u32,
    share: Share,
    /// Tokens it has then; the last of them may be in a relay slot.
    len: u32,
    next_prompt_logits: Option<u32>,
}

impl Place {
    fn now(running: &Running) -> Self {
        let (body, active) = running.parts();
        let share = Share { n_tokens: active.planned, n_prompt_logit_rows: active.n_prompt_logit_rows };
        let next_prompt_logits = body.next_prompt_logits();
        Self { computed: active.computed, share, len: body.len(), next_prompt_logits }
    }

    fn behind(running: &Running) -> Self {
        let Outlook { computed, len, next_prompt_logits, .. } = Outlook::of(running);
        Self {
            computed,
            share: running.parts().1.behind.map_or(Share::default(), |b| b.share),
            len,
            next_prompt_logits,
        }
    }

    fn end(&self) -> u32 {
        self.computed + self.share.n_tokens
    }

    /// Its last token's logits are wanted.
    fn samples(&self, body: &Body) -> bool {
        self.end() >= self.len && self.len < body.max_len
    }
}

/// The relay slot of a request: its row of the block tables, which nobody else has before it is done. Slot 0 is nobody's.
fn relay_slot(table_row: u32) -> u32 {
    table_row + 1
}

impl StepParts {
    pub fn new(config: &EngineConfig) -> Self {
        let capacity = config.step_capacity();
        Self {
            rows: Vec::with_capacity(capacity.rows as usize),
            ids: Vec::with_capacity(capacity.tokens as usize),
            logit_rows: Vec::with_capacity(capacity.logit_rows as usize),
            samples: Vec::with_capacity(capacity.samples as usize),
            guided: Vec::with_capacity(capacity.samples as usize),
            relays: config.relay,
            own_handles: [0; 3],
            path: Vec::with_capacity(DRAFT_MAX as usize),
            unread_slots: relay_slot(config.table_rows),
            host_only: None,
            branch_tokens: 0,
        }
    }

    /// Write them as the step's parameter block.
    pub fn write(&self, step: &mut StepBuffer, sequence: u64, deltas: &[ts_table_delta], samples: bool) {
        let samples = if self.host_only.is_none() && samples { &self.samples[..] } else { &[] };
        let content = StepContent { sequence, rows: &self.rows, tokens: &[], logit_rows: &self.logit_rows, deltas };
        step.write_ids(&content, &self.ids, samples);
    }

    /// Rows that wait for masks.
    pub fn guided(&self) -> &[Guided] {
        &self.guided
    }

    /// Collect the planned requests that `belong` and give each its first row of logits; the plan lacks only its number
    /// and other passes.
    pub fn collect(&mut self, queues: &mut Queues, side: &mut SideTables, belongs: impl Fn(&Running) -> bool) -> Plan {
        self.gather(queues, side, |running, wants_decoding| {
            let is_decoding = matches!(running, Running::Decoding(_));
            (is_decoding == wants_decoding && belongs(running)).then(|| Place::now(running))
        })
    }

    /// The same of the step behind the one in flight.
    pub fn collect_behind(&mut self, queues: &mut Queues, side: &mut SideTables) -> Plan {
        self.gather(queues, side, |running, wants_decoding| {
            let has_part = running.parts().1.behind.is_some();
            (has_part && Outlook::of(running).is_decoding == wants_decoding).then(|| Place::behind(running))
        })
    }

    fn gather(
        &mut self,
        queues: &mut Queues,
        side: &mut SideTables,
        place: impl Fn(&Running, bool) -> Option<Place>,
    ) -> Plan {
        self.rows.clear();
        self.ids.clear();
        self.logit_rows.clear();
        self.samples.clear();
        self.guided.clear();
        self.host_only = None;
        self.branch_tokens = 0;
        let mut attention_pairs = 0;
        let mut n_decode_tokens = 0;
        for wants_decoding in [true, false] {
            for running in queues.running.iter_mut().flatten() {
                if let Some(place) = place(running, wants_decoding).filter(|place| place.share.n_tokens > 0) {
                    attention_pairs += self.add(running, &place, side);
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
            is_sampled: self.relays && self.host_only.is_none(),
            samples_later: self.host_only.is_none() && !self.guided.is_empty(),
        }
    }

    /// Returns query length times context length.
    fn add(&mut self, running: &mut Running, place: &Place, side: &mut SideTables) -> u64 {
        let (body, active) = running.parts_mut();
        let &Place { computed, share, len, next_prompt_logits } = place;
        let query_start = self.ids.len() as u32;
        let (n_tokens, end) = (share.n_tokens, place.end());
        let state = active.lease.state_slots().inspect(|state| {
            assert_eq!(state.tokens, computed, "the state that a step reads encodes what its request has computed");
        });
        let state = state.unwrap_or_default();
        self.rows.push(ts_step_row {
            table_row: active.lease.row(),
            computed,
            query_start,
            query_len: n_tokens,
            state_read: if seeded!(LaterChunkStartsFromScratch) && n_tokens > 1 { 0 } else { state.read },
            state_write: state.write,
            state_tokens: state.tokens.saturating_sub(u32::from(seeded!(StateCountLagsBehind))),
            branch_offset: 0,
        });
        let known = body.len();
        self.ids.extend_from_slice(&body.tokens[computed.min(known) as usize..end.min(known) as usize]);
        if len > known && end > known {
            // Being sampled by the step in flight.
            let slot =
                relay_slot(active.lease.row()) - u32::from(seeded!(RelaySlotIsAnothers) && active.lease.row() > 0);
            self.ids.push((-slot.cast_signed() - 1).cast_unsigned());
        }
        self.ids.extend(body.drafts.ids.iter().take(end.saturating_sub(len) as usize));
        let first_logit_row = self.logit_rows.len() as u32;
        match &mut active.behind {
            Some(behind) => behind.first_logit_row = first_logit_row,
            None => active.first_logit_row = first_logit_row,
        }
        if share.n_prompt_logit_rows > 0 {
            let next = next_prompt_logits.expect("planned rows are wanted").max(computed);
            let first = query_start + (next - computed);
            self.logit_rows.extend(first..first + share.n_prompt_logit_rows);
            self.leave_to_host(HostOnly::PromptLogprobs);
        }
        if place.samples(body) {
            // The last token's, and each guess's.
            let rows = query_start + (len - 1 - computed)..query_start + n_tokens;
            self.logit_rows.extend(rows.clone());
            if let Some(guard) = body.guide.guard() {
                guard.expect(&body.drafts.ids);
            }
            // What the device can sample behind the text, it can behind guesses: `min_tokens` are nearer there.
            let host_only = match &body.guide {
                Guide::Here(_) | Guide::Lent if !side.exist() => Some(HostOnly::Constraint),
                _ => HostOnly::of(&body.sampling, &body.side, len - body.prompt_tokens, side.exist()),
            };
            match host_only {
                Some(reason) => self.leave_to_host(reason),
                None => self.sample_chain(running, len, rows.len() as u32 - 1, side),
            }
        }
        u64::from(n_tokens) * u64::from(end) + self.add_branches(running, side)
    }

    /// Records for the rows behind a text of `len` tokens and behind each of the guesses on the chain.
    fn sample_chain(&mut self, running: &mut Running, len: u32, n_guesses: u32, side: &mut SideTables) {
        if !self.relays || self.host_only.is_some() {
            return;
        }
        let (body, active) = running.parts_mut();
        let text = SideText {
            id: body.id,
            params: &body.sampling,
            history: &body.history,
            tokens: &body.tokens,
            prompt_tokens: body.prompt_tokens,
            len,
        };
        let of_request = &mut body.side;
        let Some(own) = side.behind_text(&text, of_request) else { return self.leave_to_host(HostOnly::SideRows) };
        self.own_handles = own;
        let is_guided = !matches!(body.guide, Guide::Free);
        if is_guided {
            self.guided.push(Guided { id: body.id, handle: own[2], n: 0 });
        }
        self.sample(text.params, active.lease.row(), len, 0, own);
        for n in 1..=n_guesses {
            let handles = side.behind_guesses(&text, of_request, own, &body.drafts.ids[..n as usize]);
            let Some(handles) = handles else { return self.leave_to_host(HostOnly::SideRows) };
            if is_guided {
                self.guided.push(Guided { id: body.id, handle: handles[2], n });
            }
            self.sample(text.params, active.lease.row(), len, n, handles);
        }
    }

    fn leave_to_host(&mut self, reason: HostOnly) {
        if self.relays {
            self.host_only.get_or_insert(reason);
        }
    }

    /// A record for the next row of logits: of the token behind a text of `len` tokens and `n` guesses.
    fn sample(&mut self, sampling: &SamplingParams, table_row: u32, len: u32, n: u32, handles: Handles) {
        let slot = if n == 0 { relay_slot(table_row) } else { self.unread_slots + self.samples.len() as u32 };
        let position = if seeded!(GuessIsSampledAtTheBase) { len } else { len + n };
        self.samples.push(device::record(sampling, position, slot, handles));
    }

    /// A row for each side branch: the request's own tokens again, the guesses it shares, and its own guesses. Their cache
    /// rows lie behind those of the request's row and of the branches before.
    fn add_branches(&mut self, running: &mut Running, side: &mut SideTables) -> u64 {
        let (body, active) = running.parts_mut();
        let len = body.len();
        let own = &body.tokens[active.computed as usize..];
        let state = active.lease.state_slots().unwrap_or_default();
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
                state_read: state.read,
                state_write: state.write,
                state_tokens: state.tokens,
                branch_offset: offset,
            });
            (branch.offset, branch.first_logit_row) = (offset, self.logit_rows.len() as u32);
            let end = query_start + query_len;
            self.logit_rows.extend(end - branch.ids.len() as u32..end);
            for n in branch.fork + 1..=branch.depth() {
                if !self.relays || self.host_only.is_some() {
                    break;
                }
                self.path.clear();
                self.path.extend_from_slice(&chain[..branch.fork as usize]);
                self.path.extend_from_slice(&branch.ids[..(n - branch.fork) as usize]);
                let text = SideText {
                    id: body.id,
                    params: &body.sampling,
                    history: &body.history,
                    tokens: &body.tokens,
                    prompt_tokens: body.prompt_tokens,
                    len,
                };
                match side.behind_guesses(&text, &body.side, self.own_handles, &self.path) {
                    Some(handles) => self.sample(&body.sampling, active.lease.row(), len, n, handles),
                    None => self.leave_to_host(HostOnly::SideRows),
                }
            }
            offset += if seeded!(BranchesShareCacheRows) { 0 } else { query_len };
            self.branch_tokens += query_len;
            pairs += u64::from(query_len) * u64::from(active.computed + query_len);
        }
        pairs
    }
}
