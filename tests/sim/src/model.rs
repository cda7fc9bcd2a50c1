//! The tiny model on its device: lowered and loaded as any model is.

use std::{borrow::Cow, sync::Arc};

use tokenspeed_backend_api::{
    abi::ts_bucket,
    backend::{Backend, Device, OpRecord},
    catalogue::OpDesc,
    exec::Via,
    graph::{Graph, WeightBytes, WeightSource, WeightSpec},
    loader::{self, SearchPaths},
    support::Support,
};
use tokenspeed_core::{
    engine::{ComponentClass, EngineConfig, Pass},
    load::{DeviceProgram, LoadError, Plan, load},
    lower::{Capacity, LowerError, lower},
};

use crate::{device, graph};

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
    let passes = graph::passes(config);
    let graphs = passes.iter().map(|pass| graph::graph(config, *pass)).collect::<Vec<_>>();
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
    let lowered = graphs.iter().map(|graph| lower(graph, capacity, alignment, &mut support));
    let lowered = lowered.collect::<Result<Vec<_>, _>>().map_err(OpenError::Lower)?;
    let graphs: Vec<&Graph> = graphs.iter().collect();
    let plan = Plan { graphs: &graphs, lowered: &lowered, capacity, step_bytes, via: Some(choice.via) };
    let program = load(device, &plan, Arc::new(NoWeights), &mut |_, _| {}).map_err(OpenError::Load)?;
    let at = |wanted| passes.iter().position(|pass| *pass == wanted);
    let program = match at(Pass::Replay) {
        Some(replay) => program.with_replay(replay),
        None => program,
    };
    Ok(match (at(Pass::DraftFirst), at(Pass::DraftNext)) {
        (Some(first), Some(next)) => program.with_draft(first, next),
        _ => program,
    })
}
