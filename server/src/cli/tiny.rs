//! `tokenspeed tiny`: small random checkpoints in the published layouts, from a seed.
//!
//! A Kimi model comes with a made-up tokenizer in the published format, so that it serves and chats at once. What these
//! models say makes no sense, but every part of the engine runs on them as on the published models: for trying a backend,
//! for demos, for tests and benchmarks. One subcommand per family, so that an option that a family does not have is
//! refused by name instead of being ignored.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    eagle3::{self, tiny::Fit},
    kimi::{
        KimiConfig,
        tensors::CheckpointSize,
        tiny::{self, Sizes, Spread},
    },
    text::kimi::{tiny_linear_tokenizer, tiny_tokenizer},
    tiny::Tiny,
};

use crate::error::CliError;

/// Families.
#[derive(Debug, Subcommand)]
pub enum TinyCommand {
    /// Kimi K3: KDA and gated MLA, Attention Residuals, latent MoE with MXFP4 experts
    KimiK3(KimiArgs),
    /// Kimi Linear: KDA and MLA, MoE, plain residuals
    KimiLinear(KimiArgs),
    /// Llama
    Llama(LlamaArgs),
    /// An EAGLE3 draft for a tiny Kimi K3, its head fitted to the target's text
    Eagle3(Eagle3Args),
}

/// Where to.
#[derive(Clone, Debug, Args)]
pub struct OutArgs {
    /// Folder to write; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Write into a folder that has files: those of the same names are replaced, others stay
    #[arg(long)]
    pub force: bool,
    /// Seed of the weights; the same seed and sizes give the same bytes on every machine
    #[arg(long, default_value_t = 20_260_801)]
    pub seed: u64,
}

/// A set of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// About 1.5 GB in proportions near the published ones, with the published vocabulary: for benchmarks
    Mid,
}

/// Arguments of `tiny kimi-k3` and `tiny kimi-linear`.
#[derive(Clone, Debug, Args)]
pub struct KimiArgs {
    /// Where to.
    #[command(flatten)]
    pub out: OutArgs,
    /// Start from these sizes
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Start from heads as wide as the published ones and widths that are whole tiles: for kernels
    #[arg(long, conflicts_with = "preset")]
    pub real_heads: bool,
    /// Text that a small draft can guess, as that of trained models: for `tiny eagle3`
    #[arg(long, conflicts_with = "preset")]
    pub guessable: bool,
    /// Layers; every fourth and the last are MLA
    #[arg(long, value_name = "N")]
    pub layers: Option<u64>,
    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    pub hidden: Option<u64>,
    /// Entries of the vocabulary, the last 256 of them special
    #[arg(long, value_name = "N")]
    pub vocab: Option<u64>,
    /// Heads of both kinds of attention
    #[arg(long, value_name = "N")]
    pub heads: Option<u64>,
    /// Routed experts
    #[arg(long, value_name = "N")]
    pub experts: Option<u64>,
    /// Experts of a token
    #[arg(long, value_name = "N")]
    pub experts_per_token: Option<u64>,
    /// Width of an expert
    #[arg(long, value_name = "N")]
    pub expert_width: Option<u64>,
    /// Width of the space the experts work in (Kimi K3)
    #[arg(long, value_name = "N")]
    pub latent: Option<u64>,
    /// Width of the dense MLP
    #[arg(long, value_name = "N")]
    pub dense_width: Option<u64>,
    /// Layers of a block of Attention Residuals (Kimi K3)
    #[arg(long, value_name = "N")]
    pub block: Option<u64>,
    /// Longest sequence, in tokens
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u64>,
}

/// Arguments of `tiny eagle3`.
#[derive(Clone, Debug, Args)]
pub struct Eagle3Args {
    /// Where to.
    #[command(flatten)]
    pub out: OutArgs,
    /// Folder of the target, written by `tiny kimi-k3 --guessable`
    #[arg(long, value_name = "DIR")]
    pub target: PathBuf,
}

