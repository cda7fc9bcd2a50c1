//! Vectors as the scripts write them, and how a reference is held against one.

use serde_json::Value;
use tokenspeed_backend_api::{
    abi::{ts_sample, ts_step_row, ts_step_token, ts_table_delta},
    catalogue::{Case, CaseOperand, Role, entry},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    quant,
    step::StepData,
    tensor::Tensor,
};

pub struct Vector {
    pub case: Case,
    /// (operand index, expected values).
    pub outputs: Vec<(usize, Vec<f64>)>,
}

/// A file of `tests/vectors`; `vary` says what dimension 0 of an operand counts, from its description in the file and
/// in the catalogue. Vectors of something that is not an op are skipped (the sampler's are read by `core`).
pub fn load(file: &str, vary: fn(OpKind, &Value, &str) -> Vary) -> Vec<Vector> {
    let path = format!("{}/../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let file: Value = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    list(&file["cases"]).iter().filter_map(|v| vector(v, vary)).collect()
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// JSON has no word for NaN: null.
fn numbers(v: &Value) -> Vec<f64> {
    list(v).iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

fn vector(v: &Value, vary: fn(OpKind, &Value, &str) -> Vary) -> Option<Vector> {
    let op = v["op"].as_str().expect("op");
    let kind = OpKind::ALL.into_iter().find(|k| k.name() == op)?;
    let mut attrs = Attrs::default();
    numbers(&v["attrs_i"]).iter().zip(&mut attrs.i).for_each(|(x, slot)| *slot = *x as i64);
    numbers(&v["attrs_f"]).iter().zip(&mut attrs.f).for_each(|(x, slot)| *slot = *x);
    let spec = entry(kind).operands;
    let vary = |index: usize, o: &Value| vary(kind, o, spec[index.min(spec.len() - 1)].name);
    let inputs = list(&v["operands"]).iter().enumerate();
    let mut case = Case {
        name: v["name"].as_str().unwrap_or(op).to_owned(),
        kind,
        attrs,
        operands: inputs.map(|(i, o)| operand(o, vary(i, o), Role::In)).collect(),
        step: step(&v["step"]),
    };
    let mut outputs = Vec::new();
    for o in list(&v["outputs"]) {
        let index = o["index"].as_u64().expect("index") as usize;
        match case.operands.get_mut(index) {
            Some(operand) => operand.role = Role::InOut,
            None => case.operands.push(operand(o, vary(index, o), Role::Out)),
        }
        outputs.push((index, numbers(&o["data"])));
    }
    Some(Vector { case, outputs })
}

fn operand(v: &Value, vary: Vary, role: Role) -> CaseOperand {
    let name = v["dtype"].as_str().unwrap_or("f32");
    let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap_or_else(|| panic!("dtype {name}"));
    let dims: Vec<u64> = numbers(&v["dims"]).into_iter().map(|d| d as u64).collect();
    let tensor = Tensor::new(dtype, vary, &dims);
    let bytes = match role {
        Role::Out => vec![0xff; tensor.bytes() as usize],
        Role::In | Role::InOut => encode(dtype, &numbers(&v["data"])),
    };
    CaseOperand { tensor, role, bytes }
}

fn encode(dtype: DType, data: &[f64]) -> Vec<u8> {
    match dtype {
        DType::I32 => data.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect(),
        DType::U32 => data.iter().flat_map(|x| (*x as u32).to_ne_bytes()).collect(),
        DType::U8 => data.iter().map(|x| *x as u8).collect(),
        // Codes in element order: the low nibble first.
        DType::Mxfp4 => data.chunks_exact(2).map(|pair| pair[0] as u8 | (pair[1] as u8) << 4).collect(),
        _ => {
            let floats: Vec<f32> = data.iter().map(|x| *x as f32).collect();
            let mut bytes = vec![0; dtype.bytes(floats.len() as u64).expect("whole blocks") as usize];
            quant::quantize_row(dtype, &floats, &mut bytes);
            bytes
        }
    }
}

/// What a script leaves out is 0.
fn step(v: &Value) -> StepData {
    let field = |o: &Value, name: &str| o[name].as_i64().unwrap_or(0) as u32;
    let row = |r: &Value| ts_step_row {
        table_row: field(r, "table_row"),
        computed: field(r, "computed"),
        query_start: field(r, "query_start"),
        query_len: field(r, "query_len"),
        state_read: field(r, "state_read"),
        state_write: field(r, "state_write"),
        state_tokens: field(r, "computed"),
        branch_offset: field(r, "branch_offset"),
    };
    let token = |t: &Value| ts_step_token {
        id: field(t, "id").cast_signed(),
        position: field(t, "position"),
        row: field(t, "row"),
        reserved: 0,
    };
    let delta = |d: &Value| ts_table_delta {
        component: field(d, "component"),
        table_row: field(d, "table_row"),
        index: field(d, "index"),
        block: field(d, "block"),
    };
    let float = |s: &Value, name: &str| s[name].as_f64().unwrap_or(0.0) as f32;
    let sample = |s: &Value| ts_sample {
        temperature: float(s, "temperature"),
        top_p: float(s, "top_p"),
        min_p: float(s, "min_p"),
        repetition_penalty: float(s, "repetition_penalty"),
        frequency_penalty: float(s, "frequency_penalty"),
        presence_penalty: float(s, "presence_penalty"),
        top_k: field(s, "top_k"),
        n_logprobs: field(s, "n_logprobs"),
        seed: s["seed"].as_u64().unwrap_or(0),
        position: field(s, "position"),
        sample_index: field(s, "sample_index"),
        counts_handle: field(s, "counts_handle"),
        bias_handle: field(s, "bias_handle"),
        mask_handle: field(s, "mask_handle"),
        relay_slot: field(s, "relay_slot"),
    };
    StepData {
        sequence: 1,
        rows: list(&v["rows"]).iter().map(row).collect(),
        tokens: list(&v["tokens"]).iter().map(token).collect(),
        logit_rows: numbers(&v["logit_rows"]).into_iter().map(|x| x as u32).collect(),
        deltas: list(&v["deltas"]).iter().map(delta).collect(),
        samples: list(&v["samples"]).iter().map(sample).collect(),
    }
}

/// The first disagreement between the reference and the vector.
///
/// Data moved is exact; a computed value is the float64 answer rounded once to f32, give or take one rounding where numpy
/// sums in another order, and `absolute` times the root mean square of the whole.
pub fn check(case: &Case, outputs: &[(usize, Vec<f64>)], absolute: f64) -> Result<(), String> {
    let results = case.run_reference(2);
    for (index, expected) in outputs {
        let dtype = case.operands[*index].tensor.dtype;
        let got: Vec<f64> = if dtype == DType::I32 {
            results[*index].as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_ne_bytes(*b))).collect()
        } else if dtype == DType::U32 {
            results[*index].as_chunks::<4>().0.iter().map(|b| f64::from(u32::from_ne_bytes(*b))).collect()
        } else {
            let mut values = vec![0f32; expected.len()];
            quant::dequantize_row(dtype, &results[*index], &mut values);
            values.into_iter().map(f64::from).collect()
        };
        let rms = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64).sqrt();
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            let ok = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= 1.2e-7 * e.abs() + absolute * rms;
            if !ok {
                return Err(format!("{} {}: operand {index}[{i}] is {g}, expected {e}", case.kind, case.name));
            }
        }
    }
    Ok(())
}

