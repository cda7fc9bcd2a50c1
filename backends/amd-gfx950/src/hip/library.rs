//! Finding and loading the HIP library.
//!
//! The runtime's version is checked, the driver's is not: `hipDriverGetVersion` answers for HIP itself, not for amdgpu, and its own
//! documentation calls the number approximate. A driver that does not get on with the runtime shows no device, or fails a call that is
//! then named.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    error::{HipError, Place},
    table::Hip,
};

/// Names a library explicitly; nothing else is tried then.
pub const VARIABLE: &str = "TOKENSPEED_HIP_LIBRARY";
/// HIP 6.4, as the runtime encodes versions: major·10⁷ + minor·10⁵ + patch.
const OLDEST: i32 = 60_400_000;

/// What is tried, in order: the variable alone, or the names of ROCm 7 and 6 in the loader's path and in `/opt/rocm`.
pub fn candidates() -> Vec<PathBuf> {
    named(std::env::var_os(VARIABLE))
}

/// The same for a value of the variable; an empty one counts as none.
fn named(value: Option<OsString>) -> Vec<PathBuf> {
    if let Some(path) = value.filter(|p| !p.is_empty()) {
        return vec![path.into()];
    }
    let names = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];
    let everywhere = names.iter().map(PathBuf::from);
    everywhere.chain(names.iter().map(|n| Path::new("/opt/rocm/lib").join(n))).collect()
}

/// Loads HIP from the first candidate that loads.
///
/// # Errors
/// No candidate loads; one loads but lacks a function, or is too old.
pub fn load() -> Result<&'static Hip, HipError> {
    load_from(&candidates())
}

/// Loads HIP from the first of these that loads.
///
/// # Errors
/// As [`load`].
pub fn load_from(candidates: &[PathBuf]) -> Result<&'static Hip, HipError> {
    let mut tried = Vec::new();
    for path in candidates {
        // SAFETY: loading runs the library's initialisers; a HIP library's are harmless, and the user chose the path.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => return open(library, path),
            Err(error) => tried.push(format!("{}{}", path.display(), reason(&error))),
        }
    }
    Err(HipError::NoLibrary { tried: tried.join(", ") })
}

/// The loader's words without the path, which they begin with; nothing for a file that is simply not there.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let text = text.rsplit(": ").next().unwrap_or(&text).trim();
    if text == "No such file or directory" { String::new() } else { format!(" ({text})") }
}

fn open(library: libloading::Library, path: &Path) -> Result<&'static Hip, HipError> {
    // Leaked on purpose: function pointers must outlive every device and module.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    let hip: &'static Hip = Box::leak(Box::new(Hip::resolve(library, path.to_path_buf())?));
    let mut found = 0;
    // SAFETY: writes one integer.
    let status = unsafe { (hip.hipRuntimeGetVersion)(&mut found) };
    hip.check("hipRuntimeGetVersion", Place::Library, status)?;
    if found < OLDEST {
        return Err(HipError::OldRuntime { path: path.into(), found, wanted: OLDEST });
    }
    Ok(hip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_what_was_tried() {
        let line = load_from(&["/nowhere/libamdhip64.so.7".into(), "/nowhere/else.so".into()]).unwrap_err().to_string();
        assert!(line.contains("/nowhere/libamdhip64.so.7") && line.contains("/nowhere/else.so"), "{line}");
        assert!(line.contains(VARIABLE) && !line.contains('\n'), "{line}");
    }

    /// Newer runtimes before older ones, the loader's own path before ROCm's folder; the variable alone where it is set.
    #[test]
    fn candidates_come_in_the_documented_order() {
        let paths = |value: Option<&str>| {
            let all = named(value.map(OsString::from));
            all.iter().map(|p| p.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let everywhere = [
            "libamdhip64.so.7",
            "libamdhip64.so.6",
            "libamdhip64.so",
            "/opt/rocm/lib/libamdhip64.so.7",
            "/opt/rocm/lib/libamdhip64.so.6",
            "/opt/rocm/lib/libamdhip64.so",
        ];
        assert_eq!(paths(None), everywhere);
        assert_eq!(paths(Some("")), everywhere);
        assert_eq!(paths(Some("/some/where.so")), ["/some/where.so"]);
    }

    /// A candidate that does not load is passed over, and the reason kept; the first that does is taken, though it lacks something.
    #[test]
    fn the_first_library_that_loads_is_taken() {
        let text = std::env::temp_dir().join(format!("no-library-{}.so", std::process::id()));
        std::fs::write(&text, "text").unwrap();
        let line = load_from(&[text.clone(), "libc.so.6".into(), "/nowhere.so".into()]).unwrap_err().to_string();
        assert!(line.starts_with("libc.so.6: no symbol"), "{line}");
        let line = load_from(&[text.clone(), "/nowhere.so".into()]).unwrap_err().to_string();
        std::fs::remove_file(&text).unwrap();
        let tried = format!("{} (file too short), /nowhere.so", text.display());
        assert!(line.ends_with(&format!("tried: {tried}")), "{line}");
    }

    #[test]
    fn another_library_lacks_symbols() {
        // Every Linux process can load the C library.
        let line = load_from(&["libc.so.6".into()]).unwrap_err().to_string();
        assert!(line.contains("hipRuntimeGetVersion") && line.contains("libc.so.6"), "{line}");
    }
}
