//! The plan of one rank of a Kimi model: from options to [`RankPlan`], and the verdict.
//!
//! No backend is asked, so that an operator can size machines that are not there. What only a backend can know, its
//! kernels' scratch and its captured graphs, is what the share of memory left to it is for.

use std::path::{Path, PathBuf};

use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    config::{from_kimi, is_kimi},
    kimi::{
        KimiConfig, LayerKind,
        plan::{Draft, PlanRequest, RankPlan},
    },
};

use super::kimi_report;
use crate::{
    cli::{
        engine_options::{
            Dtype, EngineOptions, GenerationConfig, KvCacheDtype, Mode, ReasoningParser, SpeculativeAlgorithm,
            ToolCallParser,
        },
        model_path::{ModelPath, resolve_model},
        plan::{DraftModel, PlanArgs},
    },
    error::CliError,
};

/// The config.json that MODEL stands for, if it is of the Kimi family. MODEL may also be the config file itself.
pub fn kimi_config(model: &str) -> Result<Option<PathBuf>, CliError> {
    let config = match config_file(model) {
        Some(file) => file.to_owned(),
        None => match resolve_model(model)? {
            ModelPath::Folder(folder) => folder.join("config.json"),
            ModelPath::Dummy(file) => file,
            ModelPath::Gguf(_) => return Ok(None),
        },
    };
    let kimi =
        is_kimi(&config).map_err(|e| CliError::new(e.to_string(), "", "a plan is made from a sound config.json"))?;
    Ok(kimi.then_some(config))
}

/// MODEL as a bare configuration file.
pub fn config_file(model: &str) -> Option<&Path> {
    let file = Path::new(model);
    (file.extension().is_some_and(|e| e == "json") && file.is_file()).then_some(file)
}

/// A plan to print.
#[derive(Clone, Debug)]
pub struct KimiReport {
    /// File it was made from.
    pub config: PathBuf,
    /// Numbers of layers: KDA, MLA.
    pub layers: [usize; 2],
    /// The numbers.
    pub plan: RankPlan,
}

/// Plan from a configuration.
pub fn kimi_plan(file: &Path, args: &PlanArgs) -> Result<KimiReport, CliError> {
    refuse_what_needs_a_backend(&args.engine)?;
    let config = from_kimi(file, None)
        .map_err(|e| CliError::new(e.to_string(), "", "plan with the config.json of a supported model"))?;
    let options = &args.kimi;
    let mut request = PlanRequest::new(args.tp.into());
    request.device_bytes = options.device_memory;
    request.latent = match args.engine.kv_cache_dtype {
        KvCacheDtype::Auto | KvCacheDtype::Bf16 => DType::BF16,
        KvCacheDtype::F32 => DType::F32,
        KvCacheDtype::F16 => DType::F16,
        KvCacheDtype::Fp8E4m3 => DType::F8E4M3,
    };
    request.memory_share = options.gpu_memory_utilization.unwrap_or(request.memory_share);
    request.block_tokens = options.page_size.unwrap_or(request.block_tokens);
    request.chunk_tokens = args.engine.chunked_prefill_size.into();
    request.max_num_seqs = args.engine.max_num_seqs.into();
    request.max_model_len = args.engine.max_model_len.map(u64::from);
    speculation(&mut request, &config, args)?;
    if let Some(list) = &options.conversation_tokens {
        request.conversations.clone_from(list);
    }
    match &options.snapshots {
        Some(_) if args.engine.no_prefix_cache => {
            return Err(CliError::usage(
                "without a prefix cache there are no snapshots to keep",
                "--snapshots with --no-prefix-cache",
                "give one of them",
            ));
        }
        Some(list) => request.snapshots.clone_from(list),
        None if args.engine.no_prefix_cache => request.snapshots = vec![0],
        None => {}
    }
    let plan = RankPlan::new(&config, request)
        .map_err(|e| CliError::usage(e.to_string(), file.display().to_string(), "see tokenspeed plan --help"))?;
    let layers = [LayerKind::Kda, LayerKind::Mla];
    Ok(KimiReport { config: file.to_owned(), layers: layers.map(|kind| config.layers_of(kind).count()), plan })
}

