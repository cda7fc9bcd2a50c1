//! Writes the checkpoints of the golden files: `cargo run --example tiny_kimi -- FOLDER` makes one folder per variant.

#[path = "../tests/kimi/variants.rs"]
mod variants;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: tiny_kimi FOLDER");
        std::process::exit(2);
    };
    for (name, config) in variants::all() {
        let folder = std::path::Path::new(&folder).join(name);
        std::fs::create_dir_all(&folder)?;
        tokenspeed_models::kimi::tiny::write(&folder, &config, variants::SEED)?;
        println!("{name} {:e}", config.mla.latent_eps);
    }
    Ok(())
}
