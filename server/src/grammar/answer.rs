//! What a request wants of the form of its answer.

use serde_json::Value;

/// The form of the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// JSON that fits a schema.
    Schema(Value),
    /// Text that matches a regular expression, whole.
    Regex(String),
    /// One of these strings; at least one, none empty.
    Choice(Vec<String>),
    /// A grammar in the library's own language, a dialect of Lark.
    Grammar(String),
}

/// Tool calls that must be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// (name, schema of the arguments) of the tools that may be called; at least one.
    pub tools: Vec<(String, Value)>,
    /// More than one call may follow another.
    pub many: bool,
}

/// What the answer consists of.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Text of a form.
    Text(Form),
    /// Calls and nothing else.
    Calls(Calls),
    /// Either: tools may be called, and text that is not a call has a form.
    Either(Form, Calls),
}

/// An answer that must be enforced, and the field of the request to blame.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// What.
    pub answer: Answer,
    /// Name of the field, with its path, that holds the grammar.
    pub param: String,
    /// It is a chat: the answer has the markup of the model's chat format.
    pub is_chat: bool,
}