/// A draft model, or guesses of the engine's own, or neither.
fn speculation(request: &mut PlanRequest, config: &KimiConfig, args: &PlanArgs) -> Result<(), CliError> {
    let (engine, options) = (&args.engine, &args.kimi);
    let guesses = engine.speculative_algorithm == SpeculativeAlgorithm::Ngram;
    request.draft = match options.draft_model {
        Some(DraftModel::Eagle3) if guesses => {
            return Err(CliError::usage(
                "tokens are guessed by a draft model or from the text, not by both",
                "--draft-model with --speculative-algorithm",
                "give one of them",
            ));
        }
        Some(DraftModel::Eagle3) => Some(Draft::EAGLE3),
        None if !guesses => Some(Draft::EAGLE3).filter(|d| d.belongs_to(config)),
        Some(DraftModel::None) | None => None,
    };
    let usual = match request.draft {
        Some(_) => 4,
        None if guesses => u64::from(engine.draft_tokens()) + 1,
        None => 0,
    };
    request.candidates = options.verify_tokens.unwrap_or(usual);
    Ok(())
}

impl KimiReport {
    /// For people.
    pub fn text(&self) -> String {
        kimi_report::text(self)
    }

    /// For programs: every size in bytes.
    pub fn json(&self) -> serde_json::Value {
        kimi_report::json(self)
    }

    /// An error if the model does not fit, so that scripts can tell.
    pub fn verdict(&self) -> Result<(), CliError> {
        let Some(device) = self.plan.device else { return Ok(()) };
        match device.left {
            Ok(_) => Ok(()),
            Err(missing) => Err(CliError::new(
                format!(
                    "the model does not fit: each rank needs {} bytes more than its budget of {}",
                    kimi_report::grouped(missing),
                    kimi_report::grouped(device.budget)
                ),
                self.config.display().to_string(),
                "use more ranks (--tp), larger devices, or a smaller --chunked-prefill-size or --max-num-seqs",
            )),
        }
    }
}

