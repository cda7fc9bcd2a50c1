//! An answer written down in the library's grammar language, inside the markup of the model's chat format.
//!
//! Special tokens stand by id (`<[5]>`): a grammar's text never becomes one, and free text never contains one.
//! White space between the tokens of JSON is allowed, but bounded: a model that is stuck could otherwise write blanks
//! until its tokens run out.

use serde_json::{Value, json};

use super::{
    Answer, Form, GrammarError, check,
    tool_calls::{hermes, sections, xtml},
    vocabulary::Specials,
};
use crate::frontend::{AnswerMarkup, CallMarkup, ThoughtMarkup};

/// Name of a grammar that the user wrote.
pub const USER: &str = "user_grammar";
/// Most white space in a row: a line break and the indent of ten levels.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,24}";

/// A grammar to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The grammar that starts.
    pub lark: String,
    /// One that it refers to as [`USER`].
    pub user: Option<String>,
}

/// A text literal.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A special token where the vocabulary has one spelt so, else its letters.
pub(super) fn mark(text: &str, specials: &Specials) -> String {
    specials.id_of(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"))
}

/// JSON of a schema, as a nested grammar.
pub(super) fn json_of(schema: &Value) -> String {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        other => other.clone(),
    };
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), json!({"whitespace_pattern": BLANKS}));
    }
    format!("%json {schema}")
}

fn form(form: &Form) -> Result<(String, Option<String>), GrammarError> {
    Ok(match form {
        Form::Schema(schema) => {
            check::schema(schema)?;
            (json_of(schema), None)
        }
        Form::Regex(regex) => {
            check::nesting(regex)?;
            let regex = regex.strip_prefix('^').unwrap_or(regex);
            // An escaped dollar is a dollar.
            let is_anchor = regex.ends_with('$') && !regex.ends_with(r"\$");
            let regex = if is_anchor { &regex[..regex.len() - 1] } else { regex };
            // Two slashes would begin a comment.
            let lark =
                if regex.is_empty() { literal("") } else { format!("/{}/", llguidance::regex_to_lark(regex, "")) };
            (lark, None)
        }
        Form::Choice(texts) => (texts.iter().map(|text| literal(text)).collect::<Vec<_>>().join(" | "), None),
        Form::Grammar(lark) => {
            check::nesting(lark)?;
            (format!("@{USER}"), Some(lark.clone()))
        }
    })
}

/// Write `answer`; `markup` is that of the chat format, `None` for plain text.
pub fn write(
    answer: &Answer,
    markup: Option<AnswerMarkup>,
    in_reasoning: bool,
    specials: &Specials,
) -> Result<Written, GrammarError> {
    let (text, calls) = match answer {
        Answer::Text(text) => (Some(form(text)?), None),
        Answer::Calls(calls) => (None, Some(calls)),
        Answer::Either(text, calls) => (Some(form(text)?), Some(calls)),
    };
    if let Some(calls) = calls {
        for (name, schema) in &calls.tools {
            check::schema(schema).map_err(|error| match error {
                GrammarError::Wrong(why) => GrammarError::Wrong(format!("parameters of tool '{name}': {why}")),
                other => other,
            })?;
        }
    }
    let (text, user) = text.map_or((None, None), |(text, user)| (Some(text), user));
    let markup = markup.unwrap_or_default();
    if markup.thoughts == ThoughtMarkup::Xtml || markup.calls == CallMarkup::Xtml {
        return Ok(Written { lark: xtml(text.as_deref(), calls, in_reasoning, specials)?, user });
    }
    let mut lark = String::new();
    let called = match (calls, markup.calls) {
        (None, _) => None,
        (Some(calls), CallMarkup::Hermes) => Some(hermes(calls, specials)),
        (Some(calls), CallMarkup::Sections) => Some(sections(calls, specials)?),
        (Some(_), CallMarkup::None | CallMarkup::Xtml) => {
            return Err(GrammarError::Unsupported("this model's tool calls have no known format".into()));
        }
    };
    let start = match markup.thoughts {
        ThoughtMarkup::Tags if in_reasoning => "thoughts BLANKS? answer",
        ThoughtMarkup::Tags => "opened? answer",
        ThoughtMarkup::None | ThoughtMarkup::Xtml => "answer",
    };
    lark.push_str(&format!("start: {start}\n"));
    if markup.thoughts == ThoughtMarkup::Tags {
        let close = "</think>";
        lark.push_str(&format!("opened: {} thoughts BLANKS?\n", mark("<think>", specials)));
        match specials.id_of(close) {
            Some(id) => lark.push_str(&format!("thoughts: FREE <[{id}]>\nFREE: /(?s:.*)/\n")),
            None => lark.push_str(&format!("thoughts[suffix={}]: /(?s:.*)/\n", literal(close))),
        }
        lark.push_str("BLANKS: /[ \\t\\r\\n]{1,8}/\n");
    }
    let alternatives: Vec<&str> =
        [text.is_some().then_some("text"), called.as_ref().map(|_| "calls")].into_iter().flatten().collect();
    lark.push_str(&format!("answer: {}\n", alternatives.join(" | ")));
    if let Some(text) = text {
        lark.push_str(&format!("text: {text}\n"));
    }
    if let Some(called) = called {
        lark.push_str(&called);
    }
    Ok(Written { lark, user })
}
