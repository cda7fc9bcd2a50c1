//! Why no plan is made.

use super::PlanRequest;
use crate::kimi::{config::KimiConfig, slicing::SplitError};
use tokenspeed_backend_api::dtype::DType;

/// Why no plan is made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The model cannot be divided.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// A number outside its range.
    #[error("{what} is {value}, which is not between {min} and {max}; choose another")]
    Range {
        /// Which number.
        what: &'static str,
        /// As given.
        value: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A share that is none.
    #[error("a share of {share} of the device's memory is not above 0 and up to 1")]
    Share {
        /// As given.
        share: f64,
    },
    /// A format that caches do not have.
    #[error("{what} cannot be stored as {dtype}; use {supported}")]
    Format {
        /// What is stored.
        what: &'static str,
        /// As given.
        dtype: DType,
        /// What works.
        supported: &'static str,
    },
    /// A draft of another model.
    #[error(
        "the draft {name} is for a model of width {width} and vocabulary {vocab}, this one has {own_width} and {own_vocab}; plan \
         without it"
    )]
    Draft {
        /// Which.
        name: &'static str,
        /// Of its model.
        width: u64,
        /// Of its model.
        vocab: u64,
        /// Of this model.
        own_width: u64,
        /// Of this model.
        own_vocab: u64,
    },
    /// Too few tokens to verify.
    #[error(
        "{candidates} tokens to verify cannot hold a guess; verify 2 or more, or plan without draft model and guesses"
    )]
    Speculation {
        /// As given, the last token included.
        candidates: u64,
    },
}

/// Refuse what the arithmetic of a plan is not made for; a configuration may come from anywhere.
pub(super) fn check(config: &KimiConfig, request: &PlanRequest) -> Result<(), PlanError> {
    let range = |what, value, min, max| {
        if (min..=max).contains(&value) { Ok(()) } else { Err(PlanError::Range { what, value, min, max }) }
    };
    let (kda, mla, moe) = (&config.kda, &config.mla, &config.moe);
    let mla_head = mla.nope_dim + mla.rope_dim + mla.v_dim;
    // So chosen that no sum below can overflow 64 bits, with 4096 layers, the most that is read.
    for (what, value, max) in [
        ("hidden_size", config.hidden_size, 1 << 17),
        ("intermediate_size", config.intermediate_size, 1 << 20),
        ("heads times head size of linear attention", kda.channels(), 1 << 20),
        ("head size of linear attention", kda.head_dim, 1 << 12),
        ("heads times head size of latent attention", mla.heads.saturating_mul(mla_head), 1 << 20),
        ("kv_lora_rank", mla.kv_rank, 1 << 17),
        ("q_lora_rank", mla.q_rank.unwrap_or(1), 1 << 17),
        ("routed_expert_hidden_size", moe.latent.unwrap_or(1), 1 << 17),
        ("width of all shared experts", (moe.shared * moe.intermediate_size).max(1), 1 << 20),
        ("vocab_size", config.vocab_size, 1 << 24),
        ("max_position_embeddings", config.context_tokens_max, 1 << 26),
        ("the page size in tokens", request.block_tokens, 1 << 20),
        ("the chunk size in tokens", request.chunk_tokens, 1 << 24),
        ("the number of running requests", request.max_num_seqs, 1 << 20),
    ] {
        range(what, value, 1, max)?;
    }
    range("moe_intermediate_size", moe.intermediate_size, 0, 1 << 16)?;
    range("num_experts", moe.experts, 0, 1 << 12)?;
    range("the number of verified tokens", request.candidates, 0, 64)?;
    if let Some(len) = request.max_model_len {
        range("the longest request in tokens", len, 1, config.context_tokens_max)?;
    }
    for n in &request.conversations {
        range("the length of a conversation in tokens", *n, 1, 1 << 26)?;
    }
    for n in &request.snapshots {
        range("the number of snapshots per conversation", *n, 0, 1 << 10)?;
    }
    if !(request.memory_share > 0.0 && request.memory_share <= 1.0) {
        return Err(PlanError::Share { share: request.memory_share });
    }
    if ![DType::F32, DType::F16, DType::BF16, DType::F8E4M3].contains(&request.latent) {
        let (what, supported) = ("latent cache rows", "f32, f16, bf16 or fp8_e4m3");
        return Err(PlanError::Format { what, dtype: request.latent, supported });
    }
    if ![DType::F32, DType::F16, DType::BF16].contains(&request.window) {
        let (what, supported) = ("convolution windows", "f32, f16 or bf16");
        return Err(PlanError::Format { what, dtype: request.window, supported });
    }
    if let Some(draft) = request.draft.filter(|draft| !draft.belongs_to(config)) {
        return Err(PlanError::Draft {
            name: draft.name,
            width: draft.hidden_size,
            vocab: draft.vocab_size,
            own_width: config.hidden_size,
            own_vocab: config.vocab_size,
        });
    }
    match (request.draft, request.candidates) {
        (None, 0) | (_, 2..) => Ok(()),
        (_, candidates) => Err(PlanError::Speculation { candidates }),
    }
}
