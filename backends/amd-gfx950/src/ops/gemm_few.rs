//! Products of programs of at most 16 tokens (`kernels/gemm_few.py`, `few` and `several` of `kernels/gemm_fp8.py`) and of more
//! (`kernels/gemm_many.py`), and which of them share a launch.
//!
//! A decoding step has many products of one input: q, k, v and the gates of an attention layer, gate and up of an MLP. Alone, each has
//! too few tiles to draw on all of the memory, and costs a launch; a prompt's leave compute units idle in their last round. Neighbours in a
//! program that read the same rows are one launch here, up to six weights at a time; a product and the addition behind it are one as well.
//! Quantised ones share launches up to 256 tokens, with additions up to 16; gate, up and their activation do in small programs
//! ([`gate_up`]). Weights stay where they are, bits are those of single launches.
//!
//! It is decided over a program's addresses, so no graph has to know of it. Rejected: an op of the catalogue for several products. Which
//! products share an input is a matter of the model's graph, how many share a launch one of the device, and every backend would have to
//! expand it.

use tokenspeed_backend_api::{op::OpKind, sdk::Fault};

use super::{BoundOp, Operand, ahead, gate_up, gemm, gemm_fp8, gemm_many, int};
use crate::kernel::{Argument, Extent, Plan};

/// Most tokens of a program: rows of a tile. Also its columns.
pub(super) const TILE: usize = 16;
/// Most tokens of a program whose quantised products are this file's.
const QUANTISED: u32 = 256;
/// Weights per launch, the kernels' parts.
const PARTS: usize = 6;
/// Most tokens of a program for whose products narrow tiles are best however many there are: with more, the rows that tiles fetch
/// tell.
const LEAST: usize = 4;
/// Longest rows that a product of so few tokens rounds itself, by count: rounding 1,536 values takes a wave about 2.5 µs, hidden
/// behind weights in part; a launch before it takes 2.1, and the product then what its bytes take.
const SHORT: usize = 2048;
/// Tiles beyond which products of more tokens fetch their rows too often: as many as compute units.
const TILES: usize = 256;

/// A product with a kernel here.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) x: Operand,
    pub(super) w: Operand,
    bias: Option<Operand>,
    pub(super) y: Operand,
    /// Its weights are quantised.
    pub(super) fp8: bool,
}

/// What a launch adds its sums to.
struct Addition {
    before: Operand,
    total: Operand,
}

/// Whether quantised products of so many tokens and values per row round their rows themselves.
pub(super) fn rounds(tokens: usize, k: usize) -> bool {
    tokens <= LEAST && k <= SHORT
}

fn range(o: &Operand) -> std::ops::Range<u64> {
    o.address..o.address + o.tensor.bytes as u64
}

fn apart(a: &Operand, b: &Operand) -> bool {
    ahead::apart(&range(a), &range(b))
}

/// Whether an operand of a later op lies outside of this op's scratch, which that op would not know of.
fn clear(op: &BoundOp<'_>, o: &Operand) -> bool {
    ahead::apart(&range(o), &(op.workspace..op.workspace + op.op.workspace_bytes()))
}

/// The same values in the same place.
pub(super) fn same(a: &Operand, b: &Operand) -> bool {
    let (s, t) = (&a.tensor, &b.tensor);
    a.address == b.address
        && (s.vary, s.dims[0], s.row_len(), s.row_bytes) == (t.vary, t.dims[0], t.row_len(), t.row_bytes)
}

impl Product {
    fn of(op: &BoundOp<'_>) -> Option<Self> {
        let gemm = op.op.kind() == OpKind::Gemm && op.settings.specialised() && !op.settings.exact();
        if !gemm {
            return None;
        }
        let bias = (op.op.attrs().i[0] == 1).then(|| op.operands[2]);
        let (x, w, y) = (op.operands[0], op.operands[1], *op.operands.last()?);
        let fp8 = w.tensor.layout == gemm_fp8::AS_FP8;
        let fits = if fp8 { op.capacity(&x) <= QUANTISED } else { gemm::stored(&w.tensor).0 == "bf16" };
        fits.then_some(Self { x, w, bias, y, fp8 })
    }

    /// Rows of weights.
    pub(super) fn rows(&self) -> usize {
        self.w.tensor.dims[0]
    }

    /// Tiles of so many columns.
    fn tiles(&self, columns: usize) -> usize {
        self.rows().div_ceil(columns)
    }

    /// Whether its program has kernels for 16 rows.
    pub(super) fn few(&self, op: &BoundOp<'_>) -> bool {
        op.capacity(&self.x) as usize <= TILE
    }

    /// Values between rows of weights.
    pub(super) fn ldw(&self) -> usize {
        gemm::stored(&self.w.tensor).1
    }

