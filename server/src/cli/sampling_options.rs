//! Sampling options of `run` and `chat`.

use clap::Args;
use tokenspeed_core::request::SamplingParams;

use crate::{engine_setup::GenerationDefaults, generation::ids::random_u64};

/// Sampling on the terminal. What is not given comes from the model's generation config.
#[derive(Clone, Debug, Args)]
pub struct SamplingOptions {
    /// Most tokens of one answer [default: what fits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// 0 = always the likeliest token
    #[arg(long, value_parser = in_range::<0, 2>)]
    pub temperature: Option<f32>,
    /// Keep the likeliest tokens whose probabilities add up to this
    #[arg(long, value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Keep this many tokens; 0 = all
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Drop tokens below this share of the likeliest one's probability
    #[arg(long, value_parser = in_range::<0, 1>)]
    pub min_p: Option<f32>,
    /// End at this text; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Go on after end-of-sequence
    #[arg(long)]
    pub ignore_eos: bool,
}

fn in_range<const LOW: u32, const HIGH: u32>(text: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (LOW as f32..=HIGH as f32).contains(&value) { Ok(value) } else { Err(format!("must be from {LOW} to {HIGH}")) }
}

fn top_p(text: &str) -> Result<f32, String> {
    in_range::<0, 1>(text).and_then(|value| if value > 0.0 { Ok(value) } else { Err("must be above 0".into()) })
}

impl SamplingOptions {
    /// Parameters for one answer of at most `room` tokens.
    pub fn params(&self, defaults: GenerationDefaults, seed: Option<u64>, room: u32) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            top_k: self.top_k.or(defaults.top_k).unwrap_or(0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
            seed: seed.unwrap_or_else(random_u64),
            max_tokens: self.max_tokens.map_or(room, |max| max.min(room)),
            ignore_eos: self.ignore_eos,
            ..SamplingParams::default()
        }
    }
}
