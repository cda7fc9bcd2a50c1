//! Tags of XTML in an answer's text: `<|open|>name key="value"<|sep|>` and `<|close|>name<|sep|>`.

/// What opens an opening tag.
pub(crate) const OPEN: &str = "<|open|>";
/// What opens a closing tag.
pub(crate) const CLOSE: &str = "<|close|>";
/// What ends either.
pub(crate) const SEP: &str = "<|sep|>";
/// A tag longer than this is none: without a bound, one stray marker would hold back the rest of an answer.
const TAG_BYTES_MAX: usize = 16 << 10;

/// A whole tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) opens: bool,
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
}

impl Tag {
    /// True for the tag `<|open|>name…` or `<|close|>name`.
    pub(crate) fn is(&self, opens: bool, name: &str) -> bool {
        self.opens == opens && self.name == name
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str())
    }
}

/// What stands at a place of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A tag of this many bytes.
    Tag(Tag, usize),
    /// May become a tag when more text comes.
    Unfinished,
    /// No tag.
    Text,
}

/// Look at the start of `text`.
pub(crate) fn look(text: &str) -> Look {
    let opens = text.starts_with(OPEN);
    if !opens && !text.starts_with(CLOSE) {
        let is_begun = !text.is_empty() && (OPEN.starts_with(text) || CLOSE.starts_with(text));
        return if is_begun { Look::Unfinished } else { Look::Text };
    }
    let body = &text[if opens { OPEN.len() } else { CLOSE.len() }..];
    // A tag holds no other marker.
    let end = body.find(SEP);
    let inner = &body[..end.unwrap_or(body.len())];
    if inner.len() > TAG_BYTES_MAX || inner.contains(OPEN) || inner.contains(CLOSE) {
        return Look::Text;
    }
    let Some(end) = end else { return Look::Unfinished };
    match parse(opens, inner) {
        Some(tag) => Look::Tag(tag, text.len() - body.len() + end + SEP.len()),
        None => Look::Text,
    }
}

fn parse(opens: bool, inner: &str) -> Option<Tag> {
    let end = inner.find(char::is_whitespace).unwrap_or(inner.len());
    let (name, mut rest) = inner.split_at(end);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        attributes.push((key.trim().to_owned(), value.replace("&quot;", "\"").replace("&amp;", "&")));
        rest = after;
    }
    (!name.is_empty()).then(|| Tag { opens, name: name.to_owned(), attributes })
}

/// Where the next marker that may begin a tag stands, at or after byte `from`; also one that is cut off by the end.
pub(crate) fn next(text: &str, from: usize) -> Option<usize> {
    text[from..].match_indices('<').map(|(at, _)| from + at).find(|at| {
        let rest = &text[*at..];
        rest.starts_with(OPEN) || rest.starts_with(CLOSE) || OPEN.starts_with(rest) || CLOSE.starts_with(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_with_their_attributes() {
        let text = "<|open|>call tool=\"a&amp;quot;&quot;\" index=\"1\"<|sep|>x";
        let Look::Tag(tag, length) = look(text) else { panic!("no tag") };
        assert_eq!(&text[length..], "x");
        assert!(tag.is(true, "call") && !tag.is(false, "call"));
        assert_eq!(tag.attribute("tool"), Some("a&quot;\""));
        assert_eq!((tag.attribute("index"), tag.attribute("key")), (Some("1"), None));
        assert!(matches!(look("<|close|>think<|sep|>"), Look::Tag(tag, 21) if tag.is(false, "think")));
    }

    #[test]
    fn what_is_no_tag_stays_text_and_what_may_become_one_waits() {
        for text in ["", "a", "<a", "<|open|><|open|>", "<|open|>a<|close|>", "<|open|><|sep|>", "<|open|>a b<|sep|>"] {
            assert_eq!(look(text), Look::Text, "{text}");
        }
        for text in ["<", "<|op", "<|clo", "<|open|>", "<|open|>call tool=\"x", "<|close|>a<|se"] {
            assert_eq!(look(text), Look::Unfinished, "{text}");
        }
        assert_eq!(look(&format!("<|open|>{}", "a".repeat(20_000))), Look::Text);
        assert_eq!(next("a<b <|open|>", 0), Some(4));
        assert_eq!(next("a<|clo", 0), Some(1));
        assert_eq!(next("é<<|", 0), Some(3));
        assert_eq!(next("<|sep|>", 0), None);
    }
}
