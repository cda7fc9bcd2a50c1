//! Finding the strings of added tokens in text: leftmost first, longest at one place.
//!
//! Done here rather than by the tokenizer library because a request decides whether control tokens may be read from its
//! text, and the library has one switch per tokenizer, not per call.

use std::collections::BTreeMap;

/// One added token that can be found in text.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecialToken {
    /// Its string; never empty.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// Swallow white space before it.
    pub strip_left: bool,
    /// Swallow white space after it.
    pub strip_right: bool,
    /// Only where no letter, digit or underscore touches it.
    pub single_word: bool,
}

impl SpecialToken {
    /// A token that is found anywhere and swallows nothing.
    pub fn plain(content: impl Into<String>, id: u32) -> Self {
        Self { content: content.into(), id, strip_left: false, strip_right: false, single_word: false }
    }
}

/// A piece of a split text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Segment<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// An added token.
    Token(u32),
}

/// The added tokens of one tokenizer.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    /// By first byte, longest first.
    by_first: BTreeMap<u8, Vec<SpecialToken>>,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

impl SpecialTokens {
    /// Index the tokens; empty strings are left out (they would match everywhere).
    pub fn new(tokens: impl IntoIterator<Item = SpecialToken>) -> Self {
        let mut by_first: BTreeMap<u8, Vec<SpecialToken>> = BTreeMap::new();
        for token in tokens {
            if let Some(&first) = token.content.as_bytes().first() {
                by_first.entry(first).or_default().push(token);
            }
        }
        for list in by_first.values_mut() {
            list.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then_with(|| a.content.cmp(&b.content)));
        }
        Self { by_first }
    }

    /// All tokens.
    pub fn iter(&self) -> impl Iterator<Item = &SpecialToken> {
        self.by_first.values().flatten()
    }

    /// The first token at or after byte `from`, with the byte where it starts.
    pub fn find(&self, text: &str, from: usize) -> Option<(usize, &SpecialToken)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|at| {
            let token = self.by_first.get(&bytes[at])?.iter().find(|token| {
                bytes[at..].starts_with(token.content.as_bytes())
                    && (!token.single_word
                        || !(text[..at].chars().next_back().is_some_and(is_word)
                            || text[at + token.content.len()..].chars().next().is_some_and(is_word)))
            })?;
            Some((at, token))
        })
    }

    /// Cut `text` at every token.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let mut start = 0;
        while let Some((at, token)) = self.find(text, start) {
            let mut before = &text[start..at];
            if token.strip_left {
                before = before.trim_end();
            }
            if !before.is_empty() {
                segments.push(Segment::Text(before));
            }
            segments.push(Segment::Token(token.id));
            start = at + token.content.len();
            if token.strip_right {
                start = text.len() - text[start..].trim_start().len();
            }
        }
        if start < text.len() {
            segments.push(Segment::Text(&text[start..]));
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_then_the_longest_token_wins() {
        let tokens = SpecialTokens::new([
            SpecialToken::plain("<|a|>", 1),
            SpecialToken::plain("<|a|>b", 2),
            SpecialToken::plain("|>", 3),
            SpecialToken::plain("", 4),
        ]);
        use Segment::*;
        assert_eq!(tokens.split("x<|a|><|a|>b|> é"), [Text("x"), Token(1), Token(2), Token(3), Text(" é")]);
        assert_eq!(tokens.split(""), []);
    }

    #[test]
    fn stripping_and_single_words_follow_the_added_token() {
        let strip = SpecialToken { strip_left: true, strip_right: true, ..SpecialToken::plain("<m>", 1) };
        let word = SpecialToken { single_word: true, ..SpecialToken::plain("yes", 2) };
        let tokens = SpecialTokens::new([strip, word]);
        use Segment::*;
        assert_eq!(
            tokens.split("a  <m>\n b yes yesterday, éyes"),
            [Text("a"), Token(1), Text("b "), Token(2), Text(" yesterday, éyes")]
        );
    }
}
