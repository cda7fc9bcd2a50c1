//! Everything that is decided before weights are read: model, backend, sizes, program.

use std::{path::PathBuf, sync::Arc};

use tokenspeed_backend_api::{
    backend::{Backend, Device},
    catalogue::OpDesc,
    dtype::DType,
    graph::{ComponentKind, Graph},
    record::OpRecord,
    support::Support,
};
use tokenspeed_core::{
    engine::{ComponentConfig, EngineConfig},
    load::{self, DeviceProgram},
    lower::{Capacity, Lowered},
    memory::{MemoryPlan, MemoryRequest, plan_memory},
    scheduler::policy::{Order, SchedulingConfig},
    speculation::{GUESSES_MAX, SpeculationConfig},
    step::StepCapacity,
};
use tokenspeed_models::{
    graph::branches,
    loader::{LoadOptions, Model},
};

use super::{GenerationDefaults, backend, draft::Draft, experts::ExpertBudget, sampling, text};
use crate::{
    cli::{
        engine_options::{
            Dtype, EngineOptions, GenerationConfig, KvCacheDtype, Mode, SchedulingPolicy, SpeculativeAlgorithm,
        },
        model_path::{ModelPath, resolve_model},
    },
    error::CliError,
    frontend::TextFrontend,
    generation::ids::random_u64,
    progress::{Preflight, Progress},
};

/// What the program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Many requests, continuous batching.
    Serve,
    /// The same for prompts of token ids only.
    ServeIds,
    /// Memory and ops only: weights may be missing.
    Plan,
    /// One prompt of this many tokens, logits of every position.
    Logits(u32),
}

/// A model and a backend that fit together.
pub(super) struct Prepared {
    pub model: Model,
    pub backend: Backend,
    pub device: Device,
    /// In the order of the engine's passes; the draft's come last.
    pub graphs: Vec<Graph>,
    pub lowered: Vec<Lowered>,
    pub capacity: Capacity,
    pub memory: MemoryPlan,
    /// Where not all experts are in memory at a time.
    pub experts: Option<ExpertBudget>,
    pub engine: EngineConfig,
    pub frontend: Arc<dyn TextFrontend>,
    /// Why the host samples; empty if the device does.
    host_samples: String,
    /// Why the device samples without side tables; empty if it has them.
    no_side_tables: String,
    /// The model that guesses, and where its graphs are.
    draft: Option<(Draft, [usize; 2])>,
}

/// Tokens per page where the backend has no wish.
const PAGE_TOKENS: u32 = 64;
/// Share of a device's memory used when `--memory` is silent, in percent: a CPU's memory is not ours alone.
const SHARED_MEMORY_PERCENT: u64 = 25;
const DEVICE_MEMORY_PERCENT: u64 = 90;

