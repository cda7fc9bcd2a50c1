//! From what the user typed to the files that make up a model.
//!
//! In a folder: `model.safetensors`, else `model.safetensors.index.json`, else the only `*.safetensors`, else the only
//! `*.gguf`. More than one candidate without an index is an error: loading what lies around is how half a download
//! gets served.

use super::{ModelError, Notice};
use std::path::{Path, PathBuf};

/// The files of a model.
#[derive(Debug)]
pub(super) struct Place {
    /// What the user gave, less `dummy:`.
    pub path: PathBuf,
    pub name: String,
    /// `None` for GGUF.
    pub config: Option<PathBuf>,
    /// `None` for random weights.
    pub weights: Option<PathBuf>,
    pub notices: Vec<Notice>,
}

pub(super) fn find(path: &Path, weights_optional: bool) -> Result<Place, ModelError> {
    if let Some(config) = path.to_str().and_then(|text| text.strip_prefix("dummy:")) {
        let given = PathBuf::from(config);
        let config = if given.is_dir() { given.join("config.json") } else { given };
        if !config.exists() {
            return Err(ModelError::NotFound { path: config });
        }
        let text = "random weights: the answers mean nothing".to_owned();
        let notices = vec![Notice { is_warning: true, text }];
        return Ok(Place {
            name: format!("dummy-{}", name_of(&config)),
            path: config.clone(),
            config: Some(config),
            weights: None,
            notices,
        });
    }
    if path.is_dir() {
        return in_folder(path, weights_optional);
    }
    if !path.exists() {
        return Err(ModelError::NotFound { path: path.to_owned() });
    }
    // A single file: GGUF stands alone, safetensors needs the config beside it.
    let config = path.parent().unwrap_or(Path::new(".")).join("config.json");
    let config = config.exists().then_some(config);
    Ok(Place {
        name: name_of(path),
        path: path.to_owned(),
        config,
        weights: Some(path.to_owned()),
        notices: Vec::new(),
    })
}

fn in_folder(folder: &Path, weights_optional: bool) -> Result<Place, ModelError> {
    let config = folder.join("config.json");
    let config = config.exists().then_some(config);
    let mut notices = Vec::new();
    let (single, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    let weights = if single.exists() {
        if index.exists() {
            let text =
                "both model.safetensors and model.safetensors.index.json exist; using the single file".to_owned();
            notices.push(Notice { is_warning: true, text });
        }
        Some(single)
    } else if index.exists() {
        Some(index)
    } else {
        only_candidate(folder, weights_optional && config.is_some())?
    };
    if weights.is_none() {
        let text = "no weights in the folder: sizes follow the config's torch_dtype".to_owned();
        notices.push(Notice { is_warning: true, text });
    }
    Ok(Place { path: folder.to_owned(), name: name_of(folder), config, weights, notices })
}

fn only_candidate(folder: &Path, none_is_fine: bool) -> Result<Option<PathBuf>, ModelError> {
    let no_weights = |cause: String| ModelError::NoWeights { folder: folder.to_owned(), cause };
    let entries = std::fs::read_dir(folder).map_err(|e| no_weights(format!("cannot be read: {e}")))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let with = |extension: &str| -> Vec<&PathBuf> {
        files.iter().filter(|f| f.extension().is_some_and(|e| e == extension)).collect()
    };
    for (extension, many) in [
        ("safetensors", "safetensors files but no model.safetensors.index.json; download the index too"),
        ("gguf", "GGUF files; give the one you mean"),
    ] {
        match with(extension).as_slice() {
            [] => {}
            [one] => return Ok(Some((*one).clone())),
            several => return Err(no_weights(format!("has {} {many}", several.len()))),
        }
    }
    if !with("bin").is_empty() || !with("pth").is_empty() || !with("pt").is_empty() {
        return Err(no_weights("has only PyTorch pickle weights; convert them to safetensors".to_owned()));
    }
    if none_is_fine {
        return Ok(None);
    }
    Err(no_weights("has no weights (model.safetensors, model.safetensors.index.json or a .gguf file)".to_owned()))
}

/// The folder's name, or the file's without its extension; `config.json` takes its folder's.
fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_plain = full.file_name().is_some_and(|n| n == "config.json" || n == "model.safetensors");
    let named = if is_plain {
        full.parent().unwrap_or(&full).file_name()
    } else if full.is_dir() {
        full.file_name()
    } else {
        full.file_stem()
    };
    named.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}
