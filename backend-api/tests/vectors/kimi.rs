//! The ops of Kimi Linear and Kimi K3 (`tests/vectors/kimi_ops.py`).

use crate::vector::{Vector, all_agree, each_bug_is_caught, load, negate};
use serde_json::Value;
use tokenspeed_backend_api::{
    catalogue::{Case, CaseOperand},
    graph::Vary,
    op::OpKind,
};

fn kinds() -> impl Iterator<Item = OpKind> {
    OpKind::ALL.into_iter().filter(|k| (*k as u32) & 0xff >= 16)
}

fn vary(_: OpKind, operand: &Value, _: &str) -> Vary {
    if operand["vary"] == "tokens" { Vary::Tokens } else { Vary::Fixed }
}

fn vectors() -> Vec<Vector> {
    load("kimi_ops.json", vary)
}

/// Several values are rounded on the way to an output of these; one of them may fall on the other side where numpy sums
/// in another order.
fn absolute(kind: OpKind) -> f64 {
    use OpKind::*;
    match kind {
        KdaStep | KdaVerify | KdaReplay | KdaChunk | KdaMix | MlaMix | Experts | GatedRmsNorm | SigmoidMul
        | MoeInput | MoeOutput => 1e-6,
        _ => 1e-9,
    }
}

#[test]
fn references_agree_with_numpy() {
    all_agree(&vectors(), kinds(), absolute);
}

#[test]
fn one_seeded_bug_per_op_is_caught() {
    each_bug_is_caught(&vectors(), kinds(), absolute, seed_bug);
}

/// What a plausible mistake in each op would read or write instead.
fn seed_bug(case: &mut Case) {
    let reverse_taps = |o: &mut CaseOperand| {
        let row = o.tensor.row_bytes();
        o.bytes.chunks_exact_mut(row).for_each(|w| w.as_chunks_mut::<4>().0.reverse());
    };
    let fresh = |case: &mut Case| case.step.rows.iter_mut().for_each(|r| (r.computed, r.state_tokens) = (0, 0));
    match case.kind {
        OpKind::Slice => case.attrs.i[0] += 1,
        OpKind::Concat => case.operands.swap(0, 1),
        OpKind::Sigmoid | OpKind::SigmoidMul => negate(&mut case.operands[0]),
        // The epsilon on the mean: D times too large.
        OpKind::L2Norm => case.attrs.f[0] *= case.operands[0].tensor.dims[2] as f64,
        OpKind::ShortConv => reverse_taps(&mut case.operands[3]),
        // A clamped softplus is not the bounded gate.
        OpKind::KdaGate => case.attrs.i[0] ^= 1,
        // The state forgotten.
        OpKind::KdaStep | OpKind::KdaVerify | OpKind::KdaChunk | OpKind::KdaReplay | OpKind::KdaMix => fresh(case),
        OpKind::KdaRecord => case.operands.swap(1, 2),
        OpKind::MlaAbsorb | OpKind::MlaValue => negate(&mut case.operands[1]),
        // The gate forgotten to be a sigmoid's.
        OpKind::MlaMix => negate(&mut case.operands[4]),
        OpKind::MlaAttention => case.step.tokens.iter_mut().for_each(|t| t.position = t.position.saturating_sub(1)),
        OpKind::MlaWrite => case.attrs.f[0] = 1e-5,
        OpKind::AttnResMix | OpKind::AttnResCombine => negate(&mut case.operands[1]),
        // The score of another mixture.
        OpKind::AttnResPartial => case.attrs.i[1] = 1,
        // Two scores' norms exchanged.
        OpKind::AttnResScores => case.operands.swap(1, 2),
        OpKind::SituMul => case.attrs.f[1] = 0.0,
        OpKind::RouterTopk => case.attrs.i[2] ^= 1,
        OpKind::GatedRmsNorm => case.attrs.f[0] = 1e-6,
        // The gate taken for the other branch.
        OpKind::MoeInput => case.operands.swap(3, 4),
        // The norm's weight with the wrong sign.
        OpKind::MoeOutput => negate(&mut case.operands[1]),
        // Every expert at its own id.
        OpKind::Experts => {
            let identity = 0..case.operands[3].tensor.dims[0] as u32;
            case.operands[3].bytes = identity.flat_map(u32::to_ne_bytes).collect();
        }
        other => unreachable!("{other} is not one of this file's"),
    }
}
