//! Norms of the heads of linear attention: `l2norm`, `gated_rmsnorm`.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, float, int};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Heads that fit the common kernel, and the longest of all.
const SIZES: [(usize, &str); 2] = [(128, "head"), (256, "wide")];

inventory::submit! { OpEntry { kind: OpKind::L2Norm, support: |op, s| support(op, s, "l2norm"), plan: plan_l2, pack: None } }
inventory::submit! {
    OpEntry { kind: OpKind::GatedRmsNorm, support: |op, s| support(op, s, "gated_rmsnorm"), plan: plan_gated, pack: None }
}

fn kernel(name: &str, d: usize) -> Option<String> {
    SIZES.iter().find(|(most, _)| d <= *most).map(|(_, size)| format!("{name}_{size}"))
}

fn support(op: &OpDesc, _: &Settings, name: &str) -> Support {
    let x = &op.operands[0];
    let d = x.dims[x.rank as usize - 1];
    kernel(name, d as usize).map_or_else(|| Support::no(format!("heads of {d}, at most 256")), Support::yes)
}

fn plan_l2(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let (d, attrs) = (x.tensor.last(), op.op.attrs());
    let heads = x.tensor.row_len() / d;
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("y", y.pointer()),
        ("H", int(heads)),
        ("D", int(d)),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
        ("eps", float(attrs.f[0])),
        ("scale", float(attrs.f[1])),
    ];
    let kernel = kernel("l2norm", d).expect("supported");
    Ok(plan.launch(&kernel, [x.rows(1), Extent::Fixed(heads as u32), Extent::ONE], &arguments)?)
}

fn plan_gated(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, gate, w, y] = op.operands else { unreachable!("checked") };
    let [word, fixed] = x.count();
    let d = x.tensor.last();
    let heads = x.tensor.row_len() / d;
    let arguments = [
        op.step(),
        word,
        fixed,
        ("x", x.pointer()),
        ("gate", gate.pointer()),
        ("w", w.pointer()),
        ("y", y.pointer()),
        ("H", int(heads)),
        ("D", int(d)),
        ("ldx", x.stride()),
        ("ldg", gate.stride()),
        ("ldy", y.stride()),
        ("eps", float(op.op.attrs().f[0])),
    ];
    let kernel = kernel("gated_rmsnorm", d).expect("supported");
    Ok(plan.launch(&kernel, [x.rows(1), Extent::Fixed(heads as u32), Extent::ONE], &arguments)?)
}
