//! The Llama family as a list of ops: Llama, Mistral, Qwen2 (biases on q, k, v), Qwen3 (normalised heads).
//!
//! Decisions:
//! * The residual addition is fused with the normalisation that follows (`add_rmsnorm`); `core` expands it where
//!   refused.
//! * A value has the inner shape its producer wants to be read with (`[heads, head_dim]` for q, k, v and the
//!   attention's output); `gemm` takes the product of the inner dimensions as its row. So no op is spent on reshaping.
//! * Rows whose logits nobody wants are dropped inside the last layer, between attention and MLP (`row_gather`): the
//!   last MLP, the final norm and the head run on wanted rows only. Dropping them just before the head would cost a
//!   whole MLP per token of every prompt.
//! * Projections of one input stay separate ops; fusing them would need a copy of the weights.
#![forbid(unsafe_code)]

use super::INV_FREQ;
use crate::config::{LlamaConfig, RopeStyle};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, ComponentKind, ComponentSpec, Graph, Ref, Vary},
    op::{Attrs, OpKind, ROPE_HALVES, ROPE_PAIRS},
};

/// Build the graph of `config`. `dtype_of` gives the element format of a weight by graph name; norms, biases and
/// frequencies are f32 whatever it says, because the ops define them so.
pub fn build(config: &LlamaConfig, kv_dtype: DType, dtype_of: impl Fn(&str) -> DType) -> Graph {
    let mut b = Builder { graph: Graph::default(), config, dtype_of, component: 0 };
    b.add_component(kv_dtype);
    b.run();
    b.graph
}

struct Builder<'a, F> {
    graph: Graph,
    config: &'a LlamaConfig,
    dtype_of: F,
    component: usize,
}

fn attrs(i: &[i64], f: &[f64]) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.i[..i.len()].copy_from_slice(i);
    attrs.f[..f.len()].copy_from_slice(f);
    attrs
}

