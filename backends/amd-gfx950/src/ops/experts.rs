//! `experts`: routes of tokens to experts, walked to one by one or sorted into tiles that share an expert's weights.
//!
//! Few tokens have hardly two routes to one expert: each route is a tile, nothing is sorted. More are sorted on the device
//! (`kernels/routes.py`), in tiles as tall as an expert has rows on average. Every tile gives the same bits.
//!
//! What is between the last product and the weighted sum, a row per route, is many times what goes in and comes out. It has the
//! format of factors (bf16; f32 with `precision=f32`), and where it is more than [`THROUGH`], both run over a slab of columns at a
//! time, so small that the sum finds it in the memory-side cache ([`Shape::slab`]). Rejected: adding up in the product's
//! kernel, with atomics, whose order nobody knows, or in the order of experts, in which work-groups would wait for each other.
//!
//! MXFP4 experts of whole steps of 128 (K3's are) are multiplied by `kernels/experts_mxfp4.py`, from bf16 or, with `precision=fp8`,
//! e4m3 rows, everything else by the portable `kernels/experts.py`. Which one is decided by the operands, never by the number of
//! tokens.
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

use super::{
    BoundOp, OpEntry, Operand, PANEL,
    ahead::{self, Form},
    float, gemm_fp8, int, panels,
};
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
/// Products of routes up to so many bytes go through memory in one slab: there and back takes as long as a few more launches.
const THROUGH: usize = 64 << 20;
/// Bytes of the memory-side cache of 256 MiB that a slab and what it is made from may take.
const KEPT: usize = 224 << 20;
/// Work-groups along an axis of a grid that is not the first.
const GRID: usize = 1 << 16;
/// Rows of an expert from which on waves share them.
const SHARED: usize = 4;
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
        && shape.tiles(SHORTEST).max(WALKED * shape.chosen) < GRID
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
    // As tall as an expert has rows in the mean, or half as tall: taller tiles share weights, and waste what they do not fill. From a
    // few rows on, 32 cost less than 16: their waves share rows through LDS.
    let mean = tokens * shape.chosen / shape.experts;
    let fits = |height: &&usize| match **height {
        SHORTEST => true,
        32 => mean >= SHARED,
        128 => mean > 200,
        height => height <= 2 * mean,
    };
    heights.iter().rev().find(fits).copied().or(Some(SHORTEST))
}

/// Extents, `tokens` being the capacity.
#[derive(Clone, Copy, Debug)]
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

    /// Most tiles of so many routes at most.
    fn tiles(&self, each: usize) -> usize {
        self.routes().min(self.routes() / each + self.experts)
    }

    /// Columns of a slab for so many tokens, whole steps or all of them: a slab of products, the weights of its columns and the activations
    /// they meet, which the next slab wants again, fit into [`KEPT`]; slabs are as equal as steps allow. `value` bytes per activation
    /// and product, `weights` per column and expert.
    fn slab(&self, tokens: usize, value: usize, weights: usize) -> usize {
        let routes = tokens * self.chosen;
        if routes * self.width * value <= THROUGH {
            return self.width;
        }
        let column = routes * value + self.experts.min(routes) * weights;
        let fits = KEPT.saturating_sub(routes * self.hidden * value) / column / STEP * STEP;
        let slabs = self.width.div_ceil(fits.max(STEP));
        self.width.div_ceil(slabs).next_multiple_of(STEP).min(self.width)
    }
}

