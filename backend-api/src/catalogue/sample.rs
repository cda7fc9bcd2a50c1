//! `sample`: token ids from rows of logits, where the next step finds them.
//!
//! The formulas are [`crate::sampling`], shared with the host's sampler, so that it does not matter who samples. Everything
//! that changes per step is in the records; what a request keeps (counts of its tokens, its biases, the mask of its next token)
//! are rows of side tables, so that a record is of fixed size and a step copies what changed. A host that fills no side tables
//! leaves them out of the op. Counts are the op's to keep: with two steps in flight, the host does not know the token that the
//! second step's penalties must count.
//!
//! Rejected: lists of biases and counts in the parameter block. Their length has no bound, and programs are prepared for
//! capacities.

use std::cell::RefCell;

use super::{Call, Case, Entry, OpDesc, Part, Tolerance, cases::Gen, inout, input, output};
use crate::{
    abi::*,
    dtype::DType,
    graph::Vary,
    op::OpKind,
    sampling::{self, Draw, Filters, Penalties, finite_max, penalise},
    tensor::View,
};

/// Words per row of `chosen`: what came of it, token id, rank, number of alternatives, their ids.
pub const CHOSEN_WIDTH: usize = 4 + TS_TOP_LOGPROBS_MAX;
/// Values per row of `logprobs`: the token's, its alternatives'.
pub const LOGPROBS_WIDTH: usize = 1 + TS_TOP_LOGPROBS_MAX;
/// Of an entry of `counts`: the id occurs in the text that was not generated.
const IN_TEXT: u32 = 1 << 31;

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Sample,
    version: 1,
    doc: "For each row of logits whose record (`ts_sample`, one per logit row) names a relay slot: choose a token id, write it to \
          `relay[relay_slot]`, and say so in `chosen` and `logprobs`. Columns from `attrs_i[0]` on are padding and no ids (0: all \
          are ids).\n\nIn this order: ids outside `mask[mask_handle]` are taken out; `bias[bias_handle]` is added; of ids whose \
          entry c in `counts[counts_handle]` is not 0, positive logits are divided and others multiplied by the repetition \
          penalty; if the low 31 bits of c are n > 0, the frequency penalty times n, then the presence penalty, are subtracted; \
          all this in f32. Temperature 0: the largest logit wins. Otherwise weights are e^((logit - largest) / temperature) in \
          f64; top_k keeps exactly k ids, top_p the shortest run of most likely ids whose weights reach that part of their sum, \
          min_p those of at least that weight; the id is drawn by inverting the cumulative weights, in order of falling logit, at \
          u times their sum, where u has the 53 highest bits of the first two words of Philox4x32-10 with key = seed (low word \
          first) and counter = (position, sample_index, 0, 0). Ties go to the lower id everywhere. Bits 0 to 30 of the \
          chosen id's count grow by one.\n\nA row of `chosen`: one of `TS_SAMPLED_*`, the id (or the first bad one), its rank \
          from 1, the number n of alternatives, and the ids of the n best; of `logprobs`: the id's, then theirs. They are those of \
          the row as it came, log-softmax in f64 rounded once; rank and the rest are 0 unless asked for (`n_logprobs`). What is \
          not used is 0. A row without an id leaves -1 in its slot. Slot 0 and handle 0 are nobody's.\n\n`counts`, `bias` and \
          `mask` are left out together; all handles are then 0. ids must equal the reference's: formulas that differ in the last \
          bit of a sum choose another id once in some million draws, which conformance does not see.",
    operands: &[
        input("logits [L, V]"),
        inout("relay [slots] i32"),
        inout("counts [rows, V] u32"),
        input("bias [rows, V]"),
        input("mask [rows, ceil(V/32)] u32"),
        output("chosen [L, 24] u32"),
        output("logprobs [L, 21]"),
    ],
    check,
    reference,
    decompose: None,
    // Of log-probabilities; ids and ranks are whole numbers and must be equal.
    tolerance: Tolerance { nmse: 1e-12, max_error: 5e-6 },
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    let n = op.operands.len();
    op.require(n == 4 || n == 7, || format!("{n} operands, expected 4, or 7 with side tables"))?;
    op.f32(&[0, n - 1])?;
    op.dtype(1, &[DType::I32])?;
    op.dtype(n - 2, &[DType::U32])?;
    let (logits, relay) = (&op.operands[0], &op.operands[1]);
    op.require(logits.rank == 2 && logits.vary == Vary::LogitRows, || format!("logits are {:?}", logits.dims()))?;
    op.require(relay.rank == 1 && relay.vary == Vary::Fixed, || format!("relay is {:?}", relay.dims()))?;
    for (index, width) in [(n - 2, CHOSEN_WIDTH), (n - 1, LOGPROBS_WIDTH)] {
        let t = &op.operands[index];
        let fits = t.vary == Vary::LogitRows && t.row_len() == width && t.dims[0] == logits.dims[0];
        op.require(fits, || format!("operand {index} is {:?}, expected [{}, {width}]", t.dims(), logits.dims[0]))?;
    }
    let n_ids = op.attrs.i[0];
    op.require((0..=logits.dims[1] as i64).contains(&n_ids), || format!("{n_ids} ids in {} columns", logits.dims[1]))?;
    if n == 7 {
        op.dtype(2, &[DType::U32])?;
        op.f32(&[3])?;
        op.dtype(4, &[DType::U32])?;
        for (index, width) in [(2, logits.dims[1]), (3, logits.dims[1]), (4, logits.dims[1].div_ceil(32))] {
            let t = &op.operands[index];
            let fits = t.rank == 2 && t.vary == Vary::Fixed && t.dims[1] == width;
            op.require(fits, || format!("operand {index} is {:?}, rows need {width} values", t.dims()))?;
        }
    }
    Ok(())
}

