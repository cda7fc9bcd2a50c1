//! A prepared op list: launches with fixed arguments, eager or captured as one graph.
//!
//! A step is one copy of the parameter block and, captured, one graph launch. Small programs (see [`GRAPH_TOKENS`]) are
//! captured with grids of full capacity: surplus work-groups read the step's counts and leave. Larger ones are queued launch by
//! launch with grids of the step's size.

use tokenspeed_backend_api::{
    abi::*,
    record::OpRecord,
    sdk::{Bindings, Bucket, Fault, Load, OpView, Span, StepView, Tensor},
};

use crate::{
    arena::Arena,
    cost,
    device::Gfx950Device,
    hip::{Executable, Queue},
    kernel::{Plan, Prepared},
    ops::{self, BoundOp, Expansion, Operand},
    settings::{GRAPH_TOKENS, Graphs, Settings},
};

/// A program.
pub struct Program {
    ops: Vec<OpRecord>,
    launches: Vec<Prepared>,
    bindings: Vec<ts_binding>,
    bucket: Bucket,
    /// Device address and capacity of the parameter block.
    step: (u64, u64),
    graph: Option<Executable>,
}

// SAFETY: the raw pointers are arena handles that are only compared; everything else is sendable.
unsafe impl Send for Program {}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program of {} ops, {} launches for {:?}", self.ops.len(), self.launches.len(), self.bucket)
    }
}

