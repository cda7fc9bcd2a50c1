//! Writes the tiny models behind the golden logits: `cargo run -p tokenspeed-models --example write_tiny -- DIR`, then
//! `python tests/vectors/llama_forward.py DIR > tests/vectors/llama_forward.json`.
use std::path::PathBuf;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::tiny::Tiny;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: write_tiny DIR"));
    };
    for (name, tiny) in Tiny::golden() {
        tiny.write_folder(&folder.join(name), DType::F32)?;
    }
    Ok(())
}
