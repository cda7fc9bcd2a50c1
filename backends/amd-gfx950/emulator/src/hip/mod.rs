//! The HIP C API over the machine, as far as a program that loads kernels as modules uses it.
//!
//! Asynchronous work is queued per stream. In checked mode it runs when somebody waits for it, which is the latest moment
//! that HIP allows: a host that reads results or reuses staging memory too early sees old bytes. In unchecked mode it runs at
//! once. Signatures, structure layouts and numbers are those of the public HIP 7 header; a test compares them.

mod device;
mod error;
mod event;
mod graph;
mod launched;
mod log;
mod memory;
mod module;
mod peer;
mod properties;
mod runtime;
mod settings;
mod status;
mod stream;
mod work;

pub use runtime::runtime;
pub use status::Status;

/// Defines an exported function: arguments in, status out; the status is also the thread's last error, and a panic (a defect
/// of the emulator) becomes `hipErrorUnknown` instead of crossing the border.
macro_rules! api {
    ($(#[$m:meta])* fn $name:ident($($a:ident: $t:ty),* $(,)?) $body:block) => {
        $(#[$m])*
        ///
        /// # Safety
        /// As HIP demands: pointers are null or valid for what the function reads or writes through them.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> i32 {
            $crate::hip::error::guard(move || -> Result<(), $crate::hip::Status> { $body })
        }
    };
}
pub(crate) use api;

/// Writes a result through a pointer; null is an invalid value.
pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, and valid for writes by the function's contract.
    unsafe { to.write(value) };
    Ok(())
}
