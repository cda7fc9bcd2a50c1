//! The whole model: embedding, layers, output head; and its passes over one cache layout.

use super::{
    attn_res::Residual,
    builder::{Builder, KDA, MLA, TAPS},
    config::{KimiConfig, LayerKind},
    gated_mla, kda, latent_moe,
    taps::{self, Taps},
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{ComponentKind, ComponentSpec, Graph, Ref, Vary},
    op::{Attrs, OpKind},
};

/// What a graph leaves open. All graphs of one engine use the same options: they share the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// Format of latent cache rows.
    pub latent: DType,
    /// Format of convolution windows and records: f32, f16 or bf16. Recurrent states are always f32.
    pub window: DType,
    /// Candidate tokens per request a verify pass may have; 0 = no speculation, and no memory for it.
    pub candidates: u64,
    /// Attention Residuals as `attn_res_scores`, `attn_res_partial` and `attn_res_combine` instead of `attn_res_mix`: the
    /// same function in other roundings, for backends that have the three.
    pub split_residuals: bool,
    /// What a draft model reads of the forward and verify passes, in rows of `window`'s format.
    pub taps: Taps,
}

impl GraphOptions {
    /// Everything in f32, no speculation.
    pub const EXACT: GraphOptions = GraphOptions {
        latent: DType::F32,
        window: DType::F32,
        candidates: 0,
        split_residuals: false,
        taps: Taps::NONE,
    };
}

/// Which graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Verify,
    Replay,
}

/// The graphs of a model.
#[derive(Debug)]
pub struct Graphs {
    /// Logits of the step's tokens; advances the cache over them.
    pub forward: Graph,
    /// The same logits for candidate tokens, whose recurrent states are not advanced; latent rows are written, and
    /// overwritten by the next step if rejected.
    pub verify: Option<Graph>,
    /// Advances the recurrent states over the first `query_len` candidates of each row; no logits.
    pub replay: Option<Graph>,
}

impl Graphs {
    /// Build them.
    pub fn new(config: &KimiConfig, options: GraphOptions) -> Self {
        let speculative = options.candidates > 0;
        Self {
            forward: build(config, options, Pass::Forward),
            verify: speculative.then(|| build(config, options, Pass::Verify)),
            replay: speculative.then(|| build(config, options, Pass::Replay)),
        }
    }
}

fn build(config: &KimiConfig, options: GraphOptions, pass: Pass) -> Graph {
    let mut b = Builder { graph: Graph::default(), config, options, pass };
    components(&mut b);
    let tables: Vec<Ref> = (0..b.graph.components.len()).map(|component| Ref::Table { component }).collect();
    b.graph.push(OpKind::TableUpdate, Attrs::default(), &tables, "table_update");
    if pass == Pass::Replay {
        for (nth, layer) in config.layers_of(LayerKind::Kda).enumerate() {
            kda::replay(&mut b, &format!("model.layers.{layer}.self_attn"), nth);
        }
        return b.graph;
    }
    forward(&mut b);
    b.graph
}

fn components(b: &mut Builder<'_>) {
    let (config, options) = (b.config, b.options);
    let rows = config.layers_of(LayerKind::Mla).map(|l| gated_mla::rows(config, l, options.latent)).collect();
    let states =
        config.layers_of(LayerKind::Kda).flat_map(|l| kda::state(config, l, options.window, options.candidates));
    let states = states.collect();
    let mla = ComponentSpec { name: "mla".into(), kind: ComponentKind::Paged { tensors: rows } };
    let kda = ComponentSpec { name: "kda".into(), kind: ComponentKind::State { tensors: states } };
    assert_eq!([b.graph.component(mla), b.graph.component(kda)], [MLA, KDA]);
    if let Some(spec) = taps::component(config, options) {
        assert_eq!(b.graph.component(spec), TAPS);
    }
}

fn forward(b: &mut Builder<'_>) {
    let config = b.config;
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let table = b.matrix("model.embed_tokens.weight", config.vocab_size, hidden);
    let embedding = b.value("model.embed_tokens", &[hidden]);
    b.graph.push(OpKind::Embedding, Attrs::default(), &[table, embedding], "model.embed_tokens");

    let mut residual = Residual::new(embedding);
    let mut counts = [0; 2];
    for (layer, kind) in config.layers.iter().enumerate() {
        let name = format!("model.layers.{layer}");
        let h = residual.read(b, &format!("{name}.self_attention_res"));
        if config.begins_block(layer) {
            residual.snapshot(b, layer);
        }
        let x = b.norm(h, &format!("{name}.input_layernorm"), hidden, eps);
        let nth = &mut counts[*kind as usize];
        let y = match kind {
            LayerKind::Kda => kda::attention(b, x, &format!("{name}.self_attn"), *nth),
            LayerKind::Mla => gated_mla::attention(b, x, &format!("{name}.self_attn"), *nth),
        };
        *nth += 1;
        residual.add(b, y, &format!("{name}.attention_sum"));

        let h = residual.read(b, &format!("{name}.mlp_res"));
        let x = b.norm(h, &format!("{name}.post_attention_layernorm"), hidden, eps);
        let sum = format!("{name}.sum");
        if config.has_experts(layer) {
            latent_moe::experts(b, x, &format!("{name}.block_sparse_moe"), &mut residual, &sum);
        } else {
            let z = b.mlp(x, &format!("{name}.mlp"), config.intermediate_size);
            residual.add(b, z, &sum);
        }
        taps::keep(b, layer + 1, residual.sum());
    }

    let h = residual.read(b, "model.output_attn_res");
    let h = b.norm(h, "model.norm", hidden, eps);
    let rows = |b: &mut Builder<'_>, name: &str, n| b.graph.value(name, Vary::LogitRows, &[n], DType::F32);
    let wanted = rows(b, "wanted", hidden);
    b.graph.push(OpKind::RowGather, Attrs::default(), &[h, wanted], "wanted");
    let head = b.matrix("lm_head.weight", config.vocab_size, hidden);
    let logits = rows(b, "logits", config.vocab_size);
    b.graph.push(OpKind::Gemm, Attrs::default(), &[wanted, head, logits], "lm_head");
    let Ref::Value(index) = logits else { unreachable!("a value was just made") };
    b.graph.logits = Some(index);
}
