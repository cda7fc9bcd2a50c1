//! `mla_mix`: latent attention from the query to the gated values, where `mla_split` takes the shape and factors are bf16.
//!
//! Four launches instead of six in a decoding step: absorb, deal, attention over splits, and one that puts a token's parts together,
//! projects them and gates the values. From [`SHARED`] tokens on, parts are put together first, so that a tile of tokens shares a
//! head's weights in the projection, which also gates. Bits are the same either way. With `mla_prefill=expanded`, requests of many
//! tokens take another form (`mla_prefill`). Everything else is left to the decomposition.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Determinism, Fault, Support, Tensor},
    support::Rounding,
};

use super::{
    BoundOp, OpEntry, Operand, gemm, int,
    mla::{PANEL, Projection, launch_project, plan_project},
    mla_prefill::{self, Expanded, Factors},
    mla_split::{Shape, Split},
};
use crate::{
    kernel::{Extent, Plan},
    settings::{GRAPH_TOKENS, MlaPrefill, Settings},
};

/// Values of a row, and latent ones.
const WIDTHS: (usize, usize) = (576, 512);
/// Columns per work-group of `mla_settle`.
const SETTLED: usize = 32;
/// Tokens from which on a head's weights are worth sharing between them: a tile of the projection.
const SHARED: u32 = 64;

inventory::submit! { OpEntry { kind: OpKind::MlaMix, support, plan, pack: Some(gemm::expand) } }

/// Sizes of the op that are not those of the attention inside.
struct Sizes {
    /// Attention over splits.
    split: Split,
    /// Values per head.
    values: usize,
    /// Query values per head that are absorbed, and those behind.
    nope: usize,
    rope: usize,
    /// Bytes of the absorbed queries and of the sums over keys.
    bytes: [u64; 2],
    /// Requests of many tokens take the expanded form, whose bits are others.
    forms: bool,
    /// The expanded form, where a program can hold such a request.
    expanded: Option<Expanded>,
}

impl Sizes {
    /// `None` if the kernels do not take the shape. `q`, `cache`, `table`, `y` are dimensions.
    fn new(q: &[usize], cache: (&[usize], DType), table: &[usize], y: &[usize], settings: &Settings) -> Option<Self> {
        let (row, rank) = WIDTHS;
        let (tokens, heads) = (q[0], q[1]);
        let shape = Shape { tokens, heads, widths: (cache.0[3], rank), cache: cache.1, pages: (cache.0[1], table[1]) };
        let rope = row - rank;
        let (nope, values) = (q[2].checked_sub(rope)?, y[2]);
        if !values.is_multiple_of(PANEL) {
            return None;
        }
        let bytes = [row, rank].map(|n| ((tokens * heads * n * 4) as u64).next_multiple_of(256));
        let forms = settings.mla_prefill == MlaPrefill::Expanded && mla_prefill::fits(nope, values);
        let context = shape.pages.0 * shape.pages.1;
        let expanded = if forms { Expanded::new(tokens, heads, context, Factors::of(settings)) } else { None };
        Some(Self { split: Split::new(&shape, settings)?, values, nope, rope, bytes, forms, expanded })
    }
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let dims = |i: usize| op.operands[i].dims().iter().map(|d| *d as usize).collect::<Vec<_>>();
    let sizes = Sizes::new(&dims(0), (&dims(2), op.operands[2].dtype), &dims(3), &dims(5), settings);
    let Some(sizes) = sizes.filter(|s| op.operands[1].row_len() == WIDTHS.1 && op.attrs.i[1] as usize == s.rope) else {
        return Support::no(
            "rows of 512 + 64 values in bf16 or e4m3, pages of a power of two, values by 64, bf16 factors",
        );
    };
    // Of a program that can hold none, no request is e4m3.
    let e4m3 = sizes.expanded.is_some() && Factors::of(settings) == Factors::E4m3;
    let name = match sizes.forms {
        false => "mla_mix, bf16 factors",
        true if e4m3 => "mla_mix, bf16 factors, long requests expanded in e4m3",
        true => "mla_mix, bf16 factors, long requests expanded",
    };
    let mut support = settings.rounded(Support::yes(name));
    if e4m3 {
        support.rounding = Rounding::Fp8;
    }
    if sizes.forms {
        support.determinism = Determinism::RunToRun;
    }
    support.packs.extend(gemm::packing(op, 1, settings));
    support.workspace_bytes = sizes.split.workspace_bytes() + sizes.bytes.iter().sum::<u64>();
    support.workspace_bytes += sizes.expanded.map_or(0, |e| e.workspace_bytes());
    support
}

