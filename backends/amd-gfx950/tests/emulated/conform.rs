//! Every op that the backend claims, through its ABI table, against the catalogue's references: guard bytes, rows beyond the
//! step's count, repetition, `program_run` (captured), tokens alone. All checks of the emulator are on; `configure` changes
//! the interleaving. One test per op, so that they run side by side.

use tokenspeed_backend_api::conform::{self, Options};

use crate::support::{backend_device, configure, emulator, report};

/// Interleavings of waves and work-groups; `TOKENSPEED_LONG_TESTS` runs more.
fn seeds() -> std::ops::Range<u64> {
    if std::env::var_os("TOKENSPEED_LONG_TESTS").is_some() { 0..8 } else { 0..1 }
}

fn conforms(op: &str, options: &[(&str, &str)]) {
    let Some((backend, device)) = backend_device(options) else { return };
    for seed in seeds() {
        configure(emulator(), true, seed);
        let only = Options { seed: 11 + seed, only: Some(op.into()), ..Options::default() };
        let done = match conform::run(&device, backend.info().tiers, 0, &only) {
            Ok(done) => done,
            Err(error) => panic!("{op}: {error}\n{}", report(emulator())),
        };
        let line = done.lines.iter().find(|l| l.kind.name() == op).unwrap_or_else(|| panic!("no op {op}"));
        assert!(done.passed() && line.passed > 0, "{op}, interleaving {seed}:\n{done}");
    }
}

macro_rules! ops {
    ($($op:ident $(: $precision:literal)*;)*) => {$(
        #[test]
        fn $op() {
            conforms(stringify!($op), &[]);
            // Products are also held to f32, which tells a mistake from rounding, and where they take e4m3 to what that rounds.
            $(conforms(stringify!($op), &[("precision", $precision)]);)*
        }
    )*};
}

ops! {
    add;
    add_rmsnorm;
    attn_res_combine;
    attn_res_mix;
    attn_res_partial;
    attn_res_scores;
    concat;
    copy;
    embedding;
    experts: "f32": "fp8";
    gated_rmsnorm;
    gemm: "f32": "fp8";
    kda_chunk: "f32";
    kda_gate;
    kda_mix: "f32";
    kda_record;
    kda_replay: "f32";
    kda_step;
    kda_verify;
    kv_move;
    kv_read;
    kv_write;
    l2norm;
    mla_absorb: "f32";
    mla_attention: "f32";
    mla_mix;
    mla_value: "f32";
    mla_write;
    moe_input: "f32": "fp8";
    moe_output: "f32": "fp8";
    mul;
    paged_attention: "f32";
    rmsnorm;
    rope;
    router_topk;
    row_gather;
    sample;
    short_conv;
    sigmoid;
    sigmoid_mul;
    silu;
    silu_mul;
    situ_mul;
    slice;
    table_update;
}

#[test]
fn every_op_of_the_table_has_a_test() {
    // The list above is the list of the table: an op added there without a line here is found.
    let source = include_str!("conform.rs");
    for kind in tokenspeed_backend_api::op::OpKind::ALL {
        if tokenspeed_amd_gfx950::ops::entry(kind).is_some() {
            let line = [format!("\n    {kind};"), format!("\n    {kind}: \"f32\"")];
            assert!(line.iter().any(|l| source.contains(l.as_str())), "{kind} has no line in ops!");
        }
    }
}
