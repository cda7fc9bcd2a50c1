//! The kernel against the catalogue's reference, and bit for bit against itself for any batch, layout and worker count.

use super::*;
use crate::{level::testable, pool::Pool, scratch::Scratch};
use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token},
    catalogue::{Case, CaseOperand, Role},
    graph::Vary,
    op::{Attrs, OpKind},
    quant,
    step::StepData,
    tensor::Tensor,
};

/// splitmix64.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The experts of one layer.
struct Layer {
    dtype: DType,
    experts: usize,
    k: usize,
    n: usize,
    slots: Vec<u32>,
    /// w1, w3, w2.
    values: [Vec<u8>; 3],
    scales: [Vec<u8>; 3],
    act: Act,
}

impl Layer {
    fn new(dtype: DType, experts: usize, k: usize, n: usize, act: Act) -> Self {
        let mut noise = Noise(k as u64 * 31 + n as u64);
        let shapes = [(n, k), (n, k), (k, n)];
        let values = shapes.map(|(rows, depth)| {
            let count = experts * rows * depth;
            if dtype == DType::Mxfp4 {
                return (0..count / 2).map(|_| noise.next() as u8).collect();
            }
            let scale = 1.0 / (depth as f32).sqrt();
            let plain: Vec<f32> = (0..count).map(|_| noise.uniform() * scale).collect();
            let mut bytes = vec![0; count * dtype.block_bytes()];
            quant::quantize_row(dtype, &plain, &mut bytes);
            bytes
        });
        let scales = shapes.map(|(rows, depth)| match dtype {
            DType::Mxfp4 => (0..experts * rows * depth / 32).map(|_| 120 + (noise.next() % 5) as u8).collect(),
            _ => Vec::new(),
        });
        let mut slots: Vec<u32> = (0..experts as u32).collect();
        (1..experts).rev().for_each(|i| slots.swap(i, noise.next() as usize % (i + 1)));
        Self { dtype, experts, k, n, slots, values, scales, act }
    }

    fn matrix(&self, i: usize) -> Matrix {
        let (rows, k) = if i == 2 { (self.k, self.n) } else { (self.n, self.k) };
        let mx = self.dtype == DType::Mxfp4;
        Matrix {
            dtype: self.dtype,
            values: self.values[i].as_ptr(),
            stride: self.values[i].len() / self.experts,
            scales: if mx { self.scales[i].as_ptr() } else { std::ptr::null() },
            scale_stride: self.scales[i].len() / self.experts,
            rows,
            k,
        }
    }

    fn run(&self, level: Level, workers: usize, step: &Step) -> Vec<f32> {
        self.run_with(level, workers, step, [0, 1, 2].map(|i| self.matrix(i)))
    }

    fn run_with(&self, level: Level, workers: usize, step: &Step, [w1, w3, w2]: [Matrix; 3]) -> Vec<f32> {
        let tokens = step.x.len() / self.k;
        let mut y = vec![f32::NAN; tokens * self.k];
        let mut hidden = Scratch::new(hidden_bytes(self.n));
        let args = ExpertsArgs {
            x: step.x.as_ptr(),
            ids: step.ids.as_ptr(),
            weights: step.weights.as_ptr(),
            slots: self.slots.as_ptr(),
            w1,
            w3,
            w2,
            y: y.as_mut_ptr(),
            hidden: hidden.carve().take(hidden_bytes(self.n) / 4),
            tokens,
            top: step.top,
            experts: self.experts,
            act: self.act,
            residency: None,
        };
        let mut pool = Pool::new(workers).unwrap();
        let bytes = scratch_bytes(level, self.dtype, tokens, step.top, self.experts, self.k, self.n);
        pool.reserve_scratch(bytes);
        let args = Shared(args);
        // SAFETY: shapes as documented; the tier is available.
        pool.run(|worker| unsafe { experts(level, worker, args.get()).unwrap() });
        y
    }

