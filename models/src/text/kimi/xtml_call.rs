//! One tool call of an XTML answer, and its arguments as JSON.
//!
//! Every argument says what it is: `string` is the text itself, the others are JSON. A value that is not what it says
//! (`number` with a word, `object` with a bracket missing) is kept as a string rather than lost, so that the arguments
//! are always one JSON object. A `json` element, by which a model writes the whole object, is passed on as written.

use serde_json::Value;

use super::xtml_tag::Tag;

/// An argument, or a `json` element, that has been opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    /// The argument's name; `None` for `json`.
    key: Option<String>,
    kind: String,
}

impl Element {
    /// The element that a tag opens, if it is one of a call.
    pub(crate) fn begin(tag: &Tag) -> Option<Self> {
        let kind = tag.attribute("type").unwrap_or_default().to_owned();
        match tag.name.as_str() {
            "argument" => Some(Self { key: Some(tag.attribute("key")?.to_owned()), kind }),
            "json" => Some(Self { key: None, kind }),
            _ => None,
        }
    }

    /// True for the tag that closes it.
    pub(crate) fn ends_with(&self, tag: &Tag) -> bool {
        tag.is(false, if self.key.is_some() { "argument" } else { "json" })
    }
}

/// A call being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    name: String,
    /// Names and JSON values, in the order of first mention.
    arguments: Vec<(String, String)>,
    whole: Option<String>,
}

/// `text` as JSON of the kind that the model says it is.
fn value(kind: &str, text: &str) -> String {
    let trimmed = text.trim();
    let parsed = || serde_json::from_str::<Value>(trimmed).ok();
    let ok = match kind {
        "number" | "integer" => parsed().is_some_and(|value| value.is_number()),
        "object" => parsed().is_some_and(|value| value.is_object()),
        "array" => parsed().is_some_and(|value| value.is_array()),
        // Python's spelling is a common slip.
        "boolean" if matches!(trimmed, "true" | "True") => return "true".into(),
        "boolean" if matches!(trimmed, "false" | "False") => return "false".into(),
        "null" if matches!(trimmed, "null" | "None" | "") => return "null".into(),
        _ => false,
    };
    if ok { trimmed.to_owned() } else { Value::from(text).to_string() }
}

impl Call {
    /// The call that a tag opens; `None` without a tool's name.
    pub(crate) fn begin(tag: &Tag) -> Option<Self> {
        let name = tag.attribute("tool").filter(|name| !name.is_empty())?.to_owned();
        Some(Self { name, ..Self::default() })
    }

    /// Add a closed element. An argument given twice has its last value.
    pub(crate) fn add(&mut self, element: Element, text: &str) {
        let Some(key) = element.key else {
            self.whole = Some(text.to_owned());
            return;
        };
        let value = value(&element.kind, text);
        match self.arguments.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.arguments.push((key, value)),
        }
    }

    /// Name and arguments.
    pub(crate) fn end(self) -> (String, String) {
        if let Some(whole) = self.whole.filter(|whole| !whole.trim().is_empty()) {
            return (self.name, whole);
        }
        let fields: Vec<String> =
            self.arguments.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
        (self.name, format!("{{{}}}", fields.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say_or_else_strings() {
        for (kind, text, want) in [
            ("string", " 12\n", "\" 12\\n\""),
            ("number", " 1.50 ", "1.50"),
            ("number", "12345678901234567890123", "12345678901234567890123"),
            ("number", "NaN", "\"NaN\""),
            ("boolean", "True", "true"),
            ("boolean", "yes", "\"yes\""),
            ("null", "", "null"),
            ("object", "{\"a\": [1]}", "{\"a\": [1]}"),
            ("object", "[1]", "\"[1]\""),
            ("array", "[1", "\"[1\""),
            ("", "1", "\"1\""),
        ] {
            assert_eq!(value(kind, text), want, "{kind} {text}");
        }
    }
}
