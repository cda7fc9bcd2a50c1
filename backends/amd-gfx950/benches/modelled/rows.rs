//! The rows: steps of a Kimi K3 rank of eight (12 heads of 128, hidden 7168, latent space 3584, 896 experts of 384 columns).
//!
//! A row is data: to add one, write its ops, and its portable ops where they are others. Published ratios are those that
//! TokenSpeed's pull requests and tutorials report for the same step of their kernels against what they replaced, on hardware.

use tokenspeed_backend_api::{dtype::DType, graph::Vary, op::OpKind};

use crate::op::Op;

const HIDDEN: u64 = 7168;
const HEADS: u64 = 12;
const DIM: u64 = 128;
const CHANNELS: u64 = HEADS * DIM;
const LATENT: u64 = 3584;
const EXPERTS: u64 = 896;
const CHOSEN: u64 = 16;
const COLUMNS: u64 = 384;
const PAGE: u64 = 64;

/// One step, by two sets of kernels.
pub struct Row {
    /// Name in the table.
    pub title: String,
    /// Its ops with two sets of kernels.
    pub ops: [Vec<Op>; 2],
    /// Multiply-adds that the mathematics needs, of those that matrix units do; 0 = nothing worth counting.
    pub macs: f64,
    /// The gate on bytes applies.
    pub memory_bound: bool,
    /// Most coordinates per axis that run; 0 = all.
    pub sample: u32,
    /// For rows of one op, whose launches share their memory: the best kernels run whole, behind a memory-side cache, with products
    /// that are counted and not computed; so do the portable ones unless they are sampled.
    pub behind: bool,
    /// What is published for the same step.
    pub published: &'static str,
}

fn row(
    title: String,
    make: impl Fn() -> Op,
    macs: f64,
    memory_bound: bool,
    sample: u32,
    published: &'static str,
) -> Row {
    Row { title, ops: [vec![make()], vec![make()]], macs, memory_bound, sample, behind: false, published }
}

/// A row of several ops without products that matrix units bound, run whole.
fn bound_by_bytes(title: String, ops: [Vec<Op>; 2], published: &'static str) -> Row {
    Row { title, ops, macs: 0.0, memory_bound: true, sample: 0, behind: false, published }
}

/// A layer of KDA behind its input projections, the decay's second among its ops: inside where it is one launch, else ahead of it.
fn kda(requests: &[(u32, usize)], frozen: bool) -> [Vec<Op>; 2] {
    let tokens = requests.iter().map(|r| r.1).sum::<usize>();
    let parts = || vec![gemm(tokens, CHANNELS, DIM), kda_mix(requests, frozen, false)];
    if frozen || tokens < 64 { [vec![kda_mix(requests, frozen, true)], parts()] } else { [parts(), parts()] }
}

/// `kda_mix`, with or without that projection.
fn kda_mix(requests: &[(u32, usize)], frozen: bool, projects: bool) -> Op {
    let op = Op::new(OpKind::KdaMix, requests);
    let slots = requests.len() as u64 + 1;
    let started = requests.iter().filter(|r| r.0 > 0).count() as f64;
    // A state is read if there is one, and written unless candidates are only looked at.
    let moved = started + if frozen { 0.0 } else { requests.len() as f64 };
    let (state, window) = ((HEADS * DIM * DIM * 4) as f64, (3 * 3 * CHANNELS * 4) as f64);
    let op = op.attrs(&[1, frozen.into(), projects.into()], &[-5.0, 1e-6, 0.088, 1e-5]);
    let op = op.value(&[CHANNELS]).value(&[CHANNELS]).value(&[CHANNELS]);
    let op = if projects { op.value(&[DIM]) } else { op.value(&[HEADS, DIM]) };
    let op = op
        .value(&[HEADS])
        .value(&[CHANNELS])
        .weight(DType::F32, &[CHANNELS, 4])
        .weight(DType::F32, &[CHANNELS, 4])
        .weight(DType::F32, &[CHANNELS, 4])
        .weight(DType::F32, &[HEADS])
        .weight(DType::F32, &[CHANNELS])
        .weight(DType::F32, &[DIM])
        .part(DType::F32, &[slots, 3, 3 * CHANNELS], moved * window)
        .part(DType::F32, &[slots, HEADS, DIM, DIM], moved * state);
    let op = if projects { op.weight(DType::BF16, &[CHANNELS, DIM]) } else { op };
    op.value(&[HEADS, DIM])
}

