//! Give every value and workspace a place in the activations arena, reusing memory by lifetime.

use super::{Capacity, expand::ResolvedOp, operand};
use tokenspeed_backend_api::{
    abi::TS_BIND_ACTIVATIONS,
    graph::{Graph, Ref, last_uses},
};

/// A value's memory: `[offset, offset + bytes)` while ops `first..=last` run.
#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    bytes: u64,
    last: usize,
}

/// Fill in binding and offset of every value operand and every workspace; returns the arena's size.
pub(super) fn place_values(graph: &Graph, capacity: &Capacity, alignment: u64, ops: &mut [ResolvedOp]) -> u64 {
    let last = last_uses(graph.values.len(), ops.iter().map(|op| (op.desc.kind, &*op.operands)));
    let mut offsets: Vec<Option<u64>> = vec![None; graph.values.len()];
    let mut live: Vec<Span> = Vec::new();
    let mut total = 0;
    for (index, op) in ops.iter_mut().enumerate() {
        // What was last read by an earlier op is free now; this op's own inputs are not.
        live.retain(|s| s.last >= index);
        for (i, r) in op.operands.iter().enumerate() {
            let Ref::Value(v) = *r else { continue };
            if graph.logits == Some(v) || graph.sampled.is_some_and(|sampled| sampled.contains(&v)) {
                continue;
            }
            let offset = *offsets[v].get_or_insert_with(|| {
                let bytes = operand(graph, capacity, *r).bytes().next_multiple_of(alignment);
                let offset = first_fit(&mut live, bytes, last[v]);
                total = total.max(offset + bytes);
                offset
            });
            (op.desc.operands[i].binding, op.desc.operands[i].offset) = (TS_BIND_ACTIVATIONS, offset);
        }
        if op.support.workspace_bytes > 0 {
            let bytes = op.support.workspace_bytes.next_multiple_of(alignment);
            let offset = first_fit(&mut live, bytes, index);
            total = total.max(offset + bytes);
            op.workspace = (offset, bytes);
        }
    }
    total
}

/// The lowest gap of `bytes` between live spans (kept sorted by offset).
fn first_fit(live: &mut Vec<Span>, bytes: u64, last: usize) -> u64 {
    let mut offset = 0;
    let mut at = live.len();
    for (i, span) in live.iter().enumerate() {
        if offset + bytes <= span.offset {
            at = i;
            break;
        }
        offset = offset.max(span.offset + span.bytes);
    }
    live.insert(at, Span { offset, bytes, last });
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans alive at the same time never overlap, whatever the order of sizes and lifetimes.
    #[test]
    fn live_spans_are_disjoint() {
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut live = Vec::new();
        for index in 0..2000usize {
            live.retain(|s: &Span| s.last >= index);
            first_fit(&mut live, 64 * (1 + random(40)), index + random(9) as usize);
            for pair in live.windows(2) {
                assert!(pair[0].offset + pair[0].bytes <= pair[1].offset, "{pair:?}");
            }
        }
    }
}
