//! What a backend's kernels need of a compute unit, and what they did: `conform --perf`.
//!
//! A backend whose kernels are compiled ahead of time keeps a manifest of them, which is read from where the backend itself
//! looks: `$TOKENSPEED_KERNELS/<name>/manifest.json`, `<name>/` beside the plugin, `../kernels/<name>/` from there. Rejected: a
//! call of the backend ABI for it. The numbers are facts of files, the same without any device, and a table entry would
//! bind every backend to the words of one kind of hardware.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::launch_counts::Counts;

/// Names the folder of kernels, as backends read it.
const VARIABLE: &str = "TOKENSPEED_KERNELS";

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum KernelTableError {
    /// No manifest.
    #[error("{backend} ({origin}) has no manifest of kernels: looked for {looked}")]
    Missing {
        /// Backend.
        backend: String,
        /// Where it came from.
        origin: String,
        /// Files.
        looked: String,
    },
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        what: String,
    },
}

/// A kernel of the manifest.
#[derive(Clone, Debug, Deserialize)]
struct Kernel {
    name: String,
    group: String,
    file: String,
    block: u32,
    lds_bytes: u32,
    vgpr_count: u32,
    agpr_count: u32,
    sgpr_count: u32,
    waves_per_simd: u32,
    groups_per_unit: u32,
}

#[derive(Deserialize)]
struct Manifest {
    architecture: String,
    kernels: Vec<Kernel>,
}

/// Kernels and their counts, if any were counted.
#[derive(Debug)]
pub struct KernelTable {
    architecture: String,
    kernels: Vec<(Kernel, Option<Counts>)>,
    counted: bool,
}

fn candidates(backend: &str, origin: &str, folder: Option<PathBuf>) -> Vec<PathBuf> {
    let inside = |folder: PathBuf| folder.join(backend).join("manifest.json");
    if let Some(folder) = folder {
        return vec![inside(folder)];
    }
    let beside = Path::new(origin).parent().filter(|p| !p.as_os_str().is_empty()).map(Path::to_path_buf);
    beside.into_iter().flat_map(|b| [inside(b.clone()), inside(b.join("../kernels"))]).collect()
}

impl KernelTable {
    /// The kernels of a backend that was loaded from `origin`, with what a log of launches says of them.
    ///
    /// # Errors
    /// There is no manifest, or a file is not readable.
    pub fn read(backend: &str, origin: &str, log: Option<&Path>) -> Result<Self, KernelTableError> {
        let folder = std::env::var_os(VARIABLE).filter(|f| !f.is_empty()).map(PathBuf::from);
        Self::from_candidates(backend, origin, &candidates(backend, origin, folder), log)
    }

    fn from_candidates(
        backend: &str,
        origin: &str,
        candidates: &[PathBuf],
        log: Option<&Path>,
    ) -> Result<Self, KernelTableError> {
        let Some(path) = candidates.iter().find(|p| p.is_file()) else {
            let list: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
            let looked = if list.is_empty() { "nothing, it is part of this program".into() } else { list.join(", ") };
            return Err(KernelTableError::Missing { backend: backend.into(), origin: origin.into(), looked });
        };
        let fail = |path: &Path, what: String| KernelTableError::File { path: path.into(), what };
        let text = std::fs::read(path).map_err(|e| fail(path, e.to_string()))?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|e| fail(path, format!("{e}; make the kernels again (`cargo xtask kernels`)")))?;
        let counts = match log {
            Some(log) => Counts::read(log).map_err(|what| fail(log, what))?,
            None => Default::default(),
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let with_counts = |k: Kernel| -> Result<_, KernelTableError> {
            let mut own = None;
            if !counts.is_empty() {
                let file = folder.join(&k.file);
                let code = std::fs::read(&file).map_err(|e| fail(&file, e.to_string()))?;
                own = counts.get(&hash(&code)).copied();
            }
            Ok((k, own))
        };
        let shipped = manifest.kernels.into_iter().filter(|k| k.group == "shipped");
        let kernels = shipped.map(with_counts).collect::<Result<_, _>>()?;
        Ok(Self { architecture: manifest.architecture, kernels, counted: log.is_some() })
    }
}

