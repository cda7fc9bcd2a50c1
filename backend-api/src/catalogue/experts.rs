//! `experts`: the MLPs of the chosen experts and their weighted sum.
//!
//! All experts of one matrix are one stacked operand, and `slots` says at which place of the stack an expert lies. A
//! checkpoint that stores experts at a constant pitch, in whatever order, is then used in place: the stack is the mapped
//! file with that pitch as stride, `slots` the order. Rejected: one operand per expert and matrix (896 × 6 of them).

use super::{Call, Case, Entry, OpDesc, Part, REDUCTION, cases::Gen, elementwise::silu, input, output, product};
use super::{schema::WEIGHT_DTYPES, situ_mul};
use crate::{
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    quant::mxfp4,
    tensor::View,
};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::Experts,
    version: 1,
    doc: "`y[t] = Σ_i weights[t, i] · w2_e · act(w1_e·x[t], w3_e·x[t])` with e = ids[t, i], in ascending e. Matrices of expert e are entry \
          `slots[e]` of each stack. Each product, the activation and the sum round once to f32. `attrs.i[0]`: act is 0 `silu_mul` or \
          1 `situ_mul` with betas `attrs.f[0]`, `attrs.f[1]`. Scale operands (E8M0, one byte per 32 values) are present if w1 is mxfp4.",
    operands: &[
        input("x [T, K]"),
        input("ids [T, k] u32"),
        input("weights [T, k]"),
        input("slots [E] u32"),
        input("w1 [E, N, K]"),
        input("w3 [E, N, K]"),
        input("w2 [E, K, N]"),
        input("w1 scales [E, N, K / 32] u8, optional"),
        input("w3 scales [E, N, K / 32] u8, optional"),
        input("w2 scales [E, K, N / 32] u8, optional"),
        output("y [T, K]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: REDUCTION,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.require(op.operands.len() >= 8, || format!("{} operands, expected 8 or 11", op.operands.len()))?;
    let dtype = op.operands[4].dtype;
    let mx = dtype == DType::Mxfp4;
    op.count(if mx { 11 } else { 8 })?;
    let y = op.operands.len() - 1;
    op.f32(&[0, 2, y])?;
    op.dtype(1, &[DType::U32])?;
    op.dtype(3, &[DType::U32])?;
    op.same_shape(0, y)?;
    op.same_shape(1, 2)?;
    for i in 4..7 {
        op.require(op.operands[i].dtype == dtype && (mx || WEIGHT_DTYPES.contains(&dtype)), || {
            format!("operand {i} is {}, w1 is {dtype}", op.operands[i].dtype)
        })?;
    }
    let [x, ids, _, slots, w1, w3, w2, ..] = &op.operands[..] else { unreachable!("counted") };
    let (experts, k, n) = (slots.dims[0], x.row_len() as u64, w1.dims[1]);
    let ok = w1.dims() == [experts, n, k] && w3.dims() == w1.dims() && w2.dims() == [experts, k, n];
    op.require(ok && ids.row_len() as u64 <= experts && ids.dims[0] == x.dims[0], || {
        format!(
            "x is {:?}, ids are {:?}, slots are {:?}, w1 is {:?}, w3 is {:?}, w2 is {:?}",
            x.dims(),
            ids.dims(),
            slots.dims(),
            w1.dims(),
            w3.dims(),
            w2.dims()
        )
    })?;
    if mx {
        for (i, shape) in [(7, [experts, n, k / 32]), (8, [experts, n, k / 32]), (9, [experts, k, n / 32])] {
            op.dtype(i, &[DType::U8])?;
            let scales = &op.operands[i];
            op.require(scales.dims() == shape, || format!("operand {i} is {:?}, expected {shape:?}", scales.dims()))?;
        }
        op.require(k % 32 == 0 && n % 32 == 0, || format!("K = {k} and N = {n} are not whole groups of 32"))?;
    }
    match op.attrs.i[0] {
        0 => Ok(()),
        1 => situ_mul::betas(op, &op.attrs),
        other => Err(format!("attrs.i[0] = {other} is not 0 or 1")),
    }
}

/// One stacked matrix, with its scales if it is MXFP4.
struct Stack {
    values: View,
    scales: Option<View>,
}

impl Stack {
    /// Row `row` of the matrix at `slot`, as f32.
    fn load(&self, slot: usize, row: usize, out: &mut [f32]) {
        let dtype = self.values.tensor.dtype;
        let matrix = self.values.row_bytes(slot);
        let bytes = dtype.bytes(out.len() as u64).expect("whole blocks, checked") as usize;
        let row_bytes = &matrix[row * bytes..][..bytes];
        match &self.scales {
            None => crate::quant::dequantize_row(dtype, row_bytes, out),
            Some(scales) => {
                let groups = out.len() / mxfp4::GROUP;
                mxfp4::decode_row(row_bytes, &scales.row_bytes(slot)[row * groups..][..groups], out);
            }
        }
    }
}

fn reference(call: &Call<'_>, part: Part) {
    let [x, ids, weights, slots, w1, ..] = call.operands[..] else { unreachable!("checked") };
    let y = call.operands[call.operands.len() - 1];
    let mx = w1.tensor.dtype == DType::Mxfp4;
    let stack = |i: usize| Stack { values: call.operands[i], scales: mx.then(|| call.operands[i + 3]) };
    let (gate, up, down) = (stack(4), stack(5), stack(6));
    let (k, n) = (x.row_len(), w1.tensor.dims[1] as usize);
    let mine = part.of(x.rows());
    // (expert, token, weight), in ascending expert id: one visit per expert, sums in order.
    let mut pairs: Vec<(u32, usize, f32)> = Vec::new();
    let mut row = vec![0f32; ids.row_len()];
    for t in mine.clone() {
        weights.load_row(t, &mut row);
        pairs.extend(row.iter().enumerate().map(|(i, w)| (ids.load_u32(t, i), t, *w)));
    }
    pairs.sort_by_key(|(expert, t, _)| (*expert, *t));
    let mut sums = vec![vec![0f64; k]; mine.len()];
    for group in pairs.chunk_by(|a, b| a.0 == b.0) {
        let slot = u32::from_ne_bytes(slots.row_bytes(group[0].0 as usize).try_into().expect("u32")) as usize;
        let inputs: Vec<Vec<f32>> = group
            .iter()
            .map(|(_, t, _)| {
                let mut input = vec![0f32; k];
                x.load_row(*t, &mut input);
                input
            })
            .collect();
        let mut hidden = product(&gate, slot, n, k, &inputs);
        for (gate, up) in hidden.iter_mut().zip(product(&up, slot, n, k, &inputs)) {
            gate.iter_mut().zip(up).for_each(|(g, u)| *g = activate(&call.attrs, *g, u));
        }
        for ((_, t, weight), out) in group.iter().zip(product(&down, slot, k, n, &hidden)) {
            let sum = &mut sums[t - mine.start];
            sum.iter_mut().zip(out).for_each(|(s, v)| *s += f64::from(*weight) * f64::from(v));
        }
    }
    for (t, sum) in mine.zip(&sums) {
        let out: Vec<f32> = sum.iter().map(|s| *s as f32).collect();
        y.store(t, 0, &out);
    }
}

fn product(stack: &Stack, slot: usize, n: usize, k: usize, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let xs: Vec<&[f32]> = inputs.iter().map(|x| &x[..]).collect();
    let mut ys = vec![Vec::new(); xs.len()];
    product::rows(n, k, |row, out| stack.load(slot, row, out), &xs, &mut ys);
    ys
}

fn activate(attrs: &Attrs, gate: f32, up: f32) -> f32 {
    let (gate, up) = (f64::from(gate), f64::from(up));
    if attrs.i[0] == 1 { situ_mul::situ(attrs, gate, up) as f32 } else { (f64::from(silu(gate) as f32) * up) as f32 }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (dtype, t, e, top, k, n, act) in [
        (DType::F32, 1, 1, 1, 3, 5, 0),
        (DType::BF16, 5, 7, 3, 17, 9, 1),
        (DType::Mxfp4, 1, 16, 4, 64, 96, 1),
        (DType::Mxfp4, 9, 5, 2, 32, 64, 0),
        // Extents of whole tiles, and more tokens than experts: routes that share an expert's weights.
        (DType::BF16, 18, 3, 2, 48, 32, 1),
        (DType::Mxfp4, 3, 9, 2, 256, 128, 1),
        (DType::Mxfp4, 20, 5, 2, 128, 256, 1),
        // The widths of Kimi K3 on one of eight ranks.
        (DType::Mxfp4, 3, 3, 2, 3584, 384, 1),
        // Plain formats, few and many tokens, in whole vectors or not; one expert for all.
        (DType::F32, 2, 3, 2, 32, 16, 1),
        (DType::F32, 18, 3, 2, 16, 32, 1),
        (DType::F32, 18, 3, 2, 17, 9, 0),
        (DType::F16, 2, 3, 2, 32, 16, 1),
        (DType::F16, 3, 3, 2, 17, 9, 0),
        (DType::F16, 18, 3, 2, 16, 32, 1),
        (DType::F16, 18, 3, 2, 17, 9, 0),
        (DType::BF16, 18, 3, 2, 17, 9, 0),
        (DType::BF16, 30, 1, 1, 16, 32, 1),
    ] {
        let mut c = g.case(OpKind::Experts, format!("{dtype} T={t} E={e} k={top} K={k} N={n} act={act}"), t as usize);
        c.attrs.i[0] = act;
        c.attrs.f[..2].copy_from_slice(&[4.0, 25.0]);
        let x = g.uniform(&[t, k]);
        c.push(Vary::Tokens, &[t, k], x);
        let mut shuffled = |n: u64| {
            let mut order: Vec<u32> = (0..n as u32).collect();
            (1..n as usize).rev().for_each(|i| order.swap(i, g.below(i as u64 + 1) as usize));
            order
        };
        let ids: Vec<u32> = (0..t).flat_map(|_| shuffled(e).into_iter().take(top as usize)).collect();
        let slots = shuffled(e);
        let bytes = |v: &[u32]| v.iter().flat_map(|v| v.to_ne_bytes()).collect();
        c.push_raw(DType::U32, Vary::Tokens, &[t, top], bytes(&ids));
        let weights = g.uniform(&[t, top]);
        c.push(Vary::Tokens, &[t, top], weights);
        c.push_raw(DType::U32, Vary::Fixed, &[e], bytes(&slots));
        let shapes = [[e, n, k], [e, n, k], [e, k, n]];
        for shape in shapes {
            let w = if dtype == DType::Mxfp4 { random_bytes(&mut g, shape, 2) } else { g.weight(dtype, &shape) };
            c.push_raw(dtype, Vary::Fixed, &shape, w);
        }
        if dtype == DType::Mxfp4 {
            for shape in shapes {
                let scales = random_bytes(&mut g, shape, 32).into_iter().map(|b| 122 + b % 4).collect();
                c.push_raw(DType::U8, Vary::Fixed, &[shape[0], shape[1], shape[2] / 32], scales);
            }
        }
        c.push_output(Vary::Tokens, &[t, k]);
        out.push(c);
    }
    out
}

fn random_bytes(g: &mut Gen, shape: [u64; 3], values_per_byte: u64) -> Vec<u8> {
    (0..shape.iter().product::<u64>() / values_per_byte).map(|_| g.next() as u8).collect()
}
