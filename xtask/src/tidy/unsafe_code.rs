//! `unsafe` lives where the machine is touched, and each use says why it is sound.
//!
//! Allowed: `backend-api` glue, backends, memory-mapped readers of `models`, and whole-system tests (a counting
//! allocator, plugins made to fail). A use needs a comment with `SAFETY` (or a `# Safety` section, for functions) on
//! its line or in the twelve lines above; a file whose uses all rest on one reason (a tier of vector intrinsics) states it
//! once, as `SAFETY:` in its header.

use crate::{
    rust_text::mask,
    tree::{File, Violation},
};

const ALLOWED: &[&str] = &["backend-api/", "backends/", "tests/", "core/tests/"];
/// Files of `models` that map checkpoints into memory carry one of these in their path.
const MAPPED_READERS: &[&str] = &["mmap", "map.rs", "mapped"];
const REACH_LINES: usize = 12;

/// Uses in the wrong place or without a reason.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let Some(text) = file.rust() else { continue };
        let masked = mask(text);
        let comments: Vec<&str> = masked.comments.lines().collect();
        let allowed = ALLOWED.iter().any(|a| file.path.starts_with(a))
            || file.path.starts_with("models/src/") && MAPPED_READERS.iter().any(|m| file.path.contains(m));
        for (number, line) in masked.code.lines().enumerate() {
            if !has_unsafe(line) {
                continue;
            }
            if !allowed {
                let message = "`unsafe` belongs in backend-api, backends or a memory-mapped reader";
                violations.push(Violation::new(&file.path, number + 1, message));
            }
            if text.lines().take_while(|l| l.starts_with("//!")).any(|l| l.contains("SAFETY:")) {
                continue;
            }
            let above = &comments[number.saturating_sub(REACH_LINES)..=number.min(comments.len().saturating_sub(1))];
            if needs_reason(line) && !above.iter().any(|c| c.contains("SAFETY") || c.contains("# Safety")) {
                violations.push(Violation::new(&file.path, number + 1, "`unsafe` without a `// SAFETY:` reason"));
            }
        }
    }
    violations
}

fn words(line: &str) -> Vec<&str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).collect()
}

/// Uses of the keyword, but not the attribute form `#[unsafe(no_mangle)]`.
fn has_unsafe(line: &str) -> bool {
    words(line).contains(&"unsafe") && !line.contains("#[unsafe(") && !line.contains("#![")
}

/// Blocks, implementations and functions with a body need a reason; function pointer types do not.
fn needs_reason(line: &str) -> bool {
    let words = words(line);
    let at = words.iter().position(|w| *w == "unsafe").unwrap_or(words.len());
    let rest = &words[(at + 1).min(words.len())..];
    let is_pointer_type = rest.first() == Some(&"extern") && rest.get(1) == Some(&"fn") || line.contains("unsafe fn(");
    let is_function = rest.first() == Some(&"fn") || rest.first() == Some(&"extern");
    // The body of an unsafe function needs blocks of its own (an edition rule), and they carry the reasons.
    !(is_pointer_type || is_function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[File::fake(path, text)]).len()
    }

    #[test]
    fn catches_a_wrong_place() {
        assert_eq!(found("core/src/a.rs", "// SAFETY: none\nunsafe { f() }"), 1);
        assert_eq!(found("models/src/chat.rs", "// SAFETY: none\nunsafe impl Send for A {}"), 1);
        assert_eq!(found("models/src/weights/mmap.rs", "// SAFETY: the file is private\nunsafe { f() }"), 0);
    }

    #[test]
    fn catches_a_missing_reason() {
        assert_eq!(found("backends/x/src/a.rs", "let x = unsafe { f() };"), 1);
        assert_eq!(found("backends/x/src/a.rs", "unsafe impl Send for A {}"), 1);
        assert_eq!(found("backends/x/src/a.rs", "// SAFETY: checked above\nlet x =\n    unsafe { f() };"), 0);
        assert_eq!(found("backends/x/src/a.rs", "//! Tier.\n//! SAFETY: one reason.\nlet x = unsafe { f() };"), 0);
        let far = format!("// SAFETY: far away\n{}unsafe {{ f() }}", "\n".repeat(REACH_LINES + 1));
        assert_eq!(found("backends/x/src/a.rs", &far), 1);
    }

    #[test]
    fn leaves_attributes_types_and_text_alone() {
        for text in [
            "#![forbid(unsafe_code)]",
            "#[unsafe(no_mangle)]",
            "log: Option<unsafe extern \"C\" fn(level: u32)>,",
            "// unsafe would be wrong here",
            "let s = \"unsafe { }\";",
        ] {
            assert_eq!(found("backends/x/src/a.rs", text), 0, "{text}");
        }
    }
}
