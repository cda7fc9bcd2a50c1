//! The text side of Kimi K3 and Kimi Linear: tokenizer, chat formats, answer parsers.
//!
//! * Tokenizer: [`rank_file`] finds it, `Tokenizer::from_folder` reads it; `pre_tokenizer` cuts, `bpe` merges.
//! * K3 chats: [`encode_chat`] writes XTML segment by segment, with Moonshot's own texts from the checkpoint's
//!   `encoding_k3.py` ([`PromptTexts`]); `xtml_answer` reads answers.
//! * Kimi Linear chats: a Jinja template (`sections`, unless the folder brings one); `section_calls` reads tool calls.
//! * [`tiny_tokenizer`] writes a small made-up tokenizer in the published layout.

mod bpe;
mod char_class;
mod folder;
mod pre_tokenizer;
mod prompt_texts;
mod python_strings;
mod ranks;
mod section_calls;
mod sections;
mod segments;
mod slices;
mod specials;
mod tiny;
mod tool_results;
mod xtml_answer;
mod xtml_call;
mod xtml_chat;
mod xtml_tag;

pub use folder::rank_file;
pub use prompt_texts::{ENCODING_FILE, Effort, MissingText, PromptTexts, Slot};
pub use segments::XtmlPrompt;
pub use tiny::{TinyTokenizer, TinyTokenizerError, tiny_linear_tokenizer, tiny_tokenizer};
pub use xtml_answer::XtmlOptions;
pub use xtml_chat::{AnswerForm, ToolUse, XtmlChat, XtmlError, encode_chat};

pub(crate) use bpe::encode;
pub(crate) use ranks::Ranks;
pub(crate) use section_calls::{SECTION_BEGIN, SectionCalls, markers as section_markers};
pub(crate) use xtml_answer::XtmlAnswer;
