//! The kernels of Kimi Delta Attention, Attention Residuals and the ops around them against the catalogue: every tier of
//! this machine, one worker and several.

use tokenspeed_backend_api::{
    conform::{self, Options},
    loader::{SearchPaths, load},
};
use tokenspeed_reference_cpu as _;

const OPS: [&str; 19] = [
    "slice",
    "concat",
    "sigmoid",
    "l2norm",
    "short_conv",
    "kda_gate",
    "kda_step",
    "kda_verify",
    "kda_record",
    "kda_replay",
    "kda_chunk",
    "attn_res_mix",
    "attn_res_scores",
    "attn_res_partial",
    "attn_res_combine",
    "situ_mul",
    "router_topk",
    "sigmoid_mul",
    "gated_rmsnorm",
];

#[test]
fn kernels_conform_on_every_tier_with_any_number_of_workers() {
    let backend = load("reference-cpu", &SearchPaths::only([])).unwrap();
    for isa in ["portable", "avx2", "avx512", "amx"] {
        for threads in ["1", "2", "5"] {
            let Ok(device) = backend.open(0, &[("isa", isa), ("threads", threads)]) else { continue };
            for op in OPS {
                let options = Options { seed: 11, only: Some(op.into()), ..Options::default() };
                let report = conform::run(&device, backend.info().tiers, 0, &options).unwrap();
                assert!(report.passed(), "{isa}, {threads} threads:\n{report}");
                let line = report.lines.iter().find(|l| l.kind.name() == op).expect(op);
                assert!(line.passed > 0 && line.implementations.iter().any(|i| i.starts_with(op)), "{op}:\n{report}");
            }
        }
    }
}
