//! From a model graph to the flat program of one device.
//!
//! Lowering asks the backend about every concrete op once, expands what it refuses (fused ops only), gives every value
//! a place, and lays out weights, cache and tables. It touches no device: its result is a value that `load` executes,
//! so what was decided can be printed (`plan`, `backends --explain`) without weights.
//!
//! Memory for values is reused by lifetime, first fit in order of creation. Rejected: in-place aliasing of outputs and
//! inputs; it saves little here (activations are small beside the cache) and every op would have to promise it.

mod expand;
mod place;

pub use expand::Resolution;

use tokenspeed_backend_api::{
    abi::{TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_TABLES},
    catalogue::OpDesc,
    dtype::DType,
    graph::{ComponentKind, Graph, Ref, Vary},
    op::OpKind,
    support::{Pack, Support},
    tensor::Tensor,
};

/// Capacities a program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens per step.
    pub tokens: u32,
    /// Requests per step.
    pub rows: u32,
    /// Rows of logits per step.
    pub logit_rows: u32,
    /// Rows of the block tables: requests that hold memory.
    pub table_rows: u32,
    /// Entries per table row: blocks of the longest sequence.
    pub blocks_per_row: u32,
    /// Tokens per page.
    pub block_tokens: u32,
    /// Pages per paged component, scratch page 0 included.
    pub blocks: u32,
    /// Slots per state component, scratch slot 0 included; models without recurrent state take none.
    pub states: u32,
}

/// Why a model cannot run on a backend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// An op is refused and has no decomposition, or its parts are refused too.
    #[error("the backend cannot run `{op}` ({label}): {reason}")]
    Unsupported {
        /// Catalogue name.
        op: &'static str,
        /// Where in the model.
        label: String,
        /// The backend's words.
        reason: String,
    },
    /// The graph breaks the op's schema: a defect of the model code.
    #[error("the model graph is wrong at {label}: {reason}")]
    Schema {
        /// Where in the model.
        label: String,
        /// What the catalogue says.
        reason: String,
    },
}

/// Where one form of a weight will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightUse {
    /// Index into the graph's weights.
    pub weight: usize,
    /// Packed form wanted by op `first_op`, or the canonical bytes.
    pub pack: Option<Pack>,
    /// First op that uses this form.
    pub first_op: usize,
}

/// An op with everything decided except where weights are.
#[derive(Clone, Debug)]
pub struct LoweredOp {
    /// Descriptor; weight operands get binding and offset at load, the others have theirs.
    pub desc: OpDesc,
    /// (operand, index into `Lowered::weight_uses`).
    pub weights: Vec<(usize, usize)>,
    /// Where in the model.
    pub label: String,
    /// Scratch, in the activations binding.
    pub workspace: (u64, u64),
    /// The backend's answer.
    pub support: Support,
}

/// A placed program, before memory exists.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Execution order.
    pub ops: Vec<LoweredOp>,
    /// Forms of weights needed.
    pub weight_uses: Vec<WeightUse>,
    /// Bytes of the activations arena.
    pub activation_bytes: u64,
    /// Bytes of the cache arena.
    pub cache_bytes: u64,
    /// Bytes of the table arena.
    pub table_bytes: u64,
    /// Bytes of the output arena: logits `[logit rows, vocabulary]` f32 at offset 0.
    pub output_bytes: u64,
    /// Vocabulary of the logits; 0 for a graph without.
    pub vocab: u32,
    /// Where in the output arena the outputs `chosen` and `logprobs` of the op `sample` lie, if the device samples.
    pub sampled: Option<[u64; 2]>,
    /// Where the side tables of that op lie in the table arena, and the words of their rows, if it has them.
    pub side: Option<[(u64, u32); 3]>,
    /// How each public op was resolved, for people.
    pub resolutions: Vec<Resolution>,
}

