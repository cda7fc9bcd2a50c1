//! An opened MI355X as the ABI's device.

use std::sync::{Arc, Mutex, PoisonError};

use tokenspeed_backend_api::{
    abi::ts_segment,
    catalogue::OpDesc,
    sdk::{Bindings, Bucket, DeviceImpl, Fault, Load, OpView, RunView, Span, StepView, Support},
    tensor,
};

use crate::{
    arena::Arena,
    hip::{DEVICE_TO_DEVICE, Device, Event, HostBuffer, Queue},
    kernel::Library,
    ops,
    program::{Program, plan},
    settings::Settings,
    timeline::Timeline,
};

/// A device, its kernels and its options.
#[derive(Debug)]
pub struct Gfx950Device {
    /// HIP's.
    pub device: Arc<Device>,
    /// Its kernels.
    pub kernels: Library,
    /// What the user chose.
    pub settings: Settings,
    /// The first fault after which HIP answers nothing else.
    lost: Mutex<Option<Fault>>,
}

/// Parameter blocks on their way: the host may be this many steps ahead.
const SLOTS: usize = 4;

/// A stream with its pinned memory.
#[derive(Debug)]
pub struct Stream {
    queue: Queue,
    slots: [Slot; SLOTS],
    next: usize,
}

#[derive(Debug)]
struct Slot {
    memory: Option<HostBuffer>,
    /// Recorded behind the copy out of `memory`.
    copied: Event,
}

impl Gfx950Device {
    /// Over an open device.
    pub fn new(device: Arc<Device>, kernels: Library, settings: Settings) -> Self {
        Self { device, kernels, settings, lost: Mutex::default() }
    }

    /// Remembers a fault that HIP will not forget.
    fn watch<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &result
            && fault.code == tokenspeed_backend_api::abi::TS_ERR_DEVICE_LOST
        {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault.clone());
        }
        result
    }
}

impl Stream {
    fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let slot = || Ok::<_, Fault>(Slot { memory: None, copied: Event::new(device)? });
        Ok(Self { queue: Queue::new(device)?, slots: [slot()?, slot()?, slot()?, slot()?], next: 0 })
    }

    /// Copies a parameter block into pinned memory that no copy reads any more, and has `work` queue what follows.
    fn with_block(
        &mut self,
        device: &Arc<Device>,
        block: &[u8],
        work: impl FnOnce(&Queue, &[u8], u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        // Four steps old: done long ago, but a host that runs ahead must not overtake it.
        slot.copied.synchronize()?;
        if slot.memory.as_ref().is_none_or(|m| m.bytes < block.len()) {
            slot.memory = Some(HostBuffer::new(device, block.len().next_power_of_two().max(1 << 16))?);
        }
        let memory = slot.memory.as_ref().expect("just made");
        // SAFETY: the memory is long enough, and the last copy out of it is done.
        let pinned = unsafe {
            std::ptr::copy_nonoverlapping(block.as_ptr(), memory.address(), block.len());
            std::slice::from_raw_parts(memory.address(), block.len())
        };
        let done = work(&self.queue, pinned, memory.address() as u64);
        slot.copied.record(&self.queue)?;
        done
    }
}

impl DeviceImpl for Gfx950Device {
    type Arena = Arena;
    type Queue = Stream;
    type Event = Timeline;
    type Program = Program;
    const PROGRAMS: bool = true;
    const PACKS: bool = true;

    fn status(&self) -> Result<(), Fault> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    fn alloc(&self, kind: u32, bytes: u64) -> Result<Arena, Fault> {
        self.watch(Arena::new(&self.device, kind, bytes))
    }

    fn map(&self, arena: &Arena) -> Result<*mut u8, Fault> {
        arena.host_address()
    }

    fn write(&self, arena: &Arena, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.watch(arena.write(offset, data))
    }

    fn read(&self, arena: &Arena, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.watch(arena.read(offset, data))
    }

    fn queue(&self) -> Result<Stream, Fault> {
        self.watch(Stream::new(&self.device))
    }

    fn copy(&self, stream: &mut Stream, to: Span<'_, Arena>, from: Span<'_, Arena>) -> Result<(), Fault> {
        let (to, bytes) = (to.arena.range(to.offset, to.bytes)?, from.bytes as usize);
        let from = from.arena.range(from.offset, from.bytes)?;
        // SAFETY: both ranges were checked, and the host keeps arenas while work is queued.
        self.watch(unsafe { stream.queue.copy(to, from, bytes, DEVICE_TO_DEVICE) }.map_err(Fault::from))
    }

