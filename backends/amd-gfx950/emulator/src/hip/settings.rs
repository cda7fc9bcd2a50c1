//! How the emulator runs kernels: from the environment at first use, changed later by functions that HIP does not have.
//!
//! `TOKENSPEED_EMULATOR_CHECKS` (1, or 0 for speed), `_SEED`, `_THREADS`, `_DEVICES` (up to 16), `_MEMORY` (bytes per
//! device), `_MAX_STEPS` (instructions of one wave after which it counts as stuck), `_COUNTERS` (see `log`), `_LAUNCHED` (see
//! `launched`). What a host must refuse can be played: `_ARCHITECTURE` (what devices say they are), `_VERSION` (of the runtime, as HIP
//! encodes it), `_USED` (bytes of each device that other processes have).

use std::{
    ffi::{CStr, c_char},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{api, log, put, runtime};
use crate::machine::{Counters, LINE_BYTES, Mode, SideCache};

/// Settings of the process.
#[derive(Debug)]
pub struct Settings {
    check: AtomicU64,
    seed: AtomicU64,
    threads: u64,
    max_steps: u64,
    /// Number of devices.
    pub devices: i32,
    /// Memory of each.
    pub memory_bytes: u64,
    /// Bytes of it that are somebody else's.
    pub used_bytes: u64,
    /// Architecture that devices say they have.
    pub architecture: String,
    /// Version of the runtime and the driver.
    pub version: i32,
    launches: AtomicU64,
    sample: AtomicU64,
    /// Kernels that run whole even so.
    whole: Mutex<Vec<String>>,
    /// Matrix products are counted only.
    hollow: AtomicU64,
    cache: Mutex<Option<Arc<Mutex<SideCache>>>>,
}

const MAX_DEVICES: u64 = 16;
/// 288 GB of HBM3E, as the runtime reports them.
const MEMORY_BYTES: u64 = 288 << 30;
const ARCHITECTURE: &str = "gfx950:sramecc+:xnack-";
/// The HIP version that signatures and layouts are taken from, as the runtime encodes it: 7.1.
const VERSION: u64 = 70_125_424;

impl Settings {
    /// Reads the environment; values that are no numbers count as absent.
    pub fn from_environment() -> Self {
        let text = |name: &str| std::env::var(format!("TOKENSPEED_EMULATOR_{name}")).ok().filter(|v| !v.is_empty());
        let number = |name: &str, default: u64| text(name).and_then(|v| v.trim().parse().ok()).unwrap_or(default);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self {
            check: AtomicU64::new(number("CHECKS", 1)),
            seed: AtomicU64::new(number("SEED", 0)),
            threads: number("THREADS", cores).max(1),
            max_steps: number("MAX_STEPS", 50_000_000),
            devices: number("DEVICES", 1).min(MAX_DEVICES) as i32,
            memory_bytes: number("MEMORY", MEMORY_BYTES),
            used_bytes: number("USED", 0),
            architecture: text("ARCHITECTURE").unwrap_or_else(|| ARCHITECTURE.into()),
            version: number("VERSION", VERSION) as i32,
            launches: AtomicU64::new(0),
            sample: AtomicU64::new(0),
            whole: Mutex::default(),
            hollow: AtomicU64::new(0),
            cache: Mutex::default(),
        }
    }

    /// Checks are on.
    pub fn check(&self) -> bool {
        self.check.load(Ordering::Relaxed) != 0
    }

    /// The memory-side cache, if one is modelled.
    pub fn cache(&self) -> Option<Arc<Mutex<SideCache>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Mode of the next launch, of this kernel: each has its own seed.
    pub fn mode(&self, kernel: &str) -> Mode {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let sample = if whole.iter().any(|w| w == kernel) { 0 } else { self.sample.load(Ordering::Relaxed) };
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        Mode {
            check: self.check(),
            seed: self.seed.load(Ordering::Relaxed).wrapping_add(number.wrapping_mul(1000)),
            threads: self.threads as usize,
            max_steps: self.max_steps,
            detail: log::wanted(),
            sample: sample as u32,
            hollow: self.hollow.load(Ordering::Relaxed) != 0,
        }
    }
}

api! {
    /// Emulator only: turns checks on or off and sets the seed of launches from now on.
    fn tokenspeedEmulatorConfigure(checks: i32, seed: u64) {
        let settings = &runtime().settings;
        settings.check.store(u64::from(checks != 0), Ordering::Relaxed);
        settings.seed.store(seed, Ordering::Relaxed);
        settings.launches.store(0, Ordering::Relaxed);
        Ok(())
    }
}

api! {
    /// Emulator only: the last fault report as text, zero-terminated and cut to `bytes`; empty if there was none.
    fn tokenspeedEmulatorReport(to: *mut c_char, bytes: usize) {
        if to.is_null() || bytes == 0 {
            return Err(super::Status::INVALID_VALUE);
        }
        let text = runtime().report();
        let len = text.len().min(bytes - 1);
        // SAFETY: `to` is valid for `bytes` bytes by contract, and len + 1 is at most that.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
            to.add(len).write(0);
        }
        Ok(())
    }
}

