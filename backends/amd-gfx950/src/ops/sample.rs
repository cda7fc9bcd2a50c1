//! `sample`: token ids from rows of logits, in four launches (`kernels/sample.py`).
//!
//! Weights, sums and draws are f64 in the reference's formulas, so ids are those of the host's sampler but for sums that differ
//! in their last bit; log-probabilities are f64, rounded once. Rejected: leaving rows with filters to the host. A step then
//! waits for the host whenever one request of it has them.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{BoundOp, OpEntry, Operand, int};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

/// Ids per work-group of the first two launches, and per pass of the others: the kernels' `B`.
const CHUNK: usize = 1024;
/// Most chunks, the kernels' `CH`.
const CHUNKS_MAX: usize = 256;
/// Bytes that the first launch leaves per chunk.
const STATS_BYTES: u64 = 32;
/// Bins of the second launch.
const BINS: u64 = 64;
/// Scratch areas start at multiples of this.
const ALIGN: u64 = 256;

/// Byte offsets of what launches leave one another.
struct Scratch {
    bins: u64,
    weights: u64,
    lists: u64,
    bytes: u64,
}

impl Scratch {
    fn new(rows: u64, chunks: u64) -> Self {
        let mut bytes = 0;
        let mut area = |size: u64| {
            let at = bytes;
            bytes += size.next_multiple_of(ALIGN);
            at
        };
        area(rows * chunks * STATS_BYTES);
        // A count and two weights per bin; an id and a key for each of a bin that is gathered.
        let bins = area(rows * chunks * BINS * 4);
        let weights = area(rows * chunks * BINS * 16);
        let lists = area(rows * CHUNK as u64 * 8);
        Self { bins, weights, lists, bytes }
    }
}

inventory::submit! { OpEntry { kind: OpKind::Sample, support, plan, pack: None } }

fn support(op: &OpDesc, _: &Settings) -> Support {
    let logits = &op.operands[0];
    let chunks = logits.row_len().div_ceil(CHUNK);
    if chunks > CHUNKS_MAX {
        return Support::no(format!("rows of {}: at most {} ids", logits.row_len(), CHUNK * CHUNKS_MAX));
    }
    let mut support = Support::yes("sample, f64");
    support.workspace_bytes = Scratch::new(logits.dims[0], chunks as u64).bytes;
    support
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let (logits, relay, tables, chosen, logprobs) = match op.operands {
        [logits, relay, counts, bias, mask, chosen, logprobs] => {
            (logits, relay, Some([counts, bias, mask]), chosen, logprobs)
        }
        [logits, relay, chosen, logprobs] => (logits, relay, None, chosen, logprobs),
        _ => unreachable!("checked"),
    };
    let n_ids = match op.op.attrs().i[0] as usize {
        0 => logits.tensor.row_len(),
        n => n,
    };
    let chunks = n_ids.div_ceil(CHUNK);
    // Without tables, nothing is read through these, and handle 0 is the only one.
    let [counts, bias, mask] = tables.unwrap_or([relay; 3]);
    let rows = |table: &Operand| int(if tables.is_some() { table.tensor.dims[0] } else { 1 });
    let common = [
        op.step(),
        ("logits", logits.pointer()),
        ("counts", counts.pointer()),
        ("bias", bias.pointer()),
        ("mask", mask.pointer()),
        ("stats", Argument::Pointer(op.workspace)),
        ("V", int(n_ids)),
        ("CHUNKS", int(chunks)),
        ("SLOTS", int(relay.tensor.dims[0])),
        ("RC", rows(counts)),
        ("RB", rows(bias)),
        ("RM", rows(mask)),
        ("ldl", logits.stride()),
        ("ldc", counts.stride()),
        ("ldb", bias.stride()),
        ("ldm", mask.stride()),
    ];
    let suffix = if tables.is_some() { "_tables" } else { "" };
    let grid = [logits.rows(1), Extent::Fixed(chunks as u32), Extent::ONE];
    plan.launch(&format!("sample_scan{suffix}"), grid, &common)?;
    // As many chunks as `support` thought of, which did not know that padded ids are left out.
    let scratch = Scratch::new(logits.tensor.dims[0] as u64, logits.tensor.row_len().div_ceil(CHUNK) as u64);
    let at = |offset| Argument::Pointer(op.workspace + offset);
    let weighed = [("bins", at(scratch.bins)), ("weights", at(scratch.weights))];
    plan.launch(&format!("sample_weigh{suffix}"), grid, &[&common[..], &weighed].concat())?;
    let by_row = [logits.rows(1), Extent::ONE, Extent::ONE];
    let drawn = [weighed[0], weighed[1], ("lists", at(scratch.lists))];
    plan.launch(&format!("sample_pick{suffix}"), by_row, &[&common[..], &drawn].concat())?;
    let results = [
        ("relay", relay.pointer()),
        ("chosen", chosen.pointer()),
        ("logprobs", logprobs.pointer()),
        ("ldo", chosen.stride()),
        ("ldp", logprobs.stride()),
    ];
    Ok(plan.launch(&format!("sample_choose{suffix}"), by_row, &[&common[..], &results].concat())?)
}
