//! Plugins that are wrong in one way each, and what the loader says about them.
//!
//! Regressions for two kinds of public report. *plugin ABI mismatch*: host and plugin of different versions crashed on
//! load, or later, on a struct of another size. *library not found message*: a missing vendor library gave a riddle, or
//! a silent fall back. Here every fault is one line that says what was found, what was wanted and what to do; nothing
//! of a refused plugin is called again; the other backends stay usable.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tokenspeed_backend_api::{
    abi::*,
    backend::{ArenaKind, OpRecord},
    loader::{self, LoadError, SearchLog, SearchPaths},
    negotiate::NegotiationError,
    op::{Attrs, OpKind},
};
use tokenspeed_null as _;
use tokenspeed_reference_cpu as _;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// An empty folder of this test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn cc(output: &Path, source: &Path, arguments: &[&str]) {
    let out = Command::new("cc")
        .args([
            "-std=c11",
            "-O1",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fvisibility=hidden",
        ])
        .arg("-I")
        .arg(root().join("backend-api/include"))
        .arg(source)
        .args(arguments)
        .arg("-o")
        .arg(output)
        .output()
        .expect("a C compiler called cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Builds the faulty plugin with some macros.
fn faulty(folder: &Path, file: &str, macros: &[&str]) -> PathBuf {
    let path = folder.join(file);
    let arguments: Vec<String> = macros.iter().map(|m| format!("-D{m}")).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cc(&path, &root().join("tests/plugins/fault.c"), &arguments);
    path
}

/// The one line of a refused path.
fn refusal(path: &Path) -> String {
    let error = loader::load(path.to_str().unwrap(), &SearchPaths::default()).expect_err("should be refused");
    let line = error.to_string();
    assert!(!line.contains('\n'), "more than one line: {line}");
    assert!(line.contains(path.file_name().unwrap().to_str().unwrap()), "no path: {line}");
    line
}

#[track_caller]
fn assert_says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "`{part}` is missing in: {line}");
    }
}

#[test]
fn a_right_plugin_loads() {
    let path = faulty(&folder("right"), "right.so", &[]);
    let backend = loader::load(path.to_str().unwrap(), &SearchPaths::default()).unwrap();
    assert_eq!((backend.name(), backend.info().abi_version), ("faulty", TS_ABI_VERSION));
    assert!(!backend.has_programs());
    assert_eq!(backend.device_count().unwrap(), 1);
}

#[test]
fn plugin_abi_mismatch_newer() {
    let line = refusal(&faulty(&folder("newer"), "newer.so", &["NEWER"]));
    assert_says(&line, &["found ABI version 2.0, wanted 1.0 to 1.0", "upgrade the program"]);
    let line = refusal(&faulty(&folder("honest"), "honest.so", &["HONESTLY_NEWER"]));
    assert_says(&line, &["this host speaks 1.0 to 1.0", "the plugin says: this plugin speaks ABI 2.0 to 2.3"]);
}

#[test]
fn plugin_abi_mismatch_older() {
    let line = refusal(&faulty(&folder("older"), "older.so", &["OLDER"]));
    assert_says(&line, &["found ABI version 0.9, wanted 1.0 to 1.0", "too old; rebuild it"]);
}

#[test]
fn plugin_abi_mismatch_struct_size() {
    let line = refusal(&faulty(&folder("short"), "short.so", &["SHORT_TABLE"]));
    let (found, wanted) = (std::mem::offset_of!(ts_backend_table, event_wait), size_of::<ts_backend_table>());
    assert_says(&line, &["`event_wait` is missing", &format!("filled {found} of {wanted} table bytes")]);
}

#[test]
fn missing_mandatory_entry_is_named() {
    let line = refusal(&faulty(&folder("entry"), "entry.so", &["MISSING_ENTRY"]));
    assert_says(&line, &["mandatory entry `op_launch` is missing"]);
}

