//! The op catalogue: what each op means.
//!
//! An entry *is* its reference, its decomposition (for fused ops), its tolerance, its schema check and its input
//! generator. Exact mode, conformance, lowering and `docs/ops.md` all read this one table. References compute in f64
//! and round each output element once to f32; a dot product runs k = 0…K−1 in order, so one output element depends on
//! its own row and the sequence's history alone, and the result is the same bit for bit for any batch, chunk or thread
//! count. They are checked against committed vectors from numpy float64 scripts.
//!
//! Rejected: generating references from a formula language. Twelve short loops are easier to trust.

mod add;
mod add_rmsnorm;
mod attn_res_combine;
mod attn_res_mix;
mod attn_res_partial;
mod attn_res_scores;
mod cases;
mod concat;
mod copy;
mod elementwise;
mod embedding;
mod experts;
mod gated_rmsnorm;
mod gemm;
mod kda_chunk;
mod kda_gate;
mod kda_mix;
mod kda_record;
mod kda_replay;
mod kda_step;
mod kda_verify;
mod kv_move;
mod kv_read;
mod kv_write;
mod l2norm;
mod mla_absorb;
mod mla_attention;
mod mla_mix;
mod mla_value;
mod mla_write;
mod moe_input;
mod moe_output;
mod mul;
mod paged_attention;
mod product;
mod recurrent;
mod rmsnorm;
mod rope;
mod router_topk;
mod row_gather;
mod sample;
mod schema;
mod short_conv;
mod sigmoid;
mod sigmoid_mul;
mod silu;
mod silu_mul;
mod situ_mul;
mod slice;
mod table_update;

pub use cases::{Case, CaseOperand};
pub use sample::{CHOSEN_WIDTH, LOGPROBS_WIDTH};
pub use schema::OpDesc;

use crate::{
    graph::{Graph, GraphOp},
    op::{Attrs, OpKind},
    step::StepView,
    support::Rounding,
    tensor::View,
};

/// Whether an operand is read, written or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    In,
    /// Written completely (for the step's actual count).
    Out,
    /// Written in part: pages and tables.
    InOut,
}

/// One operand of an op.
#[derive(Clone, Copy, Debug)]
pub struct OperandSpec {
    /// Name in documentation and messages.
    pub name: &'static str,
    /// Access.
    pub role: Role,
}

pub(crate) const fn input(name: &'static str) -> OperandSpec {
    OperandSpec { name, role: Role::In }
}
pub(crate) const fn output(name: &'static str) -> OperandSpec {
    OperandSpec { name, role: Role::Out }
}
pub(crate) const fn inout(name: &'static str) -> OperandSpec {
    OperandSpec { name, role: Role::InOut }
}

/// How far a backend may be from the reference, for f32 activations.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Normalised mean squared error: Σ(a−b)² / Σb².
    pub nmse: f64,
    /// Largest |a−b| relative to the root mean square of the reference.
    pub max_error: f64,
}

/// Moves bytes or selects them: no rounding at all.
pub const BIT_EXACT: Tolerance = Tolerance { nmse: 0.0, max_error: 0.0 };
/// One rounding per element, plus the rounding of the function used.
pub const ELEMENTWISE: Tolerance = Tolerance { nmse: 1e-12, max_error: 5e-6 };
/// Sums over K in f32, whatever their order.
pub const REDUCTION: Tolerance = Tolerance { nmse: 1e-11, max_error: 2e-5 };
/// Softmax over f32 scores, then a sum.
pub const ATTENTION: Tolerance = Tolerance { nmse: 1e-10, max_error: 5e-5 };
/// A delta-rule recurrence over f32 state, in any of its forms.
pub const RECURRENCE: Tolerance = Tolerance { nmse: 1e-10, max_error: 5e-5 };