/// Rows as the op reads and edits them; grows once to the size of a vocabulary.
#[derive(Default)]
struct Scratch {
    row: Vec<f32>,
    edited: Vec<f32>,
    keys: Vec<u64>,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

/// The side tables, where there are any.
struct Tables<'a>(Option<&'a [View]>);

impl Tables<'_> {
    /// Row `handle` of table `at`; `None` for handle 0.
    fn row(&self, at: usize, handle: u32) -> Option<(View, usize)> {
        self.0.filter(|_| handle > 0).map(|tables| (tables[at], handle as usize))
    }

    fn has(&self, handles: [u32; 3]) -> bool {
        handles.iter().enumerate().all(|(at, &handle)| match self.0 {
            Some(tables) => (handle as usize) < tables[at].rows(),
            None => handle == 0,
        })
    }
}

fn reference(call: &Call<'_>, part: Part) {
    let n = call.operands.len();
    let (logits, relay, chosen, logprobs) =
        (call.operands[0], call.operands[1], call.operands[n - 2], call.operands[n - 1]);
    let n_ids = if call.attrs.i[0] == 0 { logits.row_len() } else { call.attrs.i[0] as usize };
    let tables = Tables((n == 7).then(|| &call.operands[2..5]));
    SCRATCH.with_borrow_mut(|scratch| {
        for l in part.of(logits.rows()) {
            let (mut words, mut values) = ([0; CHOSEN_WIDTH], [0.0; LOGPROBS_WIDTH]);
            if let Some(sample) = call.step.samples.get(l).filter(|sample| sample.relay_slot > 0) {
                let handles = [sample.counts_handle, sample.bias_handle, sample.mask_handle];
                let exists = (sample.relay_slot as usize) < relay.rows()
                    && tables.has(handles)
                    && sample.n_logprobs as usize <= 1 + TS_TOP_LOGPROBS_MAX;
                words[0] = if exists {
                    scratch.row.resize(logits.row_len(), 0.0);
                    logits.load_row(l, &mut scratch.row);
                    choose(scratch, n_ids, sample, &tables, &mut words, &mut values)
                } else {
                    TS_SAMPLED_BAD_RECORD
                };
                let id = if words[0] == TS_SAMPLED_TOKEN { words[1] } else { u32::MAX };
                if (sample.relay_slot as usize) < relay.rows() {
                    relay.store_u32(sample.relay_slot as usize, 0, id);
                }
            }
            words.into_iter().enumerate().for_each(|(column, word)| chosen.store_u32(l, column, word));
            logprobs.store(l, 0, &values);
        }
    });
}