    /// Arguments that do not depend on how many products share a launch. e4m3 rows are where [`round`] puts them.
    pub(super) fn input(&self, op: &BoundOp<'_>) -> Vec<(&'static str, Argument)> {
        let [word, fixed] = self.x.count();
        let k = self.x.tensor.row_len();
        let mut arguments = vec![op.step(), word, fixed, ("K", int(k))];
        let plain = [("x", self.x.pointer()), ("ldx", self.x.stride())];
        if !self.fp8 {
            arguments.extend(plain);
            return arguments;
        }
        arguments.push(("KP", int(gemm_fp8::padded(k))));
        let (rows, scales) = gemm_fp8::rounded(op, &self.x);
        match self.rounds(op) {
            // Not read.
            true => arguments.extend([plain[0], plain[1], ("xs", self.x.pointer())]),
            false => arguments.extend([("x", rows), ("xs", scales)]),
        }
        // Rounded rows touch, which kernels for more of them take for granted.
        if !self.rounds(op) && self.few(op) {
            arguments.push(("ldx", int(k)));
        }
        arguments
    }

    /// Whether its kernel rounds rows itself.
    fn rounds(&self, op: &BoundOp<'_>) -> bool {
        rounds(op.capacity(&self.x) as usize, self.x.tensor.row_len())
    }

    /// Name of its kernel's family.
    fn family(&self, op: &BoundOp<'_>, name: &str) -> String {
        match (self.fp8, self.rounds(op)) {
            (false, _) => format!("linear_{name}"),
            (true, true) => format!("linear_fp8_{name}"),
            (true, false) => format!("linear_fp8_{name}_rounded"),
        }
    }
}

/// A launch, with one before it that rounds its rows where it wants that; none, unless its arguments keep the promises of a kernel
/// that has no form without them.
pub(super) fn launch(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    kernel: &str,
    (first, rows, tiles): (&Product, u32, usize),
    arguments: &[(&str, Argument)],
) -> Result<bool, Fault> {
    let kept = plan.library().get(kernel)?.keeps_promises(arguments);
    if kept {
        if first.fp8 && !first.rounds(op) {
            gemm_fp8::plan_rounding(op, plan, &first.x)?;
        }
        plan.launch(kernel, [first.x.rows(rows), Extent::Fixed(tiles as u32), Extent::ONE], arguments)?;
    }
    Ok(kept)
}

/// A launch for one product.
fn alone(op: &BoundOp<'_>, plan: &mut Plan<'_>, p: &Product, add: Option<&Addition>) -> Result<bool, Fault> {
    let tokens = op.capacity(&p.x);
    let (kernel, rows, tiles) = match (p.few(op), p.fp8) {
        (false, true) => return Ok(false),
        (false, false) => {
            let (rows, columns) = gemm_many::tile(tokens, p.rows());
            let tiles = gemm_many::columns(rows, p.tiles(columns as usize));
            (format!("linear_many_{rows}x{columns}"), rows, tiles)
        }
        // `gemm` fetches rows as they lie.
        (true, false) if add.is_none() && tokens as usize > LEAST && p.tiles(TILE) > TILES => return Ok(false),
        (true, _) => (p.family(op, "few"), TILE as u32, p.tiles(TILE)),
    };
    let (before, total) = add.map_or((p.y, p.y), |a| (a.before, a.total));
    let mut arguments = p.input(op);
    arguments.extend([
        ("w", p.w.pointer()),
        ("bias", p.bias.unwrap_or(p.y).pointer()),
        ("before", before.pointer()),
        ("total", total.pointer()),
        ("y", p.y.pointer()),
        ("N", int(p.rows())),
        ("ldb", before.stride()),
        ("ldt", total.stride()),
        ("ldy", p.y.stride()),
        ("biased", int(usize::from(p.bias.is_some()))),
        ("add", int(usize::from(add.is_some()))),
        ("keep", int(usize::from(add.is_none_or(|a| !same(&a.total, &p.y))))),
    ]);
    if !p.fp8 {
        arguments.push(("ldw", int(p.ldw())));
    }
    launch(op, plan, &kernel, (p, rows, tiles), &arguments)
}

/// The launch of y = x · wᵀ of a bf16 weight for an op that asks for no more; none, if [`launch`] has none.
pub(super) fn single(op: &BoundOp<'_>, plan: &mut Plan<'_>, [x, w, y]: [&Operand; 3]) -> Result<bool, Fault> {
    alone(op, plan, &Product { x: *x, w: *w, bias: None, y: *y, fp8: false }, None)
}

