//! What can go wrong between us and HIP, each in one line that says what to do.

use std::{ffi::CStr, path::PathBuf};

use super::table::Hip;

/// A failure of HIP or of finding it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HipError {
    /// No library.
    #[error("no HIP library; install ROCm 6.4 or newer, or set TOKENSPEED_HIP_LIBRARY; tried: {tried}")]
    NoLibrary {
        /// Each name, with the reason if it is there but does not load.
        tried: String,
    },
    /// A library without a function that we need.
    #[error("{path}: no symbol {symbol}; ROCm 6.4 or newer is needed", path = path.display())]
    MissingSymbol {
        /// Function.
        symbol: String,
        /// Library.
        path: PathBuf,
    },
    /// The runtime is too old.
    #[error("{path}: HIP runtime {} is too old; install ROCm {} or newer, or set TOKENSPEED_HIP_LIBRARY", version(*.found, 3), version(*.wanted, 2), path = path.display())]
    OldRuntime {
        /// Library.
        path: PathBuf,
        /// Version as the runtime says it: major·10⁷ + minor·10⁵ + patch.
        found: i32,
        /// The least that will do.
        wanted: i32,
    },
    /// No device.
    #[error("{path}: no AMD GPU is visible (check the amdgpu driver, /dev/kfd permissions, HIP_VISIBLE_DEVICES)", path = path.display())]
    NoDevice {
        /// Library.
        path: PathBuf,
    },
    /// A device of another kind.
    #[error(
        "device {device} is {found}; this backend runs on gfx950 (MI350X, MI355X), HIP_VISIBLE_DEVICES chooses devices"
    )]
    WrongArchitecture {
        /// Ordinal.
        device: i32,
        /// Architecture name.
        found: String,
    },
    /// A call failed.
    #[error("{call} failed{place}: {name} ({code}), {text}")]
    Call {
        /// Function.
        call: &'static str,
        /// Where, as [`Place`] says it.
        place: String,
        /// Status.
        code: i32,
        /// Its name.
        name: String,
        /// Its description.
        text: String,
    },
}

/// The device of a call, as far as it is known, as words behind "failed".
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Of the library as a whole.
    Library,
    /// Its ordinal: nothing else is known yet.
    Ordinal(i32),
    /// Its ordinal and architecture.
    Device(i32, &'a str),
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library => Ok(()),
            Self::Ordinal(ordinal) => write!(f, " on device {ordinal}"),
            Self::Device(ordinal, architecture) => write!(f, " on device {ordinal} ({architecture})"),
        }
    }
}

/// The first parts of a version as people write it.
fn version(encoded: i32, parts: usize) -> String {
    let all = [encoded / 10_000_000, encoded / 100_000 % 100, encoded % 100_000];
    all[..parts].iter().map(i32::to_string).collect::<Vec<_>>().join(".")
}

impl Hip {
    /// Turns a status into a result.
    pub fn check(&self, call: &'static str, place: Place<'_>, code: i32) -> Result<(), HipError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both take any number and return a static, zero-terminated string or null.
        let (name, text) = unsafe { ((self.hipGetErrorName)(code), (self.hipGetErrorString)(code)) };
        let words = |p: *const std::ffi::c_char| match p.is_null() {
            true => "?".to_string(),
            // SAFETY: not null, zero-terminated, static.
            false => unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned(),
        };
        Err(HipError::Call { call, place: place.to_string(), code, name: words(name), text: words(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_the_device_as_far_as_it_is_known() {
        let line = |place: Place<'_>| {
            let (name, text) = ("hipErrorUnknown".into(), "unknown error".into());
            HipError::Call { call: "hipFree", place: place.to_string(), code: 999, name, text }.to_string()
        };
        assert_eq!(line(Place::Library), "hipFree failed: hipErrorUnknown (999), unknown error");
        assert_eq!(line(Place::Ordinal(3)), "hipFree failed on device 3: hipErrorUnknown (999), unknown error");
        let known = line(Place::Device(3, "gfx950:sramecc+:xnack-"));
        assert_eq!(known, "hipFree failed on device 3 (gfx950:sramecc+:xnack-): hipErrorUnknown (999), unknown error");
    }

    #[test]
    fn versions_are_said_as_people_write_them() {
        let line = HipError::OldRuntime { path: "lib.so".into(), found: 60_342_134, wanted: 60_400_000 }.to_string();
        assert_eq!(
            line,
            "lib.so: HIP runtime 6.3.42134 is too old; install ROCm 6.4 or newer, or set TOKENSPEED_HIP_LIBRARY"
        );
    }
}
