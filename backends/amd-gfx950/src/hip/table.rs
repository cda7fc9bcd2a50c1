//! The table: every HIP function that we call, with its type, resolved once.
//!
//! It holds what this backend calls and nothing else, for a runtime without one of these functions is refused: a symbol that nobody
//! calls must not keep anybody out. A test looks for each one's call.
//!
//! The macro also writes down each function's C prototype, derived from the Rust types, and a test compiles those against
//! the public header: a wrong type here is a failed test, not a corrupted stack.

use std::{
    ffi::{c_char, c_void},
    path::PathBuf,
};

use super::{error::HipError, types::*};

macro_rules! table {
    ($($name:ident($($a:ident: $t:ty),*);)*) => {
        /// HIP, loaded. Never unloaded: function pointers stay valid for the life of the process.
        #[derive(Debug)]
        #[allow(non_snake_case, missing_docs)]
        pub struct Hip {
            $(pub $name: unsafe extern "C" fn($($t),*) -> i32,)*
            pub hipGetErrorName: unsafe extern "C" fn(i32) -> *const c_char,
            pub hipGetErrorString: unsafe extern "C" fn(i32) -> *const c_char,
            /// Where it was loaded from.
            pub path: PathBuf,
        }

        /// Function name and parameter types as Rust writes them.
        pub const PROTOTYPES: &[(&str, &[&str])] = &[$((stringify!($name), &[$(stringify!($t)),*])),*];

        impl Hip {
            /// Resolves every symbol.
            pub(super) fn resolve(library: &'static libloading::Library, path: PathBuf) -> Result<Self, HipError> {
                Ok(Self {
                    $($name: symbol(library, stringify!($name), &path)?,)*
                    hipGetErrorName: symbol(library, "hipGetErrorName", &path)?,
                    hipGetErrorString: symbol(library, "hipGetErrorString", &path)?,
                    path,
                })
            }
        }
    };
}

fn symbol<T: Copy>(library: &'static libloading::Library, name: &str, path: &std::path::Path) -> Result<T, HipError> {
    // SAFETY: the caller's field has the function's C type, which a test compares with the header.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|s| *s).map_err(|_| HipError::MissingSymbol { symbol: name.into(), path: path.into() })
}

table! {
    hipRuntimeGetVersion(version: *mut i32);
    hipGetDeviceCount(count: *mut i32);
    hipSetDevice(device: i32);
    hipGetDevicePropertiesR0600(properties: *mut DeviceProperties, device: i32);
    hipDeviceSynchronize();
    hipMalloc(to: *mut *mut c_void, bytes: usize);
    hipFree(address: *mut c_void);
    hipMemGetInfo(free: *mut usize, total: *mut usize);
    hipHostMalloc(to: *mut *mut c_void, bytes: usize, flags: u32);
    hipHostFree(address: *mut c_void);
    hipMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: MemcpyKind);
    hipMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: MemcpyKind, stream: HipStream);
    hipStreamCreateWithFlags(stream: *mut HipStream, flags: u32);
    hipStreamDestroy(stream: HipStream);
    hipStreamSynchronize(stream: HipStream);
    hipStreamWaitEvent(stream: HipStream, event: HipEvent, flags: u32);
    hipEventCreateWithFlags(event: *mut HipEvent, flags: u32);
    hipEventDestroy(event: HipEvent);
    hipEventRecord(event: HipEvent, stream: HipStream);
    hipEventSynchronize(event: HipEvent);
    hipEventQuery(event: HipEvent);
    hipModuleLoadData(module: *mut HipModule, image: *const c_void);
    hipModuleUnload(module: HipModule);
    hipModuleGetFunction(function: *mut HipFunction, module: HipModule, name: *const c_char);
    hipModuleLaunchKernel(function: HipFunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, lds: u32,
        stream: HipStream, params: *mut *mut c_void, extra: *mut *mut c_void);
    hipStreamBeginCapture(stream: HipStream, mode: CaptureMode);
    hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph);
    hipGraphInstantiateWithFlags(executable: *mut HipGraphExec, graph: HipGraph, flags: u64);
    hipGraphLaunch(executable: HipGraphExec, stream: HipStream);
    hipGraphExecDestroy(executable: HipGraphExec);
    hipGraphDestroy(graph: HipGraph);
    hipGraphGetNodes(graph: HipGraph, nodes: *mut HipGraphNode, count: *mut usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_the_table_is_called() {
        let sources =
            [include_str!("owners.rs"), include_str!("library.rs")].map(|s| s.split("#[cfg(test)]").next().unwrap());
        let called = |name: &str| {
            let words = |source: &'static str| source.split(|c: char| !c.is_alphanumeric() && c != '_');
            sources.iter().any(|source| words(source).any(|word| word == name))
        };
        let idle: Vec<_> = PROTOTYPES.iter().filter(|(name, _)| !called(name)).collect();
        assert!(idle.is_empty(), "wanted of every runtime, called by nobody: {idle:?}");
    }
}
