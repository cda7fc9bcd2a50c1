//! Text on both sides of a model: chat templates and tokenizers in front, readable answers behind.
//!
//! Pure and synchronous: no files beyond the folder given, no clock beyond the one injected, no threads.

mod byte_map;
mod call_json;
mod detokenizer;
mod error;
mod folder;
mod gguf_meta;
pub mod kimi;
mod library_decoder;
mod logprob_text;
mod messages;
mod output;
mod pre_tokenizer;
mod protect;
mod py_methods;
mod py_text;
mod py_value;
mod reasoning;
mod special;
mod spm;
mod stop;
mod strftime;
mod template;
mod template_audit;
mod tokenizer;
mod tool_call;
mod vocabulary;

pub use detokenizer::{Detokenizer, SpecialText};
pub use error::{TokenizerError, UnknownId};
pub use folder::TokenizerFiles;
pub use gguf_meta::GgufTokenizerMeta;
pub use logprob_text::TokenText;
pub use output::{Delta, Message, Output, OutputOptions, OutputStream, SettledToken, ToolCall, ToolFormat};
pub use protect::{ASSISTANT_MARKERS, Rendered};
pub use reasoning::ReasoningFormat;
pub use special::{SpecialToken, SpecialTokens};
pub use stop::{EmptyStop, StopMatcher, StopOutput};
pub use template::{Chat, ChatTemplate, ChatTemplates, ContentControls, TemplateError};
pub use tokenizer::{Controls, NamedIds, NamedTemplate, Tokenizer};
pub use vocabulary::{SpacePrefix, TokenKind, Vocabulary};
