//! `mla_mix` in expanded form, `mla_prefill=expanded`: keys and values per head for requests with many tokens in a step.
//!
//! Per query, key and head 320 products instead of 1,088, and 131,072 per key and head for making keys and values, so it pays from 171
//! tokens of a request on. Requests of [`LEAST`] tokens and more take it, all others the absorbed form, in the same step.
//! Contexts are expanded [`POSITIONS`] at a time into bounded scratch; sums are carried from one round of launches to the next, which
//! changes no bit. Rounds that a step does not need are not launched: an eager program knows its step's contexts.
//!
//! With `precision=fp8` what attention multiplies is e4m3, a scale for every 32 values ([`Factors`]): half the matrix cycles and bytes. Keys
//! and values are made of bf16 factors in either case.
//!
//! Both forms round keys, values and sums at other places, so **their bits differ**, and which one a token takes depends on how its
//! prompt was cut. The op claims no more than repeatability (`RunToRun`) then, and the option is off by default. A token's bits
//! still depend on its own request's tokens and context alone, unless contexts beyond [`MOST`] positions meet in a step.
//! Rejected: expanding every request, since a decoding one would expand its whole context for one token; deciding by the size
//! of a step, by which neighbours would decide.

use tokenspeed_backend_api::sdk::{Fault, StepView};

use super::{BoundOp, cache::pages, convert::format_name, float, gemm, int};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::{GRAPH_TOKENS, Precision, Settings},
};

/// Tokens from which on a request is expanded: more than a captured program holds.
const LEAST: u32 = GRAPH_TOKENS + 1;
/// Most positions of a step's contexts that are expanded: requests behind take the absorbed form.
const MOST: u64 = 1 << 20;
/// A context begins at a multiple of this, `ALIGN` of the kernels.
const ALIGN: u64 = 128;
/// Tokens of a tile.
const TILE: u32 = 256;
/// Jobs of a launch where there are two a tile: one for each compute unit.
const EACH: u64 = 256;
/// Jobs along a grid's first axis; sampled counts see by that what work-groups share.
const ROW: u64 = 16;
/// Values of a block of scratch, and scales of a block in e4m3.
const BLOCK: u64 = 64 * 64;
const SCALES: u64 = 256;
/// Bytes per entry of the lists, and of the head.
const ITEM_BYTES: u64 = 32;
const HEAD_BYTES: u64 = 64;

/// What attention multiplies: queries, keys, weights and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factors {
    /// bf16.
    Bf16,
    /// e4m3 with a scale for every 32 values that are summed over.
    E4m3,
}

impl Factors {
    pub(super) fn of(settings: &Settings) -> Self {
        match settings.precision {
            Precision::Fp8 => Self::E4m3,
            Precision::Bf16 | Precision::F32 => Self::Bf16,
        }
    }

    /// Most positions that scratch holds: 103 or 106 MB for twelve heads.
    fn most(self) -> u64 {
        match self {
            Self::Bf16 => 1 << 14,
            Self::E4m3 => 1 << 15,
        }
    }

    /// Bytes of [`ALIGN`] positions of a head in scratch, and of what all heads share.
    fn bytes(self) -> [u64; 2] {
        let block = 2 * BLOCK;
        match self {
            Self::Bf16 => [8 * block, 2 * block],
            Self::E4m3 => [4 * (block + SCALES), block + SCALES],
        }
    }

    /// What begins the names of kernels.
    fn prefix(self) -> &'static str {
        match self {
            Self::Bf16 => "mla_",
            Self::E4m3 => "mla_e4m3_",
        }
    }
}

/// Whether a head's widths are those of the kernels: query values that meet its own keys, and values.
pub(super) fn fits(nope: usize, values: usize) -> bool {
    (nope, values) == (128, 128)
}

/// What a step expands, as `survey` in `kernels/mla_expand.py` decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Positions of contexts, one behind the other.
    pub positions: u64,
    /// Some request is not expanded.
    pub rest: bool,
    /// Tiles of tokens of those that are.
    pub tiles: u64,
    /// Tokens that the first of them has computed.
    pub first: u64,
}

impl Expansion {
    /// That of a program which holds no long request.
    pub const NONE: Self = Self { positions: 0, rest: true, tiles: 0, first: 0 };