/// An f32 operand of `[T, H, inner]` like q, in scratch.
fn scratch(q: &Operand, inner: usize, address: u64) -> Operand {
    let mut tensor: Tensor = q.tensor;
    tensor.dims[2] = inner;
    tensor.row_bytes = tensor.dims[1] * inner * 4;
    tensor.bytes = tensor.dims[0] * tensor.row_bytes;
    Operand { tensor, address }
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, w, cache, table, gate, y] = op.operands else { unreachable!("checked") };
    let dims = |o: &Operand| o.tensor.shape().to_vec();
    let of_cache = dims(cache);
    let sizes = Sizes::new(&dims(q), (&of_cache, cache.tensor.dtype), &dims(table), &dims(y), op.settings);
    let sizes = sizes.ok_or_else(|| Fault::internal("mla_mix was planned for a shape that it refuses"))?;
    let (row, rank) = WIDTHS;
    let heads = q.tensor.dims[1];
    let absorbed = scratch(q, row, op.workspace);
    let mixed = scratch(q, rank, op.workspace + sizes.bytes[0]);

    // A captured program holds no request that is expanded.
    let expanded = sizes.expanded.filter(|_| op.bucket.max_tokens > GRAPH_TOKENS);
    let base = op.workspace + sizes.bytes.iter().sum::<u64>() + sizes.split.workspace_bytes();
    let flags = expanded.map(|e| e.survey(op, base, plan)).transpose()?;
    let projection = Projection { n: rank, k: sizes.nope, rope: sizes.rope, first: 0, extra: 1 };
    let absorb = BoundOp { operands: &[*q, *w, absorbed], ..*op };
    match flags {
        Some(_) => launch_project(&absorb, plan, ("mla_absorb_rest", 64), &absorbed, flags, &projection)?,
        None => plan_project(&absorb, plan, "absorb", &projection)?,
    }

    let operands = [absorbed, *cache, *table, mixed];
    let workspace = op.workspace + sizes.bytes.iter().sum::<u64>();
    let attention = BoundOp { operands: &operands, workspace, ..*op };
    let parts = sizes.split.plan_parts(&attention, op.op.attrs(), flags, plan)?;
    let (format, ldw) = gemm::stored(&w.tensor);
    if format != "bf16" {
        return Err(Fault::internal(format!("weights of mla_mix are {format}, bf16 was asked for")));
    }
    if !parts.folded && op.bucket.max_tokens < SHARED {
        let arguments = [
            op.step(),
            ("partial", parts.partial),
            ("sums", parts.sums),
            ("mixed", mixed.pointer()),
            ("w", w.pointer()),
            ("gate", gate.pointer()),
            ("y", y.pointer()),
            ("H", int(heads)),
            ("V", int(sizes.values)),
            ("NS", parts.splits),
            ("split_bits", parts.split_bits),
            ("first", int(sizes.nope)),
            ("per_head", int(sizes.nope + sizes.values)),
            ("ldw", int(ldw)),
        ];
        let grid = [q.rows(1), Extent::Fixed(heads as u32), Extent::Fixed((sizes.values / SETTLED) as u32)];
        return Ok(plan.launch("mla_settle", grid, &arguments)?);
    }
    sizes.split.plan_merge(&attention, &parts, plan)?;
    let value = Projection { n: sizes.values, k: rank, rope: 0, first: sizes.nope, extra: 0 };
    let kernel = if flags.is_some() { "mla_gated_value_rest" } else { "mla_gated_value" };
    launch_project(&BoundOp { operands: &[mixed, *w, *y], ..*op }, plan, (kernel, 64), gate, flags, &value)?;
    expanded.map_or(Ok(()), |e| e.plan(op, base, plan))
}
