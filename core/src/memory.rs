//! How a memory budget is spent: weights, activations and the state slots of running requests first, the rest is pages
//! and slots for stored states.
//!
//! The plan is made before anything is allocated and printed as it is; when it does not fit, the error says what each
//! part takes and which options make it smaller.

use std::collections::HashSet;

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    graph::{ComponentKind, Graph, WeightSpec},
    support::Support,
};

use crate::lower::{Capacity, LowerError, Lowered, block_bytes, lower};

/// What the caller decided; the plan adds the numbers of pages and state slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Bytes the engine may use on the device, mapped weights included.
    pub budget_bytes: u64,
    /// Pages wanted at most, e.g. every running request at full length; more would never be used.
    pub blocks_max: u32,
    /// Pages needed at least: one request at full length, and the scratch page.
    pub blocks_min: u32,
    /// State slots beyond `Capacity::states` wanted at most, for a second slot per running request and for snapshots.
    /// Models without recurrent state take none.
    pub states_extra: u32,
}

/// Bytes by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights in their stored form.
    pub weight_bytes: u64,
    /// Weights in forms the backend packs at load, beside or instead of the stored form.
    pub packed_bytes: u64,
    /// Values and scratch of one step.
    pub activation_bytes: u64,
    /// Logits.
    pub output_bytes: u64,
    /// Block tables.
    pub table_bytes: u64,
    /// All cache components, state slots included.
    pub cache_bytes: u64,
    /// Bytes of one page over all paged components.
    pub page_bytes: u64,
    /// Bytes of one state slot; 0 for models without recurrent state.
    pub state_bytes: u64,
    /// Pages, the scratch page included.
    pub blocks: u32,
    /// State slots, the scratch slot included; 0 for models without recurrent state.
    pub states: u32,
}

impl MemoryPlan {
    /// Everything.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes
            + self.packed_bytes
            + self.activation_bytes
            + self.output_bytes
            + self.table_bytes
            + self.cache_bytes
    }
}

/// Why no plan was made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MemoryError {
    /// The backend cannot run the model.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Not even one request of full length fits.
    #[error(
        "the model needs {needed_bytes} bytes (weights {weight_bytes}, one step {step_bytes}, cache for one request of full length \
         {cache_bytes}) and the budget is {budget_bytes}: raise --memory, or lower --max-model-len, --chunked-prefill-size or --max-num-seqs"
    )]
    TooSmall {
        /// The least that works.
        needed_bytes: u64,
        /// Stored and packed weights.
        weight_bytes: u64,
        /// Activations, logits and tables.
        step_bytes: u64,
        /// The smallest cache.
        cache_bytes: u64,
        /// As given.
        budget_bytes: u64,
    },
}

/// Decide how many pages fit, and lower a model's graphs, which share weights and cache, for that many.
pub fn plan_memory(
    graphs: &[&Graph],
    mut capacity: Capacity,
    alignment: u64,
    request: MemoryRequest,
    support: &mut dyn FnMut(&OpDesc, &str) -> Support,
) -> Result<(Vec<Lowered>, MemoryPlan), MemoryError> {
    let mut lower_all = |capacity| -> Result<Vec<Lowered>, LowerError> {
        graphs.iter().map(|graph| lower(graph, capacity, alignment, support)).collect()
    };
    capacity.blocks = request.blocks_min;
    let states_min = capacity.states;
    let smallest = lower_all(capacity)?;
    let bytes_of = |paged: bool| -> u64 {
        let kinds = graphs[0].components.iter().map(|c| &c.kind);
        let wanted = kinds.filter(|kind| matches!(kind, ComponentKind::Paged { .. }) == paged);
        wanted.map(|kind| block_bytes(kind, capacity.block_tokens)).sum()
    };
    let (page_bytes, state_bytes) = (bytes_of(true), bytes_of(false));
    let mut plan = parts(graphs, &smallest);
    if plan.total_bytes() > request.budget_bytes {
        return Err(MemoryError::TooSmall {
            needed_bytes: plan.total_bytes(),
            weight_bytes: plan.weight_bytes + plan.packed_bytes,
            step_bytes: plan.activation_bytes + plan.output_bytes + plan.table_bytes,
            cache_bytes: plan.cache_bytes,
            budget_bytes: request.budget_bytes,
        });
    }
    let mut spare = request.budget_bytes - plan.total_bytes();
    let buy = |spare: &mut u64, share: u64, bytes: u64, most: u32| -> u32 {
        let n = (*spare / share).checked_div(bytes).unwrap_or(0).min(most.into());
        *spare -= n * bytes;
        n as u32
    };
    // A page without a state near its end is as little use as a state without its pages: half each, then what is left.
    capacity.states += buy(&mut spare, 2, state_bytes, request.states_extra);
    capacity.blocks += buy(&mut spare, 1, page_bytes, request.blocks_max.saturating_sub(request.blocks_min));
    let missing = request.states_extra.saturating_sub(capacity.states - states_min);
    capacity.states += buy(&mut spare, 1, state_bytes, missing);
    let lowered = lower_all(capacity)?;
    let states = if state_bytes > 0 { capacity.states } else { 0 };
    plan = MemoryPlan { page_bytes, state_bytes, blocks: capacity.blocks, states, ..parts(graphs, &lowered) };
    Ok((lowered, plan))
}

fn parts(graphs: &[&Graph], lowered: &[Lowered]) -> MemoryPlan {
    let mut seen = HashSet::new();
    let (mut weight_sum, mut packed_bytes) = (0, 0);
    for (graph, lowered) in graphs.iter().zip(lowered) {
        for wanted in &lowered.weight_uses {
            let spec = &graph.weights[wanted.weight];
            match (seen.insert((&spec.name, wanted.pack.map(|p| (p.layout, p.bytes)))), wanted.pack) {
                (false, _) => {}
                (true, Some(pack)) => packed_bytes += pack.bytes,
                (true, None) => weight_sum += weight_bytes(spec),
            }
        }
    }
    MemoryPlan {
        weight_bytes: weight_sum,
        packed_bytes,
        activation_bytes: lowered.iter().map(|l| l.activation_bytes).max().unwrap_or(0),
        output_bytes: lowered.iter().map(|l| l.output_bytes).sum(),
        table_bytes: lowered.iter().map(|l| l.table_bytes).max().unwrap_or(0),
        cache_bytes: lowered[0].cache_bytes,
        page_bytes: 0,
        state_bytes: 0,
        blocks: 0,
        states: 0,
    }
}

/// Bytes of a weight in its stored form.
pub fn weight_bytes(spec: &WeightSpec) -> u64 {
    spec.dtype.bytes(spec.dims.iter().product()).expect("the reader checked whole blocks")
}
