//! HIP's types as they cross the C border. Handles are opaque; enumerations are `u32` with named values.

use std::ffi::c_void;

macro_rules! handles {
    ($($(#[$m:meta])* $name:ident;)*) => {$(
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No object; for streams, the default stream.
            pub const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: a handle is a number to us; HIP's functions may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// `hipStream_t`.
    HipStream;
    /// `hipEvent_t`.
    HipEvent;
    /// `hipModule_t`.
    HipModule;
    /// `hipFunction_t`.
    HipFunction;
    /// `hipGraph_t`.
    HipGraph;
    /// `hipGraphExec_t`.
    HipGraphExec;
    /// `hipGraphNode_t`.
    HipGraphNode;
}

/// `hipMemcpyKind`.
pub type MemcpyKind = u32;
/// Host to device.
pub const HOST_TO_DEVICE: MemcpyKind = 1;
/// Device to host.
pub const DEVICE_TO_HOST: MemcpyKind = 2;
/// Device to device.
pub const DEVICE_TO_DEVICE: MemcpyKind = 3;

/// `hipStreamCaptureMode`.
pub type CaptureMode = u32;
/// Only the capturing thread is restricted.
pub const CAPTURE_THREAD_LOCAL: CaptureMode = 1;

/// Streams that do not wait for the default stream.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// Events without time stamps.
pub const EVENT_DISABLE_TIMING: u32 = 2;

/// `hipErrorNotReady`: an answer, not an error.
pub const NOT_READY: i32 = 600;
/// `hipErrorNoDevice`.
pub const NO_DEVICE: i32 = 100;

/// Bytes of `hipDeviceProp_tR0600`, and where the members that we read lie in it.
pub mod properties {
    /// Size of the structure; HIP writes all of it.
    pub const BYTES: usize = 1472;
    /// `name`, 256 bytes.
    pub const NAME: usize = 0;
    /// `totalGlobalMem`.
    pub const TOTAL_GLOBAL_MEM: usize = 288;
    /// `multiProcessorCount`.
    pub const MULTI_PROCESSOR_COUNT: usize = 388;
    /// `gcnArchName`, 256 bytes.
    pub const GCN_ARCH_NAME: usize = 1160;
}

/// `hipDeviceProp_tR0600`, unparsed.
#[repr(C, align(8))]
#[derive(Debug, Clone)]
pub struct DeviceProperties(pub [u8; properties::BYTES]);