    fn reference(&self, step: &Step) -> Vec<f32> {
        let (t, top) = ((step.x.len() / self.k) as u64, step.top as u64);
        let (e, k, n) = (self.experts as u64, self.k as u64, self.n as u64);
        let mut attrs = Attrs::default();
        if let Act::Situ { beta, linear } = self.act {
            (attrs.i[0], attrs.f[0], attrs.f[1]) = (1, beta.into(), linear.into());
        }
        let f32s = |v: &[f32]| v.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let u32s = |v: &[u32]| v.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let operand = |dtype, vary, dims: &[u64], bytes: Vec<u8>| CaseOperand {
            tensor: Tensor::new(dtype, vary, dims),
            role: Role::In,
            bytes,
        };
        let shapes = [[e, n, k], [e, n, k], [e, k, n]];
        let mut operands = vec![
            operand(DType::F32, Vary::Tokens, &[t, k], f32s(&step.x)),
            operand(DType::U32, Vary::Tokens, &[t, top], u32s(&step.ids)),
            operand(DType::F32, Vary::Tokens, &[t, top], f32s(&step.weights)),
            operand(DType::U32, Vary::Fixed, &[e], u32s(&self.slots)),
        ];
        for (shape, values) in shapes.iter().zip(&self.values) {
            operands.push(operand(self.dtype, Vary::Fixed, shape, values.clone()));
        }
        for (shape, scales) in shapes.iter().zip(&self.scales).filter(|_| self.dtype == DType::Mxfp4) {
            operands.push(operand(DType::U8, Vary::Fixed, &[shape[0], shape[1], shape[2] / 32], scales.clone()));
        }
        operands.push(operand(DType::F32, Vary::Tokens, &[t, k], vec![0; (4 * t * k) as usize]));
        operands.last_mut().unwrap().role = Role::Out;
        let step = StepData {
            tokens: (0..t as u32).map(|position| ts_step_token { position, ..Default::default() }).collect(),
            rows: vec![ts_step_row { query_len: t as u32, ..Default::default() }],
            ..Default::default()
        };
        let case = Case { name: "experts".into(), kind: OpKind::Experts, attrs, operands, step };
        case.desc().check().unwrap();
        let out = case.run_reference(1).pop().unwrap();
        out.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
    }
}

/// Arguments hold raw pointers; workers share them by the kernel's contract.
struct Shared(ExpertsArgs);
// SAFETY: workers write disjoint columns and meet where they must, which is what is tested.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> &ExpertsArgs {
        &self.0
    }
}

#[derive(Clone)]
struct Step {
    x: Vec<f32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    top: usize,
}

impl Step {
    /// Random tokens that prefer the experts of low id.
    fn new(layer: &Layer, tokens: usize, top: usize, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let mut ids = Vec::new();
        for _ in 0..tokens {
            let mut left: Vec<u32> = (0..layer.experts as u32).collect();
            for _ in 0..top {
                let a = noise.next() as usize % left.len();
                ids.push(left.remove(a.min(noise.next() as usize % left.len())));
            }
        }
        let x = (0..tokens * layer.k).map(|_| 2.0 * noise.uniform()).collect();
        let weights = (0..tokens * top).map(|_| noise.uniform()).collect();
        Self { x, ids, weights, top }
    }

    fn tokens(&self, layer: &Layer, range: Range<usize>) -> Self {
        Self {
            x: self.x[range.start * layer.k..range.end * layer.k].to_vec(),
            ids: self.ids[range.start * self.top..range.end * self.top].to_vec(),
            weights: self.weights[range.start * self.top..range.end * self.top].to_vec(),
            top: self.top,
        }
    }
}

const SITU: Act = Act::Situ { beta: 4.0, linear: 25.0 };

fn layers() -> Vec<Layer> {
    vec![
        Layer::new(DType::Mxfp4, 7, 96, 160, SITU),
        Layer::new(DType::Mxfp4, 3, 544, 64, Act::Silu),
        Layer::new(DType::BF16, 5, 72, 41, SITU),
        Layer::new(DType::F16, 4, 33, 50, Act::Silu),
        Layer::new(DType::F32, 4, 20, 17, SITU),
    ]
}

fn check(layer: &Layer, got: &[f32], want: &[f32], what: &str) {
    let rms = (want.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / want.len() as f64).sqrt();
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = f64::from((g - w).abs());
        assert!(error <= 2e-5 * rms, "{what} {}: value {i} is {g}, not {w} (rms {rms})", layer.dtype);
    }
}

