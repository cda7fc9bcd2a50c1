//! Attention Residuals: `attn_res_mix`, and its parts `attn_res_scores`, `attn_res_partial`, `attn_res_combine`.
//!
//! A launch takes a bounded number of candidates, each by its own pointer and stride; more are a chain of launches. Rejected:
//! a table of pointers in device memory, which a captured graph would have to keep alive and every work-group to read first.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, Operand, PANEL, float, int, panels};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// Candidates of one launch of `attn_res_mix`.
const MIX: usize = 9;
/// Candidates of each launch of a longer chain.
const CHAIN: usize = 4;
/// Snapshots of one launch of `attn_res_partial`.
const PARTIAL: usize = 8;
/// Pairs of weights of one launch of `attn_res_scores`, and of one work-group.
const SCORES: usize = 16;
const SCORES_EACH: usize = 4;
/// Tiles that hold a row.
const TILES: [usize; 3] = [512, 2048, 8192];
/// Tokens that share the weights a work-group of `attn_res_scores` holds, where there are many.
const SHARED: u32 = 16;

const V: [&str; MIX] = ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8"];
const LD: [&str; MIX] = ["ld0", "ld1", "ld2", "ld3", "ld4", "ld5", "ld6", "ld7", "ld8"];
const S: [&str; PARTIAL] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];
const LS: [&str; PARTIAL] = ["ls0", "ls1", "ls2", "ls3", "ls4", "ls5", "ls6", "ls7"];
const N: [&str; SCORES] =
    ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15"];
const P: [&str; SCORES] =
    ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12", "p13", "p14", "p15"];

inventory::submit! { OpEntry { kind: OpKind::AttnResMix, support: support_mix, plan: plan_mix, pack: None } }
inventory::submit! {
    OpEntry { kind: OpKind::AttnResScores, support: |op, _| one_tile(op, "attn_res_scores"), plan: plan_scores, pack: None }
}
inventory::submit! { OpEntry { kind: OpKind::AttnResPartial, support: support_partial, plan: plan_partial, pack: None } }
inventory::submit! {
    OpEntry { kind: OpKind::AttnResCombine, support: |op, _| one_tile(op, "attn_res_combine"), plan: plan_combine, pack: None }
}

/// The smallest tile that holds a row.
fn tile(d: usize) -> Option<usize> {
    TILES.into_iter().find(|t| d <= *t)
}

fn one_tile(op: &OpDesc, name: &str) -> Support {
    let d = op.operands[0].row_len().max(op.operands[op.operands.len() - 1].row_len());
    match tile(d) {
        Some(_) => Support::yes(name),
        None => Support::no(format!("rows of {d}: at most {} columns", TILES[TILES.len() - 1])),
    }
}

fn support_mix(op: &OpDesc, _: &Settings) -> Support {
    let y = &op.operands[op.operands.len() - 1];
    let mut support = one_tile(op, "attn_res_mix");
    if support.is_supported() && op.attrs.i[0] as usize + 1 > MIX {
        // Two softmaxes in progress of every row: one is read while the other is written, by other waves of the same row.
        support.workspace_bytes = y.dims[0] * 16;
    }
    support
}

fn support_partial(op: &OpDesc, _: &Settings) -> Support {
    let mut support = Support::yes("attn_res_partial");
    if op.attrs.i[0] as usize > PARTIAL {
        // Two softmaxes in progress of every row: one is read while the other is written.
        support.workspace_bytes = op.operands[0].dims[0] * 16;
    }
    support
}

/// What `mix` does besides mixing its candidates.
struct Stage<'a> {
    kernel: &'a str,
    candidates: &'a [Operand],
    acc: (Argument, Argument),
    /// Address and stride of the softmax in progress, and where it goes on.
    stats: (Argument, Argument),
    out_stats: (Argument, Argument),
    fresh: bool,
    finish: bool,
}

fn mix(op: &BoundOp<'_>, plan: &mut Plan<'_>, [norm, proj, y]: [&Operand; 3], stage: &Stage<'_>) -> Result<(), Fault> {
    let [word, fixed] = y.count();
    let d = y.tensor.row_len();
    let mut arguments = vec![
        op.step(),
        word,
        fixed,
        ("norm", norm.pointer()),
        ("proj", proj.pointer()),
        ("n", int(stage.candidates.len())),
        ("acc", stage.acc.0),
        ("stats", stage.stats.0),
        ("y", y.pointer()),
        ("out_stats", stage.out_stats.0),
        ("D", int(d)),
        ("lda", stage.acc.1),
        ("lds", stage.stats.1),
        ("ldy", y.stride()),
        ("ldo", stage.out_stats.1),
        ("eps", float(op.op.attrs().f[0])),
        ("fresh", int(stage.fresh.into())),
        ("finish", int(stage.finish.into())),
    ];
    for i in 0..MIX {
        // Places without a candidate repeat the first and are not read.
        let candidate = stage.candidates.get(i).unwrap_or(&stage.candidates[0]);
        arguments.push((V[i], candidate.pointer()));
        arguments.push((LD[i], candidate.stride()));
    }
    let kernel = format!("attn_res_{}_{}", stage.kernel, tile(d).expect("supported"));
    Ok(plan.launch(&kernel, [y.rows(1), Extent::ONE, Extent::ONE], &arguments)?)
}

