//! `--backend amd-gfx950`.

use std::{path::PathBuf, sync::OnceLock};

use tokenspeed_backend_api::{
    abi::{TS_PROFILE_KIMI, TS_PROFILE_LLAMA},
    sdk::{BackendImpl, DeviceInfo, Fault, HostServices, Info},
};

use crate::{
    device::Gfx950Device,
    hip::{self, Device, Hip, HipError},
    kernel::{Library, folders},
    settings::Settings,
};

/// The backend.
#[derive(Debug)]
pub struct AmdGfx950;

/// HIP, looked for once per process: a library that failed to load stays failed.
fn hip() -> Result<&'static Hip, HipError> {
    static HIP: OnceLock<Result<&'static Hip, HipError>> = OnceLock::new();
    HIP.get_or_init(hip::load).clone()
}

/// The file that this code was loaded from: the plugin, or the program it is linked into.
fn own_file() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut info: libc::Dl_info = {
        // SAFETY: plain pointers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    };
    // SAFETY: any address may be asked for; `info` is filled if the answer is not 0.
    let found = unsafe { libc::dladdr(own_file as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a zero-terminated name that lives as long as the library is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or(path))
}

impl BackendImpl for AmdGfx950 {
    type Device = Gfx950Device;

    fn info() -> Info {
        Info {
            name: "amd-gfx950",
            version: env!("CARGO_PKG_VERSION"),
            description: "AMD MI350X and MI355X (gfx950) through HIP, kernels compiled ahead of time",
            tiers: 0,
            profiles: TS_PROFILE_LLAMA | TS_PROFILE_KIMI,
            score: 100,
        }
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(Device::count(hip()?)? as u32)
    }

    fn device_info(index: u32) -> Result<DeviceInfo, Fault> {
        let device = Device::open(hip()?, index as i32)?;
        Ok(DeviceInfo {
            name: format!("{} ({}, {} CUs)", device.name, device.architecture, device.compute_units),
            alignment: 256,
            memory_bytes: device.memory_bytes,
            page_tokens: Some(64),
            host_mapped: false,
            exclusive: false,
            branch_rows: true,
            bucketed: true,
        })
    }

    fn open(index: u32, options: &[(&str, &str)], _host: HostServices) -> Result<Gfx950Device, Fault> {
        let settings = Settings::parse(options)?;
        let device = Device::open(hip()?, index as i32)?;
        let kernels = Library::open(&device, &folders(own_file()))?;
        Ok(Gfx950Device::new(device, kernels, settings))
    }
}

tokenspeed_backend_api::embed_backend!(AmdGfx950);
