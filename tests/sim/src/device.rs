//! The verifiable device: a backend like any other, behind the C table, that computes no arithmetic but checks all.
//!
//! A cache row holds the fingerprint of its exact token history, its position and its token; a state slot the
//! fingerprint and count of all tokens so far. Each op recomputes what it should see from the history it was told out
//! of band ([`crate::world`]) and compares. A wrong page, a stale state, a slot used twice or a boundary off by one
//! fails in the step where it happens. What is read flows on to the logits, so the text depends on it too.
//!
//! Rejected: a fake below `StepRunner`, which would leave lowering, programs, the walker and the table untested.

mod branches;
mod draft;
mod memory;
mod ops;
mod recurrent;
mod relay;
mod rows;
mod side;

use tokenspeed_backend_api::{
    abi::TS_TIER_FUSED,
    embed_backend,
    sdk::{
        BackendImpl, BoundOp, DeviceInfo, Fault, HostBacked, HostDevice, HostServices, Info, OpView, Options, StepView,
        Support,
    },
};

use crate::world::SharedWorld;
use ops::Prepared;

/// Its name.
pub const NAME: &str = "sim";

/// The backend.
#[derive(Debug)]
pub struct Sim;

impl BackendImpl for Sim {
    type Device = HostBacked<SimDevice>;

    fn info() -> Info {
        Info {
            name: NAME,
            version: env!("CARGO_PKG_VERSION"),
            description: "verifies every row and state it is given",
            tiers: TS_TIER_FUSED,
            profiles: 0,
            score: 0,
        }
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn device_info(_index: u32) -> Result<DeviceInfo, Fault> {
        Ok(DeviceInfo {
            name: NAME.to_owned(),
            alignment: SimDevice::ALIGNMENT as u32,
            memory_bytes: 1 << 30,
            page_tokens: None,
            host_mapped: true,
            exclusive: false,
            branch_rows: true,
            bucketed: false,
        })
    }

    /// `world`: number of the world to believe. `refuse`: catalogue name of an op answered with no. `prepare`:
    /// `ok`, or how preparing fails.
    fn open(_index: u32, options: &[(&str, &str)], _host: HostServices) -> Result<Self::Device, Fault> {
        let mut o = Options::new(options)?;
        let number: u64 = o.parse("world", "a number", u64::MAX)?;
        let world = SharedWorld::find(number).ok_or_else(|| Fault::invalid(format!("there is no world {number}")))?;
        let refuse = o.text("refuse").unwrap_or_default().to_owned();
        let prepare = o.choice(
            "prepare",
            &[
                ("ok", Prepare::Works),
                ("arena", Prepare::NoArena),
                ("memory", Prepare::NoMemory),
                ("capture", Prepare::NoCapture),
            ],
        )?;
        o.finish()?;
        Ok(HostBacked(SimDevice { world, refuse, prepare }))
    }
}

embed_backend!(Sim);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepare {
    Works,
    NoArena,
    NoMemory,
    NoCapture,
}

/// An open device.
#[derive(Debug)]
pub struct SimDevice {
    world: SharedWorld,
    refuse: String,
    prepare: Prepare,
}

impl HostDevice for SimDevice {
    type Scratch = ();
    type Prepared = Prepared;

    fn status(&self) -> Result<(), Fault> {
        if self.world.lock().is_lost { Err(Fault::device_lost("the simulated device is gone")) } else { Ok(()) }
    }

    fn alloc(&self, kind: u32, bytes: u64) -> Result<tokenspeed_backend_api::sdk::HostArena, Fault> {
        if self.prepare == Prepare::NoArena && kind == tokenspeed_backend_api::abi::TS_ARENA_CACHE {
            return Err(Fault::out_of_memory(format!("simulated: no {bytes} bytes for the cache")));
        }
        tokenspeed_backend_api::sdk::HostArena::zeroed(bytes, Self::ALIGNMENT)
    }

    fn scratch(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn support(&self, op: &OpView<'_>) -> Support {
        if op.kind().name() == self.refuse {
            return Support::no("the simulation says so");
        }
        if ops::is_known(op.kind()) { Support::yes("verified") } else { Support::no("not simulated") }
    }

    fn prepare(&self, op: &BoundOp<'_>) -> Result<Prepared, Fault> {
        match self.prepare {
            Prepare::NoMemory => Err(Fault::out_of_memory("simulated: no memory for the program")),
            Prepare::NoCapture => Err(Fault::unsupported("simulated: this op cannot be captured")),
            Prepare::Works | Prepare::NoArena => Ok(Prepared::new(op)),
        }
    }

    fn run(&self, _scratch: &mut (), ops: &[Prepared], step: &StepView<'_>) -> Result<(), Fault> {
        let mut world = self.world.lock();
        ops.iter().enumerate().try_for_each(|(index, op)| op.run(&mut world, step).map_err(|fault| fault.at(index)))
    }
}
