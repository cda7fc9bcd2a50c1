//! Vendor names appear in backends, in prose, and in whole-system tests; nowhere else. The engine builds and runs
//! without any vendor's SDK, and this keeps anyone from needing one by accident.

use crate::{
    rust_text::parts,
    tree::{File, Violation},
};

const NAMES: &[&str] =
    &["amd", "rocm", "hip", "hipblas", "rccl", "cuda", "nvidia", "nvcc", "nccl", "cublas", "ptx", "cutlass", "triton"];
/// Names followed by digits, as in the architecture `gfx950`.
const NUMBERED: &[&str] = &["gfx", "mi3", "sm9"];
const ALLOWED: &[&str] =
    &["backends/", "docs/", "tests/", "README.md", "ARCHITECTURE.md", "Cargo.lock", "xtask/src/tidy/"];

/// Lines that name a vendor outside the allowed places.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        if ALLOWED.iter().any(|a| file.path.starts_with(a)) {
            continue;
        }
        let Some(text) = &file.text else { continue };
        for (number, line) in text.lines().enumerate() {
            // The workspace lists its members by path.
            let is_member = file.path == "Cargo.toml" && line.contains("backends/");
            if let Some(name) = parts(line).into_iter().find(|p| is_vendor(p)).filter(|_| !is_member) {
                let message = format!("`{name}` names a vendor; that belongs in backends/ or docs/");
                violations.push(Violation::new(&file.path, number + 1, message));
            }
        }
    }
    violations
}

fn is_vendor(part: &str) -> bool {
    let numbered =
        |name: &&str| part.strip_prefix(*name).is_some_and(|r| !r.is_empty() && r.bytes().all(|b| b.is_ascii_digit()));
    NAMES.contains(&part) || NUMBERED.iter().any(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catches_vendor_names_in_neutral_code() {
        for line in ["if backend == \"cuda\" {", "fn open_hip_device()", "// fast on gfx950", "struct NvidiaQueue;"] {
            let found = check(&[File::fake("core/src/a.rs", line)]);
            assert_eq!(found.len(), 1, "{line}");
        }
    }

    #[test]
    fn leaves_other_words_and_places_alone() {
        let files = [
            File::fake("core/src/a.rs", "ship chip membership amdahl gfx"),
            File::fake("backends/x/src/a.rs", "hip cuda"),
            File::fake("Cargo.toml", "    \"backends/amd-gfx950\","),
        ];
        assert_eq!(check(&files), []);
    }
}
