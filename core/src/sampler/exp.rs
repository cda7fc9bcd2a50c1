//! The exponential of numbers at or below zero, in f64.
//!
//! Own code because the platform's `exp` differs between C libraries in the last bit, and sampled text must not; and
//! because this form has no branch or call, so the compiler vectorises the sum over a vocabulary.

/// e^x for x <= 0 (NaN excluded), within 2 units in the last place; exactly 1 at 0 and 0 below -708.
#[inline]
pub fn exp_nonpositive(x: f64) -> f64 {
    // 1.5 * 2^52: adding it rounds to an integer, which then sits in the low bits of the mantissa.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let clamped = x.max(-708.0);
    let rounded = clamped * std::f64::consts::LOG2_E + ROUNDER;
    let k = rounded - ROUNDER;
    let r = (clamped - k * LN2_HIGH) - k * LN2_LOW;
    // Taylor series: |r| <= ln(2)/2 makes the first term left out 4e-18.
    let mut sum = 1.0 / 6_227_020_800.0;
    for coefficient in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * r + coefficient;
    }
    let scale = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1023 << 52));
    if x < -708.0 { 0.0 } else { sum * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_platform_to_two_units() {
        for i in 0..=708_000 {
            let x = -f64::from(i) * 1e-3;
            let (ours, theirs) = (exp_nonpositive(x), x.exp());
            assert!((ours - theirs).abs() <= 2.0 * f64::EPSILON * theirs, "{x}: {ours} {theirs}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-708.5), 0.0);
        assert_eq!(exp_nonpositive(f64::NEG_INFINITY), 0.0);
    }
}