fn plan_mix(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [norm, proj, candidates @ .., y] = op.operands else { unreachable!("checked") };
    let weights = [norm, proj, y];
    let acc = (y.pointer(), y.stride());
    if candidates.len() <= MIX {
        let stage = Stage { kernel: "mix", candidates, acc, stats: acc, out_stats: acc, fresh: true, finish: true };
        return mix(op, plan, weights, &stage);
    }
    let rows = u64::from(op.capacity(y));
    let progress = |i: usize| (Argument::Pointer(op.workspace + (i % 2) as u64 * rows * 8), int(2));
    let last = candidates.len().div_ceil(CHAIN) - 1;
    for (i, candidates) in candidates.chunks(CHAIN).enumerate() {
        let stage = Stage {
            kernel: "chain",
            candidates,
            acc,
            stats: progress(i),
            out_stats: progress(i + 1),
            fresh: i == 0,
            finish: i == last,
        };
        mix(op, plan, weights, &stage)?;
    }
    Ok(())
}

fn plan_combine(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [norm, proj, acc, stats, sum, y] = op.operands else { unreachable!("checked") };
    let stage = Stage {
        kernel: "combine",
        candidates: &[*sum],
        acc: (acc.pointer(), acc.stride()),
        stats: (stats.pointer(), stats.stride()),
        // Not written.
        out_stats: (stats.pointer(), stats.stride()),
        fresh: false,
        finish: true,
    };
    mix(op, plan, [norm, proj, y], &stage)
}

fn plan_scores(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, weights @ .., y] = op.operands else { unreachable!("checked") };
    let (norms, projs) = weights.split_at(weights.len() / 2);
    let [word, fixed] = x.count();
    let d = x.tensor.row_len();
    let each = if op.capacity(x) > 64 { SHARED } else { 1 };
    let kernel = format!("attn_res_scores_{}", tile(d).expect("supported"));
    for (group, (norms, projs)) in norms.chunks(SCORES).zip(projs.chunks(SCORES)).enumerate() {
        let mut arguments = vec![
            op.step(),
            word,
            fixed,
            ("x", x.pointer()),
            ("y", Argument::Pointer(y.address + (group * SCORES * 4) as u64)),
            ("n", int(norms.len())),
            ("D", int(d)),
            ("ldx", x.stride()),
            ("ldy", y.stride()),
            ("eps", float(op.op.attrs().f[0])),
            ("each", int(each as usize)),
        ];
        for i in 0..SCORES {
            arguments.push((N[i], norms.get(i).unwrap_or(&norms[0]).pointer()));
            arguments.push((P[i], projs.get(i).unwrap_or(&projs[0]).pointer()));
        }
        let groups = Extent::Fixed(norms.len().div_ceil(SCORES_EACH) as u32);
        plan.launch(&kernel, [x.rows(each), groups, Extent::ONE], &arguments)?;
    }
    Ok(())
}

fn plan_partial(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let n = op.op.attrs().i[0] as usize;
    let left = op.op.attrs().i[1] as usize;
    let (snapshots, rest) = op.operands.split_at(n);
    let (scores, outputs) = rest.split_at(n);
    let [acc, stats] = outputs else { unreachable!("checked") };
    let [word, fixed] = acc.count();
    let d = acc.tensor.row_len();
    let rows = u64::from(op.capacity(acc));
    let last = n.div_ceil(PARTIAL) - 1;
    for (i, (snapshots, scores)) in snapshots.chunks(PARTIAL).zip(scores.chunks(PARTIAL)).enumerate() {
        let progress = |i: usize| Argument::Pointer(op.workspace + (i % 2) as u64 * rows * 8);
        let (stats, lds) = if i == last { (stats.pointer(), stats.stride()) } else { (progress(i + 1), int(2)) };
        let mut arguments = vec![
            op.step(),
            word,
            fixed,
            ("n", int(snapshots.len())),
            ("stats", progress(i)),
            ("acc", acc.pointer()),
            ("out_stats", stats),
            ("D", int(d)),
            ("lda", acc.stride()),
            ("ldo", lds),
            ("fresh", int((i == 0).into())),
        ];
        for i in 0..PARTIAL {
            let (snapshot, score) = (snapshots.get(i).unwrap_or(&snapshots[0]), scores.get(i).unwrap_or(&scores[0]));
            let column = score.tensor.row_len() - left;
            arguments.push((V[i], snapshot.pointer()));
            arguments.push((LD[i], snapshot.stride()));
            arguments.push((S[i], Argument::Pointer(score.address + column as u64 * 4)));
            arguments.push((LS[i], score.stride()));
        }
        let grid = [acc.rows(1), panels(d, PANEL), Extent::ONE];
        plan.launch("attn_res_partial", grid, &arguments)?;
    }
    Ok(())
}
