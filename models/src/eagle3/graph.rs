//! The draft's two passes over one cache layout.
//!
//! A row of a pass stands at the position p of its token and reads hidden states from one position back: the first pass,
//! over tokens of the text, the target's taps there; a next pass, over one guess, what the pass before left there. So it
//! predicts token p + 1. Both leave their hidden state at their own position, and their latent row in the draft's own
//! cache, where later passes overwrite the rows of rejected tokens. The first pass may be one token ahead of the target:
//! the newest token has no hidden states yet, and needs none.
//!
//! Published drafts are described with the row of tap p at p, its token being the next one. That is the same function, as
//! only differences of positions matter to attention, but for one row: here token 0 has a row too, of a hidden state of
//! zeros. It buys that a page of draft rows is made from tokens of that page and before, as every other component's, so a
//! cached page is right for every continuation. Rejected: the published places. The last row of a page would belong to one
//! continuation, and the next one to hit the page would either draft from a wrong row or write into a shared page.
//!
//! Hidden states reach the draft through pages (see `kimi::Taps`): the target writes them there, `kv_read` fetches them.
//! The draft adds its own output as another tensor of that component, and a component `draft` for its latent rows. Taps
//! are a stream that is read once, latent rows belong to a conversation as long as it lives: one component for both would
//! keep tens of kilobytes per token for nothing.
//!
//! All graphs of one engine name the same components and update all their tables, so attaching a draft changes the
//! target's graphs too.
//!
//! The rotated part of a query or row comes last, and `rope` turns leading dimensions; it is given a frequency of zero for
//! the dimensions before. Rejected: reordering rows of the weights, which would copy them at load.

use super::{
    Eagle3Config,
    source::{PREFIX, QUERY_FREQUENCIES, ROW_FREQUENCIES},
    tensors,
};
use crate::kimi;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, ComponentKind, ComponentSpec, Graph, Ref, Vary},
    op::{Attrs, OpKind, ROPE_PAIRS},
};

/// What the graphs leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Format of the draft's latent cache rows.
    pub latent: DType,
    /// The draft's checkpoint has an embedding table; else it uses the target's.
    pub own_embedding: bool,
}

/// The draft's graphs. Their logits have one value per row of the draft's head.
#[derive(Debug)]
pub struct Graphs {
    /// Over rows the target has newly computed.
    pub first: Graph,
    /// Over one row per request, one position after a pass of either kind.
    pub next: Graph,
}

const TARGET_EMBEDDING: &str = "model.embed_tokens.weight";

impl Graphs {
    /// Build them for the target whose graphs were built with the taps of [`Eagle3Config::taps_of`], and add the draft's
    /// part of the cache to the target's graphs.
    ///
    /// # Panics
    /// If the target's graphs have other taps, or a draft already.
    pub fn attach(config: &Eagle3Config, target: &mut kimi::Graphs, options: Options) -> Self {
        let forward = &mut target.forward;
        let taps = taps_component(forward);
        let dtype = paged(forward, taps)[0].dtype;
        assert_eq!(paged(forward, taps).len() as u64, config.tap_count(), "taps of the target and of the draft");
        let hidden = CacheTensor { name: "draft.hidden".into(), dtype, inner: vec![1, config.hidden_size] };
        let latent = CacheTensor { name: "draft.latent".into(), dtype: options.latent, inner: vec![1, config.row()] };
        let draft = ComponentSpec { name: "draft".into(), kind: ComponentKind::Paged { tensors: vec![latent] } };
        let graphs = [Some(forward), target.verify.as_mut(), target.replay.as_mut()];
        for graph in graphs.into_iter().flatten() {
            paged(graph, taps).push(hidden.clone());
            let component = graph.component(draft.clone());
            graph.ops[0].operands.push(Ref::Table { component });
        }
        let components = &target.forward.components;
        let build = |first| {
            Builder { graph: Graph::default(), config, taps, draft: components.len() - 1 }
                .build(components, options, first)
        };
        Self { first: build(true), next: build(false) }
    }
}

fn taps_component(graph: &Graph) -> usize {
    assert!(graph.components.iter().all(|c| c.name != "draft"), "a draft is attached already");
    assert_eq!(graph.ops[0].kind, OpKind::TableUpdate);
    graph.components.iter().position(|c| c.name == "taps").expect("the target's graphs were built with taps")
}

