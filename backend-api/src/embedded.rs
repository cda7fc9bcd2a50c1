//! Backends linked into the program itself.
//!
//! They use the same entry function and the same negotiation as a plugin; only the way to the entry differs. Found
//! through `inventory`, so that the host names no backend. An rlib exports no symbol, so any number of them link into
//! one binary; the binary has to mention each crate once (`use tokenspeed_null as _;`), or the linker leaves it out.

use crate::{abi::*, backend::Backend, negotiate::NegotiationError, sdk::Info};

/// Registration of a linked backend; made by [`embed_backend!`](crate::embed_backend).
#[derive(Debug)]
pub struct EmbeddedBackend {
    /// The backend's own description.
    pub info: fn() -> Info,
    /// Its entry function.
    pub entry: ts_backend_entry_fn,
}

inventory::collect!(EmbeddedBackend);

impl EmbeddedBackend {
    /// The name users type.
    pub fn name(&self) -> &'static str {
        (self.info)().name
    }

    /// Negotiates as with a plugin.
    pub fn load(&self) -> Result<Backend, NegotiationError> {
        // SAFETY: the registration macro takes the SDK's own entry, which follows the ABI.
        unsafe { Backend::from_entry(self.entry, "embedded") }
    }
}

/// All linked backends, by name.
pub fn embedded() -> Vec<&'static EmbeddedBackend> {
    let mut all: Vec<_> = inventory::iter::<EmbeddedBackend>.into_iter().collect();
    all.sort_by_key(|b| b.name());
    all
}
