//! Kimi Delta Attention in all its forms is one function: chunked, token by token, verified and replayed.

use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    catalogue::{Case, CaseOperand, Role, entry},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    step::StepData,
    tensor::Tensor,
};
use tokenspeed_reference_cpu::{
    Level, Part,
    gates::{Gate, GateArgs, gate},
    gemm::{self, GemmArgs, Weight, gemm},
    kda::{
        self, KdaArgs,
        gate::{GateArgs as DecayArgs, GateKind, kda_gate},
        kda,
        record::{RecordArgs, kda_record},
        replay::{self, ReplayArgs, kda_replay},
    },
    l2norm::{L2NormArgs, l2norm},
    scratch::Scratch,
    short_conv::{ShortConvArgs, Window, short_conv},
};

fn levels() -> impl Iterator<Item = Level> {
    [Level::Portable, Level::Avx2, Level::Avx512].into_iter().filter(|l| l.available())
}

/// Seeded values in [-1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn one(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
    fn many(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.one() * scale).collect()
    }
}

/// Inputs of the recurrence for some tokens, and the state slots.
#[derive(Clone)]
struct Inputs {
    heads: usize,
    dim: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

impl Inputs {
    /// q (scaled) and k of unit length, a gate of either kind over its whole range, `slots` states.
    fn new(random: &mut Random, (heads, dim): (usize, usize), tokens: usize, slots: usize, bounded: bool) -> Self {
        let n = tokens * heads * dim;
        let mut unit = |scale: f32| {
            let mut x = random.many(n, 1.0);
            for head in x.chunks_exact_mut(dim) {
                let size = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x *= scale / size);
            }
            x
        };
        let (q, k) = (unit((dim as f32).powf(-0.5)), unit(1.0));
        let v = random.many(n, 1.0);
        // Mostly near zero; a softplus has no bound.
        let gates = random.many(n, 1.0).into_iter();
        let g = gates.map(|x| if bounded { -5.0 * x.abs().powi(4) } else { -60.0 * x.abs().powi(12) }).collect();
        let beta = random.many(tokens * heads, 0.5).into_iter().map(|b| b + 0.5).collect();
        let state = random.many(slots * heads * dim * dim, 0.5);
        Self { heads, dim, q, k, v, g, beta, state }
    }

    /// Outputs and states of the catalogue's reference, token by token.
    fn reference(&self, rows: &[ts_step_row]) -> (Vec<f32>, Vec<f32>) {
        let (h, d) = (self.heads as u64, self.dim as u64);
        let tokens = self.beta.len() as u64 / h;
        let operand = |values: &[f32], vary, dims: &[u64], role| CaseOperand {
            tensor: Tensor::new(DType::F32, vary, dims),
            role,
            bytes: values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        };
        let wide = [tokens, h, d];
        let mut operands: Vec<_> = [&self.q, &self.k, &self.v, &self.g]
            .map(|x| operand(x, Vary::Tokens, &wide, Role::In))
            .into_iter()
            .collect();
        operands.push(operand(&self.beta, Vary::Tokens, &[tokens, h], Role::In));
        let slots = self.state.len() as u64 / (h * d * d);
        operands.push(operand(&self.state, Vary::Fixed, &[slots, h, d, d], Role::InOut));
        operands.push(operand(&vec![0.0; self.v.len()], Vary::Tokens, &wide, Role::Out));
        let step_tokens = rows.iter().enumerate().flat_map(|(r, row)| {
            (0..row.query_len).map(move |i| ts_step_token {
                position: row.computed + i,
                row: r as u32,
                ..Default::default()
            })
        });
        let case = Case {
            name: "kda".into(),
            kind: OpKind::KdaStep,
            attrs: Attrs::default(),
            operands,
            step: StepData { rows: rows.to_vec(), tokens: step_tokens.collect(), ..StepData::default() },
        };
        assert_eq!(entry(case.kind).kind, OpKind::KdaStep);
        let floats = |b: &[u8]| b.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let after = case.run_reference(1);
        (floats(&after[6]), floats(&after[5]))
    }

