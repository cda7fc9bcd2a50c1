//! The Python environment that tests need: made once, kept under `target/`, named by the hash of its requirements.

use std::{
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{command, workspace};

/// Pinned requirements, relative to the root.
const REQUIREMENTS: &str = "tests/requirements.txt";

/// Path of the environment's interpreter, made if missing. The user's pip configuration is honoured.
pub fn interpreter() -> Result<PathBuf, String> {
    interpreter_of(REQUIREMENTS)
}

/// The same for other requirements, a file relative to the root.
pub fn interpreter_of(file: &str) -> Result<PathBuf, String> {
    let requirements = workspace::root().join(file);
    let text = std::fs::read(&requirements).map_err(|e| format!("{file}: {e}"))?;
    let folder = workspace::target_folder()?.join("python").join(name(&text));
    let python = folder.join("bin/python");
    if folder.join("complete").is_file() && python.is_file() {
        return Ok(python);
    }
    println!("python: making {}", folder.display());
    make(&folder, &requirements)?;
    // Written last: an interrupted installation is made again instead of being trusted.
    std::fs::write(folder.join("complete"), b"").map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(python)
}

fn make(folder: &Path, requirements: &Path) -> Result<(), String> {
    let advice = "install Python 3.11 or newer with the venv module (Debian: apt install python3-venv)";
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
        .map_err(|e| format!("{e}; {advice}"))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(requirements);
    command::run(&mut pip)
}

/// A folder name that changes with the requirements.
fn name(requirements: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(requirements);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_requirements_are_another_environment() {
        assert_eq!(name(b"numpy==1"), name(b"numpy==1"));
        assert_ne!(name(b"numpy==1"), name(b"numpy==2"));
    }
}
