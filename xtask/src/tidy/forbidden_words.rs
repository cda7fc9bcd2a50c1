//! Unfinished code, debugging leftovers, skipped tests, unowned notes and paths of somebody's machine.

use crate::{
    rust_text::mask,
    tree::{File, Violation},
};

/// Refused in Rust code (comments and strings may mention them).
const IN_CODE: &[(&str, &str)] = &[
    ("todo!(", "write it or leave it out"),
    ("unimplemented!(", "return a typed error"),
    ("dbg!(", "debugging leftover"),
    ("#[ignore", "a test that is not run is not a test; long ones ask for `--long`"),
];
/// Refused everywhere.
const PATHS: &[&str] = &["/work/", "/root/", "/home/", "/Users/", "../shared"];
const NOTES: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];
/// The lists above, and prose about these rules.
const EXEMPT: &[&str] = &["xtask/src/tidy/forbidden_words.rs", "docs/roadmap.md", "Cargo.lock"];

/// Lines with a forbidden word.
pub fn check(files: &[File]) -> Vec<Violation> {
    let roadmap = files.iter().find(|f| f.path == "docs/roadmap.md").and_then(|f| f.text.as_deref()).unwrap_or("");
    let mut violations = Vec::new();
    for file in files {
        let Some(text) = file.text.as_deref().filter(|_| !EXEMPT.contains(&file.path.as_str())) else { continue };
        let code = file.rust().map(|t| mask(t).code).unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            for (word, advice) in IN_CODE.iter().filter(|(w, _)| line.contains(w)) {
                violations.push(Violation::new(&file.path, number + 1, format!("`{word}`: {advice}")));
            }
        }
        for (number, line) in text.lines().enumerate() {
            for path in PATHS.iter().filter(|p| line.contains(**p)) {
                let message = format!("`{path}` is a path of one machine; derive it or take it as an argument");
                violations.push(Violation::new(&file.path, number + 1, message));
            }
            for note in NOTES.iter().filter(|n| is_unowned_note(line, n, roadmap)) {
                let message =
                    format!("`{note}` needs the form {note}(topic) and an owner for `topic` in docs/roadmap.md");
                violations.push(Violation::new(&file.path, number + 1, message));
            }
        }
    }
    violations
}

/// A note is owned if it reads `TODO(topic)` and the roadmap has a line with "`topic`" and "owner".
fn is_unowned_note(line: &str, note: &str, roadmap: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(note).any(|(at, _)| {
        let rest = &line[at + note.len()..];
        if line[..at].ends_with(is_word) || rest.starts_with(is_word) {
            return false;
        }
        let topic = rest.strip_prefix('(').and_then(|r| r.split_once(')')).map(|(topic, _)| format!("`{topic}`"));
        !topic.is_some_and(|t| roadmap.lines().any(|l| l.contains(&t) && l.contains("owner")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str, roadmap: &str) -> usize {
        check(&[File::fake(path, text), File::fake("docs/roadmap.md", roadmap)]).len()
    }

    #[test]
    fn catches_unfinished_code() {
        for text in ["todo!()", "unimplemented!(\"x\")", "dbg!(x)", "#[ignore]\nfn t() {}", "#[ignore = \"slow\"]"] {
            assert_eq!(found("core/src/a.rs", text, ""), 1, "{text}");
        }
        assert_eq!(found("core/src/a.rs", "// never write dbg!(x)\nlet s = \"todo!()\";", ""), 0);
    }

    #[test]
    fn catches_machine_paths_everywhere() {
        assert_eq!(found("tests/x.py", "open('/home/me/file')", ""), 1);
        assert_eq!(found("README.md", "see ../shared/spec", ""), 1);
    }

    #[test]
    fn a_note_needs_an_owner() {
        assert_eq!(found("core/src/a.rs", "// TODO: later", ""), 1);
        assert_eq!(found("core/src/a.rs", "// TODO(ring): later", "* `ring` grows, owner: cache"), 0);
        assert_eq!(found("core/src/a.rs", "// FIXME(ring): later", "* `other`, owner: cache"), 1);
        assert_eq!(found("core/src/a.rs", "const TODOS: u32 = 1;", ""), 0);
    }
}
