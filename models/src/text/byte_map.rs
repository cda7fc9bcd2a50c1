//! The byte alphabet of byte-level BPE: every byte has one printable character, so that vocabularies can be stored as text.
//!
//! Printable Latin-1 bytes stand for themselves; the 68 others are moved, in ascending order, to U+0100 onwards. Computed
//! at compile time from that rule rather than copied as a table, so it cannot drift from the rule.

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn chars_of_bytes() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut moved = 0u32;
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            moved += 1;
            match char::from_u32(0xFF + moved) {
                Some(c) => c,
                None => panic!("U+0100 onwards are characters"),
            }
        };
        byte += 1;
    }
    table
}

const CHARS: [char; 256] = chars_of_bytes();

/// The character that stands for `byte`.
pub fn char_of_byte(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte that `c` stands for; `None` when `c` is not in the alphabet.
pub fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0..=0xFF if is_printable(code as u8) => Some(code as u8),
        0x100..=0x143 => (0..=255u8).find(|&b| CHARS[b as usize] == c),
        _ => None,
    }
}

/// The bytes a vocabulary entry stands for; `None` when a character is outside the alphabet.
pub fn bytes_of_token(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            assert!(seen.insert(char_of_byte(byte)));
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        // Known entries of every published byte-level vocabulary.
        assert_eq!((char_of_byte(b' '), char_of_byte(b'\n'), char_of_byte(b'A')), ('Ġ', 'Ċ', 'A'));
        assert_eq!(byte_of_char('\u{144}'), None);
        assert_eq!(byte_of_char(' '), None);
    }
}
