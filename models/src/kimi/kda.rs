//! Kimi Delta Attention: a gated delta rule behind a short convolution, with constant memory per sequence.
//!
//! Between its projections a layer is one op, `kda_mix`, the decay's second projection included: a backend that has it in one kernel
//! keeps a head's state in registers, all others expand it. Verify passes record the inputs of the recurrence instead of advancing it; the replay pass
//! advances it over the accepted ones.

use super::{
    builder::{Builder, KDA, attrs},
    config::{Kda, KdaGate, KimiConfig},
    stack::Pass,
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, Ref},
    op::{Attrs, OpKind},
};

const L2_EPS: f64 = 1e-6;

/// State tensors of one layer, in the component's order.
pub(super) fn state(config: &KimiConfig, layer: usize, window: DType, candidates: u64) -> Vec<CacheTensor> {
    let kda = &config.kda;
    let tensor = |name: &str, dtype, inner: &[u64]| CacheTensor {
        name: format!("layers.{layer}.{name}"),
        dtype,
        inner: inner.to_vec(),
    };
    let mut tensors = vec![
        tensor("state", DType::F32, &[kda.heads, kda.head_dim, kda.head_dim]),
        tensor("window", window, &[kda.conv_taps - 1, 3 * kda.channels()]),
    ];
    if candidates > 0 {
        tensors.push(tensor("record", window, &[candidates, 3 * kda.channels() + kda.head_dim + kda.heads]));
    }
    tensors
}

/// Indices of a layer's tensors in the component.
struct StateRefs {
    state: Ref,
    window: Ref,
    record: Ref,
}

fn state_refs(b: &Builder<'_>, nth: usize) -> StateRefs {
    let per_layer = if b.options.candidates > 0 { 3 } else { 2 };
    let tensor = |i| Ref::Cache { component: KDA, tensor: nth * per_layer + i };
    StateRefs { state: tensor(0), window: tensor(1), record: tensor(2) }
}

fn conv_weights(b: &mut Builder<'_>, name: &str) -> [Ref; 3] {
    let dims = [b.config.kda.channels(), b.config.kda.conv_taps];
    ["q", "k", "v"].map(|x| b.small(&format!("{name}.{x}_conv1d.weight"), &dims))
}

fn gate_attrs(gate: KdaGate) -> (i64, f64) {
    match gate {
        KdaGate::Bounded(bound) => (1, bound),
        KdaGate::Softplus => (0, 0.0),
    }
}

/// The layer; `nth` counts the KDA layers.
pub(super) fn attention(b: &mut Builder<'_>, x: Ref, name: &str, nth: usize) -> Ref {
    let Kda { heads, head_dim, gate, full_rank_output_gate, .. } = b.config.kda;
    let (hidden, channels) = (b.config.hidden_size, b.config.kda.channels());
    let shape = [heads, head_dim];
    let cache = state_refs(b, nth);
    let verify = b.pass == Pass::Verify;

    let raw = ["q", "k", "v"].map(|p| b.linear(x, &format!("{name}.{p}_proj"), &shape, hidden));
    let low = b.linear(x, &format!("{name}.f_a_proj"), &[head_dim], hidden);
    let beta_logits = b.linear(x, &format!("{name}.b_proj"), &[heads], hidden);
    // All products of x in a row: a backend may make them in one launch.
    let gates = match full_rank_output_gate {
        true => b.linear(x, &format!("{name}.g_proj"), &shape, hidden),
        false => b.linear(x, &format!("{name}.g_a_proj"), &[head_dim], hidden),
    };
    if verify {
        let operands = [raw[0], raw[1], raw[2], low, beta_logits, cache.record];
        b.graph.push(OpKind::KdaRecord, Attrs::default(), &operands, format!("{name}.record"));
    }

    let conv = conv_weights(b, name);
    let wf = b.matrix(&format!("{name}.f_b_proj.weight"), channels, head_dim);
    let (a_log, dt_bias) =
        (b.small(&format!("{name}.A_log"), &[heads]), b.small(&format!("{name}.dt_bias"), &[channels]));
    let gates = match full_rank_output_gate {
        true => gates,
        false => b.linear(gates, &format!("{name}.g_b_proj"), &shape, head_dim),
    };
    let norm = b.small(&format!("{name}.o_norm.weight"), &[head_dim]);
    let y = b.value(&format!("{name}.mix"), &shape);
    let (bounded, bound) = gate_attrs(gate);
    let mix =
        attrs(&[bounded, verify.into(), 1], &[bound, L2_EPS, 1.0 / (head_dim as f64).sqrt(), b.config.rms_norm_eps]);
    let inputs = [&raw[..], &[low, beta_logits, gates], &conv, &[a_log, dt_bias, norm]].concat();
    let operands = [&inputs[..], &[cache.window, cache.state, wf, y]].concat();
    b.graph.push(OpKind::KdaMix, mix, &operands, format!("{name}.mix"));
    b.linear(y, &format!("{name}.o_proj"), &[hidden], channels)
}

/// Advance the layer's state over recorded tokens.
pub(super) fn replay(b: &mut Builder<'_>, name: &str, nth: usize) {
    let Kda { heads, head_dim, gate, .. } = b.config.kda;
    let channels = b.config.kda.channels();
    let cache = state_refs(b, nth);
    let [wq, wk, wv] = conv_weights(b, name);
    let wf = b.matrix(&format!("{name}.f_b_proj.weight"), channels, head_dim);
    let (a_log, dt_bias) =
        (b.small(&format!("{name}.A_log"), &[heads]), b.small(&format!("{name}.dt_bias"), &[channels]));
    let (bounded, bound) = gate_attrs(gate);
    let attrs = attrs(&[bounded], &[bound, L2_EPS, 1.0 / (head_dim as f64).sqrt()]);
    let operands = [cache.record, wq, wk, wv, wf, a_log, dt_bias, cache.window, cache.state];
    b.graph.push(OpKind::KdaReplay, attrs, &operands, format!("{name}.replay"));
}
