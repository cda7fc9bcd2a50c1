//! What a Kimi model is, independent of the file it was read from.

use tokenspeed_backend_api::dtype::DType;

/// A text model of the Kimi Linear family.
#[derive(Clone, Debug, PartialEq)]
pub struct KimiConfig {
    /// Rows of the embedding table and of the output head.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Attention of each layer.
    pub layers: Vec<LayerKind>,
    /// Epsilon of every RMS normalisation but the latent ones.
    pub rms_norm_eps: f64,
    /// Linear attention.
    pub kda: Kda,
    /// Full attention.
    pub mla: Mla,
    /// Of every MLP.
    pub activation: Activation,
    /// Width of the dense MLPs.
    pub intermediate_size: u64,
    /// Experts.
    pub moe: Moe,
    /// Attention Residuals over blocks of this many layers; `None` = plain residuals.
    pub attn_res_block: Option<u64>,
    /// Format of the dense matrices.
    pub stored: DType,
    /// Format of the experts' matrices.
    pub expert_format: ExpertFormat,
    /// Longest sequence the model is made for.
    pub context_tokens_max: u64,
    /// First token, if the model names one.
    pub bos_id: Option<u32>,
    /// Tokens that end an answer.
    pub eos_ids: Vec<u32>,
    /// The vision tower beside the text model: counted by plans, never loaded.
    pub vision: Option<Vision>,
    /// Fields that were not understood and cannot matter as far as we know; to be shown once.
    pub ignored_fields: Vec<String>,
}

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Kimi Delta Attention.
    Kda,
    /// Multi-head latent attention without positions.
    Mla,
}

/// Linear attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Kda {
    /// Heads.
    pub heads: u64,
    /// Width of keys and values of a head.
    pub head_dim: u64,
    /// Tokens the short convolution sees.
    pub conv_taps: u64,
    /// Decay.
    pub gate: KdaGate,
    /// The output gate is one full projection (else a product of two narrow ones).
    pub full_rank_output_gate: bool,
}

impl Kda {
    /// Channels of q, k or v over all heads.
    pub fn channels(&self) -> u64 {
        self.heads * self.head_dim
    }
}

/// How the log decay is made from its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KdaGate {
    /// `bound · sigmoid(…)`, bound < 0.
    Bounded(f64),
    /// `−softplus(…)`.
    Softplus,
}

/// Latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Heads.
    pub heads: u64,
    /// Width of the query latent; `None` = queries are projected directly.
    pub q_rank: Option<u64>,
    /// Width of the key/value latent.
    pub kv_rank: u64,
    /// Part of a query or key that goes through the latent.
    pub nope_dim: u64,
    /// Part of a key that all heads share. Named for the rotation other models give it; it is never rotated here.
    pub rope_dim: u64,
    /// Width of a value.
    pub v_dim: u64,
    /// A sigmoid gate before the output projection.
    pub output_gate: bool,
    /// Epsilon of the latent normalisations: 1e-6 in Moonshot's own code, `rms_norm_eps` in several serving engines.
    pub latent_eps: f64,
}

impl Mla {
    /// Width of a cache row: latent and shared key part.
    pub fn row(&self) -> u64 {
        self.kv_rank + self.rope_dim
    }
}

/// Activation of an MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    Silu,
    /// `beta·tanh(gate/beta)·sigmoid(gate) · linear·tanh(up/linear)`; linear 0 leaves `up` as it is.
    Situ {
        /// Cap of the gate branch.
        beta: f64,
        /// Cap of the other branch, 0 = none.
        linear: f64,
    },
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts.
    pub experts: u64,
    /// Of which a token uses this many.
    pub top_k: u64,
    /// Shared experts, always used, fused into one MLP.
    pub shared: u64,
    /// Width of one expert.
    pub intermediate_size: u64,
    /// Width of the space the routed experts work in; `None` = the residual stream's.
    pub latent: Option<u64>,
    /// Normalise the experts' sum (only with a latent space).
    pub latent_norm: bool,
    /// Groups of experts.
    pub groups: u64,
    /// Of which a token uses this many; equal to `groups` = no grouping.
    pub groups_used: u64,
    /// Weights of the chosen experts sum to one.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// The first layers have a dense MLP.
    pub first_layer: u64,
    /// From there, every n-th layer (by its index) has experts.
    pub layer_step: u64,
}

impl Moe {
    /// Width the routed experts read and write.
    pub fn width(&self, hidden_size: u64) -> u64 {
        self.latent.unwrap_or(hidden_size)
    }
}

/// Storage of the experts' matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFormat {
    /// As the dense ones.
    Plain,
    /// MXFP4: `weight_packed` and `weight_scale`.
    Mxfp4,
}

/// Sizes of the vision tower and its projector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vision {
    /// Blocks.
    pub layers: u64,
    /// Width of the stream.
    pub hidden_size: u64,
    /// Width of q, k or v over all heads.
    pub qkv_size: u64,
    /// Width of the MLP.
    pub intermediate_size: u64,
    /// Side of a patch in pixels.
    pub patch: u64,
    /// Learned position grid, rows and columns.
    pub grid: [u64; 2],
    /// Patches merged into one feature, rows times columns.
    pub merged: u64,
    /// Width the projector ends in.
    pub text_size: u64,
}

impl KimiConfig {
    /// Whether a layer has experts.
    pub fn has_experts(&self, layer: usize) -> bool {
        let layer = layer as u64;
        layer >= self.moe.first_layer && layer.is_multiple_of(self.moe.layer_step)
    }

    /// Whether a layer begins a block of Attention Residuals.
    pub fn begins_block(&self, layer: usize) -> bool {
        self.attn_res_block.is_some_and(|n| (layer as u64).is_multiple_of(n))
    }

    /// Layers of one kind.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = usize> {
        self.layers.iter().enumerate().filter(move |(_, k)| **k == kind).map(|(i, _)| i)
    }
}
