//! The graph a model is written in: public ops over symbolic values, before a backend is known.
//!
//! A model builds one `Graph`; `core` asks the backend about each op, expands what it refuses, places values in arenas
//! and so makes the flat program. Values are written once; the order of `ops` is the order of execution. Shapes have
//! at most one varying dimension, always the first: how many tokens, rows or logit rows a step has.
//!
//! Rejected: a general SSA graph with a pass pipeline. Models here are straight lines; a list is readable and exact.

use crate::{
    abi,
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
    dtype::DType,
    op::{Attrs, OpKind},
};

/// What the first dimension of a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Vary {
    /// A constant shape.
    Fixed = abi::TS_VARY_FIXED,
    /// One entry per token of the step.
    Tokens = abi::TS_VARY_TOKENS,
    /// One entry per request of the step.
    Rows = abi::TS_VARY_ROWS,
    /// One entry per wanted row of logits.
    LogitRows = abi::TS_VARY_LOGIT_ROWS,
}

/// A value computed in a step.
#[derive(Clone, Debug)]
pub struct ValueSpec {
    /// For messages.
    pub name: String,
    /// Element format.
    pub dtype: DType,
    /// What dimension 0 counts.
    pub vary: Vary,
    /// The dimensions after the first, e.g. `[heads, head_dim]`.
    pub inner: Vec<u64>,
}

/// A weight, bound to bytes at load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Name in the graph; the reader maps it to a checkpoint tensor.
    pub name: String,
    /// Stored element format.
    pub dtype: DType,
    /// Shape, outermost first.
    pub dims: Vec<u64>,
}

/// One per-token tensor of a paged component: a page holds `[block_tokens, inner…]` of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheTensor {
    /// e.g. `layers.0.k`.
    pub name: String,
    /// Element format in the cache.
    pub dtype: DType,
    /// Shape per token, e.g. `[kv_heads, head_dim]`.
    pub inner: Vec<u64>,
}

/// How a cache component is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentKind {
    /// Rows per token in pages of the core's choosing.
    Paged {
        /// All tensors that share one block table.
        tensors: Vec<CacheTensor>,
    },
    /// One fixed-size state per sequence (recurrent state and convolution window).
    State {
        /// All tensors of one slot; `inner` is the shape per slot.
        tensors: Vec<CacheTensor>,
    },
}

/// A cache component: everything that must be resumable together under one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentSpec {
    /// `kv`, `mla`, `kda`, `draft`.
    pub name: String,
    /// Storage.
    pub kind: ComponentKind,
}

/// An operand of a graph op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ref {
    /// Index into `Graph::values`.
    Value(usize),
    /// Index into `Graph::weights`.
    Weight(usize),
    /// Tensor `tensor` of component `component`, as `[blocks, block_tokens, inner…]` (or `[slots, inner…]`).
    Cache {
        /// Index into `Graph::components`.
        component: usize,
        /// Index into the component's tensors.
        tensor: usize,
    },
    /// Block table of a component, `[table rows, blocks per row]` of u32.
    Table {
        /// Index into `Graph::components`.
        component: usize,
    },
    /// Slots of token ids sampled on the device, `[1 + table rows + logit rows]` of i32; they outlive a step.
    Relay,
    /// Side table `table` of the op `sample`, in its order (counts, bias, mask): `[1 + side rows, …]`. They outlive a step.
    Side {
        /// 0 to 2.
        table: usize,
    },
}

/// One op: operands in catalogue order, inputs first.
#[derive(Clone, Debug)]
pub struct GraphOp {
    /// What to compute.
    pub kind: OpKind,
    /// Its attributes.
    pub attrs: Attrs,
    /// Its operands.
    pub operands: Vec<Ref>,
    /// For messages and traces.
    pub label: String,
}

impl GraphOp {
    /// An op that stands for a part of this one, under its label.
    pub fn part(&self, kind: OpKind, attrs: Attrs, operands: &[Ref]) -> Self {
        Self { kind, attrs, operands: operands.to_vec(), label: self.label.clone() }
    }
}

/// A model before lowering.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Values, written once each.
    pub values: Vec<ValueSpec>,
    /// Weights.
    pub weights: Vec<WeightSpec>,
    /// Cache components.
    pub components: Vec<ComponentSpec>,
    /// Execution order.
    pub ops: Vec<GraphOp>,
    /// The f32 logits, `[logit rows, vocabulary]`.
    pub logits: Option<usize>,
    /// The outputs `chosen` and `logprobs` of the op `sample`, if the device samples: see [`Graph::with_sampling`].
    pub sampled: Option<[usize; 2]>,
    /// Rows of its side tables, row 0 not counted; 0 = it has none.
    pub side_rows: u32,
}

impl Graph {
    /// The same graph with its logits sampled on the device, ids below `n_ids`, with side tables of `side_rows` rows if there are
    /// any, and with embeddings that take ids from relay slots. `None` if it has no logits or no embedding.
    pub fn with_sampling(&self, n_ids: u32, side_rows: u32) -> Option<Self> {
        let mut graph = self.clone();
        let logits = graph.logits?;
        let embeddings = graph.ops.iter_mut().filter(|op| op.kind == OpKind::Embedding);
        if embeddings.map(|op| op.operands.insert(1, Ref::Relay)).count() == 0 {
            return None;
        }
        let chosen = graph.value("chosen", Vary::LogitRows, &[CHOSEN_WIDTH as u64], DType::U32);
        let logprobs = graph.value("logprobs", Vary::LogitRows, &[LOGPROBS_WIDTH as u64], DType::F32);
        let mut attrs = Attrs::default();
        attrs.i[0] = n_ids.into();
        let mut operands = vec![Ref::Value(logits), Ref::Relay];
        if side_rows > 0 {
            operands.extend((0..3).map(|table| Ref::Side { table }));
        }
        operands.extend([chosen, logprobs]);
        graph.push(OpKind::Sample, attrs, &operands, "sample");
        graph.side_rows = side_rows;
        graph.sampled = Some([graph.values.len() - 2, graph.values.len() - 1]);
        Some(graph)
    }

