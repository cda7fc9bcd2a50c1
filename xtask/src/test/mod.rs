//! `cargo xtask test`: install what tests need, build, run everything, count.
//!
//! Stages run in order and all of them run even after a failure, so that one run shows the whole state. The last line
//! is always `N passed, N failed`. Tests never assert wall time; the table printed here is where time is watched.

mod counts;
mod stage;

use std::path::Path;

use crate::{command, python, workspace};
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
        kernels = crate::kernels::run(Some(if long { 1 } else { 16 }))?;
        Ok(Counts::of_one(Ok(())))
    });
    let environment = Environment { python: python.display().to_string(), kernels, long };
    stages.count("core, ABI, text", || cargo_tests(System::Without, &environment));
    stages.count("simulation", || Ok(Counts::of_one(crate::sim::stage())));
    stages.count("models and system", || cargo_tests(System::Only, &environment));
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
    long: bool,
}

impl Environment {
    fn apply<'a>(&self, command: &'a mut std::process::Command) -> Result<&'a mut std::process::Command, String> {
        command.env("TOKENSPEED_PYTHON", &self.python).env("TOKENSPEED_HOME", home()?);
        command.env("TOKENSPEED_BIN", workspace::target_folder()?.join("debug/tokenspeed"));
        if let Some(kernels) = &self.kernels {
            command.env("TOKENSPEED_KERNELS", &kernels.folder).env("TOKENSPEED_KERNELS_PYTHON", &kernels.python);
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

/// Which half of the tests.
#[derive(Clone, Copy)]
enum System {
    Without,
    Only,
}

/// `cargo nextest run` where installed (a process per test, parallel across binaries), else `cargo test`.
fn cargo_tests(system: System, environment: &Environment) -> Result<Counts, String> {
    let has_nextest = command::capture(command::cargo().args(["nextest", "--version"])).is_ok();
    let mut cargo = command::cargo();
    if has_nextest {
        // A filter, not a selection of packages: cargo would build dependencies again for another selection.
        let not = if matches!(system, System::Without) { "not " } else { "" };
        cargo.args(["nextest", "run", "--workspace", "--no-fail-fast", "--no-tests", "pass", "--status-level", "slow"]);
        cargo.args(["--filterset", &format!("{not}package({SYSTEM_PACKAGE})")]);
    } else {
        cargo.args(["test", "--quiet", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        cargo.args(match system {
            System::Without => &["--workspace", "--exclude"][..],
            System::Only => &["--package"],
        });
        cargo.arg(SYSTEM_PACKAGE);
    }
    let (ok, text) = command::tee(environment.apply(&mut cargo)?)?;
    Ok(Counts::of_output(&text).checked(ok))
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
