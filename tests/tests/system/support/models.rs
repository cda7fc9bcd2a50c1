//! The models that tests run.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::json;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    kimi::{
        self,
        LayerKind::{Kda, Mla},
    },
    tiny::Tiny,
};
use tokenspeed_server::cli::model_path::resolve_model;
use tokenspeed_tests::script_model;

/// A folder of its own, gone when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
        std::fs::create_dir_all(&path).expect("the target folder is writable");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), content).expect("written");
        self.file(name)
    }

    /// What MODEL is on the command line.
    pub fn model(&self) -> String {
        self.0.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now goes with the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// See [`script_model`].
pub fn script() -> Folder {
    let folder = Folder::new("script");
    script_model::write(folder.path()).expect("written");
    folder
}

/// Two random layers in which every token of the context matters, with the script model's byte tokenizer.
pub fn tiny() -> Folder {
    let folder = Folder::new("tiny");
    // The script's own weights and config are replaced: only its text files stay.
    script_model::write(folder.path()).expect("written");
    let tiny = Tiny::llama().with("vocab_size", json!(384)).with("eos_token_id", json!(script_model::IM_END));
    tiny.write_folder(folder.path(), DType::F32).expect("written");
    folder
}

/// The last five layers' worth of a tiny Kimi K3 (KDA, KDA, MLA, KDA, MLA over two blocks), with the script model's byte
/// tokenizer.
pub fn kimi() -> Folder {
    let folder = Folder::new("kimi");
    script_model::write(folder.path()).expect("written");
    let mut config = kimi::tiny::k3();
    config.layers = [Kda, Kda, Mla, Kda, Mla].to_vec();
    config.moe.experts = 8;
    config.attn_res_block = Some(2);
    kimi::tiny::write(folder.path(), &config, 20_260_801).expect("written");
    folder
}

/// Three layers of a Kimi K3, as small as its formats allow: exact mode is slow.
pub fn small_kimi() -> Folder {
    let folder = Folder::new("small-kimi");
    script_model::write(folder.path()).expect("written");
    let mut config = kimi::tiny::k3();
    config.layers = [Kda, Mla, Kda].to_vec();
    (config.vocab_size, config.hidden_size, config.intermediate_size) = (384, 64, 96);
    (config.kda.heads, config.kda.head_dim) = (2, 16);
    (config.mla.heads, config.mla.q_rank, config.mla.kv_rank) = (2, Some(32), 32);
    (config.moe.experts, config.moe.top_k, config.moe.intermediate_size) = (4, 2, 32);
    (config.moe.latent, config.attn_res_block) = (Some(32), Some(2));
    kimi::tiny::write(folder.path(), &config, 20_260_801).expect("written");
    folder
}

/// SmolLM2-135M-Instruct, Q4_1: a real model, of which a missing copy is a failure and never a skipped test.
pub fn smollm2() -> String {
    let name = "smollm2-135m";
    let in_target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tokenspeed-home/models").join(name);
    let found = resolve_model(name).or_else(|_| resolve_model(in_target.to_str().expect("UTF-8")));
    let found = found.expect("no SmolLM2 on this machine: run `cargo xtask test`, which pulls it");
    found.path().to_str().expect("UTF-8").to_owned()
}

/// Set by `cargo xtask test --long`: run what takes minutes.
pub fn long_tests() -> bool {
    std::env::var_os("TOKENSPEED_LONG_TESTS").is_some()
}