    /// A new value.
    pub fn value(&mut self, name: impl Into<String>, vary: Vary, inner: &[u64], dtype: DType) -> Ref {
        self.values.push(ValueSpec { name: name.into(), dtype, vary, inner: inner.to_vec() });
        Ref::Value(self.values.len() - 1)
    }

    /// A weight; the same name twice is the same weight (tied embeddings).
    pub fn weight(&mut self, name: impl Into<String>, dims: &[u64], dtype: DType) -> Ref {
        let spec = WeightSpec { name: name.into(), dtype, dims: dims.to_vec() };
        if let Some(i) = self.weights.iter().position(|w| w.name == spec.name) {
            assert_eq!(self.weights[i], spec, "one weight name, two descriptions");
            return Ref::Weight(i);
        }
        self.weights.push(spec);
        Ref::Weight(self.weights.len() - 1)
    }

    /// A cache component; returns its index.
    pub fn component(&mut self, spec: ComponentSpec) -> usize {
        self.components.push(spec);
        self.components.len() - 1
    }

    /// Append an op.
    pub fn push(&mut self, kind: OpKind, attrs: Attrs, operands: &[Ref], label: impl Into<String>) {
        self.ops.push(GraphOp { kind, attrs, operands: operands.to_vec(), label: label.into() });
    }
}

/// Where a weight's bytes are.
#[derive(Clone, Debug)]
pub enum WeightBytes<'a> {
    /// Inside a memory-mapped file: usable in place by backends that import host memory.
    Mapped {
        /// Index into [`WeightSource::regions`].
        region: usize,
        /// First byte inside the region.
        offset: u64,
        /// Length, equal to the weight's size.
        bytes: u64,
    },
    /// Inside a memory-mapped file, the entries of dimension 0 apart from each other: usable in place where the op takes
    /// that stride.
    Pitched {
        /// Index into [`WeightSource::regions`].
        region: usize,
        /// First byte of entry 0 inside the region.
        offset: u64,
        /// Bytes from one entry to the next, at least `bytes`.
        pitch: u64,
        /// Entries.
        count: u64,
        /// Length of one entry.
        bytes: u64,
    },
    /// Made at load (converted, concatenated, permuted, random).
    Owned(std::borrow::Cow<'a, [u8]>),
}

impl WeightBytes<'_> {
    /// Length of the dense form.
    pub fn size(&self) -> u64 {
        match self {
            Self::Mapped { bytes, .. } => *bytes,
            Self::Pitched { count, bytes, .. } => count * bytes,
            Self::Owned(bytes) => bytes.len() as u64,
        }
    }

    /// The dense form; `regions` are those of the source. Entries that lie apart are copied together.
    ///
    /// # Panics
    /// If the place lies outside the regions: a defect of the source.
    pub fn contents<'b>(&'b self, regions: &[&'b [u8]]) -> std::borrow::Cow<'b, [u8]> {
        use std::borrow::Cow;
        match self {
            Self::Mapped { region, offset, bytes } => {
                Cow::Borrowed(&regions[*region][*offset as usize..][..*bytes as usize])
            }
            Self::Pitched { region, offset, pitch, count, bytes } => {
                let mut dense = Vec::with_capacity((count * bytes) as usize);
                for i in 0..*count {
                    dense.extend_from_slice(&regions[*region][(offset + i * pitch) as usize..][..*bytes as usize]);
                }
                Cow::Owned(dense)
            }
            Self::Owned(bytes) => Cow::Borrowed(bytes),
        }
    }
}

/// A checkpoint seen as a graph's weights.
pub trait WeightSource: Send + Sync {
    /// Memory-mapped regions, each living as long as the source.
    fn regions(&self) -> Vec<&[u8]>;
    /// The bytes of one weight; its dtype and shape were fixed when the graph was built.
    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String>;
}

/// For each of `n_values` values the index of the last op during which nothing else may lie in its place; 0 for one that no op names.
///
/// That is its last reader. But what a product reads lives through an addition or an activation right behind it: a backend may do both
/// in one launch, whose result must not lie on rows that are still read. Whether it did would else depend on what else there is to place.
pub fn last_uses<'a>(n_values: usize, ops: impl IntoIterator<Item = (OpKind, &'a [Ref])>) -> Vec<usize> {
    let mut last = vec![0; n_values];
    let mut product = None;
    for (index, (kind, operands)) in ops.into_iter().enumerate() {
        let joins = matches!(kind, OpKind::Add | OpKind::SiluMul | OpKind::SituMul);
        let rows = product.take().filter(|_| joins);
        for r in operands.iter().chain(rows) {
            if let Ref::Value(v) = r {
                last[*v] = index;
            }
        }
        product = operands.first().filter(|_| kind == OpKind::Gemm);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_product_live_through_the_sum_behind_it() {
        let [x, w, y, z] = [0, 1, 2, 3].map(Ref::Value);
        let product = (OpKind::Gemm, &[x, w, y][..]);
        assert_eq!(last_uses(4, [product, (OpKind::Add, &[y, y, z][..])]), [1, 0, 1, 1]);
        assert_eq!(last_uses(4, [product, (OpKind::RmsNorm, &[y, w, z][..])]), [0, 1, 1, 1]);
        assert_eq!(
            last_uses(4, [product, (OpKind::RmsNorm, &[y, w, z][..]), (OpKind::Add, &[z, z, z][..])]),
            [0, 1, 1, 2]
        );
    }
}
