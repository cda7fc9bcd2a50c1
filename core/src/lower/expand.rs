//! Ask the backend about every op; replace what it refuses by its decomposition.

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
        let (desc, answer) = ask(&graph, capacity, &op, support)?;
        let decompose = catalogue::entry(op.kind).decompose;
        let (implementation, reason) = match (answer.answer, decompose) {
            (Answer::Yes, _) | (Answer::YesSlow, None) => {
                let name = answer.implementation.clone();
                out.push(resolved(desc, op.operands.clone(), &op.label, answer));
                (name, String::new())
            }
            (_, Some(decompose)) => {
                let reason = if answer.answer == Answer::No { answer.reason } else { "slower than its parts".into() };
                let parts = decompose(&op, &mut graph);
                let names: Vec<&str> = parts.iter().map(|p| p.kind.name()).collect();
                for part in &parts {
                    let (desc, answer) = ask(&graph, capacity, part, support)?;
                    refuse_no(part, &answer)?;
                    out.push(resolved(desc, part.operands.clone(), &part.label, answer));
                }
                (names.join(" + "), reason)
            }
            (Answer::No, None) => {
                refuse_no(&op, &answer)?;
                unreachable!("refused above")
            }
        };
        match resolutions.iter_mut().find(|r| r.op == op.kind && r.implementation == implementation) {
            Some(known) => known.count += 1,
            None => resolutions.push(Resolution { op: op.kind, implementation, reason, count: 1 }),
        }
    }
    Ok((graph, out, resolutions))
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

fn refuse_no(op: &GraphOp, answer: &Support) -> Result<(), LowerError> {
    if answer.answer != Answer::No {
        return Ok(());
    }
    Err(LowerError::Unsupported { op: op.kind.name(), label: op.label.clone(), reason: answer.reason.clone() })
}

fn resolved(desc: OpDesc, operands: Vec<Ref>, label: &str, support: Support) -> ResolvedOp {
    ResolvedOp { desc, operands, label: label.to_owned(), support, workspace: (0, 0) }
}
