//! `kda_mix`, for heads of Kimi's size: one launch in programs that cannot hold a chunk of 64 tokens, and for candidates, which
//! never make one; three per slab of tokens in all others with bf16 factors. Everything else takes its parts.
//!
//! All have the same bits for single tokens: sums run in one order, and only a whole chunk takes the form of matrix products. That
//! is why a program that can hold one is not decoded by the one launch: the bits of a long request would depend on who
//! shares its step. The parts are planned by their own entries, with values between them in the workspace.
//!
//! The second projection of the decay is part of the one launch alone, where a work-group multiplies its head's 32 KB of weights once for
//! 16 tokens of a request; a launch and 6 kB a token go. All else has it as a product by itself, refused here, in the same order:
//! programs of 64 tokens and more, whose requests would each read those weights for every chunk; f32 factors, which would be another
//! four kernels.
//!
//! Slabs of a long program follow from its capacity. They share one scratch, so that factors and waiting outputs stay in the memory-side
//! cache; the state of the request that goes on from one slab to the next is handed over in f32, so slabs change no bit.
//!
//! In the three launches, the window is read by the first two and moved by the last. The scan leaves what outputs of chunks are made of
//! where they will be, or where it has been used up: first states in y, V' in the place of U.
//! Rejected: outputs in the scan, which is a chain of chunks on 8 compute units per head and request: they are a little less than half of
//! what one has to fetch and multiply, and would wait in memory for their norm, since a work-group has 16 of a head's 128 values.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    record::OpRecord,
    sdk::{Fault, OpView, Support, Tensor},
};

use super::{
    BoundOp, OpEntry, Operand,
    convert::format_name,
    float, gemm, int,
    kda::REQUESTS,
    kda_chunk::{self, CHUNK},
};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// Head size and taps that the kernels of whole layers are made for.
const FUSED: (u64, u64) = (128, 4);
/// From so many pairs on, a work-group of the last launch takes a block of 64 tokens; below, where steps may be batches that decode, it
/// takes one of so many parts of it, since more work-groups draw more of the memory's speed.
const WHOLE: usize = 64;
const PARTS: u32 = 8;
/// Most chunks of a slab, all heads together: two work-groups of preparation for every compute unit. They have 38 MB of factors, which
/// memory gets once, at the end; smaller slabs would be more launches.
const SLAB: usize = 512;
/// Somewhat more of each head than Kimi's 12 have: slabs of fewer heads are smaller, so that tests reach a second one, and end inside a block
/// of 64 tokens as Kimi's do.
const SLAB_OF_HEAD: usize = 43;
/// States that are handed over: one slab's is read while the next one's is written.
const CARRIED: usize = 2;
/// Values of [T, C] between the parts: three behind the convolution, q and k of unit length, decay, output.
const BETWEEN: usize = 7;

/// Index of the decay's second projection.
const WF: usize = 14;

inventory::submit! { OpEntry { kind: OpKind::KdaMix, support, plan, pack: Some(gemm::expand) } }

/// How an op is launched.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// One launch.
    Tokens,
    /// Three.
    Chunks,
    /// One op after the other.
    Parts,
}

/// `dims` are a head's size and the taps, `capacity` counts tokens. Candidates never make a chunk, however many they are.
fn form(settings: &Settings, window: DType, dims: (u64, u64), capacity: usize, frozen: bool) -> Form {
    if !settings.specialised() || dims != FUSED || !matches!(window, DType::F32 | DType::BF16) {
        Form::Parts
    } else if frozen || capacity < CHUNK {
        Form::Tokens
    } else if settings.exact() {
        Form::Parts
    } else {
        Form::Chunks
    }
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let (q, taps, window) = (&op.operands[0], op.operands[6].dims[1], &op.operands[12]);
    let y = op.operands.last().expect("checked");
    let (tokens, heads, dim) = (q.dims[0] as usize, y.dims[1] as usize, y.dims[2]);
    let frozen = op.attrs.i[1] == 1;
    let form = form(settings, window.dtype, (dim, taps), tokens, frozen);
    if op.attrs.i[2] == 1 {
        let width = op.operands[WF].row_len() as u64;
        if form != Form::Tokens || settings.exact() || width != FUSED.0 {
            return Support::no(format!(
                "{tokens} tokens, heads of {dim} with a gate of {width}: its projection is a product"
            ));
        }
        let mut support = settings.rounded(Support::yes("kda_mix, one launch with the gate's projection"));
        support.packs.extend(gemm::packing(op, WF, settings));
        return support;
    }
    if form == Form::Tokens {
        return Support::yes("kda_mix, one launch");
    }
    let Some(size) = kda_chunk::padded(dim as usize, dim as usize) else {
        return Support::no(format!("heads of {dim}, at most 128"));
    };
    if form == Form::Chunks {
        let mut support = settings.rounded(Support::yes("kda_mix, three launches per slab"));
        let scratch = kda_chunk::slot_bytes(size, settings) * slab(tokens, heads);
        support.workspace_bytes = (scratch + CARRIED * state_bytes(heads, dim as usize)) as u64;
        return support;
    }
    let scratch = kda_chunk::scratch_bytes(tokens, heads, size, settings);
    let mut support = Support::yes("kda_mix, in parts");
    if tokens >= CHUNK && !frozen {
        support = settings.rounded(support);
    }
    let values = BETWEEN * value_bytes(tokens, y.row_len()) + value_bytes(tokens, heads);
    support.workspace_bytes = (values + scratch) as u64;
    support
}

