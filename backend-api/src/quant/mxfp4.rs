//! OCP MXFP4: 32 E2M1 values share one E8M0 scale, kept in a tensor of its own.
//!
//! Element 2j of a row is the low nibble of byte j, element 2j + 1 the high one; bit 3 is the sign. A value is
//! E2M1 · 2^(scale − 127); scale 255 is NaN. The product is exact in f32 unless it overflows.
//! Source: OCP Microscaling Formats 1.0, and the `mxfp4-pack-quantized` format of compressed-tensors.

/// Values that share a scale.
pub const GROUP: usize = 32;

const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// `2^(code − 127)`, NaN for 255.
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Decode one row of `out.len()` values.
///
/// # Panics
/// If `packed` is not `out.len() / 2` bytes or `scales` not `out.len() / 32`.
pub fn decode_row(packed: &[u8], scales: &[u8], out: &mut [f32]) {
    assert!(packed.len() * 2 == out.len() && scales.len() * GROUP == out.len(), "an MXFP4 row of {} values", out.len());
    for ((values, bytes), scale) in out.chunks_exact_mut(GROUP).zip(packed.chunks_exact(GROUP / 2)).zip(scales) {
        let scale = e8m0_to_f32(*scale);
        for (pair, byte) in values.chunks_exact_mut(2).zip(bytes) {
            pair[0] = E2M1[usize::from(byte & 15)] * scale;
            pair[1] = E2M1[usize::from(byte >> 4)] * scale;
        }
    }
}

/// Encode one row: the scale puts the largest magnitude of a group between 4 and 8, values go to the nearest code,
/// the lower one on a tie, and saturate at 6.
///
/// # Panics
/// As [`decode_row`].
pub fn encode_row(values: &[f32], packed: &mut [u8], scales: &mut [u8]) {
    let n = values.len();
    assert!(packed.len() * 2 == n && scales.len() * GROUP == n, "an MXFP4 row of {n} values");
    for ((group, bytes), scale) in values.chunks_exact(GROUP).zip(packed.chunks_exact_mut(GROUP / 2)).zip(scales) {
        let largest = group.iter().fold(0f32, |m, v| m.max(v.abs()));
        // The exponent field of a normal f32 is floor(log2) + 127; two less leaves mantissas below 8.
        let exponent = (largest.to_bits() >> 23).saturating_sub(2).clamp(1, 254) as u8;
        *scale = exponent;
        let unit = e8m0_to_f32(exponent);
        for (pair, byte) in group.chunks_exact(2).zip(bytes) {
            *byte = nearest(pair[0] / unit) | nearest(pair[1] / unit) << 4;
        }
    }
}

fn nearest(value: f32) -> u8 {
    let magnitude = value.abs().min(6.0);
    let code = (0..8u8).min_by(|a, b| {
        let distance = |c: &u8| (E2M1[usize::from(*c)] - magnitude).abs();
        distance(a).total_cmp(&distance(b))
    });
    code.expect("eight codes") | if value < 0.0 { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_nibble_comes_first_and_bit_3_is_the_sign() {
        let mut packed = [0u8; 16];
        packed[0] = 0xa1;
        let mut out = [0f32; 32];
        decode_row(&packed, &[128], &mut out);
        assert_eq!(out[..3], [1.0, -2.0, 0.0]);
    }

    #[test]
    fn every_scale_is_its_power_of_two() {
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(e8m0_to_f32(255).is_nan());
    }

    #[test]
    fn representable_rows_survive_a_round_trip() {
        let values: Vec<f32> = (0..64).map(|i| E2M1[i % 16] * if i < 32 { 0.25 } else { 8.0 }).collect();
        let (mut packed, mut scales, mut back) = ([0u8; 32], [0u8; 2], [0f32; 64]);
        encode_row(&values, &mut packed, &mut scales);
        decode_row(&packed, &scales, &mut back);
        assert_eq!(back[..], values[..]);
    }
}
