//! `experts`: routes of tokens to experts, walked to one by one or sorted into tiles that share an expert's weights.
//!
//! Few tokens have hardly two routes to one expert: each route is a tile, nothing is sorted. More are sorted on the device
//! (`kernels/routes.py`), in tiles as tall as an expert has rows on average. Every tile gives the same bits. The last product
//! goes through a panel of columns at a time, so that what is between it and the weighted sum stays small.
//!
//! MXFP4 experts of whole steps of 128 (K3's are) are multiplied by `kernels/experts_mxfp4.py`, with `precision=fp8` by
//! `kernels/experts_fp8.py`, everything else by the portable `kernels/experts.py`. Which one is decided by the operands, never by
//! the number of tokens.
//!
//! Weights are used as they lie. Block formats other than MXFP4 are refused: three operands would want to be packed, and an op
//! packs one. Rejected: unpacking them in the kernels, for checkpoints that nobody serves on this device.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    graph::Vary,
    op::OpKind,
    sdk::{Fault, Support},
    support::Rounding,
};

use super::{BoundOp, OpEntry, Operand, PANEL, float, int, panels};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::{Precision, Settings},
};

/// Most tokens of a program whose routes are walked.
const WALKED: usize = 16;
/// Routes and experts that one work-group sorts, the kernel's `B`.
const SORTED_AT_ONCE: usize = 1024;
/// The shortest sorted tile, and the only one for operands that are not aligned as taller ones want them.
const SHORTEST: usize = 16;
/// Bytes of a panel between the last product and the weighted sum: what the memory-side cache holds.
const PANEL_BYTES: usize = 256 << 20;
/// Scratch areas start at multiples of this.
const ALIGN: usize = 256;

inventory::submit! { OpEntry { kind: OpKind::Experts, support, plan, pack: None } }

/// Values of K and N that the specialised kernels take at a time.
const STEP: usize = 128;
/// Values of a row that share a scale.
const GROUP: usize = 32;

/// Whether the specialised kernels take these extents.
fn whole_steps(shape: &Shape, dtype: DType, settings: &Settings) -> bool {
    let small = |rows: usize, width: usize| rows * width < 1 << 30;
    dtype == DType::Mxfp4
        && !settings.exact()
        && settings.specialised()
        && shape.width.is_multiple_of(STEP)
        && shape.hidden.is_multiple_of(STEP)
        && small(shape.tokens, shape.width)
        && small(shape.routes(), shape.hidden)
        && small(shape.width, shape.hidden)
}

/// Format of the weights and of the factors, as kernel names call them.
fn form(dtype: DType, settings: &Settings) -> Option<String> {
    let weights = match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Mxfp4 => "mxfp4",
        _ => return None,
    };
    Some(format!("{weights}_{}", settings.factors()))
}

/// Routes per tile for so many tokens at most; `None` walks.
fn tile(shape: &Shape, tokens: usize, heights: &[usize]) -> Option<usize> {
    if tokens <= WALKED {
        return None;
    }
    // As tall as an expert has rows in the mean, or half as tall: taller tiles share weights, and waste what they do not fill.
    let mean = tokens * shape.chosen / shape.experts;
    let fits = |height: &&usize| **height <= SHORTEST || **height <= 2 * mean && (**height < 128 || mean > 200);
    heights.iter().rev().find(fits).copied().or(Some(SHORTEST))
}

/// Extents, `tokens` being the capacity.
#[derive(Clone, Copy)]
struct Shape {
    tokens: usize,
    chosen: usize,
    experts: usize,
    hidden: usize,
    width: usize,
}

impl Shape {
    fn routes(&self) -> usize {
        self.tokens * self.chosen
    }

    /// Columns of a panel for so many tokens: all, or as many whole steps as [`PANEL_BYTES`] hold.
    fn panel(&self, tokens: usize) -> usize {
        let fits = PANEL_BYTES / (4 * tokens * self.chosen) / STEP * STEP;
        fits.max(STEP).min(self.width)
    }
}

