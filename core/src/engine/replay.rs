//! The step that commits right guesses: recurrent states are advanced over them, and cache rows of a side branch are moved
//! to where the request's own belong.
//!
//! It runs at the end of a turn, for requests that go on and for those that ended on a page boundary, whose state is
//! stored: nothing may read that state before, and nothing does, because only the next turn can.

use tokenspeed_backend_api::abi::{ts_step_row, ts_step_token};

use super::InFlight;
use crate::{
    cache::recurrent::StateSlots,
    speculation::looks::Checked,
    step::{StepBuffer, StepCapacity, StepContent},
};

/// What there is to replay.
pub(super) struct Replay {
    rows: Vec<ts_step_row>,
    tokens: Vec<ts_step_token>,
    step: Option<StepBuffer>,
    /// The decode-only step whose cost is complete only after the replay, and what came of its guesses.
    learns: Option<(InFlight, Checked)>,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replay({} rows)", self.rows.len())
    }
}

impl Replay {
    /// `None`: the engine never replays.
    pub fn new(capacity: Option<StepCapacity>) -> Self {
        Self {
            rows: Vec::with_capacity(capacity.map_or(0, |c| c.rows as usize)),
            tokens: Vec::with_capacity(capacity.map_or(0, |c| c.tokens as usize)),
            step: capacity.map(StepBuffer::new),
            learns: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.learns = None;
    }

    /// Advance a request with `computed` tokens over `ids`, reading and writing these state slots; they were checked on the
    /// branch at `branch_offset`, and their cache rows come from there.
    pub fn add(&mut self, table_row: u32, computed: u32, state: StateSlots, ids: &[u32], branch_offset: u32) {
        let (row, query_start) = (self.rows.len() as u32, self.tokens.len() as u32);
        self.rows.push(ts_step_row {
            table_row,
            computed,
            query_start,
            query_len: ids.len() as u32,
            state_read: state.read,
            state_write: state.write,
            state_tokens: state.tokens,
            branch_offset,
        });
        let token = |(position, id): (u32, &u32)| ts_step_token { id: id.cast_signed(), position, row, reserved: 0 };
        self.tokens.extend((computed..).zip(ids).map(token));
    }

    /// What the step cost is known when its replay has run.
    pub fn learn_later(&mut self, in_flight: InFlight, checked: Checked) {
        self.learns = Some((in_flight, checked));
    }

    /// The parameter block, unless there is nothing to do.
    pub fn write(&mut self, sequence: u64) -> Option<&StepBuffer> {
        if self.rows.is_empty() {
            return None;
        }
        let step = self.step.as_mut().expect("only an engine that verifies adds rows");
        step.write(&StepContent { sequence, rows: &self.rows, tokens: &self.tokens, logit_rows: &[], deltas: &[] });
        Some(step)
    }

    /// It has run: the step that [`Replay::learn_later`] was told of.
    pub fn finish(&mut self) -> Option<(InFlight, Checked)> {
        self.rows.clear();
        self.tokens.clear();
        self.learns.take()
    }
}
