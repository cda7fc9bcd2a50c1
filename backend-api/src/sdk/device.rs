//! The two traits a backend implements: one to one with the C table, in safe types.
//!
//! Backends whose memory is the host's get all objects from [`super::host_device`] and implement far less.
//! Collectives (T2), cache transfer (T4) and extensions have no trait yet; the table leaves those entries null.

use super::{bind::Bindings, fault::Fault, op_view::OpView, services::HostServices, tensor::Tensor};
use crate::step::StepView;
use crate::{
    abi::*,
    graph::Vary,
    support::{PACKS, Pack, Support},
};

/// What a backend says about itself.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Name users type after `--backend`: lower-case letters, digits and dashes.
    pub name: &'static str,
    /// Its own version.
    pub version: &'static str,
    /// One line.
    pub description: &'static str,
    /// `TS_TIER_*` beyond T0. The SDK adds `TS_TIER_PROGRAMS` where the device has programs.
    pub tiers: u32,
    /// `TS_PROFILE_*` covered completely.
    pub profiles: u32,
    /// Higher wins when the user names no backend.
    pub score: u32,
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// e.g. the processor's name.
    pub name: String,
    /// Alignment in bytes of every operand offset.
    pub alignment: u32,
    /// Memory the engine may plan with.
    pub memory_bytes: u64,
    /// Preferred tokens per page.
    pub page_tokens: Option<u32>,
    /// Host and device share memory: arenas can be mapped.
    pub host_mapped: bool,
    /// At most one such device per process.
    pub exclusive: bool,
    /// Ops over paged caches honour [`ts_step_row::branch_offset`](crate::abi::ts_step_row::branch_offset).
    pub branch_rows: bool,
    /// Programs are worth preparing for several buckets, see [`ts_device_info::bucketed`](crate::abi::ts_device_info::bucketed).
    pub bucketed: bool,
}

/// A backend: a kind of device.
pub trait BackendImpl: 'static {
    /// An opened device.
    type Device: DeviceImpl;
    /// Constant description.
    fn info() -> Info;
    /// Devices present now. Thread-safe.
    fn device_count() -> Result<u32, Fault>;
    /// Description of device `index`, which is below the count. Thread-safe.
    fn device_info(index: u32) -> Result<DeviceInfo, Fault>;
    /// Opens a device. An unknown option is `Fault::invalid` naming it; see [`super::Options`].
    fn open(index: u32, options: &[(&str, &str)], host: HostServices) -> Result<Self::Device, Fault>;
}

/// Part of an arena: what a binding refers to.
#[derive(Debug)]
pub struct Span<'a, A> {
    /// The arena.
    pub arena: &'a A,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

impl<A> Clone for Span<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Span<'_, A> {}

/// Capacities a program is prepared for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens of a step.
    pub max_tokens: u32,
    /// Requests of a step.
    pub max_rows: u32,
    /// Rows of logits of a step.
    pub max_logit_rows: u32,
}

impl Bucket {
    /// Exactly a step's counts.
    pub fn of_step(step: &StepView<'_>) -> Self {
        let h = &step.header;
        Self { max_tokens: h.n_tokens, max_rows: h.n_rows, max_logit_rows: h.n_logit_rows }
    }

    /// Exactly a load's counts.
    pub fn of_load(load: &Load) -> Self {
        Self { max_tokens: load.n_tokens, max_rows: load.n_rows, max_logit_rows: load.n_logit_rows }
    }

    /// Whether a step fits.
    pub fn holds(&self, step: &StepView<'_>) -> bool {
        self.covers(&Self::of_step(step))
    }

    /// Whether all that fits into `other` fits here.
    pub fn covers(&self, other: &Self) -> bool {
        other.max_tokens <= self.max_tokens
            && other.max_rows <= self.max_rows
            && other.max_logit_rows <= self.max_logit_rows
    }

    /// Most entries of what a first dimension counts; `None` if it counts nothing.
    pub fn most(&self, vary: Vary) -> Option<u32> {
        match vary {
            Vary::Fixed => None,
            Vary::Tokens => Some(self.max_tokens),
            Vary::Rows => Some(self.max_rows),
            Vary::LogitRows => Some(self.max_logit_rows),
        }
    }

    /// Refuses an operand whose first dimension varies and holds less.
    pub fn check_room(&self, tensor: &Tensor) -> Result<(), Fault> {
        match self.most(tensor.vary) {
            Some(need) if (tensor.dims[0] as u64) < u64::from(need) => {
                Err(Fault::invalid(format!("holds {} entries of the {need} wanted", tensor.dims[0])))
            }
            _ => Ok(()),
        }
    }
}

/// What a run would process; input of cost estimates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Tokens.
    pub n_tokens: u32,
    /// Requests.
    pub n_rows: u32,
    /// Rows of logits.
    pub n_logit_rows: u32,
    /// Sum over rows of query length times context length.
    pub attention_pairs: u64,
}

/// One `program_run`.
#[derive(Debug)]
pub struct RunView<'a, D: DeviceImpl> {
    /// `None` = those of `prepare`.
    pub bindings: Option<Bindings<'a, D>>,
    /// Host memory that starts with a [`ts_step`]; copy it once, it stays valid until the event has its value.
    pub step: &'a [u8],
    /// Signalled with the value when all is done; `None` if the host does not want to know.
    pub signal: Option<(&'a D::Event, u64)>,
}