    fn signal(&self, stream: &mut Stream, event: &Timeline, value: u64) -> Result<(), Fault> {
        self.watch(event.signal(&stream.queue, value))
    }

    fn wait(&self, stream: &mut Stream, event: &Timeline, value: u64) -> Result<(), Fault> {
        self.watch(event.hold(&stream.queue, value))
    }

    fn event(&self) -> Result<Timeline, Fault> {
        Ok(Timeline::new(&self.device))
    }

    fn event_query(event: &Timeline) -> Result<u64, Fault> {
        event.query()
    }

    fn event_wait(event: &Timeline, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        event.wait(value, timeout_ns)
    }

    fn support(&self, op: &OpView<'_>) -> Support {
        let operands = op.descriptors().iter().map(tensor::Tensor::from_abi).collect::<Result<Vec<_>, _>>();
        let desc = match operands {
            Ok(operands) => OpDesc { kind: op.kind(), attrs: *op.attrs(), operands },
            Err(reason) => return Support::no(reason),
        };
        if let Err(reason) = desc.check().and_then(|()| ops::small(&desc)) {
            return Support::no(reason);
        }
        if op.version() != 1 {
            return Support::no(format!("version {} of {} is newer than this backend", op.version(), op.kind()));
        }
        match ops::entry(op.kind()) {
            Some(entry) => (entry.support)(&desc, &self.settings),
            None => Support::no("this backend has no such op"),
        }
    }

    fn launch(&self, stream: &mut Stream, op: &OpView<'_>, bindings: &Bindings<'_, Self>) -> Result<(), Fault> {
        // The host wrote the block where it is bound; its counts are the capacities of this one launch.
        let bound = bindings.get(tokenspeed_backend_api::abi::TS_BIND_STEP);
        let bound = bound.ok_or_else(|| Fault::invalid("no parameter block is bound"))?;
        stream.queue.synchronize()?;
        let mut words = vec![0u64; (bound.bytes as usize).div_ceil(8)];
        // SAFETY: u64 has no padding and any bytes are a value of it.
        let block = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bound.bytes as usize) };
        bound.arena.read(bound.offset, block)?;
        let step = StepView::new(block).map_err(Fault::invalid)?;
        let bucket = Bucket::of_step(&step);
        for launch in plan(self, std::slice::from_ref(op), bindings, bucket)? {
            // SAFETY: arguments were made from bound ranges of live arenas, with capacities that hold the counts.
            let done = unsafe { launch.launch(&stream.queue, &bucket, ops::Expansion::of(&step)) };
            self.watch(done.map_err(Fault::from))?;
        }
        Ok(())
    }

    fn pack(&self, op: &OpView<'_>, operand: usize, source: &[u8], to: Span<'_, Arena>) -> Result<(), Fault> {
        let pack = ops::entry(op.kind()).and_then(|e| e.pack);
        let pack = pack.ok_or_else(|| Fault::unsupported(format!("packing operand {operand} of {}", op.kind())))?;
        let packed = pack(op, operand, source, &self.settings)?;
        if packed.len() as u64 != to.bytes {
            let (is, wanted) = (packed.len(), to.bytes);
            return Err(Fault::invalid(format!("{}: {is} packed bytes for {wanted} of memory", op.label())));
        }
        self.watch(to.arena.write(to.offset, &packed))
    }

    fn prepare(&self, ops: &[OpView<'_>], bindings: &Bindings<'_, Self>, bucket: Bucket) -> Result<Program, Fault> {
        self.watch(Program::prepare(self, ops, bindings, bucket))
    }

    fn run(&self, program: &mut Program, stream: &mut Stream, run: &RunView<'_, Self>) -> Result<(), Fault> {
        let result = (|| {
            if let Some(bindings) = &run.bindings {
                program.rebind(self, bindings)?;
            }
            stream.with_block(&self.device, run.step, |queue, block, pinned| program.run(queue, block, pinned))?;
            run.signal.map_or(Ok(()), |(event, value)| event.signal(&stream.queue, value))
        })();
        // Whoever waits for the step on another thread learns of it too.
        if let (Err(fault), Some((event, _))) = (&result, run.signal) {
            event.fail(fault.clone());
        }
        self.watch(result)
    }

    fn describe(&self, program: &Program, segment: &mut dyn FnMut(ts_segment)) -> Result<(), Fault> {
        segment(program.segment());
        Ok(())
    }

    fn cost(&self, program: &Program, load: &Load) -> Option<u64> {
        Some(program.cost(load, &self.settings))
    }
}
