//! The ops of Kimi Linear and Kimi K3 against vectors that a numpy float64 script computed from the formulas
//! (`tests/vectors/kimi_ops.py`), one seeded bug per op to show that the vectors would catch it, and every decomposition
//! against its fused op.

use serde_json::Value;
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    catalogue::{CATALOGUE, Case, CaseOperand, Role, entry},
    dtype::DType,
    graph::{Graph, GraphOp, Ref, Vary},
    op::{Attrs, OpKind},
    quant,
    step::StepData,
    tensor::Tensor,
};

fn kinds() -> impl Iterator<Item = OpKind> {
    OpKind::ALL.into_iter().filter(|k| (*k as u32) & 0xff >= 16)
}

struct Vector {
    case: Case,
    /// (operand index, expected values).
    outputs: Vec<(usize, Vec<f64>)>,
}

fn load() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/kimi_ops.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).expect("kimi_ops.json is JSON");
    list(&file["cases"]).iter().map(vector).collect()
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

fn numbers(v: &Value) -> Vec<f64> {
    list(v).iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn vector(v: &Value) -> Vector {
    let name = v["op"].as_str().expect("op");
    let kind = OpKind::ALL.into_iter().find(|k| k.name() == name).unwrap_or_else(|| panic!("op {name}"));
    let mut attrs = Attrs::default();
    numbers(&v["attrs_i"]).iter().zip(&mut attrs.i).for_each(|(x, slot)| *slot = *x as i64);
    numbers(&v["attrs_f"]).iter().zip(&mut attrs.f).for_each(|(x, slot)| *slot = *x);
    let mut case = Case {
        name: v["name"].as_str().expect("name").to_owned(),
        kind,
        attrs,
        operands: list(&v["operands"]).iter().map(|o| operand(o, Role::In)).collect(),
        step: step(&v["step"]),
    };
    let mut outputs = Vec::new();
    for o in list(&v["outputs"]) {
        let index = o["index"].as_u64().expect("index") as usize;
        match case.operands.get_mut(index) {
            Some(operand) => operand.role = Role::InOut,
            None => case.operands.push(operand(o, Role::Out)),
        }
        outputs.push((index, numbers(&o["data"])));
    }
    Vector { case, outputs }
}

fn operand(v: &Value, role: Role) -> CaseOperand {
    let name = v["dtype"].as_str().expect("dtype");
    let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap_or_else(|| panic!("dtype {name}"));
    let dims: Vec<u64> = numbers(&v["dims"]).into_iter().map(|d| d as u64).collect();
    let vary = if v["vary"] == "tokens" { Vary::Tokens } else { Vary::Fixed };
    let tensor = Tensor::new(dtype, vary, &dims);
    let data = numbers(&v["data"]);
    let bytes = match (role, dtype) {
        (Role::Out, _) => vec![0xff; tensor.bytes() as usize],
        (_, DType::U32) => data.iter().flat_map(|x| (*x as u32).to_ne_bytes()).collect(),
        (_, DType::U8) => data.iter().map(|x| *x as u8).collect(),
        // Codes in element order: the low nibble first.
        (_, DType::Mxfp4) => data.chunks_exact(2).map(|pair| pair[0] as u8 | (pair[1] as u8) << 4).collect(),
        _ => data.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
    };
    CaseOperand { tensor, role, bytes }
}

fn step(v: &Value) -> StepData {
    let field = |o: &Value, name: &str| o[name].as_u64().expect("step field") as u32;
    let row = |r: &Value| ts_step_row {
        table_row: field(r, "table_row"),
        computed: field(r, "computed"),
        query_start: field(r, "query_start"),
        query_len: field(r, "query_len"),
        state_read: field(r, "state_read"),
        state_write: field(r, "state_write"),
        state_tokens: field(r, "computed"),
        reserved: 0,
    };
    let token = |t: &Value| ts_step_token { id: 0, position: field(t, "position"), row: field(t, "row"), reserved: 0 };
    StepData {
        sequence: 1,
        rows: list(&v["rows"]).iter().map(row).collect(),
        tokens: list(&v["tokens"]).iter().map(token).collect(),
        ..StepData::default()
    }
}

/// Several values are rounded on the way to an output of these; one of them may fall on the other side where numpy sums
/// in another order.
fn rounds_inside(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(kind, KdaStep | KdaVerify | KdaReplay | KdaChunk | Experts | GatedRmsNorm | SigmoidMul)
}

/// The first disagreement between the reference and the vector.
fn check(case: &Case, outputs: &[(usize, Vec<f64>)]) -> Result<(), String> {
    let results = case.run_reference(2);
    for (index, expected) in outputs {
        let dtype = case.operands[*index].tensor.dtype;
        let got: Vec<f64> = if dtype == DType::U32 {
            results[*index].as_chunks::<4>().0.iter().map(|b| f64::from(u32::from_ne_bytes(*b))).collect()
        } else {
            let mut values = vec![0f32; expected.len()];
            quant::dequantize_row(dtype, &results[*index], &mut values);
            values.into_iter().map(f64::from).collect()
        };
        let rms = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64).sqrt();
        let absolute = if rounds_inside(case.kind) { 1e-6 } else { 1e-9 };
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            let close = (g - e).abs() <= 1.2e-7 * e.abs() + absolute * rms;
            if g != e && !close {
                return Err(format!("{} {}: operand {index}[{i}] is {g}, expected {e}", case.kind, case.name));
            }
        }
    }
    Ok(())
}

#[test]
fn references_agree_with_numpy() {
    let vectors = load();
    for kind in kinds() {
        let of_kind: Vec<_> = vectors.iter().filter(|v| v.case.kind == kind).collect();
        assert!(!of_kind.is_empty(), "no vector for {kind}");
        for v in of_kind {
            v.case.desc().check().unwrap_or_else(|e| panic!("{}: {e}", v.case.name));
            check(&v.case, &v.outputs).unwrap();
        }
    }
}

/// What a plausible mistake in each op would read or write instead.
fn seed_bug(case: &mut Case) {
    let negate = |o: &mut CaseOperand| o.bytes.iter_mut().skip(3).step_by(4).for_each(|b| *b ^= 0x80);
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
        OpKind::KdaStep | OpKind::KdaVerify | OpKind::KdaChunk | OpKind::KdaReplay => fresh(case),
        OpKind::KdaRecord => case.operands.swap(1, 2),
        OpKind::MlaAbsorb | OpKind::MlaValue => negate(&mut case.operands[1]),
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
        // Every expert at its own id.
        OpKind::Experts => {
            let identity = 0..case.operands[3].tensor.dims[0] as u32;
            case.operands[3].bytes = identity.flat_map(u32::to_ne_bytes).collect();
        }
        other => unreachable!("{other} is not one of this file's"),
    }
}

#[test]
fn one_seeded_bug_per_op_is_caught() {
    let vectors = load();
    for kind in kinds() {
        let caught = vectors.iter().filter(|v| v.case.kind == kind).any(|v| {
            let mut case = v.case.clone();
            seed_bug(&mut case);
            check(&case, &v.outputs).is_err()
        });
        assert!(caught, "no vector notices a broken {kind}");
    }
}

/// Every fused op's decomposition computes what the fused reference computes, within the op's tolerance; bit for bit
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
    let parts = entry(case.kind).decompose.expect("asked for")(&op, &mut graph);
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
