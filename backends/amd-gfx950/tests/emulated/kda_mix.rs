//! `kda_mix` of Kimi's heads in programs that can hold a chunk: three launches against the catalogue's reference, and against the
//! one launch for single tokens; chunks at every place of a step, with the window in front of them and behind.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    backend::Device,
    catalogue::{Case, CaseOperand, Role},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    step::StepData,
    tensor::Tensor,
};

use crate::{
    replay::{Bench, attrs, rows},
    support::{Bytes, Random, backend_device, configure, emulator, f32s},
};

const DIM: u64 = 128;
const TAPS: u64 = 4;
/// Tokens from which on a program can hold a chunk.
const CHUNK: usize = 64;

/// Errors that pass, over the root mean square of what is right. The parts with bf16 factors have 0.039 and 0.0018.
pub const LARGEST: f32 = 0.05;
pub const MEAN: f32 = 0.0025;

/// How a layer decays.
#[derive(Clone, Copy)]
pub struct Gate {
    bounded: i64,
    /// Largest of A_log and of the projection.
    scale: [f32; 2],
}

/// Kimi's gate, and one that decays by up to e^-60 a token.
pub const BOUNDED: Gate = Gate { bounded: 1, scale: [1.0, 2.0] };
pub const STRONG: Gate = Gate { bounded: 0, scale: [2.0, 8.0] };

/// A request of a step: tokens computed, tokens of the step, slots that are read and written.
pub type Request = (u32, usize, u32, u32);

/// A layer on one device: operands of a fixed number of tokens.
pub struct Layer<'a> {
    bench: Bench<'a>,
    /// In catalogue order.
    operands: Vec<Tensor>,
    attrs: Attrs,
    /// What f is the product of, for layers that make it: in the op where that is one launch.
    factors: [Tensor; 2],
    projects: bool,
}

/// What a step leaves.
#[derive(PartialEq)]
pub struct Left {
    /// Outputs of its tokens.
    pub y: Vec<f32>,
    state: Vec<u8>,
    window: Vec<u8>,
}

impl<'a> Layer<'a> {
    pub fn new(device: &'a Device, heads: u64, tokens: u64, slots: u64, window: DType, gate: Gate) -> Self {
        let mut random = Random(tokens + heads);
        let mut bench = Bench::new(device);
        let mut place = |vary, dims: &[u64], scale: f32| {
            // Numbers that bf16 holds, so that windows lose nothing.
            let mut number = || f32::from_bits((random.unit() * scale).to_bits() & 0xffff_0000);
            let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|_| number()).collect();
            bench.place(DType::F32, vary, dims, Some(values.bytes()))
        };
        let c = heads * DIM;
        let mut operands = [[tokens, c]; 3].map(|dims| place(Vary::Tokens, &dims, 2.0)).to_vec();
        operands.push(place(Vary::Tokens, &[tokens, heads, DIM], gate.scale[1]));
        operands.push(place(Vary::Tokens, &[tokens, heads], 3.0));
        operands.push(place(Vary::Tokens, &[tokens, c], 3.0));
        operands.extend([[c, TAPS]; 3].map(|dims| place(Vary::Fixed, &dims, 1.0)));
        operands.push(place(Vary::Fixed, &[heads], gate.scale[0]));
        operands.push(place(Vary::Fixed, &[c], 1.0));
        operands.push(place(Vary::Fixed, &[DIM], 1.0));
        let mut past = place(Vary::Fixed, &[slots, TAPS - 1, 3 * c], 1.0);
        operands.push(place(Vary::Fixed, &[slots, heads, DIM, DIM], 1.0));
        operands.push(place(Vary::Tokens, &[tokens, heads, DIM], 0.0));
        let wf = place(Vary::Fixed, &[c, DIM], 0.5);
        if window == DType::BF16 {
            past = bench.narrow(&past);
        }
        let wf = bench.narrow(&wf);
        // Numbers that a factor is rounded from.
        let low: Vec<f32> = (0..tokens * DIM).map(|_| random.unit()).collect();
        let low = bench.place(DType::F32, Vary::Tokens, &[tokens, DIM], Some(low.bytes()));
        operands.insert(12, past);
        bench.load();
        let attrs = attrs(&[gate.bounded, 0], &[-5.0, 1e-6, 1.0 / (DIM as f64).sqrt(), 1e-5]);
        Self { bench, operands, attrs, factors: [low, wf], projects: false }
    }

    /// The same with the gate's projection.
    pub fn projecting(self) -> Self {
        Self { projects: true, ..self }
    }

    /// Runs tokens of the layer, from `from` on, as a step of these requests.
    pub fn step(&mut self, from: usize, requests: &[Request]) -> Left {
        let step = step_of(requests);
        let to = from + step.tokens.len();
        let part = |(i, x): (usize, &Tensor)| if i < 6 || i == 14 { rows(x, from, to) } else { *x };
        let mut operands: Vec<Tensor> = self.operands.iter().enumerate().map(part).collect();
        let (f, y, state, window) = (operands[3], operands[14], operands[13], operands[12]);
        let (mut ops, mut attrs) = (Vec::new(), self.attrs);
        let [low, wf] = [rows(&self.factors[0], from, to), self.factors[1]];
        if self.projects && to - from < CHUNK {
            operands[3] = low;
            operands.insert(14, wf);
            attrs.i[2] = 1;
        } else if self.projects {
            ops.push((OpKind::Gemm, vec![low, wf, f], Attrs::default()));
        }
        ops.push((OpKind::KdaMix, operands, attrs));
        self.bench.run_step(&step, &ops);
        Left { y: f32s(&self.bench.read(&y)), state: self.bench.read(&state), window: self.bench.read(&window) }
    }

    /// What a step of all tokens should leave, before any has run.
    pub fn reference(&self, requests: &[Request]) -> Left {
        let role = |i| [Role::In, Role::InOut, Role::Out][usize::from(i >= 12) + usize::from(i == 14)];
        let operand = |(i, x): (usize, &Tensor)| CaseOperand { tensor: *x, role: role(i), bytes: self.bench.read(x) };
        let case = Case {
            name: "layer".into(),
            kind: OpKind::KdaMix,
            attrs: self.attrs,
            operands: self.operands.iter().enumerate().map(operand).collect(),
            step: step_of(requests),
        };
        let mut left = case.run_reference(1);
        Left { y: f32s(&left[14]), state: left.swap_remove(13), window: left.swap_remove(12) }
    }
}

