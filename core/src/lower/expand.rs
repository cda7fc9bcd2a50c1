//! Ask the backend about every op; replace what it refuses by its decomposition, and parts of that in the same way.

use super::{Capacity, LowerError, operand};
use tokenspeed_backend_api::{
    catalogue::{self, OpDesc},
    graph::{Graph, GraphOp, Ref},
    op::OpKind,
    support::{Answer, Support},
};

/// An op with a concrete descriptor and the backend's yes.
pub(super) struct ResolvedOp {
    pub desc: OpDesc,
    pub operands: Vec<Ref>,
    pub label: String,
    pub support: Support,
    /// (offset, bytes), set by placement.
    pub workspace: (u64, u64),
}

/// How ops of one kind were resolved: one line of the table people see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The op the graph asked for.
    pub op: OpKind,
    /// Kernel, or the ops it was expanded to.
    pub implementation: String,
    /// Why it was expanded, if it was.
    pub reason: String,
    /// How many such ops.
    pub count: usize,
}

type Expanded = (Graph, Vec<ResolvedOp>, Vec<Resolution>);

pub(super) fn expand(
    graph: &Graph,
    capacity: &Capacity,
    support: &mut dyn FnMut(&OpDesc, &str) -> Support,
) -> Result<Expanded, LowerError> {
    let mut graph = graph.clone();
    let mut out = Vec::with_capacity(graph.ops.len());
    let mut resolutions: Vec<Resolution> = Vec::new();
    for op in std::mem::take(&mut graph.ops) {
        let first = out.len();
        let reason = resolve(&mut graph, capacity, &op, support, &mut out)?;
        let implementation = match &reason {
            None => out[first].support.implementation.clone(),
            Some(_) => out[first..].iter().map(|part| part.desc.kind.name()).collect::<Vec<_>>().join(" + "),
        };
        let reason = reason.unwrap_or_default();
        match resolutions.iter_mut().find(|r| r.op == op.kind && r.implementation == implementation) {
            Some(known) => known.count += 1,
            None => resolutions.push(Resolution { op: op.kind, implementation, reason, count: 1 }),
        }
    }
    Ok((graph, out, resolutions))
}

/// Add the op, or what stands for it; returns why, if it is not the op itself.
fn resolve(
    graph: &mut Graph,
    capacity: &Capacity,
    op: &GraphOp,
    support: &mut dyn FnMut(&OpDesc, &str) -> Support,
    out: &mut Vec<ResolvedOp>,
) -> Result<Option<String>, LowerError> {
    let (desc, answer) = ask(graph, capacity, op, support)?;
    match (answer.answer, catalogue::entry(op.kind).decompose) {
        (Answer::Yes, _) | (Answer::YesSlow, None) => {
            out.push(ResolvedOp {
                desc,
                operands: op.operands.clone(),
                label: op.label.clone(),
                support: answer,
                workspace: (0, 0),
            });
            Ok(None)
        }
        (refused, Some(decompose)) => {
            for part in decompose(op, graph) {
                resolve(graph, capacity, &part, support, out)?;
            }
            Ok(Some(if refused == Answer::No { answer.reason } else { "slower than its parts".into() }))
        }
        (Answer::No, None) => {
            Err(LowerError::Unsupported { op: op.kind.name(), label: op.label.clone(), reason: answer.reason })
        }
    }
}

