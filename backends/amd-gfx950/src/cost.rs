//! What a program's step should take: a model from published rates, never a measurement.
//!
//! Each op is a roofline: the longer of its operands' bytes over the bandwidth of HBM and of its products over the peak rate of
//! their factors. A launch adds a constant. Weights are read whole, once, in the format they came in; of stacked experts as many as
//! so many routes are expected to touch, were each drawn alike; of the caches the contexts of the step's rows, one state per row,
//! or a row per token. A recording launches what its whole bucket needs, other programs what the load does. Left out:
//! caches between ops, latency, clocks under load, copies of expanded contexts. So the figures are lower bounds whose ratios
//! tell how the work grows from width to width, which is what the engine asks for; it corrects them by what steps take.
//!
//! Sources: 8 TB/s and 2.5 and 5 PFLOP/s of bf16 and fp8 matrices, 157 TFLOP/s of f32 vectors, AMD's data sheet of the MI355X. The
//! constant per launch is the emulator's assumption (`emulator/src/machine/timing.rs`), so that the two do not contradict each
//! other. Rejected: that model itself; it needs the counts of an emulated run.

use tokenspeed_backend_api::{dtype::DType, graph::Vary, op::OpKind, record::OpRecord, sdk::Load, tensor::Tensor};

use crate::settings::{Precision, Settings};

/// Bytes per second.
const HBM: f64 = 8e12;
/// Operations per second of matrices of bf16, of fp8, and of f32 vectors.
const BF16: f64 = 2.5e15;
const FP8: f64 = 5e15;
const F32: f64 = 157e12;
/// Seconds of a launch in a captured graph, work or not.
const LAUNCH: f64 = 2e-6;
/// Operations of a recurrent state per value and token: decay, what is read, what is written, and the output, each multiplied and added
/// but for the first.
const RECURRENCE: f64 = 7.0;

/// Bytes moved and operations of products with weights, and of attention and recurrences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    bytes: f64,
    products: f64,
    others: f64,
}

/// Nanoseconds of a step under `load` that consists of these ops in so many launches.
pub fn nanoseconds(ops: &[OpRecord], launches: usize, load: &Load, settings: &Settings) -> u64 {
    let (products, others) = match settings.precision {
        Precision::Bf16 => (BF16, BF16),
        Precision::Fp8 => (FP8, BF16),
        Precision::F32 => (F32, F32),
    };
    let seconds = |op: &OpRecord| {
        let work = work(op, load);
        (work.bytes / HBM).max(work.products / products + work.others / others)
    };
    ((launches as f64 * LAUNCH + ops.iter().map(seconds).sum::<f64>()) * 1e9).ceil() as u64
}

/// Of `n` experts the number that `routes` are expected to touch.
fn touched(n: f64, routes: f64) -> f64 {
    n * (1.0 - (1.0 - 1.0 / n).powf(routes))
}

