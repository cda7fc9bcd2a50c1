//! The keyed hash chain over whole pages of tokens.
//!
//! A page is first summed up by NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, UMAC, 1999) over 64-bit words, one
//! multiplication for four tokens; then SipHash-2-4 (Aumasson and Bernstein, 2012) ties the sum to everything before the page.
//! For two pages fixed beforehand the sums meet with a chance of 2^-64 over the keys, and no sum is ever seen outside.
//!
//! Keyed with an injected secret so that nobody outside can aim collisions at the index; a hit is believed only after
//! the tokens were compared. Own code because the standard library's keyed hasher is deprecated and its default one may
//! change between releases, which would change plans between builds. Rejected: SipHash over the tokens themselves; it took
//! longer than all else that the admission of a long prompt costs.

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
const VERSION: u64 = 2;

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

/// Makes the links of chains whose pages have one size.
#[derive(Clone)]
pub struct PageHasher {
    secret: [u64; 2],
    /// One for every two tokens of a page, an even number.
    keys: Vec<u64>,
}

impl std::fmt::Debug for PageHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageHasher({} keys)", self.keys.len())
    }
}

impl PageHasher {
    /// For pages of at most `page_tokens`.
    pub fn new(secret: [u64; 2], page_tokens: usize) -> Self {
        let key = |at: usize| {
            let mut hash = SipHash::new(secret);
            hash.bytes(b"page key");
            hash.word(at as u64);
            hash.finish()
        };
        Self { secret, keys: (0..page_tokens.div_ceil(4) * 2).map(key).collect() }
    }

    /// The next link: a page of tokens after everything that `parent` stands for.
    pub fn extend(&self, parent: u64, tokens: &[u32]) -> u64 {
        let sum = self.sum(tokens);
        let mut hash = SipHash::new(self.secret);
        // The parent comes last: all before it is computed while the parent still is.
        hash.word(sum as u64);
        hash.word((sum >> 64) as u64);
        hash.word(if seeded!(PageIsFoundWithoutItsHistory) { 0 } else { parent });
        hash.finish()
    }

    /// NH of the tokens and their number.
    fn sum(&self, tokens: &[u32]) -> u128 {
        assert!(tokens.len().div_ceil(4) * 2 <= self.keys.len(), "a page larger than the keys were made for");
        let product = |&[a, b, c, d]: &[u32; 4], &[even, odd]: &[u64; 2]| {
            let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            u128::from(word(a, b).wrapping_add(even)) * u128::from(word(c, d).wrapping_add(odd))
        };
        let (keys, _) = self.keys.as_chunks::<2>();
        let (fours, rest) = tokens.as_chunks::<4>();
        let sum =
            fours.iter().zip(keys).fold(tokens.len() as u128, |sum, (four, key)| sum.wrapping_add(product(four, key)));
        if rest.is_empty() {
            return sum;
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum.wrapping_add(product(&last, &keys[fours.len()]))
    }
}

/// A link alone; who makes several keeps a [`PageHasher`].
pub fn extend(secret: [u64; 2], parent: u64, tokens: &[u32]) -> u64 {
    PageHasher::new(secret, tokens.len()).extend(parent, tokens)
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

    /// The sum is that of its definition, with the tokens as one row of little-endian words padded with zeros.
    #[test]
    fn sums_follow_the_definition() {
        for n in [0usize, 1, 3, 4, 7, 16, 61, 64] {
            let hasher = PageHasher::new([3, 4], n);
            let tokens: Vec<u32> = (0..n as u32).map(|i| u32::MAX - i.wrapping_mul(0x0f0f_0f0f)).collect();
            let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            bytes.resize(n.div_ceil(4) * 16, 0);
            let words: Vec<u64> = bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
            let mut sum = n as u128;
            for at in (0..words.len()).step_by(2) {
                let keyed = |at: usize| u128::from(words[at].wrapping_add(hasher.keys[at]));
                sum = sum.wrapping_add(keyed(at) * keyed(at + 1));
            }
            assert_eq!(hasher.sum(&tokens), sum, "{n} tokens");
        }
    }

    /// A page of 64 with any one bit of any token turned over is another page.
    #[test]
    fn every_bit_of_a_page_counts() {
        let hasher = PageHasher::new([5, 6], 64);
        let page: [u32; 64] = std::array::from_fn(|i| (i as u32).wrapping_mul(0x9e37_79b9));
        let mut seen = std::collections::HashSet::from([hasher.extend(0, &page)]);
        for bit in 0..64 * 32 {
            let mut other = page;
            other[bit / 32] ^= 1 << (bit % 32);
            assert!(seen.insert(hasher.extend(0, &other)), "bit {bit}");
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
