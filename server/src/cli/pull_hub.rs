//! `tokenspeed pull org/model`: a repository of the Hugging Face hub, with the cargo feature `hub`.
//!
//! What a model needs and nothing else is fetched: configs, tokenizer, template, and safetensors, or the GGUF file where
//! there is exactly one. Files arrive in the hub client's cache and appear in the model's folder only when all are
//! there. Rejected: downloading whole repositories, which often hold the weights three times over.

use std::{
    fs,
    path::{Path, PathBuf},
};

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};

use super::model_path::home;
use crate::error::CliError;

/// Fetch `id`, `org/model`. Honours `HF_TOKEN_PATH`-style settings as the hub client does (`HF_HOME`, `HF_ENDPOINT`).
pub fn pull(id: &str, force: bool) -> Result<(), CliError> {
    let home = home()?;
    let folder = home.join("models").join(id);
    if folder.exists() && !force {
        println!("{id} is already there: {}", folder.display());
        return Ok(());
    }
    let fail = |error: ApiError| {
        let hint = "check the name, the network, and for gated models the token in HF_HOME";
        CliError::new(format!("cannot fetch from the hub: {error}"), id, hint)
    };
    let api = ApiBuilder::from_env().with_cache_dir(home.join("hub")).with_progress(true).build().map_err(fail)?;
    let repo = api.model(id.to_owned());
    let names: Vec<String> = repo.info().map_err(fail)?.siblings.into_iter().map(|s| s.rfilename).collect();
    let wanted = choose(&names).map_err(|what| CliError::new(what, id, "give the folder of a model you prepared"))?;
    let fetched = wanted.iter().map(|name| fetch(&repo, name)).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    let at = |path: &Path, error: std::io::Error| {
        CliError::new(format!("cannot put the model in place: {error}"), path.display().to_string(), "")
    };
    let scratch = folder.with_extension("pull");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).map_err(|e| at(&scratch, e))?;
    for (name, file) in wanted.iter().zip(fetched) {
        // The cache keeps links to blobs; the folder gets the blob itself, without a copy where the file system can.
        let blob = fs::canonicalize(&file).map_err(|e| at(&file, e))?;
        let target = scratch.join(name);
        if fs::hard_link(&blob, &target).is_err() {
            fs::copy(&blob, &target).map_err(|e| at(&target, e))?;
        }
    }
    let _ = fs::remove_dir_all(&folder);
    fs::rename(&scratch, &folder).map_err(|e| at(&folder, e))?;
    println!("{id}: {}", folder.display());
    Ok(())
}

fn fetch(repo: &ApiRepo, name: &str) -> Result<PathBuf, ApiError> {
    repo.get(name)
}

/// The files of a repository that a model needs; files in subfolders are other people's exports.
fn choose(names: &[String]) -> Result<Vec<String>, String> {
    let ends = |name: &str, extension: &str| !name.contains('/') && name.ends_with(extension);
    let of = |extension: &str| names.iter().filter(|n| ends(n, extension)).cloned().collect::<Vec<_>>();
    let (safetensors, gguf) = (of(".safetensors"), of(".gguf"));
    if !safetensors.is_empty() && names.iter().any(|n| n == "config.json") {
        let mut wanted = of(".json");
        wanted.extend(of(".jinja"));
        wanted.extend(of(".model"));
        wanted.extend(safetensors);
        return Ok(wanted);
    }
    match &gguf[..] {
        [one] => Ok(vec![one.clone()]),
        [] => Err("the repository has neither safetensors with a config.json nor a .gguf file".into()),
        several => Err(format!("the repository has {} .gguf files and no safetensors; which one?", several.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_a_model_needs() {
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let all =
            names(&["config.json", "model.safetensors", "onnx/model.onnx", "pytorch_model.bin", "x.gguf", "README.md"]);
        assert_eq!(choose(&all), Ok(names(&["config.json", "model.safetensors"])));
        assert_eq!(choose(&names(&["a.gguf", "README.md"])), Ok(names(&["a.gguf"])));
        assert!(choose(&names(&["a.gguf", "b.gguf"])).unwrap_err().contains("2 .gguf"));
        assert!(choose(&names(&["pytorch_model.bin"])).is_err());
    }
}
