//! A small Kimi K3 with the published widths of heads on the emulated MI355X, beside the CPU backend in fast mode.
//!
//! Three questions, as the kernels' users would ask them. (a) Does each op, given the reference's own inputs, give the
//! reference's outputs? (b) Left to itself, but with the reference's choice of experts, are the logits near? (c) And with
//! its own choice, how often does it choose otherwise?

use tokenspeed_backend_api::{
    backend::Device,
    catalogue::{self, Role},
    dtype::DType,
    graph::{ComponentKind, Graph},
    loader::{SearchPaths, load},
    op::OpKind,
    quant,
    step::{StepData, StepView},
};
use tokenspeed_core::lower::Capacity;
use tokenspeed_models::{
    config,
    kimi::{GraphOptions, Graphs, KimiWeights},
    weights::Checkpoint,
};
use tokenspeed_reference_cpu as _;
use tokenspeed_server::cli::{Cli, Command, tiny};

use crate::{
    gfx950::emulated,
    support::{
        lockstep::{Side, pair},
        models::{self, Folder},
    },
};
use clap::Parser as _;

/// Tokens of the prompt and generated after it.
const PROMPT: usize = 64;
const DECODED: usize = 32;
const TABLE_ROWS: u32 = 1;

/// A checkpoint with heads as wide as the published ones.
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

fn sides(plugin: &str, options: &[(&str, &str)], folder: &Folder, latent: DType) -> (Graph, [Side; 2]) {
    let config = config::from_kimi(&folder.path().join("config.json"), None).expect("a configuration");
    let checkpoint = Checkpoint::open(&folder.path().join("model.safetensors.index.json")).expect("it opens");
    let weights = KimiWeights::open(checkpoint, &config).expect("it is complete");
    let graph = Graphs::new(&config, GraphOptions { latent, ..GraphOptions::EXACT }).forward;
    let capacity = Capacity {
        tokens: PROMPT as u32,
        rows: 2,
        logit_rows: PROMPT as u32,
        table_rows: TABLE_ROWS,
        blocks_per_row: 4,
        block_tokens: 64,
        blocks: 6,
        states: 4,
    };
    let pair = pair(devices(plugin, options), &graph, capacity, &weights, 1 << 16);
    (graph, pair)
}

/// Tokens `ids` of the one request behind `computed` others; every row's logits are wanted. State slots alternate, as when a
/// cached state is read and another written.
fn step(graph: &Graph, computed: usize, ids: &[i32]) -> StepData {
    let mut step = StepData::from_spans(&[(0, computed as u32, ids)]);
    step.logit_rows = (0..ids.len() as u32).collect();
    let row = &mut step.rows[0];
    (row.state_read, row.state_write, row.state_tokens) = (1, 1, computed as u32);
    if computed == 0 {
        let paged = graph.components.iter().filter(|c| matches!(c.kind, ComponentKind::Paged { .. })).count();
        for component in 0..paged as u32 {
            step.deltas.extend((0..3).map(|index| tokenspeed_backend_api::abi::ts_table_delta {
                component,
                table_row: 0,
                index,
                block: 3 - index,
            }));
        }
    }
    step
}

/// The prompt as one step, then one token at a time.
fn steps(graph: &Graph) -> Vec<StepData> {
    let ids: Vec<i32> = (0..(PROMPT + DECODED) as i32).map(|i| (i * i * 7 + i * 3 + 5) % 256).collect();
    let decoded = (PROMPT..ids.len()).map(|at| step(graph, at, &ids[at..at + 1]));
    std::iter::once(step(graph, 0, &ids[..PROMPT])).chain(decoded).collect()
}

fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    quant::dequantize_row(dtype, bytes, &mut out);
    out
}

