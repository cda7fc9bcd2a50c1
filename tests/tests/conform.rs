//! The conformance suite on the backends of this repository: every op and case they claim.

use tokenspeed_backend_api::{
    conform::{self, Options, Report},
    loader::{SearchPaths, load},
};
use tokenspeed_reference_cpu as _;

fn run(options: &[(&str, &str)]) -> Report {
    run_on("reference-cpu", options)
}

fn run_on(name_or_path: &str, options: &[(&str, &str)]) -> Report {
    let backend = load(name_or_path, &SearchPaths::only([])).unwrap();
    let device = backend.open(0, options).unwrap();
    let info = backend.info();
    conform::run(&device, info.tiers, info.profiles, &Options { seed: 7, ..Options::default() }).unwrap()
}

#[test]
fn exact_mode_conforms() {
    let report = run(&[("mode", "exact"), ("threads", "2")]);
    assert!(report.passed(), "{report}");
}

#[test]
fn fast_mode_conforms_on_every_tier_of_this_machine() {
    for isa in ["portable", "avx2", "avx512", "amx", "auto"] {
        let backend = load("reference-cpu", &SearchPaths::only([])).unwrap();
        if backend.open(0, &[("isa", isa)]).is_err() {
            continue;
        }
        for threads in ["1", "2"] {
            let report = run(&[("mode", "fast"), ("isa", isa), ("threads", threads)]);
            assert!(report.passed(), "{isa}, {threads} threads:\n{report}");
        }
    }
}

/// The same table through the dynamic loader: what a vendor ships is what is tested.
#[test]
fn the_plugin_conforms_as_the_embedded_backend_does() {
    let plugin = tokenspeed_tests::plugin("reference-cpu");
    let report = run_on(plugin.to_str().unwrap(), &[("mode", "fast"), ("threads", "2")]);
    assert!(report.passed(), "{report}");
    assert_eq!(report.totals(), run(&[("mode", "fast"), ("threads", "2")]).totals());
}