/// Names of the arguments of one of several products.
const NAMES: [[&str; PARTS]; 5] = [
    ["w0", "w1", "w2", "w3", "w4", "w5"],
    ["y0", "y1", "y2", "y3", "y4", "y5"],
    ["n0", "n1", "n2", "n3", "n4", "n5"],
    ["ly0", "ly1", "ly2", "ly3", "ly4", "ly5"],
    ["lw0", "lw1", "lw2", "lw3", "lw4", "lw5"],
];

/// A launch for up to [`PARTS`] products of one input and one format.
fn side_by_side(op: &BoundOp<'_>, plan: &mut Plan<'_>, parts: &[Product]) -> Result<bool, Fault> {
    let first = &parts[0];
    if parts.len() == 1 && (first.few(op) || !first.fp8) {
        return alone(op, plan, first, None);
    }
    let mut arguments = first.input(op);
    for i in 0..PARTS {
        // Those that are not there have no tiles.
        let (p, n) = parts.get(i).map_or((first, 0), |p| (p, p.rows()));
        let values = [p.w.pointer(), p.y.pointer(), int(n), p.y.stride(), int(p.ldw())];
        arguments.extend(NAMES.iter().map(|names| names[i]).zip(values).take(if p.fp8 { 4 } else { 5 }));
    }
    let (kernel, rows, columns) = match (first.few(op), first.fp8) {
        (true, true) => (first.family(op, "several"), TILE as u32, TILE as u32),
        (true, false) => ("linear_few_several".to_owned(), TILE as u32, TILE as u32),
        (false, true) => {
            let (rows, columns) = gemm_fp8::tile(op.capacity(&first.x) as usize);
            (format!("linear_fp8_several_{rows}x{columns}"), rows, columns)
        }
        (false, false) => {
            let all = parts.iter().map(Product::rows).sum();
            let (rows, columns) = gemm_many::tile(op.capacity(&first.x), all);
            (format!("linear_many_several_{rows}x{columns}"), rows, columns)
        }
    };
    let tiles = parts.iter().map(|p| p.tiles(columns as usize)).sum();
    let tiles = if first.few(op) || first.fp8 { tiles } else { gemm_many::columns(rows, tiles) };
    launch(op, plan, &kernel, (first, rows, tiles), &arguments)
}

/// The addition right behind a product, if a launch may do both.
fn addition(op: &BoundOp<'_>, p: &Product, next: Option<&BoundOp<'_>>) -> Option<Addition> {
    let add = next.filter(|op| op.op.kind() == OpKind::Add)?;
    let [a, b, total] = *add.operands else { return None };
    let before = match (same(&a, &p.y), same(&b, &p.y)) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    // Other tiles still read x when one is done; a place may be read and written by the lane that owns it.
    let orderly = apart(&total, &p.x)
        && clear(op, &total)
        && apart(&before, &p.y)
        && (apart(&total, &p.y) || same(&total, &p.y))
        && (apart(&total, &before) || same(&total, &before));
    orderly.then_some(Addition { before, total })
}

/// Plans the first ops of a program that share launches: how many these are, 0 if the first is none of this file's.
pub(super) fn together(ops: &[BoundOp<'_>], plan: &mut Plan<'_>) -> Result<usize, Fault> {
    let Some(first) = ops.first().and_then(Product::of) else { return Ok(0) };
    let mut run: Vec<Product> = vec![first];
    for next in ops[1..].iter().map_while(Product::of) {
        let plain = first.bias.is_none() && next.bias.is_none();
        // What is side by side has no order.
        let disjoint = run.iter().all(|p| apart(&p.y, &next.y)) && apart(&next.y, &first.x);
        if !plain || !disjoint || !same(&next.x, &first.x) {
            break;
        }
        run.push(next);
    }
    // Rounded rows lie in the scratch of the last op that wants them: no result of those before it, which all live on, lies there.
    let owner = &ops[run.iter().rposition(|p| p.fp8).unwrap_or(0)];
    if run.iter().any(|p| !clear(owner, &p.y)) {
        run.truncate(1);
    }
    if gate_up::plan(owner, plan, &run, ops.get(2))? {
        return Ok(3);
    }
    let before = plan.launches.len();
    if run.len() > 1 {
        let (fp8, plain): (Vec<Product>, Vec<Product>) = run.iter().partition(|p| p.fp8);
        let mut all = true;
        for parts in fp8.chunks(PARTS).chain(plain.chunks(PARTS)) {
            all = all && side_by_side(owner, plan, parts)?;
        }
        if all {
            return Ok(run.len());
        }
        plan.launches.truncate(before);
    }
    let add = addition(&ops[0], &first, ops.get(1));
    if add.is_some() && alone(&ops[0], plan, &first, add.as_ref())? {
        return Ok(2);
    }
    Ok(usize::from(alone(&ops[0], plan, &first, None)?))
}