impl Prepared {
    pub fn new(options: &EngineOptions, shape: Shape) -> Result<Self, CliError> {
        options.refuse_idle()?;
        let place = resolve_model(&options.model)?;
        let model = open_model(options, &place, shape)?;
        if options.prefix_snapshots.is_some() && !has_state(&model) {
            let what = format!("{} models have no recurrent state to keep", model.config.architecture());
            return Err(CliError::usage(what, "--prefix-snapshots", "leave it out"));
        }
        let frontend = match shape {
            Shape::Serve => text::of_model(&model, options, has_state(&model))?,
            // Token ids only: a broken or missing tokenizer is no reason to show nothing.
            Shape::ServeIds | Shape::Plan | Shape::Logits(_) => text::ids_only(&model),
        };
        let backend = backend::find(&options.backend)?;
        let mut device = backend::open(&backend, &backend_options(options))?;
        let draft = match shape {
            Shape::Logits(_) => None,
            _ => Draft::open(options, &model, &load_options(options))?,
        };
        let mut engine = engine_config(options, shape, &model, &*frontend, &device, draft.as_ref())?;
        let capacity = capacity(&engine, shape);
        let full = engine.pages_of(engine.max_model_len);
        let budget_bytes = options.memory_bytes.unwrap_or_else(|| default_memory(&device));
        let request = MemoryRequest {
            budget_bytes,
            blocks_max: full.saturating_mul(engine.max_num_seqs).saturating_add(1),
            blocks_min: full + 1,
            states_extra: if !matches!(shape, Shape::Logits(_)) { states_extra(options, &engine) } else { 0 },
        };
        let alignment = device.alignment();
        let (mut graphs, draft) = match draft {
            None => (graphs(&model, &engine)?, None),
            Some(draft) => {
                let branches = engine.branch_rows() > 0;
                let drafted = draft.graphs(&model, engine.candidates(), has_state(&model), branches)?;
                (drafted.graphs, Some((draft, drafted.passes)))
            }
        };
        let mut host_samples = String::new();
        let smallest = Capacity { blocks: request.blocks_min, ..capacity };
        let n_sampled = if engine.speculation.is_some() && has_state(&model) { 2 } else { 1 };
        let side_rows = sampling::side_rows(&engine, budget_bytes);
        let mut no_side_tables = String::new();
        let of_host = graphs[..n_sampled].to_vec();
        match sampling::on_device(options, shape, &engine, &device, &of_host, smallest, side_rows) {
            Ok((sampling, side)) => {
                graphs.splice(..n_sampled, sampling);
                engine.relay = true;
                match side {
                    Ok(n) => engine.side_rows = n,
                    Err(why) => no_side_tables = why,
                }
            }
            Err(why) => host_samples = why,
        }
        let plan = |graphs: &[Graph], device: &Device, request| {
            let refs: Vec<&Graph> = graphs.iter().collect();
            plan_memory(&refs, capacity, alignment, request, &mut |desc: &OpDesc, label: &str| ask(device, desc, label))
        };
        let mut planned = plan(&graphs, &device, request);
        // Of what is too much, side tables can be done without.
        if planned.is_err()
            && std::mem::take(&mut engine.side_rows) > 0
            && let Ok((sampling, _)) = sampling::on_device(options, shape, &engine, &device, &of_host, smallest, 0)
        {
            graphs.splice(..n_sampled, sampling);
            sampling::NO_MEMORY.clone_into(&mut no_side_tables);
            planned = plan(&graphs, &device, request);
        }
        let mut experts = None;
        if let Err(error) = &planned
            && device.host_mapped()
            && let Some(budget) = ExpertBudget::that_fits(&model, error)
        {
            let mut backend_options = backend_options(options);
            backend_options.push(budget.option());
            device = backend::open(&backend, &backend_options)?;
            planned = plan(&graphs, &device, budget.adjust(request));
            experts = Some(budget);
        }
        let (lowered, memory) = planned.map_err(|e| {
            CliError::new(e.to_string(), options.model.clone(), "`tokenspeed plan` shows where the memory goes")
        })?;
        let capacity = Capacity { blocks: memory.blocks, states: memory.states, ..capacity };
        engine.components = graphs[0]
            .components
            .iter()
            .map(|c| match c.kind {
                ComponentKind::Paged { .. } => ComponentConfig::of(c, capacity.blocks),
                ComponentKind::State { .. } => ComponentConfig::of(c, capacity.states),
            })
            .collect();
        if let (Some(bytes), Shape::Serve | Shape::ServeIds | Shape::Plan) = (options.host_cache_bytes, shape) {
            (engine.host_pages, engine.host_states) = host_places(bytes, &memory)?;
        }
        engine.validate().map_err(|e| CliError::new(e.to_string(), options.model.clone(), ""))?;
        Ok(Self {
            model,
            backend,
            device,
            graphs,
            lowered,
            capacity,
            memory,
            experts,
            engine,
            frontend,
            host_samples,
            no_side_tables,
            draft,
        })
    }

