//! Caps on what one request may ask for. Each is far above honest use and low enough that no request can exhaust the
//! server; `docs/api.md` lists them.

/// Choices per prompt (`n`).
pub const N_MAX: u32 = 128;
/// Prompts times choices of one request.
pub const CHOICES_MAX: usize = 1024;
/// Likely tokens reported per position (`logprobs`, `top_logprobs`, `prompt_logprobs`).
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// Stop strings.
pub const STOP_COUNT_MAX: usize = 64;
/// Length of one stop string.
pub const STOP_BYTES_MAX: usize = 4096;
/// Stop token ids.
pub const STOP_IDS_MAX: usize = 256;
/// Entries of `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Bad words.
pub const BAD_WORDS_MAX: usize = 256;
/// Length of one bad word.
pub const BAD_WORD_BYTES_MAX: usize = 1024;
/// Tools of one request.
pub const TOOLS_MAX: usize = 1024;
/// Length of `cache_salt`.
pub const CACHE_SALT_BYTES_MAX: usize = 256;
/// Characters kept of a client's request id.
pub const REQUEST_ID_CHARS_MAX: usize = 128;
