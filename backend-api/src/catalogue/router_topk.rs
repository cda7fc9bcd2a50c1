//! `router_topk`: choose experts by biased sigmoid scores; weigh them by the scores without the bias.

use super::{
    Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, input, output, rmsnorm::vector, sigmoid::sigmoid,
};
use crate::{dtype::DType, graph::Vary, op::OpKind};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::RouterTopk,
    version: 1,
    doc: "`s = sigmoid(logits)`, `c = s + bias`, both rounded to f32. With `attrs.i[0]` = G groups and `attrs.i[1]` = g < G: a group's score is \
          the sum of its two largest c, and only the g best groups take part. ids are the k experts with the largest c, best first; of \
          equal ones, groups included, the lower id. `weights = s[ids]`, divided by (their sum + 1e-20) if `attrs.i[2]` = 1, times \
          `attrs.f[0]`.",
    operands: &[input("logits [T, E]"), input("bias [E]"), output("ids [T, k] u32"), output("weights [T, k]")],
    check,
    reference,
    decompose: None,
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(4)?;
    op.f32(&[0, 1, 3])?;
    op.dtype(2, &[DType::U32])?;
    op.same_shape(2, 3)?;
    let [logits, bias, ids, _] = &op.operands[..] else { unreachable!("counted") };
    let (experts, k) = (logits.row_len() as i64, ids.row_len() as i64);
    op.require(bias.dims() == [experts as u64] && ids.dims[0] == logits.dims[0], || {
        format!("logits are {:?}, bias is {:?}, ids are {:?}", logits.dims(), bias.dims(), ids.dims())
    })?;
    let [groups, chosen, renormalise, ..] = op.attrs.i;
    let grouped = groups > 0 && (1..=groups).contains(&chosen) && experts % groups == 0;
    let enough = grouped && k >= 1 && k <= experts / groups * chosen && (groups == chosen || experts / groups >= 2);
    op.require(enough && matches!(renormalise, 0 | 1), || {
        format!("{k} of {experts} experts, {chosen} of {groups} groups, renormalise {renormalise}")
    })
}

fn reference(call: &Call<'_>, part: Part) {
    let [logits, bias, ids, weights] = call.operands[..] else { unreachable!("checked") };
    let bias = vector(&bias);
    let [groups, chosen, renormalise, ..] = call.attrs.i;
    let (groups, chosen, k) = (groups as usize, chosen as usize, ids.row_len());
    let per_group = bias.len() / groups;
    let mut scores = vec![0f32; bias.len()];
    for t in part.of(logits.rows()) {
        logits.load_row(t, &mut scores);
        scores.iter_mut().for_each(|s| *s = sigmoid(f64::from(*s)) as f32);
        let choice: Vec<f32> = scores.iter().zip(&bias).map(|(s, b)| s + b).collect();
        let mut open: Vec<usize> = (0..groups).collect();
        if chosen < groups {
            let of_group: Vec<f32> = choice
                .chunks_exact(per_group)
                .map(|group| {
                    let mut sorted = group.to_vec();
                    sorted.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
                    sorted[0] + sorted[1]
                })
                .collect();
            best(&mut open, &of_group, chosen);
        }
        let mut experts: Vec<usize> = open.iter().flat_map(|g| g * per_group..(g + 1) * per_group).collect();
        best(&mut experts, &choice, k);
        let total = experts.iter().fold(0f64, |sum, e| sum + f64::from(scores[*e])) + 1e-20;
        let scale = call.attrs.f[0] / if renormalise == 1 { total } else { 1.0 };
        let row: Vec<f32> = experts.iter().map(|e| (f64::from(scores[*e]) * scale) as f32).collect();
        weights.store(t, 0, &row);
        experts.iter().enumerate().for_each(|(i, e)| ids.store_u32(t, i, *e as u32));
    }
}

/// NaN is the worst choice: a poisoned token still names real experts, and its weights carry the NaN on.
fn key(v: f32) -> f32 {
    if v.is_nan() { f32::NEG_INFINITY } else { v }
}

/// Keep the `n` with the largest values, best first, lower index first among equals.
fn best(indices: &mut Vec<usize>, values: &[f32], n: usize) {
    indices.sort_by(|a, b| key(values[*b]).total_cmp(&key(values[*a])).then(a.cmp(b)));
    indices.truncate(n);
}

/// Choices are a random order of evenly spaced values, so that a backend's own rounding of the sigmoid cannot reorder
/// them; some are equal, bias and logit alike.
fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (t, e, k, groups, chosen, renormalise, scale) in [
        (1, 2, 1, 1, 1, 0, 1.0),
        (5, 16, 4, 1, 1, 1, 2.446),
        (7, 16, 4, 4, 2, 1, 1.0),
        (3, 896, 16, 1, 1, 1, 1.0),
        // Experts for every size of tile, in one group and in one of two.
        (2, 200, 8, 1, 1, 1, 1.0),
        (2, 1100, 8, 1, 1, 0, 1.0),
        (2, 128, 8, 2, 1, 1, 1.0),
        (2, 514, 8, 2, 1, 1, 1.0),
        (2, 1100, 8, 2, 1, 1, 1.0),
    ] {
        let name = format!("T={t} E={e} k={k} groups={chosen}/{groups} renormalise={renormalise}");
        let mut c = g.case(OpKind::RouterTopk, name, t as usize);
        c.attrs.i[..3].copy_from_slice(&[groups, chosen, renormalise]);
        c.attrs.f[0] = scale;
        let bias: Vec<f32> = g.uniform(&[e]).into_iter().map(|b| b * 0.1).collect();
        let mut logits = Vec::new();
        for row in 0..t {
            let mut order: Vec<u64> = (0..e).collect();
            (1..e as usize).rev().for_each(|i| order.swap(i, g.below(i as u64 + 1) as usize));
            if groups == 2 {
                // The two best are in one group: sums over two could be equal but for rounding.
                for (i, rank) in [e - 1, e - 2].into_iter().enumerate() {
                    let at = order.iter().position(|r| *r == rank).expect("an order of all");
                    order.swap(at, (row % 2 * (e / 2)) as usize + i);
                }
            }
            // c = 0.15 … 0.85 by rank; s = c − bias; logit = ln(s / (1 − s)).
            logits.extend(order.iter().zip(&bias).map(|(rank, b)| {
                let s = 0.15 + 0.7 * *rank as f32 / e as f32 - b;
                (s / (1.0 - s)).ln()
            }));
        }
        let mut bias = bias;
        if e == 896 {
            // Exact ties: neighbours share logit and bias.
            for pair in 0..e as usize / 2 {
                bias[2 * pair + 1] = bias[2 * pair];
                for row in logits.chunks_exact_mut(e as usize) {
                    row[2 * pair + 1] = row[2 * pair];
                }
            }
        }
        c.push(Vary::Tokens, &[t, e], logits);
        c.push(Vary::Fixed, &[e], bias);
        c.push_output_as(DType::U32, Vary::Tokens, &[t, k]);
        c.push_output(Vary::Tokens, &[t, k]);
        out.push(c);
    }
    out
}
