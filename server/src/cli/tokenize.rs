//! `tokenspeed tokenize`: ids and spelling of each token.

use clap::Args;
use serde_json::json;

use crate::{engine_setup, error::CliError};

/// Arguments of `tokenize`.
#[derive(Clone, Debug, Args)]
pub struct TokenizeArgs {
    /// A folder, a .gguf file or a pulled name
    pub model: String,
    /// The text
    pub text: String,
    /// Leave out what the tokenizer adds by itself (BOS and the like)
    #[arg(long)]
    pub no_special: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Run it.
pub fn run(args: TokenizeArgs) -> Result<(), CliError> {
    let frontend = engine_setup::load_frontend(&args.model)?;
    let failed = |error: crate::frontend::FrontendError| CliError::new(error.to_string(), args.model.as_str(), "");
    let ids = frontend.encode(&args.text, !args.no_special).map_err(failed)?;
    let spelling = |id: u32| {
        let mut bytes = Vec::new();
        frontend.token_bytes(id, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if args.json {
        let tokens: Vec<String> = ids.iter().map(|id| spelling(*id)).collect();
        println!("{}", json!({"count": ids.len(), "ids": ids, "tokens": tokens}));
        return Ok(());
    }
    for id in &ids {
        println!("{id:>8}  {:?}", spelling(*id));
    }
    println!("{} tokens", ids.len());
    Ok(())
}
