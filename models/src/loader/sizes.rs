//! What a model weighs, for preflight tables and memory plans. Nothing here touches the weights.

use super::{Model, Weights, llama::Placed};
use crate::graph::{INV_FREQ, Part};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{ComponentKind, Graph},
};

/// Sizes of an opened model, as the backend will hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Weight values, a tied head counted once.
    pub parameters: u64,
    /// Token embedding.
    pub embedding_bytes: u64,
    /// q, k, v, o projections of all layers.
    pub attention_bytes: u64,
    /// gate, up, down projections of all layers, shared experts and routers included.
    pub mlp_bytes: u64,
    /// Routed experts of all layers, their scales included; 0 for dense models.
    pub expert_bytes: u64,
    /// Normalisations and rotary frequencies.
    pub norm_bytes: u64,
    /// Output head; 0 if tied.
    pub head_bytes: u64,
    /// Sum of the above.
    pub weight_bytes: u64,
    /// Of these, made at load (converted or random) rather than used where they lie in the file.
    pub owned_bytes: u64,
    /// Paged cache, all layers.
    pub cache_bytes_per_token: u64,
    /// State of recurrent components per sequence.
    pub state_bytes_per_sequence: u64,
}

impl Sizes {
    pub(super) fn of(model: &Model) -> Self {
        let mut sizes = Self::default();
        let Weights::Llama(weights) = &model.weights else { return Self::of_kimi(&model.graph) };
        for Placed { part, values, bytes, in_place } in weights.placed() {
            // Saturating: a plan must survive a config of absurd sizes.
            sizes.parameters = sizes.parameters.saturating_add(values);
            let sum = match part {
                Part::Embedding => &mut sizes.embedding_bytes,
                Part::Attention => &mut sizes.attention_bytes,
                Part::Mlp => &mut sizes.mlp_bytes,
                Part::Norm => &mut sizes.norm_bytes,
                Part::Head => &mut sizes.head_bytes,
            };
            *sum = sum.saturating_add(bytes);
            sizes.owned_bytes = sizes.owned_bytes.saturating_add(if in_place { 0 } else { bytes });
        }
        let made = model.graph.weights.iter().find(|w| w.name == INV_FREQ);
        let frequency_bytes = made.map_or(0, |w| w.dims.iter().product::<u64>() * 4);
        sizes.norm_bytes = sizes.norm_bytes.saturating_add(frequency_bytes);
        sizes.owned_bytes = sizes.owned_bytes.saturating_add(frequency_bytes);
        let parts = [sizes.embedding_bytes, sizes.attention_bytes, sizes.mlp_bytes, sizes.norm_bytes, sizes.head_bytes];
        sizes.weight_bytes = parts.into_iter().fold(0, u64::saturating_add);
        sizes.add_cache(&model.graph);
        sizes
    }

    /// From the names in the published layout.
    fn of_kimi(graph: &Graph) -> Self {
        let mut sizes = Self::default();
        for weight in &graph.weights {
            let values: u64 = weight.dims.iter().product();
            let bytes = weight.dtype.bytes(values).expect("rows are whole blocks");
            let has = |part| weight.name.contains(part);
            let sum = match () {
                () if has(".experts.") => &mut sizes.expert_bytes,
                () if has("embed_tokens") => &mut sizes.embedding_bytes,
                () if has("lm_head") => &mut sizes.head_bytes,
                () if has("norm") || has("_res_proj") => &mut sizes.norm_bytes,
                () if has(".self_attn.") => &mut sizes.attention_bytes,
                () => &mut sizes.mlp_bytes,
            };
            *sum += bytes;
            sizes.weight_bytes += bytes;
            // Scales and the order of experts are not parameters.
            sizes.parameters += if matches!(weight.dtype, DType::U8 | DType::U32) { 0 } else { values };
        }
        sizes.add_cache(graph);
        sizes
    }

    fn add_cache(&mut self, graph: &Graph) {
        for component in &graph.components {
            let (tensors, sum) = match &component.kind {
                ComponentKind::Paged { tensors } => (tensors, &mut self.cache_bytes_per_token),
                ComponentKind::State { tensors } => (tensors, &mut self.state_bytes_per_sequence),
            };
            *sum += tensors
                .iter()
                .map(|t| t.dtype.bytes(t.inner.iter().product()).expect("cache formats have no blocks"))
                .sum::<u64>();
        }
    }
}