fn paged(graph: &mut Graph, component: usize) -> &mut Vec<CacheTensor> {
    match &mut graph.components[component].kind {
        ComponentKind::Paged { tensors } => tensors,
        ComponentKind::State { .. } => unreachable!("taps are rows per token"),
    }
}

struct Builder<'a> {
    graph: Graph,
    config: &'a Eagle3Config,
    taps: usize,
    draft: usize,
}

impl Builder<'_> {
    fn build(mut self, components: &[ComponentSpec], options: Options, first: bool) -> Graph {
        let Eagle3Config { hidden_size: h, vocab_size, intermediate_size: n, .. } = *self.config;
        self.graph.components = components.to_vec();
        let tables: Vec<Ref> = (0..components.len()).map(|component| Ref::Table { component }).collect();
        self.graph.push(OpKind::TableUpdate, Attrs::default(), &tables, "table_update");

        let own = format!("{PREFIX}{}", tensors::EMBEDDING);
        let name = if options.own_embedding { &own } else { TARGET_EMBEDDING };
        let table = self.graph.weight(name, &[vocab_size, h], self.config.stored);
        let embedding = self.value("draft.embed_tokens", &[h]);
        self.graph.push(OpKind::Embedding, Attrs::default(), &[table, embedding], "draft.embed_tokens");

        let input = if first { self.fused_taps() } else { self.read(self.config.tap_count() as usize, "hidden") };
        let token = self.norm(embedding, "layers.0.input_layernorm", h);
        let state = self.norm(input, "layers.0.hidden_norm", h);
        let both = self.binary(OpKind::Concat, token, state, "layers.0.input", 2 * h);
        let a = self.attention(both);
        let res = self.binary(OpKind::Add, input, a, "layers.0.attention_sum", h);
        let x = self.norm(res, "layers.0.post_attention_layernorm", h);
        let gate = self.linear(x, "layers.0.mlp.gate_proj", &[n], h);
        let up = self.linear(x, "layers.0.mlp.up_proj", &[n], h);
        let inner = self.binary(OpKind::SiluMul, gate, up, "layers.0.mlp.act", n);
        let m = self.linear(inner, "layers.0.mlp.down_proj", &[h], n);
        let sum = self.binary(OpKind::Add, res, m, "layers.0.sum", h);
        let out = self.norm(sum, "norm", h);
        self.keep(if self.config.norm_output { out } else { sum });

        let wanted = self.graph.value("draft.wanted", Vary::LogitRows, &[h], DType::F32);
        self.graph.push(OpKind::RowGather, Attrs::default(), &[out, wanted], "draft.wanted");
        let rows = self.config.draft_vocab_size;
        let head = self.matrix(tensors::HEAD, rows, h);
        let logits = self.graph.value("draft.logits", Vary::LogitRows, &[rows], DType::F32);
        self.graph.push(OpKind::Gemm, Attrs::default(), &[wanted, head, logits], "draft.lm_head");
        let Ref::Value(index) = logits else { unreachable!("a value was just made") };
        self.graph.logits = Some(index);
        self.graph
    }

    /// Each tap normalised, side by side, projected to one hidden state.
    fn fused_taps(&mut self) -> Ref {
        let h = self.config.hidden_size;
        let count = self.config.tap_count();
        let mut joined: Option<Ref> = None;
        for i in 0..count {
            let tap = self.read(i as usize, &format!("tap.{i}"));
            let normed = self.norm(tap, &format!("fc_norm.{i}"), h);
            joined = Some(match joined {
                None => normed,
                Some(before) => self.binary(OpKind::Concat, before, normed, &format!("taps.{i}"), (i + 1) * h),
            });
        }
        self.linear(joined.expect("at least one tap"), "fc", &[h], count * h)
    }

    /// What was left one position back.
    fn read(&mut self, tensor: usize, name: &str) -> Ref {
        let component = self.taps;
        let y = self.value(&format!("{PREFIX}{name}"), &[1, self.config.hidden_size]);
        let operands = [Ref::Cache { component, tensor }, Ref::Table { component }, y];
        self.graph.push(OpKind::KvRead, attrs(&[component as i64, 1], &[]), &operands, format!("{PREFIX}{name}"));
        y
    }

    fn keep(&mut self, hidden: Ref) {
        let (component, tensor) = (self.taps, self.config.tap_count() as usize);
        let operands = [hidden, Ref::Cache { component, tensor }, Ref::Table { component }];
        self.graph.push(OpKind::KvWrite, attrs(&[component as i64], &[]), &operands, "draft.keep");
    }

    /// Latent attention, as `kimi::gated_mla`, with rotation and without a gate.
    fn attention(&mut self, x: Ref) -> Ref {
        let Eagle3Config { hidden_size: h, heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, .. } = *self.config;
        let (head, row) = (nope_dim + rope_dim, self.config.row());
        let (cache, table) = (Ref::Cache { component: self.draft, tensor: 0 }, Ref::Table { component: self.draft });
        let name = |part: &str| format!("layers.0.self_attn.{part}");

        let low = self.linear(x, &name("q_a_proj"), &[q_rank], 2 * h);
        let low = self.norm(low, &name("q_a_layernorm"), q_rank);
        let q = self.linear(low, &name("q_b_proj"), &[heads, head], q_rank);
        let q = self.rotate(q, QUERY_FREQUENCIES, &[heads, head], &name("q_rope"));
        let latent = self.linear(x, &name("kv_a_proj_with_mqa"), &[1, row], 2 * h);
        let latent = self.rotate(latent, ROW_FREQUENCIES, &[1, row], &name("k_rope"));
        let norm = self.small(&name("kv_a_layernorm.weight"), kv_rank);
        let component = attrs(&[self.draft as i64], &[self.config.rms_norm_eps]);
        self.graph.push(OpKind::MlaWrite, component, &[latent, norm, cache, table], name("write"));

        let kv_b = self.matrix(&name("kv_b_proj.weight"), heads * (nope_dim + v_dim), kv_rank);
        let absorbed = self.value(&name("absorbed"), &[heads, row]);
        self.graph.push(OpKind::MlaAbsorb, attrs(&[rope_dim as i64], &[]), &[q, kv_b, absorbed], name("absorb"));
        let mixed = self.value(&name("mixed"), &[heads, kv_rank]);
        let scale = attrs(&[self.draft as i64], &[self.config.softmax_scale]);
        self.graph.push(OpKind::MlaAttention, scale, &[absorbed, cache, table, mixed], name("attention"));
        let o = self.value(&name("value"), &[heads, v_dim]);
        self.graph.push(OpKind::MlaValue, Attrs::default(), &[mixed, kv_b, o], name("value"));
        self.linear(o, &name("o_proj"), &[h], heads * v_dim)
    }

    fn rotate(&mut self, x: Ref, frequencies: &str, inner: &[u64], name: &str) -> Ref {
        let n = inner.last().expect("a shape") / 2;
        let frequencies = self.graph.weight(frequencies, &[n], DType::F32);
        let y = self.value(name, inner);
        self.graph.push(OpKind::Rope, attrs(&[ROPE_PAIRS], &[]), &[x, frequencies, y], name);
        y
    }

    fn value(&mut self, name: &str, inner: &[u64]) -> Ref {
        self.graph.value(name, Vary::Tokens, inner, DType::F32)
    }

    fn matrix(&mut self, name: &str, rows: u64, columns: u64) -> Ref {
        self.graph.weight(format!("{PREFIX}{name}"), &[rows, columns], self.config.stored)
    }

    fn small(&mut self, name: &str, n: u64) -> Ref {
        self.graph.weight(format!("{PREFIX}{name}"), &[n], DType::F32)
    }

    fn linear(&mut self, x: Ref, name: &str, out: &[u64], columns: u64) -> Ref {
        let w = self.matrix(&format!("{name}.weight"), out.iter().product(), columns);
        let y = self.value(name, out);
        self.graph.push(OpKind::Gemm, Attrs::default(), &[x, w, y], format!("{PREFIX}{name}"));
        y
    }

    fn norm(&mut self, x: Ref, name: &str, n: u64) -> Ref {
        let w = self.small(&format!("{name}.weight"), n);
        let y = self.value(name, &[n]);
        let eps = attrs(&[], &[self.config.rms_norm_eps]);
        self.graph.push(OpKind::RmsNorm, eps, &[x, w, y], format!("{PREFIX}{name}"));
        y
    }

    fn binary(&mut self, kind: OpKind, a: Ref, b: Ref, name: &str, n: u64) -> Ref {
        let y = self.value(name, &[n]);
        self.graph.push(kind, Attrs::default(), &[a, b, y], format!("{PREFIX}{name}"));
        y
    }
}

fn attrs(i: &[i64], f: &[f64]) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.i[..i.len()].copy_from_slice(i);
    attrs.f[..f.len()].copy_from_slice(f);
    attrs
}