impl Program {
    /// Plans every op, and captures the launches where that is wanted and all ops allow it.
    pub fn prepare(
        device: &Gfx950Device,
        ops: &[OpView<'_>],
        bindings: &Bindings<'_, Gfx950Device>,
        bucket: Bucket,
    ) -> Result<Self, Fault> {
        let step = step_block(bindings)?;
        let launches = plan(device, ops, bindings, bucket)?;
        let mut program = Self {
            ops: ops.iter().map(OpView::to_record).collect(),
            launches,
            bindings: bindings.raw().to_vec(),
            bucket,
            step,
            graph: None,
        };
        if device.settings.graphs == Graphs::On && bucket.max_tokens <= GRAPH_TOKENS && !program.launches.is_empty() {
            program.graph = Some(program.capture(device)?);
        }
        Ok(program)
    }

    /// Records the launches on a stream of its own, none of which expands contexts in so small a program; other threads may use HIP meanwhile.
    fn capture(&self, device: &Gfx950Device) -> Result<Executable, Fault> {
        let queue = Queue::new(&device.device)?;
        // The fault is kept apart: HIP's own complaint about a broken capture says less.
        let graph = queue.capture::<Fault>(|| self.queue_launches(&queue, &self.bucket, Expansion::NONE))?;
        // A replay that leaves a launch out would be a wrong step, and nobody would hear of it.
        let (found, wanted) = (graph.nodes()?, self.launches.iter().filter(|l| l.has_groups(&self.bucket)).count());
        if found != wanted {
            return Err(Fault::internal(format!("a recording of {wanted} launches holds {found}")));
        }
        Ok(graph.instantiate()?)
    }

    fn queue_launches(&self, queue: &Queue, counts: &Bucket, expansion: Expansion) -> Result<(), Fault> {
        for launch in &self.launches {
            // SAFETY: arguments were made from bound ranges of live arenas, with capacities that hold the counts.
            unsafe { launch.launch(queue, counts, expansion) }.map_err(|e| Fault::from(e).at(launch.op))?;
        }
        Ok(())
    }

    /// Plans again if the bindings are other ones.
    pub fn rebind(&mut self, device: &Gfx950Device, bindings: &Bindings<'_, Gfx950Device>) -> Result<(), Fault> {
        if bindings.are(&self.bindings) {
            return Ok(());
        }
        let ops = std::mem::take(&mut self.ops);
        let views = ops.iter().map(OpView::from_record).collect::<Result<Vec<_>, _>>();
        let program = views.and_then(|views| Self::prepare(device, &views, bindings, self.bucket));
        self.ops = ops;
        *self = program?;
        Ok(())
    }

    /// Queues a step whose parameter block is `block`, already in pinned memory at `pinned`.
    pub fn run(&self, queue: &Queue, block: &[u8], pinned: u64) -> Result<(), Fault> {
        if block.len() as u64 > self.step.1 {
            return Err(Fault::invalid(format!("parameter block of {} bytes, {} are bound", block.len(), self.step.1)));
        }
        let step = StepView::new(block).map_err(Fault::invalid)?;
        if !self.bucket.holds(&step) {
            return Err(Fault::invalid(format!("{step:?} does not fit {:?}", self.bucket)));
        }
        // SAFETY: the pinned slot is reused only when this queue has passed the copy; the block's memory is bound.
        unsafe { queue.copy(self.step.0, pinned, block.len(), crate::hip::HOST_TO_DEVICE) }?;
        match &self.graph {
            Some(graph) => Ok(queue.replay(graph)?),
            None => {
                let expansion = Expansion::of(&step);
                self.queue_launches(queue, &Bucket::of_step(&step), expansion).map_err(|fault| self.name(fault))
            }
        }
    }

    fn name(&self, fault: Fault) -> Fault {
        match fault.op.and_then(|i| self.ops.get(i)) {
            Some(op) => Fault { message: format!("{} {}: {}", op.kind, op.label, fault.message), ..fault },
            None => fault,
        }
    }

    /// By a model, nanoseconds of a step under `load`; see `cost.rs`.
    pub fn cost(&self, load: &Load, settings: &Settings) -> u64 {
        let counts = if self.graph.is_some() { self.bucket } else { Bucket::of_load(load) };
        let launches = self.launches.iter().filter(|launch| launch.has_groups(&counts)).count();
        cost::nanoseconds(&self.ops, launches, load, settings)
    }

    /// One segment: all of it is captured, or nothing.
    pub fn segment(&self) -> ts_segment {
        let kind = if self.graph.is_some() { TS_SEGMENT_CAPTURED } else { TS_SEGMENT_EAGER };
        ts_segment { first_op: 0, n_ops: self.ops.len() as u32, kind, reserved: 0 }
    }
}

/// Launches of ops, in order.
pub fn plan(
    device: &Gfx950Device,
    ops: &[OpView<'_>],
    bindings: &Bindings<'_, Gfx950Device>,
    bucket: Bucket,
) -> Result<Vec<Prepared>, Fault> {
    let (step, _) = step_block(bindings)?;
    let name =
        |op: &OpView<'_>, f: Fault| Fault { message: format!("{} {}: {}", op.kind(), op.label(), f.message), ..f };
    let mut places = Vec::with_capacity(ops.len());
    for op in ops {
        let operands = resolve(op, bindings, &bucket).map_err(|f| name(op, f))?;
        let workspace = match op.workspace_bytes() {
            0 => 0,
            bytes => {
                let bound = bindings.get(TS_BIND_ACTIVATIONS);
                let bound = bound.ok_or_else(|| name(op, Fault::invalid("no workspace is bound")))?;
                within(&bound, op.workspace_offset(), bytes).map_err(|f| name(op, f))?
            }
        };
        places.push((operands, workspace));
    }
    let bind =
        |(op, (operands, workspace))| BoundOp { op, operands, step, workspace, bucket, settings: &device.settings };
    let bound: Vec<BoundOp<'_>> = ops.iter().zip(places.iter().map(|(o, w)| (&o[..], *w))).map(bind).collect();
    let mut plan = Plan::new(&device.kernels);
    let mut index = 0;
    while let Some(op) = bound.get(index) {
        plan.op = index;
        let mut planned = ops::together(&bound[index..], &mut plan).map_err(|f| name(op.op, f))?;
        if planned == 0 {
            let entry = ops::entry(op.op.kind());
            let entry = entry.ok_or_else(|| name(op.op, Fault::unsupported("this backend has no such op")))?;
            (entry.plan)(op, &mut plan).map_err(|f| name(op.op, f))?;
            planned = 1;
        }
        index += planned;
    }
    Ok(plan.launches)
}

/// Address and capacity of the parameter block.
fn step_block(bindings: &Bindings<'_, Gfx950Device>) -> Result<(u64, u64), Fault> {
    let bound = bindings.get(TS_BIND_STEP).ok_or_else(|| Fault::invalid("no parameter block is bound"))?;
    Ok((bound.arena.range(bound.offset, bound.bytes)?, bound.bytes))
}

fn within(span: &Span<'_, Arena>, offset: u64, bytes: u64) -> Result<u64, Fault> {
    if offset.checked_add(bytes).is_none_or(|end| end > span.bytes) {
        return Err(Fault::invalid(format!("bytes {offset}+{bytes} of a binding of {}", span.bytes)));
    }
    span.arena.range(span.offset + offset, bytes)
}

/// Operands in device memory: bound, inside the binding, aligned as kernels are promised, large enough for the bucket.
fn resolve(op: &OpView<'_>, bindings: &Bindings<'_, Gfx950Device>, bucket: &Bucket) -> Result<Vec<Operand>, Fault> {
    let one = |i: usize, t: &ts_tensor| {
        let tensor = Tensor::new(t, i)?;
        let span = bindings.locate(t)?;
        // The size of a private layout is the backend's own secret.
        let bytes = if tensor.layout == 0 { tensor.bytes as u64 } else { span.bytes };
        let address = within(&span, 0, bytes)?;
        bucket.check_room(&tensor)?;
        Ok(Operand { tensor, address })
    };
    let named = |i: usize, f: Fault| Fault { message: format!("operand {i}: {}", f.message), ..f };
    op.descriptors().iter().enumerate().map(|(i, t)| one(i, t).map_err(|f| named(i, f))).collect()
}
