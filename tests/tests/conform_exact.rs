use tokenspeed_backend_api::{backend::Backend, conform, sdk};
use tokenspeed_reference_cpu::ReferenceCpu;

#[test]
fn exact_mode_conforms() {
    // SAFETY: the entry of a backend of this build.
    let backend = unsafe { Backend::from_entry(sdk::entry::<ReferenceCpu>, "embedded") }.unwrap();
    let device = backend.open(0, &[("mode", "exact"), ("threads", "2")]).unwrap();
    let info = backend.info();
    let report = conform::run(&device, info.tiers, info.profiles, &conform::Options { seed: 7, ..Default::default() }).unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
}
