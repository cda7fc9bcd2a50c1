//! Tool calls of Kimi K2 and Kimi Linear in a text stream:
//! `<|tool_calls_section_begin|><|tool_call_begin|>ID<|tool_call_argument_begin|>JSON<|tool_call_end|>…<|tool_calls_section_end|>`.
//!
//! The function is named by the id alone, and models write ids in many ways (`functions.name:0`, `name:0`,
//! `functions_name_1`, `call00003`). The name is resolved against the tools of the request; an id that names none of
//! them and has not the published form stays in the answer's text with everything that belongs to it, so nothing is
//! lost without a word. Other text inside a section says nothing and is passed over. Arguments are passed on as they
//! come, as the model writes them, however long.

use crate::text::{stop::Needle, tool_call::ToolPart};

/// Opens a section; the singular is a common slip.
pub(crate) const SECTION_BEGIN: [&str; 2] = ["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"];
const SECTION_END: [&str; 2] = ["<|tool_calls_section_end|>", "<|tool_call_section_end|>"];
const CALL_BEGIN: &str = "<|tool_call_begin|>";
const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";
const CALL_END: &str = "<|tool_call_end|>";

/// Every marker, for those who must not hide them from the parser.
pub(crate) fn markers() -> impl Iterator<Item = &'static str> {
    SECTION_BEGIN.into_iter().chain(SECTION_END).chain([CALL_BEGIN, ARGUMENT_BEGIN, CALL_END])
}

/// A call whose name is known and whose arguments have not begun.
#[derive(Clone, Debug)]
struct Begun {
    name: String,
    /// The model's own id, when it can serve as one.
    id: Option<String>,
}

#[derive(Clone, Debug)]
enum State {
    Content,
    Section,
    /// After a call's beginning.
    Id,
    /// Nothing but white space of the arguments has come.
    BeforeArguments(Begun),
    Arguments,
    /// A call that is none: text, up to its end.
    Refused,
}

/// The parser.
#[derive(Clone, Debug)]
pub(crate) struct SectionCalls {
    /// Names of the request's tools.
    names: Vec<String>,
    state: State,
    /// One per marker, in step with the text.
    needles: Vec<(&'static str, Needle)>,
    held: String,
    /// Ids handed out.
    ids: Vec<String>,
    calls: u32,
}

impl SectionCalls {
    pub(crate) fn new(names: Vec<String>) -> Self {
        let needles = markers().map(|marker| (marker, Needle::new(marker))).collect();
        Self { names, state: State::Content, needles, held: String::new(), ids: Vec::new(), calls: 0 }
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<ToolPart>) {
        let mut start = 0;
        for (at, byte) in text.bytes().enumerate() {
            let mut found = None;
            for (marker, needle) in &mut self.needles {
                if needle.feed(byte) {
                    found = Some(*marker);
                }
            }
            if let Some(marker) = found {
                self.held.push_str(&text[start..=at]);
                start = at + 1;
                self.held.truncate(self.held.len() - marker.len());
                let before = std::mem::take(&mut self.held);
                if matches!(self.state, State::Id) {
                    self.named(before, marker, out);
                } else {
                    self.text(before, out);
                    self.marker(marker, out);
                }
            }
        }
        self.held.push_str(&text[start..]);
        if !matches!(self.state, State::Id) {
            let open = self.needles.iter().map(|(_, needle)| needle.open()).max().unwrap_or(0);
            let rest = self.held.split_off(self.held.len().saturating_sub(open));
            let text = std::mem::replace(&mut self.held, rest);
            self.text(text, out);
        }
    }

    /// The answer has ended. A call cut off before its arguments began is dropped.
    pub(crate) fn finish(&mut self, out: &mut Vec<ToolPart>) {
        // Markers are single tokens: what looks like the beginning of one and ends here was text.
        let rest = std::mem::take(&mut self.held);
        if matches!(self.state, State::Content | State::Refused | State::Arguments) {
            self.text(rest, out);
        }
        self.state = State::Content;
    }