    /// Of a step.
    pub fn of(step: &StepView<'_>) -> Self {
        let mut out = Self { rest: false, ..Self::NONE };
        let mut end = 0;
        for r in step.rows {
            if r.query_len >= LEAST {
                end += (u64::from(r.computed) + u64::from(r.query_len)).next_multiple_of(ALIGN);
            }
            if r.query_len >= LEAST && end <= MOST {
                if out.tiles == 0 {
                    out.first = r.computed.into();
                }
                out.positions = end;
                out.tiles += u64::from(r.query_len.div_ceil(TILE));
            } else {
                out.rest = true;
            }
        }
        out
    }

    /// Rows of [`ROW`] work-groups of the `wave`-th launch of attention over positions `from`..`from + size`, as `attend` in
    /// `kernels/mla_prefill.py` numbers them.
    pub fn jobs(&self, from: u64, size: u64, wave: u64, heads: u64) -> u64 {
        let jobs = self.tiles * heads;
        let groups = if self.positions <= from {
            0
        } else if jobs >= EACH && self.first >= from + size {
            (2 * jobs).saturating_sub(wave * EACH).min(EACH)
        } else if wave == 0 {
            jobs
        } else {
            0
        };
        groups.div_ceil(ROW)
    }
}

/// How such an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expanded {
    heads: usize,
    factors: Factors,
    /// Positions that scratch holds.
    size: u64,
    /// Rounds of launches that the longest step needs.
    rounds: u64,
    /// Launches of attention that a round needs at most.
    waves: u64,
    /// Bytes of flags, of the lists of requests and of tiles, of scores and weights, of blocks per head and of all heads' blocks.
    bytes: [u64; 6],
}

impl Expanded {
    /// For programs of at most `tokens` tokens and requests of at most `context` positions; `None` if no request can be long.
    pub(super) fn new(tokens: usize, heads: usize, context: usize, factors: Factors) -> Option<Self> {
        let tokens = tokens as u64;
        let long = tokens / u64::from(LEAST);
        if long == 0 {
            return None;
        }
        let most = (long * (context as u64).next_multiple_of(ALIGN)).min(MOST);
        let size = most.min(factors.most());
        let [own, shared] = factors.bytes().map(|bytes| size / ALIGN * bytes);
        let bytes = [
            tokens * 4,
            HEAD_BYTES + long * ITEM_BYTES,
            (tokens / u64::from(TILE) + long) * ITEM_BYTES,
            tokens * heads as u64 * 8,
            heads as u64 * own,
            shared,
        ];
        let bytes = bytes.map(|b| b.next_multiple_of(256));
        let jobs = 2 * (tokens / u64::from(TILE) + long) * heads as u64;
        Some(Self { heads, factors, size, rounds: most.div_ceil(size), waves: jobs.div_ceil(EACH), bytes })
    }