    /// Run some rows in `workers` shares; returns the outputs of all tokens (NaN where no row ran).
    fn run(&mut self, level: Level, workers: usize, rows: &[ts_step_row], keep: bool, tiles: bool) -> Vec<f32> {
        let mut o = vec![f32::NAN; self.v.len()];
        let mut scratch = Scratch::new(kda::scratch_bytes(self.dim, self.dim));
        let args = KdaArgs {
            q: self.q.as_ptr(),
            k: self.k.as_ptr(),
            v: self.v.as_ptr(),
            g: self.g.as_ptr(),
            beta: self.beta.as_ptr(),
            state: self.state.as_mut_ptr(),
            o: o.as_mut_ptr(),
            rows,
            heads: self.heads,
            keys: self.dim,
            values: self.dim,
            keep,
            tiles,
        };
        for index in 0..workers {
            // SAFETY: shapes as documented; rows name existing slots; the tier is available.
            unsafe { kda(level, Part { index, count: workers }, &mut scratch, &args) };
        }
        o
    }
}

fn row(computed: usize, start: usize, len: usize, read: u32, write: u32) -> ts_step_row {
    ts_step_row {
        computed: computed as u32,
        query_start: start as u32,
        query_len: len as u32,
        state_read: read,
        state_write: write,
        state_tokens: computed as u32,
        ..Default::default()
    }
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |m, (a, b)| if (a - b).is_nan() { f32::INFINITY } else { m.max((a - b).abs()) })
}

/// Both forms against the reference; cuts on the 64-token grid, neighbours and workers change no bit; states that are only
/// read stay as they are.
#[test]
fn chunks_equal_the_recurrence_wherever_a_request_is_cut() {
    let mut random = Random(5);
    for round in 0..12 {
        let dim = [32, 64, 128][round % 3];
        let heads = 1 + random.below(if dim == 128 { 3 } else { 8 });
        let (len, offset) = (1 + random.below(300), [0, random.below(200)][round / 2 % 2]);
        let bounded = round % 2 == 0;
        let mut inputs = Inputs::new(&mut random, (heads, dim), len + 5, 5, bounded);
        // A request of `len` tokens from slot 1 to slot 2, and five tokens of another in place.
        let rows = [row(offset, 0, len, 1, 2), row(37, len, 5, 3, 3)];
        let (expected, states) = inputs.reference(&rows);
        let name = format!("heads {heads}, dim {dim}, {len} tokens from {offset}, bounded {bounded}");
        for level in levels() {
            let before = inputs.clone();
            let outputs = inputs.run(level, 1, &rows, true, true);
            assert!(worst(&outputs, &expected) <= 1e-5, "{level} {name}: o {}", worst(&outputs, &expected));
            assert!(worst(&inputs.state, &states) <= 1e-5, "{level} {name}: S {}", worst(&inputs.state, &states));
            let slot = heads * dim * dim;
            assert_eq!(inputs.state[slot..2 * slot], before.state[slot..2 * slot], "the slot read from was written");
            let chunked = inputs;

            let mut stepped = before.clone();
            let by_token = stepped.run(level, 3, &rows, true, false);
            assert!(worst(&by_token, &expected) <= 1e-5, "{level} {name}: by token {}", worst(&by_token, &expected));

            // Alone, on other numbers of workers, and cut on the grid.
            let mut cut = before.clone();
            let grid = (offset / 64 + 1) * 64 - offset;
            let at = if grid < len { grid } else { len };
            let parts = [(0, at, 1), (at, len, 2)].into_iter().filter(|(from, to, _)| from < to);
            let mut pieces = Vec::new();
            for (from, to, read) in parts {
                let rows = [row(offset + from, from, to - from, read, 2)];
                let o = cut.run(level, 1 + at % 5, &rows, true, true);
                pieces.extend_from_slice(&o[from * heads * dim..to * heads * dim]);
            }
            assert_eq!(pieces[..], outputs[..len * heads * dim], "{level} {name} cut at {at}");
            assert_eq!(cut.state[2 * slot..3 * slot], chunked.state[2 * slot..3 * slot], "{level} {name} cut at {at}");
            inputs = before;
        }
    }
}

/// One decode step of several requests: split over any workers, and a verify step of the same token, have its bits.
#[test]
fn decode_has_the_same_bits_on_any_workers_and_in_verify() {
    let mut random = Random(9);
    for (heads, dim) in [(3, 128), (2, 64), (5, 32), (2, 40)] {
        let inputs = Inputs::new(&mut random, (heads, dim), 3, 6, true);
        let rows = [row(70, 0, 1, 1, 1), row(0, 1, 1, 0, 2), row(9, 2, 1, 3, 4)];
        for level in levels() {
            let mut one = inputs.clone();
            let expected = one.run(level, 1, &rows, true, true);
            for workers in [2, 7] {
                let mut many = inputs.clone();
                assert_eq!(many.run(level, workers, &rows, true, true), expected, "{level} {workers} workers");
                assert_eq!(many.state, one.state, "{level} {workers} workers");
            }
            let mut verify = inputs.clone();
            assert_eq!(verify.run(level, 2, &rows, false, false), expected, "{level} verify");
            assert_eq!(verify.state, inputs.state, "{level}: verify wrote a state");
        }
    }
}

