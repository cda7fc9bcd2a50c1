//! The rule of every weight, and what it means for a rank.
//!
//! A matrix is `[outputs, inputs]`. Rows are cut where a rank computes some of the outputs, columns where it knows only
//! some of the inputs; the product is then a summand. What is small beside an exchange is held whole by every rank: the
//! low-rank inputs of queries, latents and decays, the router, the way down to the latent space, the embedding table.

use super::SplitError;
use crate::kimi::{
    config::{ExpertFormat, KimiConfig, LayerKind},
    tensors::is_expert,
};

/// Part of the model that a weight belongs to, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Linear attention.
    Kda,
    /// Latent attention.
    Mla,
    /// MLPs of layers without experts.
    DenseMlp,
    /// Router of the experts.
    Router,
    /// Into the experts' space and back.
    Latent,
    /// Routed experts.
    Experts,
    /// Shared experts.
    SharedExperts,
    /// Normalisations and residual mixes.
    Norms,
    /// Output head.
    Head,
}

impl Part {
    /// Every part, in the order of a table.
    pub const ALL: [Part; 10] = [
        Part::Experts,
        Part::SharedExperts,
        Part::Latent,
        Part::Router,
        Part::Kda,
        Part::Mla,
        Part::DenseMlp,
        Part::Embedding,
        Part::Head,
        Part::Norms,
    ];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::Kda => "attention, KDA",
            Part::Mla => "attention, MLA",
            Part::DenseMlp => "dense MLP",
            Part::Router => "router",
            Part::Latent => "latent projections",
            Part::Experts => "routed experts",
            Part::SharedExperts => "shared experts",
            Part::Norms => "norms and residual mixes",
            Part::Head => "output head",
        }
    }
}

/// Where names of a rule are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole name.
    Model,
    /// After `model.layers.N.`, in any layer.
    Layer,
    /// The same, in layers with this attention.
    Attention(LayerKind),
}

/// How a weight is divided over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Every rank has all of it.
    Whole,
    /// Rows (or entries), by head. Heads lie one after the other, so a rank's rows are contiguous, interleaved or not:
    /// `kv_b_proj` has keys and values of a head side by side, and padding beyond the last head belongs to nobody.
    HeadRows,
    /// Columns, by head.
    HeadColumns,
    /// Rows, by width of the MLP.
    WidthRows,
    /// Columns, by width of the MLP.
    WidthColumns,
    /// Rows, by token id.
    VocabularyRows,
    /// Columns, by channel of the latent space.
    LatentColumns,
    /// Rows of every expert; or all of some experts.
    ExpertRows,
    /// Columns of every expert, in whole groups of 32 for MXFP4; or all of some experts.
    ExpertColumns,
    /// One entry per expert: whole, or those of some experts.
    ExpertIds,
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// For people.
    pub part: Part,
    /// Where `name` is valid.
    pub scope: Scope,
    /// Name without `.weight`, `.weight_packed` or `.weight_scale`.
    pub name: &'static str,
    /// The rule.
    pub how: How,
}

const fn rule(part: Part, scope: Scope, name: &'static str, how: How) -> Rule {
    Rule { part, scope, name, how }
}

const KDA: Scope = Scope::Attention(LayerKind::Kda);
const MLA: Scope = Scope::Attention(LayerKind::Mla);
use Scope::{Layer, Model};

