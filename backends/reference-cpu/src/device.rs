//! The CPU as a backend: options, support answers, and the loop that runs a program.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokenspeed_backend_api::{
    abi::{TS_ARENA_WEIGHTS, TS_PROFILE_KIMI, TS_PROFILE_LLAMA},
    catalogue::OpDesc,
    op::OpKind,
    sdk::{
        BackendImpl, BoundOp, DeviceInfo, Fault, HostArena, HostBacked, HostDevice, HostServices, Info, OpView,
        Options, Pack, StepView, Support,
    },
    tensor::Tensor,
};

use crate::{
    exact::ExactOp,
    fast::{self, FastOp, RopeTables},
    gemm,
    level::Level,
    pool::Pool,
    residency::Residency,
};

/// How numbers are computed; `ARCHITECTURE.md` defines the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// SIMD kernels, f32 accumulation.
    Fast,
    /// The catalogue's references, f64 accumulation.
    Exact,
}

/// `--backend reference-cpu`.
#[derive(Debug)]
pub struct ReferenceCpu;

impl BackendImpl for ReferenceCpu {
    type Device = HostBacked<CpuDevice>;

    fn info() -> Info {
        Info {
            name: "reference-cpu",
            version: env!("CARGO_PKG_VERSION"),
            description: "the CPU: numerical ground truth (mode=exact) and SIMD kernels (mode=fast)",
            tiers: 0,
            profiles: TS_PROFILE_LLAMA | TS_PROFILE_KIMI,
            score: 1,
        }
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn device_info(_index: u32) -> Result<DeviceInfo, Fault> {
        Ok(DeviceInfo {
            name: format!("CPU ({})", Level::detect()),
            alignment: CpuDevice::ALIGNMENT as u32,
            memory_bytes: physical_memory_bytes(),
            page_tokens: Some(64),
            host_mapped: true,
            exclusive: false,
            branch_rows: true,
            bucketed: false,
        })
    }

    fn open(_index: u32, options: &[(&str, &str)], _host: HostServices) -> Result<Self::Device, Fault> {
        let mut options = Options::new(options)?;
        let mode = options.choice("mode", &[("fast", Mode::Fast), ("exact", Mode::Exact)])?;
        let threads = options.parse("threads", "a number of threads, 0 = one per CPU", 0usize)?;
        let isa = options.text("isa");
        let expert_bytes = options.parse("expert_cache_bytes", "a number of bytes, 0 = no limit", 0u64)?;
        options.finish()?;
        if expert_bytes > 0 && (mode == Mode::Exact || !cfg!(target_os = "linux")) {
            return Err(Fault::invalid("option expert_cache_bytes needs mode=fast on Linux"));
        }
        let residency = match expert_bytes {
            0 => None,
            bytes => {
                let started = Residency::new(bytes);
                Some(Arc::new(started.map_err(|e| Fault::internal(format!("cannot start a thread: {e}")))?))
            }
        };
        let level = match isa {
            None | Some("auto") => Level::detect(),
            Some(name) => {
                let level = name.parse::<Level>().and_then(Level::checked);
                level.map_err(|e| Fault::invalid(format!("option isa={name}: {e}")))?
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cpus } else { threads };
        Ok(HostBacked(CpuDevice {
            mode,
            level,
            threads,
            rope_tables: RopeTables::default(),
            scratch_bytes: AtomicUsize::new(0),
            residency,
        }))
    }
}

/// An opened CPU.
#[derive(Debug)]
pub struct CpuDevice {
    mode: Mode,
    level: Level,
    threads: usize,
    rope_tables: RopeTables,
    /// Most scratch any op prepared so far needs, per worker.
    scratch_bytes: AtomicUsize,
    /// Keeps mapped experts within a budget, if there is one.
    residency: Option<Arc<Residency>>,
}

/// An op in the device's mode.
#[derive(Debug)]
pub enum CpuOp {
    /// The reference.
    Exact(ExactOp),
    /// A kernel.
    Fast(Box<FastOp>),
}

/// It forecasts no costs ([`HostDevice::cost`]): what a row more costs follows from the kernel for so many rows, the format, the
/// instruction set, the threads and the caches they share, and memory bandwidth is known of none of these machines. Bytes of weights
/// alone would say that rows are free, which is true with AMX and wrong by seven times without; the engine finds out in a few
/// steps.
impl HostDevice for CpuDevice {
    /// Workers and their scratch memory.
    type Scratch = Pool;
    type Prepared = CpuOp;
    const PACKS: bool = true;

    fn scratch(&self) -> Result<Pool, Fault> {
        Pool::new(self.threads).map_err(|e| Fault::internal(format!("cannot start {} threads: {e}", self.threads)))
    }

    #[cfg(target_os = "linux")]
    fn alloc(&self, kind: u32, bytes: u64) -> Result<HostArena, Fault> {
        match kind {
            TS_ARENA_WEIGHTS => crate::huge_pages::alloc(bytes),
            _ => HostArena::zeroed(bytes, Self::ALIGNMENT),
        }
    }

    fn counters(&self, counter: &mut dyn FnMut(&'static str, u64)) {
        if let Some(residency) = &self.residency {
            residency.counters(counter);
        }
    }

    fn support(&self, op: &OpView<'_>) -> Support {
        let operands = op.descriptors().iter().map(Tensor::from_abi).collect::<Result<Vec<_>, _>>();
        let desc = match operands {
            Ok(operands) => OpDesc { kind: op.kind(), attrs: *op.attrs(), operands },
            Err(reason) => return Support::no(reason),
        };
        if let Err(reason) = desc.check() {
            return Support::no(reason);
        }
        if op.version() != 1 {
            return Support::no(format!("version {} of {} is newer than this backend", op.version(), op.kind()));
        }
        if self.mode == Mode::Exact {
            return match op.kind().is_fused() {
                true => Support::no("exact mode computes basic ops only"),
                false => Support::yes("reference"),
            };
        }
        if !fast::has_kernel_for(op.kind(), |i| desc.operands[i].dtype) {
            return match op.kind().is_fused() {
                true => Support::no("no kernel"),
                false => Support::yes("reference"),
            };
        }
        if let Some(reason) = fast::refusal(op.kind(), &desc.operands) {
            return Support::no(reason);
        }
        let weight = (op.kind() == OpKind::Gemm).then(|| desc.operands[1]);
        let name = fast::special_kernel_name(self.level, op.kind(), &desc.operands);
        let name = name.unwrap_or_else(|| fast::kernel_name(self.level, op.kind(), weight.map(|w| w.dtype)));
        let mut support = Support::yes(name);
        support.workspace_bytes = fast::workspace_bytes(op.kind(), &desc.operands);
        support.packs.extend(weight.map(|w| Pack {
            operand: 1,
            layout: fast::PACKED,
            bytes: gemm::packed_bytes(w.dtype, w.dims[0] as usize, w.dims[1] as usize) as u64,
        }));
        support
    }

    fn prepare(&self, op: &BoundOp<'_>) -> Result<CpuOp, Fault> {
        if self.mode == Mode::Exact || !fast::has_kernel_for(op.op.kind(), |i| op.operands[i].tensor.dtype) {
            return ExactOp::new(op).map(CpuOp::Exact);
        }
        let op = FastOp::new(self.level, &self.rope_tables, self.residency.as_ref(), op)?;
        self.scratch_bytes.fetch_max(op.scratch_bytes, Ordering::Relaxed);
        Ok(CpuOp::Fast(Box::new(op)))
    }

    fn link(&self, ops: &mut [CpuOp]) {
        let fast = ops.iter_mut().filter_map(|op| match op {
            CpuOp::Fast(op) => Some(&mut **op),
            CpuOp::Exact(_) => None,
        });
        fast::link(fast);
    }

    fn run(&self, pool: &mut Pool, ops: &[CpuOp], step: &StepView<'_>) -> Result<(), Fault> {
        pool.reserve_scratch(self.scratch_bytes.load(Ordering::Relaxed));
        let failed: Mutex<Option<Fault>> = Mutex::new(None);
        pool.run(|worker| {
            let part = worker.part();
            for (index, op) in ops.iter().enumerate() {
                match op {
                    CpuOp::Exact(op) => {
                        // Kernels before it leave no barrier behind them.
                        if self.mode != Mode::Exact {
                            worker.barrier();
                        }
                        op.run(step, part.index, part.count);
                        worker.barrier();
                    }
                    // The program runs on after a bad op, so that every worker passes the same barriers.
                    CpuOp::Fast(op) => {
                        if let Err(fault) = op.run(self.level, worker, step) {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault.at(index));
                        }
                    }
                }
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn pack(&self, op: &OpView<'_>, operand: usize, source: &[u8], packed: &mut [u8]) -> Result<(), Fault> {
        let t = op.operand(operand)?;
        let (n, k) = (t.dims[0], t.dims[1]);
        if packed.len() != gemm::packed_bytes(t.dtype, n, k) {
            return Err(Fault::invalid(format!("{} bytes for a packed [{n}, {k}] {}", packed.len(), t.dtype)));
        }
        let bytes = gemm::tile_bytes(t.dtype, k);
        let tiles = n.div_ceil(gemm::TILE_ROWS);
        let each = tiles.div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            for (i, share) in packed.chunks_mut(each * bytes).enumerate() {
                let first = i * each;
                let range = first..first + share.len() / bytes;
                scope.spawn(move || gemm::pack_tiles(t.dtype, source, n, k, range, share));
            }
        });
        Ok(())
    }
}

/// Physical memory, as the system reports it.
fn physical_memory_bytes() -> u64 {
    // SAFETY: `sysconf` reads two numbers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

tokenspeed_backend_api::embed_backend!(ReferenceCpu);