/// Lower `graph` at `capacity`; `support` is the backend's `op_support`, `alignment` its operand alignment.
pub fn lower(
    graph: &Graph,
    capacity: Capacity,
    alignment: u64,
    support: &mut dyn FnMut(&OpDesc, &str) -> Support,
) -> Result<Lowered, LowerError> {
    let (graph, mut ops, resolutions) = expand::expand(graph, &capacity, support)?;
    let layout = Layout::new(&graph, &capacity, alignment);
    let activation_bytes = place::place_values(&graph, &capacity, alignment, &mut ops);
    let outputs = Outputs::new(&graph, &capacity, alignment);
    let vocab = graph.logits.map_or(0, |logits| graph.values[logits].inner.iter().product::<u64>());
    let mut weight_uses: Vec<WeightUse> = Vec::new();
    let mut lowered = Vec::with_capacity(ops.len());
    for (index, op) in ops.into_iter().enumerate() {
        let mut desc = op.desc;
        let mut weights = Vec::new();
        for (i, reference) in op.operands.iter().enumerate() {
            let tensor = &mut desc.operands[i];
            match *reference {
                Ref::Weight(weight) => {
                    let pack = op.support.packs.iter().find(|p| p.operand as usize == i).copied();
                    let known = weight_uses.iter().position(|u| {
                        u.weight == weight && u.pack.map(|p| (p.layout, p.bytes)) == pack.map(|p| (p.layout, p.bytes))
                    });
                    let slot = known.unwrap_or_else(|| {
                        weight_uses.push(WeightUse { weight, pack, first_op: index });
                        weight_uses.len() - 1
                    });
                    weights.push((i, slot));
                    tensor.layout = pack.map_or(0, |p| p.layout);
                }
                Ref::Value(v) => {
                    if let Some(offset) = outputs.offset(v) {
                        (tensor.binding, tensor.offset) = (TS_BIND_OUTPUT, offset);
                    }
                }
                Ref::Relay => (tensor.binding, tensor.offset) = (TS_BIND_TABLES, layout.relay),
                Ref::Side { table } => (tensor.binding, tensor.offset) = (TS_BIND_TABLES, layout.side[table].0),
                Ref::Cache { component, tensor: t } => {
                    (tensor.binding, tensor.offset) = (TS_BIND_CACHE, layout.cache[component][t]);
                }
                Ref::Table { component } => {
                    (tensor.binding, tensor.offset) = (TS_BIND_TABLES, layout.tables[component]);
                }
            }
        }
        lowered.push(LoweredOp { desc, weights, label: op.label, workspace: op.workspace, support: op.support });
    }
    Ok(Lowered {
        ops: lowered,
        weight_uses,
        activation_bytes,
        cache_bytes: layout.cache_bytes,
        table_bytes: layout.table_bytes,
        output_bytes: outputs.bytes,
        vocab: vocab as u32,
        side: (graph.side_rows > 0).then_some(layout.side),
        sampled: graph.sampled.map(|values| values.map(|v| outputs.offset(v).expect("an output"))),
        resolutions,
    })
}

/// What the host reads back: logits at offset 0, and what was sampled from them.
struct Outputs {
    /// Value and offset.
    places: Vec<(usize, u64)>,
    bytes: u64,
}

impl Outputs {
    fn new(graph: &Graph, capacity: &Capacity, alignment: u64) -> Self {
        let mut outputs = Self { places: Vec::new(), bytes: 0 };
        for value in graph.logits.into_iter().chain(graph.sampled.into_iter().flatten()) {
            let offset = outputs.bytes.next_multiple_of(alignment);
            outputs.places.push((value, offset));
            outputs.bytes = offset + operand(graph, capacity, Ref::Value(value)).bytes();
        }
        outputs
    }

    fn offset(&self, value: usize) -> Option<u64> {
        self.places.iter().find(|place| place.0 == value).map(|place| place.1)
    }
}

/// Where blocks lie in the cache arena: for each tensor, the offset of block 0 and the bytes of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheLayout {
    /// Of pages, tensors of all paged components.
    pub pages: Vec<(u64, u64)>,
    /// Of state slots.
    pub states: Vec<(u64, u64)>,
}

/// The layout that [`lower`] gives the cache at this capacity and alignment.
pub fn cache_layout(graph: &Graph, capacity: &Capacity, alignment: u64) -> CacheLayout {
    let layout = Layout::new(graph, capacity, alignment);
    let mut blocks = CacheLayout::default();
    for (component, offsets) in graph.components.iter().zip(layout.cache) {
        let (list, per) = match component.kind {
            ComponentKind::Paged { .. } => (&mut blocks.pages, u64::from(capacity.block_tokens)),
            ComponentKind::State { .. } => (&mut blocks.states, 1),
        };
        for (tensor, offset) in cache_tensors(&component.kind).iter().zip(offsets) {
            let elements = tensor.inner.iter().product::<u64>() * per;
            list.push((offset, tensor.dtype.bytes(elements).expect("cache rows are whole blocks")));
        }
    }
    blocks
}

/// Offsets of cache tensors and tables in their arenas.
struct Layout {
    cache: Vec<Vec<u64>>,
    tables: Vec<u64>,
    /// Of the relay slots, behind the tables.
    relay: u64,
    /// Of the side tables behind those, and words of their rows.
    side: [(u64, u32); 3],
    cache_bytes: u64,
    table_bytes: u64,
}

