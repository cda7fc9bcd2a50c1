//! `router_topk`: the experts of each token and their weights.

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

/// Experts a kernel holds, by variant.
const TILES: [usize; 4] = [64, 256, 1024, 4096];
/// Most groups, the kernels' `BG`.
const GROUPS: i64 = 64;
/// Most experts per token, the kernels' `BK`.
const CHOSEN: usize = 64;

inventory::submit! { OpEntry { kind: OpKind::RouterTopk, support, plan, pack: None } }

fn tile(experts: usize) -> Option<usize> {
    TILES.into_iter().find(|t| experts <= *t)
}

fn support(op: &OpDesc, _: &Settings) -> Support {
    let (experts, k, groups) = (op.operands[0].row_len(), op.operands[2].row_len(), op.attrs.i[0]);
    match tile(experts) {
        Some(tile) if k <= CHOSEN && groups <= GROUPS => Support::yes(format!("router_topk_{tile}")),
        _ => Support::no(format!(
            "{k} of {experts} experts in {groups} groups: at most {CHOSEN} of {} in {GROUPS}",
            TILES[TILES.len() - 1]
        )),
    }
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [logits, bias, ids, weights] = op.operands else { unreachable!("checked") };
    let [word, fixed] = logits.count();
    let attrs = op.op.attrs();
    let [groups, chosen, renormalise, ..] = attrs.i.map(|i| i as usize);
    let experts = logits.tensor.row_len();
    let arguments = [
        op.step(),
        word,
        fixed,
        ("logits", logits.pointer()),
        ("bias", bias.pointer()),
        ("ids", ids.pointer()),
        ("weights", weights.pointer()),
        ("E", int(experts)),
        ("G", int(groups)),
        ("chosen", int(chosen)),
        ("k", ids.row_len()),
        ("ldl", logits.stride()),
        ("ldi", ids.stride()),
        ("ldw", weights.stride()),
        ("scale", float(attrs.f[0])),
        ("renormalise", int(renormalise)),
    ];
    let grouped = if chosen < groups { "_grouped" } else { "" };
    let kernel = format!("router_topk_{}{grouped}", tile(experts).expect("supported"));
    Ok(plan.launch(&kernel, [logits.rows(1), Extent::ONE, Extent::ONE], &arguments)?)
}