/// Every weight of the family.
pub const RULES: [Rule; 51] = [
    rule(Part::Embedding, Model, "model.embed_tokens", How::Whole),
    rule(Part::Norms, Model, "model.norm", How::Whole),
    rule(Part::Norms, Model, "model.output_attn_res_norm", How::Whole),
    rule(Part::Norms, Model, "model.output_attn_res_proj", How::Whole),
    rule(Part::Head, Model, "lm_head", How::VocabularyRows),
    rule(Part::Norms, Layer, "input_layernorm", How::Whole),
    rule(Part::Norms, Layer, "post_attention_layernorm", How::Whole),
    rule(Part::Norms, Layer, "self_attention_res_norm", How::Whole),
    rule(Part::Norms, Layer, "self_attention_res_proj", How::Whole),
    rule(Part::Norms, Layer, "mlp_res_norm", How::Whole),
    rule(Part::Norms, Layer, "mlp_res_proj", How::Whole),
    rule(Part::Kda, KDA, "self_attn.q_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.k_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.v_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.q_conv1d", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.k_conv1d", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.v_conv1d", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.f_a_proj", How::Whole),
    rule(Part::Kda, KDA, "self_attn.f_b_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.b_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.g_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.g_a_proj", How::Whole),
    rule(Part::Kda, KDA, "self_attn.g_b_proj", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.A_log", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.dt_bias", How::HeadRows),
    rule(Part::Kda, KDA, "self_attn.o_norm", How::Whole),
    rule(Part::Kda, KDA, "self_attn.o_proj", How::HeadColumns),
    rule(Part::Mla, MLA, "self_attn.q_proj", How::HeadRows),
    rule(Part::Mla, MLA, "self_attn.q_a_proj", How::Whole),
    rule(Part::Mla, MLA, "self_attn.q_a_layernorm", How::Whole),
    rule(Part::Mla, MLA, "self_attn.q_b_proj", How::HeadRows),
    rule(Part::Mla, MLA, "self_attn.kv_a_proj_with_mqa", How::Whole),
    rule(Part::Mla, MLA, "self_attn.kv_a_layernorm", How::Whole),
    rule(Part::Mla, MLA, "self_attn.kv_b_proj", How::HeadRows),
    rule(Part::Mla, MLA, "self_attn.g_proj", How::HeadRows),
    rule(Part::Mla, MLA, "self_attn.o_proj", How::HeadColumns),
    rule(Part::DenseMlp, Layer, "mlp.gate_proj", How::WidthRows),
    rule(Part::DenseMlp, Layer, "mlp.up_proj", How::WidthRows),
    rule(Part::DenseMlp, Layer, "mlp.down_proj", How::WidthColumns),
    rule(Part::Router, Layer, "block_sparse_moe.gate", How::Whole),
    rule(Part::Router, Layer, "block_sparse_moe.gate.e_score_correction_bias", How::Whole),
    rule(Part::Latent, Layer, "block_sparse_moe.routed_expert_down_proj", How::Whole),
    rule(Part::Latent, Layer, "block_sparse_moe.routed_expert_norm", How::Whole),
    rule(Part::Latent, Layer, "block_sparse_moe.routed_expert_up_proj", How::LatentColumns),
    rule(Part::Experts, Layer, "block_sparse_moe.experts.slots", How::ExpertIds),
    rule(Part::Experts, Layer, "block_sparse_moe.experts.w1", How::ExpertRows),
    rule(Part::Experts, Layer, "block_sparse_moe.experts.w3", How::ExpertRows),
    rule(Part::Experts, Layer, "block_sparse_moe.experts.w2", How::ExpertColumns),
    rule(Part::SharedExperts, Layer, "block_sparse_moe.shared_experts.gate_proj", How::WidthRows),
    rule(Part::SharedExperts, Layer, "block_sparse_moe.shared_experts.up_proj", How::WidthRows),
    rule(Part::SharedExperts, Layer, "block_sparse_moe.shared_experts.down_proj", How::WidthColumns),
];

/// Which way routed experts are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertSplit {
    /// Every rank has a slice of every expert: loads are equal whatever the router says.
    #[default]
    Width,
    /// Every rank has some experts.
    Id,
}

/// A rank's share of a tensor: `[start, start + len)` of axis `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Counted from the outermost.
    pub axis: usize,
    /// First index.
    pub start: u64,
    /// Number of indices.
    pub len: u64,
}

/// A model divided over ranks, seen from one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// This rank, counted from 0.
    pub rank: u64,
    /// Ranks.
    pub ranks: u64,
    /// How routed experts are divided.
    pub experts: ExpertSplit,
}

impl Split {
    /// Check that everything that is divided comes out in whole pieces.
    pub fn new(config: &KimiConfig, rank: u64, ranks: u64, experts: ExpertSplit) -> Result<Self, SplitError> {
        if ranks == 0 {
            return Err(SplitError::NoRanks);
        }
        if rank >= ranks {
            return Err(SplitError::NoSuchRank { rank, ranks });
        }
        let pieces = pieces(config, experts);
        let common = pieces.iter().fold(0, |a, (_, n)| gcd(a, *n));
        match pieces.into_iter().find(|(_, n)| !n.is_multiple_of(ranks)) {
            None => Ok(Self { rank, ranks, experts }),
            Some((what, count)) => {
                let possible: Vec<_> = (1..=common.min(1024)).filter(|n| common.is_multiple_of(*n)).collect();
                let list: Vec<_> = possible.iter().map(u64::to_string).collect();
                let possible = match &list[..] {
                    [one] => format!("{one} rank"),
                    [first @ .., last] => format!("{} or {last} ranks", first.join(", ")),
                    [] => unreachable!("1 divides everything"),
                };
                Err(SplitError::Indivisible { what, count, ranks, possible })
            }
        }
    }

