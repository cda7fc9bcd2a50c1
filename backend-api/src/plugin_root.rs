//! What a Rust plugin exports beside the C entry: a root module whose layout `abi_stable` checks before any call.
//!
//! It holds a witness of the structs that cross the boundary in arrays or by value, which cannot grow within a major
//! version; `struct_size` covers all others. Nothing is ever called through it: without it, the interface would be the
//! same, and a C plugin has none. Everything that names `abi_stable` is in this file.
//!
//! `RootModule::load_from_file` is not used: it answers with the first plugin for every later library.

use crate::abi::*;
use abi_stable::{
    StableAbi,
    library::{CheckTypeLayout, LibHeader, LibraryError, RootModule, RootModuleResult, lib_header_from_path},
    package_version_strings,
    prefix_type::PrefixTypeTrait,
    sabi_types::VersionStrings,
    std_types::{RSlice, RStr},
};
use std::path::Path;

/// Size and alignment of one struct.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// C name.
    pub name: RStr<'static>,
    /// In bytes.
    pub size: u32,
    /// In bytes.
    pub align: u32,
}

/// The root module.
#[repr(C)]
#[derive(StableAbi, Debug)]
#[sabi(kind(Prefix(prefix_ref = PluginRootRef)))]
#[sabi(missing_field(panic))]
pub struct PluginRoot {
    /// Newest ABI version of the plugin.
    pub abi_version: u32,
    /// Structs of fixed size.
    #[sabi(last_prefix_field)]
    pub layouts: RSlice<'static, StructLayout>,
}

impl RootModule for PluginRootRef {
    abi_stable::declare_root_module_statics! {PluginRootRef}
    const BASE_NAME: &'static str = "tokenspeed_backend";
    const NAME: &'static str = "tokenspeed_backend";
    // Only the layout matters, and abi_stable compares it; crate versions of host and plugin may differ freely.
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

macro_rules! layouts {
    ($($name:ident),*) => {
        &[$(StructLayout {
            name: RStr::from_str(stringify!($name)),
            size: size_of::<$name>() as u32,
            align: align_of::<$name>() as u32,
        }),*]
    };
}

/// This crate's own layouts.
static LAYOUTS: &[StructLayout] = layouts!(
    ts_str,
    ts_option,
    ts_binding,
    ts_tensor,
    ts_segment,
    ts_step_row,
    ts_step_token,
    ts_table_delta,
    ts_sample
);

extern "C" fn root() -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(|| {
        PluginRoot { abi_version: TS_ABI_VERSION, layouts: RSlice::from_slice(LAYOUTS) }.leak_into_prefix()
    })
}

/// Symbol under which `abi_stable` looks for the header.
pub const HEADER_SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// The exported header; for [`export_backend!`](crate::export_backend).
#[doc(hidden)]
pub const fn header() -> LibHeader {
    // SAFETY: `root` returns the erased prefix of a `PluginRootRef`.
    unsafe { LibHeader::from_constructor::<PluginRootRef>(root, CheckTypeLayout::Yes) }
}

/// Type of the exported header.
#[doc(hidden)]
pub type Header = LibHeader;

/// Why a Rust plugin does not match this host: one line of cause, and the whole dump for the debug log.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub(crate) cause: String,
    pub(crate) dump: String,
}

/// Checks the layouts of the plugin at `path`. `None` if it exports no root module (a C plugin).
pub(crate) fn check(path: &Path) -> Option<Result<(), Mismatch>> {
    let header = match lib_header_from_path(path) {
        Ok(header) => header,
        Err(LibraryError::GetSymbolError { .. }) => return None,
        Err(e) => return Some(Err(mismatch(&e))),
    };
    let root = match header.init_root_module::<PluginRootRef>() {
        Ok(root) => root,
        Err(e) => return Some(Err(mismatch(&e))),
    };
    let theirs = root.layouts();
    for own in LAYOUTS {
        let Some(theirs) = theirs.iter().find(|l| l.name == own.name) else { continue };
        if (theirs.size, theirs.align) != (own.size, own.align) {
            let cause = format!(
                "struct {} has {} bytes (alignment {}), this program needs {} ({})",
                own.name, theirs.size, theirs.align, own.size, own.align
            );
            return Some(Err(Mismatch { dump: cause.clone(), cause }));
        }
    }
    Some(Ok(()))
}

fn mismatch(e: &LibraryError) -> Mismatch {
    let cause = match e {
        LibraryError::InvalidAbiHeader(found) => {
            format!("its abi_stable interface is {}.{}, not the one of this program", found.abi_major, found.abi_minor)
        }
        LibraryError::IncompatibleVersionNumber { expected_version, actual_version, .. } => {
            format!("its root module is version {actual_version}, this program needs {expected_version}")
        }
        LibraryError::RootModule { .. } => "its root module could not be made".to_owned(),
        _ => "its types are laid out differently".to_owned(),
    };
    Mismatch { cause, dump: e.to_string() }
}

/// `abi_stable`'s version strings of this crate, for the debug log.
pub(crate) fn crate_version() -> String {
    package_version_strings!().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_is_the_one_abi_stable_looks_for() {
        assert_eq!(HEADER_SYMBOL, abi_stable::library::ROOT_MODULE_LOADER_NAME);
    }
}
