//! `rope`.

use tokenspeed_backend_api::{
    op::{OpKind, ROPE_PAIRS},
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, float, int};
use crate::kernel::{Extent, Plan};

inventory::submit! { OpEntry { kind: OpKind::Rope, support: |_, _| Support::yes("rope"), plan, pack: None } }

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, inv_freq, y] = op.operands else { unreachable!("checked") };
    let attrs = op.op.attrs();
    let (heads, d) = (x.tensor.dims[1], x.tensor.dims[2]);
    let factor = if attrs.f[0] == 0.0 { 1.0 } else { attrs.f[0] };
    let arguments = [
        op.step(),
        ("x", x.pointer()),
        ("inv_freq", inv_freq.pointer()),
        ("y", y.pointer()),
        ("H", int(heads)),
        ("D", int(d)),
        ("R2", int(inv_freq.tensor.dims[0])),
        ("ldx", x.stride()),
        ("ldy", y.stride()),
        ("factor", float(factor)),
    ];
    let kernel = if attrs.i[0] == ROPE_PAIRS { "rope_pairs" } else { "rope_halves" };
    Ok(plan.launch(kernel, [x.rows(1), Extent::Fixed(heads as u32), Extent::ONE], &arguments)?)
}