/// Absorbed attention over latent rows, pages in order.
fn mla(cache: DType, requests: &[(u32, usize)]) -> Op {
    let op = Op::new(OpKind::MlaAttention, requests);
    let (latent, width) = (512, 576);
    let pages = |r: &(u32, usize)| (u64::from(r.0) + r.1 as u64).div_ceil(PAGE);
    let wide = requests.iter().map(pages).max().unwrap_or(1);
    let mut table = Vec::new();
    let mut next = 1;
    for r in requests {
        let own = pages(r);
        table.extend((0..wide).map(|i| if i < own { (next + i) as u32 } else { 0 }));
        next += own;
    }
    let row_bytes = (width * cache.block_bytes() as u64) as f64;
    let tokens: u64 = requests.iter().map(|r| u64::from(r.0) + r.1 as u64).sum();
    op.attrs(&[0], &[0.07])
        .value(&[HEADS, width])
        .part(cache, &[next, PAGE, 1, width], tokens as f64 * row_bytes)
        .numbers(Vary::Fixed, &[requests.len() as u64, wide], &table)
        .value(&[HEADS, latent])
}

/// Latent attention from the query before it is absorbed to the gated values.
fn mla_mix(cache: DType, requests: &[(u32, usize)]) -> Op {
    let (latent, rope) = (512, 64);
    let attention = mla(cache, requests);
    let [_, rows, table, _] = &attention.operands[..] else { unreachable!("four operands") };
    let (pages, width) = (rows.tensor.dims[0], table.tensor.dims[1]);
    let numbers: Vec<u32> = table
        .bytes
        .iter()
        .flat_map(|b| b.chunks_exact(4))
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let tokens: u64 = requests.iter().map(|r| u64::from(r.0) + r.1 as u64).sum();
    let row_bytes = ((latent + rope) * cache.block_bytes() as u64) as f64;
    Op::new(OpKind::MlaMix, requests)
        .attrs(&[0, rope as i64], &[0.07])
        .value(&[HEADS, DIM + rope])
        .weight(DType::BF16, &[HEADS * 2 * DIM, latent])
        .part(cache, &[pages, PAGE, 1, latent + rope], tokens as f64 * row_bytes)
        .numbers(Vary::Fixed, &[requests.len() as u64, width], &numbers)
        .value(&[HEADS, DIM])
        .value(&[HEADS, DIM])
}

/// Formats of latent caches, and their names.
pub const CACHES: [(&str, DType); 2] = [("bf16", DType::BF16), ("fp8", DType::F8E4M3)];

/// Rows of long steps over such caches, their projections included; `what` ends their titles.
pub fn expanded(caches: &[(&str, DType)], what: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, cache) in caches.iter().copied() {
        for (computed, tokens, title, published) in [
            (0, 4096, "MLA prefill 4,096, projections included", "3.8-5.1x"),
            (0, 8192, "MLA prefill 8,192, projections included", "3.8-5.1x"),
            (32_768, 8192, "MLA prefill 8,192 behind 32,768, projections included", "3.2x"),
        ] {
            // Scores over 192 values, sums over 128, and 256 values of each position from 512.
            let macs = HEADS as f64 * (pairs(computed, tokens) * 320.0 + (computed + tokens) as f64 * 131_072.0);
            let make = move || mla_mix(cache, &[(computed as u32, tokens as usize)]);
            rows.push(row(format!("{title}, {name}{what}"), make, macs, false, 5, published));
        }
    }
    rows
}

/// Pairs of a token and a position that it sees.
fn pairs(computed: u64, tokens: u64) -> f64 {
    (tokens * computed) as f64 + (tokens * (tokens + 1) / 2) as f64
}

fn attn_res(tokens: usize) -> Op {
    let mut op = Op::new(OpKind::AttnResMix, &[(0, tokens)]).attrs(&[8], &[1e-5]);
    op = op.weight(DType::F32, &[HIDDEN]).weight(DType::F32, &[HIDDEN]);
    for _candidate_or_result in 0..10 {
        op = op.value(&[HIDDEN]);
    }
    op
}

/// The same in two parts, of which the first runs early, so that its sum has to be stored; scores are there already.
fn attn_res_parts(tokens: usize) -> Vec<Op> {
    let mut partial = Op::new(OpKind::AttnResPartial, &[(0, tokens)]).attrs(&[8, 1], &[]);
    for _snapshot in 0..8 {
        partial = partial.value(&[HIDDEN]);
    }
    for _score in 0..8 {
        partial = partial.value(&[1]);
    }
    let combine = Op::new(OpKind::AttnResCombine, &[(0, tokens)]).attrs(&[], &[1e-5]);
    let combine = combine.weight(DType::F32, &[HIDDEN]).weight(DType::F32, &[HIDDEN]).value(&[HIDDEN]).value(&[2]);
    vec![partial.value(&[HIDDEN]).value(&[2]).apart(), combine.value(&[HIDDEN]).value(&[HIDDEN])]
}

