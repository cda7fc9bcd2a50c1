//! The draft model of `--speculative-algorithm eagle3` and `draft-model`: opened, held against the target, and joined to
//! its graphs and weights.
//!
//! A draft for another target costs no wrong token, only everything it was meant to gain, and silently. So whatever can be
//! seen to be wrong is refused: sizes, layers, and tokens that are spelled differently.

use std::{path::Path, sync::Arc};

use tokenspeed_backend_api::graph::{Graph, WeightSource};
use tokenspeed_core::speculation::DraftModel;
use tokenspeed_models::{
    config::{ModelConfig, from_eagle3},
    draft_model,
    eagle3::{self, Eagle3Config, Eagle3Weights, Joined},
    graph::branches,
    loader::{LoadOptions, Model, Notice, Weights},
    text::Tokenizer,
    weights::Checkpoint,
};

use super::text;
use crate::{
    cli::{
        engine_options::{EngineOptions, SpeculativeAlgorithm},
        model_path::{ModelPath, resolve_model},
    },
    error::CliError,
};

/// An opened draft.
pub(super) enum Draft {
    /// Reads the target's hidden states.
    Eagle3 {
        /// What it is.
        config: Box<Eagle3Config>,
        /// Its weights.
        weights: Box<Eagle3Weights>,
    },
    /// Reads tokens.
    Small(Box<Model>),
}

/// Graphs of both models.
pub(super) struct DraftedGraphs {
    /// The target's, in the order of its passes, then the draft's.
    pub graphs: Vec<Graph>,
    /// Which of them the draft's first and next pass are.
    pub passes: [usize; 2],
}

fn option(options: &EngineOptions) -> &'static str {
    match options.speculative_algorithm {
        SpeculativeAlgorithm::Eagle3 => "--speculative-algorithm eagle3",
        _ => "--speculative-algorithm draft-model",
    }
}

impl Draft {
    /// Open what the options name, as the draft of `target`; `None` if they name none.
    pub fn open(options: &EngineOptions, target: &Model, load: &LoadOptions) -> Result<Option<Self>, CliError> {
        let wants =
            matches!(options.speculative_algorithm, SpeculativeAlgorithm::Eagle3 | SpeculativeAlgorithm::DraftModel);
        let path = match (&options.speculative_draft_model, wants) {
            // A stray one was refused with the other idle options.
            (_, false) => return Ok(None),
            (None, true) => {
                let what = "this algorithm needs a draft model";
                return Err(CliError::usage(what, option(options), "give it as --speculative-draft-model"));
            }
            (Some(path), true) => path,
        };
        let fail = |e: String| CliError::new(e, path.clone(), "give another --speculative-draft-model, or none");
        let place = resolve_model(path)?;
        if options.speculative_algorithm == SpeculativeAlgorithm::DraftModel {
            let path = match &place {
                ModelPath::Dummy(path) => format!("dummy:{}", path.display()).into(),
                ModelPath::Folder(path) | ModelPath::Gguf(path) => path.clone(),
            };
            let load = LoadOptions { latent_eps: None, ..*load };
            let model = Model::open(&path, &load).map_err(|e| fail(e.to_string()))?;
            fits(&model, target).map_err(fail)?;
            return Ok(Some(Self::Small(Box::new(model))));
        }
        let ModelConfig::Kimi(kimi) = &target.config else {
            let what =
                format!("EAGLE3 drafts read hidden states that {} models do not keep", target.config.architecture());
            return Err(CliError::usage(what, option(options), "use draft-model or ngram with this model"));
        };
        let ModelPath::Folder(folder) = &place else {
            return Err(fail("an EAGLE3 draft is a folder with config.json and its weights".into()));
        };
        let config = from_eagle3(&folder.join("config.json")).map_err(|e| fail(e.to_string()))?;
        config.taps_of(kimi).map_err(|e| fail(e.to_string()))?;
        let checkpoint = Checkpoint::open(&weights_file(folder)).map_err(|e| fail(e.to_string()))?;
        let weights = Eagle3Weights::open(checkpoint, &config).map_err(|e| fail(e.to_string()))?;
        Ok(Some(Self::Eagle3 { config: Box::new(config), weights: Box::new(weights) }))
    }

    /// As the engine sees it.
    pub fn model(&self) -> DraftModel {
        match self {
            Self::Eagle3 { config, weights } => {
                DraftModel { vocab_size: config.draft_vocab_size as u32, token_ids: weights.token_ids().map(Arc::from) }
            }
            Self::Small(model) => DraftModel { vocab_size: model.config.vocab_size() as u32, token_ids: None },
        }
    }

