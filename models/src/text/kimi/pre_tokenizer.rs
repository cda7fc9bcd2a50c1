//! Cuts text into the pieces that byte-pair merging works on: Kimi's pattern, as a hand-written scanner.
//!
//! The pattern, leftmost alternative first (332 bytes when joined, sha256 `de578178…411f`; facts of the format):
//!
//! 1. a run of Han characters;
//! 2. one optional character that is neither line end, letter nor number, then any capitals, then at least one small
//!    letter (letters without case and marks are both; Han is neither), then an optional English contraction;
//! 3. the same with at least one capital and any small letters;
//! 4. one to three numbers;
//! 5. an optional space, then a run of what is neither white space, letter nor number, then any line ends;
//! 6. white space that ends in a line end; 7. white space, less its last character if something follows; 8. white space.
//!
//! Each cut looks at most a constant number of times at the characters of the runs it is in, and what it looked at
//! without taking lies in the next cut or two, so the whole is linear in the text. Rejected: a regular expression engine.
//! The two that know look-ahead here give up or go quadratic on long runs (1 MB of blanks), and one of them panics.

use super::char_class::{CharClasses, HAN, LETTER, LINE_END, LOWER, NUMBER, SPACE, UPPER};

/// Iterator over the pieces of a text; together they are the text.
pub(crate) struct Pieces<'a> {
    text: &'a str,
    classes: &'static CharClasses,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, classes: CharClasses::get() }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.text.is_empty() {
            return None;
        }
        let end = Scan { text: self.text, classes: self.classes }.piece();
        let (piece, rest) = self.text.split_at(end);
        self.text = rest;
        Some(piece)
    }
}

/// A look at the start of a non-empty text. All positions are bytes.
struct Scan<'a> {
    text: &'a str,
    classes: &'static CharClasses,
}

impl Scan<'_> {
    /// The character at `at`, as (flags, where the next one starts).
    fn at(&self, at: usize) -> Option<(char, u8, usize)> {
        let c = self.text[at..].chars().next()?;
        Some((c, self.classes.of(c), at + c.len_utf8()))
    }

    /// End of the run of characters from `at` whose flags `accept` takes.
    fn run(&self, mut at: usize, accept: impl Fn(u8) -> bool) -> usize {
        while let Some((_, flags, next)) = self.at(at)
            && accept(flags)
        {
            at = next;
        }
        at
    }

    fn piece(&self) -> usize {
        let (first, flags, second) = self.at(0).expect("the text is not empty");
        if flags & HAN != 0 {
            return self.run(second, |flags| flags & HAN != 0);
        }
        // Alternatives 2 and 3, with the optional first character and, failing that, without.
        let leads = flags & (LETTER | NUMBER | LINE_END) == 0;
        let word = if leads { self.word(second) } else { None };
        if let Some(end) = word.or_else(|| self.word(0)) {
            return self.contraction(end);
        }
        if flags & NUMBER != 0 {
            let mut end = second;
            for _ in 0..2 {
                match self.at(end) {
                    Some((_, flags, next)) if flags & NUMBER != 0 => end = next,
                    _ => break,
                }
            }
            return end;
        }
        let is_mark = |flags: u8| flags & (SPACE | LETTER | NUMBER) == 0;
        let marks = if first == ' ' { second } else { 0 };
        let end = self.run(marks, is_mark);
        if end > marks {
            return self.run(end, |flags| flags & LINE_END != 0);
        }
        self.white_space()
    }

    /// Alternatives 2 and 3 from `start`, without the contraction: any capitals, then small letters, at least one
    /// character in all. As a backtracking engine finds it: the capitals give characters back until a small one follows.
    fn word(&self, start: usize) -> Option<usize> {
        let (mut at, mut small_end) = (start, None);
        while let Some((_, flags, next)) = self.at(at)
            && flags & UPPER != 0
        {
            at = next;
            if flags & LOWER != 0 {
                small_end = Some(next);
            }
        }
        match self.at(at) {
            Some((_, flags, next)) if flags & LOWER != 0 => Some(self.run(next, |flags| flags & LOWER != 0)),
            // No small letter follows, so the last character that is both is the small part, if there is one.
            _ => small_end.or((at > start).then_some(at)),
        }
    }

    /// `end`, or the end of the English contraction that begins there. Case folding adds one letter: ſ folds to s.
    fn contraction(&self, end: usize) -> usize {
        let rest = &self.text[end..];
        let Some(rest) = rest.strip_prefix('\'') else { return end };
        let mut letters = rest.chars();
        let (first, second) = (letters.next(), letters.next());
        let length = match (first, second) {
            (Some('s' | 'S' | 't' | 'T' | 'm' | 'M' | 'd' | 'D'), _) => 1,
            (Some('ſ'), _) => 'ſ'.len_utf8(),
            (Some('r' | 'R' | 'v' | 'V'), Some('e' | 'E')) | (Some('l' | 'L'), Some('l' | 'L')) => 2,
            _ => return end,
        };
        end + 1 + length
    }

    /// Alternatives 6 to 8; the text starts with white space.
    fn white_space(&self) -> usize {
        let (mut at, mut last, mut line_end) = (0, 0, None);
        while let Some((_, flags, next)) = self.at(at)
            && flags & SPACE != 0
        {
            last = at;
            at = next;
            if flags & LINE_END != 0 {
                line_end = Some(at);
            }
        }
        match line_end {
            Some(end) => end,
            None if at < self.text.len() && last > 0 => last,
            None => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        Pieces::new(text).collect()
    }

    #[test]
    fn each_alternative_and_the_order_between_them() {
        assert_eq!(pieces("中文abc"), ["中文", "abc"]);
        assert_eq!(pieces("fooBAR XMLHttpRequest"), ["foo", "BAR", " XMLHttp", "Request"]);
        assert_eq!(pieces("can't I'LL don'x"), ["can't", " I'LL", " don", "'x"]);
        assert_eq!(pieces("ES'ſx"), ["ES'ſ", "x"]);
        assert_eq!(pieces("1234567890"), ["123", "456", "789", "0"]);
        assert_eq!(pieces("a ?!\r\n\nb"), ["a", " ?!\r\n\n", "b"]);
        assert_eq!(pieces("  \n  x   \t"), ["  \n", " ", " x", "   \t"]);
        assert_eq!(pieces("-word --word"), ["-word", " --", "word"]);
        assert_eq!(pieces("\u{301}a 1〇"), ["\u{301}a", " ", "1〇"]);
        assert_eq!(pieces("!⺀x"), ["!⺀", "x"]);
        assert_eq!(pieces("ªAB"), ["ª", "AB"]); // the both-case letter is given back as the small part
        assert_eq!(pieces(""), [""; 0]);
    }

    #[test]
    fn cuts_are_those_of_the_pattern_in_many_scripts() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/data/kimi_text.json")).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let got: Vec<usize> = pieces(text).iter().map(|piece| piece.len()).collect();
            let want: Vec<usize> =
                case["cuts"].as_array().unwrap().iter().map(|cut| cut.as_u64().unwrap() as usize).collect();
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn pieces_join_to_the_text_and_long_runs_take_linear_time() {
        // A quadratic scanner would need minutes for these.
        for unit in
            ["a", "A", " ", "\n", "!", "1", "中", "ª", "\u{301}", "ªA", " \n", "'s", "A\u{301}", "\u{85}", "\n "]
        {
            let text = unit.repeat(1_000_000 / unit.len());
            let joined: usize = Pieces::new(&text).map(str::len).sum();
            assert_eq!(joined, text.len());
        }
    }
}