/// Products of bf16 factors: each is off by at most 2^-8 of itself, about 2^-9 in the mean; an NMSE of 4e-6 is usual.
pub const BF16_PRODUCT: Tolerance = Tolerance { nmse: 1e-4, max_error: 4e-2 };
/// Products of e4m3 factors. A rounding is off by at most 2^-4 of a value where bf16's is by 2^-8: it keeps 3 bits behind the
/// first instead of 7. Errors are 2^4 times bf16's and their squares 2^8 times, so this is [`BF16_PRODUCT`] times that, nothing
/// else; an NMSE of 1e-3 to 2e-3 is usual.
pub const FP8_PRODUCT: Tolerance =
    Tolerance { nmse: BF16_PRODUCT.nmse * 256.0, max_error: BF16_PRODUCT.max_error * 16.0 };
/// Outputs with fewer values than this cannot be judged by their mean: where terms cancel, an error is large beside a sum.
const FEW: usize = 64;

impl Tolerance {
    /// For an output of `values` numbers of an op that rounds so. Ops that only move or select bytes allow nothing in any
    /// case.
    pub fn under(self, rounding: Rounding, values: usize) -> Tolerance {
        let product = match rounding {
            Rounding::Bf16 => BF16_PRODUCT,
            Rounding::Fp8 => FP8_PRODUCT,
            Rounding::F32 => return self,
        };
        if self.nmse == 0.0 {
            return self;
        }
        let scarce = FEW as f64 / values.clamp(1, FEW) as f64;
        Tolerance { nmse: product.nmse * scarce, max_error: product.max_error * scarce.sqrt() }
    }
}

/// A call of a reference: operands in catalogue order, first dimensions cut to the step's actual counts.
#[derive(Debug)]
pub struct Call<'a> {
    /// Attributes.
    pub attrs: Attrs,
    /// Operands.
    pub operands: &'a [View],
    /// Parameter block.
    pub step: StepView<'a>,
}

/// Which share of an op's work one thread does. Shares never change the result.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// This share.
    pub index: usize,
    /// Number of shares.
    pub of: usize,
}

impl Part {
    /// All of it.
    pub const WHOLE: Part = Part { index: 0, of: 1 };

    /// This share's part of `0..n`.
    pub fn of(self, n: usize) -> std::ops::Range<usize> {
        n * self.index / self.of..n * (self.index + 1) / self.of
    }
}

/// Rewrite of a fused op as smaller ones, basic or fused themselves; may add values to the graph.
pub type Decompose = fn(&GraphOp, &mut Graph) -> Vec<GraphOp>;

/// One op.
#[derive(Debug)]
pub struct Entry {
    /// Kind.
    pub kind: OpKind,
    /// Schema version.
    pub version: u32,
    /// What it computes, for documentation.
    pub doc: &'static str,
    /// Operands; a variable-length op repeats the last one.
    pub operands: &'static [OperandSpec],
    /// Check shapes and formats of a concrete descriptor; the error says which operand is wrong and how.
    pub check: fn(&OpDesc) -> Result<(), String>,
    /// The reference.
    pub reference: fn(&Call<'_>, Part),
    /// For fused ops.
    pub decompose: Option<Decompose>,
    /// Allowed difference.
    pub tolerance: Tolerance,
    /// Generated inputs over ragged shapes; the same seed gives the same cases.
    pub cases: fn(seed: u64) -> Vec<Case>,
}

/// All entries, in the order of [`OpKind::ALL`].
pub static CATALOGUE: [Entry; OpKind::ALL.len()] = [
    table_update::ENTRY,
    copy::ENTRY,
    gemm::ENTRY,
    rmsnorm::ENTRY,
    rope::ENTRY,
    silu::ENTRY,
    add::ENTRY,
    mul::ENTRY,
    embedding::ENTRY,
    kv_write::ENTRY,
    paged_attention::ENTRY,
    row_gather::ENTRY,
    kv_read::ENTRY,
    kv_move::ENTRY,
    sample::ENTRY,
    slice::ENTRY,
    concat::ENTRY,
    sigmoid::ENTRY,
    l2norm::ENTRY,
    short_conv::ENTRY,
    kda_gate::ENTRY,
    kda_step::ENTRY,
    kda_verify::ENTRY,
    kda_record::ENTRY,
    kda_replay::ENTRY,
    mla_absorb::ENTRY,
    mla_attention::ENTRY,
    mla_value::ENTRY,
    attn_res_mix::ENTRY,
    situ_mul::ENTRY,
    router_topk::ENTRY,
    experts::ENTRY,
    attn_res_scores::ENTRY,
    attn_res_partial::ENTRY,
    attn_res_combine::ENTRY,
    silu_mul::ENTRY,
    add_rmsnorm::ENTRY,
    sigmoid_mul::ENTRY,
    gated_rmsnorm::ENTRY,
    mla_write::ENTRY,
    kda_chunk::ENTRY,
    kda_mix::ENTRY,
    moe_input::ENTRY,
    moe_output::ENTRY,
    mla_mix::ENTRY,
];

/// The entry of a kind.
pub fn entry(kind: OpKind) -> &'static Entry {
    let index = OpKind::ALL.iter().position(|k| *k == kind).expect("every kind is in ALL");
    let entry = &CATALOGUE[index];
    assert_eq!(entry.kind, kind, "catalogue order");
    entry
}