fn step_of(requests: &[Request]) -> StepData {
    let ids: Vec<Vec<i32>> = requests.iter().map(|r| vec![0; r.1]).collect();
    let spans = requests.iter().zip(&ids).enumerate().map(|(i, (r, ids))| (i as u32, r.0, &ids[..]));
    let mut step = StepData::from_spans(&spans.collect::<Vec<_>>());
    for (row, (computed, _, read, write)) in step.rows.iter_mut().zip(requests) {
        *row = ts_step_row { state_read: *read, state_write: *write, state_tokens: *computed, ..*row };
    }
    step
}

/// Largest difference and root mean square of it, both over the root mean square of `want`.
fn off(got: &[f32], want: &[f32]) -> [f32; 2] {
    let rms = |x: &mut dyn Iterator<Item = f32>, n: usize| (x.map(|x| x * x).sum::<f32>() / n as f32).sqrt();
    let scale = rms(&mut want.iter().copied(), want.len());
    let differences = || got.iter().zip(want).map(|(a, b)| a - b);
    // `f32::max` would drop what is no number.
    let larger = |m: f32, x: f32| if m.is_nan() || x.abs() <= m { m } else { x.abs() };
    [differences().fold(0.0, larger) / scale, rms(&mut differences(), got.len()) / scale]
}

/// Slots of the requests below are 1, 2, ...; slot 0 is nobody's. Starts, single tokens ahead of chunks (none, one, two, three and more:
/// the window reaches into the chunk) and behind, decoding; in place, from one slot to another, and kept nowhere.
const REQUESTS: [Request; 7] =
    [(0, 130, 0, 1), (5, 1, 2, 2), (63, 66, 3, 3), (64, 64, 4, 5), (126, 67, 6, 6), (61, 68, 7, 0), (0, 2, 0, 8)];
const SLOTS: u64 = 9;

/// Largest and mean error of a step by the three launches, outputs or states, against the reference; infinite if windows differ at
/// all.
pub fn worst(gate: Gate, window: DType) -> Option<[f32; 2]> {
    let (_backend, device) = backend_device(&[])?;
    configure(emulator(), true, 1);
    let tokens = REQUESTS.iter().map(|r| r.1 as u64).sum();
    let mut layer = Layer::new(&device, 1, tokens, SLOTS, window, gate);
    let want = layer.reference(&REQUESTS);
    let got = layer.step(0, &REQUESTS);
    if got.window != want.window {
        return Some([f32::INFINITY; 2]);
    }
    let outputs = off(&got.y, &want.y);
    let states = off(&f32s(&got.state), &f32s(&want.state));
    eprintln!("outputs: largest error {}, {} rms; states: {}, {} rms", outputs[0], outputs[1], states[0], states[1]);
    let larger = |a: f32, b: f32| if a.is_nan() || a > b { a } else { b };
    Some([larger(outputs[0], states[0]), larger(outputs[1], states[1])])
}

#[test]
fn three_launches_are_the_reference() {
    for (gate, window) in [(BOUNDED, DType::BF16), (STRONG, DType::F32)] {
        let Some([largest, mean]) = worst(gate, window) else { return };
        assert!(largest <= LARGEST && mean <= MEAN, "largest error {largest}, {mean} rms");
    }
}

