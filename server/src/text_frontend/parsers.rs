//! Which parsers read a model's answers: as the operator says, else as the model's chat format shows.

use tokenspeed_models::text::TemplateError;

use crate::cli::engine_options::{ReasoningParser, ToolCallParser};

/// How tool calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    Hermes,
    Sections,
    Xtml,
}

/// How thinking is told from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thoughts {
    Tags,
    Xtml,
}

/// The choice; `None`: not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) calls: Option<Calls>,
    pub(super) thoughts: Option<Thoughts>,
}

/// A model cannot be served with these text options.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// One parser reads kimi-k3's channels and the other something else.
    #[error(
        "--tool-call-parser {tools} and --reasoning-parser {reasoning} read different formats; kimi-k3 can only stand \
         with itself, or with none"
    )]
    Parsers {
        /// What would read tool calls.
        tools: &'static str,
        /// What would read reasoning.
        reasoning: &'static str,
    },
}

impl Choice {
    /// `mentions`: whether the chat template has a text in it; `is_xtml`: chats are written in Kimi K3's format.
    pub(super) fn new(
        tools: ToolCallParser,
        reasoning: ReasoningParser,
        is_xtml: bool,
        mentions: impl Fn(&str) -> bool,
    ) -> Result<Self, SetupError> {
        let calls = match tools {
            ToolCallParser::Auto if is_xtml => Some(Calls::Xtml),
            ToolCallParser::Auto if mentions("<|tool_call_begin|>") => Some(Calls::Sections),
            ToolCallParser::Auto => mentions("<tool_call>").then_some(Calls::Hermes),
            ToolCallParser::Hermes => Some(Calls::Hermes),
            ToolCallParser::KimiK2 => Some(Calls::Sections),
            ToolCallParser::KimiK3 => Some(Calls::Xtml),
            ToolCallParser::None => None,
        };
        let thoughts = match reasoning {
            ReasoningParser::Auto if is_xtml => Some(Thoughts::Xtml),
            ReasoningParser::Auto => mentions("</think>").then_some(Thoughts::Tags),
            ReasoningParser::Think => Some(Thoughts::Tags),
            ReasoningParser::KimiK3 => Some(Thoughts::Xtml),
            ReasoningParser::None => None,
        };
        let xtml_calls = calls.map(|calls| calls == Calls::Xtml);
        let xtml_thoughts = thoughts.map(|thoughts| thoughts == Thoughts::Xtml);
        match (xtml_calls, xtml_thoughts) {
            (Some(a), Some(b)) if a != b => Err(SetupError::Parsers {
                tools: match calls {
                    Some(Calls::Hermes) => "hermes",
                    Some(Calls::Sections) => "kimi-k2",
                    Some(Calls::Xtml) => "kimi-k3",
                    None => "none",
                },
                reasoning: if b { "kimi-k3" } else { "think" },
            }),
            _ => Ok(Self { calls, thoughts }),
        }
    }

    /// One parser reads both out of Kimi K3's channels.
    pub(super) fn is_xtml(self) -> bool {
        self.calls == Some(Calls::Xtml) || self.thoughts == Some(Thoughts::Xtml)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_chooses_and_the_operator_overrules() {
        use {ReasoningParser as R, ToolCallParser as T};
        let of = |tools, reasoning, is_xtml, text: &str| {
            Choice::new(tools, reasoning, is_xtml, |part| text.contains(part)).map(|c| (c.calls, c.thoughts))
        };
        assert_eq!(of(T::Auto, R::Auto, true, "").unwrap(), (Some(Calls::Xtml), Some(Thoughts::Xtml)));
        assert_eq!(of(T::None, R::Auto, true, "").unwrap(), (None, Some(Thoughts::Xtml)));
        assert_eq!(
            of(T::Auto, R::Auto, false, "<|tool_call_begin|> <tool_call>").unwrap(),
            (Some(Calls::Sections), None)
        );
        assert_eq!(
            of(T::Auto, R::Auto, false, "<tool_call> </think>").unwrap(),
            (Some(Calls::Hermes), Some(Thoughts::Tags))
        );
        assert_eq!(of(T::KimiK2, R::Think, false, "").unwrap(), (Some(Calls::Sections), Some(Thoughts::Tags)));
        assert_eq!(of(T::KimiK3, R::None, false, "").unwrap(), (Some(Calls::Xtml), None));
        let error = of(T::Hermes, R::Auto, true, "").unwrap_err().to_string();
        assert!(error.starts_with("--tool-call-parser hermes and --reasoning-parser kimi-k3"), "{error}");
    }
}
