//! Finds a backend by name or path, negotiates and checks; nothing about a plugin is found out later than here.
//!
//! Order: linked in, then [`search::ENV_PATH`], beside the program, the system's folders. A place holds manifests or
//! plain `libtokenspeed_NAME.so` files. Each step is noted in a [`SearchLog`]. Plugins are never unloaded: their threads
//! and thread-local destructors would outlive their code.

mod library_file;
pub mod search;

pub use search::{Place, SearchPaths};

use crate::{abi::*, backend::Backend, embedded::embedded, host, negotiate::NegotiationError, plugin_root, sized};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// Why no backend was loaded. One line each, ending in what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Nothing of that name anywhere.
    #[error(
        "no backend is called `{name}`; looked in: {looked}; give its path, or list its folder in {}",
        search::ENV_PATH
    )]
    NotFound {
        /// As asked for.
        name: String,
        /// Places, with what was there.
        looked: String,
    },
    /// Missing, a folder, or without permission.
    #[error("{}: cannot read the plugin: {reason}", .path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// Some other kind of file.
    #[error("{}: found {found}, wanted a shared library (ELF .so); rebuild or download the plugin again", .path.display())]
    NotALibrary {
        /// The library.
        path: PathBuf,
        /// What it looks like.
        found: String,
    },
    /// For another processor.
    #[error("{}: found a library for {found}, wanted {wanted}; install the build for this machine", .path.display())]
    OtherMachine {
        /// The library.
        path: PathBuf,
        /// Its processor.
        found: String,
        /// This processor.
        wanted: &'static str,
    },
    /// Cut off.
    #[error("{}: found {found} bytes, wanted at least {needed}; the file was cut off, copy it again", .path.display())]
    Truncated {
        /// The library.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size its headers ask for.
        needed: u64,
    },
    /// A library that the plugin needs is not there.
    #[error(
        "{}: needs {library}, which the system cannot load; install the vendor's runtime or add its folder to \
         LD_LIBRARY_PATH", .path.display()
    )]
    MissingDependency {
        /// The plugin.
        path: PathBuf,
        /// What it needs.
        library: String,
    },
    /// The dynamic linker refused it.
    #[error("{}: the dynamic linker refused it: {reason}", .path.display())]
    Open {
        /// The library.
        path: PathBuf,
        /// The linker's words, in one line.
        reason: String,
    },
    /// A shared library, but not a plugin.
    #[error("{}: found no symbol `{TS_ENTRY_SYMBOL}`; this library is not a TokenSpeed backend", .path.display())]
    MissingSymbol {
        /// The library.
        path: PathBuf,
    },
    /// The Rust root module does not match.
    #[error("{}: built against another interface: {cause}; rebuild the plugin for this version", .path.display())]
    Layout {
        /// The library.
        path: PathBuf,
        /// One line of cause; the whole dump is in the debug log.
        cause: String,
    },
    /// Negotiation failed.
    #[error("{origin}: {source}")]
    Refused {
        /// Path, or the embedded backend's name.
        origin: String,
        /// Why.
        source: NegotiationError,
    },
    /// A manifest of the wanted backend is unusable.
    #[error("{}: the manifest {reason}", .path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The library has another name than its manifest or file says.
    #[error("{}: found backend `{found}`, wanted `{wanted}`; correct the name in {}", .path.display(), .named_by.display())]
    WrongName {
        /// The library.
        path: PathBuf,
        /// Its own name.
        found: String,
        /// The name that led to it.
        wanted: String,
        /// The manifest or file with that name.
        named_by: PathBuf,
    },
    /// Two libraries of one name in one place.
    #[error(
        "two backends are called `{name}`: {} and {}; remove one, or give the path of the one you want",
        .first.display(), .second.display()
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// One library.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// What was looked at, in order; for `backends --explain` and for failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchLog {
    /// One line per step.
    pub steps: Vec<String>,
}