impl<F: Fn(&str) -> DType> Builder<'_, F> {
    fn add_component(&mut self, dtype: DType) {
        let inner = vec![self.config.n_kv_heads, self.config.head_dim];
        let tensors = (0..self.config.n_layers).flat_map(|layer| {
            ["k", "v"].map(|kind| CacheTensor { name: format!("layers.{layer}.{kind}"), dtype, inner: inner.clone() })
        });
        let kind = ComponentKind::Paged { tensors: tensors.collect() };
        self.component = self.graph.component(ComponentSpec { name: "kv".to_owned(), kind });
    }

    fn run(&mut self) {
        let hidden = self.config.hidden_size;
        self.op(OpKind::TableUpdate, attrs(&[], &[]), &[Ref::Table { component: self.component }], "table_update");

        let table = self.matrix("embed_tokens", self.config.vocab_size, hidden);
        let mut residual = self.value("embedding", Vary::Tokens, &[hidden]);
        self.op(OpKind::Embedding, attrs(&[], &[]), &[table, residual], "embed_tokens");

        let mut x = self.rmsnorm(residual, "layers.0.input_norm", Vary::Tokens, &[hidden]);
        for layer in 0..self.config.n_layers {
            let last = layer + 1 == self.config.n_layers;
            let mut attention = self.attention(layer, x);
            let vary = if last { Vary::LogitRows } else { Vary::Tokens };
            if last {
                attention = self.gather(attention, "last_attention");
                residual = self.gather(residual, "last_residual");
            }
            let post = format!("layers.{layer}.post_norm");
            (residual, x) = self.add_rmsnorm(attention, residual, &post, vary);
            let mlp = self.mlp(layer, x, vary);
            let next = if last { "norm".to_owned() } else { format!("layers.{}.input_norm", layer + 1) };
            (residual, x) = self.add_rmsnorm(mlp, residual, &next, vary);
        }

        let head = if self.config.tied_embeddings { "embed_tokens" } else { "lm_head" };
        let logits = self.gemm(x, head, "lm_head", hidden, &[self.config.vocab_size], Vary::LogitRows, false);
        let Ref::Value(index) = logits else { unreachable!("a gemm writes a value") };
        self.graph.logits = Some(index);
    }

    /// q, k, v → heads' norms → rotation → cache → attention → output projection.
    fn attention(&mut self, layer: u64, x: Ref) -> Ref {
        let c = self.config;
        let (hidden, heads, kv_heads) = (c.hidden_size, [c.n_heads, c.head_dim], [c.n_kv_heads, c.head_dim]);
        let name = |part: &str| format!("layers.{layer}.{part}");
        let projection = |this: &mut Self, part: &str, inner: &[u64]| {
            let name = name(part);
            this.gemm(x, &name, &name, hidden, inner, Vary::Tokens, c.qkv_bias)
        };
        let mut q = projection(self, "q_proj", &heads);
        let mut k = projection(self, "k_proj", &kv_heads);
        let v = projection(self, "v_proj", &kv_heads);
        if c.qk_norm {
            q = self.rmsnorm(q, &name("q_norm"), Vary::Tokens, &heads);
            k = self.rmsnorm(k, &name("k_norm"), Vary::Tokens, &kv_heads);
        }
        let q = self.rope(q, &name("q_rope"), &heads);
        let k = self.rope(k, &name("k_rope"), &kv_heads);

        let component = self.component;
        let cache = |kind: usize| Ref::Cache { component, tensor: layer as usize * 2 + kind };
        let table = Ref::Table { component };
        let index = component as i64;
        for (kind, value, part) in [(0, k, "k_write"), (1, v, "v_write")] {
            self.op(OpKind::KvWrite, attrs(&[index], &[]), &[value, cache(kind), table], name(part));
        }
        let y = self.value(name("attention"), Vary::Tokens, &heads);
        let attention = attrs(&[index, c.windows[layer as usize] as i64], &[1.0 / (c.head_dim as f64).sqrt()]);
        self.op(OpKind::PagedAttention, attention, &[q, cache(0), cache(1), table, y], name("attention"));
        let o = name("o_proj");
        self.gemm(y, &o, &o, c.n_heads * c.head_dim, &[hidden], Vary::Tokens, c.o_bias)
    }

    fn mlp(&mut self, layer: u64, x: Ref, vary: Vary) -> Ref {
        let (hidden, width, bias) = (self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias);
        let name = |part: &str| format!("layers.{layer}.{part}");
        let gate = self.gemm(x, &name("gate_proj"), &name("gate_proj"), hidden, &[width], vary, bias);
        let up = self.gemm(x, &name("up_proj"), &name("up_proj"), hidden, &[width], vary, bias);
        let y = self.value(name("silu_mul"), vary, &[width]);
        self.op(OpKind::SiluMul, attrs(&[], &[]), &[gate, up, y], name("silu_mul"));
        self.gemm(y, &name("down_proj"), &name("down_proj"), width, &[hidden], vary, bias)
    }

    /// `y[T, inner…] = x · wᵀ (+ bias)` with `w [product of inner, k]`.
    #[allow(clippy::too_many_arguments)]
    fn gemm(&mut self, x: Ref, weight: &str, label: &str, k: u64, inner: &[u64], vary: Vary, bias: bool) -> Ref {
        let n = inner.iter().product();
        let mut operands = vec![x, self.matrix(weight, n, k)];
        if bias {
            operands.push(self.graph.weight(format!("{weight}.bias"), &[n], DType::F32));
        }
        let y = self.value(label, vary, inner);
        operands.push(y);
        self.op(OpKind::Gemm, attrs(&[i64::from(bias)], &[]), &operands, label);
        y
    }

    /// Normalise the last dimension of `x`.
    fn rmsnorm(&mut self, x: Ref, weight: &str, vary: Vary, inner: &[u64]) -> Ref {
        let w = self.graph.weight(weight, &inner[inner.len() - 1..], DType::F32);
        let y = self.value(weight, vary, inner);
        self.op(OpKind::RmsNorm, attrs(&[], &[self.config.rms_norm_eps]), &[x, w, y], weight);
        y
    }

    /// Returns (sum, normalised sum).
    fn add_rmsnorm(&mut self, x: Ref, residual: Ref, weight: &str, vary: Vary) -> (Ref, Ref) {
        let hidden = self.config.hidden_size;
        let w = self.graph.weight(weight, &[hidden], DType::F32);
        let sum = self.value(format!("{weight}.residual"), vary, &[hidden]);
        let y = self.value(weight, vary, &[hidden]);
        let eps = attrs(&[], &[self.config.rms_norm_eps]);
        self.op(OpKind::AddRmsNorm, eps, &[x, residual, w, sum, y], weight);
        (sum, y)
    }

    fn rope(&mut self, x: Ref, label: &str, inner: &[u64]) -> Ref {
        let rope = &self.config.rope;
        let style = if rope.style == RopeStyle::Pairs { ROPE_PAIRS } else { ROPE_HALVES };
        let frequencies = self.graph.weight(INV_FREQ, &[rope.rotary_dims / 2], DType::F32);
        let y = self.value(label, Vary::Tokens, inner);
        self.op(OpKind::Rope, attrs(&[style], &[rope.magnitude()]), &[x, frequencies, y], label);
        y
    }

    fn gather(&mut self, x: Ref, label: &str) -> Ref {
        let y = self.value(label, Vary::LogitRows, &[self.config.hidden_size]);
        self.op(OpKind::RowGather, attrs(&[], &[]), &[x, y], label);
        y
    }

    fn matrix(&mut self, name: &str, n: u64, k: u64) -> Ref {
        let dtype = (self.dtype_of)(name);
        self.graph.weight(name, &[n, k], dtype)
    }

    fn value(&mut self, name: impl Into<String>, vary: Vary, inner: &[u64]) -> Ref {
        self.graph.value(name, vary, inner, DType::F32)
    }

    fn op(&mut self, kind: OpKind, attrs: Attrs, operands: &[Ref], label: impl Into<String>) {
        self.graph.push(kind, attrs, operands, label);
    }
}
