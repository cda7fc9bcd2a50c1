//! The macros that make a backend findable.

/// Exports a backend from a cdylib: the C entry and the layout-checked root module. Once per library.
///
/// ```text
/// tokenspeed_backend_api::export_backend!(tokenspeed_null::Null);
/// ```
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        /// Entry of the C table.
        ///
        /// # Safety
        /// Called by a host that follows the ABI.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn ts_backend_entry(
            host: *const $crate::abi::ts_host,
            table: *mut $crate::abi::ts_backend_table,
            error: *mut $crate::abi::ts_error,
        ) -> $crate::abi::ts_status {
            // SAFETY: promised by the caller.
            unsafe { $crate::sdk::entry::<$backend>(host, table, error) }
        }

        #[doc(hidden)]
        #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
        pub static TOKENSPEED_PLUGIN_ROOT: $crate::plugin_root::Header = $crate::plugin_root::header();
    };
}

/// Registers a backend in whatever binary its crate is linked into. Exports no symbol.
///
/// ```text
/// tokenspeed_backend_api::embed_backend!(Null);
/// ```
#[macro_export]
macro_rules! embed_backend {
    ($backend:ty) => {
        $crate::inventory::submit! {
            $crate::embedded::EmbeddedBackend {
                info: <$backend as $crate::sdk::BackendImpl>::info,
                entry: $crate::sdk::entry::<$backend>,
            }
        }
    };
}
