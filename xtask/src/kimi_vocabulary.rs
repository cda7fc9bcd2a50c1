//! `cargo xtask kimi-vocabulary`: what the long test of Kimi's tokenizer compares with, under `target/kimi-vocabulary`.
//!
//! The real rank file comes out of the crate `tiktoken` 4.1.2, fetched by cargo like any dependency but never linked, and
//! the Python package of that name then encodes text of many scripts with it. Neither is committed: the vocabulary has a
//! licence of its own.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::{command, python, workspace};

const SCRIPTS: &str = "models/tests/data";
const MANIFEST: &str = "[package]\nname = \"vocabulary\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"empty.rs\"\n\n\
                        [dependencies]\ntiktoken = \"=4.1.2\"\n\n[workspace]\n";

/// Make both files, unless they are there.
pub fn run() -> Result<(), String> {
    let folder = workspace::target_folder()?.join("kimi-vocabulary");
    let (ranks, texts) = (folder.join("tiktoken.model"), folder.join("kimi_text.json"));
    if ranks.is_file() && texts.is_file() {
        println!("kimi-vocabulary: {} is complete", folder.display());
        return Ok(());
    }
    let python = python::interpreter_of(&format!("{SCRIPTS}/kimi_requirements.txt"))?;
    let scripts = workspace::root().join(SCRIPTS);
    let crate_folder = fetch(&folder.join("crate"))?;
    let script = |name: &str| {
        let mut run = Command::new(&python);
        run.arg("-B").arg(scripts.join(name));
        run
    };
    command::run(script("kimi_vocabulary.py").arg(crate_folder).arg(&ranks))?;
    let mut text = script("kimi_text.py");
    command::run(text.arg("--ranks").arg(&ranks).arg("--out").arg(&texts).args(["--megabytes", "1"]))
}

/// The sources of the crate, on this machine.
fn fetch(folder: &Path) -> Result<String, String> {
    let wrap = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(wrap)?;
    std::fs::write(folder.join("Cargo.toml"), MANIFEST).map_err(wrap)?;
    std::fs::write(folder.join("empty.rs"), "").map_err(wrap)?;
    let manifest = folder.join("Cargo.toml");
    let mut cargo = command::cargo();
    let text = command::capture(cargo.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(&manifest))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata printed no JSON: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let found = packages.iter().find(|package| package["name"] == "tiktoken");
    let manifest = found.and_then(|package| package["manifest_path"].as_str()).ok_or("cargo fetched no tiktoken")?;
    let folder = Path::new(manifest).parent().ok_or("a manifest without a folder")?;
    Ok(folder.display().to_string())
}