/// Routes of tokens to different experts, evenly drawn.
fn routes(tokens: u64) -> Vec<u32> {
    let mut state = 1u64;
    let mut out = Vec::new();
    for _token in 0..tokens {
        let first = out.len();
        while out.len() < first + CHOSEN as usize {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let expert = ((state >> 33) % EXPERTS) as u32;
            if !out[first..].contains(&expert) {
                out.push(expert);
            }
        }
    }
    out
}

fn experts(tokens: usize) -> Op {
    let op = Op::new(OpKind::Experts, &[(0, tokens)]);
    let ids = routes(op.tokens());
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let slots: Vec<u32> = (0..EXPERTS as u32).collect();
    let values = distinct.len() as f64 * (LATENT * COLUMNS) as f64;
    let (up, down) = ([EXPERTS, COLUMNS, LATENT], [EXPERTS, LATENT, COLUMNS]);
    op.attrs(&[1], &[4.0, 25.0])
        .value(&[LATENT])
        .numbers(Vary::Tokens, &[tokens as u64, CHOSEN], &ids)
        .value(&[CHOSEN])
        .numbers(Vary::Fixed, &[EXPERTS], &slots)
        .part(DType::Mxfp4, &up, values / 2.0)
        .part(DType::Mxfp4, &up, values / 2.0)
        .part(DType::Mxfp4, &down, values / 2.0)
        .part(DType::U8, &[up[0], up[1], up[2] / 32], values / 32.0)
        .part(DType::U8, &[up[0], up[1], up[2] / 32], values / 32.0)
        .part(DType::U8, &[down[0], down[1], down[2] / 32], values / 32.0)
        .value(&[LATENT])
}

fn gemm(tokens: usize, n: u64, k: u64) -> Op {
    Op::new(OpKind::Gemm, &[(0, tokens)]).value(&[k]).weight(DType::BF16, &[n, k]).value(&[n])
}

/// A weight that is quantised at load.
fn quantised_weight(op: Op, n: u64, k: u64) -> Op {
    op.part(DType::BF16, &[n, k], (n * k + 4 * n) as f64)
}

fn gemm_fp8(tokens: usize, n: u64, k: u64) -> Op {
    quantised_weight(Op::new(OpKind::Gemm, &[(0, tokens)]).value(&[k]), n, k).value(&[n])
}

/// `moe_input` and `moe_output` with such weights but for the router's.
fn moe_fp8(tokens: usize) -> [Op; 2] {
    let input = Op::new(OpKind::MoeInput, &[(0, tokens)]).attrs(&[], &[4.0, 25.0]).value(&[HIDDEN]);
    let input = input.weight(DType::BF16, &[EXPERTS, HIDDEN]);
    let input = [LATENT, SHARED, SHARED].into_iter().fold(input, |op, n| quantised_weight(op, n, HIDDEN));
    let output =
        Op::new(OpKind::MoeOutput, &[(0, tokens)]).attrs(&[1], &[1e-5]).value(&[LATENT]).weight(DType::F32, &[LATENT]);
    let output = quantised_weight(quantised_weight(output, HIDDEN, LATENT).value(&[SHARED]), HIDDEN, SHARED);
    [input.value(&[EXPERTS]).value(&[LATENT]).value(&[SHARED]), output.value(&[HIDDEN]).value(&[HIDDEN])]
}

/// Columns of the shared experts.
const SHARED: u64 = 768;

/// Router, way into the latent space, gate and up of the shared experts with their activation: in one op, and in parts.
fn moe_input(tokens: usize) -> [Vec<Op>; 2] {
    let bf16 = |op: Op, rows| op.weight(DType::BF16, &[rows, HIDDEN]);
    let op = Op::new(OpKind::MoeInput, &[(0, tokens)]).attrs(&[], &[4.0, 25.0]).value(&[HIDDEN]);
    let op = [EXPERTS, LATENT, SHARED, SHARED].into_iter().fold(op, bf16);
    let situ = Op::new(OpKind::SituMul, &[(0, tokens)]).attrs(&[], &[4.0, 25.0]);
    let parts = vec![
        gemm(tokens, EXPERTS, HIDDEN),
        gemm(tokens, LATENT, HIDDEN),
        gemm(tokens, SHARED, HIDDEN),
        gemm(tokens, SHARED, HIDDEN),
        situ.value(&[SHARED]).value(&[SHARED]).value(&[SHARED]),
    ];
    [vec![op.value(&[EXPERTS]).value(&[LATENT]).value(&[SHARED])], parts]
}

