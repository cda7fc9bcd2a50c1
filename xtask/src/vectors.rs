//! `cargo xtask vectors`: every script `tests/vectors/*.py` prints the JSON of the same name.
//!
//! Without `--write`, what it prints must equal the committed file byte for byte, which shows that nobody edited numbers
//! by hand.

use std::{path::Path, process::Command};

use crate::{command, python, workspace};

const FOLDER: &str = "tests/vectors";

/// Checks (or rewrites) all vectors.
pub fn run(write: bool) -> Result<(), String> {
    let python = python::interpreter()?;
    let folder = workspace::root().join(FOLDER);
    let scripts = scripts(&folder)?;
    let mut wrong = Vec::new();
    for script in &scripts {
        let committed = folder.join(format!("{script}.json"));
        let file = folder.join(format!("{script}.py"));
        let mut run = Command::new(&python);
        run.arg("-B").arg(&file);
        if std::fs::read_to_string(&file).is_ok_and(|text| text.contains(TINY_EXAMPLE)) {
            run.arg(write_tiny_models()?);
        }
        let made = command::capture(&mut run)?;
        let wrap = |e: std::io::Error| format!("{}: {e}", committed.display());
        let same = if write {
            std::fs::write(&committed, &made).map_err(wrap)?;
            true
        } else {
            std::fs::read(&committed).map_err(wrap)? == made.as_bytes()
        };
        println!("vectors: {script}: {}", if write { "written" } else { ["DIFFERS", "reproduced"][usize::from(same)] });
        if !same {
            wrong.push(format!("{FOLDER}/{script}.json"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} differ from what their scripts print; `cargo xtask vectors --write` rewrites them",
        wrong.join(", ")
    ))
}

/// Scripts that name this example read the models it writes, given as their argument.
const TINY_EXAMPLE: &str = "write_tiny";

fn write_tiny_models() -> Result<std::path::PathBuf, String> {
    let target = workspace::target_folder()?;
    // Of the workspace: with the features that the tests were built with, so that nothing is built again.
    command::run(command::cargo().args(["build", "--quiet", "--workspace", "--example", TINY_EXAMPLE]))?;
    let folder = target.join("tiny-models");
    command::run(Command::new(target.join("debug/examples").join(TINY_EXAMPLE)).arg(&folder))?;
    Ok(folder)
}

/// Names of the scripts in order; one that starts with `_` is a helper of others.
fn scripts(folder: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.strip_suffix(".py").map(str::to_string))
        .filter(|n| !n.starts_with('_'))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("no scripts in {FOLDER}")) } else { Ok(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_scripts_and_leaves_helpers_out() {
        let folder = std::env::temp_dir().join(format!("xtask-vectors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["b.py", "a.py", "_lib.py", "a.json"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(scripts(&folder).unwrap(), ["a", "b"]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(scripts(&folder).is_err());
    }
}
