//! What an operator reads where an MI355X cannot be used, from the command that ships: each failure is one line that says what is
//! wrong, where, and what to do, and nothing crashes. The emulator plays the machine.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::models;

/// What is wrong with the machine, as the emulator's variables and ours say it, and what the line must say.
struct Case {
    machine: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
}

const UNUSABLE: [Case; 4] = [
    Case {
        machine: &[("TOKENSPEED_HIP_LIBRARY", "/nowhere/libamdhip64.so.7")],
        words: &[
            "no HIP library",
            "install ROCm 6.4 or newer",
            "TOKENSPEED_HIP_LIBRARY",
            "tried: /nowhere/libamdhip64.so.7",
        ],
    },
    Case {
        machine: &[("TOKENSPEED_EMULATOR_DEVICES", "0")],
        words: &["libamdhip64.so", "no AMD GPU is visible", "/dev/kfd", "HIP_VISIBLE_DEVICES"],
    },
    Case {
        machine: &[("TOKENSPEED_EMULATOR_ARCHITECTURE", "gfx942:sramecc+:xnack-")],
        words: &["device 0 is gfx942", "gfx950", "MI355X", "HIP_VISIBLE_DEVICES"],
    },
    Case {
        machine: &[("TOKENSPEED_EMULATOR_VERSION", "60342134")],
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
    command.envs(machine.iter().copied()).output().expect("`cargo build --workspace` made the command")
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

/// The built kernels; `None`, with a word about it, if there are none.
fn built_kernels() -> Option<PathBuf> {
    let kernels = std::env::var_os("TOKENSPEED_KERNELS").map_or_else(
        || tokenspeed_tests::plugin("amd-gfx950").ancestors().nth(2).expect("target").join("kernels"),
        PathBuf::from,
    );
    let kernels = kernels.join("amd-gfx950");
    if !kernels.join("manifest.json").is_file() {
        eprintln!("not run: no kernels in {}; `cargo xtask kernels` makes them", kernels.display());
        return None;
    }
    Some(kernels)
}

/// A folder of kernels that is damaged in one place: code objects whose names begin with `code` by one byte, the manifest by `edit`.
fn damaged(kernels: &Path, to: &Path, code: Option<&str>, edit: impl Fn(&mut serde_json::Value)) {
    let folder = to.join("amd-gfx950");
    std::fs::create_dir_all(&folder).expect("a folder");
    // Where the manifest is refused, nobody looks for code.
    let files = code.map(|code| (code, std::fs::read_dir(kernels).expect("read")));
    for (code, file) in files.into_iter().flat_map(|(code, files)| files.map(move |file| (code, file))) {
        let path = file.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if name.starts_with(code) {
            let mut bytes = std::fs::read(&path).expect("read");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(folder.join(name), bytes).expect("written");
        } else if name.ends_with(".hsaco") {
            std::os::unix::fs::symlink(&path, folder.join(name)).expect("a link");
        }
    }
    let text = std::fs::read(kernels.join("manifest.json")).expect("read");
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    edit(&mut manifest);
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).expect("written");
}

/// Kernels that are not those of the plugin, or were damaged on their way.
#[test]
fn kernels_that_do_not_fit_are_refused_in_one_line() {
    let Some(kernels) = built_kernels() else { return };
    let model = models::script();
    let model = model.model();
    let run = ["run", &model, "--backend", "amd-gfx950", "--prompt", "x", "--max-tokens", "1", "--memory", "64MiB"];
    let refused = |name: &str, line: &[&str], code: Option<&str>, edit: fn(&mut serde_json::Value), words: &[&str]| {
        let folder = models::Folder::new(name);
        damaged(&kernels, folder.path(), code, edit);
        fails(&[("TOKENSPEED_KERNELS", &folder.model())], line, words);
    };
    let conform = ["conform", "amd-gfx950", "--only", "rmsnorm"];
    // A model embeds its tokens with one of these.
    let words =
        ["embedding_", ".hsaco: not what manifest.json describes", "make or install the kernels again", "sha256"];
    refused("kernels-code", &run, Some("embedding_"), |_| (), &words);
    for line in [&conform[..], &run] {
        let gone = |m: &mut serde_json::Value| {
            m["kernels"][3].as_object_mut().expect("an entry").remove("sgpr_count");
        };
        refused("kernels-field", line, None, gone, &["manifest.json", "missing field `sgpr_count`", "make or install"]);
        let newer = |m: &mut serde_json::Value| m["version"] = 2.into();
        let words =
            ["manifest.json", "version 2, this plugin reads 1", "make or install the kernels of the same build"];
        refused("kernels-version", line, None, newer, &words);
        let moved = |m: &mut serde_json::Value| m["kernels"][0]["arguments"][1]["offset"] = 12.into();
        refused("kernels-place", line, None, moved, &["manifest.json", "12, a launch puts", "make or install"]);
        let other = |m: &mut serde_json::Value| m["architecture"] = "gfx942".into();
        refused("kernels-device", line, None, other, &["manifest.json", "kernels for gfx942, not for gfx950"]);
    }
    // None at all.
    let folder = models::Folder::new("kernels-none");
    fails(&[("TOKENSPEED_KERNELS", &folder.model())], &run, &["manifest.json", "No such file", "cargo xtask kernels"]);
}

/// What an operator runs first, with the table of what kernels need: ends well, and the table has lines.
#[test]
fn the_suite_with_its_table_ends_well() {
    if built_kernels().is_none() {
        return;
    }
    let log = models::Folder::new("conform-perf");
    let launches = format!("{}/launches", log.model());
    let machine = [("TOKENSPEED_EMULATOR_CHECKS", "0"), ("TOKENSPEED_EMULATOR_COUNTERS", &launches)];
    let out = command(&machine, &["conform", "amd-gfx950", "--only", "rmsnorm", "--perf"]);
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{errors}");
    let words = |first: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
        line.unwrap_or_else(|| panic!("no line of {first}: {text}")).split_whitespace().collect::<Vec<_>>()
    };
    // Passed some, refused and failed none.
    assert!(words("rmsnorm")[1] != "0" && words("rmsnorm")[2..4] == ["0", "0"], "{text}");
    // Eight columns for every kernel, and what launches did behind those of kernels that ran.
    assert_eq!(words("row_gather").len(), 8, "{text}");
    assert!(words("rmsnorm_f32_row").len() > 12, "{text}");
}

/// Memory that the device has and somebody else uses: the plan fits, the allocation does not.
#[test]
fn memory_that_is_gone_is_named_with_what_is_left() {
    if built_kernels().is_none() {
        return;
    }
    let folder = models::script();
    let model = folder.model();
    let line = ["run", &model, "--backend", "amd-gfx950", "--prompt", "x", "--memory", "64MiB"];
    let of = |used| [("TOKENSPEED_EMULATOR_MEMORY", "1073741824"), ("TOKENSPEED_EMULATOR_USED", used)];
    let words = ["bytes of device memory", "are free", "hipMalloc", "device 0 (gfx950", "hipErrorOutOfMemory"];
    fails(&of("1073000000"), &line, &words);
    let [memory, used] = of("0");
    let plenty = command(&[memory, used, ("TOKENSPEED_EMULATOR_CHECKS", "0")], &line);
    assert!(plenty.status.success(), "{}", String::from_utf8_lossy(&plenty.stderr));
}
