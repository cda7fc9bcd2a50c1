//! The C table of a Rust backend, and its entry function.

use super::{device::BackendImpl, device::DeviceImpl, fault::Fault, glue, services::HostServices};
use crate::{abi::*, sized};
use std::{collections::BTreeSet, sync::Mutex};

/// Oldest host this SDK can serve: every minor of its own major.
const ABI_MIN: u32 = TS_ABI_VERSION & 0xffff_0000;

/// The complete table of backend `B`. Entries of tiers that it does not claim are null.
pub fn table<B: BackendImpl>() -> ts_backend_table {
    let mut t: ts_backend_table = sized::zeroed();
    t.abi_version = TS_ABI_VERSION;
    t.backend_info = Some(glue::backend_info::<B>);
    t.device_count = Some(glue::device_count::<B>);
    t.device_info = Some(glue::device_info::<B>);
    t.device_open = Some(glue::device_open::<B>);
    t.device_close = Some(glue::device_close::<B>);
    t.device_status = Some(glue::device_status::<B>);
    t.arena_alloc = Some(glue::arena_alloc::<B>);
    if B::Device::IMPORTS {
        t.arena_import = Some(glue::arena_import::<B>);
    }
    t.arena_free = Some(glue::arena_free::<B>);
    t.arena_map = Some(glue::arena_map::<B>);
    t.arena_write = Some(glue::arena_write::<B>);
    t.arena_read = Some(glue::arena_read::<B>);
    t.queue_create = Some(glue::queue_create::<B>);
    t.queue_destroy = Some(glue::queue_destroy::<B>);
    t.queue_copy = Some(glue::queue_copy::<B>);
    t.queue_signal = Some(glue::queue_signal::<B>);
    t.queue_wait = Some(glue::queue_wait::<B>);
    t.event_create = Some(glue::event_create::<B>);
    t.event_destroy = Some(glue::event_destroy::<B>);
    t.event_query = Some(glue::event_query::<B>);
    t.event_wait = Some(glue::event_wait::<B>);
    t.op_support = Some(glue::op_support::<B>);
    t.op_launch = Some(glue::op_launch::<B>);
    if B::Device::PACKS {
        t.op_pack = Some(glue::op_pack::<B>);
    }
    if B::Device::PROGRAMS {
        t.program_prepare = Some(glue::program_prepare::<B>);
        t.program_run = Some(glue::program_run::<B>);
        t.program_describe = Some(glue::program_describe::<B>);
        t.program_cost = Some(glue::program_cost::<B>);
        t.program_drop = Some(glue::program_drop::<B>);
    }
    t.device_counters = Some(glue::device_counters::<B>);
    t
}

/// The entry of backend `B`, of type [`ts_backend_entry_fn`]: negotiates and fills the host's table.
///
/// # Safety
/// As for every [`ts_backend_entry_fn`]: `host` lives as long as the process, `out` is as long as it says.
pub unsafe extern "C" fn entry<B: BackendImpl>(
    host: *const ts_host,
    out: *mut ts_backend_table,
    error: *mut ts_error,
) -> ts_status {
    // SAFETY: promised by the caller. Nothing here calls into `B`, so nothing can panic but a failed assertion of ours.
    let result = unsafe { negotiate(host, out, table::<B>()) };
    match result {
        Ok(()) => TS_OK,
        // SAFETY: as above.
        Err(fault) => unsafe { fault.report(error) },
    }
}

/// # Safety
/// As for [`entry`].
unsafe fn negotiate(host: *const ts_host, out: *mut ts_backend_table, own: ts_backend_table) -> Result<(), Fault> {
    // SAFETY: promised by the caller.
    unsafe {
        let host = sized::read(host).ok_or_else(|| Fault::invalid("the host record is null"))?;
        let common = host.abi_max.min(TS_ABI_VERSION);
        if common < host.abi_min.max(ABI_MIN) {
            return Err(Fault::incompatible(format!(
                "this plugin speaks ABI {}..{}, the host {}..{}",
                version(ABI_MIN),
                version(TS_ABI_VERSION),
                version(host.abi_min),
                version(host.abi_max)
            )));
        }
        let table = ts_backend_table { abi_version: common, ..own };
        if !sized::write(out, &table) {
            return Err(Fault::invalid("the table is null or has no size"));
        }
        HostServices::install(&host);
        Ok(())
    }
}

/// `major.minor` of an ABI version.
pub(crate) fn version(v: u32) -> String {
    format!("{}.{}", v >> 16, v & 0xffff)
}

/// Text that lives as long as the process, as the ABI wants of names; each distinct text is kept once.
pub(super) fn intern(text: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(name) = names.get(text) {
        return name;
    }
    let name: &'static str = Box::leak(text.to_owned().into_boxed_str());
    names.insert(name);
    name
}
