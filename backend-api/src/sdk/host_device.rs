//! Backends that compute in host memory, on the calling thread: implement [`HostDevice`], wrap it in [`HostBacked`].
//!
//! Arenas, queues, events and programs come ready made. A program resolves and checks every operand once, in
//! `prepare`; a run checks the parameter block once and hands the whole list of prepared ops to the backend in one call,
//! so that it can run them as it likes (one thread-pool region for a whole step, say). Rejected: one trait call per op
//! and run, which would put pool wake-ups between ops out of the backend's hands.

use super::{
    bind::Bindings,
    device::{Bucket, DeviceImpl, Load, RunView, Span},
    fault::Fault,
    host_memory::HostArena,
    op_view::OpView,
    tensor::{Operand, Tensor, element_align},
    timeline::Timeline,
};
use crate::{abi::*, record::OpRecord, step::StepView, support::Support};
use core::mem::size_of;

/// A device that reads and writes host memory. Called from one thread at a time, `support` and `status` from any.
pub trait HostDevice: Send + Sync + Sized + 'static {
    /// State of a queue: scratch buffers and the like, `()` if none.
    type Scratch: Send + 'static;
    /// An op made ready to run: pointers resolved, kernel chosen.
    type Prepared: Send + 'static;
    /// Whether `support` ever asks for packing.
    const PACKS: bool = false;
    /// Alignment of arenas in bytes, a power of two; what `device_info` tells the host.
    const ALIGNMENT: usize = 64;

    /// The sticky error, if any. Thread-safe.
    fn status(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// What was counted since the device was opened; see [`DeviceImpl::counters`]. Thread-safe.
    fn counters(&self, counter: &mut dyn FnMut(&'static str, u64)) {
        let _ = counter;
    }

    /// Memory of `TS_ARENA_*` kind, e.g. to ask for huge pages.
    fn alloc(&self, _kind: u32, bytes: u64) -> Result<HostArena, Fault> {
        HostArena::zeroed(bytes, Self::ALIGNMENT)
    }

    /// State for a new queue.
    fn scratch(&self) -> Result<Self::Scratch, Fault>;

    /// Yes or no for one concrete op. Thread-safe.
    fn support(&self, op: &OpView<'_>) -> Support;

    /// Makes an op ready. Called at load, and again if the bindings ever change.
    fn prepare(&self, op: &BoundOp<'_>) -> Result<Self::Prepared, Fault>;

    /// Looks at all ops of a program together, once they are prepared, e.g. to decide where threads must meet.
    fn link(&self, _ops: &mut [Self::Prepared]) {}

    /// Runs ops in order, all of them before it returns. No allocation. Blame an op with [`Fault::at`].
    ///
    /// `step` is within the capacities that the ops' first dimensions state.
    fn run(&self, scratch: &mut Self::Scratch, ops: &[Self::Prepared], step: &StepView<'_>) -> Result<(), Fault>;

    /// Writes the packed form of `source` (canonical bytes of operand `operand`).
    fn pack(&self, op: &OpView<'_>, operand: usize, _source: &[u8], _packed: &mut [u8]) -> Result<(), Fault> {
        Err(Fault::unsupported(format!("packing operand {operand} of {}", op.kind())))
    }

    /// Predicted nanoseconds of a run; `None` = no model.
    fn cost(&self, _ops: &[Self::Prepared], _load: &Load) -> Option<u64> {
        None
    }
}

/// An op with its operands in memory.
#[derive(Debug)]
pub struct BoundOp<'a> {
    /// Kind, attributes, label.
    pub op: &'a OpView<'a>,
    /// Checked operands, in catalogue order. Outputs are in writable memory.
    pub operands: &'a [Operand],
    /// Scratch of `op.workspace_bytes()` bytes; dangling if 0.
    pub workspace: *mut u8,
}

/// Resolves the operands of `op`: bound, inside the binding, aligned, writable where written.
fn resolve<T: HostDevice>(op: &OpView<'_>, bindings: &Bindings<'_, HostBacked<T>>) -> Result<Vec<Operand>, Fault> {
    let one = |i: usize, t: &ts_tensor| {
        let tensor = Tensor::new(t, i)?;
        let span = bindings.locate(t).map_err(|f| named(op, i, f))?;
        // The size of a private layout is the backend's own secret.
        let bytes = if tensor.layout == 0 { tensor.bytes as u64 } else { span.bytes };
        if bytes > span.bytes {
            let f = Fault::invalid(format!("needs {bytes} bytes, {} are bound", span.bytes));
            return Err(named(op, i, f));
        }
        let data = match op.is_written(i) {
            true => span.arena.range_mut(span.offset, bytes),
            false => span.arena.range(span.offset, bytes),
        }
        .map_err(|f| named(op, i, f))?;
        let align = element_align(tensor.dtype);
        if !(data as usize).is_multiple_of(align) {
            return Err(named(op, i, Fault::invalid(format!("{} not aligned to {align} bytes", tensor.dtype))));
        }
        Ok(Operand { tensor, data, bytes: bytes as usize, imported: !span.arena.is_writable() })
    };
    op.descriptors().iter().enumerate().map(|(i, t)| one(i, t)).collect()
}

fn named(op: &OpView<'_>, operand: usize, f: Fault) -> Fault {
    Fault { message: format!("{} {}: operand {operand}: {}", op.kind(), op.label(), f.message), ..f }
}

/// Adapts a [`HostDevice`] to the whole table.
#[derive(Debug)]
pub struct HostBacked<T>(pub T);

/// A prepared op list.
pub struct HostProgram<T: HostDevice> {
    ops: Vec<OpRecord>,
    prepared: Vec<T::Prepared>,
    bindings: Vec<ts_binding>,
    bucket: Bucket,
}

// SAFETY: the raw pointers are arena handles, used on one thread at a time like the program itself.
unsafe impl<T: HostDevice> Send for HostProgram<T> {}

impl<T: HostDevice> std::fmt::Debug for HostProgram<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program of {} ops for {:?}", self.ops.len(), self.bucket)
    }
}

impl<T: HostDevice> HostBacked<T> {
    fn prepare_op(&self, op: &OpView<'_>, bindings: &Bindings<'_, Self>) -> Result<T::Prepared, Fault> {
        let operands = resolve(op, bindings)?;
        let workspace = match op.workspace_bytes() {
            0 => core::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
            bytes => {
                let bound = bindings
                    .get(TS_BIND_ACTIVATIONS)
                    .filter(|b| op.workspace_offset().checked_add(bytes).is_some_and(|end| end <= b.bytes));
                let bound = bound.ok_or_else(|| {
                    let at = op.workspace_offset();
                    Fault::invalid(format!("{}: workspace of {bytes} bytes at {at} is not bound", op.label()))
                })?;
                bound.arena.range_mut(bound.offset + op.workspace_offset(), bytes)?
            }
        };
        self.0.prepare(&BoundOp { op, operands: &operands, workspace })
    }

    /// The parameter block in binding `TS_BIND_STEP`.
    fn step_memory<'a>(bindings: &Bindings<'a, Self>) -> Result<(*mut u8, usize), Fault> {
        let bound = bindings.get(TS_BIND_STEP).ok_or_else(|| Fault::invalid("no parameter block is bound"))?;
        Ok((bound.arena.range_mut(bound.offset, bound.bytes)?, bound.bytes as usize))
    }
}