/// Norm of the experts' sum, both ways out, and the residual: in one op, and in parts.
fn moe_output(tokens: usize) -> [Vec<Op>; 2] {
    let op = |kind| Op::new(kind, &[(0, tokens)]);
    let fused = op(OpKind::MoeOutput).attrs(&[1], &[1e-5]).value(&[LATENT]).weight(DType::F32, &[LATENT]);
    let fused = fused.weight(DType::BF16, &[HIDDEN, LATENT]).value(&[SHARED]).weight(DType::BF16, &[HIDDEN, SHARED]);
    let norm = op(OpKind::RmsNorm).attrs(&[], &[1e-5]).value(&[LATENT]).weight(DType::F32, &[LATENT]).value(&[LATENT]);
    let add = || op(OpKind::Add).value(&[HIDDEN]).value(&[HIDDEN]).value(&[HIDDEN]);
    let parts = vec![norm, gemm(tokens, HIDDEN, LATENT), gemm(tokens, HIDDEN, SHARED), add(), add()];
    [vec![fused.value(&[HIDDEN]).value(&[HIDDEN])], parts]
}

/// Widths of MLPs and hidden sizes of SmolLM2-135M and Llama 3.1 8B.
const LLAMAS: [[u64; 2]; 2] = [[1536, 576], [14_336, 4096]];

/// Gate, up and SiLU of both: in one launch, and in the two of which the products share one.
pub fn gate_up() -> Vec<Row> {
    let row = |[n, k]: [u64; 2], tokens: usize| {
        let product = |y| {
            let op = Op::new(OpKind::Gemm, &[(0, tokens)]).value(&[k]).named("x");
            op.weight(DType::BF16, &[n, k]).value(&[n]).named(y)
        };
        let products = || product("gate").then(product("up"));
        let silu = || {
            let op = Op::new(OpKind::SiluMul, &[(0, tokens)]).value(&[n]).named("gate");
            op.value(&[n]).named("up").value(&[n])
        };
        Row {
            title: format!("gate, up and SiLU 2x{n}x{k}, {tokens} token{}", if tokens > 1 { "s" } else { "" }),
            ops: [vec![products().then(silu())], vec![products(), silu()]],
            macs: (tokens as u64 * 2 * n * k) as f64,
            memory_bound: true,
            sample: 0,
            behind: false,
            published: "",
        }
    };
    LLAMAS.into_iter().flat_map(|sizes| [1, 16, 64].map(|tokens| row(sizes, tokens))).collect()
}

/// Products whose weights are quantised at load, beside bf16 ones.
pub fn quantised() -> Vec<Row> {
    let mut rows = Vec::new();
    // The head keeps its factors.
    for (n, k, name) in [(6288, HIDDEN, "KDA in"), (3648, HIDDEN, "MLA in"), (HIDDEN, CHANNELS, "out")] {
        for tokens in [1, 16, 64, 8192] {
            rows.push(Row {
                title: format!("GEMM with e4m3 weights, {name} {n}x{k}, {tokens} tokens"),
                ops: [vec![gemm_fp8(tokens, n, k)], vec![gemm(tokens, n, k)]],
                macs: (tokens as u64 * n * k) as f64,
                memory_bound: tokens <= 64,
                sample: if tokens > 64 { 3 } else { 0 },
                behind: false,
                published: "",
            });
        }
    }
    for tokens in [1, 16, 64, 8192] {
        let columns = [HIDDEN * (EXPERTS + LATENT + 2 * SHARED), HIDDEN * (LATENT + SHARED)];
        let bf16 = [moe_input(tokens), moe_output(tokens)].map(|[fused, _]| fused);
        for (((name, op), other), columns) in
            ["input", "output"].into_iter().zip(moe_fp8(tokens)).zip(bf16).zip(columns)
        {
            rows.push(Row {
                title: format!("MoE {name} with e4m3 weights, {tokens} tokens"),
                ops: [vec![op], other],
                macs: (tokens as u64 * columns) as f64,
                memory_bound: tokens <= 64,
                sample: if tokens > 64 { 3 } else { 0 },
                behind: false,
                published: "",
            });
        }
    }
    rows
}