impl SearchLog {
    fn note(&mut self, line: String) {
        host::log(TS_LOG_DEBUG, &line);
        self.steps.push(line);
    }
}

/// Loads backend `spec`: a name, or a path (with a `/`, or ending in `.so`).
pub fn load(spec: &str, search: &SearchPaths) -> Result<Backend, LoadError> {
    load_logged(spec, search, &mut SearchLog::default())
}

/// As [`load`], noting each step.
pub fn load_logged(spec: &str, search: &SearchPaths, log: &mut SearchLog) -> Result<Backend, LoadError> {
    if spec.contains('/') || spec.ends_with(".so") {
        log.note(format!("`{spec}` is a path"));
        return load_library(Path::new(spec), log);
    }
    let linked: Vec<_> = embedded().into_iter().filter(|b| b.name() == spec).collect();
    match linked.as_slice() {
        [] => log.note(format!("embedded: no `{spec}` among {}", names(embedded().iter().map(|b| b.name())))),
        [one] => {
            log.note(format!("embedded: `{spec}`"));
            return one.load().map_err(|source| LoadError::Refused { origin: format!("embedded {spec}"), source });
        }
        _ => {
            let place = PathBuf::from("embedded");
            return Err(LoadError::Ambiguous { name: spec.to_owned(), first: place.clone(), second: place });
        }
    }
    for place in &search.places {
        if let Some(backend) = load_from(place, spec, log)? {
            return Ok(backend);
        }
    }
    Err(LoadError::NotFound { name: spec.to_owned(), looked: log.steps.join("; ") })
}

fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let list: Vec<&str> = all.collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

fn load_from(place: &Place, spec: &str, log: &mut SearchLog) -> Result<Option<Backend>, LoadError> {
    let (candidates, bad) = place.candidates();
    if let Some(b) =
        bad.iter().find(|b| b.file.file_name().is_some_and(|f| *f == *format!("{spec}{}", crate::manifest::SUFFIX)))
    {
        return Err(LoadError::Manifest { path: b.file.clone(), reason: b.reason.clone() });
    }
    for b in &bad {
        log.note(format!("{}: {}: the manifest {}", place.title, b.file.display(), b.reason));
    }
    let mut found: Option<(Backend, PathBuf)> = None;
    for candidate in candidates.iter().filter(|c| c.may_be(spec)) {
        let listed_by_name = candidate.name.is_some() || candidate.library.ends_with(search::library_name(spec));
        log.note(format!("{}: {} leads to {}", place.title, candidate.found_by.display(), candidate.library.display()));
        let backend = match load_library(&candidate.library, log) {
            Ok(backend) => backend,
            Err(e) if listed_by_name => return Err(e),
            // Some other library on the path; it may not even be meant.
            Err(e) => {
                log.note(e.to_string());
                continue;
            }
        };
        if backend.name() != spec {
            if !listed_by_name {
                continue;
            }
            return Err(LoadError::WrongName {
                path: candidate.library.clone(),
                found: backend.name().to_owned(),
                wanted: spec.to_owned(),
                named_by: candidate.found_by.clone(),
            });
        }
        match &found {
            // Listed twice, by a manifest and by its file name, say: one library all the same.
            Some((first, _)) if first.origin() == backend.origin() => {
                log.note(format!("{}: {} is listed twice", place.title, candidate.library.display()));
            }
            Some((_, first)) => {
                let (first, second) = (first.clone(), candidate.library.clone());
                return Err(LoadError::Ambiguous { name: spec.to_owned(), first, second });
            }
            None => found = Some((backend, candidate.library.clone())),
        }
    }
    if found.is_none() {
        let entries = names(place.entries.iter().filter_map(|p| p.to_str()));
        log.note(format!("{}: no `{spec}` in {entries}", place.title));
    }
    Ok(found.map(|(backend, _)| backend))
}

