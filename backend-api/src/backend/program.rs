//! Prepared programs (tier T1).

use super::{
    BackendError, Bindings, Bucket, Device, Event, Load, OpRecord, Queue, StepBuffer,
    device::{Corpse, Inner, checked},
};
use crate::{abi::*, sized};
use std::{ptr::null_mut, sync::Arc};

/// How a segment executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Op by op.
    Eager,
    /// Replayed from a recording.
    Captured,
    /// One resident kernel.
    Persistent,
    /// A kind newer than this host.
    Unknown(u32),
}

/// A run of ops that execute alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First op.
    pub first_op: u32,
    /// Number of ops.
    pub n_ops: u32,
    /// How.
    pub kind: SegmentKind,
}

/// A prepared op list. Keeps the arenas of its bindings alive.
pub struct Program {
    device: Arc<Inner>,
    raw: *mut ts_program,
    bindings: Bindings,
    n_ops: u32,
}

// SAFETY: a handle, used through `&Device` only.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // The bindings are dropped after this, so their arenas are freed after the program.
        self.device.bury(Corpse::Program(self.raw));
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program of {} ops", self.n_ops)
    }
}

impl Program {
    /// What it was prepared with.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Number of ops.
    pub fn n_ops(&self) -> u32 {
        self.n_ops
    }
}

impl Device {
    /// Whether the device has programs.
    pub fn has_programs(&self) -> bool {
        let t = &self.inner.loaded.table;
        t.program_prepare.is_some() && t.program_run.is_some() && t.program_drop.is_some()
    }

    /// Prepares `ops` for steps up to `bucket`.
    pub fn program_prepare(
        &self,
        ops: &[OpRecord],
        bindings: &Bindings,
        bucket: Bucket,
    ) -> Result<Program, BackendError> {
        self.reap();
        let t = &self.inner.loaded.table;
        let (Some(prepare), true) = (t.program_prepare, self.has_programs()) else {
            return Err(self.inner.unsupported("program_prepare"));
        };
        bindings.assert_of(&self.inner);
        let records: Vec<ts_op> = ops.iter().map(OpRecord::as_abi).collect();
        let mut desc: ts_program_desc = sized::zeroed();
        (desc.n_ops, desc.ops) = (records.len() as u32, records.as_ptr());
        (desc.n_bindings, desc.bindings) = (bindings.raw().len() as u32, bindings.raw().as_ptr());
        desc.bucket = sized::zeroed();
        desc.bucket.max_tokens = bucket.max_tokens;
        desc.bucket.max_rows = bucket.max_rows;
        desc.bucket.max_logit_rows = bucket.max_logit_rows;
        let mut raw = null_mut();
        // SAFETY: everything the description points to lives for the call.
        self.inner
            .call("program_prepare", |_, e| unsafe { prepare(self.inner.raw, &raw const desc, &raw mut raw, e) })?;
        checked(raw, "program_prepare", &self.inner.loaded, self.inner.index)?;
        Ok(Program { device: self.inner.clone(), raw, bindings: bindings.clone(), n_ops: records.len() as u32 })
    }

    /// Runs a program on the parameter block in `step` and signals `event` with `value` when it is done. The block
    /// cannot be changed before that. On an error nothing was enqueued and the block is free again.
    pub fn program_run(
        &self,
        program: &Program,
        queue: &Queue,
        step: &mut StepBuffer,
        event: &Event,
        value: u64,
    ) -> Result<(), BackendError> {
        self.assert_own(&program.device);
        self.assert_own(&queue.device);
        self.assert_own(&event.0.device);
        let run_entry = self.inner.loaded.table.program_run.expect("there is a program");
        let block = step.lend(event, value);
        let mut run: ts_run = sized::zeroed();
        (run.step, run.step_bytes) = (block.as_ptr(), block.len() as u64);
        (run.event, run.signal_value) = (event.0.raw, value);
        // SAFETY: live objects of this device; the block stays unchanged until the event has its value.
        let result =
            self.inner.call("program_run", |_, e| unsafe { run_entry(program.raw, queue.raw, &raw const run, e) });
        if result.is_err() {
            step.returned();
        }
        result
    }

    /// How the program executes.
    pub fn program_describe(&self, program: &Program) -> Result<Vec<Segment>, BackendError> {
        self.assert_own(&program.device);
        let describe =
            self.inner.loaded.table.program_describe.ok_or_else(|| self.inner.unsupported("program_describe"))?;
        let ask = |segments: &mut [ts_segment]| {
            let mut count = 0;
            // SAFETY: a live program; the slice has the capacity stated.
            self.inner.call("program_describe", |_, e| unsafe {
                describe(program.raw, segments.as_mut_ptr(), segments.len() as u32, &raw mut count, e)
            })?;
            Ok(count as usize)
        };
        let count = ask(&mut [])?.min(program.n_ops as usize + 1);
        let mut segments = vec![ts_segment { first_op: 0, n_ops: 0, kind: 0, reserved: 0 }; count];
        let count = ask(&mut segments)?.min(count);
        let kind = |kind| match kind {
            TS_SEGMENT_EAGER => SegmentKind::Eager,
            TS_SEGMENT_CAPTURED => SegmentKind::Captured,
            TS_SEGMENT_PERSISTENT => SegmentKind::Persistent,
            other => SegmentKind::Unknown(other),
        };
        let segment = |s: &ts_segment| Segment { first_op: s.first_op, n_ops: s.n_ops, kind: kind(s.kind) };
        Ok(segments[..count].iter().map(segment).collect())
    }

    /// Predicted nanoseconds of a run; `None` if the backend has no model. The engine asks once, at start, and corrects
    /// the answers by what it measures.
    pub fn program_cost(&self, program: &Program, load: &Load) -> Result<Option<u64>, BackendError> {
        self.assert_own(&program.device);
        let Some(cost) = self.inner.loaded.table.program_cost else { return Ok(None) };
        let mut abi: ts_load = sized::zeroed();
        (abi.n_tokens, abi.n_rows, abi.n_logit_rows) = (load.n_tokens, load.n_rows, load.n_logit_rows);
        abi.attention_pairs = load.attention_pairs;
        let mut nanoseconds = 0;
        // SAFETY: a live program; pointers are ours for the call.
        let result = self
            .inner
            .call("program_cost", |_, e| unsafe { cost(program.raw, &raw const abi, &raw mut nanoseconds, e) });
        match result {
            Ok(()) => Ok(Some(nanoseconds)),
            Err(e) if e.code == TS_ERR_UNSUPPORTED => Ok(None),
            Err(e) => Err(e),
        }
    }
}
