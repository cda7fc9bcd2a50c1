//! Writes the checkpoints of the draft's golden file: `cargo run --example tiny_eagle3 -- FOLDER` makes `target` and one
//! folder per draft.

#[path = "../tests/eagle3/variants.rs"]
mod variants;

use tokenspeed_models::{eagle3, kimi};

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: tiny_eagle3 FOLDER");
        std::process::exit(2);
    };
    let folder = std::path::Path::new(&folder);
    let target = kimi::tiny::k3();
    std::fs::create_dir_all(folder.join("target"))?;
    kimi::tiny::write(&folder.join("target"), &target, variants::SEED)?;
    for (name, config, embedding) in variants::all(&target) {
        std::fs::create_dir_all(folder.join(name))?;
        eagle3::tiny::write(&folder.join(name), &config, variants::SEED + 1, embedding)?;
    }
    Ok(())
}
