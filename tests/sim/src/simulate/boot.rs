//! Loading: that faults are reported as they should, and an engine with a device to go on with.

use tokenspeed_backend_api::{backend::Backend, exec::Via};
use tokenspeed_core::{
    engine::{ComponentClass, EngineConfig, EngineState},
    load::{DeviceProgram, LoadError},
    lower::LowerError,
};

use crate::{
    check::{Check, Failure, ensure},
    model::{self, DeviceChoice, OpenError},
    scenario::{LoadFault, Scenario},
    world::{Registered, Sizes, World},
};

/// Widths that a device with a forecast is asked about.
const FORECAST: u32 = 128;

/// What the device checks numbers against.
pub(super) fn sizes(config: &EngineConfig) -> Sizes {
    let blocks = |class| config.components_of(class).map(|at| config.components[at].n_blocks);
    Sizes {
        blocks: blocks(ComponentClass::Paged).min().expect("one component is paged"),
        states: blocks(ComponentClass::State).next().unwrap_or(0),
        block_tokens: config.block_tokens,
        draft_max: config.speculation.map_or(0, |speculation| speculation.draft_max),
        branches: config.speculation.map_or(0, |speculation| speculation.branches),
        drafts: config.draft.is_some(),
        chunk_grid: config.chunk_grid(),
        chunk_cap: config.chunked_prefill_size,
        n_ids: config.tokenizer_vocab_size,
        table_rows: config.table_rows,
    }
}

/// Faults while loading are errors of the right kind, and leave a backend that works.
pub(super) fn load_faults(backend: &Backend, scenario: &Scenario) -> Result<(), Failure> {
    for fault in &scenario.load_faults {
        let registered = Registered::new(World::new(sizes(&scenario.config)));
        let (prepare, refuse) = match fault {
            LoadFault::NoArena => ("arena", None),
            LoadFault::NoMemory => ("memory", None),
            LoadFault::NoCapture => ("capture", None),
            LoadFault::RefusedOp => ("ok", Some("kv_write")),
        };
        let choice = DeviceChoice { via: Via::Program, refuse, prepare };
        let wanted = match fault {
            LoadFault::NoArena | LoadFault::NoMemory => "memory",
            LoadFault::NoCapture => "captured",
            LoadFault::RefusedOp => "kv_write",
        };
        let found = match model::open(backend, &scenario.config, registered.number, 1 << 16, choice) {
            Err(OpenError::Load(error @ LoadError::Backend(_))) => error.to_string(),
            Err(OpenError::Lower(error @ LowerError::Unsupported { .. })) => error.to_string(),
            other => format!("{other:?}"),
        };
        ensure(found.contains(wanted), Check::Load, || format!("{fault:?} was reported as: {found}"))?;
    }
    Ok(())
}

/// An engine, and a device with its program.
pub(super) fn boot(
    backend: &Backend,
    scenario: &Scenario,
) -> Result<(EngineState, Registered, DeviceProgram), Failure> {
    let config = &scenario.config;
    let mut engine = EngineState::new(config.clone()).map_err(|e| Failure::new(Check::Load, format!("config: {e}")))?;
    if let Some(cost) = scenario.forecast {
        let widths: Vec<u64> = (1..=FORECAST).map(|n| cost.ns(n, 0.0) as u64).collect();
        engine.expect_costs(&widths);
    }
    let registered = Registered::new(World::new(sizes(config)));
    let draft_ids = config.draft.as_ref().and_then(|draft| draft.token_ids.as_deref());
    registered.world.lock().draft_ids = draft_ids.unwrap_or_default().to_vec();
    let step_bytes = config.step_capacity().bytes() as u64;
    let program = model::open(backend, config, registered.number, step_bytes, scenario.choice())
        .map_err(|error| Failure::new(Check::Load, format!("{error:?}")))?
        .with_host_cache(config.host_pages, config.host_states);
    Ok((engine, registered, program))
}
