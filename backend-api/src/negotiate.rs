//! From an entry function to a table that has been checked whole, so that nothing is found missing at the first call.

use crate::{abi::*, host, sdk::version, sized};
use core::mem::size_of;

/// Why an entry was refused. One line each; the loader puts the path in front.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The plugin knows no version this host speaks, and said so.
    #[error("needs another ABI version: this host speaks {host_min} to {host_max}, the plugin says: {reason}")]
    Incompatible {
        /// Oldest version of the host.
        host_min: String,
        /// Newest version of the host.
        host_max: String,
        /// The plugin's words.
        reason: String,
    },
    /// The plugin answered with a version outside of the offer.
    #[error(
        "found ABI version {found}, wanted {host_min} to {host_max}: {}",
        if *newer { "the plugin is newer than this program; upgrade the program" } else { "the plugin is too old; rebuild it against the current header" }
    )]
    Version {
        /// What the plugin wrote.
        found: String,
        /// Oldest version of the host.
        host_min: String,
        /// Newest version of the host.
        host_max: String,
        /// Whether `found` is above the offer.
        newer: bool,
    },
    /// The entry function failed.
    #[error("{TS_ENTRY_SYMBOL} failed: {}: {reason}", status_name(*.code))]
    Failed {
        /// `TS_ERR_*`.
        code: ts_status,
        /// The plugin's words.
        reason: String,
    },
    /// A mandatory entry is null.
    #[error(
        "mandatory entry `{entry}` is missing (the plugin filled {plugin_bytes} of {host_bytes} table bytes); \
         the plugin is incomplete or was built against another header"
    )]
    MissingEntry {
        /// Field of `ts_backend_table`.
        entry: &'static str,
        /// `struct_size` after the call.
        plugin_bytes: u32,
        /// `struct_size` of this host.
        host_bytes: u32,
    },
    /// A claimed tier lacks an entry.
    #[error("claims tier {tier} but entry `{entry}` is missing; fill it in or do not claim the tier")]
    IncompleteTier {
        /// e.g. `T1 (programs)`.
        tier: &'static str,
        /// Field of `ts_backend_table`.
        entry: &'static str,
    },
    /// What the backend says about itself cannot be used.
    #[error("backend_info: {0}")]
    BadInfo(String),
}

/// Name of a status for messages.
pub fn status_name(code: ts_status) -> &'static str {
    match code {
        TS_OK => "ok",
        TS_ERR_UNSUPPORTED => "unsupported",
        TS_ERR_INVALID => "invalid argument",
        TS_ERR_OUT_OF_MEMORY => "out of memory",
        TS_ERR_DEVICE_LOST => "device lost",
        TS_ERR_PEER_TIMEOUT => "peer timeout",
        TS_ERR_TIMEOUT => "timeout",
        TS_ERR_INCOMPATIBLE => "incompatible",
        TS_ERR_INTERNAL => "internal error of the backend",
        _ => "unknown status",
    }
}

/// Description of a backend, owned by the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// Name users type.
    pub name: String,
    /// The backend's version.
    pub version: String,
    /// One line.
    pub description: String,
    /// `TS_TIER_*`.
    pub tiers: u32,
    /// `TS_PROFILE_*`.
    pub profiles: u32,
    /// Higher wins when the user names no backend.
    pub score: u32,
    /// Negotiated ABI version.
    pub abi_version: u32,
}

impl BackendInfo {
    /// Claimed tiers beyond T0, as users read them.
    pub fn tier_names(&self) -> Vec<&'static str> {
        let all = [
            (TS_TIER_PROGRAMS, "T1 programs"),
            (TS_TIER_COLLECTIVES, "T2 collectives"),
            (TS_TIER_FUSED, "T3 fused ops"),
            (TS_TIER_TRANSFER, "T4 transfer"),
        ];
        all.into_iter().filter(|(bit, _)| self.tiers & bit != 0).map(|(_, name)| name).collect()
    }

    /// Claimed op profiles.
    pub fn profile_names(&self) -> Vec<&'static str> {
        let all = [
            (TS_PROFILE_LLAMA, "llama"),
            (TS_PROFILE_MOE, "moe"),
            (TS_PROFILE_KIMI, "kimi"),
            (TS_PROFILE_COLLECTIVE, "collective"),
            (TS_PROFILE_SAMPLING, "sampling"),
        ];
        all.into_iter().filter(|(bit, _)| self.profiles & bit != 0).map(|(_, name)| name).collect()
    }
}

