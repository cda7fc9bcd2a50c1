//! Where plugins are looked for, in order.

use crate::manifest::{self, Manifest};
use std::{
    env,
    path::{Path, PathBuf},
};

/// Environment variable with plugin libraries or folders, separated like `PATH`.
pub const ENV_PATH: &str = "TOKENSPEED_BACKEND_PATH";

/// Folders of the system, after everything closer to the user.
const SYSTEM: [&str; 2] = ["/usr/local/lib/tokenspeed/backends", "/usr/lib/tokenspeed/backends"];

/// One place of the search order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// How messages call it.
    pub title: String,
    /// Folders, or library files.
    pub entries: Vec<PathBuf>,
}

/// The search order, without the embedded backends, which come first. A value, so that tests need no environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchPaths {
    /// Earlier places win.
    pub places: Vec<Place>,
}

/// A plugin library that was found, not loaded yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The name it should have; `None` if only loading can tell.
    pub name: Option<String>,
    pub library: PathBuf,
    /// What led to it, for messages.
    pub found_by: PathBuf,
}

/// A manifest that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadManifest {
    pub file: PathBuf,
    pub reason: String,
}

impl SearchPaths {
    /// The environment variable, then beside the executable, then the system's folders.
    pub fn from_env() -> Self {
        let mut places = Vec::new();
        let listed = env::var_os(ENV_PATH);
        let entries = listed.map(|v| env::split_paths(&v).filter(|p| !p.as_os_str().is_empty()).collect());
        places.push(Place { title: ENV_PATH.to_owned(), entries: entries.unwrap_or_default() });
        let folder = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
        let beside = folder.map_or_else(Vec::new, |f| vec![f.join("backends"), f]);
        places.push(Place { title: "beside the program".to_owned(), entries: beside });
        places.push(Place { title: "system".to_owned(), entries: SYSTEM.map(PathBuf::from).to_vec() });
        Self { places }
    }

    /// Only these folders or libraries.
    pub fn only(entries: impl IntoIterator<Item = PathBuf>) -> Self {
        let entries = entries.into_iter().collect();
        Self { places: vec![Place { title: "search path".to_owned(), entries }] }
    }
}

/// Name of the plain library of a backend.
pub(super) fn library_name(backend: &str) -> String {
    format!("libtokenspeed_{}.so", backend.replace('-', "_"))
}

impl Place {
    /// Everything that looks like a plugin, sorted by path so that the result does not depend on the file system.
    pub(super) fn candidates(&self) -> (Vec<Candidate>, Vec<BadManifest>) {
        let (mut found, mut bad) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            if !entry.is_dir() {
                let listed = Candidate { name: None, library: entry.clone(), found_by: entry.clone() };
                found.extend((entry.exists() || has_library_ending(entry)).then_some(listed));
                continue;
            }
            let mut files: Vec<PathBuf> =
                entry.read_dir().into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path())).collect();
            files.sort();
            for file in files {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if name.ends_with(manifest::SUFFIX) {
                    match Manifest::read(&file) {
                        Ok(m) => found.push(Candidate { name: Some(m.name), library: m.library, found_by: file }),
                        Err(reason) => bad.push(BadManifest { file, reason }),
                    }
                } else if name.starts_with("libtokenspeed_") && name.ends_with(".so") {
                    found.push(Candidate { name: None, library: file.clone(), found_by: file });
                }
            }
        }
        (found, bad)
    }
}

impl Candidate {
    /// Whether it may be backend `name`: by its manifest, or by its file name. A library that the user listed by path
    /// may be called anything.
    pub(super) fn may_be(&self, name: &str) -> bool {
        match &self.name {
            Some(own) => own == name,
            None => {
                let file = self.library.file_name().unwrap_or_default().to_string_lossy();
                file == library_name(name).as_str() || !file.starts_with("libtokenspeed_")
            }
        }
    }
}

fn has_library_ending(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "so")
}