    /// Scratch.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn at(&self, base: u64, part: usize) -> Argument {
        Argument::Pointer(base + self.bytes[..part].iter().sum::<u64>())
    }

    /// Adds the launch that decides which requests are expanded; their flags, by which the absorbed form leaves them out.
    pub(super) fn survey(&self, op: &BoundOp<'_>, base: u64, plan: &mut Plan<'_>) -> Result<Argument, Fault> {
        if u64::from(op.bucket.max_rows) * 4 > self.bytes[0] {
            return Err(Fault::invalid(format!("{} requests of fewer tokens", op.bucket.max_rows)));
        }
        let arguments = [
            op.step(),
            ("flags", self.at(base, 0)),
            ("listed", self.at(base, 1)),
            ("tiles", self.at(base, 2)),
            ("least", int(LEAST as usize)),
            ("most", int(MOST as usize)),
        ];
        plan.launch("mla_survey", [Extent::Fixed(op.bucket.max_rows), Extent::ONE, Extent::ONE], &arguments)?;
        Ok(self.at(base, 0))
    }

    /// Adds the launches for the requests that are expanded. Operands are those of `mla_mix`.
    pub(super) fn plan(&self, op: &BoundOp<'_>, base: u64, plan: &mut Plan<'_>) -> Result<(), Fault> {
        let [q, w, cache, table, gate, y] = op.operands else { unreachable!("checked") };
        let format = format_name(cache.tensor.dtype).expect("a cache format");
        let prefix = self.factors.prefix();
        let (expand, attend) = (format!("{prefix}expand_{format}"), format!("{prefix}prefill"));
        let heads = Extent::Fixed(self.heads as u32);
        let (_, ldw) = gemm::stored(&w.tensor);
        let [cache, table, width, block_tokens, ldc] = pages(cache, table);
        for round in 0..self.rounds {
            let from = round * self.size;
            let groups = |each| Extent::Context { from, most: self.size, each };
            let (start, size) = (("start", int(from as usize)), ("size", int(self.size as usize)));
            let (blocks, ropes) = (("blocks", self.at(base, 4)), ("ropes", self.at(base, 5)));
            let listed = ("listed", self.at(base, 1));
            let arguments = [
                listed,
                cache,
                table,
                width,
                block_tokens,
                ldc,
                ("w", w.pointer()),
                blocks,
                ropes,
                start,
                size,
                ("per_head", int(w.tensor.dims[0] / self.heads)),
                ("ldw", int(ldw)),
            ];
            plan.launch(&expand, [groups(ALIGN), heads, Extent::Fixed(2)], &arguments)?;
            for wave in 0..self.waves {
                let arguments = [
                    listed,
                    ("tiles", self.at(base, 2)),
                    ("q", q.pointer()),
                    blocks,
                    ropes,
                    ("state", self.at(base, 3)),
                    ("gate", gate.pointer()),
                    ("y", y.pointer()),
                    start,
                    size,
                    ("wave", int(wave as usize)),
                    ("each", int(EACH as usize)),
                    ("H", int(self.heads)),
                    ("ldq", q.stride()),
                    ("ldy", y.stride()),
                    ("scale", float(op.op.attrs().f[0] * std::f64::consts::LOG2_E)),
                ];
                let jobs = Extent::ExpandedJobs { from, size: self.size, wave, heads: self.heads as u64 };
                plan.launch(&attend, [Extent::Fixed(ROW as u32), jobs, Extent::ONE], &arguments)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokenspeed_backend_api::step::StepData;

    use super::*;

    #[test]
    fn scratch_is_bounded_whatever_the_context() {
        for (factors, positions) in [(Factors::Bf16, 1 << 14), (Factors::E4m3, 1 << 15)] {
            assert_eq!(Expanded::new(256, 12, 1 << 17, factors), None);
            let at = |context| Expanded::new(8192, 12, context, factors).unwrap();
            assert_eq!((at(1 << 17).size, at(1 << 17).rounds), (positions, MOST / positions));
            assert_eq!(at(1 << 17).workspace_bytes(), at(1 << 22).workspace_bytes());
            assert!(at(1 << 17).bytes[4..].iter().sum::<u64>() < 110_000_000);
            // One request of a small context: no more than its positions.
            let small = Expanded::new(300, 2, 400, factors).unwrap();
            assert_eq!((small.size, small.rounds), (512, 1));
        }
    }

    #[test]
    fn long_requests_count_until_one_does_not_fit() {
        let of = |spans: &[(u32, usize)]| {
            let ids: Vec<Vec<i32>> = spans.iter().map(|s| vec![0; s.1]).collect();
            let spans: Vec<(u32, u32, &[i32])> =
                spans.iter().zip(&ids).enumerate().map(|(i, (s, ids))| (i as u32, s.0, &ids[..])).collect();
            let block = StepData::from_spans(&spans).to_bytes();
            Expansion::of(&StepView::new(&block).unwrap())
        };
        let expansion = |positions, rest, tiles, first| Expansion { positions, rest, tiles, first };
        assert_eq!(of(&[(1000, 256), (7, 1)]), Expansion::NONE);
        assert_eq!(of(&[(0, 257), (100, 400)]), expansion(384 + 512, false, 4, 0));
        assert_eq!(of(&[(0, 257), (5, 3)]), expansion(384, true, 2, 0));
        assert_eq!(of(&[(0, 300), (1 << 20, 300), (0, 300)]), expansion(384, true, 2, 0));
    }

    #[test]
    fn tiles_are_halved_where_they_would_leave_compute_units_idle() {
        let step = Expansion { positions: 40_960, rest: false, tiles: 32, first: 32_768 };
        let waves = |from| [0, 1, 2, 3].map(|wave| step.jobs(from, 16_384, wave, 12));
        // 384 tiles of a whole round: 768 halves, three for each of 256 compute units.
        assert_eq!([0, 16_384].map(waves), [[16, 16, 16, 0]; 2]);
        // The tokens' own positions, of which tiles see unlike many, and nothing behind them.
        assert_eq!([32_768, 49_152].map(waves), [[24, 0, 0, 0], [0; 4]]);
        // Too few tiles: both halves of one would be in the same launch.
        assert_eq!(step.jobs(0, 16_384, 0, 4), 8);
    }
}
