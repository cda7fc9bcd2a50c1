//! What the memory of one rank holds, from the configuration alone: no weights, no backend.
//!
//! Sizes are read off the rank's own graphs, so a plan cannot say one thing and a load do another: weights by the slicing
//! table, cache rows and states by the graphs' components, values of a step by placing them as a program would.
//!
//! Rejected: closed formulas for each part. They are what the tests compute, independently.

mod arena;
mod draft;
mod error;
mod sizes;

pub use draft::Draft;
pub use error::PlanError;
pub use sizes::{DeviceBytes, DraftBytes, Fit, PartBytes, SlotBytes, StepBytes};

use super::{
    config::KimiConfig,
    slicing::{ExchangeKind, ExpertSplit, Part, RankGraph, RankGraphs, Rule, Split},
    stack::{GraphOptions, Graphs},
    tensors::CheckpointSize,
};
use arena::{Shape, arena_bytes, value_bytes};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{CacheTensor, ComponentKind, Graph, WeightSpec},
};

/// What to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// Ranks, one device each.
    pub ranks: u64,
    /// Memory of one device; `None` = sizes only.
    pub device_bytes: Option<u64>,
    /// Share of it that the engine uses, above 0 and up to 1. The rest is for driver, kernels' code and captured graphs.
    pub memory_share: f64,
    /// Format of latent cache rows.
    pub latent: DType,
    /// Format of convolution windows and verify records: f32, f16 or bf16.
    pub window: DType,
    /// Tokens per page.
    pub block_tokens: u64,
    /// Most prompt tokens in one step.
    pub chunk_tokens: u64,
    /// Requests running at once.
    pub max_num_seqs: u64,
    /// Prompt plus answer; `None` = what the model was made for.
    pub max_model_len: Option<u64>,
    /// Tokens verified per request and step, the last one included; 0 = no speculation.
    pub candidates: u64,
    /// Draft model; speculation may also guess without one.
    pub draft: Option<Draft>,
    /// Lengths to count conversations of, in tokens.
    pub conversations: Vec<u64>,
    /// Prefix-cache budgets to count them for: snapshots kept per conversation, 0 = without a prefix cache.
    pub snapshots: Vec<u64>,
}

impl PlanRequest {
    /// One rank without speculation, bf16 caches, the engine's usual sizes.
    pub fn new(ranks: u64) -> Self {
        Self {
            ranks,
            device_bytes: None,
            memory_share: 0.9,
            latent: DType::BF16,
            window: DType::BF16,
            block_tokens: 64,
            chunk_tokens: 8192,
            max_num_seqs: 64,
            max_model_len: None,
            candidates: 0,
            draft: None,
            conversations: vec![50_000, 200_000, 1_000_000],
            snapshots: vec![0, 1, 2, 4, 8, 16],
        }
    }
}

/// The memory of one rank; all ranks are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// What was asked.
    pub request: PlanRequest,
    /// The checkpoint as stored.
    pub checkpoint: CheckpointSize,
    /// Weights by part, parts without weights left out.
    pub weights: Vec<PartBytes>,
    /// Draft model.
    pub draft: Option<DraftBytes>,
    /// Latent cache per token, the same on every rank.
    pub latent_token_bytes: u64,
    /// A page over all paged components, the draft's included.
    pub page_bytes: u64,
    /// A state slot.
    pub slot: SlotBytes,
    /// Exchanges per forward pass.
    pub exchanges: u64,
    /// A step.
    pub step: StepBytes,
    /// With a device.
    pub device: Option<DeviceBytes>,
    /// With a device that the model fits into.
    pub fits: Vec<Fit>,
}

impl RankPlan {
    /// Plan one rank.
    pub fn new(config: &KimiConfig, request: PlanRequest) -> Result<Self, PlanError> {
        error::check(config, &request)?;
        let (latent, window, candidates) = (request.latent, request.window, request.candidates);
        let options = GraphOptions { latent, window, candidates, ..GraphOptions::EXACT };
        let split = Split::new(config, 0, request.ranks, ExpertSplit::Width)?;
        let graphs = RankGraphs::new(config, options, split)?;
        let draft = request.draft.map(|draft| draft_bytes(draft, request.ranks)).transpose()?;
        let draft_row = draft.map_or(0, |d| d.token_bytes);
        let latent = latent_token_bytes(&graphs.forward.graph);
        let mut plan = Self {
            checkpoint: CheckpointSize::of(config),
            weights: weights(config, &Graphs::new(config, options).forward, &graphs.forward.graph)?,
            draft,
            latent_token_bytes: latent,
            page_bytes: (latent + draft_row) * request.block_tokens,
            slot: slot(&graphs.forward.graph),
            exchanges: graphs.forward.exchanges.len() as u64,
            step: step(config, &request, &graphs),
            device: None,
            fits: Vec::new(),
            request,
        };
        plan.fit(config);
        Ok(plan)
    }

