//! `docs/ops.md`, printed by the op catalogue itself.
//!
//! An example of `backend-api` prints it, so that this program does not have to link that crate and what it depends on.

use crate::{command, workspace};

const DOCUMENT: &str = "docs/ops.md";

/// Writes the document, or with `check` compares it with what would be written.
pub fn run(check: bool) -> Result<(), String> {
    // With all members selected, cargo shares what it builds here with every other task.
    command::run(command::cargo().args(["build", "--quiet", "--workspace", "--example", "ops_document"]))?;
    let example = workspace::target_folder()?.join("debug/examples/ops_document");
    let text = command::capture(&mut std::process::Command::new(example))?;
    let path = workspace::root().join(DOCUMENT);
    if !check {
        return std::fs::write(&path, text).map_err(|e| format!("{DOCUMENT}: {e}"));
    }
    let found = std::fs::read_to_string(&path).map_err(|e| format!("{DOCUMENT}: {e}"))?;
    first_difference(&found, &text)
}

fn first_difference(found: &str, wanted: &str) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    let same = found.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
    Err(format!("{DOCUMENT}:{}: differs from the catalogue; run `cargo xtask header`", same + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_seen_at_its_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), Ok(()));
        assert!(first_difference("a\nb\n", "a\nc\n").unwrap_err().contains("ops.md:2"));
        assert!(first_difference("a\n", "a\nc\n").unwrap_err().contains("ops.md:2"));
    }
}
