//! A server behind a URL as a target.
//!
//! Before anything is measured it is asked what it can do: whether it tokenizes (`/tokenize`), takes prompts of token ids
//! on `/v1/completions`, and tells the ids of its answers (`return_token_ids`). With all three every id is exact. Without
//! the last an answer's text is encoded again, and counts as known if that gives as many tokens as the server made;
//! without token ids in prompts the sessions are chats of words.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    in_process::ids_of,
    target::{Answer, Ask, EngineCounters, Prompt, Target},
};
use crate::cli::bench::client::{self, ClientError, Target as Address};

/// Words whose tokens prompts are made of.
pub const WORDS: [&str; 64] = [
    "river", "stone", "the", "of", "light", "under", "market", "seven", "and", "slow", "green", "paper", "house", "a",
    "turning", "north", "file", "test", "open", "close", "error", "line", "value", "key", "list", "map", "read",
    "write", "path", "name", "type", "code", "branch", "merge", "build", "check", "node", "tree", "leaf", "root",
    "table", "row", "cell", "page", "block", "cache", "queue", "task", "thread", "lock", "wait", "send", "port",
    "host", "user", "group", "time", "date", "year", "day", "hour", "red", "blue", "gold",
];

/// How a server is talked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Chat, whatever else it can.
    pub chat: bool,
    /// Send nothing that the OpenAI API does not have.
    pub plain: bool,
}

/// A server that has been asked what it can do.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    address: Address,
    timeout: Duration,
    page_tokens: u32,
    model: String,
    manner: Manner,
    /// Ids of [`WORDS`], if prompts can be ids.
    pool: Option<Vec<u32>>,
    can_tokenize: bool,
    tells_ids: bool,
}

impl Server {
    /// Connect and find out. Errors when it cannot be reached or answers neither way, in one line.
    pub fn open(
        address: Address,
        model: Option<String>,
        manner: Manner,
        page_tokens: u32,
        timeout: Duration,
    ) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start the runtime: {error}"))?;
        let mut server = Self {
            runtime,
            address,
            timeout,
            page_tokens,
            model: model.unwrap_or_default(),
            manner,
            pool: None,
            can_tokenize: false,
            tells_ids: false,
        };
        if server.model.is_empty() {
            let models = server.call("GET", "/v1/models", None).map_err(|error| error.to_string())?;
            let first = models["data"][0]["id"].as_str();
            server.model = first.ok_or("/v1/models names no model; give --model")?.to_owned();
        }
        let pool = server.tokenize(json!({"prompt": WORDS.join(" "), "add_special_tokens": false}))?;
        server.can_tokenize = pool.is_some();
        if let Some(pool) = pool.filter(|pool| !manner.chat && pool.len() >= 16) {
            server.pool = Some(pool);
            server.find_out_about_ids()?;
        }
        Ok(server)
    }

    /// Keep `pool` if prompts of ids are taken; see whether answers come with ids.
    fn find_out_about_ids(&mut self) -> Result<(), String> {
        for tells_ids in [true, false] {
            if tells_ids && self.manner.plain {
                continue;
            }
            self.tells_ids = tells_ids;
            let prompt = Prompt::Ids(self.pool.clone().unwrap_or_default());
            let probe = Ask { prompt, shared: None, max_tokens: 1, seed: None, salt: "probe".into() };
            match self.stream(&probe) {
                Ok(reply) => {
                    self.tells_ids = reply.ids.is_some();
                    return Ok(());
                }
                Err(ClientError::Refused { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.pool = None;
        Ok(())
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.runtime.block_on(client::call(&self.address, method, path, body, self.timeout))
    }

    /// Ids from `/tokenize`; `None` if the server has no such route or cannot.
    fn tokenize(&self, mut body: Value) -> Result<Option<Vec<u32>>, String> {
        body["model"] = self.model.as_str().into();
        match self.call("POST", "/tokenize", Some(&body)) {
            Ok(answer) => Ok(ids_of(&answer["tokens"])),
            Err(ClientError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn stream(&self, ask: &Ask) -> Result<client::Reply, ClientError> {
        let mut body = json!({
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": if ask.seed.is_some() { 1 } else { 0 },
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(seed) = ask.seed {
            body["seed"] = seed.into();
        }
        if !self.manner.plain {
            body["ignore_eos"] = true.into();
            body["skip_special_tokens"] = false.into();
            body["cache_salt"] = ask.salt.as_str().into();
        }
        let path = match &ask.prompt {
            Prompt::Ids(ids) => {
                body["prompt"] = ids.as_slice().into();
                if self.tells_ids {
                    body["return_token_ids"] = true.into();
                }
                "/v1/completions"
            }
            Prompt::Chat { messages, tools } => {
                body["messages"] = messages.as_slice().into();
                if !tools.is_empty() {
                    body["tools"] = tools.as_slice().into();
                }
                "/v1/chat/completions"
            }
        };
        self.runtime.block_on(client::stream_reply(&self.address, path, &body, self.timeout))
    }
}

impl Target for Server {
    fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let reply = self.stream(&ask).map_err(|error| error.to_string())?;
        if !reply.has_usage {
            return Err("the server sent no usage figures although stream_options.include_usage asked for them".into());
        }
        let sample = reply.sample;
        let told = reply.ids.filter(|ids| ids.len() as u64 == sample.completion_tokens);
        let is_told = told.is_some();
        let ids = match (told, self.can_tokenize) {
            (Some(ids), _) => Some(ids),
            (None, true) => self.tokenize(json!({"prompt": reply.text, "add_special_tokens": false}))?,
            (None, false) => None,
        };
        let is_exact = is_told || ids.as_ref().is_some_and(|ids| ids.len() as u64 == sample.completion_tokens);
        Ok(Answer {
            prompt: match ask.prompt {
                Prompt::Ids(ids) => Some(ids),
                Prompt::Chat { .. } => None,
            },
            ids,
            is_exact,
            text: reply.text,
            // An answer without any text has no moment when it began.
            first: sample.first_token.unwrap_or(sample.whole),
            whole: sample.whole,
            prompt_tokens: sample.prompt_tokens,
            cached_tokens: reply.has_cached.then_some(sample.cached_tokens),
            answer_tokens: sample.completion_tokens,
        })
    }

    fn pool(&self) -> Option<&[u32]> {
        self.pool.as_deref()
    }

    fn encode(&self, prompt: &Prompt) -> Result<Option<Vec<u32>>, String> {
        match prompt {
            Prompt::Ids(ids) => Ok(Some(ids.clone())),
            Prompt::Chat { .. } if !self.can_tokenize => Ok(None),
            Prompt::Chat { messages, tools } if tools.is_empty() => self.tokenize(json!({"messages": messages})),
            Prompt::Chat { messages, tools } => self.tokenize(json!({"messages": messages, "tools": tools})),
        }
    }

    fn counters(&self) -> Option<EngineCounters> {
        None
    }

    fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    fn describe(&self) -> String {
        let how = match (&self.pool, self.tells_ids, self.can_tokenize) {
            (Some(_), true, _) => "prompts of token ids, answers with token ids",
            (Some(_), false, _) => "prompts of token ids, answers encoded again with /tokenize",
            (None, _, true) => "chats of words, encoded with /tokenize for the maximum",
            (None, _, false) => "chats of words; the server has no /tokenize, so the maximum is unknown",
        };
        format!("{} at http://{}, {how}", self.model, self.address.authority)
    }
}
