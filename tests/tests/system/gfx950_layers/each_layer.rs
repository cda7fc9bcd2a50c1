//! (a) Every layer as a whole: fed what the CPU's layer reads, it leaves what the CPU's layer leaves.
//!
//! What a layer reads and leaves is found in the lists of ops: operands that no op of the layer made before, and those that ops behind
//! the layer or later steps read. So the residual stream and its snapshots are inputs, and latent rows, states, windows and records
//! are outputs as well as the sum. Each row of an output (a token's, a head's state, a token's record) is judged by itself: a mean over
//! all of them would forgive what goes wrong at one token of 64.
//!
//! How far a row may be off follows from a twin: the CPU's own layer with the factors of its products rounded to bf16, as the device
//! rounds them. The limit is [`LIMIT`] times the NMSE of the twin's worst row, for each program, kind of layer and output; where rounding
//! of factors changes nothing (states that a verification must not move, the windows of a replay) not a bit may differ. Rejected: one
//! number for all layers. Behind sharp softmaxes and gates the same rounding does thirty times what it does elsewhere, and a number that
//! allows that lets a wrong scale through. That the limit is tight is shown by bugs, each of which some output exceeds it for.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES},
    catalogue::Role,
    dtype::DType,
    op::OpKind,
    quant,
    step::StepView,
    tensor::Tensor,
};

use super::{GUESSES, LENGTHS, Lengths, Model, ONE, Turn, each_op::values};
use crate::{
    gfx950::emulated,
    support::{
        lockstep::{Fused, Side},
        models,
    },
};

/// A state slot that no step writes.
const NOBODYS_SLOT: u32 = 3;

/// Ops of one layer.
struct Layer {
    name: String,
    kind: &'static str,
    ops: Range<usize>,
}

/// The layers of the program at hand; what stands before and behind them is one, too.
fn layers(side: &Side) -> Vec<Layer> {
    let name = |index: usize| {
        let mut parts = side.op(index).1.split('.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("model"), Some("layers"), Some(n)) => format!("layer {n}"),
            _ => "model".to_owned(),
        }
    };
    let mut out: Vec<Layer> = Vec::new();
    for index in 0..side.n_ops() {
        match out.last_mut() {
            Some(last) if last.name == name(index) => last.ops.end = index + 1,
            _ => out.push(Layer { name: name(index), kind: "", ops: index..index + 1 }),
        }
    }
    for layer in &mut out {
        let has = |kind| layer.ops.clone().any(|index| side.op(index).0 == kind);
        layer.kind = match (has(OpKind::MlaWrite), has(OpKind::Experts)) {
            _ if layer.name == "model" => "embedding or head",
            _ if has(OpKind::KdaReplay) => "KDA, replay",
            (true, true) => MLA,
            (true, false) => "MLA, dense",
            (false, true) => KDA,
            (false, false) => DENSE,
        };
    }
    out
}

/// An operand of an op.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    operand: usize,
    role: Role,
    tensor: Tensor,
}

