//! Our errors as the ABI's: each keeps its sentence, and gets the class that tells the host what it may still do.

use tokenspeed_backend_api::sdk::Fault;

use crate::{
    hip::HipError,
    kernel::{LaunchError, ManifestError},
};

/// `hipErrorOutOfMemory`.
const OUT_OF_MEMORY: i32 = 2;
/// Statuses after which HIP answers every call with the same: a kernel failed, and the device's context is gone.
const STICKY: [i32; 5] = [700, 710, 715, 718, 719];

impl From<HipError> for Fault {
    fn from(error: HipError) -> Self {
        let line = error.to_string();
        match error {
            HipError::Call { code: OUT_OF_MEMORY, .. } => Fault::out_of_memory(line).vendor(OUT_OF_MEMORY.into()),
            HipError::Call { code, .. } if STICKY.contains(&code) => Fault::device_lost(line).vendor(code.into()),
            HipError::Call { code, .. } => Fault::internal(line).vendor(code.into()),
            HipError::NoLibrary { .. }
            | HipError::MissingSymbol { .. }
            | HipError::OldRuntime { .. }
            | HipError::NoDevice { .. }
            | HipError::WrongArchitecture { .. } => Fault::incompatible(line),
        }
    }
}

impl From<ManifestError> for Fault {
    fn from(error: ManifestError) -> Self {
        Fault::incompatible(error.to_string())
    }
}

impl From<LaunchError> for Fault {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Hip { kernel, error } => {
                let fault = Fault::from(error);
                Fault { message: format!("kernel {kernel}: {}", fault.message), ..fault }
            }
            LaunchError::Manifest(error) => error.into(),
            // Arguments and grids are ours: this is a defect of the op, or kernels of another version.
            LaunchError::Argument { .. } | LaunchError::Grid { .. } => Fault::internal(error.to_string()),
        }
    }
}