/// Storage of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storage {
    /// 32-bit float
    F32,
    /// 16-bit float
    F16,
    /// bfloat16
    Bf16,
}

/// Arguments of `tiny llama`.
#[derive(Clone, Debug, Args)]
pub struct LlamaArgs {
    /// Where to.
    #[command(flatten)]
    pub out: OutArgs,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub layers: u64,
    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub hidden: u64,
    /// Width of the MLP
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = clap::value_parser!(u64).range(1..=262_144))]
    pub dense_width: u64,
    /// Query heads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub heads: u64,
    /// Key and value heads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub kv_heads: u64,
    /// Entries of the vocabulary
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(4..=1_048_576))]
    pub vocab: u64,
    /// Storage of the matrices
    #[arg(long, value_enum, default_value_t = Storage::F32)]
    pub dtype: Storage,
}

/// Run it.
pub fn run(command: TinyCommand) -> Result<(), CliError> {
    match command {
        TinyCommand::KimiK3(args) => kimi(&args, tiny::k3()),
        TinyCommand::KimiLinear(args) => kimi(&args, tiny::kimi_linear()),
        TinyCommand::Llama(args) => llama(&args),
        TinyCommand::Eagle3(args) => eagle3_draft(&args),
    }
}

fn kimi(args: &KimiArgs, base: KimiConfig) -> Result<(), CliError> {
    let (mut config, spread) = kimi_config(args, base)?;
    let folder = prepare(&args.out)?;
    let write_tokenizer = if config.attn_res_block.is_some() { tiny_tokenizer } else { tiny_linear_tokenizer };
    let ids = write_tokenizer(folder, config.vocab_size as u32, args.out.seed)
        .map_err(|e| CliError::new(e.to_string(), "", "check free space and rights"))?;
    (config.bos_id, config.eos_ids) = (Some(ids.bos), vec![ids.eos]);
    let written = if args.guessable {
        eagle3::tiny::write_target(folder, &config, args.out.seed)
    } else {
        tiny::write_as(folder, &config, args.out.seed, spread)
    };
    written.map_err(|e| not_written(folder, &e))?;
    done(folder, CheckpointSize::of(&config).total().bytes);
    Ok(())
}

fn kimi_config(args: &KimiArgs, base: KimiConfig) -> Result<(KimiConfig, Spread), CliError> {
    let (base, spread) = match args.preset {
        Some(Preset::Mid) => (tiny::mid(base), Spread::Even),
        None if args.real_heads => (tiny::real_heads(base), Spread::Exaggerated),
        None => (base, Spread::Exaggerated),
    };
    let sizes = Sizes {
        layers: args.layers,
        hidden: args.hidden,
        vocab: args.vocab,
        heads: args.heads,
        experts: args.experts,
        top_k: args.experts_per_token,
        expert_width: args.expert_width,
        latent: args.latent,
        dense_width: args.dense_width,
        block: args.block,
        context: args.context,
    };
    let config = sizes.apply(base).map_err(|e| CliError::usage(e.to_string(), "", "see `tokenspeed tiny --help`"))?;
    Ok((config, spread))
}

fn eagle3_draft(args: &Eagle3Args) -> Result<(), CliError> {
    let folder = prepare(&args.out)?;
    let fit = eagle3::tiny::fitted(&args.target, folder, args.out.seed)
        .map_err(|e| CliError::new(e.to_string(), args.target.display().to_string(), "give a tiny Kimi as --target"))?;
    let Fit { samples, agreement } = fit;
    println!("{}: chooses as its target does in {:.0}% of {samples} cases", folder.display(), 100.0 * agreement);
    Ok(())
}

fn llama(args: &LlamaArgs) -> Result<(), CliError> {
    let (tiny, dtype) = llama_model(args)?;
    let folder = prepare(&args.out)?;
    tiny.write_folder(folder, dtype).map_err(|e| not_written(folder, &e))?;
    done(folder, fs::metadata(folder.join("model.safetensors")).map_or(0, |m| m.len()));
    Ok(())
}