/// What a layer reads and leaves, each once and in an order that does not depend on which ops are fused: values in that of the ops that
/// made them, caches and tables in that of their places.
struct Edges {
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

fn edges(side: &Side, step: &StepView<'_>, layer: &Layer) -> Edges {
    let of = |index: usize| {
        let operands = side.operands(index, step).into_iter();
        operands.map(move |(operand, role, tensor)| Place { index, operand, role, tensor })
    };
    let place = |p: &Place| side.place(p.index, p.operand, &p.tensor);
    let meet = |a: &(u32, Range<u64>), b: &(u32, Range<u64>)| a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end;
    let inside = |q: &Place| layer.ops.contains(&q.index);
    let (mut written, mut inputs, mut outputs) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for p in layer.ops.clone().flat_map(of) {
        let at = place(&p);
        // Memory of values is used anew: who wrote there last made the value.
        let maker = || (0..p.index).rev().find(|i| of(*i).any(|q| q.role != Role::In && meet(&place(&q), &at)));
        let order = |maker: usize| if at.0 == TS_BIND_ACTIVATIONS { maker as u64 } else { at.1.start };
        if p.role != Role::Out && at.0 != TS_BIND_STEP && !written.iter().any(|w| meet(w, &at)) {
            inputs.entry((at.0, order(maker().unwrap_or(0)), at.1.start)).or_insert(p);
        }
        // What one form of a layer only reads another may write back: caches have to be right in any case.
        if at.0 == TS_BIND_CACHE {
            outputs.insert((at.0, at.1.start, at.1.start), Place { role: Role::InOut, ..p });
        }
        if p.role == Role::In {
            continue;
        }
        written.push(at.clone());
        let mut later = (p.index + 1..side.n_ops()).flat_map(of).filter(|q| meet(&place(q), &at));
        let wanted = match at.0 {
            TS_BIND_OUTPUT => true,
            TS_BIND_CACHE | TS_BIND_TABLES => false,
            // Read behind the layer before it is written again.
            _ => later.find(|q| q.role != Role::In || !inside(q)).is_some_and(|q| q.role != Role::Out && !inside(&q)),
        };
        if wanted {
            outputs.insert((at.0, order(p.index), at.1.start), p);
        }
    }
    Edges { inputs: inputs.into_values().collect(), outputs: outputs.into_values().collect() }
}

/// Largest NMSE of a row: what a token has of a value; of caches, what a token or a head has of a page or slot.
fn worst_row(p: &Place, ours: &[u8], reference: &[u8]) -> f64 {
    let from = if p.role == Role::InOut { 2 } else { 1 };
    let len = p.tensor.dims()[from..].iter().product::<u64>() as usize;
    let [ours, reference] = [ours, reference].map(|bytes| values(p.tensor.dtype, bytes));
    let rows = ours.chunks_exact(len).zip(reference.chunks_exact(len));
    rows.fold(0.0, |worst: f64, (a, b)| {
        let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let power: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
        let nmse = if a == b { 0.0 } else { error / power.max(f64::MIN_POSITIVE) };
        // What is no number is worse than any.
        if nmse >= 0.0 { worst.max(nmse) } else { f64::INFINITY }
    })
}

/// The device's NMSE over the twin's: both round, each in its own places, so twice the rms is allowed. Found are 0.3 to 2.2.
const LIMIT: f64 = 4.0;

/// What goes wrong in a layer, on the device alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The sum of the layers before is not added to what a layer makes of it.
    NoResidual,
    /// Latent attention takes a tenth too little of its scores.
    Scale,
    /// Gates of the recurrence open a tenth too little.
    Decay,
    /// A token's experts have each other's weights.
    RouteWeights,
    /// A recurrent state comes from another slot.
    Slot,
    /// Two pages of a request have changed places.
    Pages,
}

const DENSE: &str = "KDA, dense";
const KDA: &str = "KDA, MoE";
const MLA: &str = "MLA, MoE";

/// Bugs, and the layers they are in.
const BUGS: [(Bug, &[&str]); 6] = [
    (Bug::NoResidual, &[KDA, DENSE, MLA]),
    (Bug::Scale, &[MLA]),
    (Bug::Decay, &[KDA, DENSE]),
    (Bug::RouteWeights, &[KDA, MLA]),
    (Bug::Slot, &[KDA, DENSE]),
    (Bug::Pages, &[MLA]),
];

/// NMSE of the worst row: the device's, and the rounded twin's.
type Worst = [f64; 2];

