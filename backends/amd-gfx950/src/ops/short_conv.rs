//! `short_conv`: a launch for q, k, v and their window.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, convert::format_name, int, panels};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Channels per work-group, the kernels' `B`.
const PANEL: usize = 256;

inventory::submit! { OpEntry { kind: OpKind::ShortConv, support, plan, pack: None } }

fn kernel(window: DType, frozen: bool) -> String {
    let format = format_name(window).expect("the catalogue allows three plain formats");
    format!("short_conv_{format}{}", if frozen { "_frozen" } else { "" })
}

fn support(op: &OpDesc, _: &Settings) -> Support {
    Support::yes(kernel(op.operands[6].dtype, op.attrs.i[0] == 1))
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, wq, wk, wv, window, yq, yk, yv] = op.operands else { unreachable!("checked") };
    let channels = q.tensor.row_len();
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("wq", wq.pointer()),
        ("wk", wk.pointer()),
        ("wv", wv.pointer()),
        ("window", window.pointer()),
        ("yq", yq.pointer()),
        ("yk", yk.pointer()),
        ("yv", yv.pointer()),
        ("C", int(channels)),
        ("W", int(wq.tensor.dims[1])),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldw", window.stride()),
        ("ldyq", yq.stride()),
        ("ldyk", yk.stride()),
        ("ldyv", yv.stride()),
    ];
    let kernel = kernel(window.tensor.dtype, op.op.attrs().i[0] == 1);
    let grid = [q.rows(1), panels(channels, PANEL), Extent::Fixed(3)];
    Ok(plan.launch(&kernel, grid, &arguments)?)
}
