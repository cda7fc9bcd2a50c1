//! Finding and opening a backend for a command.

use tokenspeed_backend_api::{
    backend::{Backend, Device},
    loader::{self, SearchPaths},
};

// Linked backends register themselves; naming the crate keeps the linker from dropping it.
use tokenspeed_null as _;
use tokenspeed_reference_cpu as _;

use crate::error::CliError;

/// Load `spec`, a name or a path.
pub(super) fn find(spec: &str) -> Result<Backend, CliError> {
    loader::load(spec, &SearchPaths::from_env()).map_err(|e| {
        CliError::new(e.to_string(), format!("--backend {spec}"), "`tokenspeed backends` lists what is there")
    })
}

/// Open its first device.
pub(super) fn open(backend: &Backend, options: &[(String, String)]) -> Result<Device, CliError> {
    let fail = |what: String| CliError::new(what, format!("backend {}", backend.name()), "");
    match backend.device_count() {
        Ok(0) => return Err(fail("the backend sees no device".into())),
        Ok(_) => {}
        Err(e) => return Err(fail(e.to_string())),
    }
    let options: Vec<(&str, &str)> = options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    backend.open(0, &options).map_err(|e| fail(e.to_string()))
}

/// `K=V` as clap leaves it for commands without engine options.
pub(super) fn parse_options(options: &[String]) -> Result<Vec<(String, String)>, CliError> {
    let one = |text: &String| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(CliError::usage(format!("`{text}` is not KEY=VALUE"), "--backend-option", "")),
    };
    options.iter().map(one).collect()
}
