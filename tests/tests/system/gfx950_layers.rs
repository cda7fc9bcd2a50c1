//! A small Kimi K3 with the published widths of heads on the emulated MI355X, beside the CPU backend in fast mode.
//!
//! Three questions, as the kernels' users would ask them. (a) Does each op (`each_op`), and each layer as a whole (`each_layer`),
//! given the reference's own inputs, give the reference's outputs? (b) Left to itself, but with the reference's choice of experts, are
//! the logits near (`whole`)? (c) And with its own choice, how often does it choose otherwise?
//!
//! Layers and the whole model run with the fused ops that each device has: the plugin's as it serves, the CPU's in their parts.
//!
//! The steps are a prompt, tokens one by one, and guesses that are verified and replayed, each in the program that the engine would
//! prepare for as many tokens: one token alone takes other kernels than a prompt.

mod each_layer;
mod each_op;
mod whole;

use tokenspeed_backend_api::{
    abi::ts_table_delta,
    backend::Device,
    dtype::DType,
    graph::ComponentKind,
    loader::{SearchPaths, load},
    step::StepData,
};
use tokenspeed_core::lower::Capacity;
use tokenspeed_models::{
    config,
    kimi::{GraphOptions, Graphs, KimiWeights},
    weights::Checkpoint,
};
use tokenspeed_reference_cpu as _;
use tokenspeed_server::cli::{Cli, Command, tiny};

use crate::support::{
    lockstep::{Fused, Side, pair},
    models::Folder,
};
use clap::Parser as _;

/// Options of factors in e4m3.
const FP8: &[(&str, &str)] = &[("precision", "fp8")];
const PAGE: usize = 64;
/// Programs, in the order that [`Model::new`] makes them in.
const WHOLE: usize = 0;
const ONE: usize = 1;
const VERIFY: usize = 2;
const REPLAY: usize = 3;
/// Rows that verify at once: a request's guesses and a branch of them.
const ROWS: u32 = 2;
/// Guesses of a step, the branch's included.
const GUESSES: usize = 4;
/// Guesses that turn out right, round by round; a branch's one guess never does.
const RIGHT: [usize; 2] = [2, 3];

/// Lengths of a run.
#[derive(Clone, Copy)]
struct Lengths {
    prompt: usize,
    decoded: usize,
}

/// What has to be shown: 64 tokens of prompt, a whole chunk of the recurrent layers, and 32 one by one.
const LENGTHS: Lengths = Lengths { prompt: 64, decoded: 32 };

impl Lengths {
    fn pages(self) -> usize {
        (self.prompt + self.decoded + RIGHT.len() * GUESSES + 1).div_ceil(PAGE)
    }
}

/// A step, and the program that runs it.
struct Turn {
    program: usize,
    step: StepData,
}

/// Writes a checkpoint with heads as wide as the published ones.
fn written(layers: &str) -> Folder {
    let folder = Folder::new("kimi-real-heads");
    let line =
        ["tokenspeed", "tiny", "kimi-k3", "--force", "--real-heads", "--layers", layers, "--out", &folder.model()];
    let Command::Tiny(command) = Cli::try_parse_from(line).expect("known options").command else { panic!("tiny") };
    tiny::run(command).expect("written");
    folder
}

fn devices(plugin: &str, options: &[(&str, &str)]) -> [Device; 2] {
    let none = SearchPaths::only([]);
    let open = |name: &str, options: &[(&str, &str)]| {
        let backend = load(name, &none).unwrap_or_else(|e| panic!("{e}"));
        backend.open(0, options).unwrap_or_else(|e| panic!("{e}"))
    };
    [open("reference-cpu", &[("mode", "fast"), ("threads", "1")]), open(plugin, options)]
}

/// The model on both devices.
struct Model {
    graphs: Graphs,
    lengths: Lengths,
    /// The CPU's and the plugin's.
    sides: [Side; 2],
    _folder: Folder,
}

impl Model {
    fn new(plugin: &str, options: &[(&str, &str)], fused: Fused, latent: DType, lengths: Lengths) -> Self {
        let folder = written("5");
        let config = config::from_kimi(&folder.path().join("config.json"), None).expect("a configuration");
        let checkpoint = Checkpoint::open(&folder.path().join("model.safetensors.index.json")).expect("it opens");
        let weights = KimiWeights::open(checkpoint, &config).expect("it is complete");
        let graphs = Graphs::new(&config, GraphOptions { latent, candidates: GUESSES as u64, ..GraphOptions::EXACT });
        let capacity = |tokens: usize| Capacity {
            tokens: tokens as u32,
            rows: ROWS,
            logit_rows: tokens as u32,
            table_rows: 1,
            blocks_per_row: lengths.pages() as u32,
            block_tokens: PAGE as u32,
            blocks: 1 + lengths.pages() as u32,
            states: 4,
        };
        let [verify, replay] = [&graphs.verify, &graphs.replay].map(|g| g.as_ref().expect("asked for"));
        let programs = [
            (&graphs.forward, capacity(lengths.prompt)),
            (&graphs.forward, capacity(1)),
            (verify, capacity(GUESSES)),
            (replay, capacity(GUESSES)),
        ];
        let sides = pair(devices(plugin, options), fused, &programs, &weights, 1 << 16);
        Self { graphs, lengths, sides, _folder: folder }
    }

    /// The prompt as one step, then one token at a time, then guesses, and a token behind them.
    fn turns(&self) -> Vec<Turn> {
        let Lengths { prompt, decoded } = self.lengths;
        let ids: Vec<i32> = (0..(prompt + decoded + 16) as i32).map(|i| (i * i * 7 + i * 3 + 5) % 256).collect();
        let mut turns = vec![Turn { program: WHOLE, step: StepData::from_spans(&[(0, 0, &ids[..prompt])]) }];
        let one = |at: usize| Turn { program: ONE, step: StepData::from_spans(&[(0, at as u32, &ids[at..=at])]) };
        turns.extend((prompt..prompt + decoded).map(one));
        let mut at = prompt + decoded;
        for right in RIGHT {
            let (behind, branch) = (at as u32, [ids[at] ^ 1]);
            let chain = &ids[at..at + GUESSES - branch.len()];
            turns.push(Turn {
                program: VERIFY,
                step: StepData::from_spans(&[(0, behind, chain), (0, behind, &branch)]),
            });
            turns.push(Turn { program: REPLAY, step: StepData::from_spans(&[(0, behind, &chain[..right])]) });
            at += right;
        }
        turns.push(one(at));
        // A state is read from one slot and written to another, as when the one read is cached. What verifies writes none, but keeps
        // its records in the slot that the replay behind it writes.
        let mut slots = [1, 2];
        for Turn { program, step } in &mut turns {
            step.logit_rows = (0..step.tokens.len() as u32).collect();
            for row in &mut step.rows {
                [row.state_read, row.state_write] = slots;
                row.state_tokens = row.computed;
            }
            if *program != VERIFY {
                slots.reverse();
            }
        }
        let paged = |kind: &ComponentKind| matches!(kind, ComponentKind::Paged { .. });
        let pages = self.lengths.pages() as u32;
        for component in 0..self.graphs.forward.components.iter().filter(|c| paged(&c.kind)).count() as u32 {
            let page = |index| ts_table_delta { component, table_row: 0, index, block: pages - index };
            turns[0].step.deltas.extend((0..pages).map(page));
        }
        turns
    }
}
