//! `manifest.json` beside the code objects, as `kernels/build.py` writes it.
//!
//! It says of each kernel what a launch must keep: arguments with their places, checked here when it is read; which of them are multiples of
//! 16, checked by [`super::Kernel`]; and work-groups per axis, checked by `grid.rs` for every planned launch. Ranges of 32 bits are
//! those of arguments of type `i32`: whatever is larger is refused before a kernel is chosen (`ops::small`). Registers, LDS and spills
//! are the compiler's words; `kernels/toolchain.py` refuses what spills or is too large, and `tests/emulated/gates.rs` what
//! loses occupancy.

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
    /// Work-groups per axis, as formulas; `grid.rs` says what is in them.
    pub grid: [String; 3],
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
    /// Vector registers that the compiler spilt; none in a kernel that was built.
    pub vgpr_spill_count: u32,
    /// Scalar ones.
    pub sgpr_spill_count: u32,
    /// Bytes of scratch per lane; none either.
    pub private_segment_fixed_size: u32,
    /// LDS bytes beside [`Self::lds_bytes`].
    pub group_segment_fixed_size: u32,
    /// Waves that a SIMD holds.
    pub waves_per_simd: u32,
    /// Work-groups that a compute unit holds.
    pub groups_per_unit: u32,
    /// Bytes of the argument segment, hidden arguments of the runtime included.
    pub kernarg_segment_size: usize,
}

impl Entry {
    /// An integer constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name)?.as_i64()
    }

    /// Whether arguments lie where a launch puts them, which hands over one value each in order: naturally aligned, without gaps but for
    /// that, the last two null pointers, all inside the segment.
    fn laid_out(&self) -> Result<(), String> {
        let mut at = 0;
        for a in &self.arguments {
            let size = match a.kind.as_str() {
                "i32" | "fp32" => 4,
                kind if kind.starts_with('*') => 8,
                kind => return Err(format!("argument {} is a {kind}, which no launch makes", a.name)),
            };
            at = usize::next_multiple_of(at, size);
            if (a.offset, a.size) != (at, size) {
                let (is, bytes) = (a.offset, a.size);
                return Err(format!("argument {} is {bytes} bytes at {is}, a launch puts {size} at {at}", a.name));
            }
            at += size;
        }
        let last = self.arguments.last_chunk().map(|last: &[Placed; 2]| last.each_ref().map(|a| a.name.as_str()));
        if last != Some(SCRATCH) {
            return Err(format!("the last arguments are not {SCRATCH:?}"));
        }
        // Behind them are hidden ones of some kernels, which HIP fills.
        match self.kernarg_segment_size {
            size if size >= at => Ok(()),
            size => Err(format!("arguments end at {at}, their segment has {size} bytes")),
        }
    }
}

/// What a compiler's kernels have behind their own arguments: nothing that is used here.
pub(super) const SCRATCH: [&str; 2] = ["global_scratch", "profile_scratch"];
/// Of the manifest's form; another one is refused.
pub const VERSION: u32 = 1;

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
    #[error("{path}: not a kernel manifest: {error}; make or install the kernels again", path = path.display())]
    Parse {
        /// File.
        path: PathBuf,
        /// Reason.
        error: serde_json::Error,
    },
    /// Of another version than this plugin reads.
    #[error("{path}: a manifest of version {found}, this plugin reads {VERSION}; make or install the kernels of the same build", path = path.display())]
    Version {
        /// File.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A kernel's arguments are not where launches put them.
    #[error("{path}: kernel {kernel}: {what}; make or install the kernels again", path = path.display())]
    Layout {
        /// File.
        path: PathBuf,
        /// Kernel.
        kernel: String,
        /// What is wrong.
        what: String,
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

/// What is looked at first: entries of another version may be of another form.
#[derive(Deserialize)]
struct Head {
    version: u32,
    architecture: String,
}

#[derive(Deserialize)]
struct File {
    kernels: Vec<Entry>,
}

impl Manifest {
    /// Reads a folder's manifest.
    ///
    /// # Errors
    /// Missing, malformed, of another version, for another device, or with arguments in other places than launches put them.
    pub fn read(folder: &Path) -> Result<Self, ManifestError> {
        let path = folder.join("manifest.json");
        let text = std::fs::read(&path).map_err(|error| ManifestError::Read { path: path.clone(), error })?;
        let parse = |error| ManifestError::Parse { path: path.clone(), error };
        let head: Head = serde_json::from_slice(&text).map_err(parse)?;
        if head.version != VERSION {
            return Err(ManifestError::Version { path, found: head.version });
        }
        if head.architecture != "gfx950" {
            return Err(ManifestError::Architecture { path, found: head.architecture });
        }
        let file: File = serde_json::from_slice(&text).map_err(parse)?;
        if let Some((kernel, what)) = file.kernels.iter().find_map(|k| Some((k.name.clone(), k.laid_out().err()?))) {
            return Err(ManifestError::Layout { path, kernel, what });
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
        for (text, want) in [
            ("{", "not a kernel manifest"),
            (r#"{"architecture": "gfx950", "kernels": []}"#, "missing field `version`"),
            (r#"{"version": 2, "architecture": "gfx950"}"#, "of version 2, this plugin reads 1"),
            (r#"{"version": 1, "architecture": "gfx942", "kernels": []}"#, "gfx942"),
            (r#"{"version": 1, "architecture": "gfx950"}"#, "missing field `kernels`"),
        ] {
            let line = line(text);
            assert!(line.contains(want) && line.contains("manifest.json") && !line.contains('\n'), "{line}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Manifest::read(&folder).unwrap_err().to_string().contains("cargo xtask kernels"));
    }

    /// An entry with a pointer, two integers, and what is behind them.
    fn entry() -> Entry {
        let placed = |name: &str, kind: &str, offset, size| serde_json::json!({"name": name, "type": kind, "offset": offset, "size": size});
        let arguments = [
            placed("n", "i32", 0, 4),
            placed("x", "*fp32", 8, 8),
            placed("eps", "fp32", 16, 4),
            placed("global_scratch", "*", 24, 8),
            placed("profile_scratch", "*", 32, 8),
        ];
        let mut value = serde_json::json!({
            "name": "k", "group": "shipped", "file": "k.hsaco", "symbol": "k", "sha256": "", "source_sha256": "", "compiler": "",
            "arguments": arguments, "constants": {}, "grid": ["1", "1", "1"], "divisible_by_16": [],
        });
        for name in "block lds_bytes vgpr_count agpr_count sgpr_count vgpr_spill_count sgpr_spill_count \
                     private_segment_fixed_size group_segment_fixed_size waves_per_simd groups_per_unit"
            .split_whitespace()
        {
            value[name] = 0.into();
        }
        value["kernarg_segment_size"] = 40.into();
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn arguments_lie_where_launches_put_them() {
        assert_eq!(entry().laid_out(), Ok(()));
        let wrong = |change: fn(&mut Entry), word: &str| {
            let mut changed = entry();
            change(&mut changed);
            let what = changed.laid_out().unwrap_err();
            assert!(what.contains(word), "no {word:?} in {what}");
        };
        wrong(|e| e.arguments[1].offset = 4, "argument x is 8 bytes at 4, a launch puts 8 at 8");
        wrong(|e| e.arguments[2].size = 8, "argument eps is 8 bytes at 16, a launch puts 4 at 16");
        wrong(|e| e.arguments[0].kind = "i64".into(), "argument n is a i64");
        wrong(|e| e.arguments.truncate(3), "the last arguments");
        wrong(|e| e.kernarg_segment_size = 32, "arguments end at 40, their segment has 32 bytes");
    }
}
