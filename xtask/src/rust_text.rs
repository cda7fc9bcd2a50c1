//! Separates code from comments and strings, line by line, without parsing Rust.
//!
//! Enough for word checks: comments (nested too), string, raw string, byte and character literals are recognised.
//! Rejected: the `syn` crate, which drops comments and would triple the build time of this program.

/// A source with the same line structure three times over: what is not listed is blanked with spaces.
#[derive(Debug)]
pub struct Masked {
    /// Everything but comments and the contents of literals.
    pub code: String,
    /// Only comments.
    pub comments: String,
}

/// Splits a source.
pub fn mask(source: &str) -> Masked {
    let text: Vec<char> = source.chars().collect();
    let mut masked =
        Masked { code: String::with_capacity(source.len()), comments: String::with_capacity(source.len()) };
    let mut i = 0;
    while i < text.len() {
        let (end, is_comment) = if starts(&text, i, "//") {
            (line_end(&text, i), true)
        } else if starts(&text, i, "/*") {
            (comment_end(&text, i), true)
        } else if let Some(end) = literal_end(&text, i) {
            (end, false)
        } else {
            masked.code.push(text[i]);
            masked.comments.push(if text[i] == '\n' { '\n' } else { ' ' });
            i += 1;
            continue;
        };
        for &c in &text[i..end] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            masked.code.push(blank);
            masked.comments.push(if is_comment { c } else { blank });
        }
        i = end;
    }
    masked
}

fn starts(text: &[char], at: usize, what: &str) -> bool {
    what.chars().enumerate().all(|(k, c)| text.get(at + k) == Some(&c))
}

fn line_end(text: &[char], at: usize) -> usize {
    (at..text.len()).find(|&k| text[k] == '\n').unwrap_or(text.len())
}

fn comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < text.len() {
        if starts(text, i, "/*") {
            depth += 1;
            i += 2;
        } else if starts(text, i, "*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    i
}

fn is_word(c: Option<&char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || *c == '_')
}

/// End of the literal that starts exactly at `at`, if one does.
fn literal_end(text: &[char], at: usize) -> Option<usize> {
    if at > 0 && is_word(text.get(at - 1)) {
        return None;
    }
    let mut i = at;
    while i < at + 2 && matches!(text.get(i), Some('b' | 'c' | 'r')) {
        i += 1;
    }
    let raw = text[at..i].contains(&'r');
    if raw {
        let hashes = text[i..].iter().take_while(|c| **c == '#').count();
        if text.get(i + hashes) != Some(&'"') {
            return None;
        }
        let close: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
        return Some(
            (i + hashes + 1..text.len()).find(|&k| starts(text, k, &close)).map_or(text.len(), |k| k + close.len()),
        );
    }
    match text.get(i) {
        Some('"') => Some(quoted_end(text, i, '"')),
        // A lifetime has no closing quote one (possibly escaped) character later.
        Some('\'') if text.get(i + 1) == Some(&'\\') || text.get(i + 2) == Some(&'\'') => {
            Some(quoted_end(text, i, '\''))
        }
        _ => None,
    }
}

fn quoted_end(text: &[char], at: usize, quote: char) -> usize {
    let mut i = at + 1;
    while i < text.len() {
        match text[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    text.len()
}

/// Lower-case parts of an identifier or phrase: `BlockTable`, `block_table` and "block table" are all [block, table].
pub fn parts(word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut previous_lower = false;
    for c in word.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && previous_lower) {
            parts.push(String::new());
        }
        if c.is_alphanumeric() {
            parts.last_mut().expect("starts with one part").extend(c.to_lowercase());
        }
        previous_lower = c.is_lowercase() || c.is_numeric();
    }
    parts.retain(|p| !p.is_empty());
    parts
}

/// True if `wanted` (itself in parts) occurs in `line` as whole, consecutive parts.
pub fn has_parts(line: &str, wanted: &[String]) -> bool {
    !wanted.is_empty() && parts(line).windows(wanted.len()).any(|w| w == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let source = "let a = \"unsafe // no\"; // unsafe\n/* x /* y */ z */ call('\\'', b'\"', 'b', r#\"q\"q\"#);\nfn f<'a>(x: &'a str) {}";
        let masked = mask(source);
        assert_eq!(masked.code.lines().count(), 3);
        assert!(!masked.code.contains("unsafe") && masked.comments.contains("// unsafe"));
        let line: String = masked.code.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, "call(,,,);");
        assert_eq!(masked.code.lines().nth(2), Some("fn f<'a>(x: &'a str) {}"));
    }

    #[test]
    fn parts_match_whole_words_only() {
        let wanted = parts("block_table");
        assert!(has_parts("let my_block_table = 1", &wanted) && has_parts("struct BlockTable;", &wanted));
        assert!(!has_parts("a blocking tablet", &wanted));
        assert!(!has_parts("stable it", &parts("table")));
    }
}
