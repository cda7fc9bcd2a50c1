//! The example backend in C: built with the C compiler and the header alone, conforms at its tier and profile.

use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tokenspeed_backend_api::{
    abi::*,
    backend::{Backend, OpRecord},
    catalogue::CATALOGUE,
    conform,
    loader::{self, SearchPaths},
};

fn example() -> Backend {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let path = BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libtokenspeed_example.so");
        let out = Command::new("cc")
            .args(["-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .arg("-I")
            .arg(root.join("backend-api/include"))
            .arg(root.join("backends/example-c/example.c"))
            .args(["-lm", "-o"])
            .arg(&path)
            .output()
            .expect("a C compiler called cc");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        path
    });
    loader::load(path.to_str().unwrap(), &SearchPaths::default()).unwrap()
}

#[test]
fn it_conforms_at_its_tier_and_profile() {
    let backend = example();
    let info = backend.info();
    assert_eq!((info.tiers, info.profiles), (0, TS_PROFILE_LLAMA));
    let device = backend.open(0, &[]).unwrap();
    let options = conform::Options { seed: 11, ..Default::default() };
    let report = conform::run(&device, info.tiers, info.profiles, &options).unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn what_it_cannot_do_is_refused_with_a_reason() {
    let device = example().open(0, &[]).unwrap();
    assert!(!device.has_programs() && !device.can_import() && !device.host_mapped());
    let mut fused = 0;
    for entry in CATALOGUE.iter().filter(|e| e.kind.is_fused()) {
        for case in (entry.cases)(1) {
            let operands = case.operands.iter().map(|o| o.tensor.to_abi()).collect();
            let op = OpRecord::new(entry.kind, operands, case.attrs, "fused");
            let support = device.op_support(&op).unwrap();
            assert!(!support.is_supported());
            // Formats come first; a fused op's weights may be in one that it lacks.
            let reasons = ["not among the ops of this backend", "element formats are f32"];
            assert!(reasons.iter().any(|r| support.reason.starts_with(r)), "{}", support.reason);
            fused += 1;
        }
    }
    assert!(fused > 0);
    let error = example().open(0, &[("threads", "4")]).unwrap_err().to_string();
    assert!(error.contains("unknown option threads=4; known options: none"), "{error}");
    let error = example().open(1, &[]).unwrap_err().to_string();
    assert!(error.contains("device 1 does not exist"), "{error}");
}