    /// Bring the weights in and prepare the program.
    pub fn load(self, progress: &mut dyn Progress) -> Result<DeviceProgram, CliError> {
        let mut begun = false;
        let mut done_before = 0;
        let mut report = |done: u64, total: u64| {
            if !begun {
                progress.begin("loading weights", total);
                begun = true;
            }
            progress.advance(done - done_before);
            done_before = done;
        };
        let graphs: Vec<&Graph> = self.graphs.iter().collect();
        let plan = load::Plan {
            graphs: &graphs,
            lowered: &self.lowered,
            capacity: self.capacity,
            step_bytes: step_capacity(&self.engine, self.capacity).bytes() as u64,
            via: None,
        };
        // Without recurrent states there is no verify pass before it.
        let replay = (self.engine.branch_rows() > 0 && !has_state(&self.model)).then_some(1);
        let program = match self.draft {
            None => load::load(self.device, &plan, Arc::new(self.model.weights), &mut report),
            Some((draft, [first, next])) => load::load(self.device, &plan, draft.join(self.model.weights), &mut report)
                .map(|program| program.with_draft(first, next)),
        };
        progress.finish();
        let program = program.map_err(|e| CliError::new(e.to_string(), "while loading weights", ""))?;
        let program = program.with_host_cache(self.engine.host_pages, self.engine.host_states);
        Ok(match replay {
            Some(at) => program.with_replay(at),
            None => program,
        })
    }

    /// Sampling values of the model's own files, unless told to ignore them.
    pub fn defaults(&self, options: &EngineOptions) -> GenerationDefaults {
        let g = &self.model.generation;
        if options.generation_config == GenerationConfig::None || g.do_sample == Some(false) {
            return GenerationDefaults::default();
        }
        GenerationDefaults {
            temperature: g.temperature.map(|v| v as f32),
            top_p: g.top_p.map(|v| v as f32),
            top_k: g.top_k.and_then(|v| u32::try_from(v).ok()),
            min_p: g.min_p.map(|v| v as f32),
            repetition_penalty: g.repetition_penalty.map(|v| v as f32),
        }
    }

    /// The table printed before weights load.
    pub fn preflight(&self, options: &EngineOptions) -> Preflight {
        let (c, m, e) = (&self.model.config, &self.memory, &self.engine);
        let sizes = self.model.sizes();
        let mut t = Preflight::default();
        t.row(
            "model",
            format!(
                "{} ({}, {} layers, {:.1} M parameters)",
                self.model.name,
                c.architecture(),
                c.n_layers(),
                sizes.parameters as f64 / 1e6
            ),
        );
        t.row("weights", format!("{} in {}", mib(sizes.weight_bytes), self.weight_formats()));
        for notice in &self.model.notices {
            t.row(if notice.is_warning { "warning" } else { "note" }, notice.text.clone());
        }
        for notice in self.draft.iter().flat_map(|(draft, _)| draft.notices()) {
            t.row(if notice.is_warning { "warning" } else { "note" }, format!("draft: {}", notice.text));
        }
        let device = self.device.info();
        t.row("backend", format!("{} {} on {}", self.backend.name(), self.backend.info().version, device.name));
        let kernels = self.lowered[0].resolutions.iter().map(|r| {
            let why = if r.reason.is_empty() { String::new() } else { format!("  ({})", r.reason) };
            format!("{} x{}: {}{why}", r.op, r.count, r.implementation)
        });
        t.row("kernels", kernels.collect::<Vec<_>>().join("\n"));
        let tokens = u64::from(m.blocks - 1) * u64::from(e.block_tokens);
        let states = match m.state_bytes {
            0 => String::new(),
            bytes => format!(", {} recurrent states of {}", m.states - 1, mib(bytes)),
        };
        t.row(
            "memory",
            format!(
                "{} of cache ({tokens} tokens in {} pages of {}, {}{states})\n{} of packed weights, {} for a step",
                mib(m.cache_bytes),
                m.blocks - 1,
                e.block_tokens,
                kv_dtype(options.kv_cache_dtype),
                mib(m.packed_bytes),
                mib(m.activation_bytes + m.output_bytes + m.table_bytes)
            ),
        );
        if let Some(experts) = &self.experts {
            let [resident, all] = [experts.resident_bytes, experts.all_bytes].map(mib);
            t.row("experts", format!("{resident} of {all} in memory at a time, the rest is read when it is chosen"));
        }
        t.row(
            "limits",
            format!(
                "context {} tokens, {} sequences at once, prompts in chunks of {}",
                e.max_model_len, e.max_num_seqs, e.chunked_prefill_size
            ),
        );
        let cache = if e.prefix_cache {
            format!("on, from {} tokens on", e.block_tokens)
        } else {
            "off (--no-prefix-cache)".into()
        };
        t.row("prefix cache", cache);
        if e.host_pages > 0 {
            let bytes = u64::from(e.host_pages) * m.page_bytes + u64::from(e.host_states) * m.state_bytes;
            let tokens = u64::from(e.host_pages) * u64::from(e.block_tokens);
            let states = if e.host_states > 0 { format!(", {} states", e.host_states) } else { String::new() };
            t.row("host cache", format!("{tokens} tokens{states}, up to {} of this machine's memory", mib(bytes)));
        }
        if let Some(s) = &e.speculation {
            let what = match &self.draft {
                Some((draft, _)) => format!("{}, {} at most", draft.describe(), s.draft_max),
                None => {
                    format!("guesses from the text itself, {} at most, after {} repeated tokens", s.draft_max, s.ngram)
                }
            };
            t.row("speculation", what);
        }
        t.row(
            "sampling",
            match &self.host_samples[..] {
                "" => {
                    let unless = if e.speculation.is_some() { " where nobody guesses" } else { "" };
                    let host = match &self.no_side_tables[..] {
                        "" => "prompt_logprobs".to_owned(),
                        why => format!("constraints, penalties, biases, min_tokens and prompt_logprobs ({why})"),
                    };
                    let tables = match e.side_rows {
                        0 => String::new(),
                        n => format!(" with {n} rows of side tables"),
                    };
                    format!("on the device{tables}, tokens go to the next step there{unless}; by the host for {host}")
                }
                why => format!("by the host ({why})"),
            },
        );
        t.row("sampling defaults", self.defaults(options).to_string());
        t
    }