    /// Text that no marker can change any more, outside an id.
    fn text(&mut self, text: String, out: &mut Vec<ToolPart>) {
        match &self.state {
            _ if text.is_empty() => {}
            State::Content | State::Refused => content(text, out),
            State::Section | State::Id => {}
            State::BeforeArguments(_) if text.trim().is_empty() => {}
            State::BeforeArguments(_) => self.begin(text.trim_start().to_owned(), out),
            State::Arguments => out.push(ToolPart::Arguments { index: self.calls - 1, fragment: text }),
        }
    }

    /// Hand out the name and the first of the arguments.
    fn begin(&mut self, fragment: String, out: &mut Vec<ToolPart>) {
        let State::BeforeArguments(begun) = std::mem::replace(&mut self.state, State::Arguments) else { return };
        let id = begun.id.filter(|id| !self.ids.contains(id));
        self.ids.extend(id.clone());
        let index = self.calls;
        self.calls += 1;
        out.push(ToolPart::Name { index, name: begun.name, id });
        out.push(ToolPart::Arguments { index, fragment });
    }

    /// A marker after an id.
    fn named(&mut self, id: String, marker: &'static str, out: &mut Vec<ToolPart>) {
        match self.resolve(&id) {
            Some(begun) => self.state = State::BeforeArguments(begun),
            None => {
                content(format!("{CALL_BEGIN}{id}"), out);
                self.state = State::Refused;
            }
        }
        // Usually the arguments' beginning; a call without any may end here.
        match (marker, &self.state) {
            (ARGUMENT_BEGIN, State::Refused) => content(marker.into(), out),
            (ARGUMENT_BEGIN, _) => {}
            _ => self.marker(marker, out),
        }
    }

    /// A marker outside an id. One that makes no sense where it stands says nothing, and is not shown either.
    fn marker(&mut self, marker: &'static str, out: &mut Vec<ToolPart>) {
        if marker == ARGUMENT_BEGIN {
            return;
        }
        if matches!(self.state, State::BeforeArguments(_)) {
            self.begin("{}".into(), out);
        }
        if matches!(self.state, State::Refused) && marker == CALL_END {
            content(marker.into(), out);
        }
        self.state = match (marker, &self.state) {
            (CALL_BEGIN, _) => State::Id,
            (CALL_END, State::Content) => State::Content,
            (CALL_END, _) => State::Section,
            _ if SECTION_END.contains(&marker) => State::Content,
            _ => State::Section,
        };
    }

    /// The function that an id names.
    fn resolve(&self, raw: &str) -> Option<Begun> {
        let id = raw.trim();
        let published = id.strip_prefix("functions.").and_then(|rest| {
            let (name, number) = rest.rsplit_once(':')?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            (is_number && !name.is_empty() && !name.contains(char::is_whitespace)).then_some(name)
        });
        let heads = ["", "functions.", "functions_", "functions:", "functions"].map(|head| id.strip_prefix(head));
        let bare = |name: &'_ str| {
            let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
            // `name`, `name5`, `name:5` and `name_5`.
            [name.len(), digits.len(), digits.trim_end_matches(':').len(), digits.trim_end_matches('_').len()]
        };
        let spelled = heads.into_iter().flatten().flat_map(|name| bare(name).map(|end| &name[..end]));
        let spelled: Vec<&str> = spelled.collect();
        let known = |name: &str| self.names.iter().any(|known| known == name);
        let last = |name: &&str| name.rsplit('.').next().filter(|last| known(last)).map(str::to_owned);
        let name = spelled.iter().find(|name| known(name)).map(|name| (*name).to_owned());
        let name = name.or_else(|| spelled.iter().find_map(last)).or_else(|| published.map(str::to_owned))?;
        Some(Begun { name, id: published.map(|_| id.to_owned()) })
    }
}