fn ask(
    graph: &Graph,
    capacity: &Capacity,
    op: &GraphOp,
    support: &mut dyn FnMut(&OpDesc, &str) -> Support,
) -> Result<(OpDesc, Support), LowerError> {
    let operands = op.operands.iter().map(|r| operand(graph, capacity, *r)).collect();
    let desc = OpDesc { kind: op.kind, attrs: op.attrs, operands };
    desc.check().map_err(|reason| LowerError::Schema { label: op.label.clone(), reason })?;
    let answer = support(&desc, &op.label);
    Ok((desc, answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_backend_api::{
        dtype::DType,
        graph::{CacheTensor, ComponentKind, ComponentSpec, Vary},
        op::Attrs,
    };

    const CAPACITY: Capacity = Capacity {
        tokens: 8,
        rows: 2,
        logit_rows: 2,
        table_rows: 2,
        blocks_per_row: 1,
        block_tokens: 16,
        blocks: 3,
        states: 3,
    };

    /// A layer of one op whose parts are fused ops too.
    fn mix() -> Graph {
        let (heads, dim, channels) = (2, 4, 8);
        let mut graph = Graph::default();
        let tensor =
            |name: &str, inner: &[u64]| CacheTensor { name: name.into(), dtype: DType::F32, inner: inner.to_vec() };
        let tensors = vec![tensor("window", &[3, 3 * channels]), tensor("state", &[heads, dim, dim])];
        graph.component(ComponentSpec { name: "kda".into(), kind: ComponentKind::State { tensors } });
        let mut operands = Vec::new();
        for (name, inner) in [
            ("q", &[heads, dim][..]),
            ("k", &[heads, dim]),
            ("v", &[heads, dim]),
            ("f", &[heads, dim]),
            ("b", &[heads]),
            ("gate", &[heads, dim]),
        ] {
            operands.push(graph.value(name, Vary::Tokens, inner, DType::F32));
        }
        for (name, dims) in [
            ("wq", &[channels, 4][..]),
            ("wk", &[channels, 4]),
            ("wv", &[channels, 4]),
            ("A_log", &[heads]),
            ("dt_bias", &[channels]),
            ("norm", &[dim]),
        ] {
            operands.push(graph.weight(name, dims, DType::F32));
        }
        operands.extend([0, 1].map(|tensor| Ref::Cache { component: 0, tensor }));
        operands.push(graph.value("y", Vary::Tokens, &[heads, dim], DType::F32));
        let mut attrs = Attrs::default();
        attrs.f[..4].copy_from_slice(&[0.0, 1e-6, 0.5, 1e-5]);
        graph.push(OpKind::KdaMix, attrs, &operands, "mix");
        graph
    }

    fn expanded(refused: &[OpKind]) -> (Vec<OpKind>, Vec<Resolution>) {
        let mut support = |desc: &OpDesc, _: &str| match refused.contains(&desc.kind) {
            true => Support::no("not here"),
            false => Support::yes("any"),
        };
        let (_, ops, resolutions) = expand(&mix(), &CAPACITY, &mut support).expect("expanded");
        (ops.iter().map(|op| op.desc.kind).collect(), resolutions)
    }

    /// A fused part is asked about like any other op, so a backend without the whole keeps its chunks.
    #[test]
    fn parts_are_resolved_like_ops() {
        use OpKind::*;
        assert_eq!(expanded(&[]).0, [KdaMix]);
        let (kinds, resolutions) = expanded(&[KdaMix]);
        assert_eq!(kinds, [ShortConv, L2Norm, L2Norm, KdaGate, Sigmoid, KdaChunk, GatedRmsNorm]);
        let line = "short_conv + l2norm + l2norm + kda_gate + sigmoid + kda_chunk + gated_rmsnorm";
        let whole = Resolution { op: KdaMix, implementation: line.into(), reason: "not here".into(), count: 1 };
        assert_eq!(resolutions, [whole]);
        let (kinds, _) = expanded(&[KdaMix, KdaChunk, GatedRmsNorm]);
        assert_eq!(kinds, [ShortConv, L2Norm, L2Norm, KdaGate, Sigmoid, KdaStep, RmsNorm, SigmoidMul]);
    }

    #[test]
    fn a_basic_part_that_is_refused_is_named() {
        let mut support = |desc: &OpDesc, _: &str| match desc.kind {
            OpKind::KdaMix | OpKind::KdaChunk | OpKind::KdaStep => Support::no("not here"),
            _ => Support::yes("any"),
        };
        let error = expand(&mix(), &CAPACITY, &mut support).err().expect("kda_step has no parts");
        assert_eq!(error.to_string(), "the backend cannot run `kda_step` (mix): not here");
    }
}
