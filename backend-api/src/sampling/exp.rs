//! The exponential of numbers at or below zero, in f64.
//!
//! Own code because the platform's `exp` differs between C libraries in the last bit, and sampled text must not; and
//! because this form has neither branch nor call, so that lanes of it become vector code.

/// 1.5 * 2^52: adding it rounds to an integer, which then sits in the low bits of the mantissa.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts, the first short enough for exact products with small integers.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Below this the result is 0: e^-708 is still a normal number.
const FLOOR: f64 = -708.0;
/// Taylor series, highest power first; with |r| <= ln(2)/2 the first term left out is 4e-18.
const TERMS: [f64; 14] = [
    1.0 / 6_227_020_800.0,
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
];

/// e^x for each x <= 0 (NaN excluded), within 2 units in the last place; exactly 1 at 0 and 0 below -708. Every lane
/// gives the same bits whatever N is.
#[inline(always)]
fn exp_lanes<const N: usize>(x: [f64; N]) -> [f64; N] {
    let clamped = x.map(|x| if x < FLOOR { FLOOR } else { x });
    let rounded = clamped.map(|x| x * std::f64::consts::LOG2_E + ROUNDER);
    let r: [f64; N] = std::array::from_fn(|lane| {
        let k = rounded[lane] - ROUNDER;
        (clamped[lane] - k * LN2_HIGH) - k * LN2_LOW
    });
    let mut sum = [TERMS[0]; N];
    for term in &TERMS[1..] {
        for lane in 0..N {
            sum[lane] = sum[lane] * r[lane] + term;
        }
    }
    std::array::from_fn(|lane| {
        let scale = f64::from_bits((rounded[lane].to_bits() << 52).wrapping_add(1023 << 52));
        if x[lane] < FLOOR { 0.0 } else { sum[lane] * scale }
    })
}

/// e^x for x <= 0.
pub(super) fn exp_nonpositive(x: f64) -> f64 {
    exp_lanes([x])[0]
}

/// The sum of e^((logit - max) / temperature) over a row whose largest logit is `max`.
///
/// Eight running sums, added in order at the end: a fixed order, so the same row gives the same bits everywhere, without
/// the chain of dependent additions that would keep it from being vectorised.
pub(super) fn sum_of_weights(row: &[f32], max: f32, temperature: f64) -> f64 {
    const LANES: usize = 8;
    let scaled = |logit: f32| (f64::from(logit) - f64::from(max)) / temperature;
    let mut sums = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        let weights = exp_lanes(chunk.map(scaled));
        for lane in 0..LANES {
            sums[lane] += weights[lane];
        }
    }
    sums.into_iter().chain(rest.iter().map(|&logit| exp_nonpositive(scaled(logit)))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_platform_to_two_units() {
        for i in 0..=70_800 {
            let x = -f64::from(i) * 1e-2;
            let (ours, theirs) = (exp_nonpositive(x), x.exp());
            assert!((ours - theirs).abs() <= 2.0 * f64::EPSILON * theirs, "{x}: {ours} {theirs}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-708.5), 0.0);
        assert_eq!(exp_nonpositive(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sums_every_logit_of_every_length() {
        for n in [1u8, 7, 8, 9, 40] {
            let row: Vec<f32> = (0..n).map(|i| -f32::from(i) * 0.3).collect();
            let expected: f64 = row.iter().map(|&x| (f64::from(x) / 0.5).exp()).sum();
            assert!((sum_of_weights(&row, 0.0, 0.5) - expected).abs() < 1e-14);
        }
    }
}
