//! (b) The whole model left to itself with the reference's choice of experts, and (c) with its own: a prompt, tokens one by one, and guesses
//! that are verified and replayed.

use tokenspeed_backend_api::{catalogue::Role, dtype::DType, op::OpKind, step::StepView, tensor::Tensor};

use super::{FP8, GUESSES, LENGTHS, Lengths, Model, REPLAY, RIGHT, Turn, WHOLE};
use crate::{
    gfx950::emulated,
    support::{
        lockstep::{Fused, Side},
        models,
    },
};

/// What became of a run that was left to itself.
#[derive(Debug)]
struct Run {
    /// Root mean square of the differences of logits, over the logits' standard deviation.
    rms: f64,
    /// Positions whose reference margin exceeds 0.1 and whose best token differs.
    wrong: usize,
    /// Of so many positions.
    #[expect(dead_code, reason = "printed with the rest")]
    positions: usize,
    /// Chosen experts that the reference did not choose, and all choices.
    flipped: (usize, usize),
}

fn free_run(options: &[(&str, &str)], latent: DType, lengths: Lengths, forced: bool) -> Run {
    let plugin = emulated(false);
    let mut model = Model::new(&plugin, options, Fused::Own, latent, lengths);
    let turns = model.turns();
    let forward = &model.graphs.forward;
    let vocab = forward.values[forward.logits.expect("a model has logits")].inner[0] as usize;
    let [cpu, gpu] = &mut model.sides;
    let (mut error, mut power, mut positions, mut wrong, mut flipped) = (0f64, 0f64, 0, 0, (0, 0));
    for Turn { program, step } in &turns {
        let block = step.to_bytes();
        let view = StepView::new(&block).unwrap();
        cpu.begin(*program, step);
        gpu.begin(*program, step);
        let expands = (0..gpu.n_ops()).any(|index| gpu.implementation(index).contains("expanded in e4m3"));
        assert_eq!(expands, options.contains(&("mla_prefill", "expanded")) && *program == WHOLE);
        // Choices of experts, layer by layer: each side's ops are its own, but for those that choose.
        let mut chosen = Vec::new();
        for index in 0..cpu.n_ops() {
            cpu.run(index);
            if cpu.op(index).0 == OpKind::RouterTopk {
                let outputs = outputs(cpu, index, &view);
                chosen.push(outputs.map(|(operand, tensor)| cpu.read(index, operand, &tensor)));
            }
        }
        let mut chosen = chosen.into_iter();
        for index in 0..gpu.n_ops() {
            gpu.run(index);
            if gpu.op(index).0 != OpKind::RouterTopk {
                continue;
            }
            let theirs = chosen.next().expect("as many layers with experts");
            let [(ids, tensor), (weights, _)] = outputs(gpu, index, &view);
            let ours = gpu.read(index, ids, &tensor);
            for (a, b) in ours.chunks(tensor.row_bytes()).zip(theirs[0].chunks(tensor.row_bytes())) {
                let b: Vec<&[u8]> = b.chunks(4).collect();
                flipped.0 += a.chunks(4).filter(|id| !b.contains(id)).count();
                flipped.1 += b.len();
            }
            if forced {
                gpu.write(index, ids, &theirs[0]);
                gpu.write(index, weights, &theirs[1]);
            }
        }
        assert!(chosen.next().is_none(), "as many layers with experts");
        // A replay has no logits.
        if *program == REPLAY {
            continue;
        }
        let n = step.logit_rows.len();
        let [ours, theirs] = [&*gpu, &*cpu].map(|side| side.logits(n * vocab));
        for (a, b) in ours.chunks(vocab).zip(theirs.chunks(vocab)) {
            let mean = b.iter().map(|x| f64::from(*x)).sum::<f64>() / vocab as f64;
            for (x, y) in a.iter().zip(b) {
                error += f64::from(x - y).powi(2);
                power += (f64::from(*y) - mean).powi(2);
            }
            let best = |row: &[f32]| (0..vocab).max_by(|i, j| row[*i].total_cmp(&row[*j])).expect("not empty");
            let top = best(b);
            let second = (0..vocab).filter(|i| *i != top).map(|i| b[i]).fold(f32::MIN, f32::max);
            positions += 1;
            wrong += usize::from(b[top] - second > 0.1 && best(a) != top);
        }
    }
    let guesses = RIGHT.len() * GUESSES;
    assert_eq!(positions, lengths.prompt + lengths.decoded + guesses + 1);
    assert!(flipped.1 > 0);
    Run { rms: (error / power).sqrt(), wrong, positions, flipped }
}