/// Every varying first dimension holds the step's count.
fn fits(op: &OpView<'_>, bucket: &Bucket) -> Result<(), Fault> {
    op.operands().enumerate().try_for_each(|(i, t)| bucket.check_room(&t).map_err(|f| named(op, i, f)))
}

impl<T: HostDevice> DeviceImpl for HostBacked<T> {
    type Arena = HostArena;
    type Queue = T::Scratch;
    type Event = Timeline;
    type Program = HostProgram<T>;
    const PROGRAMS: bool = true;
    const PACKS: bool = T::PACKS;
    const IMPORTS: bool = true;

    fn status(&self) -> Result<(), Fault> {
        self.0.status()
    }

    fn counters(&self, counter: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters(counter);
    }

    fn alloc(&self, kind: u32, bytes: u64) -> Result<HostArena, Fault> {
        self.0.alloc(kind, bytes)
    }

    unsafe fn import(&self, _kind: u32, data: *const u8, bytes: u64) -> Result<HostArena, Fault> {
        // SAFETY: promised by the caller.
        unsafe { HostArena::imported(data, bytes) }
    }

    fn map(&self, arena: &HostArena) -> Result<*mut u8, Fault> {
        arena.range(0, arena.bytes() as u64)
    }

    fn write(&self, arena: &HostArena, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let to = arena.range_mut(offset, data.len() as u64)?;
        // SAFETY: the range was checked; a caller that writes from its own mapping of the arena may overlap.
        unsafe { core::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    fn read(&self, arena: &HostArena, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        let from = arena.range(offset, data.len() as u64)?;
        // SAFETY: as above.
        unsafe { core::ptr::copy(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    fn queue(&self) -> Result<T::Scratch, Fault> {
        self.0.scratch()
    }

    fn copy(&self, _queue: &mut T::Scratch, to: Span<'_, HostArena>, from: Span<'_, HostArena>) -> Result<(), Fault> {
        let (to, from, n) =
            (to.arena.range_mut(to.offset, to.bytes)?, from.arena.range(from.offset, from.bytes)?, from.bytes as usize);
        // SAFETY: both ranges were checked and have the same length; they may overlap.
        unsafe { core::ptr::copy(from, to, n) };
        Ok(())
    }

    fn signal(&self, _queue: &mut T::Scratch, event: &Timeline, value: u64) -> Result<(), Fault> {
        event.signal(value)
    }

    /// Work runs in the call that enqueues it, so waiting blocks the caller; bounded, so that a host that waits for
    /// its own later signal gets an error and not a hang.
    fn wait(&self, _queue: &mut T::Scratch, event: &Timeline, value: u64) -> Result<(), Fault> {
        const PATIENCE_NS: u64 = 60_000_000_000;
        event.wait(value, PATIENCE_NS)
    }

    fn event(&self) -> Result<Timeline, Fault> {
        Ok(Timeline::new())
    }

    fn event_query(event: &Timeline) -> Result<u64, Fault> {
        event.query()
    }

    fn event_wait(event: &Timeline, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        event.wait(value, timeout_ns)
    }

    fn support(&self, op: &OpView<'_>) -> Support {
        self.0.support(op)
    }

    fn launch(&self, queue: &mut T::Scratch, op: &OpView<'_>, bindings: &Bindings<'_, Self>) -> Result<(), Fault> {
        let (block, bytes) = Self::step_memory(bindings)?;
        // SAFETY: a checked range of a live arena; ops do not write the parameter block.
        let step = StepView::new(unsafe { core::slice::from_raw_parts(block, bytes) }).map_err(Fault::invalid)?;
        fits(op, &Bucket::of_step(&step))?;
        let prepared = self.prepare_op(op, bindings)?;
        let name = |f: Fault| Fault { message: format!("{} {}: {}", op.kind(), op.label(), f.message), ..f };
        self.0.run(queue, core::slice::from_ref(&prepared), &step).map_err(name)
    }

    fn pack(
        &self,
        op: &OpView<'_>,
        operand: usize,
        source: &[u8],
        destination: Span<'_, HostArena>,
    ) -> Result<(), Fault> {
        let to = destination.arena.range_mut(destination.offset, destination.bytes)?;
        // SAFETY: a checked range; the host reads or runs nothing on the arena during the call.
        let to = unsafe { core::slice::from_raw_parts_mut(to, destination.bytes as usize) };
        self.0.pack(op, operand, source, to)
    }

    fn prepare(
        &self,
        ops: &[OpView<'_>],
        bindings: &Bindings<'_, Self>,
        bucket: Bucket,
    ) -> Result<HostProgram<T>, Fault> {
        Self::step_memory(bindings)?;
        ops.iter().try_for_each(|op| fits(op, &bucket))?;
        let mut prepared = ops.iter().map(|op| self.prepare_op(op, bindings)).collect::<Result<Vec<_>, _>>()?;
        self.0.link(&mut prepared);
        let ops = ops.iter().map(OpView::to_record).collect();
        Ok(HostProgram { ops, prepared, bindings: bindings.raw().to_vec(), bucket })
    }

    fn run(&self, program: &mut HostProgram<T>, queue: &mut T::Scratch, run: &RunView<'_, Self>) -> Result<(), Fault> {
        let result = self.run_program(program, queue, run);
        match (&result, run.signal) {
            (Ok(()), Some((event, value))) => event.signal(value),
            // Whoever waits for the step on another thread learns of it too.
            (Err(fault), Some((event, _))) => {
                event.fail(fault.clone());
                result
            }
            (_, None) => result,
        }
    }

    fn describe(&self, program: &HostProgram<T>, segment: &mut dyn FnMut(ts_segment)) -> Result<(), Fault> {
        let n_ops = program.ops.len() as u32;
        segment(ts_segment { first_op: 0, n_ops, kind: TS_SEGMENT_EAGER, reserved: 0 });
        Ok(())
    }

    fn cost(&self, program: &HostProgram<T>, load: &Load) -> Option<u64> {
        self.0.cost(&program.prepared, load)
    }
}

impl<T: HostDevice> HostBacked<T> {
    fn run_program(
        &self,
        program: &mut HostProgram<T>,
        queue: &mut T::Scratch,
        run: &RunView<'_, Self>,
    ) -> Result<(), Fault> {
        if let Some(bindings) = &run.bindings
            && !bindings.are(&program.bindings)
        {
            let again = |r: &OpRecord| self.prepare_op(&OpView::from_record(r)?, bindings);
            program.prepared = program.ops.iter().map(again).collect::<Result<_, _>>()?;
            program.bindings = bindings.raw().to_vec();
        }
        // SAFETY: the host keeps the arenas of a program's bindings alive as long as the program or new bindings.
        let bindings = unsafe { Bindings::<Self>::from_abi(program.bindings.as_ptr(), program.bindings.len() as u32) }?;
        let (block, capacity) = Self::step_memory(&bindings)?;
        let n = run.step.len();
        if n > capacity || n < size_of::<u32>() {
            return Err(Fault::invalid(format!("parameter block of {n} bytes, {capacity} are bound")));
        }
        // SAFETY: `capacity` writable bytes, n of them copied; a mapped host block may be the very same memory.
        let step = unsafe {
            core::ptr::copy(run.step.as_ptr(), block, n);
            core::slice::from_raw_parts(block, n)
        };
        let step = StepView::new(step).map_err(Fault::invalid)?;
        if !program.bucket.holds(&step) {
            return Err(Fault::invalid(format!("{step:?} does not fit {:?}", program.bucket)));
        }
        self.0.run(queue, &program.prepared, &step).map_err(|f| match f.op.and_then(|i| program.ops.get(i)) {
            Some(op) => Fault { message: format!("{} {}: {}", op.kind, op.label, f.message), ..f },
            None => f,
        })
    }
}
