//! What a step of an answer adds: text pieces and token reports, in buffers that are reused from token to token.

use tokenspeed_core::request::TokenLogprobs;

use crate::frontend::Piece;

/// One generated token that is part of the answer (a final end-of-sequence or stop token is not).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenReport {
    /// Token id.
    pub id: u32,
    /// If asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Everything since the last time the reader looked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Text, reasoning and tool calls.
    pub piece: Piece,
    /// Tokens, also those whose text is still held back; kept only when log-probabilities were asked for.
    pub tokens: Vec<TokenReport>,
}

impl Delta {
    /// Empty it, keeping capacity.
    pub fn clear(&mut self) {
        self.piece.clear();
        self.tokens.clear();
    }

    /// Nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.piece.is_empty() && self.tokens.is_empty()
    }
}
