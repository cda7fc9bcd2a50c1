//! OCP FP8 E4M3 ("e4m3fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinities, NaN = 0x7f and 0xff, largest
//! value 448. Not the "fnuz" variant of some accelerators, whose bias and NaN differ: a backend converts.

/// Decode one code; every finite value is exact in f32.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let sign = (u32::from(code) & 0x80) << 24;
    let magnitude = u32::from(code) & 0x7f;
    let (exponent, mantissa) = (magnitude >> 3, magnitude & 7);
    match (exponent, mantissa) {
        (15, 7) => f32::from_bits(sign | 0x7fc0_0000),
        // Subnormals are multiples of 2^-9.
        (0, _) => f32::from_bits(sign | (mantissa as f32 / 512.0).to_bits()),
        _ => f32::from_bits(sign | (exponent + 120) << 23 | mantissa << 20),
    }
}

/// Nearest code, halves to even; finite values beyond 448 and infinities saturate (as ML frameworks' saturating cast),
/// NaN stays NaN.
pub fn e4m3_from_f32(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7f;
    }
    if magnitude >= 448.0 {
        return sign | 0x7e;
    }
    if magnitude < 1.0 / 64.0 {
        // Below the smallest normal: round to a multiple of 2^-9; 8 is the code of the smallest normal itself.
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    // Round the 23-bit mantissa to 3 bits in place; a carry runs into the exponent, as it should.
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    let code = (rounded >> 20) - (120 << 3);
    sign | code.min(0x7e) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case "e4m3fn read as e4m3fnuz": 0x80 is minus zero, not NaN; the largest value is 448; 0x38 is 1.
    #[test]
    fn landmarks() {
        assert_eq!(e4m3_to_f32(0x80).to_bits(), (-0.0f32).to_bits());
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x38), 1.0);
        assert_eq!(e4m3_to_f32(0x01), 1.0 / 512.0);
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
    }

    #[test]
    fn every_code_returns() {
        for code in 0..=255u8 {
            if code & 0x7f != 0x7f {
                assert_eq!(e4m3_from_f32(e4m3_to_f32(code)), code, "code {code:#x}");
            }
        }
        assert_eq!(e4m3_from_f32(f32::NAN) & 0x7f, 0x7f);
        assert_eq!(e4m3_from_f32(f32::INFINITY), 0x7e);
        assert_eq!(e4m3_from_f32(-1e9), 0xfe);
    }

    /// Nearest, ties to even, against a search over all codes.
    #[test]
    fn rounds_to_nearest_even() {
        let mut probes = Vec::new();
        for code in 0..0x7eu8 {
            let (low, high) = (e4m3_to_f32(code), e4m3_to_f32(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(e4m3_from_f32(middle), code + (code & 1), "tie above {code:#x}");
            probes.extend([middle.next_down(), middle.next_up(), low + (high - low) * 0.3]);
        }
        for probe in probes {
            let best =
                (0..0x7fu8).min_by(|a, b| (e4m3_to_f32(*a) - probe).abs().total_cmp(&(e4m3_to_f32(*b) - probe).abs()));
            assert_eq!(Some(e4m3_from_f32(probe)), best, "{probe}");
            assert_eq!(Some(e4m3_from_f32(-probe) ^ 0x80), best, "-{probe}");
        }
    }
}
