//! A loaded model behind the real HTTP server on a free port.

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use serde_json::{Value, json};
use tokenspeed_core::client::{Engine, Metrics};
use tokenspeed_server::{
    engine_setup::Loaded,
    http::{
        server,
        state::{ServerConfig, ServerState},
    },
};

use super::client::{self, Reply, events, finishes, joined};

/// Name that models are served under.
pub const MODEL: &str = "a:b/c.d";

/// A running server; stopped on drop.
pub struct Serving {
    pub address: SocketAddr,
    pub engine: Arc<dyn Engine>,
    state: Arc<ServerState>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub fn start(loaded: Loaded) -> Self {
        let listener = server::bind("127.0.0.1", 0).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let drain_timeout = Duration::from_millis(100);
        let state = ServerState::new(ServerConfig {
            model_names: vec![MODEL.into()],
            drain_timeout,
            ..ServerConfig::default()
        });
        let engine = loaded.engine.clone();
        state.set_ready(loaded);
        let shared = state.clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.expect("a runtime").block_on(server::serve(state, listener, stopped)).expect("served");
        });
        Self { address, engine, state: shared, stop: Some(stop), thread: Some(thread) }
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        client::post(self.address, path, &body.to_string())
    }

    /// A completion of `prompt` (text, ids or lists of either) with more fields.
    pub fn complete(&self, prompt: impl Into<Value>, fields: Value) -> Reply {
        self.post("/v1/completions", &with(json!({"model": MODEL, "prompt": prompt.into()}), fields))
    }

    /// A completion that must succeed.
    pub fn completion(&self, prompt: impl Into<Value>, fields: Value) -> Value {
        let reply = self.complete(prompt, fields);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// A chat with one user message.
    pub fn chat(&self, content: &str, fields: Value) -> Reply {
        let body = json!({"model": MODEL, "messages": [{"role": "user", "content": content}]});
        self.post("/v1/chat/completions", &with(body, fields))
    }

    /// The same request whole and streamed, as completion and as chat: (text, finish reason, completion tokens).
    pub fn four_forms(&self, prompt: &str, fields: &Value) -> Vec<(String, String, u64)> {
        let mut forms = Vec::new();
        for chat in [false, true] {
            let send = |more: Value| {
                let fields = with(fields.clone(), more);
                if chat { self.chat(prompt, fields) } else { self.complete(prompt, fields) }
            };
            let whole = send(json!({}));
            assert_eq!(whole.status, 200, "{}", whole.text());
            let whole = whole.json();
            let choice = &whole["choices"][0];
            let text = if chat { &choice["message"]["content"] } else { &choice["text"] };
            let reason = choice["finish_reason"].as_str().expect("a reason");
            let count = whole["usage"]["completion_tokens"].as_u64().expect("a count");
            forms.push((text.as_str().unwrap_or_default().to_owned(), reason.to_owned(), count));
            let streamed = events(&send(json!({"stream": true, "stream_options": {"include_usage": true}})));
            let [reason]: [String; 1] = finishes(&streamed, 0).try_into().expect("one finish reason");
            let usage = streamed.iter().find_map(|e| e["usage"]["completion_tokens"].as_u64()).expect("a usage chunk");
            forms.push((joined(&streamed, 0), reason, usage));
        }
        forms
    }

    /// All four forms give this.
    pub fn assert_all(&self, prompt: &str, fields: Value, text: &str, reason: &str, tokens: u64) {
        for form in self.four_forms(prompt, &fields) {
            assert_eq!(form, (text.to_owned(), reason.to_owned(), tokens), "{prompt} {fields}");
        }
    }

    /// Wait until nothing is answered, runs or waits, nor holds pages that a step in flight still writes; the figures.
    pub fn idle_metrics(&self) -> Metrics {
        for _ in 0..2000 {
            let metrics = self.engine.metrics();
            let is_let_go = metrics.pages_used == metrics.pages_cached;
            if metrics.running == 0 && metrics.waiting == 0 && is_let_go && self.state.active() == 0 {
                return metrics;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("still running after 10 s: {:?}", self.engine.metrics());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking(), "the server thread panicked");
        }
    }
}

/// `object` with the fields of `more`.
pub fn with(mut object: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut object, more) else { panic!("two objects") };
    fields.extend(more);
    object
}