/// Every kind has vectors, and its reference agrees with all of them.
pub fn all_agree(vectors: &[Vector], kinds: impl Iterator<Item = OpKind>, absolute: fn(OpKind) -> f64) {
    for kind in kinds {
        let of_kind: Vec<_> = vectors.iter().filter(|v| v.case.kind == kind).collect();
        assert!(!of_kind.is_empty(), "no vector for {kind}");
        for v in of_kind {
            v.case.desc().check().unwrap_or_else(|e| panic!("{}: {e}", v.case.name));
            check(&v.case, &v.outputs, absolute(kind)).unwrap();
        }
    }
}

/// For every kind, some vector notices the bug that `seed` puts into a case.
pub fn each_bug_is_caught(
    vectors: &[Vector],
    kinds: impl Iterator<Item = OpKind>,
    absolute: fn(OpKind) -> f64,
    seed: fn(&mut Case),
) {
    for kind in kinds {
        let caught = vectors.iter().filter(|v| v.case.kind == kind).any(|v| {
            let mut case = v.case.clone();
            seed(&mut case);
            check(&case, &v.outputs, absolute(kind)).is_err()
        });
        assert!(caught, "no vector notices a broken {kind}");
    }
}

/// The sign of every f32 the other way.
pub fn negate(operand: &mut CaseOperand) {
    operand.bytes.iter_mut().skip(3).step_by(4).for_each(|b| *b ^= 0x80);
}