/// Options that would change nothing here.
fn refuse_what_needs_a_backend(engine: &EngineOptions) -> Result<(), CliError> {
    let ngram = engine.speculative_algorithm == SpeculativeAlgorithm::Ngram;
    let given = [
        (engine.speculative_draft_model.is_some(), "--speculative-draft-model"),
        (
            matches!(engine.speculative_algorithm, SpeculativeAlgorithm::Eagle3 | SpeculativeAlgorithm::DraftModel),
            "--speculative-algorithm",
        ),
        (!ngram && engine.speculative_num_draft_tokens.is_some(), "--speculative-num-draft-tokens"),
        (engine.speculative_ngram.is_some(), "--speculative-ngram"),
        (engine.speculative_eagle_topk.is_some(), "--speculative-eagle-topk"),
        (engine.memory_bytes.is_some(), "--memory"),
        (engine.backend != "reference-cpu", "--backend"),
        (!engine.backend_options.is_empty(), "--backend-option"),
        (engine.mode != Mode::default(), "--mode"),
        (engine.dtype != Dtype::default(), "--dtype"),
        (engine.mla_latent_eps.is_some(), "--mla-latent-eps"),
        (engine.step_time_target_ms.is_some(), "--step-time-target-ms"),
        (engine.disable_overlap_schedule, "--disable-overlap-schedule"),
        (engine.skip_server_warmup, "--skip-server-warmup"),
        (engine.host_sampling, "--host-sampling"),
        (engine.threads.is_some(), "--threads"),
        (engine.seed.is_some(), "--seed"),
        (engine.prefix_snapshots.is_some(), "--prefix-snapshots"),
        (engine.chat_template.is_some(), "--chat-template"),
        (engine.tool_call_parser != ToolCallParser::default(), "--tool-call-parser"),
        (engine.reasoning_parser != ReasoningParser::default(), "--reasoning-parser"),
        (engine.generation_config != GenerationConfig::default(), "--generation-config"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, "--memory")) => Err(CliError::usage(
            "a plan of ranks asks no backend, so there is no budget to set",
            "--memory",
            "give the memory of each device as --device-memory",
        )),
        Some((_, "--speculative-algorithm" | "--speculative-draft-model")) => Err(CliError::usage(
            "a plan of ranks knows the published draft only, and opens none",
            "--speculative-algorithm",
            "plan for it with --draft-model eagle3",
        )),
        Some((_, "--speculative-num-draft-tokens")) => Err(CliError::usage(
            "guesses per step are counted for --speculative-algorithm ngram only",
            "--speculative-num-draft-tokens",
            "with a draft model, give --verify-tokens",
        )),
        Some((_, "--prefix-snapshots")) => Err(CliError::usage(
            "a plan of ranks counts snapshots per conversation",
            "--prefix-snapshots",
            "give them as --snapshots",
        )),
        Some((_, option)) => Err(CliError::usage(
            "a plan of ranks asks no backend, so this option would change nothing",
            option,
            "leave it out",
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tokenspeed_core::lower::{Capacity, lower};
    use tokenspeed_models::kimi::{
        GraphOptions,
        plan::StepBytes,
        slicing::{ExpertSplit, RankGraphs, Split},
        tiny,
    };

    use super::*;
    use crate::cli::{Cli, Command, plan};
    use tokenspeed_backend_api::{catalogue::OpDesc, support::Support};

    fn fixture(name: &str) -> String {
        format!("{}/../models/tests/kimi/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn args(model: &str, options: &str) -> PlanArgs {
        let line = ["tokenspeed", "plan", model].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(line).expect("known options").command {
            Command::Plan(args) => args,
            _ => unreachable!("parsed as plan"),
        }
    }

    fn report(options: &str) -> Result<KimiReport, CliError> {
        let model = fixture("kimi-k3-config.json");
        let config = kimi_config(&model).expect("readable").expect("a Kimi configuration");
        kimi_plan(&config, &args(&model, options))
    }

    /// What an operator reads: the published sizes, and columns that line up.
    #[test]
    fn the_published_model_on_eight_devices() {
        let report = report("--tensor-parallel-size 8 --device-memory 288GB").expect("planned");
        let text = report.text();
        for part in [
            "1,560,860,324,864 bytes in 497,220 tensors",
            "each of 8 ranks, 279 exchanges per pass",
            "= weights                              202,984,754,928   202.98",
            "6,031,251,456 stored",
            "MLA rows per token                              27,648            13,824",
            "449.4 MB over all ranks",
            "90% of 288.00 GB",
            "50,000        1.44",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let start = text.find("memory of a rank").expect("a table");
        let table = text[start..].lines().skip(1).take_while(|l| !l.is_empty());
        table.for_each(|line| assert!(line.as_bytes()[62..65].iter().all(|b| *b != b' '), "{line}"));
        assert!(text.lines().all(|l| l.len() <= 140 && l.trim_end() == l), "{text}");

        let json = report.json();
        assert_eq!(json["checkpoint"]["bytes"], 1_560_860_324_864u64);
        assert_eq!(json["weight_bytes"], 202_984_754_928u64);
        assert_eq!(json["conversations"].as_array().map(Vec::len), Some(18));
        report.verdict().expect("it fits");
    }

    #[test]
    fn options_change_the_plan() {
        let json = |options: &str| report(options).expect("planned").json();
        let fp8 = json("--tp 8 --kv-cache-dtype fp8_e4m3 --draft-model none --page-size 16");
        assert_eq!((&fp8["draft"], &fp8["cache"]["slot_record_bytes"]), (&serde_json::Value::Null, &0.into()));
        assert_eq!(fp8["cache"]["page_bytes"], 16 * 24 * 576);
        assert_eq!(fp8["device"], serde_json::Value::Null);
        let ngram = json("--tp 8 --speculative-algorithm ngram --speculative-num-draft-tokens 3");
        assert_eq!(
            (&ngram["draft"], &ngram["cache"]["slot_record_bytes"]),
            (&serde_json::Value::Null, &2_620_896.into())
        );
        let few =
            json("--tp 8 --device-memory 288GB --gpu-memory-utilization 0.95 --conversation-tokens 1000 --snapshots 3");
        assert_eq!(few["device"]["budget_bytes"], 273_600_000_000u64);
        assert_eq!(
            (&few["conversations"][0]["tokens"], &few["conversations"][0]["snapshots"]),
            (&1000.into(), &3.into())
        );
        let off = json("--tp 8 --device-memory 288GB --no-prefix-cache --max-num-seqs 2 --chunked-prefill-size 100");
        assert_eq!((off["conversations"].as_array().map(Vec::len), &off["step"]["tokens"]), (Some(3), &102.into()));
    }

    /// One line each, with what is wrong and what to do.
    #[test]
    fn refusals() {
        for (options, parts) in [
            ("--memory 2GiB", ["--memory", "--device-memory"]),
            ("--backend null", ["asks no backend", "--backend"]),
            ("--seed 1", ["change nothing", "--seed"]),
            ("--prefix-snapshots 9", ["per conversation", "--snapshots"]),
            ("--tp 12", ["rows of the vocabulary", "1, 2, 4, 8, 16 or 32 ranks"]),
            ("--tp 8 --verify-tokens 1", ["verify 2 or more", "config.json"]),
            ("--draft-model eagle3 --speculative-algorithm ngram", ["not by both", "--draft-model"]),
            ("--speculative-num-draft-tokens 3", ["ngram", "--verify-tokens"]),
            ("--no-prefix-cache --snapshots 1", ["--snapshots", "--no-prefix-cache"]),
            ("--gpu-memory-utilization 2", ["share of 2", "up to 1"]),
        ] {
            let error = report(options).expect_err(options).render();
            assert!(parts.iter().all(|p| error.contains(p)), "{options}: {error}");
            assert!(error.contains("hint: ") && error.lines().count() == 2, "{error}");
        }
        let small = report("--tp 4 --device-memory 288GB").expect("planned");
        assert!(small.text().contains("the model does not fit"));
        assert!(small.verdict().expect_err("it does not fit").render().contains("use more ranks"));
        let llama = plan::run(args("dummy:none.json", "--device-memory 1GB")).expect_err("no such file");
        assert!(llama.render().contains("none.json"), "{llama}");
        let folder = std::env::temp_dir().join(format!("tokenspeed-kimi-plan-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let config = folder.join("config.json");
        for (text, part) in [("{", "is not a JSON object"), (r#"{"model_type": "kimi_k3"}"#, "kimi_k3")] {
            std::fs::write(&config, text).expect("written");
            for model in [&folder, &config] {
                let model = model.to_str().expect("UTF-8");
                let error = plan::run(args(model, "--tp 8")).expect_err("no configuration").render();
                assert!(error.contains(part) && error.contains("config.json") && error.lines().count() == 2, "{error}");
            }
        }
        std::fs::remove_dir_all(folder).expect("cleaned up");
    }

    /// Values of a step take what a program on a backend without scratch and without fused ops takes.
    #[test]
    fn a_step_is_placed_as_programs_are() {
        let config = tiny::k3();
        for ranks in [1, 2] {
            let mut config = config.clone();
            config.moe.intermediate_size = 64;
            let split = Split::new(&config, 0, ranks, ExpertSplit::Width).expect("it divides");
            let graph = RankGraphs::new(&config, GraphOptions::EXACT, split).expect("it divides").forward.graph;
            let capacity = Capacity {
                tokens: 108,
                rows: 8,
                logit_rows: 8,
                table_rows: 8,
                blocks_per_row: 64,
                block_tokens: 64,
                blocks: 2,
                states: 2,
            };
            let mut basic = |desc: &OpDesc, _: &str| match desc.kind.is_fused() {
                true => Support::no("basic ops only"),
                false => Support::yes("any"),
            };
            let lowered = lower(&graph, capacity, 256, &mut basic).expect("lowered");
            let request = PlanRequest { chunk_tokens: 100, max_num_seqs: 8, ..PlanRequest::new(ranks) };
            let StepBytes { values, logits, tables, .. } = RankPlan::new(&config, request).expect("planned").step;
            assert_eq!(values, lowered.activation_bytes, "{ranks} ranks");
            assert_eq!((logits, tables), (lowered.output_bytes, lowered.table_bytes), "{ranks} ranks");
        }
    }
}
