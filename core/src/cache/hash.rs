//! The keyed hash chain over whole pages of tokens: SipHash-2-4 (Aumasson and Bernstein, 2012).
//!
//! Keyed with an injected secret so that nobody outside can aim collisions at the index; a hit is believed only after
//! the tokens were compared. Own code because the standard library's keyed hasher is deprecated and its default one may
//! change between releases, which would change plans between builds.

use crate::bug::seeded;

struct SipHash {
    v: [u64; 4],
}

impl SipHash {
    fn new(secret: [u64; 2]) -> Self {
        let [k0, k1] = secret;
        Self {
            v: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.v = [a, b, c, d];
    }

    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.round();
        self.v[0] ^= word;
    }

    /// Bytes of any length, as whole little-endian words of 8, then the rest with the length in the top byte.
    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = bytes.len() as u8;
        self.word(u64::from_le_bytes(last));
    }

    fn finish(mut self) -> u64 {
        self.v[2] ^= 0xff;
        for _ in 0..4 {
            self.round();
        }
        self.v.into_iter().fold(0, |all, v| all ^ v)
    }
}

/// Bumped when the meaning of a hash changes; part of every chain.
const VERSION: u64 = 1;

/// Start of a chain. `None` and `Some("")` differ, and no two (model, salt) pairs run together.
pub fn root(secret: [u64; 2], model_id: &str, salt: Option<&str>) -> u64 {
    let mut hash = SipHash::new(secret);
    hash.word(VERSION);
    hash.word(model_id.len() as u64);
    hash.bytes(model_id.as_bytes());
    hash.word(u64::from(salt.is_some()));
    hash.bytes(salt.unwrap_or_default().as_bytes());
    hash.finish()
}

/// The next link: a page of tokens after everything that `parent` stands for.
pub fn extend(secret: [u64; 2], parent: u64, tokens: &[u32]) -> u64 {
    let mut hash = SipHash::new(secret);
    hash.word(if seeded!(PageIsFoundWithoutItsHistory) { 0 } else { parent });
    let (pairs, rest) = tokens.as_chunks::<2>();
    for &[low, high] in pairs {
        hash.word(u64::from(low) | u64::from(high) << 32);
    }
    if let &[last] = rest {
        hash.word(u64::from(last));
    }
    hash.word(tokens.len() as u64);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the paper's reference implementation: key 00..0f, message 00..(n-1).
    #[test]
    fn known_answers() {
        let secret = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        let expected = [(0, 0x726f_db47_dd0e_0e31), (8, 0x93f5_f579_9a93_2462), (15, 0xa129_ca61_49be_45e5)];
        for (n, wanted) in expected {
            let mut hash = SipHash::new(secret);
            hash.bytes(&message[..n]);
            assert_eq!(hash.finish(), wanted, "{n} bytes");
        }
    }

    #[test]
    fn chains_depend_on_everything() {
        let secret = [1, 2];
        let start = root(secret, "m", None);
        let chain = extend(secret, extend(secret, start, &[1, 2, 3]), &[4, 5, 6]);
        let others = [
            extend([1, 3], extend([1, 3], root([1, 3], "m", None), &[1, 2, 3]), &[4, 5, 6]),
            extend(secret, extend(secret, start, &[4, 5, 6]), &[1, 2, 3]),
            extend(secret, extend(secret, start, &[1, 2, 4]), &[4, 5, 6]),
            extend(secret, extend(secret, root(secret, "m", Some("")), &[1, 2, 3]), &[4, 5, 6]),
            extend(secret, start, &[1, 2, 3, 4, 5, 6]),
            extend(secret, extend(secret, start, &[1, 2, 3]), &[4, 5, 6, 0]),
        ];
        for other in others {
            assert_ne!(chain, other);
        }
    }
}