/// Byte offsets into the workspace.
struct Scratch {
    rounded: usize,
    rounded_scales: usize,
    hidden: usize,
    hidden_scales: usize,
    products: usize,
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
        let value = settings.factor_bytes();
        let hidden = area(routes * shape.hidden * value);
        let rounded = area(if fast { shape.tokens * shape.width * 2 } else { 0 });
        let fp8 = fast && settings.precision == Precision::Fp8;
        let scales = [(shape.tokens, shape.width), (routes, shape.hidden)];
        let bytes_of = |(rows, width)| if fp8 { gemm_fp8::scale_bytes(rows as u64, width) as usize } else { 0 };
        let [rounded_scales, hidden_scales] = scales.map(bytes_of).map(&mut area);
        // Programs of fewer tokens have wider slabs.
        let products = area((routes * shape.width * value).min(KEPT.max(routes * STEP * value)));
        let tiles = shape.tiles(SHORTEST);
        let [order, rank] = [(); 2].map(|()| area(if sorted { routes * 4 } else { 0 }));
        let tiles = area(if sorted { 16 * (1 + tiles) } else { 0 });
        let [counts, starts] = [(); 2].map(|()| area(if sorted { shape.experts * 4 } else { 0 }));
        Self { rounded, rounded_scales, hidden, hidden_scales, products, order, tiles, rank, counts, starts, bytes }
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
        (Some(each), Vary::Fixed) => Extent::Fixed(shape.tiles(each) as u32),
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
        let places = [scratch.rounded, scratch.rounded_scales].map(|at| op.workspace + at as u64);
        if !ahead::take(op, plan, x, Form::E4m3, places) {
            let arguments = [&[op.step(), word, fixed][..], &to].concat();
            plan.launch("fp8_quantise", [x.rows(1), columns, Extent::ONE], &arguments)?;
        }
        vec![("x", at(scratch.rounded)), whole]
    } else if fast {
        let to = [("y", at(scratch.rounded)), ("D", int(shape.width)), ("ldx", x.stride()), ("ldy", int(shape.width))];
        let columns = panels(shape.width, PANEL);
        let arguments = [&[op.step(), word, fixed, ("x", x.pointer())][..], &to].concat();
        if !ahead::take(op, plan, x, Form::Bf16, [op.workspace + scratch.rounded as u64; 2]) {
            plan.launch("convert_f32_bf16", [x.rows(1), columns, Extent::ONE], &arguments)?;
        }
        vec![("x", at(scratch.rounded)), whole]
    } else {
        vec![("x", x.pointer()), ("ldx", x.stride())]
    };
    // Of e4m3 rows; bf16 ones have none, and the kernels do not look.
    let scales = [("xs", at(scratch.rounded_scales)), ("hs", at(scratch.hidden_scales))];
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
        let blocks = Extent::Fixed(n.div_ceil(columns as usize) as u32);
        let grid = if fast { [blocks, tiles, Extent::ONE] } else { [tiles, blocks, Extent::ONE] };
        plan.launch(&name, grid, &arguments)
    };
    product(plan, "up", shape.hidden, &[&up[..], &rows, if fast { &scales } else { &[] }].concat())?;
    let groups = if dtype == DType::Mxfp4 { shape.hidden / GROUP } else { 0 };
    let weights_of_column = dtype.bytes(shape.hidden as u64).expect("whole groups, checked") as usize + groups;
    let slab = shape.slab(tokens, op.settings.factor_bytes(), weights_of_column);
    for first in (0..shape.width).step_by(slab) {
        let width = slab.min(shape.width - first);
        let down = [
            ("h", at(scratch.hidden)),
            ("w2", w2.pointer()),
            ("s2", s2.pointer()),
            ("o", at(scratch.products)),
            ("N", int(shape.hidden)),
            ("K", int(shape.width)),
            ("first", int(first)),
            ("width", int(width)),
            ("pitch", pitch(w2)),
            ("spitch", s2.stride()),
        ];
        let more = [("NB", int(shape.hidden / 2)), scales[1]];
        let down = [&down[..], if fast { &more } else { &[] }].concat();
        product(plan, "down", width, &down)?;
        let sum = [
            op.step(),
            word,
            fixed,
            ("o", at(scratch.products)),
            ("weights", weights.pointer()),
            ("y", y.pointer()),
            ("k", int(k)),
            ("first", int(first)),
            ("width", int(width)),
            ("ldw", weights.stride()),
            ("ldy", y.stride()),
        ];
        let columns = panels(width, PANEL);
        plan.launch(&format!("experts_combine_{}", op.settings.factors()), [x.rows(1), columns, Extent::ONE], &sum)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const K3: Shape = Shape { tokens: 8192, chosen: 16, experts: 896, hidden: 384, width: 3584 };
    /// MXFP4 of a column of an expert, and its scales.
    const COLUMN: usize = 384 / 2 + 384 / GROUP;

    #[test]
    fn slabs_of_k3() {
        let columns = [1, 16, 512, 1024, 2048, 4096, 8192].map(|tokens| K3.slab(tokens, 2, COLUMN));
        assert_eq!(columns, [3584, 3584, 3584, 896, 768, 512, 256]);
    }

    #[test]
    fn a_slab_stays_in_the_cache_or_is_one_step() {
        for (experts, hidden, width) in [(896, 384, 3584), (256, 2048, 7168), (8, 14_336, 4096), (4, 96, 160)] {
            for tokens in (0..18).map(|i| (1 << i) + i) {
                let shape = Shape { tokens, chosen: 4, experts, hidden, width };
                for (value, weights) in [(2, hidden / 2 + hidden / 32), (2, 2 * hidden), (4, 4 * hidden)] {
                    let slab = shape.slab(tokens, value, weights);
                    let products = shape.routes() * slab * value;
                    let beside = shape.routes() * hidden * value + experts.min(shape.routes()) * slab * weights;
                    let whole = slab == width && products <= THROUGH;
                    assert!(whole || products + beside <= KEPT || slab == STEP.min(width), "{shape:?}: {slab}");
                    assert!(slab == width || slab.is_multiple_of(STEP) && slab < width, "{shape:?}: {slab}");
                    // What support reserves holds it, for fewer tokens too.
                    let reserved = (shape.routes() * width * value).min(KEPT.max(shape.routes() * STEP * value));
                    assert!(products <= reserved, "{shape:?}: {products} of {reserved}");
                }
            }
        }
    }
}
