//! (a) Every op of every kind of step, fed the reference's inputs.

use tokenspeed_backend_api::{
    catalogue::{self, Role},
    dtype::DType,
    quant,
    step::StepView,
};

use super::{FP8, LENGTHS, Lengths, Model, REPLAY, Turn};
use crate::{gfx950::emulated, support::lockstep::Fused};

pub(super) fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    quant::dequantize_row(dtype, bytes, &mut out);
    out
}

/// NMSE, and the largest error relative to the reference's rms; of caches and states, which hold few large numbers among
/// many small ones, relative to the largest.
fn distance(ours: &[f32], reference: &[f32], role: Role) -> (f64, f64) {
    let (mut error, mut power, mut largest) = (0f64, 0f64, 0f64);
    for (a, b) in ours.iter().zip(reference) {
        let d = if a == b { 0.0 } else { f64::from(a - b).abs() };
        (error, power, largest) = (error + d * d, power + f64::from(*b).powi(2), largest.max(d));
    }
    let power = power.max(f64::MIN_POSITIVE);
    let rms = (power / reference.len().max(1) as f64).sqrt();
    let peak = reference.iter().fold(0f64, |m, b| m.max(f64::from(b.abs())));
    (error / power, largest / if role == Role::InOut { peak.max(f64::MIN_POSITIVE) } else { rms })
}

fn each_op(options: &[(&str, &str)], latent: DType, decoded: usize) {
    let plugin = emulated(true);
    let mut model = Model::new(&plugin, options, Fused::Both, latent, Lengths { decoded, ..LENGTHS });
    let turns = model.turns();
    let [cpu, gpu] = &mut model.sides;
    // One round of guesses.
    let last = turns.iter().position(|turn| turn.program == REPLAY).expect("a round");
    for Turn { program, step } in &turns[..=last] {
        let block = step.to_bytes();
        let view = StepView::new(&block).unwrap();
        cpu.begin(*program, step);
        gpu.begin(*program, step);
        for index in 0..cpu.n_ops() {
            let (kind, label) = (cpu.op(index).0, cpu.op(index).1.to_owned());
            let operands = cpu.operands(index, &view);
            for (operand, role, tensor) in &operands {
                if *role != Role::Out {
                    gpu.write(index, *operand, &cpu.read(index, *operand, tensor));
                }
            }
            cpu.run(index);
            gpu.run(index);
            for (operand, role, tensor) in operands.iter().filter(|(_, role, _)| *role != Role::In) {
                let [a, b] = [&*gpu, &*cpu].map(|side| side.read(index, *operand, tensor));
                if tensor.dtype == DType::U32 || tensor.dtype == DType::I32 {
                    assert_eq!(a, b, "{kind} {label}, operand {operand} {role:?}");
                    continue;
                }
                let (nmse, largest) = distance(&values(tensor.dtype, &a), &values(tensor.dtype, &b), *role);
                let n = tensor.dims().iter().product::<u64>() as usize;
                // The CPU's fast kernels are off by their own share.
                let allowed = catalogue::entry(kind).tolerance.under(gpu.rounding(index), n);
                let (nmse_max, max) = (4.0 * allowed.nmse.max(1e-9), 2.0 * allowed.max_error.max(1e-4));
                assert!(
                    nmse <= nmse_max && largest <= max,
                    "{kind} {label}, operand {operand} {role:?}: NMSE {nmse:.1e}, largest {largest:.1e}"
                );
            }
        }
    }
}

#[test]
fn each_op_given_the_references_inputs() {
    each_op(&[], DType::BF16, 2);
}

#[test]
fn each_op_in_f32_and_with_an_fp8_cache() {
    each_op(&[("precision", "f32")], DType::F32, 1);
    each_op(&[], DType::F8E4M3, 1);
}

#[test]
fn each_op_of_e4m3_factors() {
    each_op(FP8, DType::BF16, 1);
}
