//! Every decomposition against its fused op.

use tokenspeed_backend_api::{
    catalogue::{CATALOGUE, Case, CaseOperand, Role, basic},
    graph::{Graph, GraphOp, Ref, Vary},
    op::OpKind,
    tensor::Tensor,
};

/// Every fused op's decomposition into basic ops computes what the fused reference computes, within the op's tolerance; bit for bit
/// except where the fused op is another algorithm.
#[test]
fn decompositions_agree_with_their_ops() {
    for e in CATALOGUE.iter().filter(|e| e.decompose.is_some()) {
        for case in (e.cases)(5) {
            let expected = case.run_reference(1);
            let got = decomposed(&case);
            for (i, (operand, expected)) in case.operands.iter().zip(&expected).enumerate() {
                if operand.role == Role::In || got[i] == *expected {
                    continue;
                }
                assert_eq!(e.kind, OpKind::KdaChunk, "{} {}: operand {i} has other bits", e.kind, case.name);
                let floats =
                    |b: &[u8]| -> Vec<f32> { b.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect() };
                let worst = floats(&got[i]).iter().zip(floats(expected)).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(worst <= 1e-5, "{} {}: {worst}", e.kind, case.name);
            }
        }
    }
}

/// The case's operands after running its decomposition, op by op.
fn decomposed(case: &Case) -> Vec<Vec<u8>> {
    let mut graph = Graph::default();
    let mut refs = Vec::new();
    for (i, o) in case.operands.iter().enumerate() {
        let dims = o.tensor.dims();
        refs.push(match o.tensor.vary {
            Vary::Fixed => graph.weight(format!("{i}"), dims, o.tensor.dtype),
            vary => graph.value(format!("{i}"), vary, &dims[1..], o.tensor.dtype),
        });
    }
    let op = GraphOp { kind: case.kind, attrs: case.attrs, operands: refs.clone(), label: case.name.clone() };
    let parts = basic(op, &mut graph);
    assert!(parts.iter().all(|part| !part.kind.is_fused()), "{}", case.name);
    let mut buffers: Vec<(Ref, CaseOperand)> = refs.into_iter().zip(case.operands.iter().cloned()).collect();
    for part in parts {
        for r in &part.operands {
            if let Ref::Value(v) = r
                && !buffers.iter().any(|(known, _)| known == r)
            {
                let spec = &graph.values[*v];
                let dims = [&[case.step.tokens.len() as u64], &spec.inner[..]].concat();
                let tensor = Tensor::new(spec.dtype, spec.vary, &dims);
                buffers.push((*r, CaseOperand { tensor, role: Role::Out, bytes: vec![0xff; tensor.bytes() as usize] }));
            }
        }
        let index = |r: &Ref| buffers.iter().position(|(known, _)| known == r).expect("made above");
        let places: Vec<usize> = part.operands.iter().map(index).collect();
        let single = Case {
            name: part.label.clone(),
            kind: part.kind,
            attrs: part.attrs,
            operands: places.iter().map(|i| buffers[*i].1.clone()).collect(),
            step: case.step.clone(),
        };
        single.desc().check().unwrap_or_else(|m| panic!("{m}"));
        places.iter().zip(single.run_reference(1)).for_each(|(i, bytes)| buffers[*i].1.bytes = bytes);
    }
    buffers.into_iter().take(case.operands.len()).map(|(_, o)| o.bytes).collect()
}