fn llama_model(args: &LlamaArgs) -> Result<(Tiny, DType), CliError> {
    let LlamaArgs { hidden, heads, kv_heads, .. } = *args;
    let refuse = |what: String| Err(CliError::usage(what, "", "see `tokenspeed tiny llama --help`"));
    if !hidden.is_multiple_of(2 * heads) {
        return refuse(format!("--hidden {hidden} does not split into --heads {heads} of an even width"));
    }
    if !heads.is_multiple_of(kv_heads) {
        return refuse(format!("--heads {heads} is no multiple of --kv-heads {kv_heads}"));
    }
    let mut tiny = Tiny::llama();
    tiny.seed = args.out.seed;
    for (field, value) in [
        ("num_hidden_layers", args.layers),
        ("hidden_size", hidden),
        ("intermediate_size", args.dense_width),
        ("num_attention_heads", heads),
        ("num_key_value_heads", kv_heads),
        ("vocab_size", args.vocab),
    ] {
        tiny = tiny.with(field, json!(value));
    }
    let (dtype, name) = match args.dtype {
        Storage::F32 => (DType::F32, "float32"),
        Storage::F16 => (DType::F16, "float16"),
        Storage::Bf16 => (DType::BF16, "bfloat16"),
    };
    Ok((tiny.with("torch_dtype", json!(name)), dtype))
}