    fn weight_formats(&self) -> String {
        let mut formats: Vec<(DType, usize)> = Vec::new();
        for w in self.graphs[0].weights.iter().filter(|w| w.dims.len() > 1) {
            match formats.iter_mut().find(|(d, _)| *d == w.dtype) {
                Some((_, n)) => *n += 1,
                None => formats.push((w.dtype, 1)),
            }
        }
        formats.iter().map(|(d, n)| format!("{d} x{n}")).collect::<Vec<_>>().join(", ")
    }
}

fn has_state(model: &Model) -> bool {
    model.graph.components.iter().any(|c| matches!(c.kind, ComponentKind::State { .. }))
}

/// The passes that the engine will run.
fn graphs(model: &Model, engine: &EngineConfig) -> Result<Vec<Graph>, CliError> {
    match &engine.speculation {
        Some(speculation) if has_state(model) => {
            let graphs = model.verifying(engine.candidates()).ok_or_else(|| {
                let what = "this model cannot check guesses";
                CliError::usage(what.to_owned(), "--speculative-algorithm", "leave it out")
            });
            let [forward, verify, mut replay] = graphs?;
            if speculation.branches > 0 {
                branches::move_branches(&mut replay, |_| true);
            }
            Ok(vec![forward, verify, replay])
        }
        Some(speculation) if speculation.branches > 0 => {
            Ok(vec![model.graph.clone(), branches::commit(&model.graph, |_| true)])
        }
        _ => Ok(vec![model.graph.clone()]),
    }
}

/// Mebibytes for people.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn load_options(options: &EngineOptions) -> LoadOptions {
    LoadOptions {
        kv_dtype: kv_dtype(options.kv_cache_dtype),
        dequantize: match options.dtype {
            Dtype::Auto => None,
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::Bf16 => Some(DType::BF16),
        },
        seed: options.seed.unwrap_or(0),
        latent_eps: options.mla_latent_eps,
    }
}