/// Bytes of a value of so many f32 per token, with the alignment that kernels are promised.
fn value_bytes(tokens: usize, width: usize) -> usize {
    (tokens * width * 4).next_multiple_of(256)
}

/// Pairs of a block of 64 tokens and a head in a slab, for so many tokens at most.
fn slab(tokens: usize, heads: usize) -> usize {
    (tokens.div_ceil(CHUNK) * heads).min(SLAB).min(SLAB_OF_HEAD * heads - 1).max(1)
}

/// Bytes of a request's state.
fn state_bytes(heads: usize, dim: usize) -> usize {
    heads * dim * dim * 4
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, window, y] = [0, 12, op.operands.len() - 1].map(|i| op.operands[i]);
    let taps = op.operands[6].tensor.dims[1] as u64;
    let (dim, frozen) = (y.tensor.dims[2] as u64, op.op.attrs().i[1] == 1);
    match form(op.settings, window.tensor.dtype, (dim, taps), q.tensor.dims[0], frozen) {
        Form::Tokens => plan_tokens(op, plan),
        Form::Chunks => plan_chunks(op, plan),
        Form::Parts => plan_parts(op, plan),
    }
}

/// Operands, strides and attributes by the names that kernels of whole layers know them by.
fn arguments(op: &BoundOp<'_>) -> Vec<(&'static str, Argument)> {
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, .., y] = op.operands else {
        unreachable!("checked")
    };
    let attrs = op.op.attrs();
    vec![
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("f", f.pointer()),
        ("b", b.pointer()),
        ("gate", gate.pointer()),
        ("wq", wq.pointer()),
        ("wk", wk.pointer()),
        ("wv", wv.pointer()),
        ("a_log", a_log.pointer()),
        ("dt_bias", dt_bias.pointer()),
        ("norm", norm.pointer()),
        ("window", window.pointer()),
        ("state", state.pointer()),
        ("y", y.pointer()),
        ("H", int(y.tensor.dims[1])),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldf", f.stride()),
        ("ldb", b.stride()),
        ("ldg", gate.stride()),
        ("ldw", window.stride()),
        ("lds", state.stride()),
        ("ldy", y.stride()),
        ("bounded", int(attrs.i[0] as usize)),
        ("bound", float(attrs.f[0])),
        ("l2_eps", float(attrs.f[1])),
        ("scale", float(attrs.f[2])),
        ("norm_eps", float(attrs.f[3])),
    ]
}

fn plan_tokens(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [f, window, y] = [3, 12, op.operands.len() - 1].map(|i| op.operands[i]);
    let form = if op.op.attrs().i[1] == 1 { "candidates" } else { "decode" };
    let kernel = format!("kda_{form}_{}", format_name(window.tensor.dtype).expect("supported"));
    let grid = [REQUESTS, Extent::Fixed(y.tensor.dims[1] as u32), Extent::ONE];
    let projects = op.op.attrs().i[2] == 1;
    // Not read where there is no projection.
    let (wf, ldwf) = if projects { (op.operands[WF], gemm::stored(&op.operands[WF].tensor).1) } else { (f, 0) };
    let mut arguments = arguments(op);
    arguments.extend([("wf", wf.pointer()), ("ldwf", int(ldwf)), ("projects", int(usize::from(projects)))]);
    Ok(plan.launch(&kernel, grid, &arguments)?)
}