    /// Weights of the model on this rank.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|p| p.rank_bytes).sum()
    }

    /// Everything but the cache.
    pub fn fixed_bytes(&self) -> u64 {
        self.weight_bytes() + self.draft.map_or(0, |d| d.rank_bytes) + self.step.total()
    }

    /// Latent cache per token in another format.
    pub fn latent_token_bytes_in(&self, dtype: DType) -> u64 {
        let values = self.latent_token_bytes / self.request.latent.block_bytes() as u64;
        dtype.bytes(values).expect("a cache format is plain")
    }

    /// State slots of a conversation that runs: the state it advances and, with a prefix cache, the one at its last page
    /// boundary, which it stores at its end, and the snapshots stored before.
    pub const fn slots(snapshots: u64) -> u64 {
        if snapshots == 0 { 1 } else { 2 + snapshots }
    }

    /// Cache of a conversation that runs.
    pub fn conversation_bytes(&self, tokens: u64, snapshots: u64) -> u64 {
        tokens.div_ceil(self.request.block_tokens) * self.page_bytes + Self::slots(snapshots) * self.slot.total()
    }

    fn fit(&mut self, config: &KimiConfig) {
        let Some(device) = self.request.device_bytes else { return };
        let budget = (device as f64 * self.request.memory_share) as u64;
        // Page 0 and slot 0 belong to nobody: padding points there.
        let fixed = self.fixed_bytes() + self.page_bytes + self.slot.total();
        let left = budget.checked_sub(fixed).ok_or(fixed.saturating_sub(budget));
        self.device = Some(DeviceBytes { device, budget, left });
        let Ok(left) = left else { return };
        let most = self.request.max_model_len.unwrap_or(config.context_tokens_max);
        for tokens in self.request.conversations.iter().copied().filter(|n| *n <= most) {
            for snapshots in self.request.snapshots.iter().copied() {
                let bytes = self.conversation_bytes(tokens, snapshots);
                self.fits.push(Fit { tokens, snapshots, bytes, conversations: left / bytes });
            }
        }
    }
}

fn weights(config: &KimiConfig, whole: &Graph, rank: &Graph) -> Result<Vec<PartBytes>, PlanError> {
    let bytes = |spec: &WeightSpec| {
        let stored = spec.dtype.bytes(spec.dims.iter().product());
        stored.expect("the rules cut whole blocks")
    };
    let mut parts: Vec<_> =
        Part::ALL.map(|part| PartBytes { part, rank_bytes: 0, whole_bytes: 0 }).into_iter().collect();
    for (spec, full) in rank.weights.iter().zip(&whole.weights) {
        let rule = Rule::of(config, &spec.name)?;
        let part = parts.iter_mut().find(|p| p.part == rule.part).expect("every part is listed");
        part.rank_bytes += bytes(spec);
        part.whole_bytes += bytes(full);
    }
    parts.retain(|p| p.whole_bytes > 0);
    Ok(parts)
}

fn draft_bytes(draft: Draft, ranks: u64) -> Result<DraftBytes, PlanError> {
    Ok(DraftBytes {
        draft,
        stored_bytes: draft.stored_bytes(),
        rank_bytes: draft.rank_bytes(ranks)?,
        token_bytes: draft.row_bytes(),
    })
}

fn tensor_bytes(tensor: &CacheTensor) -> u64 {
    tensor.dtype.bytes(tensor.inner.iter().product()).expect("cache formats are plain")
}

fn latent_token_bytes(graph: &Graph) -> u64 {
    let rows = graph.components.iter().map(|c| match &c.kind {
        ComponentKind::Paged { tensors } => tensors.iter().map(tensor_bytes).sum(),
        ComponentKind::State { .. } => 0,
    });
    rows.sum()
}

fn slot(graph: &Graph) -> SlotBytes {
    let mut slot = SlotBytes::default();
    for component in &graph.components {
        let ComponentKind::State { tensors } = &component.kind else { continue };
        for tensor in tensors {
            let bytes = tensor_bytes(tensor);
            match tensor.name.rsplit('.').next() {
                Some("state") => slot.state += bytes,
                Some("window") => slot.window += bytes,
                _ => slot.record += bytes,
            }
        }
    }
    slot
}

fn step(config: &KimiConfig, request: &PlanRequest, graphs: &RankGraphs) -> StepBytes {
    let rows = request.max_num_seqs;
    let per_row = request.candidates.max(1);
    let chunk = Shape { tokens: request.chunk_tokens + rows, rows, logit_rows: rows * per_row };
    let candidates = Shape { tokens: rows * per_row, rows, logit_rows: rows * per_row };
    let exchanged = |graph: &RankGraph, shape| {
        let sizes = graph.exchanges.iter().map(|e| match e.kind {
            ExchangeKind::Sum { value } => value_bytes(&graph.graph, value, shape),
            ExchangeKind::Gather { whole, .. } => value_bytes(&graph.graph, whole, shape),
        });
        sizes.max().unwrap_or(0)
    };
    let passes = [(Some(&graphs.forward), chunk), (graphs.verify.as_ref(), candidates)];
    let passes: Vec<_> = passes.into_iter().filter_map(|(graph, shape)| graph.map(|graph| (graph, shape))).collect();
    let tokens = passes.iter().map(|(_, shape)| shape.tokens).max().expect("a forward pass");
    let pages = request.max_model_len.unwrap_or(config.context_tokens_max).div_ceil(request.block_tokens);
    let tables = 2 + u64::from(request.draft.is_some());
    StepBytes {
        tokens,
        logit_rows: chunk.logit_rows,
        values: passes.iter().map(|(g, shape)| arena_bytes(&g.graph, *shape)).max().expect("a forward pass"),
        taps: request.draft.map_or(0, |draft| draft.taps * config.hidden_size * tokens * 4),
        logits: chunk.logit_rows * config.vocab_size * 4,
        tables: tables * rows * pages * 4,
        exchange: 2 * passes.iter().map(|(g, shape)| exchanged(g, *shape)).max().expect("a forward pass"),
    }
}