fn open_model(options: &EngineOptions, place: &ModelPath, shape: Shape) -> Result<Model, CliError> {
    let load_options = load_options(options);
    let path = match place {
        ModelPath::Dummy(path) => PathBuf::from(format!("dummy:{}", path.display())),
        ModelPath::Folder(path) | ModelPath::Gguf(path) => path.clone(),
    };
    let model = match shape {
        Shape::Plan => Model::open_to_plan(&path, &load_options),
        Shape::Serve | Shape::ServeIds | Shape::Logits(_) => Model::open(&path, &load_options),
    };
    model.map_err(|e| {
        CliError::new(e.to_string(), "", "nothing was loaded; fetch or convert the file again, or give another MODEL")
    })
}

fn kv_dtype(choice: KvCacheDtype) -> DType {
    match choice {
        KvCacheDtype::Auto | KvCacheDtype::F32 => DType::F32,
        KvCacheDtype::F16 => DType::F16,
        KvCacheDtype::Bf16 => DType::BF16,
        KvCacheDtype::Fp8E4m3 => DType::F8E4M3,
    }
}

/// The user's options, and `--mode` and `--threads` where given; a backend without them refuses by name.
fn backend_options(options: &EngineOptions) -> Vec<(String, String)> {
    let mut all = options.backend_options.clone();
    match options.mode {
        Mode::Fast => {}
        Mode::Exact => all.push(("mode".into(), "exact".into())),
        Mode::FastInt8 => all.push(("mode".into(), "fast-int8".into())),
    }
    all.extend(options.threads.map(|n| ("threads".to_owned(), n.to_string())));
    all
}

fn default_memory(device: &Device) -> u64 {
    let percent = if device.host_mapped() { SHARED_MEMORY_PERCENT } else { DEVICE_MEMORY_PERCENT };
    device.info().memory_bytes / 100 * percent
}

fn engine_config(
    options: &EngineOptions,
    shape: Shape,
    model: &Model,
    frontend: &dyn TextFrontend,
    device: &Device,
    draft: Option<&Draft>,
) -> Result<EngineConfig, CliError> {
    let block_tokens = device.page_tokens().unwrap_or(PAGE_TOKENS);
    let context = u32::try_from(model.config.context_tokens_max()).unwrap_or(u32::MAX >> 1);
    let max_model_len = match (shape, options.max_model_len) {
        (Shape::Logits(n), _) => n.max(2),
        (_, Some(n)) if n > context => {
            return Err(CliError::usage(
                format!("--max-model-len {n} is more than the model's context of {context} tokens"),
                options.model.clone(),
                "give a smaller one, or none",
            ));
        }
        (_, Some(n)) => n,
        (_, None) => context,
    };
    let vocab = u32::try_from(model.config.vocab_size())
        .map_err(|_| CliError::new(format!("a vocabulary of {} is too large", model.config.vocab_size()), "", ""))?;
    let max_num_seqs = if matches!(shape, Shape::Logits(_)) { 1 } else { options.max_num_seqs };
    // A chunk longer than the context would only reserve memory.
    let chunk = options.chunked_prefill_size.min(max_model_len.next_multiple_of(block_tokens));
    let mut config = EngineConfig::paged(max_model_len, block_tokens, 2, vocab);
    config.model_id = model.name.clone();
    config.max_num_seqs = max_num_seqs;
    config.table_rows = max_num_seqs;
    config.chunked_prefill_size = chunk;
    config.max_batch_tokens = chunk.max(block_tokens) + max_num_seqs;
    config.max_logit_rows = max_num_seqs + block_tokens;
    config.tokenizer_vocab_size = frontend.vocab_size().min(vocab);
    config.eos_ids = frontend.eos_ids().to_vec();
    config.prefix_cache = !options.no_prefix_cache;
    config.scheduling = SchedulingConfig {
        order: match options.scheduling_policy {
            SchedulingPolicy::Fcfs => Order::FirstCome,
            SchedulingPolicy::ShortestPrefill => Order::ShortestPrefill,
        },
        overtaken_steps_max: options.overtaken_steps(),
        coalescing_ns: u64::from(options.prefill_coalescing_ms) * 1_000_000,
    };
    config.cache_events = options.cache_events;
    config.draft = draft.map(Draft::model);
    let looks_up = !matches!(shape, Shape::Logits(_)) && options.speculative_algorithm == SpeculativeAlgorithm::Ngram;
    if looks_up || draft.is_some() {
        let (draft_max, ngram) = (options.draft_tokens(), options.ngram());
        let branches = options.branches();
        if branches > 0 && !device.branch_rows() {
            let what = "this backend checks one continuation at a time";
            return Err(CliError::usage(what, "--speculative-eagle-topk", "give 1, or leave it out"));
        }
        config.speculation = Some(SpeculationConfig { draft_max, ngram, branches });
        let each = config.speculation.map_or(0, |_| config.candidates() - 1);
        let guesses = GUESSES_MAX.min(max_num_seqs.saturating_mul(each));
        config.max_batch_tokens += guesses;
        config.max_logit_rows += guesses;
    }
    config.secret = [random_u64(), random_u64()];
    Ok(config)
}

