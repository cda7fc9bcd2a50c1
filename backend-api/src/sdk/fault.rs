//! The one error type of a plugin: a status and a sentence.

use crate::{abi::*, sized};

/// Why a call failed. Build it with the constructor named after the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `TS_ERR_*`.
    pub code: ts_status,
    /// The vendor runtime's own code, 0 if none.
    pub vendor_code: i64,
    /// Peer rank waited for, -1 if none.
    pub peer: i32,
    /// Index of the op in the program that failed; the SDK adds its label to the message.
    pub op: Option<usize>,
    /// One sentence: what, where, what to do.
    pub message: String,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {$(
        $(#[$doc])*
        #[cold]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new($code, message)
        }
    )*};
}

impl Fault {
    /// Any status.
    #[cold]
    pub fn new(code: ts_status, message: impl Into<String>) -> Self {
        Self { code, vendor_code: 0, peer: -1, op: None, message: message.into() }
    }

    constructors! {
        /// Well-formed, but this backend cannot do it.
        unsupported = TS_ERR_UNSUPPORTED;
        /// Malformed or out of range.
        invalid = TS_ERR_INVALID;
        /// No memory of the wanted kind.
        out_of_memory = TS_ERR_OUT_OF_MEMORY;
        /// The device is gone; the SDK repeats it for every later call if `status` does.
        device_lost = TS_ERR_DEVICE_LOST;
        /// Waited too long.
        timeout = TS_ERR_TIMEOUT;
        /// Wrong driver, architecture or instruction set.
        incompatible = TS_ERR_INCOMPATIBLE;
        /// A defect of the backend.
        internal = TS_ERR_INTERNAL;
    }

    /// With the vendor's own error code.
    pub fn vendor(mut self, code: i64) -> Self {
        self.vendor_code = code;
        self
    }

    /// Blames op number `index` of the slice that `run` was given.
    pub fn at(mut self, index: usize) -> Self {
        self.op = Some(index);
        self
    }

    /// Fills the caller's error record, as far as it reaches, and returns the status.
    ///
    /// # Safety
    /// `error` is null or a valid [`ts_error`] of the size it states.
    pub(crate) unsafe fn report(&self, error: *mut ts_error) -> ts_status {
        let mut record: ts_error = sized::zeroed();
        (record.code, record.vendor_code, record.peer) = (self.code, self.vendor_code, self.peer);
        (record.device, record.rank) = (-1, -1);
        sized::text_to(&mut record.text, &self.message);
        // SAFETY: promised by the caller.
        unsafe { sized::write(error, &record) };
        self.code
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}