fn plan_chunks(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, .., window, _, y] = op.operands else { unreachable!("checked") };
    let (tokens, heads, dim) = (q.tensor.dims[0], y.tensor.dims[1], y.tensor.dims[2]);
    let format = format_name(window.tensor.dtype).expect("supported");
    let slab = slab(tokens, heads);
    let mut all = arguments(op);
    all.extend(kda_chunk::scratch(op, slab, dim));
    let carry = op.workspace + (kda_chunk::slot_bytes(dim, op.settings) * slab) as u64;
    all.extend([("size", int(slab)), ("carry", Argument::Pointer(carry))]);
    let long = if slab < WHOLE { "" } else { "_long" };
    for first in (0..tokens.div_ceil(CHUNK) * heads).step_by(slab) {
        let without = |names: &str| {
            let names: Vec<_> = names.split(' ').collect();
            let all = all.iter().filter(|(name, _)| !names.contains(name)).copied();
            all.chain([("first", int(first))]).collect::<Vec<_>>()
        };
        // None in a step that does not reach the slab.
        let pairs = |most: usize| Extent::Part {
            count: Vary::Tokens,
            each: CHUNK as u32,
            times: heads as u32,
            from: first as u32,
            most: most as u32,
        };
        let prepare = without("gate norm state y ldg lds ldy size carry norm_eps");
        plan.launch(&format!("kda_mix_prepare_{format}"), [pairs(slab), Extent::ONE, Extent::ONE], &prepare)?;
        let grid = [REQUESTS, pairs(heads), Extent::Fixed((dim / kda_chunk::VALUES) as u32)];
        plan.launch(&format!("kda_mix_scan_{format}"), grid, &without("gate norm ws_q ws_a ldg norm_eps"))?;
        let unused =
            "f b wq wk wv a_log dt_bias state ws_w ws_k ws_decay ldf ldb lds size carry bounded bound l2_eps scale";
        let parts = Extent::Fixed(if slab < WHOLE { PARTS } else { 1 });
        plan.launch(&format!("kda_mix_finish{long}_{format}"), [pairs(slab), parts, Extent::ONE], &without(unused))?;
    }
    Ok(())
}

/// Cuts values from the workspace.
struct Scratch {
    at: u64,
    tokens: usize,
}

impl Scratch {
    fn value(&mut self, like: &Tensor, width: usize) -> Operand {
        let tensor = Tensor { row_bytes: width * 4, bytes: self.tokens * width * 4, ..*like };
        let value = Operand { tensor, address: self.at };
        self.at += value_bytes(self.tokens, width) as u64;
        value
    }
}

fn plan_parts(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, y] = *op.operands else {
        unreachable!("checked")
    };
    let (i, c) = (op.op.attrs().i, op.op.attrs().f);
    let mut scratch = Scratch { at: op.workspace, tokens: q.tensor.dims[0] };
    let width = y.tensor.row_len();
    let [yq, yk, yv, uq, uk, g, o] = [0; BETWEEN].map(|_| scratch.value(&y.tensor, width));
    let beta = scratch.value(&b.tensor, b.tensor.row_len());
    // Seen as heads, whatever its rank.
    let f = Operand { tensor: Tensor { rank: y.tensor.rank, dims: y.tensor.dims, ..f.tensor }, ..f };
    let recurrence = if i[1] == 1 { OpKind::KdaVerify } else { OpKind::KdaChunk };
    let parts: [(OpKind, i64, [f64; 2], Vec<Operand>); 7] = [
        (OpKind::ShortConv, i[1], [0.0; 2], vec![q, k, v, wq, wk, wv, window, yq, yk, yv]),
        (OpKind::L2Norm, 0, [c[1], c[2]], vec![yq, uq]),
        (OpKind::L2Norm, 0, [c[1], 1.0], vec![yk, uk]),
        (OpKind::KdaGate, i[0], [c[0], 0.0], vec![f, a_log, dt_bias, g]),
        (OpKind::Sigmoid, 0, [0.0; 2], vec![b, beta]),
        (recurrence, 0, [0.0; 2], vec![uq, uk, yv, g, beta, state, o]),
        (OpKind::GatedRmsNorm, 0, [c[3], 0.0], vec![o, gate, norm, y]),
    ];
    for (kind, flag, floats, operands) in &parts {
        let mut attrs = Attrs::default();
        attrs.i[0] = *flag;
        attrs.f[..2].copy_from_slice(floats);
        let record = OpRecord::new(*kind, Vec::new(), attrs, op.op.label());
        let view = OpView::from_record(&record)?;
        let part = BoundOp { op: &view, operands, workspace: scratch.at, ..*op };
        let entry = super::entry(*kind).expect("every part is an op of this backend");
        (entry.plan)(&part, plan)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_kimi_and_of_few_heads() {
        assert_eq!([64, 100, 2730, 2731, 8192].map(|tokens| slab(tokens, 12)), [12, 24, 512, 512, 512]);
        assert_eq!([1, 2, 6, 96, 2000].map(|heads| slab(8192, heads)), [42, 85, 257, 512, 512]);
    }
}
