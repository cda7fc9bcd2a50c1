//! `kda_chunk`: whole chunks of 64 tokens as matrix products in two launches, all other tokens as `kda_step` has them.
//!
//! Programs that cannot hold a chunk, which is all decoding, are one launch of `kda_step`'s kernel. The scratch between the
//! launches has a slot per 64 tokens of capacity; no chunk shares one, because chunks that start in the same 64 tokens of a
//! step would overlap.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{
    BoundOp, OpEntry, int,
    kda::{self, REQUESTS},
};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// Tokens of a chunk.
pub(super) const CHUNK: usize = 64;
/// Values of a head per work-group of the scan, its kernels' `PV`.
pub(super) const VALUES: usize = 16;

inventory::submit! { OpEntry { kind: OpKind::KdaChunk, support, plan, pack: None } }

/// Padded keys and values of a head: the kernels' `BK` = `BV`; `None` beyond the largest.
pub(super) fn padded(keys: usize, values: usize) -> Option<usize> {
    [32, 128].into_iter().find(|most| keys.max(values) <= *most)
}

/// Values per slot and head of `w`, `q`, `k`, `u`, `a`, in factors, behind them `decay` in f32.
fn parts(padded: usize) -> [usize; 6] {
    let panel = CHUNK * padded;
    [panel, panel, panel, panel, CHUNK * CHUNK, padded]
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let (tokens, heads) = (op.operands[0].dims[0] as usize, op.operands[0].dims[1] as usize);
    let (keys, values) = (op.operands[0].dims[2] as usize, op.operands[2].dims[2] as usize);
    let Some(size) = padded(keys, values) else {
        return Support::no(format!("heads of {keys} keys and {values} values, at most 128"));
    };
    let mut support = settings.rounded(kda::support(op, settings, "step"));
    support.workspace_bytes = scratch_bytes(tokens, heads, size, settings) as u64;
    support
}

/// Scratch of a chunk of a head of a padded size.
pub(super) fn slot_bytes(size: usize, settings: &Settings) -> usize {
    let [factors @ .., decay] = parts(size);
    factors.iter().sum::<usize>() * settings.factor_bytes() + decay * 4
}

/// Scratch of a program of so many tokens and heads of a padded size.
pub(super) fn scratch_bytes(tokens: usize, heads: usize, size: usize, settings: &Settings) -> usize {
    if tokens < CHUNK { 0 } else { tokens.div_ceil(CHUNK) * heads * slot_bytes(size, settings) }
}

/// So many slots as arguments of `prepare` and `scan`, from the op's workspace on.
pub(super) fn scratch(op: &BoundOp<'_>, slots: usize, size: usize) -> [(&'static str, Argument); 6] {
    let mut at = op.workspace;
    let [w, q, k, u, a, decay] = parts(size).map(|values| {
        let part = Argument::Pointer(at);
        at += (slots * values * op.settings.factor_bytes()) as u64;
        part
    });
    [("ws_w", w), ("ws_q", q), ("ws_k", k), ("ws_u", u), ("ws_a", a), ("ws_decay", decay)]
}

pub(super) fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, g, beta, state, o] = op.operands else { unreachable!("checked") };
    if op.workspace == 0 || (op.capacity(q) as usize) < CHUNK {
        return kda::plan(op, plan, "step");
    }
    let (heads, keys, values) = (q.tensor.dims[1], q.tensor.dims[2], v.tensor.dims[2]);
    let size = padded(keys, values).expect("supported");
    let scratch = scratch(op, q.tensor.dims[0].div_ceil(CHUNK) * heads, size);
    let inputs = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("g", g.pointer()),
        ("beta", beta.pointer()),
        ("H", int(heads)),
        ("K", int(keys)),
        ("V", int(values)),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldg", g.stride()),
        ("ldb", beta.stride()),
    ];
    let factors = op.settings.factors();
    let heads = Extent::Fixed(heads as u32);
    let prepare = [&inputs[..], &scratch].concat();
    plan.launch(&format!("kda_prepare_{factors}_{size}"), [q.rows(CHUNK as u32), heads, Extent::ONE], &prepare)?;
    let mut scan = prepare;
    scan.extend([("state", state.pointer()), ("o", o.pointer()), ("lds", state.stride()), ("ldo", o.stride())]);
    let grid = [REQUESTS, heads, Extent::Fixed(values.div_ceil(VALUES) as u32)];
    Ok(plan.launch(&format!("kda_scan_{factors}_{size}"), grid, &scan)?)
}
