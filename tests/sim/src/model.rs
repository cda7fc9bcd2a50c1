//! The tiny model: one op list over paged components and, if wanted, a recurrent state; loaded as any model is.

use std::{borrow::Cow, sync::Arc};

use tokenspeed_backend_api::{
    abi::ts_bucket,
    backend::{Backend, Device, OpRecord},
    catalogue::OpDesc,
    dtype::DType,
    exec::Via,
    graph::{CacheTensor, ComponentKind, ComponentSpec, Graph, Ref, Vary, WeightBytes, WeightSource, WeightSpec},
    loader::{self, SearchPaths},
    op::{Attrs, OpKind},
    support::Support,
};
use tokenspeed_core::{
    engine::{ComponentClass, EngineConfig},
    load::{DeviceProgram, LoadError, Plan, load},
    lower::{Capacity, LowerError, lower},
};

use crate::device;

/// How the device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Programs or op by op.
    pub via: Via,
    /// An op the backend refuses, by catalogue name.
    pub refuse: Option<&'static str>,
    /// `ok`, or how preparing fails.
    pub prepare: &'static str,
}

/// Why the tiny model was not loaded.
#[derive(Debug)]
pub enum OpenError {
    /// An op is refused.
    Lower(LowerError),
    /// The device refused.
    Load(LoadError),
}

/// A row of values, a cache row: one record of the device, four words.
const ROW: [u64; 2] = [1, 4];

/// The graph over the components of `config`.
pub fn graph(config: &EngineConfig) -> Graph {
    let mut g = Graph::default();
    let tensor =
        |name: &str, inner: &[u64]| CacheTensor { name: name.into(), dtype: DType::F32, inner: inner.to_vec() };
    for component in &config.components {
        let tensors = match component.class {
            ComponentClass::Paged => vec![tensor("row", &ROW)],
            ComponentClass::State => vec![tensor("state", &[1, 4, 4])],
        };
        let kind = match component.class {
            ComponentClass::Paged => ComponentKind::Paged { tensors },
            ComponentClass::State => ComponentKind::State { tensors },
        };
        g.component(ComponentSpec { name: component.name.clone(), kind });
    }
    let op = |g: &mut Graph, kind, first: i64, operands: &[Ref], label: &str| {
        let mut attrs = Attrs::default();
        attrs.i[0] = first;
        g.push(kind, attrs, operands, label);
    };
    let value = |g: &mut Graph, name: &str| g.value(name, Vary::Tokens, &ROW, DType::F32);
    let tables: Vec<Ref> = (0..config.components.len()).map(|component| Ref::Table { component }).collect();
    op(&mut g, OpKind::TableUpdate, 0, &tables, "table_update");
    let embedding = g.weight("embedding", &[u64::from(config.vocab_size), 4], DType::F32);
    let x = value(&mut g, "x");
    op(&mut g, OpKind::Embedding, 0, &[embedding, x], "embedding");
    let mut ways = Vec::new();
    for (component, spec) in config.components.iter().enumerate() {
        let (cache, table) = (Ref::Cache { component, tensor: 0 }, Ref::Table { component });
        let (y, number) = (value(&mut g, &spec.name), component as i64);
        match spec.class {
            ComponentClass::Paged => {
                op(&mut g, OpKind::KvWrite, number, &[x, cache, table], "write");
                op(&mut g, OpKind::PagedAttention, number, &[x, cache, cache, table, y], "attention");
            }
            ComponentClass::State => {
                let beta = g.value("beta", Vary::Tokens, &[1], DType::F32);
                op(&mut g, OpKind::Slice, 0, &[x, beta], "beta");
                op(&mut g, OpKind::KdaStep, 0, &[x, x, x, x, beta, cache, y], "recurrence");
            }
        }
        ways.push(y);
    }
    // All ways lead to the same values; the device checks that they do.
    let mut z = ways[0];
    for &way in &ways[1..] {
        let sum = value(&mut g, "sum");
        op(&mut g, OpKind::Add, 0, &[z, way, sum], "sum");
        z = sum;
    }
    let gated = value(&mut g, "gated");
    op(&mut g, OpKind::SigmoidMul, 0, &[z, z, gated], "gate");
    let last = g.value("last", Vary::LogitRows, &ROW, DType::F32);
    op(&mut g, OpKind::RowGather, 0, &[gated, last], "gather");
    let head = g.weight("head", &[u64::from(config.vocab_size), 4], DType::F32);
    let logits = g.value("logits", Vary::LogitRows, &[u64::from(config.vocab_size)], DType::F32);
    op(&mut g, OpKind::Gemm, 0, &[last, head, logits], "head");
    if let Ref::Value(at) = logits {
        g.logits = Some(at);
    }
    g
}

struct NoWeights;

impl WeightSource for NoWeights {
    fn regions(&self) -> Vec<&[u8]> {
        Vec::new()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let n = spec.dims.iter().product::<u64>() as usize * 4;
        Ok(WeightBytes::Owned(Cow::Owned(vec![0; n])))
    }
}

/// The backend, found by name like any other.
pub fn backend() -> Backend {
    loader::load(device::NAME, &SearchPaths::default()).expect("the simulated backend is linked in")
}

/// Open a device that believes world `number`, lower the graph for it and load the program.
pub fn open(
    backend: &Backend,
    config: &EngineConfig,
    number: u64,
    step_bytes: u64,
    choice: DeviceChoice,
) -> Result<DeviceProgram, OpenError> {
    let number = number.to_string();
    let options = [("world", number.as_str()), ("refuse", choice.refuse.unwrap_or("")), ("prepare", choice.prepare)];
    let device: Device = backend.open(0, &options).map_err(|e| OpenError::Load(e.into()))?;
    let graph = graph(config);
    let blocks = |class| config.components_of(class).map(|at| config.components[at].n_blocks).max();
    let ts_bucket { max_tokens, max_rows, max_logit_rows, .. } = config.bucket();
    let capacity = Capacity {
        tokens: max_tokens,
        rows: max_rows,
        logit_rows: max_logit_rows,
        table_rows: config.table_rows,
        blocks_per_row: config.blocks_per_row,
        block_tokens: config.block_tokens,
        blocks: blocks(ComponentClass::Paged).unwrap_or(1),
        states: blocks(ComponentClass::State).unwrap_or(1),
    };
    let alignment = device.alignment();
    let mut support = |desc: &OpDesc, label: &str| {
        let operands = desc.operands.iter().map(|t| t.to_abi()).collect();
        let record = OpRecord::new(desc.kind, operands, desc.attrs, label.to_owned());
        device.op_support(&record).unwrap_or_else(|error| Support::no(error.to_string()))
    };
    let lowered = lower(&graph, capacity, alignment, &mut support).map_err(OpenError::Lower)?;
    let (graphs, lowered) = ([&graph], [lowered]);
    let plan = Plan { graphs: &graphs, lowered: &lowered, capacity, step_bytes, via: Some(choice.via) };
    load(device, &plan, Arc::new(NoWeights), &mut |_, _| {}).map_err(OpenError::Load)
}
