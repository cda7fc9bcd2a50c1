//! Kimi Delta Attention through the ops a model emits: n decode steps, op by op and as one fused op; a verify step over n + 1
//! candidates, which leaves the state alone, likewise; the replay of the n accepted ones into another slot. All agree bit for
//! bit, in both precisions, for the sizes of Kimi K3 and for small ones.

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_STEP, TS_BIND_WEIGHTS, ts_step_row},
    backend::{Arena, ArenaKind, Bindings, Bucket, Device, Event, Queue, StepBuffer},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    record::OpRecord,
    step::StepData,
    tensor::Tensor,
};

use crate::support::{Bytes, Random, backend_device, configure, counters, emulator, f32s, report};

const ACCEPTED: usize = 3;
const CANDIDATES: usize = 4;
const TAPS: u64 = 4;
const SLOTS: u64 = 5;
/// Room for what ops keep between their launches.
const WORKSPACE: u64 = 1 << 23;

/// One arena in which tensors are laid out one behind the other, and the host's image of it.
pub struct Bench<'a> {
    device: &'a Device,
    queue: Queue,
    event: Event,
    value: u64,
    image: Vec<u8>,
    arena: Option<Arena>,
}

impl<'a> Bench<'a> {
    pub fn new(device: &'a Device) -> Self {
        let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
        Bench { device, queue, event, value: 0, image: Vec::new(), arena: None }
    }

    /// Everything that was placed is in the device's memory from here on, with room for workspaces behind it.
    pub fn load(&mut self) {
        self.image.resize(self.image.len().next_multiple_of(256), 0);
        let bytes = self.image.len() as u64 + WORKSPACE;
        self.arena = Some(self.device.arena_alloc(ArenaKind::Activations, bytes).unwrap());
        self.device.write(self.arena.as_ref().unwrap(), 0, &self.image).unwrap();
    }

    pub fn place(&mut self, dtype: DType, vary: Vary, dims: &[u64], bytes: Option<Vec<u8>>) -> Tensor {
        let mut tensor = Tensor::new(dtype, vary, dims);
        (tensor.binding, tensor.offset) = (TS_BIND_ACTIVATIONS, self.image.len().next_multiple_of(256) as u64);
        self.image.resize(tensor.offset as usize, 0);
        match bytes {
            Some(bytes) => self.image.extend(bytes),
            None => self.image.resize((tensor.offset + tensor.bytes()) as usize, 0xff),
        }
        assert_eq!(self.image.len() as u64, tensor.offset + tensor.bytes());
        tensor
    }

    /// The upper halves of an f32 tensor that was placed.
    pub fn narrow(&mut self, wide: &Tensor) -> Tensor {
        let bytes = self.image[wide.offset as usize..][..wide.bytes() as usize].to_vec();
        let bytes = bytes.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect();
        self.place(DType::BF16, wide.vary, wide.dims(), Some(bytes))
    }

    pub fn read(&self, tensor: &Tensor) -> Vec<u8> {
        let mut out = vec![0; tensor.bytes() as usize];
        self.device.read(self.arena.as_ref().unwrap(), tensor.offset, &mut out).unwrap();
        out
    }

    /// Runs ops in order for one request's tokens, and waits.
    pub fn run(&mut self, row: ts_step_row, ops: &[(OpKind, Vec<Tensor>, Attrs)]) {
        let ids = vec![0; row.query_len as usize];
        let mut step = StepData::from_spans(&[(0, row.computed, &ids)]);
        step.rows = vec![row];
        self.run_step(&step, ops);
    }

    /// Runs ops in order for a step, and waits.
    pub fn run_step(&mut self, step: &StepData, ops: &[(OpKind, Vec<Tensor>, Attrs)]) {
        let (bindings, records) = self.ready(step, ops);
        for op in &records {
            self.device.op_launch(&self.queue, op, &bindings).unwrap();
        }
        self.value += 1;
        self.device.queue_signal(&self.queue, &self.event, self.value).unwrap();
        self.wait();
    }

