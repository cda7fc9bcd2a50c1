//! `short_conv`: a launch for q, k, v and their window, in which work-groups of long steps take several tokens.

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
/// Taps of the kernel for long steps, tokens of a step from which it is worth while (unless they are few of many requests), and
/// tokens of its work-groups, its `EACH`.
const LONG_TAPS: usize = 4;
const LONG: u32 = 64;
const LONG_EACH: u32 = 16;

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
    let (taps, frozen) = (wq.tensor.dims[1], op.op.attrs().i[0] == 1);
    let mut arguments = vec![
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
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldw", window.stride()),
        ("ldyq", yq.stride()),
        ("ldyk", yk.stride()),
        ("ldyv", yv.stride()),
    ];
    let (columns, streams) = (panels(channels, PANEL), Extent::Fixed(3));
    let is_long = op.capacity(q) >= LONG.max(4 * op.bucket.max_rows);
    if taps == LONG_TAPS && !frozen && is_long && window.tensor.dtype != DType::F16 {
        let kernel = format!("short_conv_long_{}", format_name(window.tensor.dtype).expect("supported"));
        return Ok(plan.launch(&kernel, [q.rows(LONG_EACH), columns, streams], &arguments)?);
    }
    arguments.push(("W", int(taps)));
    Ok(plan.launch(&kernel(window.tensor.dtype, frozen), [q.rows(1), columns, streams], &arguments)?)
}
