//! Safe calls through a negotiated table.
//!
//! The rules of the ABI become types here: a [`Device`] can move between threads but not be shared, and everything that
//! touches it takes `&Device`, so "one thread per device at a time" needs no lock. Objects keep their device open, and
//! a handle dropped on another thread is freed at the device's next call. Nothing on the path of a step allocates:
//! [`Device::op_launch`], [`Device::program_run`], [`Device::write`], [`Device::read`], [`Event::query`],
//! [`Event::wait`].
//!
//! Rejected: a trait object per backend. It would be a second interface to keep stable, and just as fast (a virtual
//! call and a call through the table both take about 3 ns).

mod device;
mod error;
mod object;
mod program;
mod step_buffer;

pub use crate::{
    negotiate::{BackendInfo, NegotiationError},
    record::OpRecord,
    sdk::{Bucket, DeviceInfo, Load},
    support::{Answer, Determinism, Pack, Support},
};
pub use device::{ArenaKind, Device, DeviceMonitor};
pub use error::BackendError;
pub use object::{Arena, Bindings, Event, Queue};
pub use program::{Program, Segment, SegmentKind};
pub use step_buffer::StepBuffer;

use crate::{abi::*, negotiate, sized};
use std::sync::Arc;

/// A loaded backend. Cheap to copy; never unloaded.
#[derive(Clone)]
pub struct Backend(pub(crate) Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) table: ts_backend_table,
    pub(crate) info: BackendInfo,
    origin: String,
}

/// The function of a mandatory entry.
macro_rules! entry {
    ($table:expr, $name:ident) => {
        $table.$name.expect(concat!("entry ", stringify!($name), " was checked at load"))
    };
}
pub(crate) use entry;

impl Backend {
    /// Negotiates with an entry function; `origin` says where it is from ("embedded", a path) in messages.
    ///
    /// # Safety
    /// As for [`negotiate::negotiate`].
    pub unsafe fn from_entry(entry: ts_backend_entry_fn, origin: &str) -> Result<Self, NegotiationError> {
        // SAFETY: promised by the caller.
        let (table, info) = unsafe { negotiate::negotiate(entry) }?;
        Ok(Self(Arc::new(Loaded { table, info, origin: origin.to_owned() })))
    }

    /// What the backend says about itself.
    pub fn info(&self) -> &BackendInfo {
        &self.0.info
    }

    /// The name users type.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// "embedded" or the library's path.
    pub fn origin(&self) -> &str {
        &self.0.origin
    }

    /// Whether devices have programs; if not, walk the op list with [`Device::op_launch`].
    pub fn has_programs(&self) -> bool {
        let t = &self.0.table;
        t.program_prepare.is_some() && t.program_run.is_some() && t.program_drop.is_some()
    }

    /// How many devices there are now.
    pub fn device_count(&self) -> Result<u32, BackendError> {
        let mut count = 0;
        // SAFETY: both pointers are ours for the call.
        self.0.call("device_count", None, |e| unsafe { entry!(self.0.table, device_count)(&raw mut count, e) })?;
        Ok(count)
    }

    /// Description of device `index`.
    pub fn device_info(&self, index: u32) -> Result<DeviceInfo, BackendError> {
        let mut info: ts_device_info = sized::zeroed();
        // SAFETY: both pointers are ours for the call.
        self.0.call("device_info", Some(index), |e| unsafe {
            entry!(self.0.table, device_info)(index, &raw mut info, e)
        })?;
        // SAFETY: strings of the table live as long as the process.
        let name = sized::one_line(unsafe { sized::str_from(info.name) }.unwrap_or("(not UTF-8)"));
        let alignment = info.alignment.max(1);
        if !alignment.is_power_of_two() {
            let what = format!("alignment of {alignment} bytes is not a power of two");
            return Err(self.0.error("device_info", TS_ERR_INTERNAL, Some(index), what));
        }
        Ok(DeviceInfo {
            name,
            alignment,
            memory_bytes: info.memory_bytes,
            page_tokens: (info.page_tokens != 0).then_some(info.page_tokens),
            host_mapped: info.host_mapped != 0 && self.0.table.arena_map.is_some(),
            exclusive: info.exclusive != 0,
            branch_rows: info.branch_rows != 0,
            bucketed: info.bucketed != 0,
        })
    }

    /// Opens a device with its options.
    pub fn open(&self, index: u32, options: &[(&str, &str)]) -> Result<Device, BackendError> {
        Device::open(self.0.clone(), self.device_info(index)?, index, options)
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.0.info.name, self.0.info.version, self.0.origin)
    }
}

impl Loaded {
    /// Calls an entry with an error record and turns a bad status into an error.
    #[inline]
    pub(crate) fn call(
        &self,
        call: &'static str,
        device: Option<u32>,
        body: impl FnOnce(*mut ts_error) -> ts_status,
    ) -> Result<(), BackendError> {
        let mut error = BackendError::record();
        match body(&raw mut error) {
            TS_OK => Ok(()),
            code => Err(BackendError::from_abi(&self.info.name, call, code, device, &error)),
        }
    }

    #[cold]
    pub(crate) fn error(&self, call: &'static str, code: ts_status, device: Option<u32>, what: String) -> BackendError {
        BackendError::new(&self.info.name, call, code, device, what)
    }
}