/// Sample `scratch.row`; returns what came of it and fills in the rest.
fn choose(
    scratch: &mut Scratch,
    n_ids: usize,
    sample: &ts_sample,
    tables: &Tables<'_>,
    words: &mut [u32; CHOSEN_WIDTH],
    values: &mut [f32; LOGPROBS_WIDTH],
) -> u32 {
    let Scratch { row, edited, keys } = scratch;
    let row = &row[..n_ids];
    keys.reserve(n_ids.saturating_sub(keys.len()));
    let raw_max = match finite_max(row) {
        Ok(max) => max,
        Err(bad) => {
            words[1] = bad.id;
            return TS_SAMPLED_NOT_FINITE;
        }
    };
    let counts = tables.row(0, sample.counts_handle);
    let (bias, mask) = (tables.row(1, sample.bias_handle), tables.row(2, sample.mask_handle));
    let is_edited = counts.is_some() || bias.is_some() || mask.is_some();
    let (logits, max) = if is_edited {
        edit(row, edited, sample, [counts, bias, mask]);
        match finite_max(edited) {
            Ok(max) => (&edited[..], max),
            Err(bad) => {
                words[1] = bad.id;
                return TS_SAMPLED_NOT_FINITE;
            }
        }
    } else {
        (row, raw_max)
    };
    if max == f32::NEG_INFINITY {
        return TS_SAMPLED_NOTHING_LEFT;
    }
    let draw = Draw {
        temperature: sample.temperature,
        filters: Filters { top_k: sample.top_k, top_p: sample.top_p, min_p: sample.min_p },
        seed: sample.seed,
        position: sample.position,
        sample_index: sample.sample_index,
    };
    let id = sampling::choose(logits, max, &draw, keys);
    words[1] = id;
    if let Some((counts, handle)) = counts {
        let count = counts.load_u32(handle, id as usize);
        counts.store_u32(handle, id as usize, (count & IN_TEXT) | ((count + 1) & !IN_TEXT));
    }
    if let Some(k) = sample.n_logprobs.checked_sub(1) {
        let score = sampling::score(row, raw_max, id, k, keys);
        (words[2], words[3], values[0]) = (score.rank, keys.len() as u32, score.logprob);
        for (at, &key) in keys.iter().enumerate() {
            words[4 + at] = sampling::id_of(key);
            values[1 + at] = score.logprob_of(sampling::logit_of(key));
        }
    }
    TS_SAMPLED_TOKEN
}