fn content(text: String, out: &mut Vec<ToolPart>) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(ToolPart::Content(last)) => last.push_str(&text),
        _ => out.push(ToolPart::Content(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (content, [(name, id, arguments)])
    type Read = (String, Vec<(String, Option<String>, String)>);

    fn read(pieces: &[&str]) -> Read {
        let mut parser = SectionCalls::new(vec!["get_weather".into(), "a.b.f".into(), "f".into()]);
        let mut parts = Vec::new();
        pieces.iter().for_each(|piece| parser.push(piece, &mut parts));
        parser.finish(&mut parts);
        let mut out = Read::default();
        for part in parts {
            match part {
                ToolPart::Content(text) => out.0.push_str(&text),
                ToolPart::Name { index, name, id } => {
                    assert_eq!(index as usize, out.1.len());
                    out.1.push((name, id, String::new()));
                }
                ToolPart::Arguments { index, fragment } => out.1[index as usize].2.push_str(&fragment),
            }
        }
        assert_eq!(parser.calls() as usize, out.1.len());
        out
    }

    fn call(id: &str) -> String {
        format!("{CALL_BEGIN}{id}{ARGUMENT_BEGIN}{{\"city\":\"X\"}}{CALL_END}")
    }

    #[test]
    fn kimi_tool_call_ids_of_every_shape_name_a_tool_or_stay_text() {
        for (id, name, kept) in [
            ("functions.get_weather:0", "get_weather", true),
            ("get_weather:0", "get_weather", false),
            ("functions_get_weather_1", "get_weather", false),
            ("functions.a.b.f:12", "a.b.f", true),
            ("functions.x.y.f:3", "f", true),
            ("functionsget_weather5", "get_weather", false),
            (" functions.get_weather:0\n", "get_weather", true),
            ("functions.unknown:7", "unknown", true),
        ] {
            for section in SECTION_BEGIN {
                let (text, calls) = read(&[&format!("x{section}{}{}", call(id), SECTION_END[0])]);
                assert_eq!(text, "x", "{id}");
                let id = kept.then(|| id.trim().to_owned());
                assert_eq!(calls, [(name.to_owned(), id, "{\"city\":\"X\"}".to_owned())]);
            }
        }
        for id in ["call00003", "", "un\nknown", "functions.:0", "functions.a b:0"] {
            let (text, calls) = read(&[&format!("x{}{}{}y", SECTION_BEGIN[0], call(id), SECTION_END[0])]);
            assert_eq!((text, calls), (format!("x{}y", call(id)), vec![]), "{id}");
        }
    }

    #[test]
    fn kimi_control_tokens_never_leak_however_the_stream_is_cut() {
        let long = "s".repeat(20_000);
        let text = format!(
            "before {} junk {CALL_BEGIN}functions.f:0{ARGUMENT_BEGIN} {{\"s\":\"{long}\"}}{CALL_END}\
             {CALL_BEGIN}functions.f:1{ARGUMENT_BEGIN}{CALL_END}{CALL_BEGIN}functions.f:1{CALL_END}{} after <|tool",
            SECTION_BEGIN[0], SECTION_END[0]
        );
        let f = |id: Option<&str>, arguments: &str| ("f".to_owned(), id.map(str::to_owned), arguments.to_owned());
        let want = (
            "before  after <|tool".to_owned(),
            vec![
                f(Some("functions.f:0"), &format!("{{\"s\":\"{long}\"}}")),
                f(Some("functions.f:1"), "{}"),
                f(None, "{}"), // the same id again cannot serve twice
            ],
        );
        assert_eq!(read(&[&text]), want);
        for width in [1, 2, 7, 23, 100] {
            let pieces: Vec<&str> =
                text.as_bytes().chunks(width).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            assert_eq!(read(&pieces), want, "{width}");
        }
    }

    #[test]
    fn calls_that_are_cut_off_before_their_arguments_are_dropped() {
        let begin = SECTION_BEGIN[0];
        for text in
            [format!("x{begin}{CALL_BEGIN}functions.f"), format!("x{begin}{CALL_BEGIN}functions.f:0{ARGUMENT_BEGIN} ")]
        {
            assert_eq!(read(&[&text]), ("x".into(), vec![]));
        }
        let (_, calls) = read(&[&format!("{begin}{CALL_BEGIN}functions.f:0{ARGUMENT_BEGIN}{{\"a\"")]);
        assert_eq!(calls[0].2, "{\"a\"");
    }
}
