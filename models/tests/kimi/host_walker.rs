//! Runs graphs on the host with the catalogue's references, over plain byte buffers: the meaning of a graph, without any
//! backend, lowering or scheduler.

use std::collections::HashMap;
use tokenspeed_backend_api::{
    catalogue::{self, Case, CaseOperand, Role},
    dtype::DType,
    graph::{CacheTensor, ComponentKind, Graph, GraphOp, Ref, Vary, WeightSource},
    op::OpKind,
    step::{StepData, StepView},
    tensor::Tensor,
};

/// Tokens per page and pages per request; requests and state slots.
pub const BLOCK_TOKENS: u64 = 16;
pub const BLOCKS_PER_ROW: u64 = 16;
pub const ROWS: u64 = 3;
pub const SLOTS: u64 = 8;

/// Whether fused ops run as such or as the basic ops they stand for. `kda_mix`, whose reference goes token by token, runs in its
/// parts in either case, so that chunks are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exact,
    Fused,
}

/// Weights and cache, shared by all graphs of a model.
pub struct Host<'a> {
    source: &'a dyn WeightSource,
    weights: HashMap<String, Vec<u8>>,
    pub caches: Vec<Vec<Vec<u8>>>,
    tables: Vec<Vec<u8>>,
    mode: Mode,
}

impl<'a> Host<'a> {
    /// Caches start poisoned: whatever reads before writing shows. Page i of row r is block `r · BLOCKS_PER_ROW + i + 1`.
    pub fn new(graph: &Graph, source: &'a dyn WeightSource, mode: Mode) -> Self {
        let caches = graph.components.iter().map(|c| {
            let tensors = tensors(&c.kind).iter().map(|t| vec![0xff; cache(&c.kind, t).bytes() as usize]);
            tensors.collect()
        });
        let table: Vec<u8> = (1..=(ROWS * BLOCKS_PER_ROW) as u32).flat_map(u32::to_ne_bytes).collect();
        let tables = vec![table; graph.components.len()];
        Self { source, weights: HashMap::new(), caches: caches.collect(), tables, mode }
    }

    /// Run one step; returns the logits, row by row (none for a graph without logits).
    pub fn run(&mut self, graph: &Graph, step: &StepData) -> Vec<Vec<f32>> {
        let mut run = Run::new(graph, step);
        self.ops(&mut run, 0..graph.ops.len());
        run.logits()
    }

    /// Run some of a step's ops.
    pub fn ops(&mut self, run: &mut Run, range: std::ops::Range<usize>) {
        let Run { graph, step, values } = run;
        let ops = graph.ops[range].to_vec();
        let ops: Vec<GraphOp> = ops
            .into_iter()
            .flat_map(|op| match (self.mode, catalogue::entry(op.kind).decompose) {
                (Mode::Exact, _) => catalogue::basic(op, graph),
                (Mode::Fused, Some(_)) if op.kind == OpKind::KdaMix => in_parts(&op, graph),
                (Mode::Fused, _) => vec![op],
            })
            .collect();
        let block = step.to_bytes();
        let view = StepView::new(&block).expect("a sound step");
        values.extend((values.len()..graph.values.len()).map(|i| poisoned(graph, i, &view)));
        for op in &ops {
            for operand in &op.operands {
                if let Ref::Weight(i) = operand {
                    self.load(graph, *i);
                }
            }
            let operands = op.operands.iter().map(|r| {
                let bytes = match *r {
                    Ref::Value(i) => &values[i],
                    Ref::Weight(i) => &self.weights[&graph.weights[i].name],
                    Ref::Cache { component, tensor } => &self.caches[component][tensor],
                    Ref::Table { component } => &self.tables[component],
                    Ref::Relay | Ref::Side { .. } => unreachable!("models do not sample"),
                };
                let tensor = tensor(graph, *r, &view);
                assert_eq!(bytes.len() as u64, tensor.bytes(), "{}", op.label);
                CaseOperand { tensor, role: Role::InOut, bytes: bytes.clone() }
            });
            let case = Case {
                name: op.label.clone(),
                kind: op.kind,
                attrs: op.attrs,
                operands: operands.collect(),
                step: step.clone(),
            };
            case.desc().check().unwrap_or_else(|e| panic!("{}: {e}", op.label));
            for (r, bytes) in op.operands.iter().zip(case.run_reference(1)) {
                match *r {
                    Ref::Value(i) => values[i] = bytes,
                    Ref::Weight(_) => {}
                    Ref::Cache { component, tensor } => self.caches[component][tensor] = bytes,
                    Ref::Table { component } => self.tables[component] = bytes,
                    Ref::Relay | Ref::Side { .. } => unreachable!("models do not sample"),
                }
            }
        }
    }

