//! `tokenspeed plan`: memory and operation support from a config alone.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::engine_options::{EngineOptions, bytes};
use crate::{engine_setup, error::CliError};

/// A draft model to make room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftModel {
    /// The published one of Kimi K3
    #[value(alias = "EAGLE3")]
    Eagle3,
    /// None
    None,
}

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Ranks to split the model over, one device each
    #[arg(long, visible_aliases = ["tensor-parallel-size", "tp-size"], default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub tp: u32,
    /// What only plans of Kimi models take.
    #[command(flatten)]
    pub kimi: KimiPlanOptions,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Sizes of a plan that asks no backend.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct KimiPlanOptions {
    /// Memory of each device, like 288GB: how many conversations fit is counted for it (Kimi models)
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub device_memory: Option<u64>,
    /// Share of it for the engine; the rest is for driver, code and captured graphs [default: 0.9] (Kimi models)
    #[arg(long, alias = "mem-fraction-static", value_name = "SHARE")]
    pub gpu_memory_utilization: Option<f64>,
    /// Tokens per page [default: 64] (Kimi models)
    #[arg(long, alias = "block-size", value_name = "TOKENS")]
    pub page_size: Option<u64>,
    /// Draft model to make room for [default: eagle3 where it fits the model] (Kimi models)
    #[arg(long, value_enum)]
    pub draft_model: Option<DraftModel>,
    /// Tokens verified per request and step, the last one included [default: 4 with a draft model] (Kimi models)
    #[arg(long, value_name = "N")]
    pub verify_tokens: Option<u64>,
    /// Lengths to count conversations of [default: 50000,200000,1000000] (Kimi models)
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',')]
    pub conversation_tokens: Option<Vec<u64>>,
    /// Prefix-cache budgets to count for: snapshots kept per conversation, 0 = no cache [default: 0,1,2,4,8,16] (Kimi models)
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub snapshots: Option<Vec<u64>>,
}

/// Run it. Ranks, devices and bare configurations of Kimi models are planned without a backend, anything else is what the
/// backend at hand would do.
pub fn run(args: PlanArgs) -> Result<(), CliError> {
    let of_ranks = args.tp > 1 || args.kimi != KimiPlanOptions::default();
    let bare = engine_setup::config_file(&args.engine.model).is_some();
    if (of_ranks || bare)
        && let Some(config) = engine_setup::kimi_config(&args.engine.model)?
    {
        let report = engine_setup::kimi_plan(&config, &args)?;
        if args.json {
            println!("{:#}", report.json());
        } else {
            print!("{}", report.text());
        }
        return report.verdict();
    }
    if args.kimi != KimiPlanOptions::default() {
        return Err(CliError::usage(
            "the model is not a Kimi model, and these options are for plans of Kimi models",
            given(&args.kimi).join(", "),
            "leave them out; --memory is the budget of a plan with a backend",
        ));
    }
    let mut engine = args.engine;
    if bare {
        engine.model.insert_str(0, "dummy:");
    }
    let table = engine_setup::plan(&engine, args.tp)?;
    if args.json {
        let rows: Vec<_> = table.rows.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        println!("{:#}", json!({"rows": rows}));
    } else {
        print!("{}", table.render());
    }
    Ok(())
}

fn given(options: &KimiPlanOptions) -> Vec<&'static str> {
    let all = [
        (options.device_memory.is_some(), "--device-memory"),
        (options.gpu_memory_utilization.is_some(), "--gpu-memory-utilization"),
        (options.page_size.is_some(), "--page-size"),
        (options.draft_model.is_some(), "--draft-model"),
        (options.verify_tokens.is_some(), "--verify-tokens"),
        (options.conversation_tokens.is_some(), "--conversation-tokens"),
        (options.snapshots.is_some(), "--snapshots"),
    ];
    all.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
}
