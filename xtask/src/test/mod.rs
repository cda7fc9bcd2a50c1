//! `cargo xtask test`: install what tests need, build, run everything, count.
//!
//! Stages run in order and all of them run even after a failure, so that one run shows the whole state. The last line
//! is always `N passed, N failed`. Tests never assert wall time; the table printed here is where time is watched.

mod counts;
mod stage;

use std::path::{Path, PathBuf};

use crate::{command, kernels::Emulated, python, workspace};
use counts::Counts;
use stage::Stages;

/// Whole-system tests: models, server, plugins.
const SYSTEM_PACKAGE: &str = "tokenspeed-tests";
/// The small real model that tests run.
const MODEL: &str = "smollm2-135m";

/// Runs all tests; `long` also those that ask for it through `TOKENSPEED_LONG_TESTS`.
pub fn run(long: bool) -> Result<(), String> {
    let root = workspace::root();
    let mut stages = Stages::default();
    let python = stages.prepare("python environment", python::interpreter)?;
    stages.prepare("build", build)?;
    stages.prepare("model", || fetch_model(&python))?;
    if long {
        stages.prepare("kimi vocabulary", crate::kimi_vocabulary::run)?;
    }
    // A failure to make kernels is one failed stage; everything that does not need them still runs.
    let mut kernels = None;
    stages.count("kernels", || {
        // Which are compiled twice is no matter: what could differ (paths, order, time) is common to all.
        kernels = crate::kernels::run(Some(if long { 1 } else { 48 }))?;
        Ok(Counts::of_one(Ok(())))
    });
    let launched = workspace::target_folder()?.join("kernels-launched");
    let environment = Environment { python: python.display().to_string(), kernels, launched, long };
    let emulated = crate::kernels::emulated()?;
    stages.count("core, ABI, text", || cargo_tests(Part::Others, &emulated, &environment));
    stages.count("simulation", || Ok(Counts::of_one(crate::sim::stage())));
    stages.count("models and system", || cargo_tests(Part::System, &emulated, &environment));
    stages.count("emulated", || executed(&emulated, &environment));
    stages.count("doctests", || doctests(&environment));
    stages.count("vendor declarations", || {
        let kernels = environment.kernels.as_ref().ok_or("the kernels' environment is missing")?;
        Ok(Counts::of_one(crate::vendor_check::run(kernels)))
    });
    stages.count("vectors", || Ok(Counts::of_one(crate::vectors::run(false))));
    stages.count("python clients", || clients(&root, &environment));
    print!("{}", stages.table());
    let total = stages.total();
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { Ok(()) } else { Err("tests failed".into()) }
}

/// What tests may read from their environment.
struct Environment {
    python: String,
    kernels: Option<crate::kernels::Kernels>,
    /// What the emulator writes of kernels that ran.
    launched: PathBuf,
    long: bool,
}

impl Environment {
    fn apply<'a>(&self, command: &'a mut std::process::Command) -> Result<&'a mut std::process::Command, String> {
        command.env("TOKENSPEED_PYTHON", &self.python).env("TOKENSPEED_HOME", home()?);
        command.env("TOKENSPEED_BIN", workspace::target_folder()?.join("debug/tokenspeed"));
        if let Some(kernels) = &self.kernels {
            command.env("TOKENSPEED_KERNELS", &kernels.folder).env("TOKENSPEED_KERNELS_PYTHON", &kernels.python);
            command.env("TOKENSPEED_EMULATOR_LAUNCHED", &self.launched);
        }
        if self.long {
            command.env("TOKENSPEED_LONG_TESTS", "1");
        }
        Ok(command)
    }
}

/// Cache of fetched models: the user's own if set, else one that `cargo clean` removes.
pub fn home() -> Result<std::path::PathBuf, String> {
    match std::env::var_os("TOKENSPEED_HOME") {
        Some(home) => Ok(home.into()),
        None => Ok(workspace::target_folder()?.join("tokenspeed-home")),
    }
}

fn build() -> Result<(), String> {
    // Plugins and the command are not test targets of the packages whose tests load them.
    command::run(command::cargo().args(["build", "--quiet", "--workspace"]))?;
    command::run(command::cargo().args(["test", "--quiet", "--workspace", "--no-run"]))
}

fn fetch_model(python: &Path) -> Result<(), String> {
    let mut pull = std::process::Command::new(workspace::target_folder()?.join("debug/tokenspeed"));
    // `pull` calls pip; the environment's interpreter has one even where the system's has none.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = python.parent().map(Path::to_path_buf).into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).map_err(|e| e.to_string())?;
    command::run(pull.args(["pull", MODEL]).env("TOKENSPEED_HOME", home()?).env("PATH", path))
}

/// Which part of the tests; none is in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Neither of those below.
    Others,
    /// Whole-system tests, but for those that execute kernels.
    System,
    /// Those that execute kernels.
    Emulated,
}

/// Tests that execute kernels; then whether they launched everything that ships.
fn executed(emulated: &Emulated, environment: &Environment) -> Result<Counts, String> {
    let kernels = environment.kernels.as_ref().ok_or("there are no kernels")?;
    match std::fs::remove_file(&environment.launched) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {e}", environment.launched.display()));
        }
        _ => {}
    }
    let counts = cargo_tests(Part::Emulated, emulated, environment)?;
    Ok(counts + Counts::of_one(crate::kernels::check_launched(kernels, &environment.launched, environment.long)))
}