/// Byte offsets into the workspace.
struct Scratch {
    rounded: usize,
    rounded_scales: usize,
    hidden: usize,
    hidden_scales: usize,
    panel: usize,
    order: usize,
    tiles: usize,
    rank: usize,
    counts: usize,
    starts: usize,
    bytes: usize,
}

impl Scratch {
    fn new(shape: &Shape, dtype: DType, settings: &Settings) -> Self {
        let mut bytes = 0;
        let mut area = |size: usize| {
            let at = bytes;
            bytes += size.next_multiple_of(ALIGN);
            at
        };
        let (routes, sorted) = (shape.routes(), shape.tokens > WALKED);
        let fast = whole_steps(shape, dtype, settings);
        // Operands that lie badly make a portable kernel of a fast one: what is between the products is of bf16 at most.
        let hidden = area(routes * shape.hidden * settings.factor_bytes());
        let rounded = area(if fast { shape.tokens * shape.width * 2 } else { 0 });
        let fp8 = fast && settings.precision == Precision::Fp8;
        let scales = [shape.tokens * shape.width, routes * shape.hidden].map(|n| if fp8 { n / GROUP } else { 0 });
        let [rounded_scales, hidden_scales] = scales.map(&mut area);
        // Programs of fewer tokens have wider panels.
        let panel = area((routes * shape.width * 4).min(PANEL_BYTES.max(routes * STEP * 4)));
        let tiles = routes.min(routes / SHORTEST + shape.experts);
        let [order, rank] = [(); 2].map(|()| area(if sorted { routes * 4 } else { 0 }));
        let tiles = area(if sorted { 16 * (1 + tiles) } else { 0 });
        let [counts, starts] = [(); 2].map(|()| area(if sorted { shape.experts * 4 } else { 0 }));
        Self { rounded, rounded_scales, hidden, hidden_scales, panel, order, tiles, rank, counts, starts, bytes }
    }
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let [x, ids, _, slots, w1, ..] = &op.operands[..] else { unreachable!("checked") };
    let Some(form) = form(w1.dtype, settings) else {
        return Support::no(format!("{} experts: f32, f16, bf16 or mxfp4", w1.dtype));
    };
    if let Some(stack) = op.operands[4..op.operands.len() - 1].iter().find(|t| t.stride() >= 1 << 31) {
        return Support::no(format!("experts are {} bytes apart: below 2^31", stack.stride()));
    }
    let shape = Shape {
        tokens: x.dims[0] as usize,
        chosen: ids.row_len(),
        experts: slots.dims[0] as usize,
        hidden: w1.dims[1] as usize,
        width: x.row_len(),
    };
    if shape.routes() >= 1 << 26 {
        return Support::no(format!("{} routes: below 2^26", shape.routes()));
    }
    let fast = whole_steps(&shape, w1.dtype, settings);
    let fp8 = fast && settings.precision == Precision::Fp8;
    let name = match fast {
        true if fp8 => "experts_fp8".to_string(),
        true => "experts_mxfp4".to_string(),
        false => format!("experts_{form}"),
    };
    let mut support = settings.rounded(Support::yes(name));
    if fp8 {
        support.rounding = Rounding::Fp8;
    }
    support.workspace_bytes = Scratch::new(&shape, w1.dtype, settings).bytes as u64;
    support
}

/// From one expert to the next: elements, or bytes of a format with blocks.
fn pitch(stack: &Operand) -> Argument {
    match stack.tensor.dtype {
        DType::Mxfp4 => int(stack.tensor.row_bytes),
        _ => stack.stride(),
    }
}

