//! Chat templates: Jinja as `transformers` runs it, rendered by `minijinja` with Python's ways of writing values.
//!
//! Same settings as there: `trim_blocks`, `lstrip_blocks`, loop controls, lenient undefined values, no escaping;
//! `tojson`, `raise_exception`, `strftime_now` as there. `{% generation %}` marks training spans and changes no text.
//! Names a template uses and this engine lacks are refused at load. Known difference: dates are UTC.

use minijinja::{Environment, Error, ErrorKind, State, Value, syntax::SyntaxConfig, value::Kwargs};
use serde_json::Map;

use super::{
    messages,
    protect::{Marks, Protector, Rendered, strings},
    py_methods,
    py_text::{self, JsonStyle},
    py_value::{self, from_json},
    strftime::strftime,
    template_audit,
    tokenizer::{NamedTemplate, Tokenizer},
};

/// A template or a chat cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model has no template and none was given.
    #[error("the model has no chat template; give one with --chat-template FILE, or use /v1/completions")]
    Missing,
    /// The template is not valid.
    #[error("chat template: {0}")]
    Syntax(String),
    /// The template uses something that does not exist here.
    #[error("chat template uses what is not supported here: {}; give another one with --chat-template FILE", .0.join(", "))]
    Unsupported(Vec<String>),
    /// A message is malformed.
    #[error("messages[{index}] {cause}")]
    Message {
        /// Which.
        index: usize,
        /// What is wrong.
        cause: String,
    },
    /// The template refused the chat (`raise_exception`).
    #[error("the chat template refuses this chat: {0}")]
    Raised(String),
    /// The template failed.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// The request uses up all private-use characters.
    #[error("the chat uses too many private-use characters (U+100000 and up) to be kept apart from control tokens")]
    PrivateUse,
}

/// What control-token strings inside a request's own text are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentControls {
    /// Ordinary text: nobody can forge a turn. The default.
    #[default]
    AsText,
    /// Control tokens, as `transformers` does.
    Parse,
}

/// One chat to render.
#[derive(Clone, Debug, Default)]
pub struct Chat<'a> {
    /// OpenAI messages.
    pub messages: &'a [serde_json::Value],
    /// OpenAI tools, if any.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents to ground the answer on, if any.
    pub documents: Option<&'a serde_json::Value>,
    /// End with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// More variables for the template (`chat_template_kwargs`); they win over the standard ones.
    pub variables: Option<&'a Map<String, serde_json::Value>>,
    /// See [`ContentControls`].
    pub content_controls: ContentControls,
    /// Now, for `strftime_now`, in seconds since 1970 UTC.
    pub now_unix_s: i64,
}

/// One compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
}

const NAME: &str = "chat";
const NOW: &str = "\u{1}now";
const MARKS_START: &str = "\u{1}marks_start";
const MARKS_END: &str = "\u{1}marks_end";

impl ChatTemplate {
    /// Compile.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        env.set_syntax(syntax.build().map_err(|error| TemplateError::Syntax(describe(&error)))?);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(py_methods::call);
        env.set_formatter(|out, _, value| {
            if let Some(text) = value.as_str() {
                return out.write_str(text).map_err(Error::from);
            }
            out.write_str(&py_text::to_str(value)?).map_err(Error::from)
        });
        add_functions(&mut env);
        let source = drop_generation_tags(source);
        env.add_template_owned(NAME, source.clone()).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let unknown = template_audit::unknown_names(&env, &source);
        if !unknown.is_empty() {
            return Err(TemplateError::Unsupported(unknown));
        }
        Ok(Self { env })
    }

    /// Render with exactly these variables and this clock.
    pub fn render_variables(
        &self,
        variables: &Map<String, serde_json::Value>,
        now_unix_s: i64,
    ) -> Result<String, TemplateError> {
        self.render_marked(variables, now_unix_s, 0..0)
    }

    fn render_marked(
        &self,
        variables: &Map<String, serde_json::Value>,
        now_unix_s: i64,
        marks: std::ops::Range<u32>,
    ) -> Result<String, TemplateError> {
        let variables = variables.iter().map(|(key, value)| (key.clone(), from_json(value)));
        let hidden = [(NOW, now_unix_s), (MARKS_START, marks.start.into()), (MARKS_END, marks.end.into())];
        let hidden = hidden.map(|(key, value)| (key.to_owned(), Value::from(value)));
        let context = py_value::dict(variables.chain(hidden));
        let template = self.env.get_template(NAME).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        template.render(context).map_err(|error| match error.detail().and_then(|d| d.strip_prefix(RAISED)) {
            Some(message) => TemplateError::Raised(message.to_owned()),
            None => TemplateError::Render(describe(&error)),
        })
    }
}

/// The templates of one model.
#[derive(Debug)]
pub struct ChatTemplates {
    default: ChatTemplate,
    tool_use: Option<ChatTemplate>,
}

impl ChatTemplates {
    /// The template given by the user, else those that came with the tokenizer.
    pub fn new(given: Option<&str>, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        match given {
            Some(source) => Ok(Self { default: ChatTemplate::new(source)?, tool_use: None }),
            None => Self::from_named(tokenizer.templates()),
        }
    }

    /// From named templates: `default`, and `tool_use` for requests with tools. A single one of another name is the
    /// default.
    pub fn from_named(templates: &[NamedTemplate]) -> Result<Self, TemplateError> {
        let find = |name: &str| templates.iter().find(|template| template.name == name);
        let default = find("default").or(templates.first()).ok_or(TemplateError::Missing)?;
        let tool_use = find("tool_use").map(|template| ChatTemplate::new(&template.source)).transpose()?;
        Ok(Self { default: ChatTemplate::new(&default.source)?, tool_use })
    }

