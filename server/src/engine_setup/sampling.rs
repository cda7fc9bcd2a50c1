//! Who samples: the device, whose tokens then go to the next step without the host where nobody guesses, or the host, and why.
//!
//! Decided once, before memory is planned, by what was asked for and what the backend says of the op `sample`; shown in the
//! table that is printed at start. What the device then does not sample, row by row, is the engine's to see.

use tokenspeed_backend_api::{backend::Device, catalogue::OpDesc, graph::Graph};
use tokenspeed_core::{
    engine::EngineConfig,
    lower::{Capacity, lower},
};

use super::prepare::{Shape, ask};
use crate::cli::engine_options::{EngineOptions, SchedulingPolicy};

/// These graphs with rows that the device samples, or why the host does. `graphs`: of the forward pass, and of the pass that
/// checks guesses, if there is one; it must sample both or none. With them, the rows of their side tables, `side_rows` if the
/// backend takes them, or why there are none.
pub(super) fn on_device(
    options: &EngineOptions,
    shape: Shape,
    engine: &EngineConfig,
    device: &Device,
    graphs: &[Graph],
    capacity: Capacity,
    side_rows: u32,
) -> Result<Sampling, String> {
    let why_not = [
        (matches!(shape, Shape::Logits(_)), "logits are asked for"),
        (options.host_sampling, "--host-sampling"),
        (options.disable_overlap_schedule, "--disable-overlap-schedule"),
        (
            options.scheduling_policy != SchedulingPolicy::Fcfs || options.prefill_coalescing_ms > 0,
            "the scheduling policy waits for each step to end",
        ),
    ];
    if let Some((_, why)) = why_not.into_iter().find(|(applies, _)| *applies) {
        return Err(why.to_owned());
    }
    let sampling = |side_rows: u32| {
        let sampling = |graph: &Graph| {
            let n_ids = engine.tokenizer_vocab_size;
            let graph = graph.with_sampling(n_ids, side_rows).ok_or("the model has no embedding of its own")?;
            let mut support = |desc: &OpDesc, label: &str| ask(device, desc, label);
            lower(&graph, capacity, device.alignment(), &mut support).map_err(|error| error.to_string())?;
            Ok(graph)
        };
        graphs.iter().map(sampling).collect::<Result<Vec<Graph>, String>>()
    };
    let without = match side_rows {
        0 => NO_MEMORY.to_owned(),
        n => match sampling(n) {
            Ok(graphs) => return Ok((graphs, Ok(n))),
            Err(why) => why,
        },
    };
    Ok((sampling(0)?, Err(without)))
}

/// Graphs with sampling, and the rows of their side tables, or why they have none.
type Sampling = (Vec<Graph>, Result<u32, String>);

/// Why there are no side tables, if the backend has nothing against them.
pub(super) const NO_MEMORY: &str = "no memory for side tables";
/// Most rows of the side tables.
const SIDE_ROWS_MAX: u32 = 256;
/// One part in so many of the memory is for side tables.
const SIDE_SHARE: u64 = 256;

/// Rows of side tables that so much memory is good for: one for each row of logits, if that is not too much. A row of each table
/// takes eight bytes and a bit per id.
pub(super) fn side_rows(engine: &EngineConfig, budget_bytes: u64) -> u32 {
    let row_bytes = u64::from(engine.vocab_size) * 8 + u64::from(engine.vocab_size) / 8;
    let affordable = budget_bytes / SIDE_SHARE / row_bytes.max(1);
    engine.max_logit_rows.min(SIDE_ROWS_MAX).min(u32::try_from(affordable).unwrap_or(u32::MAX))
}