/// Work-groups for `times` things per entry of `operand`'s first dimension, `each` per group.
fn share(operand: &Operand, each: usize, times: usize) -> Extent {
    match operand.tensor.vary {
        Vary::Fixed => Extent::Fixed((operand.tensor.dims[0] * times).div_ceil(each) as u32),
        count => Extent::Share { count, times: times as u32, each: each as u32, plus: 1 },
    }
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [x, ids, weights, slots, w1, w3, w2, ..] = op.operands else { unreachable!("checked") };
    let y = op.operands.last().expect("checked");
    let dtype = w1.tensor.dtype;
    let [s1, s3, s2] = match op.operands {
        [.., s1, s3, s2, _] if dtype == DType::Mxfp4 => [s1, s3, s2],
        // Not read: other formats have no scales.
        _ => [w1, w3, w2],
    };
    let shape = Shape {
        tokens: x.tensor.dims[0],
        chosen: ids.tensor.row_len(),
        experts: slots.tensor.dims[0],
        hidden: w1.tensor.dims[1],
        width: x.tensor.row_len(),
    };
    let aligned =
        |o: &Operand| o.address.is_multiple_of(16) && matches!(pitch(o), Argument::I32(pitch) if pitch % 16 == 0);
    let stacks = [w1, w3, w2].into_iter().all(aligned);
    let fast = stacks && whole_steps(&shape, dtype, op.settings);
    let fp8 = fast && op.settings.precision == Precision::Fp8;
    let heights: &[usize] = match dtype {
        _ if fast => &[16, 32, 64, 128],
        DType::Mxfp4 | DType::BF16 if !op.settings.exact() => {
            let whole = shape.hidden.is_multiple_of(16) && shape.width.is_multiple_of(16) && stacks && aligned(x);
            if whole { &[16, 64] } else { &[SHORTEST] }
        }
        _ => &[SHORTEST],
    };
    let tokens = op.capacity(x) as usize;
    let tile = tile(&shape, tokens, heights);
    let scratch = Scratch::new(&shape, dtype, op.settings);
    let at = |offset: usize| Argument::Pointer(op.workspace + offset as u64);
    let (k, e) = (shape.chosen, shape.experts);
    let tiles = match (tile, x.tensor.vary) {
        (None, _) => share(x, 1, k),
        (Some(each), Vary::Fixed) => Extent::Fixed(shape.routes().min(shape.routes() / each + e) as u32),
        (Some(each), count) => Extent::Share { count, times: k as u32, each: each as u32, plus: e as u32 },
    };
    if let Some(each) = tile {
        sort(op, plan, &shape, &scratch, each)?;
    }
    let form = form(dtype, op.settings).expect("supported");
    let kind = tile.map_or("walk_16".to_string(), |tile| format!("sorted_{tile}"));
    let kernel = |product: &str| match fast {
        true if fp8 => format!("experts_fp8_{product}_{kind}"),
        true => format!("experts_mxfp4_{product}_{kind}"),
        false => format!("experts_{product}_{form}_{kind}"),
    };
    let attrs = op.op.attrs();
    let [word, fixed] = x.count();
    let step = [op.step(), word, fixed, ("k", int(k)), ("slots", slots.pointer()), ("ids", ids.pointer())];
    let step =
        [&step[..], &[("ldi", ids.stride()), ("tiles", at(scratch.tiles)), ("order", at(scratch.order))]].concat();
    let whole = ("KB", int(shape.width / 2));
    let rows = if fp8 {
        let (y, scales) = (("y", at(scratch.rounded)), at(scratch.rounded_scales));
        let to = [("x", x.pointer()), y, ("s", scales), ("D", int(shape.width)), ("ldx", x.stride())];
        let columns = panels(shape.width, PANEL);
        plan.launch("fp8_quantise", [x.rows(1), columns, Extent::ONE], &[&[op.step(), word, fixed][..], &to].concat())?;
        vec![("x", at(scratch.rounded)), ("xs", scales), ("hs", at(scratch.hidden_scales)), whole]
    } else if fast {
        let to = [("y", at(scratch.rounded)), ("D", int(shape.width)), ("ldx", x.stride()), ("ldy", int(shape.width))];
        let columns = panels(shape.width, PANEL);
        let arguments = [&[op.step(), word, fixed, ("x", x.pointer())][..], &to].concat();
        plan.launch("convert_f32_bf16", [x.rows(1), columns, Extent::ONE], &arguments)?;
        vec![("x", at(scratch.rounded)), whole]
    } else {
        vec![("x", x.pointer()), ("ldx", x.stride())]
    };
    let up = [
        ("w1", w1.pointer()),
        ("w3", w3.pointer()),
        ("s1", s1.pointer()),
        ("s3", s3.pointer()),
        ("h", at(scratch.hidden)),
        ("N", int(shape.hidden)),
        ("K", int(shape.width)),
        ("pitch1", pitch(w1)),
        ("pitch3", pitch(w3)),
        ("spitch1", s1.stride()),
        ("spitch3", s3.stride()),
        ("act", int(attrs.i[0] as usize)),
        ("beta", float(attrs.f[0])),
        ("linear", float(attrs.f[1])),
    ];
    let product = |plan: &mut Plan<'_>, name: &str, n: usize, arguments: &[(&str, Argument)]| {
        let name = kernel(name);
        let arguments = [&step[..], arguments].concat();
        let columns = plan.pick(&name, &arguments)?.entry.constant("BN").expect("a constant of these kernels");
        plan.launch(&name, [tiles, Extent::Fixed(n.div_ceil(columns as usize) as u32), Extent::ONE], &arguments)
    };
    product(plan, "up", shape.hidden, &[&up[..], &rows].concat())?;
    let panel = shape.panel(tokens);
    for first in (0..shape.width).step_by(panel) {
        let width = panel.min(shape.width - first);
        let down = [
            ("h", at(scratch.hidden)),
            ("w2", w2.pointer()),
            ("s2", s2.pointer()),
            ("o", at(scratch.panel)),
            ("N", int(shape.hidden)),
            ("K", int(shape.width)),
            ("first", int(first)),
            ("width", int(width)),
            ("pitch", pitch(w2)),
            ("spitch", s2.stride()),
        ];
        let more = [("NB", int(shape.hidden / 2)), ("hs", at(scratch.hidden_scales))];
        let down = [&down[..], &more[..usize::from(fast) + usize::from(fp8)]].concat();
        product(plan, "down", width, &down)?;
        let sum = [
            op.step(),
            word,
            fixed,
            ("o", at(scratch.panel)),
            ("weights", weights.pointer()),
            ("y", y.pointer()),
            ("k", int(k)),
            ("K", int(shape.width)),
            ("first", int(first)),
            ("width", int(width)),
            ("ldw", weights.stride()),
            ("ldy", y.stride()),
        ];
        let columns = panels(width, PANEL);
        plan.launch("experts_combine", [x.rows(1), columns, Extent::ONE], &sum)?;
    }
    Ok(())
}

