//! `tiktoken.model`: one token per line, base64 of its bytes, a blank, its rank. The rank is the token's id.
//!
//! Kept as one arena of bytes, in id order, with a hash table of ids beside it: two allocations instead of one per token,
//! and look-ups by any byte slice.

use crate::text::error::TokenizerError;

/// Every token's bytes and, by bytes, its id. Ids are `0..len`.
pub(crate) struct Ranks {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Open addressing, id + 1; 0 is free. A power of two long, at most half full.
    table: Vec<u32>,
    longest: usize,
}

fn bad(file: &str, line: usize, cause: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::malformed(file, format!("line {}: {cause}", line + 1))
}

/// Decode standard base64 with its padding; `None` if it is none.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    (digits.len() % 4 != 1).then_some(out)
}

fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        hash = (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }
    let tail = chunks.remainder().iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let hash = (hash ^ tail).wrapping_mul(FACTOR);
    hash ^ hash >> 32
}

impl Ranks {
    /// Parse a rank file; `file` names it in errors. Ranks must be 0, 1, … without holes, and every byte must be a token,
    /// so that any text can be written.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<(u32, Vec<u8>)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let (token, rank) =
                line.trim().split_once(' ').ok_or_else(|| bad(file, number, "expected `<base64> <rank>`"))?;
            let bytes = base64(token).ok_or_else(|| bad(file, number, format!("{token:?} is not base64")))?;
            let rank = rank.trim().parse().map_err(|_| bad(file, number, format!("{rank:?} is not a rank")))?;
            if bytes.is_empty() {
                return Err(bad(file, number, "the token is empty"));
            }
            tokens.push((rank, bytes));
        }
        tokens.sort_by_key(|token| token.0);
        if let Some((want, (got, _))) = tokens.iter().enumerate().find(|(want, (got, _))| *want != *got as usize) {
            let cause = format!("ranks are not 0, 1, 2, …: {got} stands where {want} should");
            return Err(TokenizerError::malformed(file, cause));
        }
        Self::build(file, tokens.into_iter().map(|(_, bytes)| bytes))
    }

    /// From tokens in id order; the same checks.
    pub(crate) fn build(file: &str, tokens: impl IntoIterator<Item = Vec<u8>>) -> Result<Self, TokenizerError> {
        let mut ranks = Self { bytes: Vec::new(), ends: Vec::new(), table: Vec::new(), longest: 0 };
        for token in tokens {
            ranks.bytes.extend_from_slice(&token);
            let end = u32::try_from(ranks.bytes.len())
                .map_err(|_| TokenizerError::malformed(file, "holds more than 4 GiB of tokens"))?;
            ranks.ends.push(end);
            ranks.longest = ranks.longest.max(token.len());
        }
        ranks.table = vec![0; (ranks.ends.len() * 2).next_power_of_two().max(2)];
        for id in 0..ranks.len() {
            let token = ranks.token(id);
            let mut slot = ranks.slot(token);
            while ranks.table[slot] != 0 {
                if ranks.token(ranks.table[slot] - 1) == token {
                    let cause = format!("tokens {} and {id} are the same bytes", ranks.table[slot] - 1);
                    return Err(TokenizerError::malformed(file, cause));
                }
                slot = (slot + 1) & (ranks.table.len() - 1);
            }
            ranks.table[slot] = id + 1;
        }
        match (0..=255u8).find(|byte| ranks.id(&[*byte]).is_none()) {
            None => Ok(ranks),
            Some(byte) => {
                let cause = format!("byte 0x{byte:02x} is no token, so some texts could not be written");
                Err(TokenizerError::malformed(file, cause))
            }
        }
    }

    fn slot(&self, bytes: &[u8]) -> usize {
        hash(bytes) as usize & (self.table.len() - 1)
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The bytes of a token; `id` must be below [`len`](Self::len).
    pub(crate) fn token(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.bytes[start..self.ends[id] as usize]
    }

    /// The token that is exactly `bytes`.
    pub(crate) fn id(&self, bytes: &[u8]) -> Option<u32> {
        let mut slot = self.slot(bytes);
        loop {
            let id = self.table[slot].checked_sub(1)?;
            if self.token(id) == bytes {
                return Some(id);
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_reads_back_and_nonsense_does_not() {
        assert_eq!(base64("").as_deref(), Some(&b""[..]));
        for (text, bytes) in [("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("+/8=", "\u{0}")] {
            let got = base64(text).unwrap();
            assert!(got == bytes.as_bytes() || text == "+/8=" && got == [0xfb, 0xff], "{text}");
        }
        for text in ["Zg=", "Zg", "Z===", "Zm9v!A==", "Zg==Zg==x"] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    #[test]
    fn a_broken_rank_file_is_refused_by_name_and_line() {
        let error = |text: &str| Ranks::parse("tiktoken.model", text).err().unwrap().to_string();
        assert_eq!(error("AA== 0\nxx"), "tiktoken.model: line 2: expected `<base64> <rank>`");
        assert!(error("A 0").contains("is not base64"));
        assert!(error("AA== x").contains("is not a rank"));
        assert!(error("AA== 0\nAQ== 2").contains("2 stands where 1"));
        assert!(error("AA== 0\nAA== 1").contains("tokens 0 and 1 are the same"));
        assert!(error("AA== 0").contains("byte 0x01 is no token"));
        assert!(error(" 0").contains("expected"));
    }
}