/// Every backend there is, for listing: linked ones first, then each library once, with the reason where one fails. A
/// bad plugin never hides the others.
pub fn discover(search: &SearchPaths, log: &mut SearchLog) -> Vec<Result<Backend, LoadError>> {
    let refused = |b: &crate::embedded::EmbeddedBackend, source| LoadError::Refused {
        origin: format!("embedded {}", b.name()),
        source,
    };
    let mut all: Vec<_> = embedded().iter().map(|b| b.load().map_err(|e| refused(b, e))).collect();
    let mut seen = Vec::new();
    for place in &search.places {
        let (candidates, bad) = place.candidates();
        all.extend(bad.into_iter().map(|b| Err(LoadError::Manifest { path: b.file, reason: b.reason })));
        for candidate in candidates {
            let path = candidate.library.canonicalize().unwrap_or_else(|_| candidate.library.clone());
            if seen.contains(&path) {
                log.note(format!("{}: {} is listed twice", place.title, path.display()));
                continue;
            }
            log.note(format!("{}: {}", place.title, path.display()));
            all.push(load_library(&candidate.library, log));
            seen.push(path);
        }
    }
    all
}

/// Libraries already loaded, by canonical path: the same file is one backend, however often it is listed.
static LOADED: Mutex<Option<HashMap<PathBuf, Backend>>> = Mutex::new(None);

fn load_library(path: &Path, log: &mut SearchLog) -> Result<Backend, LoadError> {
    let unreadable = |e: std::io::Error| LoadError::Unreadable { path: path.to_owned(), reason: e.to_string() };
    // Absolute, or the dynamic linker would search its own folders.
    let full = path.canonicalize().map_err(unreadable)?;
    let mut loaded = LOADED.lock().unwrap_or_else(|e| e.into_inner());
    let loaded = loaded.get_or_insert_default();
    if let Some(backend) = loaded.get(&full) {
        return Ok(backend.clone());
    }
    library_file::check(&full)?;
    let library = open(&full)?;
    match plugin_root::check(&full) {
        None => log.note(format!("{}: no Rust root module, the C table alone", full.display())),
        Some(Ok(())) => log.note(format!("{}: Rust root module matches", full.display())),
        Some(Err(mismatch)) => {
            let versions = plugin_root::crate_version();
            host::log(TS_LOG_DEBUG, &format!("{} (interface crate {versions}): {}", full.display(), mismatch.dump));
            return Err(LoadError::Layout { path: full, cause: mismatch.cause });
        }
    }
    // SAFETY: the symbol is of this type in every plugin; a library that exports something else under that name cannot
    // be told from one.
    let entry = unsafe { library.get::<ts_backend_entry_fn>(TS_ENTRY_SYMBOL.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| LoadError::MissingSymbol { path: full.clone() })?;
    let origin = full.display().to_string();
    // SAFETY: as above.
    let backend =
        unsafe { Backend::from_entry(entry, &origin) }.map_err(|source| LoadError::Refused { origin, source })?;
    let i = backend.info();
    log.note(format!("{}: {} {}, ABI {}", full.display(), i.name, i.version, crate::sdk::version(i.abi_version)));
    loaded.insert(full, backend.clone());
    Ok(backend)
}

/// Opens a library for good; all its symbols must resolve now and not at some later call.
fn open(path: &Path) -> Result<&'static libloading::os::unix::Library, LoadError> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: runs the library's initialisers; the user asked for this library.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(e) => {
            let mut reason = sized::one_line(&e.to_string());
            if let Some(source) = std::error::Error::source(&e) {
                reason = sized::one_line(&source.to_string());
            }
            // glibc: "libfoo.so.6: cannot open shared object file: No such file or directory".
            let missing = reason.split_once(": cannot open shared object file").map(|(library, _)| library.to_owned());
            Err(match missing {
                Some(library) => LoadError::MissingDependency { path: path.to_owned(), library },
                None => LoadError::Open { path: path.to_owned(), reason },
            })
        }
    }
}
