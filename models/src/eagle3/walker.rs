//! Runs a model's graphs on the host with the catalogue's references: slow, exact, and without a backend.
//!
//! Fitting a tiny draft needs the target's greedy text and the draft's hidden states; an engine for it would turn the
//! dependencies around. Fused ops run as their decomposition.

use std::collections::HashMap;
use tokenspeed_backend_api::{
    catalogue::{self, Case, CaseOperand, Role},
    dtype::DType,
    graph::{CacheTensor, ComponentKind, ComponentSpec, Graph, GraphOp, Ref, Vary, WeightSource},
    step::{StepData, StepView},
    tensor::Tensor,
};

const BLOCK_TOKENS: u64 = 16;

/// What a walk failed at.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A weight cannot be had.
    #[error("weight {0}")]
    Weight(String),
    /// The step is not sound.
    #[error("{0}")]
    Step(String),
    /// An op has operands its schema refuses.
    #[error("{label}: {cause}")]
    Op {
        /// The op.
        label: String,
        /// What its schema says.
        cause: String,
    },
}

/// Weights and cache, shared by all graphs of a model.
pub struct Walker<'a> {
    source: &'a dyn WeightSource,
    weights: HashMap<String, Vec<u8>>,
    caches: Vec<Vec<Vec<u8>>>,
    tables: Vec<Vec<u8>>,
    rows: u64,
    blocks_per_row: u64,
}

impl std::fmt::Debug for Walker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "walker of {} components for {} requests", self.caches.len(), self.rows)
    }
}

impl<'a> Walker<'a> {
    /// A cache for `rows` requests of at most `tokens` tokens: request r has the table row r and the state slot r + 1. It
    /// starts as NaN, so whatever reads before writing shows.
    pub fn new(components: &[ComponentSpec], source: &'a dyn WeightSource, rows: u64, tokens: u64) -> Self {
        let blocks_per_row = tokens.div_ceil(BLOCK_TOKENS);
        let mut walker =
            Self { source, weights: HashMap::new(), caches: Vec::new(), tables: Vec::new(), rows, blocks_per_row };
        for c in components {
            let bytes = tensors(&c.kind).iter().map(|t| vec![0xff; walker.cache(&c.kind, t).bytes() as usize]);
            let bytes = bytes.collect();
            walker.caches.push(bytes);
            walker.tables.push((1..=(rows * blocks_per_row) as u32).flat_map(u32::to_ne_bytes).collect());
        }
        walker
    }

    /// Run one step; returns the wanted logits, row by row (none for a graph without logits).
    pub fn run(&mut self, graph: &Graph, step: &StepData) -> Result<Vec<Vec<f32>>, WalkError> {
        let mut graph = graph.clone();
        let mut ops = Vec::new();
        for op in std::mem::take(&mut graph.ops) {
            ops.extend(catalogue::basic(op, &mut graph));
        }
        let block = step.to_bytes();
        let view = StepView::new(&block).map_err(WalkError::Step)?;
        let mut values: Vec<Vec<u8>> = (0..graph.values.len())
            .map(|i| vec![0xff; self.tensor(&graph, Ref::Value(i), &view).bytes() as usize])
            .collect();
        for op in &ops {
            self.op(&graph, op, step, &view, &mut values)?;
        }
        let Some(logits) = graph.logits else { return Ok(Vec::new()) };
        let width = graph.values[logits].inner[0] as usize;
        let floats: Vec<f32> = values[logits].as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        Ok(floats.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    fn op(
        &mut self,
        graph: &Graph,
        op: &GraphOp,
        step: &StepData,
        view: &StepView<'_>,
        values: &mut [Vec<u8>],
    ) -> Result<(), WalkError> {
        let mut operands = Vec::new();
        for r in &op.operands {
            if let Ref::Weight(i) = r {
                self.load(graph, *i)?;
            }
            let (tensor, bytes) = (self.tensor(graph, *r, view), self.bytes(graph, *r, values).clone());
            operands.push(CaseOperand { tensor, role: Role::InOut, bytes });
        }
        let case = Case { name: op.label.clone(), kind: op.kind, attrs: op.attrs, operands, step: step.clone() };
        case.desc().check().map_err(|cause| WalkError::Op { label: op.label.clone(), cause })?;
        for (r, bytes) in op.operands.iter().zip(case.run_reference(1)) {
            if !matches!(r, Ref::Weight(_)) {
                *self.bytes(graph, *r, values) = bytes;
            }
        }
        Ok(())
    }

    fn bytes<'b>(&'b mut self, graph: &Graph, r: Ref, values: &'b mut [Vec<u8>]) -> &'b mut Vec<u8> {
        match r {
            Ref::Value(i) => &mut values[i],
            Ref::Weight(i) => self.weights.get_mut(&graph.weights[i].name).expect("loaded before"),
            Ref::Cache { component, tensor } => &mut self.caches[component][tensor],
            Ref::Table { component } => &mut self.tables[component],
            Ref::Relay | Ref::Side { .. } => unreachable!("drafts are not sampled on the device"),
        }
    }

    fn load(&mut self, graph: &Graph, index: usize) -> Result<(), WalkError> {
        let spec = &graph.weights[index];
        if !self.weights.contains_key(&spec.name) {
            let bytes = self.source.weight(spec).map_err(WalkError::Weight)?;
            let bytes = bytes.contents(&self.source.regions()).into_owned();
            self.weights.insert(spec.name.clone(), bytes);
        }
        Ok(())
    }

    fn cache(&self, kind: &ComponentKind, tensor: &CacheTensor) -> Tensor {
        let outer: &[u64] = match kind {
            ComponentKind::Paged { .. } => &[self.rows * self.blocks_per_row + 1, BLOCK_TOKENS],
            ComponentKind::State { .. } => &[self.rows + 1],
        };
        Tensor::new(tensor.dtype, Vary::Fixed, &[outer, &tensor.inner].concat())
    }

    fn tensor(&self, graph: &Graph, r: Ref, step: &StepView<'_>) -> Tensor {
        match r {
            Ref::Value(i) => {
                let v = &graph.values[i];
                Tensor::new(v.dtype, v.vary, &[&[step.count(v.vary, 1) as u64], &v.inner[..]].concat())
            }
            Ref::Weight(i) => Tensor::new(graph.weights[i].dtype, Vary::Fixed, &graph.weights[i].dims),
            Ref::Cache { component, tensor } => {
                let kind = &graph.components[component].kind;
                self.cache(kind, &tensors(kind)[tensor])
            }
            Ref::Table { .. } => Tensor::new(DType::U32, Vary::Fixed, &[self.rows, self.blocks_per_row]),
            Ref::Relay | Ref::Side { .. } => unreachable!("drafts are not sampled on the device"),
        }
    }
}

fn tensors(kind: &ComponentKind) -> &[CacheTensor] {
    match kind {
        ComponentKind::Paged { tensors } | ComponentKind::State { tensors } => tensors,
    }
}