    /// The rank's share of a tensor of this rule, `None` = all of it. `dims` are the graph's: one entry per head for what a
    /// checkpoint pads or stores with axes of length 1.
    pub fn cut(&self, rule: &Rule, name: &str, dims: &[u64]) -> Option<Cut> {
        // A stack of experts has the expert as its first axis; a tensor of one expert has not.
        let stacked = is_expert(name) && dims.len() == 3;
        let (rows, columns) = (usize::from(stacked), dims.len() - 1);
        let axis = match (rule.how, self.experts) {
            (How::Whole, _) | (How::ExpertIds, ExpertSplit::Width) => return None,
            (How::HeadRows | How::WidthRows | How::VocabularyRows, _) => 0,
            (How::HeadColumns | How::WidthColumns | How::LatentColumns, _) => columns,
            (How::ExpertRows, ExpertSplit::Width) => rows,
            (How::ExpertColumns, ExpertSplit::Width) => columns,
            (How::ExpertIds | How::ExpertRows | How::ExpertColumns, ExpertSplit::Id) => 0,
        };
        let len = dims[axis] / self.ranks;
        (self.ranks > 1).then_some(Cut { axis, start: self.rank * len, len })
    }

    /// The model that one rank's graph computes, but for the head and the way out of the latent space.
    pub(super) fn narrow(&self, config: &KimiConfig) -> KimiConfig {
        let mut narrow = config.clone();
        narrow.kda.heads /= self.ranks;
        narrow.mla.heads /= self.ranks;
        narrow.intermediate_size /= self.ranks;
        narrow.moe.intermediate_size /= self.ranks;
        narrow
    }
}

/// What is divided, and into how many pieces at most.
fn pieces(config: &KimiConfig, experts: ExpertSplit) -> Vec<(String, u64)> {
    let mut list = vec![
        ("KDA heads".to_owned(), config.kda.heads),
        ("MLA heads".to_owned(), config.mla.heads),
        ("rows of the vocabulary".to_owned(), config.vocab_size),
    ];
    if (0..config.layers.len()).any(|l| !config.has_experts(l)) {
        list.push(("channels of the dense MLP".to_owned(), config.intermediate_size));
    }
    let moe = &config.moe;
    if moe.experts == 0 {
        return list;
    }
    match (experts, config.expert_format) {
        (ExpertSplit::Id, _) => list.push(("experts".to_owned(), moe.experts)),
        (ExpertSplit::Width, ExpertFormat::Plain) => {
            list.push(("channels of an expert".to_owned(), moe.intermediate_size));
        }
        (ExpertSplit::Width, ExpertFormat::Mxfp4) => {
            let what = format!("groups of 32 in the expert width of {}", moe.intermediate_size);
            list.push((what, moe.intermediate_size / 32));
        }
    }
    if moe.shared > 0 {
        // By the width of one, so that the model of a rank has as many of them.
        list.push(("channels of a shared expert".to_owned(), moe.intermediate_size));
    }
    list.extend(moe.latent.map(|n| ("channels of the latent space".to_owned(), n)));
    list
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Rule {
    /// The rule of a weight of the graph, or of a stored tensor.
    pub fn of(config: &KimiConfig, name: &str) -> Result<&'static Rule, SplitError> {
        let missing = || SplitError::Rule { label: name.to_owned(), reason: "no slicing rule".to_owned() };
        let inner = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let layer = inner.and_then(|(layer, _)| layer.parse::<usize>().ok());
        let kind = layer.map(|l| config.layers.get(l).copied().ok_or_else(missing)).transpose()?;
        let local = inner.map_or(name, |(_, rest)| rest);
        let base = [".weight", ".weight_packed", ".weight_scale"].iter().find_map(|s| local.strip_suffix(s));
        let base = of_stack(base.unwrap_or(local));
        let fits = |rule: &&Rule| {
            rule.name == base
                && match rule.scope {
                    Scope::Model => kind.is_none(),
                    Scope::Layer => kind.is_some(),
                    Scope::Attention(wanted) => kind == Some(wanted),
                }
        };
        RULES.iter().find(fits).ok_or_else(missing)
    }
}

/// `….experts.17.w1` is ruled as `….experts.w1`.
fn of_stack(name: &str) -> String {
    match name.split_once(".experts.") {
        Some((layer, rest)) => {
            let matrix = rest.split_once('.').filter(|(e, _)| e.parse::<u64>().is_ok()).map_or(rest, |(_, m)| m);
            format!("{layer}.experts.{matrix}")
        }
        None => name.to_owned(),
    }
}