#[test]
fn claimed_tiers_must_be_complete() {
    let line = refusal(&faulty(&folder("t1"), "t1.so", &["CLAIMS_PROGRAMS"]));
    assert_says(&line, &["claims tier T1 (programs) but entry `program_prepare` is missing"]);
    let line = refusal(&faulty(&folder("t2"), "t2.so", &["CLAIMS_COLLECTIVES"]));
    assert_says(&line, &["claims tier T2 (collectives) but entry `group_create` is missing"]);
}

#[test]
fn errors_of_init_are_passed_on() {
    let line = refusal(&faulty(&folder("init"), "init.so", &["INIT_ERROR"]));
    assert_says(&line, &["the driver is version 3.1, this plugin needs 6.0"]);
    let line = refusal(&faulty(&folder("silent"), "silent.so", &["INIT_ERROR_WITHOUT_WORDS"]));
    assert_says(&line, &["ts_backend_entry failed: unknown status: no reason given"]);
}

#[test]
fn missing_symbol() {
    let line = refusal(&faulty(&folder("symbol"), "symbol.so", &["WRONG_SYMBOL"]));
    assert_says(&line, &["found no symbol `ts_backend_entry`", "not a TokenSpeed backend"]);
}

#[test]
fn names_are_checked() {
    let line = refusal(&faulty(&folder("name"), "name.so", &["NAME=\"My Card\""]));
    assert_says(&line, &["backend_info: name `My Card` is not made of a-z, 0-9, - and _"]);
}

#[test]
fn another_layout_library_is_refused() {
    let line = refusal(&faulty(&folder("root"), "root.so", &["WRONG_ROOT_MODULE"]));
    assert_says(&line, &["built against another interface", "abi_stable", "rebuild the plugin"]);
}

#[test]
fn library_not_found_message() {
    let folder = folder("dependency");
    let vendor = folder.join("libvendor_runtime.so.6");
    fs::write(folder.join("vendor.c"), "int vendor_runtime_start(void); int vendor_runtime_start(void) { return 0; }")
        .unwrap();
    cc(&vendor, &folder.join("vendor.c"), &["-Wl,-soname,libvendor_runtime.so.6", "-fvisibility=default"]);
    let path = folder.join("needs.so");
    let source = root().join("tests/plugins/fault.c");
    cc(&path, &source, &["-DUNDEFINED_FUNCTION", vendor.to_str().unwrap()]);
    fs::remove_file(&vendor).unwrap();
    assert_says(&refusal(&path), &["needs libvendor_runtime.so.6, which the system cannot load", "LD_LIBRARY_PATH"]);
    // Nothing linked at all: found at load, not at the first call.
    let line = refusal(&faulty(&folder, "undefined.so", &["UNDEFINED_FUNCTION"]));
    assert_says(&line, &["the dynamic linker refused it", "undefined symbol: vendor_runtime_start"]);
}

#[test]
fn corrupt_files() {
    let folder = folder("corrupt");
    let good = fs::read(faulty(&folder, "good.so", &["NAME=\"corrupt-test\""])).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    assert_says(&refusal(&write("empty.so", b"")), &["found an empty file", "wanted a shared library"]);
    assert_says(&refusal(&write("text.so", b"#!/bin/sh\n")), &["found a script"]);
    assert_says(&refusal(&write("lfs.so", b"version https://git-lfs.github.com/spec/v1")), &["Git LFS pointer"]);
    assert_says(&refusal(&write("head.so", &good[..20])), &["found 20 bytes, wanted at least 64", "cut off"]);
    for cut in [64, 1000, good.len() / 2, good.len() - 1] {
        let line = refusal(&write("cut.so", &good[..cut]));
        assert_says(&line, &[&format!("found {cut} bytes, wanted at least"), "copy it again"]);
    }
    // The same header, for another processor, and for a 32-bit one.
    let mut other = good.clone();
    other[18..20].copy_from_slice(if cfg!(target_arch = "aarch64") { &[62, 0] } else { &[183, 0] });
    let found = if cfg!(target_arch = "aarch64") { "x86_64" } else { "aarch64" };
    let wanted = std::env::consts::ARCH;
    assert_says(&refusal(&write("other.so", &other)), &[&format!("a library for {found}, wanted {wanted}")]);
    let mut narrow = good.clone();
    narrow[4] = 1;
    assert_says(&refusal(&write("narrow.so", &narrow)), &["32 bit", "install the build for this machine"]);
    let mut program = good;
    program[16] = 1;
    assert_says(&refusal(&write("program.so", &program)), &["a program or an object file"]);
    assert_says(&refusal(&folder.join("absent.so")), &["cannot read the plugin", "No such file"]);
}