/// An op as basic ops: fused ones are decomposed until none is left. May add values to the graph.
pub fn basic(op: GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    match entry(op.kind).decompose {
        None => vec![op],
        Some(decompose) => decompose(&op, graph).into_iter().flat_map(|part| basic(part, graph)).collect(),
    }
}

/// How an op of `n` operands uses operand `index`: outputs come last, optional inputs are left out before them, and of a
/// variable-length op the inputs, or the last operand, repeat.
pub fn role(kind: OpKind, index: usize, n: usize) -> Role {
    let specs = entry(kind).operands;
    let outputs = specs.iter().rev().take_while(|s| s.role == Role::Out).count();
    let from_end = n.saturating_sub(index);
    if outputs > 0 && from_end <= outputs {
        return specs[specs.len() - from_end].role;
    }
    specs[index.min(specs.len() - outputs - 1)].role
}

/// `docs/ops.md`, generated.
pub fn document() -> String {
    let mut out = String::from(
        "# Op catalogue\n\nGenerated by `cargo xtask header` from `backend-api/src/catalogue`; do not edit.\n\nT = tokens of the \
         step, L = wanted logit rows. Activations are f32. The first dimension of a value is a capacity; the count of the \
         step comes from the parameter block.\n",
    );
    for e in &CATALOGUE {
        let operands: Vec<String> = e
            .operands
            .iter()
            .map(|o| {
                format!(
                    "`{}` ({})",
                    o.name,
                    match o.role {
                        Role::In => "in",
                        Role::Out => "out",
                        Role::InOut => "in/out",
                    }
                )
            })
            .collect();
        let fused = if e.kind.is_fused() { "fused" } else { "basic" };
        out += &format!(
            "\n## {} ({fused}, code {}, version {})\n\n{}\n\nOperands: {}.\n\nTolerance: NMSE ≤ {:e}, largest error ≤ {:e} of the \
             reference's rms.\n",
            e.kind,
            e.kind as u32,
            e.version,
            e.doc,
            operands.join(", "),
            e.tolerance.nmse,
            e.tolerance.max_error
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_cases_pass_their_own_schema() {
        for e in &CATALOGUE {
            let cases = (e.cases)(1);
            assert!(!cases.is_empty(), "{}", e.kind);
            for c in cases {
                c.desc().check().unwrap_or_else(|m| panic!("{} {}: {m}", e.kind, c.name));
            }
        }
    }

    /// Exact mode runs references on several threads: shares must not change a bit.
    #[test]
    fn shares_do_not_change_the_result() {
        for e in &CATALOGUE {
            for c in (e.cases)(2) {
                assert_eq!(c.run_reference(1), c.run_reference(3), "{} {}", e.kind, c.name);
            }
        }
    }

    #[test]
    fn a_wrong_shape_is_named() {
        let mut c = (entry(OpKind::Gemm).cases)(1).remove(1);
        c.operands[1].tensor.dims[1] += 1;
        let message = c.desc().check().unwrap_err();
        assert!(message.starts_with("gemm: x is"), "{message}");
    }
}
