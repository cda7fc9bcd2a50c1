//! One case on a session.device.

use super::compare::{Distance, compare};
use crate::{
    abi::{
        TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS,
        TS_TIER_PROGRAMS,
    },
    backend::{
        Arena, ArenaKind, BackendError, Bindings, Bucket, Determinism, Device, Event, Queue, Segment, SegmentKind,
        StepBuffer, Support,
    },
    catalogue::{Case, Entry, Role},
    graph::Vary,
    op::OpKind,
    record::OpRecord,
    step::StepView,
    support::Rounding,
    tensor::Tensor,
};

/// What became of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Within tolerance.
    Passed {
        /// Worst distance over the outputs.
        distance: Distance,
        /// Median nanoseconds, if timed.
        nanoseconds: Option<u64>,
        /// The kernel's name.
        implementation: String,
        /// All of its program is replayed from a recording.
        captured: bool,
    },
    /// The device does not claim this case; its reason.
    Refused(String),
    /// Wrong, and how.
    Failed(String),
}

/// Bytes between operands, filled with a pattern that nothing may touch.
const GUARD_BYTES: u64 = 256;
const GUARD: u8 = 0xa5;
const TIMEOUT_NS: u64 = 60_000_000_000;
/// Rows of capacity beyond the count of the step: a kernel that ignores the count writes there.
const SPARE_ROWS: u64 = 3;

/// One device with the queue and timeline that all cases share.
pub(super) struct Session<'a> {
    device: &'a Device,
    queue: Queue,
    event: Event,
    value: u64,
}

impl<'a> Session<'a> {
    pub(super) fn new(device: &'a Device) -> Result<Self, BackendError> {
        Ok(Self { device, queue: device.queue_create()?, event: device.event_create()?, value: 0 })
    }

    /// Wait for everything enqueued so far.
    fn finish(&mut self) -> Result<(), BackendError> {
        self.value += 1;
        self.device.queue_signal(&self.queue, &self.event, self.value)?;
        self.event.wait(self.value, TIMEOUT_NS)
    }
}

/// Where the operands of a case lie in the one arena.
struct Placed {
    tensors: Vec<Tensor>,
    image: Vec<u8>,
}

pub(super) fn run(
    session: &mut Session<'_>,
    entry: &Entry,
    case: &Case,
    timing_runs: u32,
) -> Result<Outcome, BackendError> {
    if case.step.rows.iter().any(|row| row.branch_offset > 0) && !session.device.branch_rows() {
        return Ok(Outcome::Refused("the device does not claim branch_rows".into()));
    }
    let placed = place(case, session.device.alignment());
    let operands: Vec<_> = placed.tensors.iter().map(|t| t.to_abi()).collect();
    let mut op = OpRecord::new(case.kind, operands, case.attrs, case.name.clone());
    let support = session.device.op_support(&op)?;
    if !support.is_supported() {
        return Ok(Outcome::Refused(support.reason));
    }
    let mut bench = Bench::new(session, &placed, &mut op, case, &support)?;
    let launched = bench.run(session, &op)?;
    let distance = match check(case, entry, support.rounding, &placed, &launched) {
        Ok(distance) => distance,
        Err(message) => return Ok(Outcome::Failed(format!("{}: {message}", case.name))),
    };
    let fail = |what: &str| Ok(Outcome::Failed(format!("{}: {what}", case.name)));
    if support.determinism != Determinism::None && bench.run(session, &op)? != launched {
        return fail("a second run gives other bits");
    }
    let mut captured = false;
    if session.device.has_programs() {
        let (found, segments) = bench.run_program(session, &op, case)?;
        if found != launched {
            return fail("program_run and op_launch give different bits");
        }
        captured = !segments.is_empty() && segments.iter().all(|s| s.kind == SegmentKind::Captured);
    }
    if support.determinism == Determinism::BatchInvariant
        && let Some(message) = alone(session, case, &placed, &launched)?
    {
        return fail(&message);
    }
    let nanoseconds = if timing_runs > 0 { Some(bench.time(session, &op, timing_runs)?) } else { None };
    Ok(Outcome::Passed { distance, nanoseconds, implementation: support.implementation, captured })
}

/// Tensors at the capacity of the test, and the arena's bytes before the op.
fn place(case: &Case, alignment: u64) -> Placed {
    let mut image = vec![GUARD; GUARD_BYTES as usize];
    let tensors = case
        .operands
        .iter()
        .map(|o| {
            let mut tensor = o.tensor;
            if tensor.vary != Vary::Fixed {
                tensor.dims[0] += SPARE_ROWS;
            }
            tensor.binding = TS_BIND_ACTIVATIONS;
            tensor.offset = (image.len() as u64).next_multiple_of(alignment.max(64));
            image.resize(tensor.offset as usize, GUARD);
            image.extend_from_slice(&o.bytes);
            // Spare rows keep the guard pattern: reading them is allowed to give nonsense, writing them is not allowed.
            image.resize((tensor.offset + tensor.bytes() + GUARD_BYTES) as usize, GUARD);
            tensor
        })
        .collect();
    Placed { tensors, image }
}