/// Pages and states that so many bytes of host memory hold. A page without a state near its end is as little use as a state
/// without its pages: half each where there are both.
fn host_places(bytes: u64, memory: &MemoryPlan) -> Result<(u32, u32), CliError> {
    let share = if memory.state_bytes > 0 { bytes / 2 } else { bytes };
    let places = |size: u64| share.checked_div(size).map_or(0, |n| n.min(u64::from(u32::MAX >> 2)) as u32);
    let (pages, states) = (places(memory.page_bytes), places(memory.state_bytes));
    if pages == 0 || memory.state_bytes > 0 && states == 0 {
        let (page, state) = (mib(memory.page_bytes), mib(memory.state_bytes));
        let what = format!("not one page of {page} and its recurrent state of {state} fit into half of that each");
        return Err(CliError::usage(what, format!("--host-cache-bytes {bytes}"), "give more, or leave it out"));
    }
    Ok((pages, states))
}

/// Slots for the states of the prefix cache: a second one for each running request, and those to keep.
fn states_extra(options: &EngineOptions, engine: &EngineConfig) -> u32 {
    if options.no_prefix_cache {
        return 0;
    }
    let kept = options.prefix_snapshots.unwrap_or(engine.max_num_seqs.saturating_mul(4));
    engine.max_num_seqs.saturating_add(kept)
}

/// Capacities of the program; pages are decided by the memory plan.
fn capacity(engine: &EngineConfig, shape: Shape) -> Capacity {
    let (tokens, logit_rows) = match shape {
        Shape::Logits(n) => (n, n),
        Shape::Serve | Shape::ServeIds | Shape::Plan => (engine.max_batch_tokens, engine.max_logit_rows),
    };
    Capacity {
        tokens,
        rows: engine.max_num_seqs + engine.branch_rows(),
        logit_rows,
        table_rows: engine.table_rows,
        blocks_per_row: engine.blocks_per_row,
        block_tokens: engine.block_tokens,
        blocks: 0,
        states: engine.max_num_seqs + 1,
    }
}

/// Room for the largest parameter block of either use.
pub(super) fn step_capacity(engine: &EngineConfig, capacity: Capacity) -> StepCapacity {
    let own = engine.step_capacity();
    StepCapacity {
        tokens: own.tokens.max(capacity.tokens),
        logit_rows: own.logit_rows.max(capacity.logit_rows),
        deltas: own.deltas.max(capacity.blocks_per_row),
        ..own
    }
}

pub(super) fn ask(device: &Device, desc: &OpDesc, label: &str) -> Support {
    let operands = desc.operands.iter().map(|t| t.to_abi()).collect();
    let record = OpRecord::new(desc.kind, operands, desc.attrs, label);
    device.op_support(&record).unwrap_or_else(|e| Support::no(e.to_string()))
}
