//! `mla_attention` for latent rows of 512 + 64 values: keys in splits of fixed length, each read once for all heads of a tile.
//!
//! A step of at most [`GRAPH_TOKENS`] tokens runs a work-group per (tile of tokens, split) and adds parts up in a second
//! kernel; a longer one has work enough without, and its work-groups walk all splits of their tile. Both do the same
//! arithmetic in the same order, so a token's bits do not tell which it was. Rejected: a split length chosen by how much work
//! there is. It fills a device with one long request better, and makes a token's bits depend on its neighbours.

use tokenspeed_backend_api::{dtype::DType, op::Attrs, sdk::Fault};

use super::{BoundOp, Operand, float, int};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::{GRAPH_TOKENS, Settings},
};

/// Latent and other values of a row.
const WIDTHS: (usize, usize) = (512, 64);
/// Work-groups at a time: the compute units of a device, one each.
const GROUPS: u64 = 256;
/// Rows of a tile: for one token, for a window of a few and for long steps, for wide windows.
const ROWS: [usize; 3] = [16, 48, 96];
/// Bytes of parts that are worth having short splits.
const PARTS_MAX: u64 = 2 << 30;
/// Bytes of a part: 512 values of 12 bits (`kernels/mla_parts.py`).
const PART_BYTES: u64 = 768;
/// Work-groups of `mla_merge` per token and head, 128 columns each.
const MERGED: u32 = 4;
/// Bytes per item of the list of work, and of its head.
const ITEM_BYTES: u64 = 32;
const HEAD_BYTES: u64 = 64;

/// Sizes of one op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Token capacity of the descriptors.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Values of a row, and latent ones.
    pub widths: (usize, usize),
    /// Format of the cache.
    pub cache: DType,
    /// Tokens per page and pages per request.
    pub pages: (usize, usize),
}

/// How such an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    heads: usize,
    cache: &'static str,
    page_bits: usize,
    /// A split is 2^split_bits positions.
    split_bits: usize,
    /// Most splits of a request.
    splits: usize,
    /// Bytes of the list, of scores and weights, of parts, each a multiple of 256.
    bytes: [u64; 3],
}

impl Split {
    /// `None` if these kernels do not fit the shape.
    pub(super) fn new(shape: &Shape, settings: &Settings) -> Option<Self> {
        // A step of keys lies in one page. A split of 590 KB in e4m3 and of twice that in bf16 lets one request of 50K to 100K positions
        // have 49 to 98 work-groups, and makes parts, written and read, a sixteenth of one window of four tokens in bf16 and an eighth in
        // e4m3. Shorter ones gain nothing: putting parts together takes them one after the other.
        let (cache, keys, least) = match shape.cache {
            DType::BF16 => ("bf16", 32, 10),
            DType::F8E4M3 => ("fp8", 64, 10),
            _ => return None,
        };
        let (latent, all) = (WIDTHS.0, WIDTHS.0 + WIDTHS.1);
        let (page, pages) = shape.pages;
        let fits = !settings.exact()
            && settings.specialised()
            && shape.widths == (all, latent)
            && (1..=ROWS[1]).contains(&shape.heads)
            && page.is_power_of_two()
            && page >= keys;
        if !fits {
            return None;
        }
        let sizes = |tokens: usize, split_bits: usize| {
            let tokens = tokens.min(GRAPH_TOKENS as usize) as u64;
            let splits = (page * pages).div_ceil(1 << split_bits);
            let places = tokens * shape.heads as u64 * splits as u64;
            let items = (tokens * splits as u64).max(shape.tokens as u64);
            let bytes = [HEAD_BYTES + items * ITEM_BYTES, places * 8, places * PART_BYTES];
            (splits, bytes.map(|b| b.next_multiple_of(256)))
        };
        let largest = |bits: &usize| sizes(GRAPH_TOKENS as usize, *bits).1[2];
        let split_bits = (least..16).find(|bits| largest(bits) <= PARTS_MAX).unwrap_or(16);
        let (splits, bytes) = sizes(shape.tokens, split_bits);
        let page_bits = page.trailing_zeros() as usize;
        Some(Self { heads: shape.heads, cache, page_bits, split_bits, splits, bytes })
    }

    /// Scratch.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Adds the launches.
    pub(super) fn plan(&self, op: &BoundOp<'_>, attrs: &Attrs, plan: &mut Plan<'_>) -> Result<(), Fault> {
        let parts = self.plan_parts(op, attrs, None, plan)?;
        self.plan_merge(op, &parts, plan)
    }

