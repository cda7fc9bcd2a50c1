//! What an operator reads where an MI355X cannot be used, from the command that ships: each failure is one line that says what is
//! wrong, where, and what to do, and nothing crashes. The emulator plays the machine.

use std::process::{Command, Output};

use crate::support::models;

/// What is wrong with the machine, as the emulator's variables say it, and what the line must say.
struct Case {
    machine: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
}

const UNUSABLE: [Case; 3] = [
    Case {
        machine: &[("DEVICES", "0")],
        words: &["libamdhip64.so", "no AMD GPU is visible", "/dev/kfd", "HIP_VISIBLE_DEVICES"],
    },
    Case {
        machine: &[("ARCHITECTURE", "gfx942:sramecc+:xnack-")],
        words: &["device 0 is gfx942", "gfx950", "MI355X", "HIP_VISIBLE_DEVICES"],
    },
    Case {
        machine: &[("VERSION", "60342134")],
        words: &[
            "libamdhip64.so",
            "HIP runtime 6.3.42134 is too old",
            "install ROCm 6.4 or newer",
            "TOKENSPEED_HIP_LIBRARY",
        ],
    },
];

/// Runs the built command on such a machine.
fn command(machine: &[(&str, &str)], words: &[&str]) -> Output {
    let plugin = tokenspeed_tests::plugin("amd-gfx950");
    let folder = plugin.parent().expect("a folder");
    let mut command = Command::new(folder.join("tokenspeed"));
    command.args(words).env("TOKENSPEED_HIP_LIBRARY", folder.join("libamdhip64.so"));
    if std::env::var_os("TOKENSPEED_KERNELS").is_none() {
        command.env("TOKENSPEED_KERNELS", folder.parent().expect("target").join("kernels"));
    }
    for (name, value) in machine {
        command.env(format!("TOKENSPEED_EMULATOR_{name}"), value);
    }
    command.output().expect("`cargo build --workspace` made the command")
}

/// The one line that says `words`; everything else is neither a panic nor an error.
fn the_line(text: &str, words: &[&str]) -> String {
    assert!(!text.contains("panicked"), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(words[0])).collect();
    let [line] = lines[..] else { panic!("one line with {:?}: {text}", words[0]) };
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line:?}");
    }
    line.to_string()
}

/// Ends with code 1 and, on standard error, one error of one line and at most a hint.
fn fails(machine: &[(&str, &str)], line: &[&str], words: &[&str]) {
    let out = command(machine, line);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{line:?}: {text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{line:?}: {text}");
    the_line(errors[0], words);
    assert!(!text.contains("panicked"), "{line:?}: {text}");
}

#[test]
fn machines_that_cannot_serve_are_refused_in_one_line() {
    let folder = models::script();
    let model = folder.model();
    for Case { machine, words } in &UNUSABLE {
        for line in [
            &["conform", "amd-gfx950"][..],
            &["run", &model, "--backend", "amd-gfx950", "--prompt", "x", "--max-tokens", "1"],
            &["serve", &model, "--backend", "amd-gfx950", "--port", "0"],
        ] {
            fails(machine, line, words);
        }
        // The table of backends is there all the same, and says it.
        let out = command(machine, &["backends"]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("reference-cpu"), "{text}");
        the_line(&text, words);
    }
}

/// Memory that the device has and somebody else uses: the plan fits, the allocation does not.
#[test]
fn memory_that_is_gone_is_named_with_what_is_left() {
    let kernels = std::env::var_os("TOKENSPEED_KERNELS").map_or_else(
        || tokenspeed_tests::plugin("amd-gfx950").ancestors().nth(2).expect("target").join("kernels"),
        std::path::PathBuf::from,
    );
    if !kernels.join("amd-gfx950/manifest.json").is_file() {
        eprintln!("not run: no kernels in {}; `cargo xtask kernels` makes them", kernels.display());
        return;
    }
    let folder = models::script();
    let model = folder.model();
    let line = ["run", &model, "--backend", "amd-gfx950", "--prompt", "x", "--memory", "64MiB"];
    let machine = [("MEMORY", "1073741824"), ("USED", "1073000000")];
    fails(&machine, &line, &["bytes of device memory", "are free", "hipMalloc", "device 0", "hipErrorOutOfMemory"]);
    let plenty = command(&[("MEMORY", "1073741824"), ("USED", "0"), ("CHECKS", "0")], &line);
    assert!(plenty.status.success(), "{}", String::from_utf8_lossy(&plenty.stderr));
}
