//! The host's services, as a plugin sees them.

use super::fault::Fault;
use crate::{abi::*, sized};
use std::sync::OnceLock;

/// Set once per image, by the first call of the entry. Every backend of the image has the same host.
static HOST: OnceLock<Host> = OnceLock::new();

struct Host(ts_host);
// SAFETY: the ABI says that the host's functions are thread-safe and live as long as the process.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// Log, and the key/value store and barrier that ranks find each other with. Copy it freely; thread-safe.
#[derive(Clone, Copy, Debug)]
pub struct HostServices(());

impl HostServices {
    pub(crate) fn install(host: &ts_host) {
        HOST.get_or_init(|| Host(*host));
    }

    /// The services of the process; without a host (unit tests of a kernel) logging goes nowhere.
    pub fn get() -> Self {
        Self(())
    }

    fn host(self) -> Option<&'static ts_host> {
        HOST.get().map(|h| &h.0)
    }

    /// One line to the host's log at `TS_LOG_*`.
    pub fn log(self, level: u32, message: &str) {
        if let Some((host, log)) = self.host().and_then(|h| h.log.map(|f| (h, f))) {
            // SAFETY: the host's own function and context; the text is borrowed for the call.
            unsafe { log(host.context, level, sized::str_to(message)) }
        }
    }

    /// Publishes a value for the other ranks.
    pub fn kv_set(self, key: &str, value: &[u8]) -> Result<(), Fault> {
        let (host, set) = self.host().and_then(|h| h.kv_set.map(|f| (h, f))).ok_or_else(no_store)?;
        // SAFETY: as in `log`.
        let status = unsafe { set(host.context, sized::str_to(key), value.as_ptr(), value.len()) };
        checked(status, "kv_set", key)
    }

    /// Waits for a value of another rank.
    pub fn kv_get(self, key: &str, timeout_ms: u64) -> Result<Vec<u8>, Fault> {
        let (host, get) = self.host().and_then(|h| h.kv_get.map(|f| (h, f))).ok_or_else(no_store)?;
        let mut buffer = vec![0; 256];
        loop {
            let mut size = 0;
            let text = sized::str_to(key);
            // SAFETY: as in `log`; the buffer has the capacity stated.
            let status =
                unsafe { get(host.context, text, buffer.as_mut_ptr(), buffer.len(), &raw mut size, timeout_ms) };
            checked(status, "kv_get", key)?;
            let fits = size <= buffer.len();
            buffer.resize(size, 0);
            if fits {
                return Ok(buffer);
            }
        }
    }

    /// Returns when `members` ranks are here.
    pub fn barrier(self, name: &str, members: u32, timeout_ms: u64) -> Result<(), Fault> {
        let (host, barrier) = self.host().and_then(|h| h.barrier.map(|f| (h, f))).ok_or_else(no_store)?;
        // SAFETY: as in `log`.
        checked(unsafe { barrier(host.context, sized::str_to(name), members, timeout_ms) }, "barrier", name)
    }
}

fn no_store() -> Fault {
    Fault::unsupported("the host offers no key/value store")
}

fn checked(status: ts_status, call: &str, key: &str) -> Result<(), Fault> {
    match status {
        TS_OK => Ok(()),
        code => Err(Fault::new(code, format!("host service {call} `{key}` answered {code}"))),
    }
}
