//! Tokens as the OpenAI API shows them beside log-probabilities: a string and the bytes.

use super::{error::UnknownId, tokenizer::Tokenizer};

/// One token as shown to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenText {
    /// The text when the bytes are whole characters, else `bytes:\xf0\x9f` with each byte in hex. U+FFFD is not used:
    /// different tokens would get one name, and the completions API keys its list of alternatives by name.
    pub token: String,
    /// The bytes themselves.
    pub bytes: Vec<u8>,
}

impl Tokenizer {
    /// String and bytes of one id. Control tokens show their own string.
    pub fn token_text(&self, id: u32) -> Result<TokenText, UnknownId> {
        let bytes = self.vocabulary().bytes(id)?.to_vec();
        let token = match std::str::from_utf8(&bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold(String::from("bytes:"), |text, byte| text + &format!("\\x{byte:02x}")),
        };
        Ok(TokenText { token, bytes })
    }
}