    /// Adds the launches that leave results of tokens that see one split alone, and parts of all others, or with
    /// [`Parts::folded`] results of all. Operands are those of `mla_attention`; `flags` are of requests to leave out.
    pub(super) fn plan_parts(
        &self,
        op: &BoundOp<'_>,
        attrs: &Attrs,
        flags: Option<Argument>,
        plan: &mut Plan<'_>,
    ) -> Result<Parts, Fault> {
        let [q, cache, table, y] = op.operands else { unreachable!("checked") };
        let bucket = &op.bucket;
        let fold = bucket.max_tokens > GRAPH_TOKENS;
        // A window of tokens in one tile, if any tile holds it: then its rows of the cache are read once.
        let window = (bucket.max_tokens.div_ceil(bucket.max_rows.max(1))) as usize * self.heads;
        let rows = if fold { ROWS[1] } else { ROWS.into_iter().find(|r| window <= *r).unwrap_or(ROWS[1]) };
        let at = |part: usize| Argument::Pointer(op.workspace + self.bytes[..part].iter().sum::<u64>());
        let tile = int(rows / self.heads);
        // With 2^30 positions in a split, a tile is one item.
        let listed = if fold { 30 } else { self.split_bits };
        let mut arguments = vec![op.step(), ("plan", at(0)), ("TQ", tile), ("split_bits", int(listed))];
        arguments.extend(flags.map(|flags| ("flags", flags)));
        let groups = |n| if flags.is_some() { Extent::Rest(n) } else { Extent::Fixed(n) };
        let deal = if flags.is_some() { "mla_deal_rest" } else { "mla_deal" };
        plan.launch(deal, [groups(bucket.max_rows), Extent::ONE, Extent::ONE], &arguments)?;
        let arguments = [
            ("plan", at(0)),
            ("q", q.pointer()),
            ("cache", cache.pointer()),
            ("table", table.pointer()),
            ("y", y.pointer()),
            ("partial", at(2)),
            ("sums", at(1)),
            ("H", int(self.heads)),
            ("width", int(table.tensor.dims[1])),
            ("page_bits", int(self.page_bits)),
            ("split_bits", int(self.split_bits)),
            ("NS", int(self.splits)),
            ("ldq", q.stride()),
            ("ldc", cache.stride()),
            ("ldy", y.stride()),
            ("scale", float(attrs.f[0] * std::f64::consts::LOG2_E)),
        ];
        let items = if fold { 1 } else { self.splits as u64 } * u64::from(bucket.max_tokens);
        let kernel = if fold {
            format!("mla_decode_{}_{rows}_fold", self.cache)
        } else {
            format!("mla_decode_{}_{rows}", self.cache)
        };
        plan.launch(&kernel, [groups(items.min(GROUPS) as u32), Extent::ONE, Extent::ONE], &arguments)?;
        Ok(Parts {
            partial: at(2),
            sums: at(1),
            splits: int(self.splits),
            split_bits: int(self.split_bits),
            folded: fold || self.splits == 1,
        })
    }

    /// Adds what puts parts together.
    pub(super) fn plan_merge(&self, op: &BoundOp<'_>, parts: &Parts, plan: &mut Plan<'_>) -> Result<(), Fault> {
        let [q, _, _, y] = op.operands else { unreachable!("checked") };
        if parts.folded {
            return Ok(());
        }
        let arguments = [
            op.step(),
            ("partial", parts.partial),
            ("sums", parts.sums),
            ("y", y.pointer()),
            ("H", int(self.heads)),
            ("NS", parts.splits),
            ("split_bits", parts.split_bits),
            ("ldy", y.stride()),
        ];
        Ok(plan.launch(
            "mla_merge",
            [q.rows(1), Extent::Fixed(self.heads as u32), Extent::Fixed(MERGED)],
            &arguments,
        )?)
    }
}

/// Where `mla_decode` leaves what it does not finish.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Means, `[T, H, splits, 768]` bytes, see `kernels/mla_parts.py`.
    pub partial: Argument,
    /// Greatest scores and sums of weights, `[T, H, splits, 2]`.
    pub sums: Argument,
    /// Most splits of a token.
    pub splits: Argument,
    /// A split is 2^split_bits positions.
    pub split_bits: Argument,
    /// There are none: results are whole.
    pub folded: bool,
}

/// Sizes of a bound op.
pub(super) fn shape(operands: &[Operand]) -> Shape {
    let [q, cache, table, y] = operands else { unreachable!("checked") };
    Shape {
        tokens: q.tensor.dims[0],
        heads: q.tensor.dims[1],
        widths: (q.tensor.dims[2], y.tensor.dims[2]),
        cache: cache.tensor.dtype,
        pages: (cache.tensor.dims[1], table.tensor.dims[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Graphs, Kernels, MlaPrefill, Precision};

    const SHAPE: Shape =
        Shape { tokens: 64, heads: 12, widths: (576, 512), cache: DType::F8E4M3, pages: (64, 1 << 14) };

    fn split(shape: Shape, precision: Precision) -> Option<Split> {
        let (graphs, kernels, mla_prefill) = (Graphs::On, Kernels::Best, MlaPrefill::Absorbed);
        Split::new(&shape, &Settings { precision, graphs, kernels, mla_prefill })
    }

    #[test]
    fn shapes_beyond_the_kernels_are_left_to_the_portable_one() {
        assert!(split(SHAPE, Precision::Bf16).is_some());
        assert!(split(SHAPE, Precision::F32).is_none());
        for other in [
            Shape { widths: (576, 448), ..SHAPE },
            Shape { heads: 49, ..SHAPE },
            Shape { cache: DType::F16, ..SHAPE },
            Shape { pages: (32, 4), ..SHAPE },
            Shape { pages: (96, 4), ..SHAPE },
        ] {
            assert_eq!(split(other, Precision::Bf16), None, "{other:?}");
        }
        assert!(split(Shape { pages: (32, 4), cache: DType::BF16, ..SHAPE }, Precision::Bf16).is_some());
    }

    #[test]
    fn the_split_depends_on_the_table_and_the_heads_alone() {
        let bits = |tokens, pages| {
            let shape = Shape { tokens, pages: (64, pages), ..SHAPE };
            split(shape, Precision::Bf16).unwrap().split_bits
        };
        // A megatoken in 2048s: 512 parts of 768 bytes for each of 12 heads of 256 tokens.
        assert_eq!([1, 256, 8192].map(|tokens| bits(tokens, 1 << 14)), [11; 3]);
        assert_eq!(bits(1, 1 << 18), bits(8192, 1 << 18));
        // 128K positions leave room for the shortest.
        assert_eq!(bits(1, 1 << 11), 10);
    }
}