macro_rules! required {
    ($table:expr, $missing:expr; $($entry:ident),* $(,)?) => {
        $(if $table.$entry.is_none() { return Err($missing(stringify!($entry))); })*
    };
}

/// Calls `entry` and checks its answer: version, mandatory entries, claimed tiers, description.
///
/// # Safety
/// `entry` follows the C ABI of this crate: it writes at most `struct_size` bytes, and its table and strings live as
/// long as the process.
pub unsafe fn negotiate(entry: ts_backend_entry_fn) -> Result<(ts_backend_table, BackendInfo), NegotiationError> {
    let host = host::host();
    let (host_min, host_max) = (version(host.abi_min), version(host.abi_max));
    let mut table: ts_backend_table = sized::zeroed();
    table.abi_version = host.abi_max;
    let mut error: ts_error = sized::zeroed();
    // SAFETY: the host record is 'static, the other two are ours for the call.
    let code = unsafe { entry(host, &raw mut table, &raw mut error) };
    if code != TS_OK {
        let reason = sized::text_from(&error.text);
        let reason = if reason.is_empty() { "no reason given".to_owned() } else { reason };
        return Err(match code {
            TS_ERR_INCOMPATIBLE => NegotiationError::Incompatible { host_min, host_max, reason },
            _ => NegotiationError::Failed { code, reason },
        });
    }
    if table.abi_version < host.abi_min || table.abi_version > host.abi_max {
        let newer = table.abi_version > host.abi_max;
        return Err(NegotiationError::Version { found: version(table.abi_version), host_min, host_max, newer });
    }
    // A plugin that wrote less than the host's table says so; whatever lies behind its end does not count. One that
    // says more than it was given is believed up to the host's own size.
    let plugin_bytes = table.struct_size;
    // SAFETY: the table is ours, and `read` never takes more than its own size.
    let table = unsafe { sized::read(&raw const table) }.unwrap_or_else(sized::zeroed);
    let host_bytes = size_of::<ts_backend_table>() as u32;
    let missing = |entry| NegotiationError::MissingEntry { entry, plugin_bytes, host_bytes };
    required!(table, missing;
        backend_info, device_count, device_info, device_open, device_close, device_status,
        arena_alloc, arena_free, arena_write, arena_read,
        queue_create, queue_destroy, queue_copy, queue_signal, queue_wait,
        event_create, event_destroy, event_query, event_wait,
        op_support, op_launch,
    );
    let info = read_info(&table)?;
    let tier = |tier| move |entry| NegotiationError::IncompleteTier { tier, entry };
    if info.tiers & TS_TIER_PROGRAMS != 0 {
        required!(table, tier("T1 (programs)"); program_prepare, program_run, program_describe, program_drop);
    }
    if info.tiers & TS_TIER_COLLECTIVES != 0 {
        required!(table, tier("T2 (collectives)"); group_create, group_destroy, group_heap_create);
    }
    if info.tiers & TS_TIER_TRANSFER != 0 {
        required!(table, tier("T4 (transfer)"); cache_export, cache_import);
    }
    Ok((table, info))
}

fn read_info(table: &ts_backend_table) -> Result<BackendInfo, NegotiationError> {
    let bad = |what: &str| NegotiationError::BadInfo(what.to_owned());
    let mut info: ts_backend_info = sized::zeroed();
    let ask = table.backend_info.expect("checked");
    // SAFETY: a non-null entry of a negotiated table; the record is ours.
    let code = unsafe { ask(&raw mut info) };
    if code != TS_OK {
        return Err(NegotiationError::BadInfo(format!("failed with {}", status_name(code))));
    }
    let text = |s: ts_str, what: &str| {
        if s.len > 4096 {
            return Err(bad(&format!("{what} of {} bytes", s.len)));
        }
        // SAFETY: strings of the table live as long as the process.
        unsafe { sized::str_from(s) }.map(sized::one_line).ok_or_else(|| bad(&format!("{what} is not UTF-8")))
    };
    let info = BackendInfo {
        name: text(info.name, "name")?,
        version: text(info.version, "version")?,
        description: text(info.description, "description")?,
        tiers: info.tiers,
        profiles: info.profiles,
        score: info.score,
        abi_version: table.abi_version,
    };
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if info.name.is_empty() || !info.name.chars().all(legal) {
        return Err(bad(&format!("name `{}` is not made of a-z, 0-9, - and _", info.name)));
    }
    Ok(info)
}
