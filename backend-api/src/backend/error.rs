//! Why a call into a backend failed.

use crate::{abi::*, negotiate::status_name, sized};

/// A failed call, in one line: backend, call, class, the backend's own words, where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {call}: {}: {message}{}", status_name(*.code), self.place())]
pub struct BackendError {
    /// Name of the backend.
    pub backend: String,
    /// Entry of the table.
    pub call: &'static str,
    /// `TS_ERR_*`.
    pub code: ts_status,
    /// The vendor runtime's own code, 0 if none.
    pub vendor_code: i64,
    /// Device index.
    pub device: Option<u32>,
    /// Rank in the group.
    pub rank: Option<u32>,
    /// Peer that was waited for.
    pub peer: Option<u32>,
    /// One line.
    pub message: String,
}

impl BackendError {
    #[cold]
    pub(crate) fn new(
        backend: &str,
        call: &'static str,
        code: ts_status,
        device: Option<u32>,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        Self { backend: backend.to_owned(), call, code, vendor_code: 0, device, rank: None, peer: None, message }
    }

    /// A record to lend to a plugin: everything unknown.
    #[inline]
    pub(crate) fn record() -> ts_error {
        let mut e: ts_error = sized::zeroed();
        (e.device, e.rank, e.peer) = (-1, -1, -1);
        e
    }

    #[cold]
    pub(crate) fn from_abi(
        backend: &str,
        call: &'static str,
        code: ts_status,
        device: Option<u32>,
        e: &ts_error,
    ) -> Self {
        let text = sized::text_from(&e.text);
        let message = match (text.is_empty(), code) {
            (false, TS_OK..=TS_ERR_INTERNAL) => text,
            (false, _) => format!("status {code}: {text}"),
            (true, _) => format!("status {code} without a message"),
        };
        let index = |i: i32| u32::try_from(i).ok();
        let mut error = Self::new(backend, call, code, index(e.device).or(device), message);
        error.vendor_code = e.vendor_code;
        // Only a collective has a peer; plugins that clear the whole record do not mean rank 0 elsewhere.
        if code == TS_ERR_PEER_TIMEOUT {
            (error.rank, error.peer) = (index(e.rank), index(e.peer));
        }
        error
    }

    /// Whether every later call on the device will fail too.
    pub fn is_sticky(&self) -> bool {
        self.code == TS_ERR_DEVICE_LOST
    }

    fn place(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.device.map(|d| format!("device {d}")));
        parts.extend(self.rank.map(|r| format!("rank {r}")));
        parts.extend(self.peer.map(|p| format!("peer {p}")));
        parts.extend((self.vendor_code != 0).then(|| format!("vendor code {}", self.vendor_code)));
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_everything() {
        let mut e = BackendError::record();
        (e.device, e.rank, e.peer, e.vendor_code) = (1, 0, 5, -7);
        sized::text_to(&mut e.text, "no answer\nin 3 s");
        let error = BackendError::from_abi("acme", "program_run", TS_ERR_PEER_TIMEOUT, Some(1), &e);
        assert_eq!(
            error.to_string(),
            "acme: program_run: peer timeout: no answer in 3 s (device 1, rank 0, peer 5, vendor code -7)"
        );
    }

    #[test]
    fn no_text_and_unknown_status() {
        let error = BackendError::from_abi("acme", "op_launch", 99, Some(2), &BackendError::record());
        assert_eq!(error.to_string(), "acme: op_launch: unknown status: status 99 without a message (device 2)");
    }
}
