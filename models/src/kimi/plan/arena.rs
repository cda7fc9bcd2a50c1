//! Bytes of the values of a step.

use tokenspeed_backend_api::{
    catalogue,
    graph::{Graph, Ref, Vary, last_uses},
};

/// Values start at multiples of this.
const ALIGNMENT: u64 = 256;

/// What a step has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub tokens: u64,
    pub rows: u64,
    pub logit_rows: u64,
}

/// Bytes of a value.
pub(super) fn value_bytes(graph: &Graph, value: usize, shape: Shape) -> u64 {
    let spec = &graph.values[value];
    let first = match spec.vary {
        Vary::Fixed => 1,
        Vary::Tokens => shape.tokens,
        Vary::Rows => shape.rows,
        Vary::LogitRows => shape.logit_rows,
    };
    spec.dtype.bytes(first * spec.inner.iter().product::<u64>()).expect("values have plain formats")
}

/// The memory that values need when each is placed in the lowest gap and freed after its last use. This is how programs
/// are placed on a backend without fused ops; one that has them keeps less, or asks for the same as scratch. The logits lie
/// elsewhere.
pub(super) fn arena_bytes(graph: &Graph, shape: Shape) -> u64 {
    let mut graph = graph.clone();
    let ops = std::mem::take(&mut graph.ops);
    let ops = ops.into_iter().flat_map(|op| catalogue::basic(op, &mut graph)).collect();
    graph.ops = ops;
    let graph = &graph;
    let last = last_uses(graph.values.len(), graph.ops.iter().map(|op| (op.kind, &*op.operands)));
    // (offset, end, last use), by offset.
    let mut live: Vec<(u64, u64, usize)> = Vec::new();
    let mut placed = vec![false; graph.values.len()];
    let mut total = 0;
    for (at, op) in graph.ops.iter().enumerate() {
        live.retain(|(_, _, last)| *last >= at);
        for r in &op.operands {
            let Ref::Value(v) = *r else { continue };
            if graph.logits == Some(v) || std::mem::replace(&mut placed[v], true) {
                continue;
            }
            let bytes = value_bytes(graph, v, shape).next_multiple_of(ALIGNMENT);
            let mut offset = 0;
            let mut index = live.len();
            for (i, (start, end, _)) in live.iter().enumerate() {
                if offset + bytes <= *start {
                    index = i;
                    break;
                }
                offset = offset.max(*end);
            }
            live.insert(index, (offset, offset + bytes, last[v]));
            total = total.max(offset + bytes);
        }
    }
    total
}
