//! The recurrence of Kimi Delta Attention and its decay gate: `kda_gate`, `kda_step`, `kda_verify`.
//!
//! All forms run one routine over a head's values in panels; a panel does not change a bit, because sums run along keys only.
//! `kda_chunk` has a file of its own.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    graph::Vary,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, float, int};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Channels per work-group of the gate, its kernel's `B`.
const GATE_PANEL: usize = 512;
/// Values of a head per work-group, the kernels' `BV`.
pub(super) const VALUES: usize = 32;

/// A work-group for each of the step's requests.
pub(super) const REQUESTS: Extent = Extent::Per { count: Vary::Rows, each: 1, times: 1 };

inventory::submit! {
    OpEntry { kind: OpKind::KdaGate, support: |_, _| Support::yes("kda_gate"), plan: plan_gate, pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::KdaStep, support: |op, s| support(op, s, "step"), plan: |op, p| plan(op, p, "step"), pack: None }
}
inventory::submit! {
    OpEntry { kind: OpKind::KdaVerify, support: |op, s| support(op, s, "verify"), plan: |op, p| plan(op, p, "verify"), pack: None }
}

fn plan_gate(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [f, a_log, dt_bias, g] = op.operands else { unreachable!("checked") };
    let [word, fixed] = f.count();
    let channels = f.tensor.row_len();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("f", f.pointer()),
        ("a_log", a_log.pointer()),
        ("dt_bias", dt_bias.pointer()),
        ("g", g.pointer()),
        ("C", int(channels)),
        ("K", int(f.tensor.last())),
        ("ldf", f.stride()),
        ("ldg", g.stride()),
        ("bounded", int(op.op.attrs().i[0] as usize)),
        ("bound", float(op.op.attrs().f[0])),
    ];
    let grid = [f.rows(1), Extent::Fixed(channels.div_ceil(GATE_PANEL) as u32), Extent::ONE];
    Ok(plan.launch("kda_gate", grid, &arguments)?)
}

fn kernel(form: &str, keys: usize) -> Option<String> {
    [32, 128].iter().find(|most| keys <= **most).map(|most| format!("kda_{form}_{most}"))
}

pub(super) fn support(op: &OpDesc, _: &Settings, form: &str) -> Support {
    let keys = op.operands[0].dims[2];
    kernel(form, keys as usize).map_or_else(|| Support::no(format!("heads of {keys} keys, at most 128")), Support::yes)
}

pub(super) fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>, form: &str) -> Result<(), Fault> {
    let [q, k, v, g, beta, state, o] = op.operands else { unreachable!("checked") };
    let (heads, keys, values) = (q.tensor.dims[1], q.tensor.dims[2], v.tensor.dims[2]);
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("g", g.pointer()),
        ("beta", beta.pointer()),
        ("state", state.pointer()),
        ("o", o.pointer()),
        ("K", int(keys)),
        ("V", int(values)),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldg", g.stride()),
        ("ldb", beta.stride()),
        ("lds", state.stride()),
        ("ldo", o.stride()),
    ];
    let grid = [REQUESTS, Extent::Fixed(heads as u32), Extent::Fixed(values.div_ceil(VALUES) as u32)];
    Ok(plan.launch(&kernel(form, keys).expect("supported"), grid, &arguments)?)
}
