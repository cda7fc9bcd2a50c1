//! Multi-head latent attention without positions, with a sigmoid output gate.
//!
//! In absorbed form: queries are folded into the latent space, the cache keeps one latent row per token for all heads, values are
//! projected after the weighted sum. With a gate it is one op, `mla_mix`, that backends may compute as they like.

use super::{
    builder::{Builder, MLA, attrs},
    config::{KimiConfig, Mla},
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, Ref},
    op::{Attrs, OpKind},
};

/// Cache tensor of one layer.
pub(super) fn rows(config: &KimiConfig, layer: usize, dtype: DType) -> CacheTensor {
    CacheTensor { name: format!("layers.{layer}.latent"), dtype, inner: vec![1, config.mla.row()] }
}

/// The layer; `nth` counts the MLA layers.
pub(super) fn attention(b: &mut Builder<'_>, x: Ref, name: &str, nth: usize) -> Ref {
    let Mla { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, output_gate, latent_eps } = b.config.mla;
    let (hidden, row, head) = (b.config.hidden_size, b.config.mla.row(), nope_dim + rope_dim);
    let cache = Ref::Cache { component: MLA, tensor: nth };
    let table = Ref::Table { component: MLA };

    // All products of x in a row: a backend may make them in one launch.
    let q = match q_rank {
        None => b.linear(x, &format!("{name}.q_proj"), &[heads, head], hidden),
        Some(rank) => b.linear(x, &format!("{name}.q_a_proj"), &[rank], hidden),
    };
    let latent = b.linear(x, &format!("{name}.kv_a_proj_with_mqa"), &[row], hidden);
    let gate = output_gate.then(|| b.linear(x, &format!("{name}.g_proj"), &[heads, v_dim], hidden));
    let q = match q_rank {
        None => q,
        Some(rank) => {
            let normed = b.norm(q, &format!("{name}.q_a_layernorm"), rank, latent_eps);
            b.linear(normed, &format!("{name}.q_b_proj"), &[heads, head], rank)
        }
    };
    let norm = b.small(&format!("{name}.kv_a_layernorm.weight"), &[kv_rank]);
    let component = attrs(&[MLA as i64], &[latent_eps]);
    b.graph.push(OpKind::MlaWrite, component, &[latent, norm, cache, table], format!("{name}.write"));

    let kv_b = b.matrix(&format!("{name}.kv_b_proj.weight"), heads * (nope_dim + v_dim), kv_rank);
    let (scale, out) = (1.0 / (head as f64).sqrt(), [heads, v_dim]);
    let o = if let Some(gate) = gate {
        let gated = b.value(&format!("{name}.gated"), &out);
        let mix = attrs(&[MLA as i64, rope_dim as i64], &[scale]);
        b.graph.push(OpKind::MlaMix, mix, &[q, kv_b, cache, table, gate, gated], format!("{name}.mix"));
        gated
    } else {
        let absorbed = b.value(&format!("{name}.absorbed"), &[heads, row]);
        let rope = attrs(&[rope_dim as i64], &[]);
        b.graph.push(OpKind::MlaAbsorb, rope, &[q, kv_b, absorbed], format!("{name}.absorb"));
        let mixed = b.value(&format!("{name}.mixed"), &[heads, kv_rank]);
        let scale = attrs(&[MLA as i64], &[scale]);
        b.graph.push(OpKind::MlaAttention, scale, &[absorbed, cache, table, mixed], format!("{name}.attention"));
        let value = b.value(&format!("{name}.value"), &out);
        b.graph.push(OpKind::MlaValue, Attrs::default(), &[mixed, kv_b, value], format!("{name}.value"));
        value
    };
    b.linear(o, &format!("{name}.o_proj"), &[hidden], heads * v_dim)
}
