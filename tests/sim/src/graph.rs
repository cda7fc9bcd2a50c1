//! The tiny model as op lists: paged components and, if wanted, a recurrent state; one graph for each pass of a turn.
//!
//! A pass more (a draft model's, say) is an entry in [`passes`] and its ops here; what the device checks of it follows from
//! the ops, in [`crate::device`].

use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, ComponentKind, ComponentSpec, Graph, Ref, Vary},
    op::{Attrs, OpKind},
};
use tokenspeed_core::engine::{ComponentClass, EngineConfig, Pass};

/// A row of values, a cache row: one record of the device, four words.
const ROW: [u64; 2] = [1, 4];
/// Width of the first gate projection's output: makes the record of a token a whole number of the device's records.
const GATE: u64 = 3;
/// Words that a verify pass keeps of a token: q, k, v, the gate's input and beta.
const KEPT: u64 = 3 * 4 + GATE + 1;

/// The passes of an engine, in the order of the loaded programs.
pub fn passes(config: &EngineConfig) -> Vec<Pass> {
    let mut passes = vec![Pass::Forward];
    if config.verifies() {
        passes.push(Pass::Verify);
    }
    if config.verifies() || config.branch_rows() > 0 {
        passes.push(Pass::Replay);
    }
    if config.draft.is_some() {
        passes.extend([Pass::DraftFirst, Pass::DraftNext]);
    }
    passes
}

/// Name of the draft model's component; without a draft model, it is one more of the target's.
pub const DRAFT: &str = "draft";

/// The graph of a pass over the components of `config`.
pub fn graph(config: &EngineConfig, pass: Pass) -> Graph {
    let mut b = Builder { g: Graph::default(), config, pass };
    b.components();
    let tables: Vec<Ref> = (0..config.components.len()).map(|component| Ref::Table { component }).collect();
    b.op(OpKind::TableUpdate, 0, &tables, "table_update");
    match pass {
        Pass::Replay => b.replay(),
        Pass::Forward | Pass::Verify | Pass::DraftFirst | Pass::DraftNext => b.tokens(),
    }
    match pass {
        Pass::Forward | Pass::Verify if config.relay => {
            b.g.with_sampling(config.tokenizer_vocab_size, config.side_rows).expect("it has an embedding and logits")
        }
        _ => b.g,
    }
}

struct Builder<'c> {
    g: Graph,
    config: &'c EngineConfig,
    pass: Pass,
}