#[test]
fn as_the_reference_for_every_format_tier_and_number_of_tokens() {
    for layer in layers() {
        for (tokens, top) in [(1, 2), (6, 3), (11, 2), (70, 2)] {
            let step = Step::new(&layer, tokens, top, 3);
            let want = layer.reference(&step);
            for level in testable() {
                check(&layer, &layer.run(level, 1, &step), &want, &format!("{level}, {tokens} tokens"));
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_workers() {
    for layer in layers() {
        let step = Step::new(&layer, 150, 2, 9);
        for level in testable() {
            let all = layer.run(level, 1, &step);
            for workers in [2, 3] {
                assert_eq!(all, layer.run(level, workers, &step), "{level} {}: {workers} workers", layer.dtype);
            }
            for (first, count) in [(0, 1), (17, 1), (149, 1), (3, 2), (40, 5), (40, 6), (99, 11), (0, 64)] {
                let some = layer.run(level, 1 + count % 2, &step.tokens(&layer, first..first + count));
                let want = &all[first * layer.k..(first + count) * layer.k];
                assert_eq!(some, want, "{level} {}: tokens {first}+{count}", layer.dtype);
            }
        }
    }
}

#[test]
fn experts_at_a_pitch_give_the_bits_of_dense_ones() {
    for layer in layers() {
        let step = Step::new(&layer, 9, 2, 5);
        // One file: all matrices of expert 0, then of expert 1, and so on, with a gap that aligns nothing.
        let parts = |i: usize| [&layer.values[i], &layer.scales[i]];
        let mut file = vec![0xeeu8; 2];
        let mut starts = [[0; 2]; 3];
        for expert in 0..layer.experts {
            for (i, starts) in starts.iter_mut().enumerate() {
                for (part, start) in parts(i).iter().zip(starts) {
                    let bytes = part.len() / layer.experts;
                    if expert == 0 {
                        *start = file.len();
                    }
                    file.extend_from_slice(&part[expert * bytes..][..bytes]);
                }
            }
            file.extend([0xee; 6]);
        }
        let pitch = (file.len() - 2) / layer.experts;
        let matrices = [0, 1, 2].map(|i| Matrix {
            values: file[starts[i][0]..].as_ptr(),
            stride: pitch,
            scales: file[starts[i][1]..].as_ptr(),
            scale_stride: pitch,
            ..layer.matrix(i)
        });
        for level in testable() {
            let dense = layer.run(level, 2, &step);
            assert_eq!(layer.run_with(level, 2, &step, matrices), dense, "{level} {}", layer.dtype);
        }
    }
}

#[test]
fn scales_at_the_ends_of_their_range_are_right() {
    let mut layer = Layer::new(DType::Mxfp4, 2, 64, 32, Act::Silu);
    // Rows of w1 from tiny to huge; their gates saturate or vanish, up stays ordinary.
    for (row, scale) in [(0, 0), (1, 1), (2, 2), (3, 252), (20, 253), (21, 254)] {
        layer.scales[0][2 * row] = scale;
    }
    let mut step = Step::new(&layer, 3, 2, 1);
    step.x.iter_mut().for_each(|x| *x *= 1e-3);
    let want = layer.reference(&step);
    for level in testable() {
        for (got, want) in layer.run(level, 1, &step).iter().zip(&want) {
            let same = (got.is_nan() && want.is_nan()) || got == want || ((got - want) / want).abs() < 1e-4;
            assert!(same, "{level}: {got}, not {want}");
        }
    }
    layer.scales[0][5] = 255;
    for level in testable() {
        assert!(layer.run(level, 1, &step).iter().all(|y| y.is_nan()), "{level}: a NaN scale makes NaN");
    }
}

#[test]
fn one_poisoned_token_leaves_the_others_alone() {
    let layer = Layer::new(DType::Mxfp4, 3, 64, 96, SITU);
    let mut step = Step::new(&layer, 12, 2, 4);
    for level in testable() {
        step.x[5 * 64 + 7] = 0.5;
        let clean = layer.run(level, 2, &step);
        step.x[5 * 64 + 7] = f32::NAN;
        let dirty = layer.run(level, 2, &step);
        assert!(dirty[5 * 64..6 * 64].iter().all(|y| y.is_nan()), "{level}");
        assert_eq!((&dirty[..5 * 64], &dirty[6 * 64..]), (&clean[..5 * 64], &clean[6 * 64..]), "{level}");
    }
}

#[test]
fn an_expert_that_is_not_there_is_refused_by_every_worker() {
    let layer = Layer::new(DType::F32, 2, 8, 8, Act::Silu);
    let mut step = Step::new(&layer, 1, 1, 0);
    step.ids[0] = 2;
    let args = ExpertsArgs {
        x: step.x.as_ptr(),
        ids: step.ids.as_ptr(),
        weights: step.weights.as_ptr(),
        slots: layer.slots.as_ptr(),
        w1: layer.matrix(0),
        w3: layer.matrix(1),
        w2: layer.matrix(2),
        y: std::ptr::null_mut(),
        hidden: std::ptr::null_mut(),
        tokens: 1,
        top: 1,
        experts: 2,
        act: Act::Silu,
        residency: None,
    };
    let mut pool = Pool::new(2).unwrap();
    pool.reserve_scratch(scratch_bytes(Level::Portable, DType::F32, 1, 1, 2, 8, 8));
    let args = Shared(args);
    pool.run(|worker| {
        // SAFETY: refused before anything is read.
        let refused = unsafe { experts(Level::Portable, worker, args.get()) };
        assert!(refused.unwrap_err().contains("expert 2 of 2"));
    });
}
