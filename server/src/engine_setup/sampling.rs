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
/// checks guesses, if there is one; it must sample both or none.
pub(super) fn on_device(
    options: &EngineOptions,
    shape: Shape,
    engine: &EngineConfig,
    device: &Device,
    graphs: &[Graph],
    capacity: Capacity,
) -> Result<Vec<Graph>, String> {
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
    let sampling = |graph: &Graph| {
        let graph = graph.with_sampling(engine.tokenizer_vocab_size).ok_or("the model has no embedding of its own")?;
        let mut support = |desc: &OpDesc, label: &str| ask(device, desc, label);
        lower(&graph, capacity, device.alignment(), &mut support).map_err(|error| error.to_string())?;
        Ok(graph)
    };
    graphs.iter().map(sampling).collect()
}