/// Mask, bias and penalties, in this order.
fn edit(row: &[f32], edited: &mut Vec<f32>, sample: &ts_sample, tables: [Option<(View, usize)>; 3]) {
    let [counts, bias, mask] = tables;
    edited.clear();
    edited.extend_from_slice(row);
    if let Some((mask, handle)) = mask {
        for (id, logit) in edited.iter_mut().enumerate() {
            if mask.load_u32(handle, id / 32) >> (id % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if let Some((bias, handle)) = bias {
        for (logit, bytes) in edited.iter_mut().zip(bias.row_bytes(handle).as_chunks::<4>().0) {
            *logit += f32::from_ne_bytes(*bytes);
        }
    }
    if let Some((counts, handle)) = counts {
        let penalties = Penalties {
            repetition: sample.repetition_penalty,
            frequency: sample.frequency_penalty,
            presence: sample.presence_penalty,
        };
        for (logit, bytes) in edited.iter_mut().zip(counts.row_bytes(handle).as_chunks::<4>().0) {
            let count = u32::from_ne_bytes(*bytes);
            if count != 0 {
                *logit = penalise(*logit, count & !IN_TEXT, &penalties);
            }
        }
    }
}

/// Every setting off and on, every handle, slots that do not exist, rows without a record and rows that are not finite.
fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    [(1, 1, 1, false), (9, 33, 33, true), (24, 300, 291, true), (16, 700, 700, false)]
        .map(|(l, v, n_ids, has_tables)| case(&mut g, l, v, n_ids, has_tables))
        .into()
}

fn case(g: &mut Gen, l: usize, v: u64, n_ids: u64, has_tables: bool) -> Case {
    let spans: Vec<(u32, u32, usize)> = (0..l as u32).map(|row| (row, 3 + row, 1)).collect();
    let with = if has_tables { "side tables" } else { "no side tables" };
    let mut c = g.paged_case(OpKind::Sample, format!("L={l} V={v}, {n_ids} ids, {with}"), &spans);
    c.attrs.i[0] = if n_ids == v { 0 } else { n_ids as i64 };
    let (slots, handles) = (l as u64 + 2, l as u64 + 1);
    let mut logits: Vec<f32> = g.uniform(&[l as u64, v]).into_iter().map(|x| x * 6.0).collect();
    for (row, values) in logits.chunks_mut(v as usize).enumerate() {
        values[n_ids as usize..].fill(f32::NAN);
        match row {
            // Ties.
            3 | 4 => values[..n_ids as usize].iter_mut().for_each(|x| *x = x.round()),
            7 => values[n_ids as usize / 2] = f32::NAN,
            8 => values[..n_ids as usize].fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
    for row in 0..l as u32 {
        let one_in = |g: &mut Gen, n: u64| g.below(n) == 0;
        let unit = |g: &mut Gen| g.below(64) as f32 / 64.0;
        let handle = |g: &mut Gen| if has_tables && one_in(g, 2) { row + 1 } else { 0 };
        c.step.samples.push(ts_sample {
            temperature: [0.0, 0.5, 1.0, 1.75][g.below(4) as usize],
            top_p: if one_in(g, 2) { 0.25 + 0.75 * unit(g) } else { 1.0 },
            min_p: if one_in(g, 3) { unit(g) / 4.0 } else { 0.0 },
            repetition_penalty: 0.5 + unit(g),
            frequency_penalty: unit(g) - 0.5,
            presence_penalty: unit(g) - 0.5,
            top_k: if one_in(g, 2) { g.below(n_ids + 2) as u32 } else { 0 },
            n_logprobs: [0, 1, 5, 21][g.below(4) as usize],
            seed: g.next(),
            position: 4 + row,
            sample_index: g.below(3) as u32,
            counts_handle: handle(g),
            bias_handle: handle(g),
            mask_handle: handle(g),
            relay_slot: match row {
                5 => 0,
                6 => slots as u32,
                row => row + 1,
            },
        });
    }
    c.push(Vary::LogitRows, &[l as u64, v], logits);
    let words = |words: Vec<u32>| words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>();
    c.push_inout(DType::I32, Vary::Fixed, &[slots], words(vec![7; slots as usize]));
    if has_tables {
        let some = |g: &mut Gen| if g.below(4) == 0 { g.below(3) as u32 | (g.below(2) as u32) << 31 } else { 0 };
        let counts = (0..handles * v).map(|_| some(g)).collect();
        c.push_inout(DType::U32, Vary::Fixed, &[handles, v], words(counts));
        let bias = g.uniform(&[handles, v]).into_iter().map(|x| if x > 0.5 { x * 4.0 } else { 0.0 }).collect();
        c.push(Vary::Fixed, &[handles, v], bias);
        let mask = (0..handles * v.div_ceil(32)).map(|_| g.next() as u32).collect();
        c.push_raw(DType::U32, Vary::Fixed, &[handles, v.div_ceil(32)], words(mask));
    }
    c.push_output_as(DType::U32, Vary::LogitRows, &[l as u64, CHOSEN_WIDTH as u64]);
    c.push_output(Vary::LogitRows, &[l as u64, LOGPROBS_WIDTH as u64]);
    c
}