/// Compare every operand after the op with the reference, and everything else with what was there before.
fn check(case: &Case, entry: &Entry, rounding: Rounding, placed: &Placed, after: &[u8]) -> Result<Distance, String> {
    let expected = case.run_reference(1);
    let block = case.step.to_bytes();
    let step = StepView::new(&block).expect("a case's step is sound");
    let mut untouched = placed.image.clone();
    let mut distance = Distance::default();
    for (i, operand) in case.operands.iter().enumerate() {
        let tensor = operand.tensor.cut(&step);
        let range = placed.tensors[i].offset as usize..(placed.tensors[i].offset + tensor.bytes()) as usize;
        if operand.role != Role::In {
            let name = entry.operands[i.min(entry.operands.len() - 1)].name;
            let values = tensor.dims().iter().product::<u64>() as usize;
            let allowed = entry.tolerance.under(rounding, values);
            let found = compare(&tensor, &after[range.clone()], &expected[i][..range.len()], allowed);
            distance = distance.worse(found.map_err(|m| format!("{name}: {m}"))?);
            untouched[range.clone()].copy_from_slice(&after[range]);
        }
    }
    match after.iter().zip(&untouched).position(|(a, b)| a != b) {
        None => Ok(distance),
        Some(at) => Err(format!("byte {at} of the arena was changed: outside every output")),
    }
}

/// Run a few tokens alone (of a recurrent op: each request alone); their rows must have the bits they had in the batch.
fn alone(
    session: &mut Session<'_>,
    case: &Case,
    placed: &Placed,
    launched: &[u8],
) -> Result<Option<String>, BackendError> {
    // Ops without per-token outputs have no rows to compare.
    let per_token = |o: &crate::catalogue::CaseOperand| o.role == Role::Out && o.tensor.vary == Vary::Tokens;
    if case.kind == OpKind::TableUpdate || case.step.tokens.len() < 2 || !case.operands.iter().any(per_token) {
        return Ok(None);
    }
    for (mut row, tokens) in units(case) {
        let mut single = case.clone();
        (row.query_start, row.query_len) = (0, tokens.len() as u32);
        single.step.rows = vec![row];
        single.step.tokens = case.step.tokens[tokens.clone()].to_vec();
        single.step.tokens.iter_mut().for_each(|t| t.row = 0);
        single.step.logit_rows = vec![0];
        for o in &mut single.operands {
            if o.tensor.vary == Vary::Tokens {
                let bytes = o.tensor.row_bytes();
                o.bytes = o.bytes[tokens.start * bytes..tokens.end * bytes].to_vec();
                o.tensor.dims[0] = tokens.len() as u64;
            }
        }
        let small = place(&single, session.device.alignment());
        let operands: Vec<_> = small.tensors.iter().map(|t| t.to_abi()).collect();
        let mut op = OpRecord::new(single.kind, operands, single.attrs, single.name.clone());
        let support = session.device.op_support(&op)?;
        if !support.is_supported() {
            return Ok(Some(format!("supported in a batch, refused for one token: {}", support.reason)));
        }
        let mut bench = Bench::new(session, &small, &mut op, &single, &support)?;
        let result = bench.run(session, &op)?;
        for (i, o) in single.operands.iter().enumerate().filter(|(_, o)| per_token(o)) {
            let bytes = o.tensor.row_bytes();
            let in_batch = &launched[placed.tensors[i].offset as usize + tokens.start * bytes..][..o.bytes.len()];
            if result[small.tensors[i].offset as usize..][..o.bytes.len()] != *in_batch {
                return Ok(Some(format!("tokens {tokens:?} alone give other bits than in the batch")));
            }
        }
    }
    Ok(None)
}

/// What can stand alone: a token with what is cached before it, or a whole row where a token's result comes from the
/// step's earlier tokens through a state, or where these lie on a branch.
fn units(case: &Case) -> Vec<(crate::abi::ts_step_row, std::ops::Range<usize>)> {
    let recurrent = [OpKind::ShortConv, OpKind::KdaStep, OpKind::KdaVerify, OpKind::KdaChunk, OpKind::KdaMix];
    if recurrent.contains(&case.kind) || case.step.rows.iter().any(|row| row.branch_offset > 0) {
        let tokens = |r: &crate::abi::ts_step_row| r.query_start as usize..(r.query_start + r.query_len) as usize;
        return case.step.rows.iter().map(|r| (*r, tokens(r))).collect();
    }
    let last = case.step.tokens.len() - 1;
    let unit = |token: usize| {
        let t = case.step.tokens[token];
        (crate::abi::ts_step_row { computed: t.position, ..case.step.rows[t.row as usize] }, token..token + 1)
    };
    [0, last / 2, last].map(unit).to_vec()
}

