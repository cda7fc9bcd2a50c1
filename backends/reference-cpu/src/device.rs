//! The CPU as a backend: options, support answers, and the loop that runs a program.

use tokenspeed_backend_api::{
    abi::TS_PROFILE_LLAMA,
    catalogue::OpDesc,
    sdk::{
        BackendImpl, BoundOp, DeviceInfo, Fault, HostBacked, HostDevice, HostServices, Info, OpView, Options, StepView,
        Support,
    },
    tensor::Tensor,
};

use crate::{exact::ExactOp, level::Level, pool::Pool};

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
            profiles: TS_PROFILE_LLAMA,
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
        })
    }

    fn open(_index: u32, options: &[(&str, &str)], _host: HostServices) -> Result<Self::Device, Fault> {
        let mut options = Options::new(options)?;
        let mode = options.choice("mode", &[("fast", Mode::Fast), ("exact", Mode::Exact)])?;
        let threads = options.parse("threads", "a number of threads, 0 = one per CPU", 0usize)?;
        let isa = options.text("isa");
        options.finish()?;
        let level = match isa {
            None | Some("auto") => Level::detect(),
            Some(name) => {
                let level = name.parse::<Level>().and_then(Level::checked);
                level.map_err(|e| Fault::invalid(format!("option isa={name}: {e}")))?
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(HostBacked(CpuDevice { mode, level, threads: if threads == 0 { cpus } else { threads } }))
    }
}

/// An opened CPU.
#[derive(Debug)]
pub struct CpuDevice {
    mode: Mode,
    level: Level,
    threads: usize,
}

impl HostDevice for CpuDevice {
    /// Workers and their scratch memory.
    type Scratch = Pool;
    type Prepared = ExactOp;

    fn scratch(&self) -> Result<Pool, Fault> {
        Pool::new(self.threads).map_err(|e| Fault::internal(format!("cannot start {} threads: {e}", self.threads)))
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
        match self.mode {
            Mode::Exact if op.kind().is_fused() => Support::no("exact mode computes basic ops only"),
            _ => Support::yes("reference"),
        }
    }

    fn prepare(&self, op: &BoundOp<'_>) -> Result<ExactOp, Fault> {
        ExactOp::new(op)
    }

    fn run(&self, pool: &mut Pool, ops: &[ExactOp], step: &StepView<'_>) -> Result<(), Fault> {
        pool.run(|worker| {
            let part = worker.part();
            for op in ops {
                op.run(step, part.index, part.count);
                worker.barrier();
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
