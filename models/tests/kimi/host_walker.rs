//! Runs graphs on the host with the catalogue's references, over plain byte buffers: the meaning of a graph, without any
//! backend, lowering or scheduler.

use std::collections::HashMap;
use tokenspeed_backend_api::{
    catalogue::{self, Case, CaseOperand, Role},
    dtype::DType,
    graph::{CacheTensor, ComponentKind, Graph, GraphOp, Ref, Vary, WeightBytes, WeightSource},
    step::{StepData, StepView},
    tensor::Tensor,
};

/// Tokens per page and pages per request; requests and state slots.
pub const BLOCK_TOKENS: u64 = 16;
pub const BLOCKS_PER_ROW: u64 = 16;
pub const ROWS: u64 = 3;
pub const SLOTS: u64 = 8;

/// Whether fused ops run as such or as their decomposition.
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
        let mut graph = graph.clone();
        let ops = std::mem::take(&mut graph.ops);
        let ops: Vec<GraphOp> = ops
            .into_iter()
            .flat_map(|op| match catalogue::entry(op.kind).decompose {
                Some(decompose) if self.mode == Mode::Exact => decompose(&op, &mut graph),
                _ => vec![op],
            })
            .collect();
        let block = step.to_bytes();
        let view = StepView::new(&block).expect("a sound step");
        let mut values: Vec<Vec<u8>> = (0..graph.values.len())
            .map(|i| vec![0xff; tensor(&graph, Ref::Value(i), &view).bytes() as usize])
            .collect();
        for op in &ops {
            for operand in &op.operands {
                if let Ref::Weight(i) = operand {
                    self.load(&graph, *i);
                }
            }
            let operands = op.operands.iter().map(|r| {
                let bytes = match *r {
                    Ref::Value(i) => &values[i],
                    Ref::Weight(i) => &self.weights[&graph.weights[i].name],
                    Ref::Cache { component, tensor } => &self.caches[component][tensor],
                    Ref::Table { component } => &self.tables[component],
                };
                let tensor = tensor(&graph, *r, &view);
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
                }
            }
        }
        let Some(logits) = graph.logits else { return Vec::new() };
        let width = graph.values[logits].inner[0] as usize;
        let floats: Vec<f32> = values[logits].as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        floats.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    fn load(&mut self, graph: &Graph, index: usize) {
        let spec = &graph.weights[index];
        if self.weights.contains_key(&spec.name) {
            return;
        }
        let bytes = match self.source.weight(spec).unwrap_or_else(|e| panic!("{e}")) {
            WeightBytes::Owned(bytes) => bytes.into_owned(),
            WeightBytes::Mapped { region, offset, bytes } => {
                self.source.regions()[region][offset as usize..(offset + bytes) as usize].to_vec()
            }
        };
        self.weights.insert(spec.name.clone(), bytes);
    }
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
    }
}