fn manifest(folder: &Path, name: &str, library: &str, abi: &str) {
    let text = format!(r#"{{"name": "{name}", "library": "{library}", "abi": "{abi}"}}"#);
    fs::write(folder.join(format!("{name}.tokenspeed-backend.json")), text).unwrap();
}

#[test]
fn found_by_manifest_and_by_file_name() {
    let folder = folder("found");
    faulty(&folder, "vendor.so", &["NAME=\"by-manifest\""]);
    manifest(&folder, "by-manifest", "vendor.so", "1.0");
    faulty(&folder, "libtokenspeed_by_file.so", &["NAME=\"by-file\""]);
    let search = SearchPaths::only([folder.clone()]);
    for name in ["by-manifest", "by-file"] {
        let mut log = SearchLog::default();
        let backend = loader::load_logged(name, &search, &mut log).unwrap();
        assert_eq!(backend.name(), name);
        assert_says(&log.steps.join("\n"), &["embedded: no", "leads to", "the C table alone"]);
    }
    let error = loader::load("by-nothing", &search).unwrap_err();
    let line = error.to_string();
    assert_says(&line, &["no backend is called `by-nothing`", folder.to_str().unwrap(), "TOKENSPEED_BACKEND_PATH"]);
    assert!(!line.contains('\n'), "{line}");
}

#[test]
fn a_plugin_listed_twice_is_one_plugin() {
    let folder = folder("twice");
    let library = faulty(&folder, "libtokenspeed_twice.so", &["NAME=\"twice\""]);
    manifest(&folder, "twice", "libtokenspeed_twice.so", "1.0");
    let search = SearchPaths::only([folder.clone(), library, folder]);
    let mut log = SearchLog::default();
    loader::load_logged("twice", &search, &mut log).unwrap();
    assert_says(&log.steps.join("\n"), &["is listed twice"]);
    let all = loader::discover(&search, &mut SearchLog::default());
    assert_eq!(all.iter().flatten().filter(|b| b.name() == "twice").count(), 1);
}

#[test]
fn two_plugins_of_one_name_are_ambiguous() {
    let folder = folder("ambiguous");
    faulty(&folder, "libtokenspeed_double.so", &["NAME=\"double\""]);
    faulty(&folder, "other.so", &["NAME=\"double\""]);
    manifest(&folder, "double", "other.so", "1.0");
    let error = loader::load("double", &SearchPaths::only([folder])).unwrap_err();
    assert!(matches!(error, LoadError::Ambiguous { .. }), "{error}");
    assert_says(&error.to_string(), &["other.so", "libtokenspeed_double.so", "give the path"]);
}

#[test]
fn manifests_are_checked_before_code_runs() {
    let folder = folder("manifest");
    faulty(&folder, "vendor.so", &["NAME=\"future\""]);
    manifest(&folder, "future", "vendor.so", "2.0");
    let search = SearchPaths::only([folder.clone()]);
    let error = loader::load("future", &search).unwrap_err().to_string();
    assert_says(&error, &["future.tokenspeed-backend.json", "found a plugin for ABI 2.0, wanted 1.0 to 1.0"]);
    manifest(&folder, "future", "gone.so", "1.0");
    assert_says(&loader::load("future", &search).unwrap_err().to_string(), &["gone.so: cannot read the plugin"]);
    manifest(&folder, "misnamed", "vendor.so", "1.0");
    let error = loader::load("misnamed", &search).unwrap_err().to_string();
    assert_says(&error, &["found backend `future`, wanted `misnamed`", "misnamed.tokenspeed-backend.json"]);
}

#[test]
fn a_bad_plugin_does_not_hide_the_others() {
    let folder = folder("others");
    faulty(&folder, "libtokenspeed_bad.so", &["NEWER"]);
    faulty(&folder, "libtokenspeed_fine.so", &["NAME=\"fine\""]);
    fs::write(folder.join("broken.tokenspeed-backend.json"), "{").unwrap();
    let all = loader::discover(&SearchPaths::only([folder.clone()]), &mut SearchLog::default());
    let names: Vec<_> = all.iter().flatten().map(|b| b.name().to_owned()).collect();
    assert!(names.contains(&"null".to_owned()) && names.contains(&"fine".to_owned()), "{names:?}");
    let refused: Vec<_> = all.iter().filter_map(|r| r.as_ref().err()).collect();
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.iter().any(|e| matches!(e, LoadError::Refused { source: NegotiationError::Version { .. }, .. })));
    loader::load("null", &SearchPaths::only([folder])).expect("the embedded backend is still there");
}

