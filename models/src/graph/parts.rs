//! Every weight of a Llama-family model: its name in the graph, its names in checkpoints, its shape.
//!
//! One list, used to check a checkpoint, to build the graph, to plan memory and to write test models, so that these
//! cannot disagree.
#![forbid(unsafe_code)]

use crate::config::LlamaConfig;

/// What a weight belongs to, for memory plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Token embedding (and head, if tied).
    Embedding,
    /// q, k, v, o projections.
    Attention,
    /// gate, up, down projections.
    Mlp,
    /// Normalisations.
    Norm,
    /// Untied output head.
    Head,
}

/// A weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPlan {
    /// Name in the graph.
    pub name: String,
    /// Name in Hugging Face checkpoints.
    pub hf: String,
    /// Name in GGUF files.
    pub gguf: String,
    /// Shape, outermost first: `[out, in]` for projections.
    pub dims: Vec<u64>,
    /// What it belongs to.
    pub part: Part,
}

impl WeightPlan {
    /// Number of values.
    pub fn values(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// All weights of `config`, in order of use.
pub fn weights(config: &LlamaConfig) -> Vec<WeightPlan> {
    let mut list = List(Vec::new());
    let hidden = config.hidden_size;
    let (q, kv) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let mlp = config.intermediate_size;
    list.add("embed_tokens", "model.embed_tokens", "token_embd", &[config.vocab_size, hidden], Part::Embedding);
    for layer in 0..config.n_layers {
        let mut add = |graph: &str, hf: &str, gguf: &str, dims: &[u64], part: Part| {
            let (graph, hf) = (format!("layers.{layer}.{graph}"), format!("model.layers.{layer}.{hf}"));
            list.add(&graph, &hf, &format!("blk.{layer}.{gguf}"), dims, part);
        };
        add("input_norm", "input_layernorm", "attn_norm", &[hidden], Part::Norm);
        add("q_proj", "self_attn.q_proj", "attn_q", &[q, hidden], Part::Attention);
        add("k_proj", "self_attn.k_proj", "attn_k", &[kv, hidden], Part::Attention);
        add("v_proj", "self_attn.v_proj", "attn_v", &[kv, hidden], Part::Attention);
        if config.qk_norm {
            add("q_norm", "self_attn.q_norm", "attn_q_norm", &[config.head_dim], Part::Norm);
            add("k_norm", "self_attn.k_norm", "attn_k_norm", &[config.head_dim], Part::Norm);
        }
        add("o_proj", "self_attn.o_proj", "attn_output", &[hidden, q], Part::Attention);
        add("post_norm", "post_attention_layernorm", "ffn_norm", &[hidden], Part::Norm);
        add("gate_proj", "mlp.gate_proj", "ffn_gate", &[mlp, hidden], Part::Mlp);
        add("up_proj", "mlp.up_proj", "ffn_up", &[mlp, hidden], Part::Mlp);
        add("down_proj", "mlp.down_proj", "ffn_down", &[hidden, mlp], Part::Mlp);
    }
    list.add("norm", "model.norm", "output_norm", &[hidden], Part::Norm);
    if !config.tied_embeddings {
        list.add("lm_head", "lm_head", "output", &[config.vocab_size, hidden], Part::Head);
    }
    list.add_biases(config);
    list.0
}

struct List(Vec<WeightPlan>);

impl List {
    fn add(&mut self, name: &str, hf: &str, gguf: &str, dims: &[u64], part: Part) {
        let (hf, gguf) = (format!("{hf}.weight"), format!("{gguf}.weight"));
        self.0.push(WeightPlan { name: name.to_owned(), hf, gguf, dims: dims.to_vec(), part });
    }

    /// A bias beside every projection that has one: same names with `bias` for `weight`, as long as the output.
    fn add_biases(&mut self, config: &LlamaConfig) {
        let biased = |name: &str| match name.rsplit('.').next() {
            Some("q_proj" | "k_proj" | "v_proj") => config.qkv_bias,
            Some("o_proj") => config.o_bias,
            Some("gate_proj" | "up_proj" | "down_proj") => config.mlp_bias,
            _ => false,
        };
        let bias_of = |name: &str| name.strip_suffix(".weight").map(|stem| format!("{stem}.bias"));
        let biases: Vec<WeightPlan> = self
            .0
            .iter()
            .filter(|w| biased(&w.name))
            .map(|w| WeightPlan {
                name: format!("{}.bias", w.name),
                hf: bias_of(&w.hf).expect("projections end in .weight"),
                gguf: bias_of(&w.gguf).expect("projections end in .weight"),
                dims: vec![w.dims[0]],
                part: w.part,
            })
            .collect();
        self.0.extend(biases);
    }
}
