//! Answers that obey a grammar: what a request asks for, compiled into the engine's [`Constraint`].
//!
//! * [`answer`] is what was asked, independent of any model; [`text`] writes it down in the grammar language of the
//!   library, inside the markup that the model wraps its answers in; [`check`] looks at schemas first, because it can
//!   say where a mistake is.
//! * [`vocabulary`] gives the library every token's bytes; [`constraint`] is the library's matcher as the engine sees it.
//! * [`compile`] does the work off the server's threads, a few at a time, and remembers the last grammars: agents send
//!   the same tools with every turn.
//!
//! The library is `llguidance`, a lexer made of derivatives of regular expressions below an Earley parser: no automaton
//! is built ahead, so that an innocent-looking schema cannot cost seconds before the first token, and every walk has a
//! budget. Rejected: automata per schema (states multiply with nesting), and a matcher of our own (years of corner cases).
//!
//! [`Constraint`]: tokenspeed_core::grammar::Constraint

pub mod answer;
pub mod check;
pub mod compile;
pub mod constraint;
pub mod text;
mod tool_calls;
pub mod vocabulary;

pub use answer::{Answer, Calls, Form, Wish};
pub use compile::Grammars;

/// Why a request's grammar was not taken. The message is for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar itself is wrong, or too large.
    #[error("{0}")]
    Wrong(String),
    /// Nothing wrong with it, but this server or model cannot enforce it.
    #[error("{0}")]
    Unsupported(String),
}