/// NMSE, and the largest error relative to the reference's rms; of caches and states, which hold few large numbers among
/// many small ones, relative to the largest.
fn distance(ours: &[f32], reference: &[f32], role: Role) -> (f64, f64) {
    let (mut error, mut power, mut largest) = (0f64, 0f64, 0f64);
    for (a, b) in ours.iter().zip(reference) {
        let d = if a == b { 0.0 } else { f64::from(a - b).abs() };
        (error, power, largest) = (error + d * d, power + f64::from(*b).powi(2), largest.max(d));
    }
    let power = power.max(f64::MIN_POSITIVE);
    let rms = (power / reference.len().max(1) as f64).sqrt();
    let peak = reference.iter().fold(0f64, |m, b| m.max(f64::from(b.abs())));
    (error / power, largest / if role == Role::InOut { peak.max(f64::MIN_POSITIVE) } else { rms })
}

/// (a) Every op of every step, fed the reference's inputs.
fn each_op(options: &[(&str, &str)], latent: DType, decoded: usize) {
    let plugin = emulated(true);
    let folder = written("5");
    let (graph, [mut cpu, mut gpu]) = sides(&plugin, options, &folder, latent);
    for step in steps(&graph).iter().take(1 + decoded) {
        let block = step.to_bytes();
        let view = StepView::new(&block).unwrap();
        cpu.begin(step);
        gpu.begin(step);
        for index in 0..cpu.n_ops() {
            let (kind, label) = (cpu.op(index).0, cpu.op(index).1.to_owned());
            let operands = cpu.operands(index, &view);
            for (operand, role, tensor) in &operands {
                if *role != Role::Out {
                    gpu.write(index, *operand, &cpu.read(index, *operand, tensor));
                }
            }
            cpu.run(index);
            gpu.run(index);
            for (operand, role, tensor) in operands.iter().filter(|(_, role, _)| *role != Role::In) {
                let [a, b] = [&gpu, &cpu].map(|side| side.read(index, *operand, tensor));
                if tensor.dtype == DType::U32 || tensor.dtype == DType::I32 {
                    assert_eq!(a, b, "{kind} {label}, operand {operand} {role:?}");
                    continue;
                }
                let (nmse, largest) = distance(&values(tensor.dtype, &a), &values(tensor.dtype, &b), *role);
                let n = tensor.dims().iter().product::<u64>() as usize;
                // The CPU's fast kernels are off by their own share.
                let allowed = catalogue::entry(kind).tolerance.under(gpu.rounding(index), n);
                let (nmse_max, max) = (4.0 * allowed.nmse.max(1e-9), 2.0 * allowed.max_error.max(1e-4));
                assert!(
                    nmse <= nmse_max && largest <= max,
                    "{kind} {label}, operand {operand} {role:?}: NMSE {nmse:.1e}, largest {largest:.1e}"
                );
            }
        }
    }
}

#[test]
fn each_op_given_the_references_inputs() {
    each_op(&[], DType::BF16, 2);
}

#[test]
fn each_op_in_f32_and_with_an_fp8_cache() {
    each_op(&[("precision", "f32")], DType::F32, 1);
    each_op(&[], DType::F8E4M3, 1);
}

#[test]
fn each_op_of_e4m3_factors() {
    each_op(FP8, DType::BF16, 1);
}

/// What became of a run that was left to itself.
struct Run {
    /// Root mean square of the differences of logits, over the logits' standard deviation.
    rms: f64,
    /// Positions whose reference margin exceeds 0.1 and whose best token differs.
    wrong: usize,
    /// Chosen experts that the reference did not choose, and all choices.
    flipped: (usize, usize),
}