impl Builder<'_> {
    fn components(&mut self) {
        let tensor =
            |name: &str, inner: &[u64]| CacheTensor { name: name.into(), dtype: DType::F32, inner: inner.to_vec() };
        for component in &self.config.components {
            let kind = match component.class {
                ComponentClass::Paged => ComponentKind::Paged { tensors: vec![tensor("row", &ROW)] },
                ComponentClass::State => {
                    let mut tensors = vec![tensor("state", &[1, 4, 4])];
                    if self.config.verifies() {
                        let n_tokens = u64::from(self.config.candidates());
                        tensors.extend([tensor("record", &[n_tokens, KEPT]), tensor("window", &[1, 12])]);
                    }
                    ComponentKind::State { tensors }
                }
            };
            self.g.component(ComponentSpec { name: component.name.clone(), kind });
        }
    }

    fn op(&mut self, kind: OpKind, first: i64, operands: &[Ref], label: &str) {
        let mut attrs = Attrs::default();
        attrs.i[0] = first;
        self.g.push(kind, attrs, operands, label);
    }

    fn value(&mut self, name: &str) -> Ref {
        self.g.value(name, Vary::Tokens, &ROW, DType::F32)
    }

    fn is_drafting(&self) -> bool {
        matches!(self.pass, Pass::DraftFirst | Pass::DraftNext)
    }

    /// Numbers of the components that the model of this pass reads and writes.
    fn own_components(&self) -> Vec<usize> {
        let is_own = |at: &usize| {
            let is_drafts = self.config.draft.is_some() && self.config.components[*at].name == DRAFT;
            is_drafts == self.is_drafting()
        };
        (0..self.config.components.len()).filter(is_own).collect()
    }

    /// From token ids to logits.
    fn tokens(&mut self) {
        let vocab_size = u64::from(self.config.vocab_size);
        let (head, n_columns) = match &self.config.draft {
            Some(draft) if self.is_drafting() => ("draft head", u64::from(draft.vocab_size)),
            _ => ("head", vocab_size),
        };
        let embedding = self.g.weight("embedding", &[vocab_size, 4], DType::F32);
        let x = self.value("x");
        self.op(OpKind::Embedding, 0, &[embedding, x], "embedding");
        let mut ways = Vec::new();
        for component in self.own_components() {
            let spec = &self.config.components[component];
            let y = self.value(&spec.name);
            match spec.class {
                ComponentClass::Paged => self.pages(component, x, y),
                ComponentClass::State => self.recurrence(component, x, y),
            }
            ways.push(y);
        }
        // All ways lead to the same values; the device checks that they do.
        let mut z = ways[0];
        for &way in &ways[1..] {
            let sum = self.value("sum");
            self.op(OpKind::Add, 0, &[z, way, sum], "sum");
            z = sum;
        }
        let gated = self.value("gated");
        self.op(OpKind::SigmoidMul, 0, &[z, z, gated], "gate");
        let last = self.g.value("last", Vary::LogitRows, &ROW, DType::F32);
        self.op(OpKind::RowGather, 0, &[gated, last], "gather");
        let head = self.g.weight(head, &[n_columns, 4], DType::F32);
        let logits = self.g.value("logits", Vary::LogitRows, &[n_columns], DType::F32);
        self.op(OpKind::Gemm, 0, &[last, head, logits], "head");
        if let Ref::Value(at) = logits {
            self.g.logits = Some(at);
        }
    }

    fn pages(&mut self, component: usize, x: Ref, y: Ref) {
        let (cache, table, number) = (Ref::Cache { component, tensor: 0 }, Ref::Table { component }, component as i64);
        self.op(OpKind::KvWrite, number, &[x, cache, table], "write");
        self.op(OpKind::PagedAttention, number, &[x, cache, cache, table, y], "attention");
    }

    fn recurrence(&mut self, component: usize, x: Ref, y: Ref) {
        let [state, record] = [0, 1].map(|tensor| Ref::Cache { component, tensor });
        let beta = self.g.value("beta", Vary::Tokens, &[1], DType::F32);
        self.op(OpKind::Slice, 0, &[x, beta], "beta");
        if self.pass == Pass::Verify {
            let low = self.g.value("low", Vary::Tokens, &[GATE], DType::F32);
            self.op(OpKind::Slice, 0, &[x, low], "low");
            self.op(OpKind::KdaRecord, 0, &[x, x, x, low, beta, record], "record");
            self.op(OpKind::KdaVerify, 0, &[x, x, x, x, beta, state, y], "recurrence");
        } else {
            self.op(OpKind::KdaStep, 0, &[x, x, x, x, beta, state, y], "recurrence");
        }
    }

    /// States are advanced over right guesses, and the rows of a right side branch moved to their places.
    fn replay(&mut self) {
        if let Some(component) = self.config.components_of(ComponentClass::State).next() {
            self.replay_state(component);
        }
        if self.config.branch_rows() > 0 {
            let is_paged = |at: &usize| self.config.components[*at].class == ComponentClass::Paged;
            for component in self.own_components().into_iter().filter(is_paged) {
                let operands = [Ref::Cache { component, tensor: 0 }, Ref::Table { component }];
                self.op(OpKind::KvMove, component as i64, &operands, "move");
            }
        }
    }

    fn replay_state(&mut self, component: usize) {
        let [state, record, window] = [0, 1, 2].map(|tensor| Ref::Cache { component, tensor });
        let mut weight = |name: &str, dims: &[u64]| self.g.weight(name, dims, DType::F32);
        let [wq, wk, wv] = ["wq", "wk", "wv"].map(|name| weight(name, &[4, 2]));
        let (wf, a_log, dt_bias) = (weight("wf", &[4, GATE]), weight("a_log", &[1]), weight("dt_bias", &[4]));
        let mut attrs = Attrs::default();
        attrs.f[1..3].copy_from_slice(&[1e-6, 1.0]);
        let operands = [record, wq, wk, wv, wf, a_log, dt_bias, window, state];
        self.g.push(OpKind::KdaReplay, attrs, &operands, "replay");
    }
}
