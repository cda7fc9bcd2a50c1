//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//!
//! Counter-based because a draw must be a function of (seed, position, choice) alone: a stateful generator would make a
//! request's text depend on how its steps were scheduled, preempted or speculated.

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds: four random words for a 128-bit counter under a 64-bit key.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let [p0, p1] =
            [u64::from(MULTIPLIER[0]) * u64::from(counter[0]), u64::from(MULTIPLIER[1]) * u64::from(counter[2])];
        let (high0, low0, high1, low1) = ((p0 >> 32) as u32, p0 as u32, (p1 >> 32) as u32, p1 as u32);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// A number in [0, 1) with 53 random bits. Key: the seed, low word first; counter: (position, sample index, 0, 0).
pub fn uniform(seed: u64, position: u32, sample_index: u32) -> f64 {
    let words = philox4x32_10([position, sample_index, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the paper's Random123 library.
    #[test]
    fn known_answers() {
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi.0, pi.1, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn uniform_stays_in_range_and_every_input_matters() {
        let draws: Vec<f64> = (0..4000).map(|i| uniform(7, i, 0)).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / 4000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        let base = uniform(1, 2, 3);
        for other in [uniform(2, 2, 3), uniform(1 << 40 | 1, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)] {
            assert_ne!(base, other);
        }
    }
}
