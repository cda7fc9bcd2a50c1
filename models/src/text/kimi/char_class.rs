//! Which Unicode classes of the pre-tokenizer a character is in, one byte per character.
//!
//! The tables come from `regex-syntax`, the same Unicode data that the reference (tiktoken, built on `regex`) uses, read
//! once into a flat table. Rejected: `char::is_alphabetic` and friends, which are other classes (`Alphabetic` holds
//! marks and letter numbers, which `\p{L}` does not).

use std::sync::OnceLock;

use regex_syntax::{
    Parser,
    hir::{Class, HirKind},
};

/// Script Han (`\p{Han}`).
pub(crate) const HAN: u8 = 1;
/// May stand in the capital part of a word: `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`.
pub(crate) const UPPER: u8 = 2;
/// May stand in the small part of a word: `[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]`.
pub(crate) const LOWER: u8 = 4;
/// `\p{L}`.
pub(crate) const LETTER: u8 = 8;
/// `\p{N}`.
pub(crate) const NUMBER: u8 = 16;
/// `\s`.
pub(crate) const SPACE: u8 = 32;
/// `[\r\n]`.
pub(crate) const LINE_END: u8 = 64;

const CLASSES: &[(u8, &str)] = &[
    (HAN, r"\p{Han}"),
    (UPPER, r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
    (LOWER, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
    (LETTER, r"\p{L}"),
    (NUMBER, r"\p{N}"),
    (SPACE, r"\s"),
    (LINE_END, r"[\r\n]"),
];

/// Classes of every character.
pub(crate) struct CharClasses(Box<[u8]>);

impl CharClasses {
    /// The table, made at the first call.
    pub(crate) fn get() -> &'static Self {
        static TABLE: OnceLock<CharClasses> = OnceLock::new();
        TABLE.get_or_init(Self::build)
    }

    fn build() -> Self {
        let mut table = vec![0u8; char::MAX as usize + 1];
        for (flag, pattern) in CLASSES {
            let class = Parser::new().parse(pattern).expect("the patterns are constants");
            let HirKind::Class(Class::Unicode(class)) = class.kind() else {
                unreachable!("{pattern} is a class of several characters")
            };
            for range in class.iter() {
                table[range.start() as usize..=range.end() as usize].iter_mut().for_each(|entry| *entry |= flag);
            }
        }
        Self(table.into())
    }

    /// The flags of `c`.
    pub(crate) fn of(&self, c: char) -> u8 {
        self.0[c as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_characters_that_are_easily_taken_for_others() {
        let of = |c| CharClasses::get().of(c);
        assert_eq!(of('A'), UPPER | LETTER);
        assert_eq!(of('a'), LOWER | LETTER);
        assert_eq!(of('ª'), UPPER | LOWER | LETTER);
        assert_eq!(of('\u{301}'), UPPER | LOWER); // a mark is no letter, yet part of a word
        assert_eq!(of('中'), HAN | LETTER);
        assert_eq!(of('〇'), HAN | NUMBER);
        assert_eq!(of('⺀'), HAN); // a radical: neither letter nor number
        assert_eq!(of('Ⅷ'), NUMBER);
        assert_eq!(of('\n'), SPACE | LINE_END);
        assert_eq!(of('\u{85}'), SPACE);
        assert_eq!(of('\u{1c}'), 0); // Python's str.isspace says otherwise; \s does not
        assert_eq!(of('!'), 0);
    }
}