/// By program, kind of layer and output.
type Found = BTreeMap<(usize, &'static str, String), Worst>;

/// Values of the CPU's factors as the device rounds them.
fn rounded(bytes: &[u8]) -> Vec<u8> {
    let f32s = values(DType::F32, bytes).into_iter();
    f32s.flat_map(|x| {
        let mut bf16 = [0; 2];
        quant::quantize_row(DType::BF16, &[x], &mut bf16);
        values(DType::BF16, &bf16)[0].to_le_bytes()
    })
    .collect()
}

/// Bytes of an operand as they were.
type Before = (usize, Vec<u8>);

/// Rounds what of an op's operands are factors of matrix products.
fn round_factors(cpu: &Side, index: usize, operands: &[(usize, Role, Tensor)]) -> Vec<Before> {
    let inputs = operands.iter().filter(|(_, role, tensor)| *role == Role::In && tensor.dtype == DType::F32);
    let factors = match cpu.op(index).0 {
        OpKind::Gemm | OpKind::MoeInput | OpKind::Experts => 1,
        OpKind::MlaAbsorb | OpKind::MlaAttention | OpKind::MlaValue => 1,
        // The latent row and the shared experts'; what is added is no factor.
        OpKind::MoeOutput => 2,
        // Queries, keys and values; no gates.
        OpKind::KdaChunk | OpKind::KdaStep | OpKind::KdaVerify => 3,
        OpKind::KdaReplay => return vec![round_gates(cpu, index, operands)],
        _ => 0,
    };
    let round = |(operand, _, tensor): &(usize, Role, Tensor)| {
        let before = cpu.read(index, *operand, tensor);
        cpu.write(index, *operand, &rounded(&before));
        (*operand, before)
    };
    inputs.take(factors).map(round).collect()
}

/// Of a record `[q | k | v | f | b]` only f meets a matrix.
fn round_gates(cpu: &Side, index: usize, operands: &[(usize, Role, Tensor)]) -> Before {
    let [(operand, _, record), .., (_, _, state)] = operands else { unreachable!("a record and a state") };
    let ([.., width], [_, heads, dim, _]) = (record.dims(), state.dims()) else { unreachable!("checked") };
    let gates = 4 * (3 * heads * dim) as usize..4 * (width - heads) as usize;
    let before = cpu.read(index, *operand, record);
    let mut bytes = before.clone();
    for row in bytes.chunks_exact_mut(4 * *width as usize) {
        let rounded = rounded(&row[gates.clone()]);
        row[gates.clone()].copy_from_slice(&rounded);
    }
    cpu.write(index, *operand, &bytes);
    (*operand, before)
}

/// Scores, ids and weights of a choice of experts.
type Choice = [Vec<u8>; 3];

/// Runs a layer on the CPU and reads its outputs; `twin`: the choice of experts to take, and factors are rounded.
fn on_the_cpu(
    cpu: &mut Side,
    layer: &Layer,
    edges: &Edges,
    step: &StepView<'_>,
    twin: Option<&Choice>,
) -> (Vec<Vec<u8>>, Choice) {
    let mut choice = Choice::default();
    for index in layer.ops.clone() {
        let kind = cpu.op(index).0;
        let operands = cpu.operands(index, step);
        let before = twin.map_or_else(Vec::new, |_| round_factors(cpu, index, &operands));
        cpu.run(index);
        for (operand, bytes) in before {
            cpu.write(index, operand, &bytes);
        }
        if kind == OpKind::RouterTopk {
            for (nth, (operand, role, tensor)) in operands.iter().enumerate() {
                choice[nth] = cpu.read(index, *operand, tensor);
                if let (Some(twin), Role::Out) = (twin, role) {
                    cpu.write(index, *operand, &twin[nth]);
                }
            }
        }
    }
    (edges.outputs.iter().map(|p| read(cpu, p)).collect(), choice)
}

fn read(side: &Side, p: &Place) -> Vec<u8> {
    side.read(p.index, p.operand, &p.tensor)
}

/// Runs a layer of a step on both sides from the CPU's inputs, and notes how far outputs are apart. A choice of experts that is nearly
/// tied may fall otherwise, and then the layer is another: the device gets the CPU's, and scores are compared.
fn run_layer(
    [cpu, gpu]: &mut [Side; 2],
    [layer, own_layer]: [&Layer; 2],
    step: &StepView<'_>,
    bug: Option<Bug>,
    note: &mut dyn FnMut(String, Worst),
) {
    let [edges, own] = [edges(cpu, step, layer), edges(gpu, step, own_layer)];
    let sizes = |places: &[Place]| places.iter().map(|p| p.tensor.dims().iter().product()).collect::<Vec<u64>>();
    assert_eq!(sizes(&edges.inputs), sizes(&own.inputs), "{}: inputs", layer.name);
    assert_eq!(sizes(&edges.outputs), sizes(&own.outputs), "{}: outputs", layer.name);
    let inputs: Vec<_> = edges.inputs.iter().map(|p| read(cpu, p)).collect();
    let (expected, choice) = on_the_cpu(cpu, layer, &edges, step, None);
    for (p, bytes) in edges.inputs.iter().zip(&inputs) {
        cpu.write(p.index, p.operand, bytes);
    }
    let (twin, twins_choice) = on_the_cpu(cpu, layer, &edges, step, Some(&choice));
    // As if the twin had not run.
    for (p, bytes) in edges.outputs.iter().zip(&expected) {
        cpu.write(p.index, p.operand, bytes);
    }
    for (p, mut bytes) in own.inputs.iter().zip(inputs) {
        let is_table = gpu.place(p.index, p.operand, &p.tensor).0 == TS_BIND_TABLES;
        if bug == Some(Bug::Pages) && is_table && layer.name != "model" {
            let (first, second) = bytes.split_at_mut(4);
            first.swap_with_slice(&mut second[..4]);
        }
        gpu.write(p.index, p.operand, &bytes);
    }
    for index in own_layer.ops.clone() {
        let kind = gpu.op(index).0;
        let operands = gpu.operands(index, step);
        let attrs = *gpu.attrs(index);
        match (bug, kind) {
            (Some(Bug::NoResidual), OpKind::MoeOutput | OpKind::Add) => {
                let mut inputs = operands.iter().filter(|(_, role, _)| *role == Role::In);
                let added = if kind == OpKind::Add { inputs.next() } else { inputs.next_back() };
                let (operand, _, tensor) = added.expect("something to add");
                gpu.write(index, *operand, &vec![0; tensor.bytes() as usize]);
            }
            (Some(Bug::Scale), OpKind::MlaMix) | (Some(Bug::Decay), OpKind::KdaMix) => gpu.attrs(index).f[0] *= 0.9,
            _ => {}
        }
        gpu.run(index);
        *gpu.attrs(index) = attrs;
        if kind != OpKind::RouterTopk {
            continue;
        }
        let (operand, role, tensor) = operands[0];
        let p = Place { index, operand, role, tensor };
        let worst = [&read(gpu, &p), &twins_choice[0]].map(|scores| worst_row(&p, scores, &choice[0]));
        note("scores of experts".into(), worst);
        for ((operand, _, tensor), chosen) in operands.iter().zip(&choice).filter(|(o, _)| o.1 == Role::Out) {
            let mut chosen = chosen.clone();
            if bug == Some(Bug::RouteWeights) && tensor.dtype == DType::F32 {
                chosen.chunks_mut(tensor.row_bytes()).for_each(|row| row.rotate_left(4));
            }
            gpu.write(index, *operand, &chosen);
        }
    }
    for ((p, own), (expected, twin)) in edges.outputs.iter().zip(&own.outputs).zip(expected.iter().zip(&twin)) {
        let what = match (p.role, p.tensor.dims()) {
            (Role::In, _) => unreachable!("an output"),
            (Role::InOut, [_, _, rows, width]) if rows == width => "states",
            (Role::InOut, [_, _, 1, _]) => "latent rows",
            (Role::InOut, [_, rows, _]) if *rows == GUESSES as u64 => "records",
            (Role::InOut, _) => "windows",
            (Role::Out, _) => "values",
        };
        note(what.into(), [&read(gpu, own), twin].map(|bytes| worst_row(p, bytes, expected)));
    }
}

/// Every layer of a step.
fn each_layer(sides: &mut [Side; 2], turn: &Turn, bug: Option<Bug>, found: &mut Found) {
    let Turn { program, step } = turn;
    let block = step.to_bytes();
    let view = StepView::new(&block).unwrap();
    let mut wrong = step.clone();
    if bug == Some(Bug::Slot) {
        wrong.rows.iter_mut().for_each(|row| row.state_read = NOBODYS_SLOT);
    }
    sides[0].begin(*program, step);
    sides[1].begin(*program, &wrong);
    let [layers, own] = [0, 1].map(|side| layers(&sides[side]));
    assert_eq!(layers.len(), own.len());
    for (layer, own) in layers.iter().zip(&own) {
        let mut note = |what: String, worst: Worst| {
            let noted = found.entry((*program, layer.kind, what)).or_insert([0.0; 2]);
            *noted = [noted[0].max(worst[0]), noted[1].max(worst[1])];
        };
        run_layer(sides, [layer, own], &view, bug, &mut note);
    }
}

/// Kinds of layers that are beyond the limit.
fn beyond(found: &Found) -> BTreeSet<&'static str> {
    let over = found.iter().filter(|(_, [ours, twin])| *ours > LIMIT * twin);
    over.map(|((_, kind, _), _)| *kind).collect()
}