api! {
    /// Emulator only, for counting large launches: from now on work-groups run at `most` coordinates per axis alone, 0 = all again,
    /// but for kernels named in `whole`, a zero-terminated list with commas (or null), on whose results the work of others
    /// depends. **Results are garbage**; counters are those of the work-groups that ran.
    fn tokenspeedEmulatorSample(most: u32, whole: *const c_char) {
        // SAFETY: zero-terminated by contract where not null.
        let names = if whole.is_null() { "" } else { unsafe { CStr::from_ptr(whole) }.to_str().unwrap_or_default() };
        let settings = &runtime().settings;
        let names = names.split(',').filter(|n| !n.is_empty()).map(str::to_string).collect();
        *settings.whole.lock().unwrap_or_else(PoisonError::into_inner) = names;
        settings.sample.store(most.into(), Ordering::Relaxed);
        Ok(())
    }
}

api! {
    /// Emulator only, for counting launches whole: from now on matrix products are counted and not computed if `hollow` is not 0
    /// (**results are garbage**), and counted launches run behind a memory-side cache of `cache_bytes`, empty at first; 0 = none.
    /// `changed` (or null) gets the bytes that the cache before this one held and memory had not seen.
    fn tokenspeedEmulatorHollow(hollow: i32, cache_bytes: u64, changed: *mut u64) {
        let settings = &runtime().settings;
        settings.hollow.store(u64::from(hollow != 0), Ordering::Relaxed);
        let lines = (cache_bytes / LINE_BYTES) as usize;
        let fresh = (lines > 0).then(|| Arc::new(Mutex::new(SideCache::new(lines))));
        let before = std::mem::replace(&mut *settings.cache.lock().unwrap_or_else(PoisonError::into_inner), fresh);
        let bytes = before.map_or(0, |c| c.lock().unwrap_or_else(PoisonError::into_inner).changed() * LINE_BYTES);
        if changed.is_null() { Ok(()) } else { put(changed, bytes) }
    }
}

/// Counters of launches as numbers, in the order of [`Counters`].
pub fn flat(c: &Counters) -> Vec<u64> {
    let mut all = c.instructions.to_vec();
    all.extend([c.matrix_macs, c.global_read_bytes, c.global_write_bytes, c.global_lines, c.lds_read_bytes]);
    all.extend([c.lds_write_bytes, c.groups, c.barriers]);
    all
}

api! {
    /// Emulator only: counters summed over all launches since the last call: instructions by class (scalar, branch, wait,
    /// scalar memory, vector, transcendental, matrix, LDS, vector memory), matrix multiply-adds, bytes read and written,
    /// lines touched, LDS bytes read and written, work-groups, barriers. Writes how many there are.
    fn tokenspeedEmulatorCounters(to: *mut u64, capacity: usize, count: *mut usize) {
        let values = flat(&runtime().take_counters());
        put(count, values.len())?;
        if to.is_null() || capacity < values.len() {
            return Err(super::Status::INVALID_VALUE);
        }
        // SAFETY: `to` is valid for `capacity` numbers by contract.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
        Ok(())
    }
}
