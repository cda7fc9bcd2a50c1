//! What a step of an answer adds: text pieces, token reports and ids, in buffers that are reused from token to token.

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
    /// Every generated token, a final end-of-sequence or stop token too; kept only when ids were asked for.
    pub ids: Vec<u32>,
}

impl Delta {
    /// Empty it, keeping capacity.
    pub fn clear(&mut self) {
        self.piece.clear();
        self.tokens.clear();
        self.ids.clear();
    }

    /// Nothing to tell, but for ids.
    pub fn says_nothing(&self) -> bool {
        self.piece.is_empty() && self.tokens.is_empty()
    }
}
