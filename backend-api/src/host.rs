//! The services the host lends to plugins: a log, and an in-process key/value store with barriers.
//!
//! The store serves groups whose ranks are threads of this process, which is how the engine runs one node. Rejected:
//! callbacks for memory or threads; a plugin that can call back into the engine can also deadlock it.

use crate::{abi::*, sized};
use std::{
    collections::HashMap,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, MutexGuard, OnceLock},
    time::{Duration, Instant},
};

/// Receives log lines of plugins: level `TS_LOG_*` and one line of text.
pub type LogSink = fn(level: u32, message: &str);

static SINK: OnceLock<LogSink> = OnceLock::new();

/// Where plugin logs go; the first call wins. Without one, errors and warnings go to the standard error stream.
pub fn set_log_sink(sink: LogSink) {
    let _ = SINK.set(sink);
}

pub(crate) fn log(level: u32, message: &str) {
    match SINK.get() {
        Some(sink) => sink(level, message),
        None if level <= TS_LOG_WARN => eprintln!("{message}"),
        None => {}
    }
}

#[derive(Default)]
struct Store {
    values: HashMap<String, Vec<u8>>,
    barriers: HashMap<String, Barrier>,
}

/// A barrier that can be used again: members of the next round wait for a new generation.
#[derive(Default)]
struct Barrier {
    waiting: u32,
    generation: u64,
}

static STORE: Mutex<Option<Store>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn store() -> MutexGuard<'static, Option<Store>> {
    let mut guard = STORE.lock().unwrap_or_else(|e| e.into_inner());
    guard.get_or_insert_default();
    guard
}

/// Waits until `ready` gives a value, or `None` after the timeout.
fn wait_for<T>(timeout_ms: u64, mut ready: impl FnMut(&mut Store) -> Option<T>) -> Option<T> {
    let deadline = Instant::now().checked_add(Duration::from_millis(timeout_ms));
    let mut guard = store();
    loop {
        if let Some(value) = ready(guard.get_or_insert_default()) {
            return Some(value);
        }
        let left = deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return None;
        }
        guard = CHANGED.wait_timeout(guard, left).unwrap_or_else(|e| e.into_inner()).0;
    }
}

/// Nothing unwinds into a plugin.
fn guard(body: impl FnOnce() -> ts_status) -> ts_status {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(TS_ERR_INTERNAL)
}

unsafe extern "C" fn host_log(_: *mut c_void, level: u32, message: ts_str) {
    guard(|| {
        // SAFETY: borrowed for the call, by the ABI.
        let text = unsafe { sized::str_from(message) }.unwrap_or("(a log line that is not UTF-8)");
        log(level, &sized::one_line(text));
        TS_OK
    });
}

unsafe extern "C" fn kv_set(_: *mut c_void, key: ts_str, value: *const u8, bytes: usize) -> ts_status {
    guard(|| {
        // SAFETY: borrowed for the call, by the ABI.
        let Some(key) = (unsafe { sized::str_from(key) }) else { return TS_ERR_INVALID };
        if value.is_null() && bytes > 0 {
            return TS_ERR_INVALID;
        }
        // SAFETY: as above.
        let value = if bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(value, bytes) } };
        store().get_or_insert_default().values.insert(key.to_owned(), value.to_vec());
        CHANGED.notify_all();
        TS_OK
    })
}

unsafe extern "C" fn kv_get(
    _: *mut c_void,
    key: ts_str,
    buffer: *mut u8,
    capacity: usize,
    size: *mut usize,
    timeout_ms: u64,
) -> ts_status {
    guard(|| {
        // SAFETY: borrowed for the call, by the ABI.
        let Some(key) = (unsafe { sized::str_from(key) }) else { return TS_ERR_INVALID };
        let Some(value) = wait_for(timeout_ms, |s| s.values.get(key).cloned()) else { return TS_ERR_TIMEOUT };
        // SAFETY: the plugin's buffer has `capacity` bytes, or is null to ask for the size.
        unsafe {
            if !size.is_null() {
                size.write(value.len());
            }
            if !buffer.is_null() {
                value.as_ptr().copy_to_nonoverlapping(buffer, value.len().min(capacity));
            }
        }
        TS_OK
    })
}

