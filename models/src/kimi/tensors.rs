//! What a checkpoint in the published layout holds, tensor by tensor, from the configuration alone.
//!
//! Plans count with it, the reader checks a checkpoint against it before a byte is read, and the tiny models are written
//! from it. For the published Kimi K3 configuration the sizes add up to the index's `total_size` exactly.

use super::config::{ExpertFormat, KdaGate, KimiConfig, LayerKind, Vision};
use tokenspeed_backend_api::dtype::DType;

/// Prefix of text tensors in checkpoints that also hold a vision tower.
pub const TEXT_PREFIX: &str = "language_model.";
/// Prefixes of what is not loaded: vision tower and projector.
pub const SKIPPED_PREFIXES: [&str; 2] = ["vision_tower.", "mm_projector."];

/// A tensor as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Name without [`TEXT_PREFIX`].
    pub name: String,
    /// Element format.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
}

impl Stored {
    /// Size; every format here has whole bytes per element.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes(self.dims.iter().product()).expect("plain formats")
    }
}

/// Number and size of a set of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Tensors.
    pub tensors: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

impl Size {
    fn add(&mut self, tensor: &Stored) {
        self.tensors += 1;
        self.bytes += tensor.bytes();
    }
}

/// Size of a checkpoint in the published layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSize {
    /// Routed experts.
    pub experts: Size,
    /// Everything else of the text model.
    pub dense: Size,
    /// Vision tower and projector, never loaded.
    pub vision: Size,
}

impl CheckpointSize {
    /// Of a configuration.
    pub fn of(config: &KimiConfig) -> Self {
        let mut size = Self::default();
        text(config, &mut |t| if is_expert(&t.name) { size.experts.add(&t) } else { size.dense.add(&t) });
        config.vision.iter().for_each(|v| vision(v, config.stored, &mut |t| size.vision.add(&t)));
        size
    }

    /// All of it.
    pub fn total(&self) -> Size {
        let parts = [self.experts, self.dense, self.vision];
        Size { tensors: parts.iter().map(|p| p.tensors).sum(), bytes: parts.iter().map(|p| p.bytes).sum() }
    }
}

/// Whether a tensor belongs to a routed expert.
pub fn is_expert(name: &str) -> bool {
    name.contains(".experts.")
}

/// Visit every tensor of the text model, in no particular order.
pub fn text(config: &KimiConfig, visit: &mut dyn FnMut(Stored)) {
    let hidden = config.hidden_size;
    let mut list = List { stored: config.stored, visit };
    for name in ["model.embed_tokens", "lm_head"] {
        list.matrix(name, config.vocab_size, hidden);
    }
    list.plain("model.norm.weight", &[hidden]);
    if config.attn_res_block.is_some() {
        list.residual("model.output_attn_res", hidden);
    }
    for (layer, kind) in config.layers.iter().enumerate() {
        let name = format!("model.layers.{layer}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            list.plain(&format!("{name}.{norm}.weight"), &[hidden]);
        }
        if config.attn_res_block.is_some() {
            // Layer 0 reads the embedding itself: its first pair is stored and never used.
            list.residual(&format!("{name}.self_attention_res"), hidden);
            list.residual(&format!("{name}.mlp_res"), hidden);
        }
        match kind {
            LayerKind::Kda => kda(config, &format!("{name}.self_attn"), &mut list),
            LayerKind::Mla => mla(config, &format!("{name}.self_attn"), &mut list),
        }
        if config.has_experts(layer) {
            moe(config, &format!("{name}.block_sparse_moe"), &mut list);
        } else {
            list.mlp(&format!("{name}.mlp"), hidden, config.intermediate_size);
        }
    }
}

fn kda(config: &KimiConfig, name: &str, list: &mut List<'_>) {
    let (hidden, kda) = (config.hidden_size, &config.kda);
    let channels = kda.channels();
    for x in ["q", "k", "v"] {
        list.matrix(&format!("{name}.{x}_proj"), channels, hidden);
        list.f32(&format!("{name}.{x}_conv1d.weight"), &[channels, 1, kda.conv_taps]);
    }
    list.matrix(&format!("{name}.f_a_proj"), kda.head_dim, hidden);
    list.matrix(&format!("{name}.f_b_proj"), channels, kda.head_dim);
    list.matrix(&format!("{name}.b_proj"), kda.heads, hidden);
    if kda.full_rank_output_gate {
        list.matrix(&format!("{name}.g_proj"), channels, hidden);
    } else {
        list.matrix(&format!("{name}.g_a_proj"), kda.head_dim, hidden);
        list.matrix(&format!("{name}.g_b_proj"), channels, kda.head_dim);
    }
    // One value per head. Kimi K3 pads the vector to the head size, Kimi Linear stores [1, 1, heads, 1].
    match kda.gate {
        KdaGate::Bounded(_) => list.f32(&format!("{name}.A_log"), &[kda.head_dim.max(kda.heads)]),
        KdaGate::Softplus => list.f32(&format!("{name}.A_log"), &[1, 1, kda.heads, 1]),
    }
    list.f32(&format!("{name}.dt_bias"), &[channels]);
    list.f32(&format!("{name}.o_norm.weight"), &[kda.head_dim]);
    list.matrix(&format!("{name}.o_proj"), hidden, channels);
}

