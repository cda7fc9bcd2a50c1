//! What a draft checkpoint holds, tensor by tensor, from the configuration alone.
//!
//! The published Kimi K3 draft has 20 BF16 tensors of 6,031,251,456 bytes together; its file is 2,136 bytes longer, which
//! is the safetensors header.

use super::Eagle3Config;
use crate::kimi::tensors::Stored;
use tokenspeed_backend_api::dtype::DType;

/// The embedding table, which may be absent: it is the target's then.
pub const EMBEDDING: &str = "embed_tokens.weight";
/// The output head.
pub const HEAD: &str = "lm_head.weight";
/// Per entry of the head, how far its token id is above it; absent when the head has every token.
pub const TO_TARGET: &str = "d2t";
/// Per token, whether the head has it; says nothing that `d2t` does not.
pub const TO_DRAFT: &str = "t2d";

/// Visit the model's tensors, the vocabulary tables not among them.
pub fn all(config: &Eagle3Config, visit: &mut dyn FnMut(Stored)) {
    let Eagle3Config { vocab_size, draft_vocab_size, hidden_size: h, intermediate_size: n, .. } = *config;
    let Eagle3Config { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, stored, .. } = *config;
    let mut push = |name: &str, dims: &[u64]| visit(Stored { name: name.into(), dtype: stored, dims: dims.to_vec() });
    let taps = config.tap_count();
    push("fc.weight", &[h, taps * h]);
    (0..taps).for_each(|i| push(&format!("fc_norm.{i}.weight"), &[h]));
    for norm in ["hidden_norm", "input_layernorm", "post_attention_layernorm"] {
        push(&format!("layers.0.{norm}.weight"), &[h]);
    }
    for (name, dims) in [
        ("q_a_proj", &[q_rank, 2 * h][..]),
        ("q_a_layernorm", &[q_rank]),
        ("q_b_proj", &[heads * (nope_dim + rope_dim), q_rank]),
        ("kv_a_proj_with_mqa", &[kv_rank + rope_dim, 2 * h]),
        ("kv_a_layernorm", &[kv_rank]),
        ("kv_b_proj", &[heads * (nope_dim + v_dim), kv_rank]),
        ("o_proj", &[h, heads * v_dim]),
    ] {
        push(&format!("layers.0.self_attn.{name}.weight"), dims);
    }
    for (name, dims) in [("gate_proj", [n, h]), ("up_proj", [n, h]), ("down_proj", [h, n])] {
        push(&format!("layers.0.mlp.{name}.weight"), &dims);
    }
    push("norm.weight", &[h]);
    push(HEAD, &[draft_vocab_size, h]);
    push(EMBEDDING, &[vocab_size, h]);
}

/// Number of tensors and bytes of their data.
pub fn size(config: &Eagle3Config) -> (u64, u64) {
    let mut size = (0, 0);
    all(config, &mut |t| size = (size.0 + 1, size.1 + t.bytes()));
    size
}

/// Whether a tensor is a vector, which becomes f32 and may be stored in any float format.
pub(super) fn is_small(dims: &[u64]) -> bool {
    dims.len() == 1
}

/// Formats a matrix can be used in.
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
