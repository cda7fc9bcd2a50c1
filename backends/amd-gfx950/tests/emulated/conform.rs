//! Every op that the backend claims, through its ABI table, against the catalogue's references: guard bytes, rows beyond the
//! step's count, repetition, `program_run` (captured), tokens alone. All checks of the emulator are on; `configure` changes
//! the interleaving. One test per op, so that they run side by side.

use tokenspeed_backend_api::{
    catalogue::{CATALOGUE, Case},
    conform::{self, OpLine, Options},
    op::OpKind,
    record::OpRecord,
};

use tokenspeed_amd_gfx950::GRAPH_TOKENS;

use crate::support::{backend_device, configure, emulator, long_tests, report};

/// Ops whose cases take more than a second of a core: in one interleaving in every run, where the others have two.
const DEAR: &[&str] =
    &["experts", "gemm", "kda_chunk", "kda_replay", "mla_attention", "mla_mix", "paged_attention", "sample"];

/// Rows of capacity that the suite's programs have beyond the step's.
const SPARE: usize = 3;

/// Interleavings of waves and work-groups.
fn seeds(op: &str) -> std::ops::Range<u64> {
    match (long_tests(), DEAR.contains(&op)) {
        (true, _) => 0..8,
        (false, true) => 0..1,
        (false, false) => 0..2,
    }
}

fn conforms(op: &str, options: &[(&str, &str)]) {
    conforms_and(op, options, |line, seed| {
        // What is captured in name alone would be launched one by one, with the same bits.
        let entry = CATALOGUE.iter().find(|e| e.kind.name() == op).unwrap();
        let large = |case: &Case| case.step.tokens.len() + SPARE > GRAPH_TOKENS as usize;
        let large = (entry.cases)(seed).iter().filter(|case| large(case)).count();
        let launched = line.passed - line.captured;
        assert!(launched <= large && line.captured > 0, "{op}: {launched} programs not captured, {large} are large");
    });
}

fn conforms_and(op: &str, options: &[(&str, &str)], check: impl Fn(&OpLine, u64)) {
    let Some((backend, device)) = backend_device(options) else { return };
    for seed in seeds(op) {
        configure(emulator(), true, seed);
        let only = Options { seed: 11 + seed, only: Some(op.into()), ..Options::default() };
        let done = match conform::run(&device, backend.info().tiers, 0, &only) {
            Ok(done) => done,
            Err(error) => panic!("{op}: {error}\n{}", report(emulator())),
        };
        let line = done.lines.iter().find(|l| l.kind.name() == op).unwrap_or_else(|| panic!("no op {op}"));
        assert!(done.passed() && line.passed > 0, "{op}, interleaving {seed}:\n{done}");
        check(line, only.seed);
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
fn nothing_is_captured_where_graphs_are_off() {
    conforms_and("rmsnorm", &[("graphs", "off")], |line, _| assert_eq!(line.captured, 0));
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

/// The portable layer by itself is a second reference: an op of each family, and all whose kernels it has others for.
mod portable {
    use super::*;

    const PORTABLE: [(&str, &str); 1] = [("kernels", "portable")];

    /// What it leaves to its parts; these are among the ops below.
    const FUSED: [OpKind; 4] = [OpKind::KdaMix, OpKind::MlaMix, OpKind::MoeInput, OpKind::MoeOutput];

    macro_rules! ops {
        ($($op:ident;)*) => {
            $(#[test]
            fn $op() {
                conforms(stringify!($op), &PORTABLE);
            })*

            const EVERY_RUN: &[&str] = &[$(stringify!($op)),*];
        };
    }

    ops! {
        add;
        attn_res_mix;
        experts;
        gemm;
        kda_step;
        kv_move;
        mla_attention;
        paged_attention;
        rmsnorm;
        router_topk;
        row_gather;
        sample;
    }

    /// With its f32 factors, and all other ops.
    #[test]
    fn every_other_op() {
        if !long_tests() {
            return eprintln!("not run: a long test");
        }
        let both = [PORTABLE[0], ("precision", "f32")];
        let fused = |k: &OpKind| FUSED.contains(k) || tokenspeed_amd_gfx950::ops::entry(*k).is_none();
        for kind in OpKind::ALL.into_iter().filter(|k| !fused(k)) {
            if !EVERY_RUN.contains(&kind.name()) {
                conforms(kind.name(), &PORTABLE);
            }
            conforms(kind.name(), &both);
        }
    }

    /// Whatever case the best kernels take, it takes, but for ops that have parts.
    #[test]
    fn what_the_best_kernels_take_it_takes() {
        let Some((_best, best)) = backend_device(&[]) else { return };
        let Some((_portable, portable)) = backend_device(&PORTABLE) else { return };
        for entry in &CATALOGUE {
            for case in (entry.cases)(11) {
                let operands = case.operands.iter().map(|o| o.tensor.to_abi()).collect();
                let op = OpRecord::new(case.kind, operands, case.attrs, case.name.clone());
                let [best, portable] = [&best, &portable].map(|d| d.op_support(&op).unwrap().is_supported());
                let parts = FUSED.contains(&case.kind) && entry.decompose.is_some();
                assert!(best == portable || best && parts, "{} {}", case.kind, case.name);
            }
        }
    }
}