impl Layout {
    fn new(graph: &Graph, capacity: &Capacity, alignment: u64) -> Self {
        let mut layout = Layout {
            cache: Vec::new(),
            tables: Vec::new(),
            relay: 0,
            side: [(0, 0); 3],
            cache_bytes: 0,
            table_bytes: 0,
        };
        for component in 0..graph.components.len() {
            let n = cache_tensors(&graph.components[component].kind).len();
            let offsets = (0..n).map(|tensor| {
                let at = layout.cache_bytes;
                let bytes = operand(graph, capacity, Ref::Cache { component, tensor }).bytes();
                layout.cache_bytes = (at + bytes).next_multiple_of(alignment);
                at
            });
            let offsets = offsets.collect();
            layout.cache.push(offsets);
            layout.tables.push(layout.table_bytes);
            let bytes = operand(graph, capacity, Ref::Table { component }).bytes();
            layout.table_bytes = (layout.table_bytes + bytes).next_multiple_of(alignment);
        }
        layout.relay = layout.table_bytes;
        if graph.sampled.is_some() {
            layout.table_bytes += operand(graph, capacity, Ref::Relay).bytes().next_multiple_of(alignment);
        }
        if graph.side_rows > 0 {
            for table in 0..3 {
                let rows = operand(graph, capacity, Ref::Side { table });
                layout.side[table] = (layout.table_bytes, rows.row_len() as u32);
                layout.table_bytes += rows.bytes().next_multiple_of(alignment);
            }
        }
        layout
    }
}

fn cache_tensors(kind: &ComponentKind) -> &[tokenspeed_backend_api::graph::CacheTensor] {
    match kind {
        ComponentKind::Paged { tensors } | ComponentKind::State { tensors } => tensors,
    }
}

/// Bytes one page (or one state slot) of a component takes over all its tensors.
pub fn block_bytes(kind: &ComponentKind, block_tokens: u32) -> u64 {
    let per = if matches!(kind, ComponentKind::Paged { .. }) { u64::from(block_tokens) } else { 1 };
    cache_tensors(kind)
        .iter()
        .map(|t| t.dtype.bytes(t.inner.iter().product::<u64>() * per).expect("cache rows are whole blocks"))
        .sum()
}

/// The descriptor of an operand at capacity, not yet placed.
fn operand(graph: &Graph, capacity: &Capacity, reference: Ref) -> Tensor {
    match reference {
        Ref::Value(i) => {
            let v = &graph.values[i];
            let first = match v.vary {
                Vary::Fixed => 1,
                Vary::Tokens => capacity.tokens,
                Vary::Rows => capacity.rows,
                Vary::LogitRows => capacity.logit_rows,
            };
            let dims: Vec<u64> = std::iter::once(u64::from(first)).chain(v.inner.iter().copied()).collect();
            Tensor::new(v.dtype, v.vary, &dims)
        }
        Ref::Weight(i) => Tensor::new(graph.weights[i].dtype, Vary::Fixed, &graph.weights[i].dims),
        Ref::Cache { component, tensor } => {
            let kind = &graph.components[component].kind;
            let t = &cache_tensors(kind)[tensor];
            let mut dims = match kind {
                ComponentKind::Paged { .. } => vec![capacity.blocks.into(), capacity.block_tokens.into()],
                ComponentKind::State { .. } => vec![u64::from(capacity.states)],
            };
            dims.extend(&t.inner);
            Tensor::new(t.dtype, Vary::Fixed, &dims)
        }
        // Nobody's, one per request, and one per row of logits for ids that no step reads.
        Ref::Relay => {
            let slots = 1 + u64::from(capacity.table_rows) + u64::from(capacity.logit_rows);
            Tensor::new(DType::I32, Vary::Fixed, &[slots])
        }
        // Row 0 is nobody's.
        Ref::Side { table } => {
            let width = graph.logits.map_or(0, |logits| graph.values[logits].inner.iter().product::<u64>());
            let (dtype, width) = [(DType::U32, width), (DType::F32, width), (DType::U32, width.div_ceil(32))][table];
            Tensor::new(dtype, Vary::Fixed, &[1 + u64::from(graph.side_rows), width])
        }
        Ref::Table { .. } => {
            Tensor::new(DType::U32, Vary::Fixed, &[capacity.table_rows.into(), capacity.blocks_per_row.into()])
        }
    }
}

/// The ops a graph uses, each once, for `plan` on a backend that is not there.
pub fn ops_used(graph: &Graph) -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = graph.ops.iter().map(|op| op.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}