fn layers_are_the_references(latent: DType) {
    let plugin = emulated(false);
    let decoded = if models::long_tests() { LENGTHS.decoded } else { 2 };
    let mut model = Model::new(&plugin, &[], Fused::Own, latent, Lengths { decoded, ..LENGTHS });
    let turns = model.turns();
    let mut found = Found::new();
    for turn in &turns {
        each_layer(&mut model.sides, turn, None, &mut found);
    }
    for ((program, kind, what), [ours, twin]) in &found {
        let program = ["64 tokens", "one token", "guesses", "replay"][*program];
        println!("{latent}, {program}, {kind}, {what}: NMSE {ours:.1e}, twin {twin:.1e}");
    }
    for kind in [KDA, DENSE, MLA] {
        assert!(found.keys().any(|key| key.1 == kind), "no layer is {kind}");
    }
    assert!(beyond(&found).is_empty(), "{:?}: {found:?}", beyond(&found));
    // A step that was run changes nothing when it runs again.
    let last = turns.iter().rfind(|turn| turn.program == ONE).expect("a token");
    for (bug, kinds) in BUGS {
        let mut found = Found::new();
        each_layer(&mut model.sides, last, Some(bug), &mut found);
        assert_eq!(beyond(&found), BTreeSet::from_iter(kinds.iter().copied()), "{bug:?}: {found:?}");
    }
}

#[test]
fn layers_given_the_references_inputs() {
    layers_are_the_references(DType::BF16);
}

#[test]
fn layers_given_the_references_inputs_with_an_fp8_cache() {
    layers_are_the_references(DType::F8E4M3);
}
