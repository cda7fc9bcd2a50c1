//! Tiny checkpoints on disk, and steps of their requests.

use crate::{
    host_walker::{Host, Mode},
    variants,
};
use std::path::PathBuf;
use tokenspeed_backend_api::step::StepData;
use tokenspeed_models::{
    kimi::{GraphOptions, Graphs, KimiConfig, KimiWeights, tiny},
    weights::Checkpoint,
};

/// A folder that goes away with its owner.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokenspeed-kimi-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model ready to run.
pub struct Model {
    pub graphs: Graphs,
    pub weights: KimiWeights,
    _folder: Folder,
}

impl Model {
    pub fn new(name: &str, config: &KimiConfig, options: GraphOptions) -> Self {
        let folder = Folder::new(name);
        tiny::write(&folder.0, config, variants::SEED).expect("a tiny checkpoint");
        let checkpoint = Checkpoint::open(&folder.0.join("model.safetensors.index.json")).expect("it opens");
        let weights = KimiWeights::open(checkpoint, config).expect("it is complete");
        Self { graphs: Graphs::new(config, options), weights, _folder: folder }
    }

    pub fn host(&self, mode: Mode) -> Host<'_> {
        Host::new(&self.graphs.forward, &self.weights, mode)
    }
}

/// A request as the steps see it.
#[derive(Clone, Copy)]
pub struct Request {
    pub row: u32,
    pub computed: u32,
    pub read: u32,
    pub write: u32,
}

/// A step of these requests and their tokens, with logits of every token. A request without tokens must be alone.
pub fn step(spans: &[(Request, &[i32])]) -> StepData {
    let filled: Vec<_> =
        spans.iter().map(|(r, ids)| (r.row, r.computed, if ids.is_empty() { &[0] } else { *ids })).collect();
    let mut step = StepData::from_spans(&filled);
    for (row, (request, ids)) in step.rows.iter_mut().zip(spans) {
        (row.state_read, row.state_write, row.state_tokens) = (request.read, request.write, request.computed);
        row.query_len = ids.len() as u32;
    }
    if spans.iter().any(|(_, ids)| ids.is_empty()) {
        assert_eq!(spans.len(), 1);
        step.tokens.clear();
    }
    step.logit_rows = (0..step.tokens.len() as u32).collect();
    step
}

/// One request from its start, in one step.
pub fn full(host: &mut Host<'_>, model: &Model, ids: &[i32]) -> Vec<Vec<f32>> {
    let request = Request { row: 0, computed: 0, read: 0, write: 1 };
    host.run(&model.graphs.forward, &step(&[(request, ids)]))
}

/// `n` token ids.
pub fn prompt(n: usize) -> Vec<i32> {
    (0..n as i32).map(|i| 3 + (197 * i + 13 * i * i) % 509).collect()
}

/// Largest difference of two runs.
pub fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .flatten()
        .zip(b.iter().flatten())
        .fold(0.0, |m, (a, b)| if (a - b).is_nan() { f32::INFINITY } else { m.max((a - b).abs()) })
}
