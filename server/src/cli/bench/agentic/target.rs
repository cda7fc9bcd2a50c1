//! Who answers: one trait, so that the same sessions run against an engine in this process and against any server.

use std::time::Duration;

use serde_json::Value;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Token ids.
    Ids(Vec<u32>),
    /// Messages in the shape of the chat API, and tools.
    Chat {
        /// At least one.
        messages: Vec<Value>,
        /// Perhaps none.
        tools: Vec<Value>,
    },
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The prompt.
    pub prompt: Prompt,
    /// How much of a prompt of ids is what all sessions begin with, where the target is to be told as a chat layer would; chats tell
    /// by themselves.
    pub shared: Option<u32>,
    /// Length of the answer; end-of-sequence is ignored where the server can.
    pub max_tokens: u32,
    /// Sample with this seed; greedy without.
    pub seed: Option<u64>,
    /// Separates cached prefixes from those of other passes.
    pub salt: String,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Ids of the prompt as the model saw it, where the target can tell at no cost.
    pub prompt: Option<Vec<u32>>,
    /// Ids of the answer to continue it with, exact if `is_exact`. `None`: only the text is known.
    pub ids: Option<Vec<u32>>,
    /// `ids` are what the model made, not its text encoded again to another number of tokens.
    pub is_exact: bool,
    /// Its text; empty in this process, where ids say more.
    pub text: String,
    /// From sending to the first token.
    pub first: Duration,
    /// From sending to the end.
    pub whole: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, taken from a cache; `None` if the server does not say.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub answer_tokens: u64,
}

/// Figures of the engine behind a target, where it is in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Requests that lost their memory.
    pub preemptions: u64,
    /// Tokens found in the cache and computed again for want of a stored state.
    pub cut_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Pages for tokens, in use or not.
    pub pages: u64,
}

/// Something that answers. Used from many threads at once.
pub trait Target: Sync {
    /// Ask and wait for the whole answer. Errors say what and where, in one line.
    fn ask(&self, ask: Ask) -> Result<Answer, String>;
    /// Ids that prompts are made of; `None`: prompts must be messages.
    fn pool(&self) -> Option<&[u32]>;
    /// Ids of a conversation, as the target would see it; `None` if it cannot tell.
    fn encode(&self, prompt: &Prompt) -> Result<Option<Vec<u32>>, String>;
    /// Counters since start; `None` for servers.
    fn counters(&self) -> Option<EngineCounters>;
    /// Tokens of a reusable unit.
    fn page_tokens(&self) -> u32;
    /// Longest prompt and answer together; `None` if it does not say.
    fn max_tokens(&self) -> Option<u32> {
        None
    }
    /// Whom, and how ids are known: a line for the report.
    fn describe(&self) -> String;
}