    fn load(&mut self, graph: &Graph, index: usize) {
        let spec = &graph.weights[index];
        if self.weights.contains_key(&spec.name) {
            return;
        }
        let found = self.source.weight(spec).unwrap_or_else(|e| panic!("{e}"));
        let bytes = found.contents(&self.source.regions()).into_owned();
        self.weights.insert(spec.name.clone(), bytes);
    }
}

/// A `kda_mix` in its parts, the second gate projection first.
fn in_parts(op: &GraphOp, graph: &mut Graph) -> Vec<GraphOp> {
    let decompose = catalogue::entry(OpKind::KdaMix).decompose.expect("a fused op");
    let parts = decompose(op, graph).into_iter();
    parts.flat_map(|part| if part.kind == OpKind::KdaMix { in_parts(&part, graph) } else { vec![part] }).collect()
}

/// A step on its way through a graph.
pub struct Run {
    graph: Graph,
    step: StepData,
    values: Vec<Vec<u8>>,
}

impl Run {
    /// Values start poisoned, like caches.
    pub fn new(graph: &Graph, step: &StepData) -> Self {
        let block = step.to_bytes();
        let view = StepView::new(&block).expect("a sound step");
        let values = (0..graph.values.len()).map(|i| poisoned(graph, i, &view)).collect();
        Self { graph: graph.clone(), step: step.clone(), values }
    }

    /// A value, row by row.
    pub fn floats(&self, value: usize) -> Vec<Vec<f32>> {
        let width = self.graph.values[value].inner.iter().product::<u64>() as usize;
        let floats: Vec<f32> = self.values[value].as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        floats.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    /// Replace a value.
    pub fn set(&mut self, value: usize, rows: &[Vec<f32>]) {
        self.values[value] = rows.iter().flatten().flat_map(|v| v.to_ne_bytes()).collect();
    }

    /// None for a graph without logits.
    pub fn logits(&self) -> Vec<Vec<f32>> {
        self.graph.logits.map_or_else(Vec::new, |logits| self.floats(logits))
    }
}

fn poisoned(graph: &Graph, value: usize, step: &StepView<'_>) -> Vec<u8> {
    vec![0xff; tensor(graph, Ref::Value(value), step).bytes() as usize]
}

fn tensors(kind: &ComponentKind) -> &[CacheTensor] {
    match kind {
        ComponentKind::Paged { tensors } | ComponentKind::State { tensors } => tensors,
    }
}

fn cache(kind: &ComponentKind, tensor: &CacheTensor) -> Tensor {
    let outer: &[u64] = match kind {
        ComponentKind::Paged { .. } => &[ROWS * BLOCKS_PER_ROW + 1, BLOCK_TOKENS],
        ComponentKind::State { .. } => &[SLOTS],
    };
    Tensor::new(tensor.dtype, Vary::Fixed, &[outer, &tensor.inner].concat())
}

fn tensor(graph: &Graph, r: Ref, step: &StepView<'_>) -> Tensor {
    match r {
        Ref::Value(i) => {
            let v = &graph.values[i];
            Tensor::new(v.dtype, v.vary, &[&[step.count(v.vary, 1) as u64], &v.inner[..]].concat())
        }
        Ref::Weight(i) => Tensor::new(graph.weights[i].dtype, Vary::Fixed, &graph.weights[i].dims),
        Ref::Cache { component, tensor } => {
            let kind = &graph.components[component].kind;
            cache(kind, &tensors(kind)[tensor])
        }
        Ref::Table { .. } => Tensor::new(DType::U32, Vary::Fixed, &[ROWS, BLOCKS_PER_ROW]),
        Ref::Relay | Ref::Side { .. } => unreachable!("models do not sample"),
    }
}
