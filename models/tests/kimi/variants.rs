//! The tiny models that golden files exist for: each turns one branch of the configuration.

use tokenspeed_models::kimi::{Activation, ExpertFormat, Kda, KdaGate, KimiConfig, Mla, Moe, tiny};

/// Seed of every golden checkpoint.
pub const SEED: u64 = 20_260_801;

/// Name and configuration.
pub fn all() -> Vec<(&'static str, KimiConfig)> {
    let k3 = tiny::k3();
    vec![
        ("k3", k3.clone()),
        ("latent_eps", KimiConfig { mla: Mla { latent_eps: 1e-5, ..k3.mla.clone() }, ..k3.clone() }),
        ("groups", KimiConfig { moe: Moe { groups: 4, groups_used: 2, ..k3.moe.clone() }, ..k3.clone() }),
        (
            "softplus_low_rank",
            KimiConfig {
                kda: Kda { gate: KdaGate::Softplus, full_rank_output_gate: false, ..k3.kda.clone() },
                ..k3.clone()
            },
        ),
        ("direct_queries", KimiConfig { mla: Mla { q_rank: None, ..k3.mla.clone() }, ..k3.clone() }),
        ("silu", KimiConfig { activation: Activation::Silu, ..k3.clone() }),
        ("plain_residuals", KimiConfig { attn_res_block: None, ..k3.clone() }),
        ("block_3", KimiConfig { attn_res_block: Some(3), ..k3.clone() }),
        ("plain_experts", KimiConfig { expert_format: ExpertFormat::Plain, ..k3 }),
        ("kimi_linear", tiny::kimi_linear()),
    ]
}
