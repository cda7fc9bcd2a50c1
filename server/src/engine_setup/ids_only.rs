//! Text rules of a model without a tokenizer: random weights for tests and sizing. Prompts are token ids, and a token
//! shows as its number.

use crate::frontend::{
    ChatInput, EncodedPrompt, FrontendError, OutputOptions, OutputStream, Parsers, Piece, TextFrontend,
};

pub(super) struct IdsOnly {
    vocab_size: u32,
    eos_ids: Vec<u32>,
}

impl IdsOnly {
    pub(super) fn new(vocab_size: u32, eos_ids: Vec<u32>) -> Self {
        Self { vocab_size, eos_ids }
    }
}

fn no_tokenizer(param: &'static str) -> FrontendError {
    let message = "this model has random weights and no tokenizer: send token ids to /v1/completions".into();
    FrontendError::Unsupported { param, message }
}

fn spell(id: u32) -> String {
    format!("{id} ")
}

impl TextFrontend for IdsOnly {
    fn encode(&self, _text: &str, _add_special: bool) -> Result<Vec<u32>, FrontendError> {
        Err(no_tokenizer("prompt"))
    }

    fn encode_chat(&self, _chat: &ChatInput) -> Result<EncodedPrompt, FrontendError> {
        Err(no_tokenizer("messages"))
    }

    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        ids.iter().map(|id| spell(*id)).collect()
    }

    fn token_bytes(&self, id: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(spell(id).as_bytes());
    }

    fn is_special(&self, id: u32) -> bool {
        self.eos_ids.contains(&id)
    }

    fn open(&self, _prompt: &[u32], options: OutputOptions) -> Result<Box<dyn OutputStream>, FrontendError> {
        if options.stop.is_empty() { Ok(Box::new(Numbers)) } else { Err(no_tokenizer("stop")) }
    }

    fn word_sequences(&self, _word: &str) -> Result<Vec<Vec<u32>>, FrontendError> {
        Err(no_tokenizer("bad_words"))
    }

    fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    fn has_chat_template(&self) -> bool {
        false
    }

    fn parsers(&self) -> Parsers {
        Parsers::default()
    }
}

struct Numbers;

impl OutputStream for Numbers {
    fn push(&mut self, id: u32, piece: &mut Piece) {
        piece.content.push_str(&spell(id));
    }

    fn finish(&mut self, _piece: &mut Piece) {}
}