    /// Runs ops as a program for one request's tokens, scratch of each behind that of the others, and waits.
    pub fn run_program(&mut self, tokens: usize, ops: &[(OpKind, Vec<Tensor>, Attrs)]) {
        let step = StepData::from_spans(&[(0, 0, &vec![0; tokens])]);
        let (bindings, mut records) = self.ready(&step, ops);
        let mut at = self.image.len() as u64;
        for op in &mut records {
            op.workspace_offset = at;
            at = (at + op.workspace_bytes).next_multiple_of(256);
        }
        assert!(at <= self.image.len() as u64 + WORKSPACE);
        let bucket = Bucket { max_tokens: tokens as u32, max_rows: 1, max_logit_rows: 1 };
        let program = self.device.program_prepare(&records, &bindings, bucket).unwrap();
        let block = step.to_bytes();
        let mut buffer = StepBuffer::with_capacity(block.len());
        buffer.bytes_mut().expect("not yet lent")[..block.len()].copy_from_slice(&block);
        buffer.set_len(block.len());
        self.value += 1;
        self.device.program_run(&program, &self.queue, &mut buffer, &self.event, self.value).unwrap();
        self.wait();
    }

    fn wait(&self) {
        let waited = self.event.wait(self.value, 60_000_000_000);
        waited.unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
    }

    /// Ops with weights packed where the device wants it, all with the same scratch, and what they are bound to.
    fn ready(&self, step: &StepData, ops: &[(OpKind, Vec<Tensor>, Attrs)]) -> (Bindings, Vec<OpRecord>) {
        let block = step.to_bytes();
        let step_arena = self.device.arena_alloc(ArenaKind::Step, block.len() as u64).unwrap();
        self.device.write(&step_arena, 0, &block).unwrap();
        let mut bindings = Bindings::new();
        bindings.bind_all(TS_BIND_STEP, &step_arena).bind_all(TS_BIND_ACTIVATIONS, self.arena.as_ref().unwrap());
        let mut slot = TS_BIND_WEIGHTS;
        let mut records = Vec::new();
        for (kind, operands, attrs) in ops {
            let operands = operands.iter().copied().map(Tensor::to_abi).collect();
            let mut op = OpRecord::new(*kind, operands, *attrs, kind.name());
            let support = self.device.op_support(&op).unwrap();
            assert!(support.is_supported(), "{kind}: {}", support.reason);
            for pack in &support.packs {
                let operand = pack.operand as usize;
                let source = Tensor::from_abi(&op.operands[operand]).unwrap();
                let source = &self.image[source.offset as usize..][..source.bytes() as usize];
                let packed = self.device.arena_alloc(ArenaKind::Weights, pack.bytes).unwrap();
                self.device.op_pack(&op, pack.operand, source, &packed, 0, pack.bytes).unwrap();
                bindings.bind_all(slot, &packed);
                let operand = &mut op.operands[operand];
                (operand.binding, operand.offset, operand.layout) = (slot, 0, pack.layout);
                slot += 1;
            }
            assert!(support.workspace_bytes <= WORKSPACE, "{kind}: {} bytes of workspace", support.workspace_bytes);
            (op.workspace_offset, op.workspace_bytes) = (self.image.len() as u64, support.workspace_bytes);
            records.push(op);
        }
        (bindings, records)
    }
}

pub fn attrs(i: &[i64], f: &[f64]) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.i[..i.len()].copy_from_slice(i);
    attrs.f[..f.len()].copy_from_slice(f);
    attrs
}

/// Rows `from..to` of a tensor.
pub fn rows(tensor: &Tensor, from: usize, to: usize) -> Tensor {
    let mut part = *tensor;
    part.offset += (from * tensor.row_bytes()) as u64;
    part.dims[0] = (to - from) as u64;
    part
}

