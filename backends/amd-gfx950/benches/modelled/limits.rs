//! What a row's first line must keep beside the gate on bytes: absolute limits, by how its title begins.
//!
//! A limit is today's figure, rounded away from it by a point or two of a sample's noise: what gets worse is found, what is not good is accepted with
//! its reason. Registers and waves are those of the launch that takes longest; each kernel's own are kept by
//! `tests/emulated/gates.rs`, launches of a layer by `tests/tests/system/gfx950_launches.rs`.

use crate::{launches::Sum, rows::Row};

/// The least that a row keeps.
struct Limit {
    /// Words of the title, the first of which begins it; of several limits the first that has all of them holds.
    words: &'static [&'static str],
    /// Most of the LDS cycles that may be conflicts.
    conflicts: f64,
    /// Least share of the time that matrix units are busy, in steps that they should bound.
    matrix: f64,
    /// Most registers, and least waves per SIMD.
    occupancy: [u32; 2],
}

const fn limit(words: &'static [&'static str], conflicts: f64, matrix: f64, occupancy: [u32; 2]) -> Limit {
    Limit { words, conflicts, matrix, occupancy }
}

/// Conflicts that nothing has to be said about.
const FEW: f64 = 0.06;

#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    // A state and a chunk's products stay in registers. L1 bounds it: conflicts are hidden, so no layout was made against them.
    limit(&["KDA prefill"], 0.35, 0.22, [368, 1]),
    limit(&["KDA decode, 64"], FEW, 0.0, [368, 1]),
    // Decays are read by four bytes, from rows that are shifted for the product that makes them: of few LDS cycles a good part. The state and
    // what finds a later block's factors stay in registers through all tokens.
    limit(&["KDA decode"], 0.21, 0.0, [208, 2]),
    limit(&["KDA verify"], 0.10, 0.0, [192, 2]),
    // Expanded: two groups of waves share a unit, scores and sums of a tile in registers. Keys and values are made in front of it, without
    // which short prompts would be nearer to the bound.
    limit(&["MLA prefill 4,096", "projections", "expanded"], FEW, 0.59, [232, 2]),
    limit(&["MLA prefill 8,192 behind", "projections", "expanded"], FEW, 0.88, [232, 2]),
    limit(&["MLA prefill 8,192", "projections", "expanded"], FEW, 0.65, [232, 2]),
    limit(&["MLA prefill 8,192 behind", "projections"], FEW, 0.92, [232, 2]),
    limit(&["MLA prefill 8,192", "projections"], FEW, 0.72, [232, 2]),
    limit(&["MLA prefill 4,096", "projections"], 0.07, 0.69, [232, 2]),
    // Absorbed: a tile's sums of 512 columns take a SIMD's registers. e4m3 rows are widened by vector instructions on the way.
    limit(&["MLA prefill 4,096", "fp8"], FEW, 0.67, [384, 1]),
    limit(&["MLA prefill 8,192", "fp8"], FEW, 0.72, [384, 1]),
    limit(&["MLA prefill"], FEW, 0.80, [368, 1]),
    limit(&["MLA verify"], FEW, 0.0, [280, 1]),
    limit(&["AttnRes of 9 in two parts"], FEW, 0.0, [40, 8]),
    limit(&["AttnRes"], FEW, 0.0, [128, 4]),
    // The sort's counters are random places; it takes a few of a hundred microseconds and more, which HBM bounds.
    limit(&["experts, 32 tokens"], 0.25, 0.0, [136, 3]),
    limit(&["experts, 64 tokens"], 0.16, 0.0, [136, 3]),
    limit(&["experts, 4096"], FEW, 0.80, [144, 3]),
    limit(&["experts, 8192"], FEW, 0.69, [144, 3]),
    limit(&["experts"], FEW, 0.0, [144, 3]),
    // L1 bounds large products of e4m3 factors: a tile's rows of both come through it. Launches that make factors are in front of them.
    limit(&["GEMM with e4m3", "8192"], FEW, 0.47, [176, 2]),
    limit(&["MoE input with e4m3", "8192"], FEW, 0.69, [256, 2]),
    limit(&["MoE output with e4m3", "8192"], FEW, 0.52, [240, 2]),
    limit(&["GEMM with e4m3"], FEW, 0.0, [144, 3]),
    limit(&["MoE input with e4m3"], FEW, 0.0, [120, 4]),
    limit(&["MoE output with e4m3"], FEW, 0.0, [112, 4]),
    // Matrix units and L1 bound large products of bf16 factors alike: tiles that the last round of compute units lacks are the rest.
    limit(&["GEMM", "8192"], FEW, 0.87, [152, 3]),
    limit(&["MoE input", "8192"], FEW, 0.96, [192, 2]),
    limit(&["MoE output", "8192"], FEW, 0.90, [184, 2]),
    // Tiles of the compiler's products, where HBM bounds them: their conflicts are hidden.
    limit(&["MoE input, 64"], FEW, 0.0, [128, 4]),
    limit(&["MoE input"], 0.20, 0.0, [80, 6]),
    limit(&["MoE output"], FEW, 0.0, [144, 3]),
    limit(&["gate, up and SiLU"], FEW, 0.0, [160, 3]),
    limit(&["GEMM", "64 tokens"], FEW, 0.0, [128, 4]),
    limit(&["GEMM head"], 0.27, 0.0, [112, 4]),
    limit(&["GEMM"], 0.20, 0.0, [112, 4]),
];

/// What the first line of a row does not keep.
pub fn problems(row: &Row, s: &Sum) -> Vec<String> {
    let title = &row.title;
    let Some(limit) = find(title) else { return vec![format!("{title}: no limits in `limits.rs`")] };
    let mut out = Vec::new();
    let conflicts = s.conflicts().unwrap_or_default();
    if conflicts > limit.conflicts {
        out.push(format!("{title}: {conflicts:.3} of LDS cycles are conflicts, {} at most", limit.conflicts));
    }
    let matrix = s.matrix_micros / s.micros.max(1e-9);
    if matrix < limit.matrix {
        out.push(format!("{title}: matrix units are busy for {matrix:.3} of the time, {} at least", limit.matrix));
    }
    let ((_, kernel, [registers, waves, _], _), [most, least]) = (&s.longest, limit.occupancy);
    if *registers > most || *waves < least {
        out.push(format!(
            "{title}: {kernel} has {registers} registers and {waves} waves, {most} and {least} are the limits"
        ));
    }
    out
}

fn find(title: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|l| title.starts_with(l.words[0]) && l.words.iter().all(|word| title.contains(word)))
}
