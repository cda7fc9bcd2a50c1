//! No committed file over 1 MiB: models, vocabularies and binaries are fetched or built, never committed.

use crate::tree::{File, Violation};

const BYTES_MAX: u64 = 1 << 20;
/// Compiled or packed files, refused at any size.
const BINARY_ENDINGS: &[&str] =
    &[".so", ".o", ".a", ".dylib", ".dll", ".gguf", ".safetensors", ".hsaco", ".whl", ".pyc"];
/// Frozen plugins of released versions, the one exception.
const FROZEN: &str = "tests/frozen/";

/// Files that are too large or built.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        if file.bytes > BYTES_MAX {
            let message = format!("{} bytes; at most {BYTES_MAX} (1 MiB)", file.bytes);
            violations.push(Violation::new(&file.path, 0, message));
        }
        if BINARY_ENDINGS.iter().any(|e| file.path.ends_with(e)) && !file.path.starts_with(FROZEN) {
            violations.push(Violation::new(&file.path, 0, "built or fetched files are not committed"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catches_large_and_built_files() {
        let large = File { path: "tests/big.json".into(), text: None, bytes: BYTES_MAX + 1 };
        assert_eq!(check(&[large]).len(), 1);
        assert_eq!(check(&[File::fake("tests/tiny.gguf", "GGUF")]).len(), 1);
        assert_eq!(check(&[File::fake("tests/tiny.json", "{}")]), []);
    }
}