/// Ids and weights of a choice of experts.
fn outputs(side: &Side, index: usize, step: &StepView<'_>) -> [(usize, Tensor); 2] {
    let operands = side.operands(index, step).into_iter().filter(|(_, role, _)| *role == Role::Out);
    let outputs: Vec<_> = operands.map(|(operand, _, tensor)| (operand, tensor)).collect();
    outputs.try_into().expect("ids and weights")
}

#[test]
fn the_whole_model_with_the_references_experts() {
    references_experts(DType::BF16);
}

#[test]
fn the_whole_model_with_the_references_experts_and_an_fp8_cache() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    references_experts(DType::F8E4M3);
}

fn references_experts(latent: DType) {
    let run = free_run(&[], latent, LENGTHS, true);
    println!("{latent}: {run:?}");
    assert!(run.rms <= 0.04 && run.wrong == 0, "{latent}: {run:?}");
}

/// Rounding flips choices that are nearly tied, a few in a hundred; each flip moves the logits.
fn own_experts(options: &[(&str, &str)], latent: DType, lengths: Lengths, rms: f64, share: f64) {
    let run = free_run(options, latent, lengths, false);
    let flipped = run.flipped.0 as f64 / run.flipped.1 as f64;
    println!(
        "{options:?}, {latent}, {} tokens: {:.2}% of the choices differ, {run:?}",
        lengths.prompt,
        100.0 * flipped
    );
    assert!(flipped < share && run.rms < rms, "{latent}: rms {}, share {flipped}", run.rms);
}

#[test]
fn the_whole_model_with_its_own_experts() {
    own_experts(&[], DType::BF16, LENGTHS, 0.5, 0.05);
}

#[test]
fn the_whole_model_with_its_own_experts_and_an_fp8_cache() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    own_experts(&[], DType::F8E4M3, LENGTHS, 0.5, 0.05);
}

#[test]
fn the_whole_model_of_e4m3_factors_with_the_references_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    for latent in [DType::BF16, DType::F8E4M3] {
        let run = free_run(FP8, latent, LENGTHS, true);
        println!("{latent}: {run:?}");
        assert!(run.rms <= 0.25, "{latent}: {run:?}");
    }
}

#[test]
fn the_whole_model_of_e4m3_factors_with_its_own_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    for latent in [DType::BF16, DType::F8E4M3] {
        own_experts(FP8, latent, LENGTHS, 0.45, 0.08);
    }
}

/// Everything in e4m3 that can be, the keys and values of a long prompt included.
const EXPANDED_FP8: &[(&str, &str)] = &[("precision", "fp8"), ("mla_prefill", "expanded")];
/// More tokens in a step than 256, from which on latent attention is expanded.
const LONG: Lengths = Lengths { prompt: 320, ..LENGTHS };

#[test]
fn the_whole_model_of_e4m3_factors_behind_an_expanded_prompt_with_the_references_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    let run = free_run(EXPANDED_FP8, DType::F8E4M3, LONG, true);
    println!("{run:?}");
    assert!(run.rms <= 0.25, "{run:?}");
}

#[test]
fn the_whole_model_of_e4m3_factors_behind_an_expanded_prompt_with_its_own_experts() {
    if !models::long_tests() {
        return eprintln!("not run: a long test");
    }
    own_experts(EXPANDED_FP8, DType::F8E4M3, LONG, 0.45, 0.08);
}