/// An opened device. The host calls it from one thread at a time, but `status`, `support`, and the two event functions
/// from any thread at any moment, which is why everything takes `&self` and execution state lives in the queue.
pub trait DeviceImpl: Send + Sync + Sized + 'static {
    /// Memory.
    type Arena: Send + Sync + 'static;
    /// In-order stream of work, and its scratch state.
    type Queue: Send + 'static;
    /// Timeline.
    type Event: Send + Sync + 'static;
    /// Prepared op list; `()` without programs.
    type Program: Send + 'static;
    /// Whether the program functions below are implemented (tier T1).
    const PROGRAMS: bool;
    /// Whether `support` ever asks for packing.
    const PACKS: bool;
    /// Whether host memory is used in place (`import`); without it the host copies weights to the device.
    const IMPORTS: bool = false;

    /// The sticky error, if the device is lost. Thread-safe.
    fn status(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// What was counted since the device was opened: calls `counter` with names and values, always the same names in the
    /// same order. Thread-safe.
    fn counters(&self, counter: &mut dyn FnMut(&'static str, u64)) {
        let _ = counter;
    }

    /// Memory of `TS_ARENA_*` kind.
    fn alloc(&self, kind: u32, bytes: u64) -> Result<Self::Arena, Fault>;

    /// Uses host memory in place.
    ///
    /// # Safety
    /// `data` has `bytes` readable bytes that outlive the arena and do not change.
    unsafe fn import(&self, kind: u32, data: *const u8, bytes: u64) -> Result<Self::Arena, Fault> {
        Err(Fault::unsupported(format!("importing host memory ({bytes} bytes at {data:?}, kind {kind})")))
    }

    /// Host address of an arena.
    fn map(&self, _arena: &Self::Arena) -> Result<*mut u8, Fault> {
        Err(Fault::unsupported("mapping device memory"))
    }

    /// Synchronous copy to the device.
    fn write(&self, arena: &Self::Arena, offset: u64, data: &[u8]) -> Result<(), Fault>;
    /// Synchronous copy from the device.
    fn read(&self, arena: &Self::Arena, offset: u64, data: &mut [u8]) -> Result<(), Fault>;

    /// A new queue.
    fn queue(&self) -> Result<Self::Queue, Fault>;
    /// Device-to-device copy of equal lengths, in queue order.
    fn copy(
        &self,
        queue: &mut Self::Queue,
        destination: Span<'_, Self::Arena>,
        source: Span<'_, Self::Arena>,
    ) -> Result<(), Fault>;
    /// The event reaches `value` when all earlier work of the queue is done.
    fn signal(&self, queue: &mut Self::Queue, event: &Self::Event, value: u64) -> Result<(), Fault>;
    /// Later work of the queue starts when the event has reached `value`.
    fn wait(&self, queue: &mut Self::Queue, event: &Self::Event, value: u64) -> Result<(), Fault>;

    /// A new timeline at 0.
    fn event(&self) -> Result<Self::Event, Fault>;
    /// Its value now, or the error that stuck to it. Thread-safe.
    fn event_query(event: &Self::Event) -> Result<u64, Fault>;
    /// Blocks until `value`, at most `timeout_ns`. Thread-safe.
    fn event_wait(event: &Self::Event, value: u64, timeout_ns: u64) -> Result<(), Fault>;

    /// Yes or no for one concrete op; bindings and offsets are not set yet. Thread-safe.
    fn support(&self, op: &OpView<'_>) -> Support;
    /// Enqueues one op.
    fn launch(&self, queue: &mut Self::Queue, op: &OpView<'_>, bindings: &Bindings<'_, Self>) -> Result<(), Fault>;
    /// Writes the packed form of `source` (canonical bytes) to `destination`.
    fn pack(
        &self,
        op: &OpView<'_>,
        operand: usize,
        _source: &[u8],
        _destination: Span<'_, Self::Arena>,
    ) -> Result<(), Fault> {
        Err(Fault::unsupported(format!("packing operand {operand} of {}", op.kind())))
    }

    /// Prepares a program. The ops have been checked; every binding stays alive as long as the program.
    fn prepare(
        &self,
        _ops: &[OpView<'_>],
        _bindings: &Bindings<'_, Self>,
        _bucket: Bucket,
    ) -> Result<Self::Program, Fault> {
        Err(Fault::unsupported("programs"))
    }
    /// Runs a program. No allocation in steady state.
    fn run(
        &self,
        _program: &mut Self::Program,
        _queue: &mut Self::Queue,
        _run: &RunView<'_, Self>,
    ) -> Result<(), Fault> {
        Err(Fault::unsupported("programs"))
    }
    /// How the program executes: calls `segment` in order.
    fn describe(&self, _program: &Self::Program, _segment: &mut dyn FnMut(ts_segment)) -> Result<(), Fault> {
        Err(Fault::unsupported("programs"))
    }
    /// Predicted nanoseconds; `None` = no model.
    fn cost(&self, _program: &Self::Program, _load: &Load) -> Option<u64> {
        None
    }
}

/// `support` after the rules that hold for every backend.
pub(crate) fn checked_support<D: DeviceImpl>(device: &D, op: &OpView<'_>) -> Result<Support, Fault> {
    let support = device.support(op);
    let packs = &support.packs;
    let possible = |(i, p): (usize, &Pack)| {
        let known = p.layout != 0 && (p.operand as usize) < op.n_operands();
        known && packs[..i].iter().all(|before| before.operand != p.operand)
    };
    let wanted = support.is_supported() && !packs.is_empty();
    if wanted && (!D::PACKS || packs.len() > PACKS || !packs.iter().enumerate().all(possible)) {
        return Err(Fault::internal(format!("{}: asks for impossible packing {packs:?}", op.kind())));
    }
    Ok(support)
}
