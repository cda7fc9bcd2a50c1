//! The ops of the Llama family (`tests/vectors/ops.py`).

use crate::vector::{Vector, all_agree, each_bug_is_caught, load, negate};
use serde_json::Value;
use tokenspeed_backend_api::{
    catalogue::Case,
    graph::Vary,
    op::{OpKind, ROPE_HALVES, ROPE_PAIRS},
};

fn kinds() -> impl Iterator<Item = OpKind> {
    OpKind::ALL.into_iter().filter(|k| (*k as u32) & 0xff < 16)
}

fn vary(kind: OpKind, file: &Value, operand: &str) -> Vary {
    match operand {
        "y [L, D]" => Vary::LogitRows,
        // Operands in the middle are optional, so the number of one does not tell which it is.
        _ if kind == OpKind::Sample => match file["name"].as_str() {
            Some("logits" | "chosen" | "logprobs") => Vary::LogitRows,
            _ => Vary::Fixed,
        },
        _ if kind == OpKind::Embedding && file["name"] == "y" => Vary::Tokens,
        _ if kind == OpKind::TableUpdate => Vary::Fixed,
        _ if operand.contains("[T") => Vary::Tokens,
        _ => Vary::Fixed,
    }
}

fn vectors() -> Vec<Vector> {
    load("ops.json", vary)
}

#[test]
fn references_agree_with_numpy() {
    all_agree(&vectors(), kinds(), |_| 1e-9);
}

#[test]
fn one_seeded_bug_per_op_is_caught() {
    each_bug_is_caught(&vectors(), kinds(), |_| 1e-9, seed_bug);
}

/// What a plausible mistake in each op would read instead.
fn seed_bug(case: &mut Case) {
    match case.kind {
        OpKind::TableUpdate => case.step.deltas.iter_mut().for_each(|d| d.index ^= 1),
        OpKind::Copy => negate(&mut case.operands[0]),
        // K read backwards for the activations only.
        OpKind::Gemm => {
            let width = case.operands[0].tensor.row_bytes();
            case.operands[0].bytes.chunks_exact_mut(width).for_each(|row| row.as_chunks_mut::<4>().0.reverse());
        }
        OpKind::RmsNorm | OpKind::AddRmsNorm => case.attrs.f[0] = case.attrs.f[0] * 10.0 + 1e-3,
        OpKind::Rope => case.attrs.i[0] = if case.attrs.i[0] == ROPE_HALVES { ROPE_PAIRS } else { ROPE_HALVES },
        OpKind::Silu | OpKind::SiluMul => negate(&mut case.operands[0]),
        OpKind::Add | OpKind::Mul => negate(&mut case.operands[1]),
        OpKind::Embedding => case.step.tokens.iter_mut().for_each(|t| t.id = (t.id - 1).max(0)),
        OpKind::KvWrite => case.step.tokens.iter_mut().for_each(|t| t.position ^= 1),
        // Attends to one position too few.
        OpKind::PagedAttention => case.step.tokens.iter_mut().for_each(|t| t.position = t.position.saturating_sub(1)),
        // Its own row instead of an earlier one, and the other way round.
        OpKind::KvRead => case.attrs.i[1] = i64::from(case.attrs.i[1] == 0),
        // One row beside the branch.
        OpKind::KvMove => case.step.rows.iter_mut().for_each(|r| r.branch_offset += 1),
        OpKind::RowGather => case.step.logit_rows.iter_mut().for_each(|r| *r = r.saturating_sub(1)),
        // The generator's counter one too far.
        OpKind::Sample => case.step.samples.iter_mut().for_each(|s| s.position += 1),
        other => unreachable!("{other} is not one of this file's"),
    }
}