/// A layer's inputs before the convolution, with its weights and state.
#[derive(Clone)]
struct Layer {
    heads: usize,
    dim: usize,
    depth: usize,
    bounded: bool,
    /// q, k, v, `[tokens, channels]`; f, `[tokens, depth]`; b, `[tokens, heads]`.
    raw: [Vec<f32>; 5],
    taps: [Vec<f32>; 3],
    wf: Vec<u8>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    window: Vec<f32>,
    state: Vec<f32>,
    record: Vec<f32>,
}

const SLOTS: usize = 4;
const CANDIDATES: usize = 4;

impl Layer {
    fn new(random: &mut Random, heads: usize, dim: usize, bounded: bool) -> Self {
        let (channels, depth) = (heads * dim, dim);
        let t = CANDIDATES;
        let wf = random.many(channels * depth, 0.5);
        Self {
            heads,
            dim,
            depth,
            bounded,
            raw: [channels, channels, channels, depth, heads].map(|n| random.many(t * n, 1.5)),
            taps: [0; 3].map(|_| random.many(channels * 4, 1.0)),
            wf: wf.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_ne_bytes()).collect(),
            a_log: random.many(heads, 1.0),
            dt_bias: random.many(channels, 1.0),
            window: random.many(SLOTS * 3 * 3 * channels, 1.0),
            state: random.many(SLOTS * channels * dim, 0.3),
            record: vec![f32::NAN; SLOTS * t * (3 * channels + depth + heads)],
        }
    }

    fn kind(&self) -> GateKind {
        if self.bounded { GateKind::Bounded(-5.0) } else { GateKind::Softplus }
    }

    fn window(&mut self) -> Window {
        Window { data: self.window.as_mut_ptr().cast(), dtype: DType::F32, width: 3 * self.heads * self.dim }
    }

    fn wf(&self, packed: Option<&[u8]>) -> Weight {
        match packed {
            Some(bytes) => Weight { data: bytes.as_ptr(), dtype: DType::BF16, packed: true },
            None => Weight { data: self.wf.as_ptr(), dtype: DType::BF16, packed: false },
        }
    }

    /// An ordinary decode step of token `token`, op by op, from slot `read` to slot 2.
    fn decode(&mut self, level: Level, token: usize, computed: usize, read: u32) {
        let (heads, dim, depth, channels) = (self.heads, self.dim, self.depth, self.heads * self.dim);
        let rows = [row(computed, 0, 1, read, 2)];
        let mut scratch = Scratch::new(gemm::scratch_bytes(level, DType::BF16, 1, depth).max(1 << 20));
        let [mut q, mut k, mut v, mut f, mut g] = [0; 5].map(|_| vec![0f32; channels]);
        let mut beta = vec![0f32; heads];
        let raw: [*const f32; 5] = std::array::from_fn(|i| {
            let width = [channels, channels, channels, depth, heads][i];
            self.raw[i][token * width..].as_ptr()
        });
        let mut packed = vec![0u8; gemm::packed_bytes(DType::BF16, channels, depth)];
        gemm::pack_tiles(DType::BF16, &self.wf, channels, depth, 0..channels.div_ceil(gemm::TILE_ROWS), &mut packed);
        let conv = ShortConvArgs {
            x: [raw[0], raw[1], raw[2]],
            weights: [0, 1, 2].map(|i| self.taps[i].as_ptr()),
            window: self.window(),
            y: [q.as_mut_ptr(), k.as_mut_ptr(), v.as_mut_ptr()],
            rows: &rows,
            channels,
            taps: 4,
            keep: true,
        };
        let product = GemmArgs {
            x: raw[3],
            ldx: depth,
            weight: self.wf(Some(&packed)),
            bias: std::ptr::null(),
            y: f.as_mut_ptr(),
            ldy: channels,
            m: 1,
            n: channels,
            k: depth,
        };
        let decay = DecayArgs {
            f: f.as_ptr(),
            a_log: self.a_log.as_ptr(),
            dt_bias: self.dt_bias.as_ptr(),
            g: g.as_mut_ptr(),
            tokens: 1,
            heads,
            keys: dim,
            kind: self.kind(),
        };
        // SAFETY: shapes as documented; the tier is available.
        unsafe {
            short_conv(level, Part::WHOLE, &mut scratch, &conv);
            for (x, scale) in [(&mut q, (dim as f32).powf(-0.5)), (&mut k, 1.0)] {
                let (x, y) = (x.as_ptr(), x.as_mut_ptr());
                l2norm(level, Part::WHOLE, L2NormArgs { x, y, rows: heads, width: dim, eps: 1e-6, scale });
            }
            gemm(level, Part::WHOLE, &mut scratch, &product);
            kda_gate(level, Part::WHOLE, decay);
            let args = GateArgs { gate: raw[4], x: std::ptr::null(), y: beta.as_mut_ptr(), n: heads };
            gate(level, Part::WHOLE, Gate::Sigmoid, args);
        }
        let state = std::mem::take(&mut self.state);
        let mut inputs = Inputs { heads, dim, q, k, v, g, beta, state };
        inputs.run(level, 2, &rows, true, true);
        self.state = inputs.state;
    }

    /// Record all candidates under slot 2.
    fn record(&mut self) {
        let widths = [self.heads * self.dim, self.heads * self.dim, self.heads * self.dim, self.depth, self.heads];
        let args = RecordArgs {
            inputs: std::array::from_fn(|i| (self.raw[i].as_ptr(), widths[i])),
            record: self.record.as_mut_ptr().cast(),
            dtype: DType::F32,
            capacity: CANDIDATES,
            rows: &[row(9, 0, CANDIDATES, 1, 2)],
        };
        for index in 0..2 {
            // SAFETY: shapes as documented.
            unsafe { kda_record(Part { index, count: 2 }, &args) };
        }
    }

    /// Replay `n` recorded candidates.
    fn replay(&mut self, level: Level, workers: usize, rows: &[ts_step_row]) {
        let (heads, dim, depth) = (self.heads, self.dim, self.depth);
        let bytes = replay::scratch_bytes(level, DType::BF16, depth, dim, 4, CANDIDATES);
        let mut scratch = Scratch::new(bytes);
        let args = ReplayArgs {
            record: self.record.as_ptr().cast(),
            record_dtype: DType::F32,
            capacity: CANDIDATES,
            taps: [0, 1, 2].map(|i| self.taps[i].as_ptr()),
            n_taps: 4,
            gate: self.wf.as_ptr(),
            gate_dtype: DType::BF16,
            gate_width: depth,
            a_log: self.a_log.as_ptr(),
            dt_bias: self.dt_bias.as_ptr(),
            window: self.window(),
            state: self.state.as_mut_ptr(),
            rows,
            heads,
            dim,
            kind: self.kind(),
            eps: 1e-6,
            scale: (dim as f32).powf(-0.5),
        };
        for index in 0..workers {
            // SAFETY: shapes as documented; rows name existing slots; the tier is available.
            unsafe { kda_replay(level, Part { index, count: workers }, &mut scratch, &args) };
        }
    }
}

