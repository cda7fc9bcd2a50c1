//! The bytes each token id stands for, in one table.
//!
//! Decoding is a look-up in this table plus one rule about leading spaces, for every kind of tokenizer. That makes
//! streaming exact by construction: the whole text is the concatenation of what each id adds. Rejected: decoding growing
//! windows of ids and taking the difference, as many engines do; it costs more per token, and windows can disagree with
//! the whole where a decoder treats its first token differently.

use super::error::UnknownId;

const PRESENT: u8 = 1;
const SPECIAL: u8 = 2;
const ADDED: u8 = 4;

/// What a token id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text, a byte, or anything else learned.
    Normal,
    /// Added whole to the vocabulary, visible in text.
    Added,
    /// A control token: hidden from answers by default, never produced from protected text.
    Special,
}

/// When encoding puts one space in front of a text, so that decoding takes it away again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Never.
    Never,
    /// At the start of a text only.
    First,
    /// At the start and after every added or special token.
    EachSegment,
}

/// Bytes and kind of every id, for ids `0..size`. Ids may have holes.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    flags: Vec<u8>,
}

impl Vocabulary {
    /// Build from (id, bytes, kind) in any order. Of two entries with one id the later wins.
    pub fn new(mut tokens: Vec<(u32, Vec<u8>, TokenKind)>) -> Self {
        tokens.sort_by_key(|token| token.0); // stable: later entries of one id stay later
        let size = tokens.last().map_or(0, |token| token.0 as usize + 1);
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(size), flags: vec![0; size] };
        let mut tokens = tokens.into_iter().peekable();
        for id in 0..size {
            while let Some((_, bytes, kind)) = tokens.next_if(|token| token.0 as usize == id) {
                if tokens.peek().is_none_or(|token| token.0 as usize != id) {
                    table.bytes.extend_from_slice(&bytes);
                    table.flags[id] = PRESENT
                        | match kind {
                            TokenKind::Normal => 0,
                            TokenKind::Added => ADDED,
                            TokenKind::Special => ADDED | SPECIAL,
                        };
                }
            }
            table.ends.push(table.bytes.len());
        }
        table
    }

    /// One more than the largest id that exists. A model's head may have more rows: those ids must never be sampled.
    pub fn size(&self) -> u32 {
        self.flags.len() as u32
    }

    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & flag != 0)
    }

    /// True when the id exists.
    pub fn has(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    /// True for control tokens.
    pub fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    /// True for added and control tokens.
    pub fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    /// The bytes the id stands for (a `▁` already turned into a space); not always whole characters.
    pub fn bytes(&self, id: u32) -> Result<&[u8], UnknownId> {
        if !self.has(id) {
            return Err(UnknownId { id, vocab_size: self.size() });
        }
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Ok(&self.bytes[start..self.ends[id]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_vocabulary_ids_past_the_end_and_in_holes_do_not_exist() {
        let table = Vocabulary::new(vec![
            (3, b"d".to_vec(), TokenKind::Special),
            (0, b"ab".to_vec(), TokenKind::Normal),
            (0, b"c".to_vec(), TokenKind::Added),
        ]);
        assert_eq!(table.size(), 4);
        assert_eq!(table.bytes(0), Ok(&b"c"[..]));
        assert_eq!(table.bytes(3), Ok(&b"d"[..]));
        for id in [1, 2, 4, u32::MAX] {
            assert_eq!(table.bytes(id), Err(UnknownId { id, vocab_size: 4 }));
        }
        assert!(table.is_special(3) && !table.is_special(0) && table.is_added(0) && !table.is_special(99));
    }
}
