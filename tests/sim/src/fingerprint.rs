//! The model: a history of tokens is a fingerprint, and logits are a function of it.
//!
//! A fingerprint depends on every token, their order and the salt, so two histories that differ anywhere have different
//! fingerprints (up to chance in 2^64), and a row or state of another history is recognised whatever it is.

/// Fingerprint of no tokens under a salt. Salts may not share anything, so they have different histories.
pub fn start(salt: Option<&str>) -> u64 {
    let seed = 0x9e37_79b9_7f4a_7c15;
    match salt {
        None => seed,
        Some(text) => text.bytes().fold(mix(seed, 1), |f, byte| mix(f, u32::from(byte) + 2)),
    }
}

/// Fingerprint of a history and one more token.
pub fn mix(fingerprint: u64, token: u32) -> u64 {
    let mut x = fingerprint.rotate_left(7) ^ (u64::from(token) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 29
}

/// Logits after a history. Columns from `n_ids` on are padding of the head: large or not a number, never to be looked at.
pub fn logits(fingerprint: u64, n_ids: usize, row: &mut [f32]) {
    for (id, logit) in row.iter_mut().enumerate() {
        let bits = mix(fingerprint, id as u32);
        *logit = match (id < n_ids, bits & 1) {
            (true, _) => (bits >> 40) as f32 / (1 << 24) as f32 * 8.0 - 3.0,
            (false, 0) => 1e9,
            (false, _) => f32::NAN,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_matters() {
        let of = |salt, tokens: &[u32]| tokens.iter().fold(start(salt), |f, &t| mix(f, t));
        let base = of(None, &[1, 2, 3]);
        let others = [
            of(Some(""), &[1, 2, 3]),
            of(Some("a"), &[1, 2, 3]),
            of(None, &[1, 3, 2]),
            of(None, &[1, 2]),
            of(None, &[1, 2, 3, 0]),
            of(None, &[0, 1, 2, 3]),
        ];
        assert!(others.iter().all(|&other| other != base));
    }
}