/// Arenas and bindings for one op.
struct Bench {
    arena: Arena,
    step_arena: Arena,
    bindings: Bindings,
    image: Vec<u8>,
    step: crate::step::AlignedBytes,
}

impl Bench {
    /// Allocate, bind, and pack the operands that want packing.
    fn new(
        session: &Session<'_>,
        placed: &Placed,
        op: &mut OpRecord,
        case: &Case,
        support: &Support,
    ) -> Result<Self, BackendError> {
        let step = case.step.to_bytes();
        let mut bindings = Bindings::new();
        let workspace_offset = (placed.image.len() as u64).next_multiple_of(session.device.alignment().max(64));
        (op.workspace_offset, op.workspace_bytes) = (workspace_offset, support.workspace_bytes);
        let arena =
            session.device.arena_alloc(ArenaKind::Activations, workspace_offset + support.workspace_bytes.max(1))?;
        let step_arena = session.device.arena_alloc(ArenaKind::Step, step.len() as u64)?;
        bindings.bind_all(TS_BIND_STEP, &step_arena).bind_all(TS_BIND_ACTIVATIONS, &arena);
        for (slot, kind) in [
            (TS_BIND_TABLES, ArenaKind::Tables),
            (TS_BIND_CACHE, ArenaKind::Cache),
            (TS_BIND_OUTPUT, ArenaKind::Output),
        ] {
            bindings.bind_all(slot, &session.device.arena_alloc(kind, 64)?);
        }
        for (slot, pack) in (TS_BIND_WEIGHTS..).zip(&support.packs) {
            let packed = session.device.arena_alloc(ArenaKind::Weights, pack.bytes)?;
            let source = &case.operands[pack.operand as usize].bytes;
            session.device.op_pack(op, pack.operand, source, &packed, 0, pack.bytes)?;
            bindings.bind_all(slot, &packed);
            let operand = &mut op.operands[pack.operand as usize];
            (operand.binding, operand.offset, operand.layout) = (slot, 0, pack.layout);
        }
        Ok(Self { arena, step_arena, bindings, image: placed.image.clone(), step })
    }

    fn reset(&self, session: &Session<'_>) -> Result<(), BackendError> {
        session.device.write(&self.arena, 0, &self.image)?;
        session.device.write(&self.step_arena, 0, &self.step)
    }

    fn contents(&self, session: &Session<'_>) -> Result<Vec<u8>, BackendError> {
        let mut out = vec![0; self.image.len()];
        session.device.read(&self.arena, 0, &mut out)?;
        Ok(out)
    }

    /// The arena after one `op_launch`.
    fn run(&mut self, session: &mut Session<'_>, op: &OpRecord) -> Result<Vec<u8>, BackendError> {
        self.reset(session)?;
        session.device.op_launch(&session.queue, op, &self.bindings)?;
        session.finish()?;
        self.contents(session)
    }

    /// The arena after a `program_run` of the op alone, and how the program executes.
    fn run_program(
        &mut self,
        session: &mut Session<'_>,
        op: &OpRecord,
        case: &Case,
    ) -> Result<(Vec<u8>, Vec<Segment>), BackendError> {
        self.reset(session)?;
        let counts = &case.step;
        let bucket = Bucket {
            max_tokens: counts.tokens.len() as u32 + SPARE_ROWS as u32,
            max_rows: counts.rows.len() as u32,
            max_logit_rows: counts.logit_rows.len() as u32 + SPARE_ROWS as u32,
        };
        let program = session.device.program_prepare(std::slice::from_ref(op), &self.bindings, bucket)?;
        let mut step = StepBuffer::with_capacity(self.step.len());
        step.bytes_mut().expect("not yet lent")[..self.step.len()].copy_from_slice(&self.step);
        step.set_len(self.step.len());
        session.value += 1;
        session.device.program_run(&program, &session.queue, &mut step, &session.event, session.value)?;
        session.event.wait(session.value, TIMEOUT_NS)?;
        Ok((self.contents(session)?, session.device.program_describe(&program)?))
    }

    /// Median nanoseconds of launch to completion.
    fn time(&mut self, session: &mut Session<'_>, op: &OpRecord, runs: u32) -> Result<u64, BackendError> {
        self.reset(session)?;
        let mut samples = Vec::new();
        for _ in 0..runs {
            let began = std::time::Instant::now();
            session.device.op_launch(&session.queue, op, &self.bindings)?;
            session.finish()?;
            samples.push(began.elapsed().as_nanos() as u64);
        }
        samples.sort_unstable();
        Ok(samples[samples.len() / 2])
    }
}

/// Whether a tier mask claims programs.
pub(super) fn claims_programs(tiers: u32) -> bool {
    tiers & TS_TIER_PROGRAMS != 0
}
