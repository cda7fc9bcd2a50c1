//! Every reference against vectors that a numpy float64 script computed from the formulas (`tests/vectors/ops.py`), and
//! one seeded bug per op to show that the vectors would catch it.

use serde_json::Value;
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token, ts_table_delta},
    catalogue::{Case, CaseOperand, Role, entry},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind, ROPE_HALVES, ROPE_PAIRS},
    quant,
    step::StepData,
    tensor::Tensor,
};

/// Ops of this file; those of Kimi Linear and Kimi K3 have their own (`kimi_vectors.rs`).
fn kinds() -> impl Iterator<Item = OpKind> {
    OpKind::ALL.into_iter().filter(|k| (*k as u32) & 0xff < 16)
}

struct Vector {
    case: Case,
    /// (operand index, expected values).
    outputs: Vec<(usize, Vec<f64>)>,
}

fn load() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/ops.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).expect("ops.json is JSON");
    let cases = file["cases"].as_array().expect("cases");
    cases.iter().filter_map(vector).collect()
}

fn int(v: &Value) -> i64 {
    v.as_i64().unwrap_or_else(|| panic!("{v} is not an integer"))
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// `None` for vectors of something that is not an op (the sampler's are read by `core`).
fn vector(v: &Value) -> Option<Vector> {
    let op = v["op"].as_str().expect("op");
    let kind = OpKind::ALL.into_iter().find(|k| k.name() == op)?;
    let mut attrs = Attrs::default();
    list(&v["attrs_i"]).iter().enumerate().for_each(|(i, x)| attrs.i[i] = int(x));
    list(&v["attrs_f"]).iter().enumerate().for_each(|(i, x)| attrs.f[i] = x.as_f64().expect("float"));
    let step = step(&v["step"]);
    let spec = entry(kind).operands;
    let operands = list(&v["operands"]);
    let outputs: Vec<(usize, Vec<f64>)> = list(&v["outputs"])
        .iter()
        .map(|o| {
            let data = list(&o["data"]).iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect();
            (int(&o["index"]) as usize, data)
        })
        .collect();
    let total = outputs.iter().map(|(i, _)| i + 1).chain([operands.len()]).max().expect("operands");
    let mut case = Case { name: v["name"].as_str().unwrap_or(op).to_owned(), kind, attrs, operands: Vec::new(), step };
    for index in 0..total {
        let output = list(&v["outputs"]).iter().find(|o| o["index"].as_u64() == Some(index as u64));
        let description = operands.get(index).or(output).expect("operand");
        let dims: Vec<u64> = list(&description["dims"]).iter().map(|d| int(d) as u64).collect();
        let name = description["dtype"].as_str().unwrap_or("f32");
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap_or_else(|| panic!("dtype {name}"));
        let role = if operands.get(index).is_none() {
            Role::Out
        } else if output.is_some() {
            Role::InOut
        } else {
            Role::In
        };
        let bytes = match operands.get(index) {
            Some(o) => encode(dtype, list(&o["data"])),
            None => vec![0xff; Tensor::new(dtype, Vary::Fixed, &dims).bytes() as usize],
        };
        let last = spec.len() - 1;
        let vary = vary(kind, spec[index.min(last)].name);
        case.operands.push(CaseOperand { tensor: Tensor::new(dtype, vary, &dims), role, bytes });
    }
    Some(Vector { case, outputs })
}

fn vary(kind: OpKind, operand: &str) -> Vary {
    match operand {
        "y [L, D]" => Vary::LogitRows,
        _ if kind == OpKind::TableUpdate => Vary::Fixed,
        _ if operand.contains("[T") => Vary::Tokens,
        _ => Vary::Fixed,
    }
}

fn encode(dtype: DType, values: &[Value]) -> Vec<u8> {
    if dtype == DType::U32 {
        return values.iter().flat_map(|v| (int(v) as u32).to_ne_bytes()).collect();
    }
    let floats: Vec<f32> = values.iter().map(|v| v.as_f64().expect("number") as f32).collect();
    let mut bytes = vec![0; dtype.bytes(floats.len() as u64).expect("whole blocks") as usize];
    quant::quantize_row(dtype, &floats, &mut bytes);
    bytes
}

fn step(v: &Value) -> StepData {
    let field = |o: &Value, name: &str| o[name].as_i64().unwrap_or(0) as u32;
    StepData {
        sequence: 1,
        rows: list(&v["rows"])
            .iter()
            .map(|r| ts_step_row {
                table_row: field(r, "table_row"),
                computed: field(r, "computed"),
                query_start: field(r, "query_start"),
                query_len: field(r, "query_len"),
                ..Default::default()
            })
            .collect(),
        tokens: list(&v["tokens"])
            .iter()
            .map(|t| ts_step_token {
                id: t["id"].as_i64().unwrap_or(0) as i32,
                position: field(t, "position"),
                row: field(t, "row"),
                reserved: 0,
            })
            .collect(),
        logit_rows: list(&v["logit_rows"]).iter().map(|x| int(x) as u32).collect(),
        deltas: list(&v["deltas"])
            .iter()
            .map(|d| ts_table_delta {
                component: field(d, "component"),
                table_row: field(d, "table_row"),
                index: field(d, "index"),
                block: field(d, "block"),
            })
            .collect(),
    }
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
        // Data moved is exact; a computed value is the float64 answer rounded once to f32, give or take one rounding
        // where numpy sums in another order.
        let rms = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64).sqrt();
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            let ok = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= 1.2e-7 * e.abs() + 1e-9 * rms;
            if !ok {
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

/// What a plausible mistake in each op would read instead.
fn seed_bug(case: &mut Case) {
    let negate = |o: &mut CaseOperand| o.bytes.iter_mut().skip(3).step_by(4).for_each(|b| *b ^= 0x80);
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
        OpKind::RowGather => case.step.logit_rows.iter_mut().for_each(|r| *r = r.saturating_sub(1)),
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
