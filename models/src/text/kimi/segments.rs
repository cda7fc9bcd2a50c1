//! A prompt as a list of segments, each encoded on its own: markers, and everything else.
//!
//! Only a marker segment becomes a control token; the text of any other segment is encoded with control tokens switched
//! off, so nothing a user sends can open or close an element, however it is spelled or cut. Merges do not cross segments,
//! as in the reference, which cuts an attribute into four: ` key`, `="`, value, `"`.

use std::borrow::Cow;

use crate::text::{
    error::TokenizerError,
    tokenizer::{Controls, Tokenizer},
};

/// A marker of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Open,
    Close,
    Sep,
    EndOfMessage,
}

impl Marker {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Open => "<|open|>",
            Self::Close => "<|close|>",
            Self::Sep => "<|sep|>",
            Self::EndOfMessage => "<|end_of_msg|>",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    Marker(Marker),
    /// Never empty.
    Text(Cow<'a, str>),
}

/// The segments of a prompt, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments<'a> {
    list: Vec<Segment<'a>>,
    /// How many of them make up the beginning that other prompts are likely to share.
    n_shared: usize,
}

/// A chat as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XtmlPrompt {
    /// All of it.
    pub ids: Vec<u32>,
    /// Of `ids`, the tools, the settings and the system messages before the conversation: what its next chat is likely to begin
    /// with too.
    pub shared: usize,
}

fn escape(value: &str) -> String {
    value.replace('&', "&amp;").replace('"', "&quot;")
}

impl<'a> Segments<'a> {
    /// Text of a body, as it is.
    pub(crate) fn text(&mut self, text: impl Into<Cow<'a, str>>) {
        let text = text.into();
        if !text.is_empty() {
            self.list.push(Segment::Text(text));
        }
    }

    /// `<|open|>tag key="value"…<|sep|>`.
    pub(crate) fn open(&mut self, tag: &'a str, attributes: &[(&str, &str)]) {
        self.list.push(Segment::Marker(Marker::Open));
        self.text(tag);
        for (key, value) in attributes {
            self.text(format!(" {key}"));
            self.text("=\"");
            self.text(escape(value));
            self.text("\"");
        }
        self.list.push(Segment::Marker(Marker::Sep));
    }

    /// `<|close|>tag<|sep|>`.
    pub(crate) fn close(&mut self, tag: &'a str) {
        self.list.push(Segment::Marker(Marker::Close));
        self.text(tag);
        self.list.push(Segment::Marker(Marker::Sep));
    }

    /// The end of a message: `<|close|>message<|sep|><|end_of_msg|>`.
    pub(crate) fn end_message(&mut self) {
        self.close("message");
        self.list.push(Segment::Marker(Marker::EndOfMessage));
    }

    /// A message of the format itself, to the model from the request's settings.
    pub(crate) fn setting(&mut self, kind: &str, body: impl Into<Cow<'a, str>>) {
        self.open("message", &[("role", "system"), ("type", kind)]);
        self.text(body);
        self.end_message();
    }

    /// Other prompts are likely to share all that is there so far.
    pub(crate) fn end_shared(&mut self) {
        self.n_shared = self.list.len();
    }

    /// Token ids; `tokenizer` must have the markers.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer) -> Result<XtmlPrompt, TokenizerError> {
        let (mut ids, mut shared) = (Vec::new(), 0);
        for (at, segment) in self.list.iter().enumerate() {
            if at == self.n_shared {
                shared = ids.len();
            }
            match segment {
                Segment::Marker(marker) => {
                    let missing = || TokenizerError::Encode(format!("the tokenizer has no {}", marker.text()));
                    ids.push(tokenizer.id_of(marker.text()).ok_or_else(missing)?);
                }
                Segment::Text(text) => ids.extend(tokenizer.encode(text, Controls::AsText, false)?),
            }
        }
        let shared = if self.n_shared == self.list.len() { ids.len() } else { shared };
        Ok(XtmlPrompt { ids, shared })
    }

    #[cfg(test)]
    pub(crate) fn shown(&self) -> String {
        let show = |segment: &Segment<'_>| match segment {
            Segment::Marker(marker) => marker.text().to_owned(),
            Segment::Text(text) => text.to_string(),
        };
        self.list.iter().map(show).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_four_segments_and_its_value_is_escaped() {
        let mut segments = Segments::default();
        segments.open("call", &[("tool", "a\"&b<|sep|>"), ("index", "")]);
        let texts: Vec<&str> = segments
            .list
            .iter()
            .filter_map(|segment| if let Segment::Text(text) = segment { Some(text.as_ref()) } else { None })
            .collect();
        assert_eq!(texts, ["call", " tool", "=\"", "a&quot;&amp;b<|sep|>", "\"", " index", "=\"", "\""]);
        let markers = segments.list.iter().filter(|segment| matches!(segment, Segment::Marker(_))).count();
        assert_eq!(markers, 2);
    }
}