fn free_run(options: &[(&str, &str)], latent: DType, forced: bool) -> Run {
    let plugin = emulated(false);
    let folder = written("5");
    let (graph, [mut cpu, mut gpu]) = sides(&plugin, options, &folder, latent);
    let vocab = graph.values[graph.logits.expect("a model has logits")].inner[0] as usize;
    let (mut error, mut power, mut count, mut wrong, mut flipped) = (0f64, 0f64, 0usize, 0, (0, 0));
    for step in steps(&graph) {
        let block = step.to_bytes();
        let view = StepView::new(&block).unwrap();
        cpu.begin(&step);
        gpu.begin(&step);
        for index in 0..cpu.n_ops() {
            cpu.run(index);
            gpu.run(index);
            if cpu.op(index).0 != OpKind::RouterTopk {
                continue;
            }
            for (operand, _, tensor) in cpu.operands(index, &view).iter().filter(|(_, role, _)| *role == Role::Out) {
                let [ours, theirs] = [&gpu, &cpu].map(|side| side.read(index, *operand, tensor));
                if matches!(tensor.dtype, DType::I32 | DType::U32) {
                    let per_token = tensor.row_bytes();
                    for (a, b) in ours.chunks(per_token).zip(theirs.chunks(per_token)) {
                        let chosen: Vec<&[u8]> = b.chunks(4).collect();
                        flipped.0 += a.chunks(4).filter(|id| !chosen.contains(id)).count();
                        flipped.1 += chosen.len();
                    }
                }
                if forced {
                    gpu.write(index, *operand, &theirs);
                }
            }
        }
        let n = step.logit_rows.len();
        let [ours, theirs] = [&gpu, &cpu].map(|side| side.logits(n * vocab));
        for (a, b) in ours.chunks(vocab).zip(theirs.chunks(vocab)) {
            let mean = b.iter().map(|x| f64::from(*x)).sum::<f64>() / vocab as f64;
            for (x, y) in a.iter().zip(b) {
                error += f64::from(x - y).powi(2);
                power += (f64::from(*y) - mean).powi(2);
                count += 1;
            }
            let best = |row: &[f32]| (0..vocab).max_by(|i, j| row[*i].total_cmp(&row[*j])).expect("not empty");
            let top = best(b);
            let second = (0..vocab).filter(|i| *i != top).map(|i| b[i]).fold(f32::MIN, f32::max);
            wrong += usize::from(b[top] - second > 0.1 && best(a) != top);
        }
    }
    assert!(count > 0 && flipped.1 > 0);
    Run { rms: (error / power).sqrt(), wrong, flipped }
}

#[test]
fn the_whole_model_with_the_references_experts() {
    for latent in [DType::BF16, DType::F8E4M3] {
        let run = free_run(&[], latent, true);
        println!("{latent}: rms {:.4} of the logits' deviation", run.rms);
        assert!(run.rms <= 0.04 && run.wrong == 0, "{latent}: rms {}, {} wrong", run.rms, run.wrong);
    }
}

/// Rounding flips choices that are nearly tied, a few in a hundred; each flip moves the logits.
fn own_experts(options: &[(&str, &str)], latent: DType, rms: f64, share: f64) {
    let run = free_run(options, latent, false);
    let flipped = run.flipped.0 as f64 / run.flipped.1 as f64;
    println!("{latent}: rms {:.4}, {:.2}% of the choices differ, {} wrong", run.rms, 100.0 * flipped, run.wrong);
    assert!(flipped < share && run.rms < rms, "{latent}: rms {}, share {flipped}", run.rms);
}

#[test]
fn the_whole_model_with_its_own_experts() {
    own_experts(&[], DType::BF16, 0.5, 0.05);
}

#[test]
fn the_whole_model_with_its_own_experts_and_an_fp8_cache() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    own_experts(&[], DType::F8E4M3, 0.5, 0.05);
}

const FP8: &[(&str, &str)] = &[("precision", "fp8")];

#[test]
fn the_whole_model_of_e4m3_factors_with_the_references_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    for latent in [DType::BF16, DType::F8E4M3] {
        let run = free_run(FP8, latent, true);
        println!("{latent}: rms {:.4} of the logits' deviation, {} wrong", run.rms, run.wrong);
        assert!(run.rms <= 0.25, "{latent}: rms {}, {} wrong", run.rms, run.wrong);
    }
}

#[test]
fn the_whole_model_of_e4m3_factors_with_its_own_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    for latent in [DType::BF16, DType::F8E4M3] {
        own_experts(FP8, latent, 0.45, 0.08);
    }
}