/// `cargo nextest run` where installed (a process per test, parallel across binaries), else `cargo test`.
fn cargo_tests(part: Part, emulated: &Emulated, environment: &Environment) -> Result<Counts, String> {
    if command::capture(command::cargo().args(["nextest", "--version"])).is_ok() {
        let mut cargo = command::cargo();
        // A filter, not a selection of packages: cargo would build dependencies again for another selection.
        cargo.args(["nextest", "run", "--workspace", "--no-fail-fast", "--no-tests", "pass", "--status-level", "slow"]);
        cargo.args(["--filterset", &filter(part, emulated)]);
        return counted(&mut cargo, environment);
    }
    let mut sum = Counts::default();
    for arguments in selections(part, emulated) {
        let mut cargo = command::cargo();
        cargo.args(["test", "--quiet", "--no-fail-fast", "--lib", "--bins", "--tests"]).args(arguments);
        sum = sum + counted(&mut cargo, environment)?;
    }
    Ok(sum)
}

fn counted(cargo: &mut std::process::Command, environment: &Environment) -> Result<Counts, String> {
    let (ok, text) = command::tee(environment.apply(cargo)?)?;
    Ok(Counts::of_output(&text).checked(ok))
}

/// The part for nextest.
fn filter(part: Part, emulated: &Emulated) -> String {
    let system = format!("package(={SYSTEM_PACKAGE})");
    let devices = emulated.devices.iter().map(|d| format!("({system} & test(/^{d}/))"));
    let packages = emulated.packages.iter().map(|p| format!("package(={p})"));
    let emulated = packages.chain(devices).collect::<Vec<_>>().join(" | ");
    let emulated = if emulated.is_empty() { "none()".into() } else { emulated };
    match part {
        Part::Others => format!("not ({system} | {emulated})"),
        Part::System => format!("{system} - ({emulated})"),
        Part::Emulated => emulated,
    }
}

/// The part for `cargo test`: arguments of each call.
fn selections(part: Part, emulated: &Emulated) -> Vec<Vec<&str>> {
    fn each<'a>(flag: &'a str, names: &'a [String]) -> Vec<&'a str> {
        names.iter().flat_map(|n| [flag, n.as_str()]).collect()
    }
    match part {
        Part::Others => {
            vec![[vec!["--workspace", "--exclude", SYSTEM_PACKAGE], each("--exclude", &emulated.packages)].concat()]
        }
        Part::System => vec![[vec!["--package", SYSTEM_PACKAGE, "--"], each("--skip", &emulated.devices)].concat()],
        Part::Emulated => {
            let devices = emulated.devices.iter().map(String::as_str).collect();
            vec![each("--package", &emulated.packages), [vec!["--package", SYSTEM_PACKAGE, "--"], devices].concat()]
        }
    }
}

/// Examples in the documentation compile and run, and one shows what must not compile; nextest does not run doctests. (That
/// illegal transitions of a request do not compile is shown by `core/tests/compile_fail.rs`.)
fn doctests(environment: &Environment) -> Result<Counts, String> {
    let mut cargo = command::cargo();
    cargo.args(["test", "--quiet", "--no-fail-fast", "--doc", "--workspace"]);
    let (ok, text) = command::tee(environment.apply(&mut cargo)?)?;
    Ok(Counts::of_output(&text).checked(ok))
}

/// `tests/clients/test_*.py`: official client libraries against the built command.
fn clients(root: &Path, environment: &Environment) -> Result<Counts, String> {
    let mut python = std::process::Command::new(&environment.python);
    python.current_dir(root).args(["-B", "-m", "unittest", "discover", "--start-directory", "tests/clients"]);
    let (ok, text) = command::tee(environment.apply(&mut python)?)?;
    Ok(Counts::of_output(&text).checked(ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_tests_share_none_and_leave_none_out() {
        let emulated = Emulated { packages: vec!["a".into(), "b".into()], devices: vec!["d".into()] };
        let those = format!("package(=a) | package(=b) | (package(={SYSTEM_PACKAGE}) & test(/^d/))");
        assert_eq!(filter(Part::Emulated, &emulated), those);
        assert_eq!(filter(Part::System, &emulated), format!("package(={SYSTEM_PACKAGE}) - ({those})"));
        assert_eq!(filter(Part::Others, &emulated), format!("not (package(={SYSTEM_PACKAGE}) | {those})"));
        assert_eq!(filter(Part::Emulated, &Emulated::default()), "none()");
        let calls = |part| selections(part, &emulated).iter().map(|c| c.join(" ")).collect::<Vec<_>>();
        let others = format!("--workspace --exclude {SYSTEM_PACKAGE} --exclude a --exclude b");
        assert_eq!(calls(Part::Others), [others]);
        assert_eq!(calls(Part::System), [format!("--package {SYSTEM_PACKAGE} -- --skip d")]);
        let those = ["--package a --package b".to_owned(), format!("--package {SYSTEM_PACKAGE} -- d")];
        assert_eq!(calls(Part::Emulated), those);
    }
}