/// All rows of the table.
pub fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    let chunk_macs = |tokens: f64| tokens * HEADS as f64 * (4.0 * (DIM * DIM) as f64 + 3.0 * 32.0 * DIM as f64);
    let prefill =
        row("KDA prefill 8,192".into(), || kda_mix(&[(0, 8192)], false, false), chunk_macs(8192.0), true, 3, "1.6x");
    rows.push(Row { behind: true, ..prefill });
    for batch in [1, 16, 64] {
        let requests = vec![(100, 1); batch];
        let title = format!("KDA decode, {batch} requests");
        rows.push(bound_by_bytes(title, kda(&requests, false), "1.63x"));
    }
    for batch in [1, 16] {
        let requests = vec![(100, 4); batch];
        let title = format!("KDA verify, window 4, {batch} requests");
        rows.push(bound_by_bytes(title, kda(&requests, true), "1.66x"));
    }
    // Per pair and head: scores over 192 values and sums over 128, before absorption.
    let attention = |pairs: f64| pairs * HEADS as f64 * 320.0;
    for (name, cache) in [("bf16", DType::BF16), ("fp8", DType::F8E4M3)] {
        for (computed, tokens, title, published) in [
            (0, 4096, "MLA prefill 4,096", "3.8-5.1x"),
            (0, 8192, "MLA prefill 8,192", "3.8-5.1x"),
            (32_768, 8192, "MLA prefill 8,192 behind 32,768", "3.2x"),
        ] {
            let macs = attention(pairs(computed, tokens));
            let make = move || mla(cache, &[(computed as u32, tokens as usize)]);
            rows.push(row(format!("{title}, {name}"), make, macs, false, 5, published));
        }
        for context in [50_000, 100_000] {
            let title = format!("MLA verify, window 4 behind {context}, {name}");
            // Absorbed: 576 and 512 values.
            let macs = pairs(context, 4) * HEADS as f64 * 1088.0;
            rows.push(row(title, move || mla(cache, &[(context as u32, 4)]), macs, true, 0, "1.86-2.14x"));
        }
    }
    for (tokens, sample) in [(1, 0), (16, 0), (8192, 3)] {
        rows.push(row(
            format!("AttnRes of 9, {tokens} tokens"),
            move || attn_res(tokens),
            0.0,
            true,
            sample,
            "4.1-23x",
        ));
    }
    for tokens in [1, 16] {
        rows.push(Row {
            title: format!("AttnRes of 9 in two parts, {tokens} tokens"),
            ops: [attn_res_parts(tokens), vec![attn_res(tokens)]],
            macs: 0.0,
            memory_bound: true,
            sample: 0,
            behind: false,
            published: "4.1-23x",
        });
    }
    for tokens in [1, 4, 16, 32, 64, 128, 512, 2048, 4096, 8192] {
        let macs = (tokens as u64 * CHOSEN * 3 * LATENT * COLUMNS) as f64;
        let title = format!("experts, {tokens} tokens");
        let sample = if tokens > 16 { 12 } else { 0 };
        let row = row(title, move || experts(tokens), macs, tokens <= 2048, sample, "2.2-2.3x");
        rows.push(Row { behind: true, ..row });
    }
    for tokens in [1, 16, 64, 8192] {
        for (name, ops, columns) in [
            ("input", moe_input(tokens), HIDDEN * (EXPERTS + LATENT + 2 * SHARED)),
            ("output", moe_output(tokens), HIDDEN * (LATENT + SHARED)),
        ] {
            rows.push(Row {
                title: format!("MoE {name}, {tokens} tokens"),
                ops,
                macs: (tokens as u64 * columns) as f64,
                memory_bound: tokens <= 64,
                sample: if tokens > 64 { 3 } else { 0 },
                behind: false,
                published: if name == "input" { "1.5-2.0x" } else { "" },
            });
        }
    }
    for (n, k, name) in
        [(6288, HIDDEN, "KDA in"), (3648, HIDDEN, "MLA in"), (HIDDEN, CHANNELS, "out"), (20_480, HIDDEN, "head")]
    {
        // The head multiplies rows of logits, which are few.
        for tokens in [1, 16, 64, 8192].into_iter().filter(|tokens| *tokens <= 64 || name != "head") {
            let title = format!("GEMM {name} {n}x{k}, {tokens} tokens");
            let macs = (tokens as u64 * n * k) as f64;
            let (memory_bound, sample) = if tokens <= 64 { (true, 0) } else { (false, 3) };
            rows.push(row(title, move || gemm(tokens, n, k), macs, memory_bound, sample, "2.0-3.0x"));
        }
    }
    rows
}
