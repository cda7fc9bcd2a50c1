//! `cargo xtask tidy`: the project's rules as ordinary checks.
//!
//! Each check is a function from the committed files to violations, in its own file, with a test that shows it catching
//! a seeded one. All checks run and print before the task fails, so one run shows everything there is to fix.

mod dead_files;
mod file_bytes;
mod file_sizes;
mod forbidden_words;
mod layering;
mod module_headers;
mod unsafe_code;
mod url_hosts;
mod vendor_names;
mod vocabulary;

use crate::{
    command, header, ops_document, tree,
    tree::{File, Violation},
    workspace,
};

type Check = fn(&[File]) -> Vec<Violation>;

const CHECKS: &[(&str, Check)] = &[
    ("vendor names", vendor_names::check),
    ("forbidden words", forbidden_words::check),
    ("vocabulary", vocabulary::check),
    ("url hosts", url_hosts::check),
    ("module headers", module_headers::check),
    ("unsafe code", unsafe_code::check),
    ("file bytes", file_bytes::check),
];

/// Runs everything; an error says how many violations were printed.
pub fn run() -> Result<(), String> {
    let files = tree::read(&workspace::root())?;
    let metadata = workspace::metadata()?;
    let mut failures = 0;
    let mut report = |name: &str, violations: Vec<Violation>| {
        println!("tidy: {name}: {}", if violations.is_empty() { "ok".into() } else { violations.len().to_string() });
        for violation in &violations {
            println!("  {violation}");
        }
        failures += violations.len();
    };
    report("layering", layering::check(metadata));
    report("dead files", dead_files::check(&files, &dead_files::roots(metadata, &workspace::root())));
    for (name, check) in CHECKS {
        report(name, check(&files));
    }
    let generated = [header::run(true), ops_document::run(true)].into_iter().filter_map(Result::err);
    report("generated files", generated.map(|e| Violation::new("workspace", 0, e)).collect());
    for (name, arguments) in [
        ("formatting", &["fmt", "--all", "--", "--check", "-l"][..]),
        ("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"][..]),
    ] {
        let failed = command::run(command::cargo().args(arguments)).err();
        report(name, failed.into_iter().map(|e| Violation::new("workspace", 0, e)).collect());
    }
    println!("tidy: {}", file_sizes::summary(&files));
    if failures == 0 { Ok(()) } else { Err(format!("tidy found {failures} violations")) }
}
