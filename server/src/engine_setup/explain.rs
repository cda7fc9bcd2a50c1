//! `tokenspeed backends` and `tokenspeed plan`: tables about what would run, without running it.

use tokenspeed_backend_api::{
    abi::TS_TIER_PROGRAMS,
    backend::Backend,
    conform::PROFILES,
    loader::{self, SearchLog, SearchPaths},
};

use super::{
    backend,
    prepare::{Prepared, Shape, mib},
};
use crate::{
    cli::{Cli, backends::BackendsArgs, engine_options::EngineOptions},
    error::CliError,
    progress::Preflight,
};

/// The table that `tokenspeed backends` prints.
pub fn backends(args: &BackendsArgs) -> Result<Preflight, CliError> {
    let mut table = Preflight::default();
    let mut log = SearchLog::default();
    let found = match &args.backend {
        Some(spec) => vec![Ok(backend::find(spec)?)],
        None => loader::discover(&SearchPaths::from_env(), &mut log),
    };
    for backend in found {
        match backend {
            Ok(backend) => drop(table.row(backend.name(), describe(&backend))),
            Err(error) => drop(table.row("refused", error.to_string())),
        }
    }
    let Some(model) = &args.explain else { return Ok(table) };
    for step in log.steps {
        table.row("search", step);
    }
    let mut options = default_options(model)?;
    if let Some(spec) = &args.backend {
        options.backend.clone_from(spec);
    }
    let prepared = Prepared::new(&options, Shape::Plan)?;
    for r in &prepared.lowered[0].resolutions {
        let why = if r.reason.is_empty() { String::new() } else { format!("\nexpanded: {}", r.reason) };
        table.row(format!("{} x{}", r.op, r.count), format!("{}{why}", r.implementation));
    }
    Ok(table)
}

/// The engine options of a command that has none of its own.
fn default_options(model: &str) -> Result<EngineOptions, CliError> {
    use clap::Parser as _;
    let cli = Cli::try_parse_from(["tokenspeed", "plan", "--", model])
        .map_err(|e| CliError::usage(e.to_string(), model, ""))?;
    match cli.command {
        crate::cli::Command::Plan(args) => Ok(args.engine),
        _ => unreachable!("`plan` parses as plan"),
    }
}

fn describe(backend: &Backend) -> String {
    let info = backend.info();
    let tier = if info.tiers & TS_TIER_PROGRAMS != 0 { "T1 (programs)" } else { "T0 (ops)" };
    let profiles: Vec<&str> = PROFILES.iter().filter(|(p, _)| info.profiles & p != 0).map(|(_, n)| *n).collect();
    let profiles = if profiles.is_empty() { "none".to_owned() } else { profiles.join(", ") };
    let mut lines = vec![
        format!("{} {}", info.version, info.description),
        format!("from {}, tier {tier}, profiles {profiles}", backend.origin()),
    ];
    match backend.device_count() {
        Err(e) => lines.push(format!("devices: {e}")),
        Ok(n) => lines.extend((0..n).map(|i| match backend.device_info(i) {
            Ok(d) => format!("device {i}: {}, {}", d.name, mib(d.memory_bytes)),
            Err(e) => format!("device {i}: {e}"),
        })),
    }
    lines.join("\n")
}

/// The table that `tokenspeed plan` prints.
pub fn plan(options: &EngineOptions, ranks: u32) -> Result<Preflight, CliError> {
    if ranks != 1 {
        return Err(CliError::usage(
            format!("this model cannot be split over {ranks} ranks"),
            format!("--tp {ranks}"),
            "tensor parallelism is not available for it; use --tp 1",
        ));
    }
    let prepared = Prepared::new(options, Shape::Plan)?;
    let (m, s) = (&prepared.memory, prepared.model.sizes());
    let mut table = prepared.preflight(options);
    table.row(
        "bytes",
        format!(
            "embedding {}\nattention {}\nMLP {}\nnorms {}\nhead {}\nall weights {}",
            s.embedding_bytes, s.attention_bytes, s.mlp_bytes, s.norm_bytes, s.head_bytes, s.weight_bytes
        ),
    );
    table.row("cache", format!("{} bytes per token, {} per page", s.cache_bytes_per_token, m.page_bytes));
    table.row("total", format!("{} per rank, 1 rank", mib(m.total_bytes())));
    let tokens = u64::from(m.blocks - 1) * u64::from(prepared.engine.block_tokens);
    let fits: Vec<String> = [1_000u64, 8_000, 50_000, 200_000]
        .iter()
        .filter(|n| **n <= u64::from(prepared.engine.max_model_len))
        .map(|n| format!("{} of {n} tokens", tokens / n))
        .collect();
    if !fits.is_empty() {
        table.row("conversations that fit", fits.join("\n"));
    }
    Ok(table)
}