/// Routes by expert, and the tiles they make.
fn sort(op: &BoundOp<'_>, plan: &mut Plan<'_>, shape: &Shape, scratch: &Scratch, each: usize) -> Result<(), Fault> {
    let ids = &op.operands[1];
    let at = |offset: usize| Argument::Pointer(op.workspace + offset as u64);
    let [word, fixed] = ids.count();
    let k = ("k", int(shape.chosen));
    let routes = [op.step(), word, fixed, k, ("ids", ids.pointer()), ("ldi", ids.stride())];
    let (order, tiles) = (("order", at(scratch.order)), ("tiles", at(scratch.tiles)));
    let one = [Extent::ONE; 3];
    let most = op.capacity(ids) as usize * shape.chosen;
    if most <= SORTED_AT_ONCE && shape.experts <= SORTED_AT_ONCE {
        return Ok(plan.launch("routes_sort", one, &[&routes[..], &[order, tiles, ("each", int(each))]].concat())?);
    }
    let (counts, starts, rank) =
        (("counts", at(scratch.counts)), ("starts", at(scratch.starts)), ("rank", at(scratch.rank)));
    let experts = ("E", int(shape.experts));
    let by_route = [share(ids, SORTED_AT_ONCE, shape.chosen), Extent::ONE, Extent::ONE];
    let by_expert = Extent::Fixed(shape.experts.div_ceil(SORTED_AT_ONCE) as u32);
    plan.launch("routes_clear", [by_expert, Extent::ONE, Extent::ONE], &[counts, experts])?;
    plan.launch("routes_count", by_route, &[&routes[..], &[counts, rank]].concat())?;
    plan.launch("routes_cut", one, &[counts, starts, tiles, experts, ("each", int(each))])?;
    Ok(plan.launch("routes_place", by_route, &[&routes[..], &[starts, rank, order]].concat())?)
}
