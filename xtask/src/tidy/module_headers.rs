//! Each Rust file starts with a `//!` header that says what it is for; `core` and `backend-api` deny missing docs.

use crate::tree::{File, Violation};

const DOCUMENTED_CRATES: &[&str] = &["backend-api/src/lib.rs", "core/src/lib.rs", "models/src/lib.rs"];

/// Files without a header, and crate roots without the lint.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let Some(text) = file.rust() else { continue };
        let first = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with("#!["));
        if !first.is_some_and(|l| l.starts_with("//!")) {
            violations.push(Violation::new(&file.path, 1, "starts without a `//!` header: say what the file is for"));
        }
        if DOCUMENTED_CRATES.contains(&file.path.as_str()) && !text.contains("#![deny(missing_docs)]") {
            violations.push(Violation::new(&file.path, 1, "needs `#![deny(missing_docs)]`"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catches_a_bare_file() {
        assert_eq!(check(&[File::fake("core/src/a.rs", "fn f() {}\n//! late")]).len(), 1);
        assert_eq!(check(&[File::fake("core/src/a.rs", "#![allow(x)]\n\n//! Purpose.\nfn f() {}")]), []);
        assert_eq!(check(&[File::fake("core/src/lib.rs", "//! Purpose.")]).len(), 1);
    }
}