    /// The graphs of both, for up to `candidates` tokens of a request in a step; `verifies`: the target checks guesses in a
    /// pass of its own; `branching`: they may be trees.
    pub fn graphs(
        &self,
        target: &Model,
        candidates: u32,
        verifies: bool,
        branching: bool,
    ) -> Result<DraftedGraphs, CliError> {
        let candidates = if verifies { candidates } else { 0 };
        // The draft's own rows of guesses are made again anyway.
        let of_target = |name: &str| name != "draft";
        match self {
            Self::Small(draft) => {
                let mut graphs = match target.verifying(candidates) {
                    Some(graphs) if verifies => Vec::from(graphs),
                    _ if branching => vec![target.graph.clone(), branches::commit(&target.graph, of_target)],
                    _ => vec![target.graph.clone()],
                };
                if branching && verifies {
                    branches::move_branches(&mut graphs[2], of_target);
                }
                let draft = draft_model::attach(draft.graph.clone(), &mut graphs);
                graphs.push(draft);
                let at = graphs.len() - 1;
                Ok(DraftedGraphs { graphs, passes: [at, at] })
            }
            Self::Eagle3 { config, weights } => {
                let refused = || CliError::usage("this model has no EAGLE3 drafts", "--speculative-algorithm", "");
                let ModelConfig::Kimi(kimi) = &target.config else { return Err(refused()) };
                let taps = config.taps_of(kimi).map_err(|e| CliError::new(e.to_string(), "", ""))?;
                let mut graphs = target.tapped(candidates, taps).ok_or_else(refused)?;
                let own_embedding = weights.has_embedding();
                let options = eagle3::Options { latent: target.kv_dtype, own_embedding };
                let draft = eagle3::Graphs::attach(config, &mut graphs, options);
                if let Some(replay) = graphs.replay.as_mut().filter(|_| branching) {
                    branches::move_branches(replay, of_target);
                }
                let mut all = vec![graphs.forward];
                all.extend(graphs.verify);
                all.extend(graphs.replay);
                let at = all.len();
                all.extend([draft.first, draft.next]);
                Ok(DraftedGraphs { graphs: all, passes: [at, at + 1] })
            }
        }
    }

    /// Both models' weights.
    pub fn join(self, target: Weights) -> Arc<dyn WeightSource> {
        let draft: Box<dyn WeightSource> = match self {
            Self::Eagle3 { weights, .. } => weights,
            Self::Small(model) => Box::new(draft_model::Prefixed(model.weights)),
        };
        Arc::new(Joined::<Box<dyn WeightSource>> { target: Box::new(target), draft })
    }

    /// What the reader of a small model had to say.
    pub fn notices(&self) -> &[Notice] {
        match self {
            Self::Eagle3 { .. } => &[],
            Self::Small(model) => &model.notices,
        }
    }

    /// For the table printed at start.
    pub fn describe(&self) -> String {
        match self {
            Self::Eagle3 { config, weights } => {
                let ignored = [&config.ignored_fields[..], weights.unknown()].concat();
                let ignored = match ignored.is_empty() {
                    true => String::new(),
                    false => format!(" (not known and ignored: {})", ignored.join(", ")),
                };
                format!("guesses from an EAGLE3 draft{ignored}")
            }
            Self::Small(model) => {
                format!("guesses from {} ({} layers)", model.name, model.config.n_layers())
            }
        }
    }
}

fn weights_file(folder: &Path) -> std::path::PathBuf {
    let index = folder.join("model.safetensors.index.json");
    if index.exists() { index } else { folder.join("model.safetensors") }
}

/// Whether a small model knows the target's tokens, by the same numbers. Random weights need no tokenizer.
fn fits(draft: &Model, target: &Model) -> Result<(), String> {
    if !matches!(draft.config, ModelConfig::Llama(_)) {
        return Err(format!("a draft model is of the Llama family, not {}", draft.config.architecture()));
    }
    // A target whose tokenizer is missing or broken is refused elsewhere where it matters.
    let ours = text::tokenizer_of(target).ok().flatten();
    let (own, all) = (draft.config.vocab_size(), target.config.vocab_size());
    let needed = ours.as_ref().map_or(all, |t| u64::from(t.vocab_size()).min(all));
    if own < needed {
        return Err(format!(
            "the draft's vocabulary has {own} entries, the target's {needed}: they share no tokenizer"
        ));
    }
    let (Some(ours), Some(theirs)) = (ours, text::tokenizer_of(draft).map_err(|e| e.to_string())?) else {
        return Ok(());
    };
    let spelled = |t: &Tokenizer, id| t.vocabulary().bytes(id).map(<[u8]>::to_vec).ok();
    match (0..ours.vocab_size()).find(|&id| spelled(&ours, id) != spelled(&theirs, id)) {
        Some(id) => Err(format!("token {id} is not the same for the draft and the target: they share no tokenizer")),
        None => Ok(()),
    }
}
