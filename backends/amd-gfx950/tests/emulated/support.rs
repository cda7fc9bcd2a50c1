//! Finding the emulator and the kernels; numbers and formats for tests.

use std::{
    ffi::{CStr, c_char},
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use tokenspeed_backend_api::{
    backend::{Backend, Device as AbiDevice},
    loader::{SearchPaths, load},
};

use tokenspeed_amd_gfx950::{
    hip::{self, Device, Hip},
    kernel::Manifest,
};

use crate::find::profile;
pub use crate::find::target;

/// Whether tests that take long are to be run: `cargo xtask test --long`.
pub fn long_tests() -> bool {
    std::env::var_os("TOKENSPEED_LONG_TESTS").is_some()
}

/// What the emulator ran, by its log of launches.
pub struct Launches(PathBuf);

impl Launches {
    /// Has an emulator that is loaded later keep one. One test per process (`cargo nextest`), of which only one has a log.
    pub fn recorded() -> Self {
        let log = std::env::temp_dir().join(format!("launches-{}", std::process::id()));
        std::fs::write(&log, "").unwrap();
        // SAFETY: the emulator is its only reader, and not loaded yet.
        unsafe { std::env::set_var("TOKENSPEED_EMULATOR_COUNTERS", &log) };
        Self(log)
    }

    /// The kernels that were launched since this was last asked.
    pub fn take(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        std::fs::write(&self.0, "").unwrap();
        let name = |line: &str| line.split("\"kernel\":\"").nth(1)?.split('"').next().map(str::to_string);
        text.lines().map(|line| name(line).unwrap()).collect()
    }
}

impl Drop for Launches {
    fn drop(&mut self) {
        // A test that fails may have lost it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where this build's kernels are.
pub fn kernels_folder() -> PathBuf {
    let folder = std::env::var_os("TOKENSPEED_KERNELS").map_or_else(|| target().join("kernels"), PathBuf::from);
    folder.join("amd-gfx950")
}

/// Kernels and an emulated device; `None`, with a word about it, if the kernels were not made.
pub fn device() -> Option<(Arc<Device>, Manifest)> {
    let folder = kernels_folder();
    if !folder.join("manifest.json").is_file() {
        eprintln!("not run: no kernels in {}; `cargo xtask kernels` makes them", folder.display());
        return None;
    }
    let hip = emulator();
    Some((Device::open(hip, 0).unwrap(), Manifest::read(&folder).unwrap()))
}

/// The backend as a host loads it, and its emulated device; `None` without kernels.
pub fn backend_device(options: &[(&str, &str)]) -> Option<(Backend, AbiDevice)> {
    static READY: OnceLock<bool> = OnceLock::new();
    let ready = *READY.get_or_init(|| {
        let ready = device().is_some();
        if ready {
            // SAFETY: before the backend, the only reader of this variable, is loaded; `cargo nextest` runs a process per test.
            unsafe { std::env::set_var("TOKENSPEED_HIP_LIBRARY", profile().join("libamdhip64.so")) };
            if std::env::var_os("TOKENSPEED_KERNELS").is_none() {
                // SAFETY: as above.
                unsafe { std::env::set_var("TOKENSPEED_KERNELS", target().join("kernels")) };
            }
        }
        ready
    });
    if !ready {
        return None;
    }
    let backend = load("amd-gfx950", &SearchPaths::only([])).unwrap_or_else(|e| panic!("{e}"));
    let device = backend.open(0, options).unwrap_or_else(|e| panic!("{e}"));
    Some((backend, device))
}

/// The emulator of this build.
pub fn emulator() -> &'static Hip {
    let library = profile().join("libamdhip64.so");
    hip::load_from(&[library]).unwrap_or_else(|e| panic!("{e}; `cargo build --workspace` makes it"))
}

fn symbol<T: Copy>(hip: &Hip, name: &str) -> T {
    // SAFETY: the library is loaded already; each caller names the function's type.
    unsafe { *libloading::Library::new(&hip.path).unwrap().get::<T>(name.as_bytes()).unwrap() }
}

/// Sets the seed of launches from now on, with or without checks.
pub fn configure(hip: &Hip, checks: bool, seed: u64) {
    let f: unsafe extern "C" fn(i32, u64) -> i32 = symbol(hip, "tokenspeedEmulatorConfigure");
    // SAFETY: takes two numbers.
    assert_eq!(unsafe { f(checks.into(), seed) }, 0);
}

/// The last fault report.
pub fn report(hip: &Hip) -> String {
    let f: unsafe extern "C" fn(*mut c_char, usize) -> i32 = symbol(hip, "tokenspeedEmulatorReport");
    let mut text = vec![0u8; 4096];
    // SAFETY: writes at most this many bytes, zero-terminated.
    assert_eq!(unsafe { f(text.as_mut_ptr().cast(), text.len()) }, 0);
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_string()
}

/// Forgets a fault.
pub fn heal(hip: &Hip) {
    let f: unsafe extern "C" fn() -> i32 = symbol(hip, "hipDeviceReset");
    // SAFETY: takes nothing.
    assert_eq!(unsafe { f() }, 0);
}

/// Counters since the last call.
pub fn counters(hip: &Hip) -> Vec<u64> {
    let f: unsafe extern "C" fn(*mut u64, usize, *mut usize) -> i32 = symbol(hip, "tokenspeedEmulatorCounters");
    let (mut values, mut count) = (vec![0; 64], 0);
    // SAFETY: writes at most 64 numbers and their count.
    assert_eq!(unsafe { f(values.as_mut_ptr(), values.len(), &mut count) }, 0);
    values.truncate(count);
    values
}

/// A small generator for test data: splitmix64.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// n random bf16 values as bits.
    pub fn bf16(&mut self, n: usize) -> Vec<u16> {
        (0..n).map(|_| (self.unit().to_bits() >> 16) as u16).collect()
    }
}

/// Value of a bf16.
pub fn bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// Bytes of a slice of numbers.
pub trait Bytes {
    /// Little-endian.
    fn bytes(&self) -> Vec<u8>;
}

impl Bytes for [u16] {
    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

impl Bytes for [f32] {
    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// Numbers of little-endian bytes.
pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