fn work(op: &OpRecord, load: &Load) -> Work {
    let operands: Vec<Tensor> =
        op.operands.iter().map(|t| Tensor::from_abi(t).expect("checked when the program was prepared")).collect();
    let (tokens, rows) = (f64::from(load.n_tokens), f64::from(load.n_rows));
    let count = |t: &Tensor| match t.vary {
        Vary::Fixed => t.dims[0] as f64,
        Vary::Tokens => tokens,
        Vary::Rows => rows,
        Vary::LogitRows => f64::from(load.n_logit_rows),
    };
    // What a token has behind it, as far as a sliding window lets it see.
    let window =
        if op.kind == OpKind::PagedAttention && op.attrs.i[1] > 0 { op.attrs.i[1] as f64 } else { f64::INFINITY };
    let context = if load.n_tokens == 0 { 0.0 } else { (load.attention_pairs as f64 / tokens).min(window) };
    let (pairs, positions) = (context * tokens, context * rows);
    let entries = operands.iter().find(|t| t.vary != Vary::Fixed).map_or(0.0, count);
    let mut work = Work::default();
    for (at, t) in operands.iter().enumerate() {
        let (row_bytes, values) = (t.row_bytes() as f64, t.row_len() as f64);
        let page_row_bytes = row_bytes / t.dims[1] as f64;
        work.bytes += match (op.kind, t.vary, t.rank) {
            // Tables, and ids beside rows of activations.
            _ if matches!(t.dtype, DType::U32 | DType::I32) => 0.0,
            (_, Vary::Tokens | Vary::Rows | Vary::LogitRows, _) => count(t) * row_bytes,
            // Rows of side tables that few requests have.
            (OpKind::Sample, ..) => 0.0,
            (OpKind::Embedding, ..) => tokens * row_bytes,
            (OpKind::Experts, _, 3) => {
                let (experts, routes) = (t.dims[0] as f64, tokens * operands[1].row_len() as f64);
                // Scales are bytes beside the values of their matrix.
                if t.dtype != DType::U8 {
                    work.products += 2.0 * routes * values;
                }
                touched(experts, routes) * row_bytes
            }
            (OpKind::PagedAttention | OpKind::MlaAttention | OpKind::MlaMix, _, 4) => positions * page_row_bytes,
            (OpKind::KvWrite | OpKind::KvRead | OpKind::KvMove | OpKind::MlaWrite, _, 4) => tokens * page_row_bytes,
            (OpKind::KdaRecord, _, 3) => tokens * page_row_bytes,
            (kind, _, 3 | 4) if has_states(kind) => {
                if t.rank == 4 {
                    work.others += RECURRENCE * tokens * values;
                }
                // Read, and written but by a pass that leaves it as it was.
                let keeps = op.kind == OpKind::KdaVerify || op.kind == OpKind::KdaMix && op.attrs.i[1] == 1;
                rows * row_bytes * if keeps { 1.0 } else { 2.0 }
            }
            _ => {
                if t.rank == 2 {
                    let used = if half_of_it(op.kind) { 0.5 } else { 1.0 };
                    work.products += 2.0 * used * entries * count(t) * values;
                }
                count(t) * row_bytes
            }
        };
        // Scores and sums, per head as long as the query and the result.
        work.others += match (op.kind, at) {
            (OpKind::PagedAttention | OpKind::MlaAttention, 0) => {
                2.0 * pairs * (values + operands[operands.len() - 1].row_len() as f64)
            }
            // Absorbed: both over the latent row.
            (OpKind::MlaMix, 0) => 4.0 * pairs * t.dims[1] as f64 * operands[2].dims[3] as f64,
            _ => 0.0,
        };
    }
    work
}

/// Ops over a recurrent state: their operands of three and four dimensions that are fixed are slots.
fn has_states(kind: OpKind) -> bool {
    use OpKind::{KdaChunk, KdaMix, KdaReplay, KdaStep, KdaVerify, ShortConv};
    matches!(kind, ShortConv | KdaStep | KdaVerify | KdaChunk | KdaMix | KdaReplay)
}