fn agree(options: &[(&str, &str)], kept: DType, heads: u64, dim: u64, gate_width: u64) {
    let Some((_backend, device)) = backend_device(options) else { return };
    configure(emulator(), true, 3);
    let mut bench = Bench::new(&device);
    let mut random = Random(heads * dim + kept.block_bytes() as u64);
    let mut floats = |n: u64, scale: f32| -> Option<Vec<u8>> {
        // Numbers that bf16 holds, so that windows and records lose nothing.
        let mut number = || f32::from_bits((random.unit() * scale).to_bits() & 0xffff_0000);
        Some((0..n).map(|_| number()).collect::<Vec<_>>().bytes())
    };
    let (c, t) = (heads * dim, CANDIDATES as u64);
    let inputs = [c, c, c, gate_width, heads].map(|w| {
        let values = floats(t * w, 2.0);
        bench.place(DType::F32, Vary::Tokens, &[t, w], values)
    });
    let values = floats(t * c, 3.0);
    let gates = bench.place(DType::F32, Vary::Tokens, &[t, c], values);
    let values = floats(dim, 1.0);
    let norm = bench.place(DType::F32, Vary::Fixed, &[dim], values);
    let taps = [0; 3].map(|_| {
        let values = floats(c * TAPS, 1.0);
        bench.place(DType::F32, Vary::Fixed, &[c, TAPS], values)
    });
    let [a_log, dt_bias] = [heads, c].map(|n| {
        let values = floats(n, 1.0);
        bench.place(DType::F32, Vary::Fixed, &[n], values)
    });
    // One start in slots 1, 2 and 4: decoding advances slot 1 op by op and slot 4 fused, replaying goes from slot 2 to slot 3.
    let mut cache = |dtype: DType, inner: &[u64]| {
        let n = inner.iter().product::<u64>();
        let mut start = floats(n, 1.0).unwrap();
        if dtype == DType::BF16 {
            start = start.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect();
        }
        let other = || vec![0xff; start.len()];
        let bytes = [other(), start.clone(), start.clone(), other(), start.clone()].concat();
        let dims = [&[SLOTS], inner].concat();
        bench.place(dtype, Vary::Fixed, &dims, Some(bytes))
    };
    let state = cache(DType::F32, &[heads, dim, dim]);
    let window = cache(kept, &[TAPS - 1, 3 * c]);
    let weight = Random(7).bf16((c * gate_width) as usize).bytes();
    let wf = bench.place(DType::BF16, Vary::Fixed, &[c, gate_width], Some(weight));
    let record = bench.place(kept, Vary::Fixed, &[SLOTS, t, 3 * c + gate_width + heads], None);
    let mut value = |inner: &[u64]| bench.place(DType::F32, Vary::Tokens, &[&[t], inner].concat(), None);
    let head = [heads, dim];
    let [yq, yk, yv, q, k, f, g, stepped, verified, gated, fused, candidates] = [0; 12].map(|_| value(&head));
    let beta = value(&[heads]);
    bench.load();

    let (eps, scale, gate) = (1e-6, 1.0 / (dim as f64).sqrt(), (1, -5.0));
    // A step over tokens from..to, as the model's graph has it.
    let layer = |from: usize, to: usize, verify: bool, o: Tensor| {
        let part = |x: &Tensor| rows(x, from, to);
        let as_heads = |x: &Tensor| {
            let mut x = part(x);
            (x.rank, x.dims[1], x.dims[2]) = (3, heads, dim);
            x
        };
        let kind = if verify { OpKind::KdaVerify } else { OpKind::KdaChunk };
        let conv = vec![
            as_heads(&inputs[0]),
            as_heads(&inputs[1]),
            as_heads(&inputs[2]),
            taps[0],
            taps[1],
            taps[2],
            window,
            part(&yq),
            part(&yk),
            part(&yv),
        ];
        vec![
            (OpKind::ShortConv, conv, attrs(&[verify.into()], &[])),
            (OpKind::L2Norm, vec![part(&yq), part(&q)], attrs(&[], &[eps, scale])),
            (OpKind::L2Norm, vec![part(&yk), part(&k)], attrs(&[], &[eps, 1.0])),
            (OpKind::Gemm, vec![part(&inputs[3]), wf, part(&f)], Attrs::default()),
            (OpKind::KdaGate, vec![part(&f), a_log, dt_bias, part(&g)], attrs(&[gate.0], &[gate.1])),
            (OpKind::Sigmoid, vec![part(&inputs[4]), part(&beta)], Attrs::default()),
            (kind, vec![part(&q), part(&k), part(&yv), part(&g), part(&beta), state, part(&o)], Attrs::default()),
        ]
    };
    let row = |computed: usize, tokens: usize, read: u32, write: u32| ts_step_row {
        computed: 7 + computed as u32,
        query_len: tokens as u32,
        state_read: read,
        state_write: write,
        state_tokens: 7 + computed as u32,
        ..Default::default()
    };
    for i in 0..ACCEPTED {
        bench.run(row(i, 1, 1, 1), &layer(i, i + 1, false, stepped));
    }
    // The same tokens as one op, in one slot and in verification of another.
    let whole = options.is_empty() && (dim, gate_width) == (128, 128);
    let mix = |from: usize, to: usize, verify: bool, y: Tensor| {
        let part = |x: &Tensor| rows(x, from, to);
        // The gate's projection is inside where it can be.
        let f = if whole { &inputs[3] } else { &f };
        let streams = [&inputs[0], &inputs[1], &inputs[2], f, &inputs[4], &gates].map(part);
        let weights = [taps[0], taps[1], taps[2], a_log, dt_bias, norm, window, state];
        let own = if whole { vec![wf, part(&y)] } else { vec![part(&y)] };
        let operands = [&streams[..], &weights, &own].concat();
        (OpKind::KdaMix, operands, attrs(&[gate.0, verify.into(), whole.into()], &[gate.1, eps, scale, 1e-5]))
    };
    let normed = vec![rows(&stepped, 0, ACCEPTED), rows(&gates, 0, ACCEPTED), norm, rows(&gated, 0, ACCEPTED)];
    let mut ops = vec![(OpKind::GatedRmsNorm, normed, attrs(&[], &[1e-5]))];
    for i in 0..ACCEPTED {
        ops.push(mix(i, i + 1, false, fused));
        let (row, ops) = (row(i, 1, 4, 4), std::mem::take(&mut ops));
        for op in ops {
            // The norm is of all tokens, the fused op of one.
            let tokens = op.1.last().unwrap().dims[0] as u32;
            bench.run(ts_step_row { query_len: tokens, ..row }, &[op]);
        }
    }
    let untouched = bench.read(&rows(&state, 2, 3));
    let mut verification = layer(0, CANDIDATES, true, verified);
    verification.push((OpKind::KdaRecord, [&inputs[..], &[record]].concat(), Attrs::default()));
    verification.push(mix(0, CANDIDATES, true, candidates));
    bench.run(row(0, CANDIDATES, 2, 3), &verification);
    let bits = |x: &Tensor, from, to| bench.read(&rows(x, from, to));
    assert!(bits(&stepped, 0, ACCEPTED) == bits(&verified, 0, ACCEPTED), "verify gives other outputs than decoding");
    assert!(bits(&gated, 0, ACCEPTED) == bits(&fused, 0, ACCEPTED), "the fused op gives other outputs than its parts");
    assert!(bits(&gated, 0, ACCEPTED) == bits(&candidates, 0, ACCEPTED), "fused verification gives other outputs");
    assert!(bits(&state, 2, 3) == untouched, "verify changed the state");
    assert!(bits(&state, 3, 4).iter().all(|b| *b == 0xff), "verify wrote a state");

    let replay = vec![record, taps[0], taps[1], taps[2], wf, a_log, dt_bias, window, state];
    bench.run(row(0, ACCEPTED, 2, 3), &[(OpKind::KdaReplay, replay, attrs(&[gate.0], &[gate.1, eps, scale]))]);
    let bits = |x: &Tensor, slot| bench.read(&rows(x, slot, slot + 1));
    assert!(bits(&window, 1) == bits(&window, 3), "the replayed window differs from the decoded one");
    assert!(bits(&state, 1) == bits(&state, 3), "the replayed state differs from the decoded one");
    assert!(bits(&window, 1) == bits(&window, 4), "the fused op leaves another window");
    assert!(bits(&state, 1) == bits(&state, 4), "the fused op leaves another state");
    assert!(bits(&state, 2) == untouched, "the replay changed the slot it starts from");
    assert!(bits(&state, 1) != untouched);

    if dim == 128 {
        let mut last = layer(ACCEPTED, CANDIDATES, false, stepped);
        let normed = [&stepped, &gates, &gated].map(|x| rows(x, ACCEPTED, CANDIDATES));
        last.push((OpKind::GatedRmsNorm, vec![normed[0], normed[1], norm, normed[2]], attrs(&[], &[1e-5])));
        // The projection is neither's, or both's.
        last.retain(|op| whole || op.0 != OpKind::Gemm);
        let mut traffic = |ops: &[_], slot| {
            counters(emulator());
            bench.run(row(ACCEPTED, 1, slot, slot), ops);
            let counts = counters(emulator());
            (counts[10] + counts[11], counts[..9].iter().sum::<u64>())
        };
        let parts = traffic(&last, 1);
        let one = traffic(&[mix(ACCEPTED, CANDIDATES, false, fused)], 4);
        // State and window there and back; q, k, v, gate and y; taps, bias and norm; f, or what makes it.
        let floor = heads * dim * (4 * (2 * dim + 5 + 12 + 2) + 2 * 9 * kept.block_bytes() as u64);
        let floor = floor + if whole { gate_width * (2 * heads * dim + 4) } else { 4 * heads * dim };
        eprintln!(
            "a token of {heads} heads: floor {floor} bytes, parts {parts:?}, fused {one:?} bytes and instructions"
        );
        assert!(one.0 * 100 <= floor * 115, "{one:?} bytes and instructions, the floor is {floor} bytes");
    }
}