fn mla(config: &KimiConfig, name: &str, list: &mut List<'_>) {
    let (hidden, mla) = (config.hidden_size, &config.mla);
    let queries = mla.heads * (mla.nope_dim + mla.rope_dim);
    match mla.q_rank {
        None => list.matrix(&format!("{name}.q_proj"), queries, hidden),
        Some(rank) => {
            list.matrix(&format!("{name}.q_a_proj"), rank, hidden);
            list.plain(&format!("{name}.q_a_layernorm.weight"), &[rank]);
            list.matrix(&format!("{name}.q_b_proj"), queries, rank);
        }
    }
    list.matrix(&format!("{name}.kv_a_proj_with_mqa"), mla.row(), hidden);
    list.plain(&format!("{name}.kv_a_layernorm.weight"), &[mla.kv_rank]);
    list.matrix(&format!("{name}.kv_b_proj"), mla.heads * (mla.nope_dim + mla.v_dim), mla.kv_rank);
    if mla.output_gate {
        list.matrix(&format!("{name}.g_proj"), mla.heads * mla.v_dim, hidden);
    }
    list.matrix(&format!("{name}.o_proj"), hidden, mla.heads * mla.v_dim);
}

fn moe(config: &KimiConfig, name: &str, list: &mut List<'_>) {
    let (hidden, moe) = (config.hidden_size, &config.moe);
    let (width, n) = (moe.width(hidden), moe.intermediate_size);
    list.matrix(&format!("{name}.gate"), moe.experts, hidden);
    list.f32(&format!("{name}.gate.e_score_correction_bias"), &[moe.experts]);
    if let Some(latent) = moe.latent {
        list.matrix(&format!("{name}.routed_expert_down_proj"), latent, hidden);
        list.matrix(&format!("{name}.routed_expert_up_proj"), hidden, latent);
        if moe.latent_norm {
            list.plain(&format!("{name}.routed_expert_norm.weight"), &[latent]);
        }
    }
    if moe.shared > 0 {
        list.mlp(&format!("{name}.shared_experts"), hidden, moe.shared * n);
    }
    for expert in 0..moe.experts {
        for (matrix, rows, columns) in [("w1", n, width), ("w3", n, width), ("w2", width, n)] {
            let name = format!("{name}.experts.{expert}.{matrix}");
            match config.expert_format {
                ExpertFormat::Plain => list.matrix(&name, rows, columns),
                ExpertFormat::Mxfp4 => {
                    list.push(format!("{name}.weight_packed"), DType::U8, &[rows, columns / 2]);
                    list.push(format!("{name}.weight_scale"), DType::U8, &[rows, columns / 32]);
                }
            }
        }
    }
}

/// Vision tower and projector.
fn vision(vision: &Vision, stored: DType, visit: &mut dyn FnMut(Stored)) {
    let Vision { layers, hidden_size, qkv_size, intermediate_size, patch, grid, merged, text_size } = *vision;
    let merged_size = hidden_size * merged;
    let mut list = List { stored, visit };
    list.plain("vision_tower.patch_embed.proj.weight", &[hidden_size, 3, patch, patch]);
    list.plain("vision_tower.patch_embed.pos_emb.weight", &[grid[0], grid[1], hidden_size]);
    list.plain("vision_tower.encoder.final_layernorm.weight", &[hidden_size]);
    for block in 0..layers {
        let name = format!("vision_tower.encoder.blocks.{block}");
        for norm in ["norm0", "norm1"] {
            list.plain(&format!("{name}.{norm}.weight"), &[hidden_size]);
        }
        list.matrix(&format!("{name}.wqkv"), 3 * qkv_size, hidden_size);
        list.matrix(&format!("{name}.wo"), hidden_size, qkv_size);
        list.matrix(&format!("{name}.mlp.fc0"), intermediate_size, hidden_size);
        list.matrix(&format!("{name}.mlp.fc1"), hidden_size, intermediate_size);
    }
    list.matrix("mm_projector.proj.0", merged_size, merged_size);
    list.matrix("mm_projector.proj.2", text_size, merged_size);
    list.plain("mm_projector.post_norm.weight", &[text_size]);
}

struct List<'a> {
    stored: DType,
    visit: &'a mut dyn FnMut(Stored),
}

impl List<'_> {
    fn push(&mut self, name: String, dtype: DType, dims: &[u64]) {
        (self.visit)(Stored { name, dtype, dims: dims.to_vec() });
    }

    fn plain(&mut self, name: &str, dims: &[u64]) {
        self.push(name.to_owned(), self.stored, dims);
    }

    fn f32(&mut self, name: &str, dims: &[u64]) {
        self.push(name.to_owned(), DType::F32, dims);
    }

    fn matrix(&mut self, name: &str, rows: u64, columns: u64) {
        self.plain(&format!("{name}.weight"), &[rows, columns]);
    }

    fn residual(&mut self, name: &str, hidden: u64) {
        self.plain(&format!("{name}_norm.weight"), &[hidden]);
        self.matrix(&format!("{name}_proj"), 1, hidden);
    }

    fn mlp(&mut self, name: &str, hidden: u64, width: u64) {
        self.matrix(&format!("{name}.gate_proj"), width, hidden);
        self.matrix(&format!("{name}.up_proj"), width, hidden);
        self.matrix(&format!("{name}.down_proj"), hidden, width);
    }
}