/// Keys' and values' projection are halves of one weight.
fn half_of_it(kind: OpKind) -> bool {
    matches!(kind, OpKind::MlaAbsorb | OpKind::MlaValue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_backend_api::op::Attrs;

    fn op(kind: OpKind, operands: &[(DType, Vary, &[u64])]) -> OpRecord {
        let operands = operands.iter().map(|(dtype, vary, dims)| Tensor::new(*dtype, *vary, dims).to_abi()).collect();
        OpRecord::new(kind, operands, Attrs::default(), kind.name())
    }

    fn load(n_tokens: u32, n_rows: u32, context: u64) -> Load {
        Load { n_tokens, n_rows, n_logit_rows: n_rows, attention_pairs: u64::from(n_tokens) * context }
    }

    #[test]
    fn a_product_is_bound_by_its_weight_and_then_by_its_arithmetic() {
        let (k, n) = (4096u64, 8192u64);
        let gemm = op(
            OpKind::Gemm,
            &[
                (DType::F32, Vary::Tokens, &[8192, k]),
                (DType::BF16, Vary::Fixed, &[n, k]),
                (DType::F32, Vary::Tokens, &[8192, n]),
            ],
        );
        let one = work(&gemm, &load(1, 1, 1));
        assert_eq!((one.bytes, one.products), ((2 * n * k + 4 * (n + k)) as f64, (2 * n * k) as f64));
        let settings = Settings::parse(&[]).unwrap();
        let ns = |tokens| nanoseconds(std::slice::from_ref(&gemm), 1, &load(tokens, 1, 1), &settings);
        assert_eq!(ns(1), 2_000 + (one.bytes / 8.0 / 1e3).ceil() as u64, "8 TB/s are 8,000 bytes a nanosecond");
        assert!(ns(16) < ns(1) * 11 / 10, "16 tokens read the weight once");
        let many = 2.0 * (8192 * n * k) as f64 / 2.5e6;
        assert_eq!(ns(8192), 2_000 + many.ceil() as u64, "a prompt is bound by 2.5 PFLOP/s");
    }

    #[test]
    fn experts_are_read_once_however_many_routes_meet_in_them() {
        let (e, k, n) = (896u64, 3584u64, 384u64);
        let stack: (DType, Vary, &[u64]) = (DType::BF16, Vary::Fixed, &[e, n, k]);
        let experts = op(
            OpKind::Experts,
            &[
                (DType::F32, Vary::Tokens, &[64, k]),
                (DType::U32, Vary::Tokens, &[64, 16]),
                (DType::F32, Vary::Tokens, &[64, 16]),
                (DType::U32, Vary::Fixed, &[e]),
                stack,
                stack,
                (DType::BF16, Vary::Fixed, &[e, k, n]),
                (DType::F32, Vary::Tokens, &[64, k]),
            ],
        );
        let matrices = |tokens| {
            let activations = f64::from(tokens) * (2.0 * 4.0 * k as f64 + 64.0);
            (work(&experts, &load(tokens, 1, 1)).bytes - activations) / (3 * 2 * n * k) as f64
        };
        // 896 (1 - (895/896)^(16 t)), worked out by hand.
        for (tokens, wanted) in [(1, 15.867), (4, 61.801), (64, 610.442), (1 << 20, 896.0)] {
            let found = matrices(tokens);
            assert!((found - wanted).abs() < 0.01, "{tokens} tokens: {found}, expected {wanted}");
        }
        assert_eq!(work(&experts, &load(4, 1, 1)).products, 4.0 * 16.0 * (3 * 2 * n * k) as f64);
    }

    #[test]
    fn attention_reads_the_contexts_of_its_rows() {
        let attention = op(
            OpKind::PagedAttention,
            &[
                (DType::F32, Vary::Tokens, &[64, 32, 128]),
                (DType::BF16, Vary::Fixed, &[1000, 64, 8, 128]),
                (DType::BF16, Vary::Fixed, &[1000, 64, 8, 128]),
                (DType::U32, Vary::Fixed, &[16, 100]),
                (DType::F32, Vary::Tokens, &[64, 32, 128]),
            ],
        );
        let caches = |tokens, rows, context| {
            work(&attention, &load(tokens, rows, context)).bytes - f64::from(tokens) * 2.0 * 4.0 * 4096.0
        };
        assert_eq!(caches(3, 3, 500), 3.0 * 500.0 * 2.0 * 2048.0, "a context each");
        assert_eq!(caches(3, 1, 500), 500.0 * 2.0 * 2048.0, "guesses share theirs");
        assert_eq!(work(&attention, &load(2, 2, 100)).others, 2.0 * 200.0 * 2.0 * 4096.0);
        let mut windowed = attention.clone();
        windowed.attrs.i[1] = 100;
        assert_eq!(
            work(&windowed, &load(2, 2, 1 << 17)),
            work(&attention, &load(2, 2, 100)),
            "what it does not see is free"
        );
    }

    #[test]
    fn a_state_is_read_and_written_once_per_row() {
        let state: &[u64] = &[9, 12, 128, 128];
        let step = |kind| {
            let vector: (DType, Vary, &[u64]) = (DType::F32, Vary::Tokens, &[64, 12, 128]);
            let beta: (DType, Vary, &[u64]) = (DType::F32, Vary::Tokens, &[64, 12]);
            op(kind, &[vector, vector, vector, vector, beta, (DType::F32, Vary::Fixed, state), vector])
        };
        let bytes = |kind, tokens, rows| {
            work(&step(kind), &load(tokens, rows, 1)).bytes - f64::from(tokens) * (5.0 * 1536.0 + 12.0) * 4.0
        };
        let slot = 4.0 * 12.0 * 128.0 * 128.0;
        assert_eq!(bytes(OpKind::KdaStep, 6, 2), 2.0 * 2.0 * slot);
        assert_eq!(bytes(OpKind::KdaVerify, 6, 2), 2.0 * slot, "left as it was");
    }
}
