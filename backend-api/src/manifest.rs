//! `NAME.tokenspeed-backend.json`: says where a plugin's library is, without loading it.
//!
//! ```json
//! {"name": "acme", "library": "libtokenspeed_acme.so", "abi": "1.0"}
//! ```
//!
//! `library` is relative to the manifest. `abi` lets a plugin of another major version be refused before any of its
//! code runs.

use crate::{host, sdk::version};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Ending of manifest file names.
pub const SUFFIX: &str = ".tokenspeed-backend.json";

/// A checked manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Name users type.
    pub name: String,
    /// Absolute or relative to the current folder, ready to open.
    pub library: PathBuf,
    /// Where this was written.
    pub file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    library: PathBuf,
    abi: String,
}

impl Manifest {
    /// Reads one manifest; the error is a sentence without the file's name.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot be read: {e}"))?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, String> {
        let raw: Raw = serde_json::from_str(text)
            .map_err(|e| format!("is not {{\"name\", \"library\", \"abi\": \"MAJOR.MINOR\"}}: {e}"))?;
        let abi = parse_version(&raw.abi)
            .ok_or_else(|| format!("abi is `{}`, expected MAJOR.MINOR, e.g. \"1.0\"", raw.abi))?;
        // A newer minor is fine: negotiation settles on the older of the two.
        if abi >> 16 != host::ABI_MIN >> 16 {
            let newest = version(crate::abi::TS_ABI_VERSION);
            return Err(format!(
                "found a plugin for ABI {}, wanted {} to {newest}: install a build for this version",
                raw.abi,
                version(host::ABI_MIN)
            ));
        }
        let folder = file.parent().unwrap_or(Path::new("."));
        Ok(Self { name: raw.name, library: folder.join(raw.library), file: file.to_owned() })
    }
}

fn parse_version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    Some(u32::from(major.parse::<u16>().ok()?) << 16 | u32::from(minor.parse::<u16>().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Manifest, String> {
        Manifest::parse(Path::new("/opt/acme/acme.tokenspeed-backend.json"), text)
    }

    #[test]
    fn good() {
        let m = parse(r#"{"name": "acme", "library": "lib/a.so", "abi": "1.7"}"#).unwrap();
        assert_eq!((m.name.as_str(), m.library.as_path()), ("acme", Path::new("/opt/acme/lib/a.so")));
    }

    #[test]
    fn bad() {
        for (text, want) in [
            ("{", "is not"),
            (r#"{"name": "acme", "library": "a.so"}"#, "missing field `abi`"),
            (r#"{"name": "a", "library": "a.so", "abi": "1.0", "extra": 1}"#, "unknown field `extra`"),
            (r#"{"name": "a", "library": "a.so", "abi": "1"}"#, "expected MAJOR.MINOR"),
            (r#"{"name": "a", "library": "a.so", "abi": "2.0"}"#, "found a plugin for ABI 2.0, wanted 1.0"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(want), "{message}");
        }
    }
}