    /// The prompt of a chat, ready for [`Tokenizer::encode_rendered`].
    pub fn render(&self, chat: &Chat<'_>, tokenizer: &Tokenizer) -> Result<Rendered, TemplateError> {
        let tools = chat.tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let mut messages = messages::normalise(chat.messages)?;
        let mut variables = Map::new();
        let optional = [("tools", tools), ("documents", chat.documents)];
        variables.extend(optional.into_iter().map(|(key, value)| (key.into(), value.cloned().unwrap_or_default())));
        variables.extend(chat.variables.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        let marks = match chat.content_controls {
            ContentControls::Parse => Marks::default(),
            ContentControls::AsText => {
                let given = variables.values().chain(&messages).flat_map(strings);
                let marks = Marks::new(tokenizer.controls(), given).ok_or(TemplateError::PrivateUse)?;
                let protector = Protector { controls: tokenizer.controls(), marks: &marks };
                check_roles(&messages, &protector)?;
                messages.iter_mut().for_each(|message| protector.message(message));
                variables.values_mut().for_each(|value| protector.value(value, &[]));
                marks
            }
        };
        let mut standard = Map::new();
        standard.insert("messages".into(), messages.into());
        standard.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
        let named = tokenizer.named();
        let strings =
            [("bos_token", named.bos), ("eos_token", named.eos), ("unk_token", named.unk), ("pad_token", named.pad)];
        for (key, id) in strings {
            if let Some(text) = tokenizer.string_of(id) {
                standard.insert(key.into(), text.into());
            }
        }
        standard.extend(variables);
        let template = self.tool_use.as_ref().filter(|_| tools.is_some()).unwrap_or(&self.default);
        Ok(Rendered::new(template.render_marked(&standard, chat.now_unix_s, marks.range())?, marks))
    }
}

/// Roles of the OpenAI API.
const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function"];

/// Templates write roles between their own control markup, so a role must not complete a token of its own choice.
fn check_roles(messages: &[serde_json::Value], protector: &Protector<'_>) -> Result<(), TemplateError> {
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if !ROLES.contains(&role) && (role.is_empty() || protector.text(role, true, &[]) != role) {
            let cause = format!("has role {role:?}; expected one of {}", ROLES.join(", "));
            return Err(TemplateError::Message { index, cause });
        }
    }
    Ok(())
}

const RAISED: &str = "\u{1}raised:";

fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

fn add_functions(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    let fromjson = |text: &str| match serde_json::from_str(text) {
        Ok(json) => Ok(from_json(&json)),
        Err(error) => Err(Error::new(ErrorKind::InvalidOperation, format!("fromjson: {error}"))),
    };
    env.add_filter("fromjson", fromjson);
    env.add_filter("from_json", fromjson);
    env.add_filter("string", |value: &Value| py_text::to_str(value));
    env.add_filter("join", join);
    env.add_filter("int", int);
    env.add_filter("float", |value: &Value, default: Option<Value>| match number(value) {
        Some(number) => Value::from(number),
        None => default.unwrap_or(Value::from(0.0)),
    });
    env.add_test("sequence", |value: &Value| {
        use minijinja::value::ValueKind::*;
        matches!(value.kind(), String | Seq | Map | Undefined)
    });
    env.add_test("iterable", |value: &Value| {
        !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
    });
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", py_text::to_str(message)?)))
    });
    env.add_function("strftime_now", |state: &State, pattern: &str| {
        let now = state.lookup(NOW).and_then(|now| i64::try_from(now).ok()).unwrap_or(0);
        strftime(now, pattern)
            .map_err(|what| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {what} is not supported")))
    });
    env.add_function("cycler", minijinja_contrib::globals::cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

fn tojson(state: &State, value: &Value, ascii: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let separators = match kwargs.get::<Option<Vec<String>>>("separators")? {
        Some(pair) => <[String; 2]>::try_from(pair)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of strings"))?,
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let [item_separator, key_separator] = separators;
    let bound = |name: &str| state.lookup(name).and_then(|bound| u32::try_from(bound).ok()).unwrap_or(0);
    let style = JsonStyle {
        ensure_ascii: ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        untouched: bound(MARKS_START)..bound(MARKS_END),
    };
    kwargs.assert_all_used()?;
    py_text::to_json(value, &style)
}

fn number(value: &Value) -> Option<f64> {
    value.as_str().map_or_else(|| f64::try_from(value.clone()).ok(), |text| text.trim().parse().ok())
}

/// What is no number is the default, 0.
fn int(value: &Value, default: Option<Value>) -> Value {
    let whole = value.as_str().and_then(|text| text.trim().parse::<i64>().ok());
    let cut = || number(value).filter(|number| number.is_finite()).map(|number| number as i64);
    match whole.or_else(|| i64::try_from(value.clone()).ok()).or_else(cut) {
        Some(integer) => Value::from(integer),
        None => default.unwrap_or(Value::from(0)),
    }
}

fn join(value: &Value, separator: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let separator = separator.or(kwargs.get("d")?).unwrap_or("");
    let attribute: Option<String> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        out.push_str(if index > 0 { separator } else { "" });
        match &attribute {
            Some(name) => py_text::write_str(&item.get_attr(name)?, &mut out)?,
            None => py_text::write_str(&item, &mut out)?,
        }
    }
    Ok(out)
}

/// `{% generation %}` … `{% endgeneration %}` become an always-true block, with the same white-space control.
fn drop_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let word = tag[..end].trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&tag[..end].replace(word, replacement));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
