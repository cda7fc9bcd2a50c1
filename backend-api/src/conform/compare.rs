//! How far an output is from the reference.

use crate::{catalogue::Tolerance, dtype::DType, quant, tensor::Tensor};

/// Distance of one output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    /// Σ(a−b)² / Σb².
    pub nmse: f64,
    /// Largest |a−b| over the rms of the reference.
    pub max_error: f64,
}

impl Distance {
    /// The worse of both, figure by figure.
    pub fn worse(self, other: Self) -> Self {
        Self { nmse: self.nmse.max(other.nmse), max_error: self.max_error.max(other.max_error) }
    }
}

/// Compare `got` with `expected`, both the bytes of `tensor` cut to the step's count. `Err` says what is out of bounds. A
/// tolerance of zero asks for equal numbers; the sign of a zero is free.
pub fn compare(tensor: &Tensor, got: &[u8], expected: &[u8], tolerance: Tolerance) -> Result<Distance, String> {
    if got == expected {
        return Ok(Distance::default());
    }
    if matches!(tensor.dtype, DType::U32 | DType::I32) {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        return Err(format!("byte {at} of {:?} differs, and this op must be exact", tensor.dims()));
    }
    let (got, expected) = (values(tensor.dtype, got), values(tensor.dtype, expected));
    let (mut error, mut power, mut largest, mut at) = (0f64, 0f64, 0f64, 0);
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        let (g, e) = (f64::from(*g), f64::from(*e));
        let difference = if g == e || (g.is_nan() && e.is_nan()) { 0.0 } else { (g - e).abs() };
        // A NaN or infinity where a number belongs is infinitely wrong.
        let difference = if difference.is_finite() { difference } else { f64::INFINITY };
        if difference > largest {
            (largest, at) = (difference, i);
        }
        error += difference * difference;
        power += if e.is_finite() { e * e } else { 0.0 };
    }
    let rms = (power / expected.len().max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
    let distance = Distance { nmse: error / power.max(f64::MIN_POSITIVE), max_error: largest / rms };
    if distance.nmse <= tolerance.nmse && distance.max_error <= tolerance.max_error {
        return Ok(distance);
    }
    Err(format!(
        "value {at} is {}, expected {} (NMSE {:.1e} of {:.1e}, largest error {:.1e} of {:.1e} rms)",
        got[at], expected[at], distance.nmse, tolerance.nmse, distance.max_error, tolerance.max_error
    ))
}

fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    quant::dequantize_row(dtype, bytes, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalogue::REDUCTION, graph::Vary};

    #[test]
    fn small_noise_passes_and_a_wrong_value_does_not() {
        let tensor = Tensor::new(DType::F32, Vary::Fixed, &[1, 64]);
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let expected: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
        let mut got = expected.clone();
        got[5] += 1e-6;
        assert!(compare(&tensor, &bytes(&got), &bytes(&expected), REDUCTION).is_ok());
        got[5] += 1e-3;
        let message = compare(&tensor, &bytes(&got), &bytes(&expected), REDUCTION).unwrap_err();
        assert!(message.starts_with("value 5 is"), "{message}");
        got[5] = f32::NAN;
        assert!(compare(&tensor, &bytes(&got), &bytes(&expected), REDUCTION).is_err());
    }
}
