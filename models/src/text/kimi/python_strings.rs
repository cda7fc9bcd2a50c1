//! The string literals of a Python source file, with enough of what surrounds them to tell which is which.
//!
//! A lexer, not an interpreter: nothing of the file is run. Adjacent literals are one string, as in Python; the holes of
//! formatted strings stay holes. What it cannot read (byte strings, `\N{…}`) is passed over.

/// A piece of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    /// `{expression}` of a formatted string.
    Hole(String),
}

/// A token of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Adjacent string literals.
    Text(Vec<Part>),
    /// An identifier, keyword or number.
    Word(String),
    /// Any other character.
    Sign(char),
    /// The end of a logical line.
    LineEnd,
}

struct Lexer<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    /// Brackets that are open: inside them a line end means nothing.
    depth: usize,
}

/// The tokens of a file. Never fails: an unclosed string ends with the file.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, tokens: Vec::new(), depth: 0 };
    while lexer.step() {}
    lexer.tokens
}

impl Lexer<'_> {
    fn step(&mut self) -> bool {
        let Some(c) = self.rest.chars().next() else { return false };
        match c {
            '\\' if self.rest[1..].starts_with('\n') => self.skip(2),
            '\\' if self.rest[1..].starts_with("\r\n") => self.skip(3),
            '#' => self.skip(self.rest.find('\n').unwrap_or(self.rest.len())),
            '\n' => {
                self.skip(1);
                if self.depth == 0 && self.tokens.last().is_some_and(|token| *token != Token::LineEnd) {
                    self.tokens.push(Token::LineEnd);
                }
            }
            _ if c.is_whitespace() => self.skip(c.len_utf8()),
            '"' | '\'' => self.string(""),
            _ if c.is_alphanumeric() || c == '_' => {
                let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                let (word, after) = self.rest.split_at(end);
                let is_prefix = word.len() <= 2 && word.chars().all(|c| "rRbBuUfF".contains(c));
                self.rest = after;
                if is_prefix && after.starts_with(['"', '\'']) {
                    self.string(word);
                } else {
                    self.tokens.push(Token::Word(word.to_owned()));
                }
            }
            _ => {
                match c {
                    '(' | '[' | '{' => self.depth += 1,
                    ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                self.tokens.push(Token::Sign(c));
                self.skip(c.len_utf8());
            }
        }
        true
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// A literal; `rest` starts with its quote.
    fn string(&mut self, prefix: &str) {
        let is = |letter: char| prefix.chars().any(|c| c.eq_ignore_ascii_case(&letter));
        let quote = &self.rest[..1];
        let close = if self.rest.starts_with(&quote.repeat(3)) { quote.repeat(3) } else { quote.to_owned() };
        let body = &self.rest[close.len()..];
        let mut end = body.len();
        let mut at = 0;
        while at < body.len() {
            if body[at..].starts_with(&close) {
                end = at;
                break;
            }
            let c = body[at..].chars().next().map_or(1, char::len_utf8);
            let escaped = if body[at..].starts_with('\\') { body[at + 1..].chars().next() } else { None };
            at += c + escaped.map_or(0, char::len_utf8);
        }
        let (body, after) = (&body[..end], &body[(end + close.len()).min(body.len())..]);
        self.rest = after;
        if is('b') {
            return;
        }
        let Some(parts) = parts(body, is('r'), is('f')) else { return };
        match self.tokens.last_mut() {
            Some(Token::Text(before)) => before.extend(parts),
            _ => self.tokens.push(Token::Text(parts)),
        }
    }
}

fn parts(body: &str, raw: bool, formatted: bool) -> Option<Vec<Part>> {
    let mut out = Vec::new();
    let mut text = String::new();
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' if !raw => rest = escape(rest, &mut text)?,
            '{' | '}' if formatted && rest.starts_with(c) => {
                text.push(c);
                rest = &rest[1..];
            }
            '{' if formatted => {
                let mut depth = 1;
                let end = rest.find(|c| {
                    match c {
                        '{' | '(' | '[' => depth += 1,
                        '}' | ')' | ']' => depth -= 1,
                        _ => {}
                    }
                    depth == 0
                })?;
                out.push(Part::Text(std::mem::take(&mut text)));
                // `{name!r:>10}` is still the value of `name`.
                let expression = rest[..end].split(['!', ':']).next().unwrap_or_default();
                out.push(Part::Hole(expression.trim().to_owned()));
                rest = &rest[end + 1..];
            }
            _ => text.push(c),
        }
    }
    out.push(Part::Text(text));
    out.retain(|part| *part != Part::Text(String::new()));
    Some(out)
}

/// Decode what follows a backslash.
fn escape<'a>(rest: &'a str, text: &mut String) -> Option<&'a str> {
    let c = rest.chars().next()?;
    let after = &rest[c.len_utf8()..];
    let hex = |digits: usize| -> Option<char> { char::from_u32(u32::from_str_radix(after.get(..digits)?, 16).ok()?) };
    let (value, digits) = match c {
        '\n' => return Some(after),
        '\r' => return Some(after.strip_prefix('\n').unwrap_or(after)),
        'n' => ('\n', 0),
        't' => ('\t', 0),
        'r' => ('\r', 0),
        'a' => ('\u{7}', 0),
        'b' => ('\u{8}', 0),
        'f' => ('\u{c}', 0),
        'v' => ('\u{b}', 0),
        '\\' | '\'' | '"' => (c, 0),
        'x' => (hex(2)?, 2),
        'u' => (hex(4)?, 4),
        'U' => (hex(8)?, 8),
        'N' => return None,
        '0'..='7' => {
            let end = rest.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            text.push(char::from_u32(u32::from_str_radix(&rest[..end], 8).ok()?)?);
            return Some(&rest[end..]);
        }
        _ => {
            text.push('\\');
            (c, 0)
        }
    };
    text.push(value);
    Some(&after[digits..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(source: &str) -> Vec<String> {
        let show = |part: Part| match part {
            Part::Text(text) => text,
            Part::Hole(expression) => format!("<{expression}>"),
        };
        let texts = tokens(source).into_iter().filter_map(|token| match token {
            Token::Text(parts) => Some(parts.into_iter().map(show).collect()),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn literals_are_read_as_python_reads_them() {
        assert_eq!(strings(r#"x = ("a\n" 'b"' f"{{c}} {d!r} {e['k']:>3}") + "f""#), ["a\nb\"{c} <d> <e['k']>", "f"]);
        assert_eq!(strings("'''a\n'b''' # 'no'\n\"\\x41\\u00e9\\101\\q\\\n!\""), ["a\n'b", "AéA\\q!"]);
        assert_eq!(strings(r"r'\n' b'no' f''  "), [r"\n"]);
        assert_eq!(strings("a = 'x'\nb = 'y'\nc = (\n'p'\n# note\n'q')"), ["x", "y", "pq"]);
        assert_eq!(strings("'unclosed \\"), ["unclosed "; 0]);
        assert_eq!(strings("'open"), ["open"]);
    }

    #[test]
    fn any_bytes_are_read_to_the_end() {
        let mut state = 3u64;
        for _ in 0..2000 {
            let text: String = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ['"', '\'', '\\', 'f', 'r', '{', '}', '(', ')', '\n', 'x', 'é', '#', '4', ' ']
                        [(state >> 33) as usize % 15]
                })
                .collect();
            tokens(&text);
        }
    }
}
