//! `cargo xtask vectors`: every script `tests/vectors/*.py` writes the JSON of the same name.
//!
//! A script is called as `python SCRIPT OUT`. Without `--write` its output goes to a temporary file and must equal the
//! committed one byte for byte, which shows that nobody edited numbers by hand.

use std::{path::Path, process::Command};

use crate::{command, python, workspace};

const FOLDER: &str = "tests/vectors";

/// Checks (or rewrites) all vectors.
pub fn run(write: bool) -> Result<(), String> {
    let python = python::interpreter()?;
    let folder = workspace::root().join(FOLDER);
    let temporary = workspace::target_folder()?.join("vectors");
    std::fs::create_dir_all(&temporary).map_err(|e| format!("{}: {e}", temporary.display()))?;
    let scripts = scripts(&folder)?;
    let mut wrong = Vec::new();
    for script in &scripts {
        let committed = folder.join(format!("{script}.json"));
        let out = if write { committed.clone() } else { temporary.join(format!("{script}.json")) };
        command::run(Command::new(&python).arg("-B").arg(folder.join(format!("{script}.py"))).arg(&out))?;
        let same = write || same(&committed, &out)?;
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

fn same(committed: &Path, made: &Path) -> Result<bool, String> {
    let read = |p: &Path| std::fs::read(p).map_err(|e| format!("{}: {e}", p.display()));
    Ok(read(committed)? == read(made)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_scripts_and_sees_one_changed_byte() {
        let folder = std::env::temp_dir().join(format!("xtask-vectors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("b.py", ""), ("a.py", ""), ("_lib.py", ""), ("a.json", "1.0"), ("made.json", "1.1")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        assert_eq!(scripts(&folder).unwrap(), ["a", "b"]);
        assert!(!same(&folder.join("a.json"), &folder.join("made.json")).unwrap());
        assert!(same(&folder.join("a.json"), &folder.join("a.json")).unwrap());
        assert!(same(&folder.join("a.json"), &folder.join("none.json")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
