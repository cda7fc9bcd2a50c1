//! A tiny Kimi K3 and a draft for it, on disk and ready to run.

use crate::variants::SEED;
use std::path::{Path, PathBuf};
use tokenspeed_backend_api::{graph::WeightSource, step::StepData};
use tokenspeed_models::{
    config,
    eagle3::{
        self, Eagle3Config, Eagle3Weights, Joined,
        chain::{Pass, Passes, Place},
        tiny,
        walker::{WalkError, Walker},
    },
    kimi::{self, GraphOptions, KimiWeights},
    weights::Checkpoint,
};

/// Tokens drafted at a time.
pub const WIDTH: usize = 3;
/// The only request.
pub const PLACE: Place = Place { row: 0, slot: 1 };

/// A folder that goes away with its owner.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokenspeed-eagle3-{}-{name}", std::process::id()));
        std::fs::create_dir_all(path.join("target")).expect("a temporary folder");
        std::fs::create_dir_all(path.join("draft")).expect("a temporary folder");
        Self(path)
    }

    pub fn target(&self) -> PathBuf {
        self.0.join("target")
    }

    pub fn draft(&self) -> PathBuf {
        self.0.join("draft")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Both models, read from disk.
pub struct Pair {
    pub target: kimi::Graphs,
    pub draft: eagle3::Graphs,
    pub target_weights: KimiWeights,
    pub draft_weights: Eagle3Weights,
}

impl Pair {
    pub fn open(target: &Path, draft: &Path) -> Self {
        let target_config = config::from_kimi(&target.join("config.json"), None).expect("a target");
        let config = config::from_eagle3(&draft.join("config.json")).expect("a draft");
        let checkpoint = |folder: &Path| Checkpoint::open(&folder.join("model.safetensors")).expect("it opens");
        let target_weights = KimiWeights::open(checkpoint(target), &target_config).expect("complete");
        let draft_weights = Eagle3Weights::open(checkpoint(draft), &config).expect("complete");
        let taps = config.taps_of(&target_config).expect("they fit");
        let options = GraphOptions { candidates: WIDTH as u64 + 1, taps, ..GraphOptions::EXACT };
        let mut target = kimi::Graphs::new(&target_config, options);
        let own_embedding = draft_weights.has_embedding();
        let options = eagle3::Options { latent: options.latent, own_embedding };
        let draft = eagle3::Graphs::attach(&config, &mut target, options);
        Self { target, draft, target_weights, draft_weights }
    }

    /// A tiny target and a random draft.
    pub fn random(folder: &Folder, config: &Eagle3Config, embedding: bool) -> Self {
        let target = kimi::tiny::k3();
        kimi::tiny::write(&folder.target(), &target, SEED).expect("written");
        tiny::write(&folder.draft(), config, SEED + 1, embedding).expect("written");
        Self::open(&folder.target(), &folder.draft())
    }

    pub fn source(&self) -> Joined<&dyn WeightSource> {
        Joined { target: &self.target_weights, draft: &self.draft_weights }
    }

    pub fn run<'a>(&'a self, source: &'a dyn WeightSource) -> Run<'a> {
        Run { pair: self, walker: Walker::new(&self.draft.first.components, source, 1, 256) }
    }
}

/// A pair with its cache.
pub struct Run<'a> {
    pair: &'a Pair,
    walker: Walker<'a>,
}

impl Passes for Run<'_> {
    type Error = WalkError;
    fn run(&mut self, pass: Pass, step: &StepData) -> Result<Vec<Vec<f32>>, WalkError> {
        let target = &self.pair.target;
        let graph = match pass {
            Pass::Forward => &target.forward,
            Pass::Verify => target.verify.as_ref().expect("asked for"),
            Pass::Replay => target.replay.as_ref().expect("asked for"),
            Pass::First => &self.pair.draft.first,
            Pass::Next => &self.pair.draft.next,
        };
        self.walker.run(graph, step)
    }
}

/// A prompt of `n` tokens, another for each `seed`.
pub fn prompt(seed: usize, n: usize) -> Vec<i32> {
    (0..n).map(|i| (3 + (197 * i + 13 * i * i + 71 * seed + 5 * seed * i) % 509) as i32).collect()
}