#[test]
fn replaying_a_prefix_has_the_bits_of_as_many_decode_steps() {
    let mut random = Random(3);
    for (heads, dim, bounded) in [(2, 128, true), (3, 32, false), (1, 64, true)] {
        let layer = Layer::new(&mut random, heads, dim, bounded);
        let mut levels: Vec<Level> = levels().collect();
        levels.extend(Level::Amx.available().then_some(Level::Amx));
        for level in levels {
            for n in 0..=CANDIDATES {
                let mut decoded = layer.clone();
                (0..n).for_each(|t| decoded.decode(level, t, 9 + t, if t == 0 { 1 } else { 2 }));
                let mut replayed = layer.clone();
                replayed.record();
                // What was rejected may be anything.
                let width = replayed.record.len() / SLOTS / CANDIDATES;
                replayed.record[(2 * CANDIDATES + n) * width..3 * CANDIDATES * width].fill(f32::NAN);
                replayed.replay(level, 3, &[row(9, 0, n, 1, 2)]);
                let (state, window) = (layer.state.len() / SLOTS, layer.window.len() / SLOTS);
                // Nothing replayed: the state is the one read.
                let from = if n == 0 { 1 } else { 2 };
                let name = format!("{level} {heads} heads of {dim}, {n} tokens");
                assert_eq!(replayed.state[2 * state..3 * state], decoded.state[from * state..][..state], "{name}: S");
                assert_eq!(
                    replayed.window[2 * window..3 * window],
                    decoded.window[from * window..][..window],
                    "{name}: window"
                );
                assert_eq!(replayed.state[..2 * state], layer.state[..2 * state], "{name}: another slot");
            }
        }
    }
}