/// The folder, made if need be. One with files is refused without `--force`: it may be a real model.
fn prepare(args: &OutArgs) -> Result<&Path, CliError> {
    let place = args.out.display().to_string();
    match fs::read_dir(&args.out) {
        Ok(entries) => {
            if !args.force && entries.into_iter().next().is_some() {
                let hint = "give another --out, or --force to write there";
                return Err(CliError::usage("the folder has files", place, hint));
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(&args.out)
                .map_err(|e| CliError::new(format!("cannot make the folder: {e}"), place, "check --out"))?;
        }
        Err(error) => return Err(CliError::new(format!("cannot use the folder: {error}"), place, "check --out")),
    }
    Ok(&args.out)
}

fn not_written(folder: &Path, error: &std::io::Error) -> CliError {
    let place = folder.display().to_string();
    CliError::new(format!("cannot write the model: {error}"), place, "check free space and rights")
}

fn done(folder: &Path, bytes: u64) {
    println!("{}: {:.1} MB of weights", folder.display(), bytes as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use sha2::{Digest as _, Sha256};

    fn command(line: &str) -> TinyCommand {
        let words = ["tokenspeed", "tiny"].into_iter().chain(line.split_whitespace());
        let cli = crate::cli::Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{e}"));
        let crate::cli::Command::Tiny(command) = cli.command else { panic!("tiny") };
        command
    }

    fn refused(line: &str) -> CliError {
        let error = match command(line) {
            TinyCommand::KimiK3(args) => kimi_config(&args, tiny::k3()).err(),
            TinyCommand::KimiLinear(args) => kimi_config(&args, tiny::kimi_linear()).err(),
            TinyCommand::Llama(args) => llama_model(&args).err(),
            TinyCommand::Eagle3(args) => eagle3_draft(&args).err(),
        };
        error.unwrap_or_else(|| panic!("{line} was accepted"))
    }

    #[test]
    fn bad_sizes_are_one_line_and_wrong_usage() {
        for (line, what) in [
            ("kimi-k3 --out d --latent 48", "--latent 48 is no multiple of 32: MXFP4 shares a scale among 32 values"),
            ("kimi-k3 --out d --experts 8 --experts-per-token 9", "9 experts per token, but only 8 experts"),
            ("kimi-linear --out d --latent 64", "--latent does not apply: Kimi Linear has none"),
            ("kimi-k3 --out d --layers 1", "--layers 1 is not between 2 and 1024"),
            ("llama --out d --hidden 60 --heads 8", "--hidden 60 does not split into --heads 8 of an even width"),
            ("llama --out d --heads 4 --kv-heads 3", "--heads 4 is no multiple of --kv-heads 3"),
        ] {
            let error = refused(line);
            assert_eq!((error.what.as_str(), error.exit_code), (what, 2), "{line}");
        }
    }

    #[test]
    fn every_size_reaches_its_model() {
        let line = "kimi-k3 --out d --real-heads --layers 9 --hidden 256 --vocab 1024 --heads 8 --experts 32 \
                    --experts-per-token 2 --expert-width 64 --latent 96 --dense-width 160 --block 3 --context 512";
        let TinyCommand::KimiK3(args) = command(line) else { panic!("kimi-k3") };
        let (c, spread) = kimi_config(&args, tiny::k3()).expect("fine");
        let sizes = (c.layers.len(), c.hidden_size, c.vocab_size, c.kda.heads, c.mla.heads, c.moe.experts, c.moe.top_k);
        assert_eq!(sizes, (9, 256, 1024, 8, 8, 32, 2));
        let sizes =
            (c.moe.intermediate_size, c.moe.latent, c.intermediate_size, c.attn_res_block, c.context_tokens_max);
        assert_eq!(sizes, (64, Some(96), 160, Some(3), 512));
        assert_eq!((c.kda.head_dim, c.mla.kv_rank, spread), (128, 512, Spread::Exaggerated));
    }

    /// Seeds are promised to make the same bytes on every machine; published figures name models by seed.
    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let folder = std::env::temp_dir().join(format!("tokenspeed-tiny-bytes-{}", std::process::id()));
        let mut digests = Vec::new();
        for line in ["kimi-k3", "kimi-k3 --seed 7", "kimi-linear", "llama --dtype bf16"] {
            run(command(&format!("{line} --force --out {}", folder.display()))).expect("written");
            let bytes = fs::read(folder.join("model.safetensors")).expect("written");
            digests.push(format!("{:x}", Sha256::digest(&bytes))[..16].to_owned());
        }
        fs::remove_dir_all(&folder).expect("cleaned up");
        assert_eq!(digests, ["61603d0201850c9d", "06bdf18ff0306e1c", "442e120ea33f5b8a", "8d7efe9b74589982"]);
    }

    #[test]
    fn a_draft_is_fitted_to_a_tiny_target() {
        let root = std::env::temp_dir().join(format!("tokenspeed-tiny-draft-{}", std::process::id()));
        let (target, draft) = (root.join("target"), root.join("draft"));
        let line = format!("eagle3 --target {} --out {}", target.display(), draft.display());
        let error = run(command(&line)).expect_err("no target yet");
        assert!(error.place.ends_with("target") && error.what.contains("config.json"), "{error:?}");
        run(command(&format!("kimi-k3 --guessable --out {}", target.display()))).expect("written");
        run(command(&line)).expect("fitted");
        for file in ["target/tiktoken.model", "target/config.json", "draft/config.json", "draft/model.safetensors"] {
            assert!(root.join(file).exists(), "{file}");
        }
        fs::remove_dir_all(&root).expect("cleaned up");
    }

    #[test]
    fn a_folder_with_files_is_refused_without_force() {
        let folder = std::env::temp_dir().join(format!("tokenspeed-tiny-{}", std::process::id()));
        let out = |force| OutArgs { out: folder.clone(), force, seed: 1 };
        prepare(&out(false)).expect("made");
        prepare(&out(false)).expect("empty");
        fs::write(folder.join("config.json"), "{}").expect("a file");
        let error = prepare(&out(false)).expect_err("not empty");
        assert_eq!((error.what.as_str(), error.exit_code), ("the folder has files", 2));
        prepare(&out(true)).expect("forced");
        let file = OutArgs { out: folder.join("config.json"), force: true, seed: 1 };
        assert!(prepare(&file).expect_err("a file").what.starts_with("cannot use the folder"));
        fs::remove_dir_all(&folder).expect("cleaned up");
    }
}
