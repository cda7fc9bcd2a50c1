//! The last error of each thread, and the border that no panic crosses.

use std::{
    cell::Cell,
    ffi::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::Status;

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// Runs the body of an API function.
pub fn guard(body: impl FnOnce() -> Result<(), Status>) -> i32 {
    let status = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status::UNKNOWN,
    };
    // "Not ready" is an answer, not an error.
    if status != Status::SUCCESS && status != Status::NOT_READY {
        LAST.set(status.0);
    }
    status.0
}

/// The last error, which it resets.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetLastError() -> i32 {
    LAST.replace(0)
}

/// The last error.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipPeekAtLastError() -> i32 {
    LAST.get()
}

/// Name of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorName(status: i32) -> *const c_char {
    Status(status).words().0.as_ptr().cast()
}

/// Description of a status.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorString(status: i32) -> *const c_char {
    Status(status).words().1.as_ptr().cast()
}
