//! The committed files as values, so that every tidy check can be tried on a made-up tree.

use std::path::Path;

/// A file of the project.
#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the root, with `/`.
    pub path: String,
    /// `None` if it is not UTF-8.
    pub text: Option<String>,
    /// Length.
    pub bytes: u64,
}

impl File {
    /// The text of a Rust source, else `None`.
    pub fn rust(&self) -> Option<&str> {
        if self.path.ends_with(".rs") { self.text.as_deref() } else { None }
    }
}

/// Something that a check refuses.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// File, relative to the root.
    pub path: String,
    /// From 1; 0 = the whole file.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    /// A violation at a line (from 1; 0 = the whole file).
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path, self.message)
        } else {
            write!(f, "{}:{}: {}", self.path, self.line, self.message)
        }
    }
}

/// Reads what git tracks or would track; without git (an exported archive), everything outside build folders.
pub fn read(root: &Path) -> Result<Vec<File>, String> {
    let mut command = std::process::Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut paths: Vec<String> = match crate::command::capture(&mut command) {
        Ok(list) => list.split('\0').filter(|p| !p.is_empty()).map(str::to_string).collect(),
        Err(_) => {
            let mut found = Vec::new();
            walk(root, "", &mut found)?;
            found
        }
    };
    paths.sort();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        // Deleted but still in the index: not a file of the tree.
        if !root.join(&path).is_file() {
            continue;
        }
        let data = std::fs::read(root.join(&path)).map_err(|e| format!("{path}: {e}"))?;
        files.push(File { path, bytes: data.len() as u64, text: String::from_utf8(data).ok() });
    }
    Ok(files)
}

fn walk(root: &Path, prefix: &str, found: &mut Vec<String>) -> Result<(), String> {
    let folder = root.join(prefix);
    for entry in std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let entry = entry.map_err(|e| format!("{}: {e}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type().map_err(|e| format!("{path}: {e}"))?;
        if kind.is_dir() {
            let built = ["target", ".git", ".cache", "__pycache__"].contains(&name.as_str());
            if !built && !name.starts_with(".venv") {
                walk(root, &path, found)?;
            }
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
impl File {
    /// A made-up file.
    pub fn fake(path: &str, text: &str) -> Self {
        Self { path: path.into(), bytes: text.len() as u64, text: Some(text.into()) }
    }
}