/// FNV-1a, by which a log names code objects.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl fmt::Display for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.kernels.iter().map(|(k, _)| k.name.len()).max().unwrap_or(0).max(6);
        write!(
            f,
            "{:<width$} {:>5} {:>5} {:>5} {:>7} {:>6} {:>6} {:>7}",
            self.architecture, "vgpr", "agpr", "sgpr", "LDS", "lanes", "waves", "groups"
        )?;
        if self.counted {
            write!(
                f,
                " {:>8} {:>10} {:>7} {:>7} {:>7} {:>9}  bound",
                "launches", "HBM", "/floor", "fetched", "matrix", "conflicts"
            )?;
        }
        writeln!(f)?;
        for (k, counts) in &self.kernels {
            write!(
                f,
                "{:<width$} {:>5} {:>5} {:>5} {:>7} {:>6} {:>6} {:>7}",
                k.name,
                k.vgpr_count,
                k.agpr_count,
                k.sgpr_count,
                k.lds_bytes,
                k.block,
                k.waves_per_simd,
                k.groups_per_unit
            )?;
            match counts {
                Some(counts) => writeln!(f, " {counts}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "waves per SIMD, work-groups per compute unit: what registers and LDS allow at a time")?;
        if self.counted {
            writeln!(
                f,
                "HBM: 128-byte lines that a launch touches, over the bytes it touches (floor); fetched: lines per work-group, \
                 over the same; matrix: most that matrix units can be busy; conflicts: share of LDS cycles. Counted and \
                 modelled by the emulator, not measured"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"{"name":"mix_128","group":"shipped","file":"mix_128.hsaco","block":256,"lds_bytes":1024,"vgpr_count":96,
        "agpr_count":0,"sgpr_count":40,"waves_per_simd":5,"groups_per_unit":5,"arguments":[]}"#;
    const LAUNCH: &str = r#"{"kernel":"mix","object":"85944171f73967e8","groups":10,"groups_run":10,"group_bytes":3840,"lds_cycles":100,
        "lds_conflict_cycles":25,"line_bytes":[1280,1280],"touched_bytes":[640,1280],"modelled":{"total":3.5,"bound":"LDS","matrix_share":0.5}}"#;

    fn table(manifest: &str, log: Option<&str>) -> Result<String, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("kernel-table-{}-{number}", std::process::id()));
        std::fs::create_dir_all(folder.join("gpu")).unwrap();
        std::fs::write(folder.join("gpu/manifest.json"), manifest).unwrap();
        std::fs::write(folder.join("gpu/mix_128.hsaco"), "foobar").unwrap();
        std::fs::write(folder.join("log"), log.unwrap_or_default().replace('\n', "")).unwrap();
        let plugin = folder.join("libgpu.so");
        let found = candidates("gpu", &plugin.display().to_string(), None);
        let path = log.map(|_| folder.join("log"));
        let table = KernelTable::from_candidates("gpu", "here", &found, path.as_deref());
        std::fs::remove_dir_all(&folder).unwrap();
        table.map(|t| t.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_backend_without_kernels_says_where_was_looked() {
        let found = candidates("gpu", "/nowhere/libgpu.so", None);
        let line = KernelTable::from_candidates("gpu", "/nowhere/libgpu.so", &found, None).unwrap_err().to_string();
        assert!(line.contains("/nowhere/gpu/manifest.json") && line.contains("../kernels/gpu/manifest.json"), "{line}");
        let line = KernelTable::from_candidates("cpu", "embedded", &candidates("cpu", "embedded", None), None);
        assert!(line.unwrap_err().to_string().contains("part of this program"));
        let own = candidates("gpu", "/nowhere/libgpu.so", Some("/kernels".into()));
        assert_eq!(own, [Path::new("/kernels/gpu/manifest.json")]);
    }

    #[test]
    fn kernels_and_counts_stand_in_one_line() {
        let manifest = format!(r#"{{"architecture":"chip9","kernels":[{KERNEL}]}}"#);
        let plain = table(&manifest, None).unwrap();
        let words: Vec<&str> = plain.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["mix_128", "96", "0", "40", "1024", "256", "5", "5"]);
        // FNV-1a of "foobar", as its authors publish it, is the launch's object.
        let counted = table(&manifest, Some(LAUNCH)).unwrap();
        let words: Vec<&str> = counted.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[8..], ["1", "2560", "1.33", "2.00", "50%", "25%", "LDS"]);
        assert!(table("{", None).unwrap_err().contains("cargo xtask kernels"));
        assert!(table(&manifest, Some("nonsense")).unwrap_err().contains("log: line 1"));
    }
}