#[test]
fn errors_of_calls_are_one_line() {
    let path = faulty(&folder("calls"), "calls.so", &["NAME=\"calls\""]);
    let backend = loader::load(path.to_str().unwrap(), &SearchPaths::default()).unwrap();
    let device = backend.open(0, &[]).unwrap();
    assert_eq!(
        device.arena_alloc(ArenaKind::Weights, 1 << 30).unwrap_err().to_string(),
        "calls: arena_alloc: out of memory: card 3 has 12 MB left (device 0, vendor code 1002)"
    );
    assert_says(&device.queue_create().unwrap_err().to_string(), &["queue_create: unknown status: status 4242"]);
    let op = OpRecord::new(OpKind::Gemm, vec![], Attrs::default(), "x");
    assert_says(&device.op_support(&op).unwrap_err().to_string(), &["asks to pack operand 0", "no op_pack entry"]);
    let path = faulty(&folder("nothing"), "nothing.so", &["NAME=\"nothing\"", "OPENS_NOTHING"]);
    let backend = loader::load(path.to_str().unwrap(), &SearchPaths::default()).unwrap();
    assert_says(&backend.open(0, &[]).unwrap_err().to_string(), &["device_open", "without giving an object"]);
}

#[test]
fn two_embedded_backends_live_in_one_binary() {
    for name in ["null", "reference-cpu"] {
        let backend = loader::load(name, &SearchPaths::default()).unwrap();
        assert_eq!((backend.name(), backend.origin()), (name, "embedded"));
        backend.open(0, &[]).unwrap().arena_alloc(ArenaKind::Cache, 64).unwrap();
    }
}

/// The Rust plugin, built the way users build it: both entries, the layout check passes, and it is another library than
/// the copy linked into this test.
#[test]
fn the_rust_plugin_loads_beside_its_embedded_twin() {
    let path = tokenspeed_tests::plugin("null");
    let mut log = SearchLog::default();
    let plugin = loader::load_logged(path.to_str().unwrap(), &SearchPaths::default(), &mut log).unwrap();
    assert_says(&log.steps.join("\n"), &["Rust root module matches"]);
    let embedded = loader::load("null", &SearchPaths::default()).unwrap();
    assert_eq!(plugin.info(), embedded.info());
    assert_ne!(plugin.origin(), embedded.origin());
    let device = plugin.open(0, &[]).unwrap();
    assert!(device.has_programs());
    device.arena_alloc(ArenaKind::Cache, 100).unwrap();
}