#[test]
fn decode_verify_and_replay_have_the_same_bits() {
    agree(&[], DType::F32, 2, 128, 128);
    agree(&[], DType::BF16, 1, 128, 128);
    agree(&[], DType::BF16, 3, 32, 24);
}

#[test]
fn decode_verify_and_replay_have_the_same_bits_in_f32() {
    agree(&[("precision", "f32")], DType::BF16, 1, 128, 128);
    agree(&[("precision", "f32")], DType::F32, 2, 24, 16);
}

/// Two whole chunks of a head of Kimi's size, as matrix products and token by token.
struct Chunks {
    /// Instructions of each way.
    chunks: u64,
    tokens: u64,
    /// Largest difference, over the root mean square of the tokens' outputs; NaN if anything is.
    worst: f32,
}

/// `gate` makes log decays of numbers in -1..1.
fn both_ways(gate: fn(f32) -> f32) -> Option<Chunks> {
    let (_backend, device) = backend_device(&[])?;
    configure(emulator(), true, 1);
    let mut bench = Bench::new(&device);
    let (t, d, mut random) = (128, 128, Random(5));
    let mut value = |width: u64, f: &dyn Fn(f32) -> f32| {
        let values: Vec<f32> = (0..t * width).map(|_| f(random.unit())).collect();
        bench.place(DType::F32, Vary::Tokens, &[t, 1, width], Some(values.bytes()))
    };
    let unit = (3.0 / d as f32).sqrt();
    let [q, k] = [unit / (d as f32).sqrt(), unit].map(|scale| value(d, &|x| x * scale));
    let v = value(d, &|x| x);
    let g = value(d, &gate);
    let mut beta = value(1, &|x| 0.5 + 0.5 * x);
    (beta.rank, beta.dims[1]) = (2, 1);
    let state = bench.place(DType::F32, Vary::Fixed, &[2, 1, d, d], None);
    let [stepped, chunked] = [0; 2].map(|_| bench.place(DType::F32, Vary::Tokens, &[t, 1, d], None));
    bench.load();
    let row = ts_step_row { query_len: t as u32, state_write: 1, ..Default::default() };
    let mut cost = |kind, o| {
        counters(emulator());
        bench.run(row, &[(kind, vec![q, k, v, g, beta, state, o], Attrs::default())]);
        let c = counters(emulator());
        eprintln!(
            "{kind}: {} instructions, {} multiply-adds, {} bytes read, {} written",
            c[..9].iter().sum::<u64>(),
            c[9],
            c[10],
            c[11]
        );
        c[..9].iter().sum::<u64>()
    };
    let (tokens, chunks) = (cost(OpKind::KdaStep, stepped), cost(OpKind::KdaChunk, chunked));
    let [a, b] = [stepped, chunked].map(|o| f32s(&bench.read(&o)));
    let rms = (a.iter().map(|x| x * x).sum::<f32>() / a.len() as f32).sqrt();
    // `f32::max` would drop what is no number.
    let larger = |m: f32, x: f32| if x.is_nan() || x > m { x } else { m };
    let worst = a.iter().zip(&b).fold(0f32, |m, (a, b)| if m.is_nan() { m } else { larger(m, (a - b).abs()) });
    Some(Chunks { chunks, tokens, worst: worst / rms })
}

#[test]
fn chunks_cost_less_than_their_tokens() {
    let Some(found) = both_ways(|x| -x.abs().powi(4)) else { return };
    assert!(found.worst <= 0.04, "largest error {} rms", found.worst);
    assert!(
        3 * found.chunks < 2 * found.tokens,
        "{} instructions in chunks, {} token by token",
        found.chunks,
        found.tokens
    );
}

/// Case 117: gates of every strength side by side, to far beyond what f32 exponents hold over a chunk.
pub fn strong_gates() -> Option<f32> {
    let gate = |x: f32| [0.0, -1e-4, -0.5, -2.5, -5.0, -20.0][((x + 1.0) * 3.0) as usize % 6];
    both_ways(gate).map(|found| found.worst)
}

#[test]
fn chunks_of_strong_gates_are_their_tokens() {
    let Some(worst) = strong_gates() else { return };
    assert!(worst <= 0.04, "largest error {worst} rms");
}
