//! `POST /tokenize` and `POST /detokenize`: the same encoding as generation, so that counts agree with `usage`.

use serde_json::{Map, Value, json};

use super::{
    chat_request::chat_input,
    error::ApiError,
    fields::Fields,
    request::{self, RequestContext},
};
use crate::frontend::EncodedPrompt;

/// `{"prompt": …}` or `{"messages": …}` to `{"count", "max_model_len", "tokens"}`.
pub fn tokenize(body: Map<String, Value>, context: RequestContext<'_>) -> Result<Value, ApiError> {
    let tokens = encode(body, context)?.ids;
    Ok(json!({"count": tokens.len(), "max_model_len": context.limits.max_model_len, "tokens": tokens}))
}

/// The prompt of a body, as generation encodes and refuses it.
pub fn encode(body: Map<String, Value>, context: RequestContext<'_>) -> Result<EncodedPrompt, ApiError> {
    let fields = Fields::new(body);
    request::model(&fields, context.model_names)?;
    let encoded = match (fields.string("prompt")?.map(str::to_owned), fields.get("messages").is_some()) {
        (Some(_), true) => return Err(ApiError::param("prompt", "Send 'prompt' or 'messages', not both.")),
        (None, false) => return Err(ApiError::param("prompt", "'prompt' is missing; send it, or 'messages'.")),
        (Some(prompt), false) => {
            let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
            fields.finish()?;
            EncodedPrompt { ids: context.frontend.encode(&prompt, add_special)?, ..EncodedPrompt::default() }
        }
        (None, true) => {
            let input = chat_input(&fields, context)?.input;
            fields.finish()?;
            context.frontend.encode_chat(&input)?
        }
    };
    Ok(encoded)
}

/// `{"tokens": […]}` to `{"prompt": text}`. Special tokens are kept unless `skip_special_tokens` is true.
pub fn detokenize(body: Map<String, Value>, context: RequestContext<'_>) -> Result<Value, ApiError> {
    let fields = Fields::new(body);
    request::model(&fields, context.model_names)?;
    let tokens = fields.token_ids("tokens", context.limits.vocab_size, usize::MAX)?;
    let skip_special = fields.bool("skip_special_tokens")?.unwrap_or(false);
    fields.finish()?;
    let tokens = tokens.ok_or_else(|| ApiError::param("tokens", "'tokens' is missing; it must be a list of ids."))?;
    Ok(json!({ "prompt": context.frontend.decode(&tokens, skip_special) }))
}