unsafe extern "C" fn barrier(_: *mut c_void, name: ts_str, members: u32, timeout_ms: u64) -> ts_status {
    guard(|| {
        // SAFETY: borrowed for the call, by the ABI.
        let Some(name) = (unsafe { sized::str_from(name) }) else { return TS_ERR_INVALID };
        let mine = {
            let mut guard = store();
            let b = guard.get_or_insert_default().barriers.entry(name.to_owned()).or_default();
            let mine = b.generation;
            b.waiting += 1;
            if b.waiting >= members {
                (b.waiting, b.generation) = (0, mine + 1);
                CHANGED.notify_all();
                return TS_OK;
            }
            mine
        };
        let passed =
            wait_for(timeout_ms, |s| (s.barriers.get(name).is_some_and(|b| b.generation > mine)).then_some(()));
        if passed.is_some() {
            return TS_OK;
        }
        // Gave up: whoever comes later must not count this member. The barrier may have opened meanwhile.
        let mut guard = store();
        let b = guard.get_or_insert_default().barriers.entry(name.to_owned()).or_default();
        if b.generation > mine {
            return TS_OK;
        }
        b.waiting -= 1;
        TS_ERR_TIMEOUT
    })
}

/// The host record, alive for the life of the process.
pub(crate) fn host() -> &'static ts_host {
    struct Record(ts_host);
    // SAFETY: never changed; its functions are thread-safe and its context is null.
    unsafe impl Send for Record {}
    // SAFETY: as above.
    unsafe impl Sync for Record {}
    static HOST: OnceLock<Record> = OnceLock::new();
    &HOST
        .get_or_init(|| {
            let mut h: ts_host = sized::zeroed();
            (h.abi_min, h.abi_max) = (ABI_MIN, TS_ABI_VERSION);
            h.log = Some(host_log);
            h.kv_set = Some(kv_set);
            h.kv_get = Some(kv_get);
            h.barrier = Some(barrier);
            Record(h)
        })
        .0
}

/// Oldest version this host speaks: every minor of its major.
pub(crate) const ABI_MIN: u32 = TS_ABI_VERSION & 0xffff_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_barriers_between_threads() {
        let (h, null) = (host(), std::ptr::null_mut());
        let get = |key: &str, timeout| {
            let (mut buffer, mut size) = ([0u8; 2], 0);
            // SAFETY: valid pointers throughout.
            let status =
                unsafe { h.kv_get.unwrap()(null, sized::str_to(key), buffer.as_mut_ptr(), 2, &raw mut size, timeout) };
            (status, buffer, size)
        };
        assert_eq!(get("host-test-absent", 1).0, TS_ERR_TIMEOUT);
        let barrier = |timeout| unsafe { h.barrier.unwrap()(null, sized::str_to("host-test"), 2, timeout) };
        assert_eq!(barrier(1), TS_ERR_TIMEOUT, "alone");
        std::thread::scope(|s| {
            let other = s.spawn(|| {
                let set = host().kv_set.unwrap();
                // SAFETY: valid pointers throughout.
                unsafe {
                    set(std::ptr::null_mut(), sized::str_to("host-test-id"), [7, 8, 9].as_ptr(), 3);
                    host().barrier.unwrap()(std::ptr::null_mut(), sized::str_to("host-test"), 2, 10_000)
                }
            });
            assert_eq!(get("host-test-id", 10_000), (TS_OK, [7, 8], 3));
            assert_eq!(barrier(10_000), TS_OK);
            assert_eq!(other.join().unwrap(), TS_OK);
        });
    }
}
