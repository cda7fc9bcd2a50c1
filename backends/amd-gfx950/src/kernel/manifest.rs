//! `manifest.json` beside the code objects, as `kernels/build.py` writes it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// An argument and where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Placed {
    /// Name in the kernel's source.
    pub name: String,
    /// Compiler's type: `*bf16` and so on for pointers, `i32`, `fp32`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Byte offset.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// One kernel variant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Entry {
    /// Unique name.
    pub name: String,
    /// `shipped` or `probe`.
    pub group: String,
    /// Code object, relative to the manifest.
    pub file: String,
    /// Kernel's name in it.
    pub symbol: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// SHA-256 of the variant, its sources and the compiler's version.
    pub source_sha256: String,
    /// Compiler.
    pub compiler: String,
    /// Arguments in order, the two scratch pointers last.
    pub arguments: Vec<Placed>,
    /// Compile-time constants.
    pub constants: serde_json::Map<String, serde_json::Value>,
    /// Work-groups per axis, as formulas.
    pub grid: Vec<String>,
    /// Lanes per work-group.
    pub block: u32,
    /// Arguments that must be multiples of 16.
    pub divisible_by_16: Vec<String>,
    /// LDS bytes that the launch passes.
    pub lds_bytes: u32,
    /// Vector registers, accumulation registers included.
    pub vgpr_count: u32,
    /// Accumulation registers.
    pub agpr_count: u32,
    /// Scalar registers.
    pub sgpr_count: u32,
    /// Bytes of the argument segment without hidden arguments' end.
    pub kernarg_segment_size: usize,
}

impl Entry {
    /// An integer constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name)?.as_i64()
    }
}

/// All kernels of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The folder.
    pub folder: PathBuf,
    /// Kernels.
    pub kernels: Vec<Entry>,
}

/// Why kernels cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file cannot be read.
    #[error("{path}: {error}; kernels are made by `cargo xtask kernels`", path = path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Reason.
        error: std::io::Error,
    },
    /// The manifest is no such JSON.
    #[error("{path}: not a kernel manifest: {error}", path = path.display())]
    Parse {
        /// File.
        path: PathBuf,
        /// Reason.
        error: serde_json::Error,
    },
    /// For another device.
    #[error("{path}: kernels for {found}, not for gfx950", path = path.display())]
    Architecture {
        /// File.
        path: PathBuf,
        /// What it is for.
        found: String,
    },
    /// No such kernel.
    #[error("{path}: no kernel `{name}`", path = path.display())]
    Unknown {
        /// Manifest.
        path: PathBuf,
        /// Name.
        name: String,
    },
    /// A code object is not the one that the manifest describes.
    #[error("{path}: not what manifest.json describes; make or install the kernels again (sha256 {found:.16}…, expected {expected:.16}…)", path = path.display())]
    Mismatch {
        /// File.
        path: PathBuf,
        /// Its hash.
        found: String,
        /// The manifest's.
        expected: String,
    },
}

#[derive(Deserialize)]
struct File {
    architecture: String,
    kernels: Vec<Entry>,
}

impl Manifest {
    /// Reads a folder's manifest.
    ///
    /// # Errors
    /// Missing, malformed, or for another device.
    pub fn read(folder: &Path) -> Result<Self, ManifestError> {
        let path = folder.join("manifest.json");
        let text = std::fs::read(&path).map_err(|error| ManifestError::Read { path: path.clone(), error })?;
        let file: File =
            serde_json::from_slice(&text).map_err(|error| ManifestError::Parse { path: path.clone(), error })?;
        if file.architecture != "gfx950" {
            return Err(ManifestError::Architecture { path, found: file.architecture });
        }
        Ok(Self { folder: folder.into(), kernels: file.kernels })
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str) -> Result<&Entry, ManifestError> {
        let found = self.kernels.iter().find(|k| k.name == name);
        found.ok_or_else(|| ManifestError::Unknown { path: self.folder.join("manifest.json"), name: name.into() })
    }

    /// The bytes of a kernel's code object, which must be those that the manifest describes.
    ///
    /// # Errors
    /// Missing or different.
    pub fn code(&self, entry: &Entry) -> Result<Vec<u8>, ManifestError> {
        let path = self.folder.join(&entry.file);
        let bytes = std::fs::read(&path).map_err(|error| ManifestError::Read { path: path.clone(), error })?;
        let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        if found != entry.sha256 {
            return Err(ManifestError::Mismatch { path, found, expected: entry.sha256.clone() });
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_one_line_that_names_the_file() {
        let folder = std::env::temp_dir().join(format!("gfx950-manifest-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let line = |text: &str| {
            std::fs::write(folder.join("manifest.json"), text).unwrap();
            Manifest::read(&folder).unwrap_err().to_string()
        };
        for (text, want) in [("{", "not a kernel manifest"), (r#"{"architecture": "gfx942", "kernels": []}"#, "gfx942")]
        {
            let line = line(text);
            assert!(line.contains(want) && line.contains("manifest.json") && !line.contains('\n'), "{line}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Manifest::read(&folder).unwrap_err().to_string().contains("cargo xtask kernels"));
    }
}