#[test]
fn single_tokens_have_the_bits_of_one_launch() {
    let Some((_backend, device)) = backend_device(&[]) else { return };
    configure(emulator(), true, 2);
    // 66 requests make a program that can hold a chunk, one does not.
    let many: Vec<Request> = (0..66).map(|i| (i % 5, 1, i + 1, i + 1)).collect();
    let layer = || Layer::new(&device, 2, 66, 67, DType::BF16, BOUNDED).projecting();
    let together = layer().step(0, &many);
    let mut alone = layer();
    for i in [0, 1, 33, 65] {
        let left = alone.step(i, &many[i..=i]);
        let width = left.y.len();
        assert!(left.y == together.y[i * width..][..width], "token {i} has other bits");
        for (one, all) in [(left.state, &together.state), (left.window, &together.window)] {
            let slot = one.len() / 67;
            assert!(one[(i + 1) * slot..][..slot] == all[(i + 1) * slot..][..slot], "slot {} has other bits", i + 1);
        }
    }
    // More of a request than a product's tile has.
    let layer = || Layer::new(&device, 1, 83, 3, DType::F32, STRONG).projecting();
    let together = layer().step(0, &[(0, 19, 0, 1), (9, 64, 0, 0)]);
    let alone = layer().step(0, &[(0, 19, 0, 1)]);
    assert!(together.y[..alone.y.len()] == alone.y[..], "19 tokens have other bits");
    assert!(together.state == alone.state && together.window == alone.window, "19 tokens leave another state");
    // Ahead of a chunk and behind it.
    let layer = || Layer::new(&device, 1, 68, 3, DType::F32, BOUNDED).projecting();
    let whole = layer().step(0, &[(62, 68, 1, 1)]);
    let mut cut = layer();
    let parts = [(0, (62, 2, 1, 1)), (2, (64, 64, 1, 1)), (66, (128, 2, 1, 1))].map(|(from, r)| cut.step(from, &[r]));
    assert!(whole.y == parts.iter().flat_map(|p| p.y.clone()).collect::<Vec<_>>(), "cut at chunks, other bits");
    assert!(whole.state == parts[2].state && whole.window == parts[2].window, "cut at chunks, another state");
}

#[test]
fn neighbours_change_no_bit() {
    let Some((_backend, device)) = backend_device(&[]) else { return };
    configure(emulator(), true, 3);
    let layer = || Layer::new(&device, 2, 140, 6, DType::F32, BOUNDED);
    let together = layer().step(0, &[(62, 5, 1, 1), (64, 70, 2, 3), (3, 1, 4, 4), (0, 64, 0, 5)]);
    for (from, request) in [(5, (64, 70, 2, 3)), (76, (0, 64, 0, 5))] {
        let alone = layer().step(from, &[request]);
        let width = together.y.len() / 140;
        assert!(alone.y == together.y[from * width..(from + request.1) * width], "request at {from} has other bits");
        let slot = together.state.len() / 6;
        let at = request.3 as usize * slot..(request.3 as usize + 1) * slot;
        assert!(alone.state[at.clone()] == together.state[at], "request at {from} leaves another state");
    }
}

/// Outputs, states and windows of requests in three slabs of 85 blocks of 64 tokens of one of two heads, and of the same ones, but for
/// the first, in programs of their own. The second request's single tokens lie on both sides of one head's end of a slab; a chunk of the
/// third, which is kept nowhere, on both sides of the other head's; and another at the end of the next slab, where one state is taken up
/// while another is handed over.
pub fn slabs(window: DType) -> Option<[Left; 2]> {
    const REQUESTS: [Request; 4] = [(0, 2680, 0, 1), (9, 20, 2, 2), (62, 2760, 3, 0), (63, 70, 4, 5)];
    const HEADS: usize = 2;
    const SLOTS: usize = 6;
    let (_backend, device) = backend_device(&[])?;
    configure(emulator(), false, 4);
    let tokens = REQUESTS.iter().map(|r| r.1).sum::<usize>();
    let layer = || Layer::new(&device, HEADS as u64, tokens as u64, SLOTS as u64, window, BOUNDED);
    let mut together = layer().step(0, &REQUESTS);
    let (mut from, mut layer) = (REQUESTS[0].1, layer());
    together.y.drain(..from * HEADS * DIM as usize);
    let mut alone: Option<Left> = None;
    for request in &REQUESTS[1..] {
        let left = layer.step(from, &[*request]);
        from += request.1;
        alone = Some(Left { y: alone.map_or(Vec::new(), |a| a.y).into_iter().chain(left.y).collect(), ..left });
    }
    let mut alone = alone.expect("there are requests");
    for left in [&mut together, &mut alone] {
        for bytes in [&mut left.state, &mut left.window] {
            let slot = bytes.len() / SLOTS;
            bytes[slot..2 * slot].fill(0);
        }
    }
    Some([together, alone])
}

#[test]
fn slabs_of_tokens_change_no_bit() {
    for format in [DType::BF16, DType::F32] {
        let Some([together, alone]) = slabs(format) else { return };
        let differs = together.y.iter().zip(&alone.y).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs.map(|at| at / (2 * DIM as usize)), None, "{format}: a token has other bits");
        assert!(together == alone, "{format}: another state or window");
    }
}
