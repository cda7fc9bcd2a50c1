//! A server to test, and a client to test it with.
pub mod client;
pub mod engine;
pub mod frontend;
pub mod noise;
pub mod schema;

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle};

use tokenspeed_server::{
    engine_setup::{GenerationDefaults, Loaded, ModelInfo},
    http::{
        server,
        state::{ServerConfig, ServerState},
    },
};

pub use client::Reply;
pub use engine::ScriptEngine;

/// Context of the scripted model, in tokens.
pub const CONTEXT: u32 = 256;
/// Name it is served under.
pub const MODEL: &str = "a:b/c.d";

/// A running server; stopped on drop.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: Arc<ServerState>,
    pub engine: Arc<ScriptEngine>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub fn config() -> ServerConfig {
    ServerConfig { model_names: vec![MODEL.into()], ..ServerConfig::default() }
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(config(), GenerationDefaults::default())
    }

    pub fn with(config: ServerConfig, defaults: GenerationDefaults) -> Self {
        let server = Self::loading(config);
        server.finish_loading(defaults);
        server
    }

    /// A server whose model is still loading.
    pub fn loading(config: ServerConfig) -> Self {
        let listener = server::bind("127.0.0.1", 0).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = ServerState::new(config);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.expect("a runtime").block_on(server::serve(shared, listener, stopped)).expect("served");
        });
        Self { address, state, engine: Arc::default(), stop: Some(stop), thread: Some(thread) }
    }

    pub fn finish_loading(&self, defaults: GenerationDefaults) {
        self.state.set_ready(Loaded {
            engine: self.engine.clone(),
            frontend: Arc::new(frontend::ByteFrontend),
            info: ModelInfo { name: "script".into(), defaults, ..ModelInfo::default() },
        });
    }

    /// As SIGTERM does.
    pub fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Wait until it has drained.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server thread does not panic");
        }
    }

    pub fn post(&self, path: &str, body: &str) -> Reply {
        client::post(self.address, path, body)
    }

    pub fn get(&self, path: &str) -> Reply {
        client::request(self.address, "GET", path, &[], b"")
    }

    /// A completion of `prompt` with more fields (`, "a": 1`).
    pub fn complete(&self, prompt: &str, fields: &str) -> Reply {
        self.post("/v1/completions", &format!(r#"{{"model":"{MODEL}","prompt":"{prompt}"{fields}}}"#))
    }

    /// A chat with one user message.
    pub fn chat(&self, content: &str, fields: &str) -> Reply {
        let body = format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"{content}"}}]{fields}}}"#);
        self.post("/v1/chat/completions", &body)
    }

    /// A good request is answered.
    pub fn assert_alive(&self) {
        let reply = self.complete("x B", "");
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["choices"][0]["text"], "alpha beta gamma delta");
    }

    /// Wait until the engine runs nothing.
    pub fn wait_idle(&self) {
        for _ in 0..400 {
            if self.engine.running() == 0 && self.state.active() == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{} sequences and {} requests still run", self.engine.running(), self.state.active());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.begin_stop();
        self.engine.release();
        self.join();
    }
}
