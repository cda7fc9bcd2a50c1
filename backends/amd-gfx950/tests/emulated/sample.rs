//! The op `sample` over the vocabulary of Kimi K3, which the catalogue's cases are too small for: many chunks, long ties,
//! flat and steep rows, held against the host's sampler. The emulator's checks are off there, since they take minutes; a smaller
//! vocabulary has them.

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_STEP, TS_SAMPLED_TOKEN, ts_sample},
    backend::{ArenaKind, Bindings},
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    record::OpRecord,
    sampling::{self, Draw, Filters},
    step::StepData,
    tensor::Tensor,
};

use crate::support::{Bytes, Random, backend_device, configure, emulator, f32s, report};

/// Ids of Kimi K3, and few enough to be sampled with all checks on.
const IDS: [usize; 2] = [163_840, 5_000];

/// A row of logits and what is asked of it: (temperature, top-k, top-p, min-p, alternatives + 1).
type Row = (fn(&mut Random) -> f32, (f32, u32, f32, f32, u32));

fn steep(r: &mut Random) -> f32 {
    let x = r.unit();
    14.0 * x * x * x
}

const ROWS: [Row; 5] = [
    (steep, (0.0, 0, 1.0, 0.0, 6)),
    (steep, (0.7, 0, 0.9, 0.0, 1)),
    // Nearly flat: half of the vocabulary is kept.
    (|r| r.unit() / 8.0, (1.0, 0, 0.5, 0.0, 0)),
    // Thousands of equal logits on either side of the cut.
    (|r| (r.unit() * 4.0).round(), (1.3, 30_000, 0.95, 0.0, 3)),
    (steep, (1.0, 0, 1.0, 0.02, 0)),
];

#[test]
fn a_wide_vocabulary_is_sampled_as_on_the_host() {
    sampled(IDS[0], false);
}

#[test]
fn several_chunks_are_sampled_as_on_the_host() {
    sampled(IDS[1], true);
}

fn sampled(ids: usize, checks: bool) {
    let Some((_backend, device)) = backend_device(&[]) else { return };
    configure(emulator(), checks, 1);
    let (l, mut random) = (ROWS.len() as u64, Random(17));
    let logits: Vec<f32> =
        ROWS.iter().flat_map(|(f, _)| (0..ids).map(|_| f(&mut random)).collect::<Vec<_>>()).collect();
    let mut at = 0u64;
    let mut place = |dtype, vary, dims: &[u64]| {
        let mut tensor = Tensor::new(dtype, vary, dims);
        (tensor.binding, tensor.offset) = (TS_BIND_ACTIVATIONS, at);
        at = (at + tensor.bytes()).next_multiple_of(256);
        tensor
    };
    let x = place(DType::F32, Vary::LogitRows, &[l, ids as u64]);
    let relay = place(DType::I32, Vary::Fixed, &[l + 1]);
    let chosen = place(DType::U32, Vary::LogitRows, &[l, CHOSEN_WIDTH as u64]);
    let logprobs = place(DType::F32, Vary::LogitRows, &[l, LOGPROBS_WIDTH as u64]);
    let operands = [x, relay, chosen, logprobs].map(Tensor::to_abi).to_vec();
    let mut op = OpRecord::new(OpKind::Sample, operands, Attrs::default(), "sample");
    let support = device.op_support(&op).unwrap();
    assert!(support.is_supported(), "{}", support.reason);
    (op.workspace_offset, op.workspace_bytes) = (at, support.workspace_bytes);
    let arena = device.arena_alloc(ArenaKind::Activations, at + support.workspace_bytes).unwrap();
    device.write(&arena, 0, &logits.bytes()).unwrap();
    device.write(&arena, relay.offset, &vec![0; relay.bytes() as usize]).unwrap();

    let tokens = vec![0; ROWS.len()];
    let mut step = StepData::from_spans(&[(0, 40, &tokens)]);
    step.logit_rows = (0..l as u32).collect();
    let record = |(i, (_, (temperature, top_k, top_p, min_p, n_logprobs))): (usize, &Row)| ts_sample {
        temperature: *temperature,
        top_k: *top_k,
        top_p: *top_p,
        min_p: *min_p,
        n_logprobs: *n_logprobs,
        repetition_penalty: 1.0,
        seed: 0x1234_5678_9abc_def0 + i as u64,
        position: 41 + i as u32,
        sample_index: 1,
        relay_slot: i as u32 + 1,
        ..Default::default()
    };
    step.samples = ROWS.iter().enumerate().map(record).collect();
    let block = step.to_bytes();
    let step_arena = device.arena_alloc(ArenaKind::Step, block.len() as u64).unwrap();
    device.write(&step_arena, 0, &block).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind_all(TS_BIND_STEP, &step_arena).bind_all(TS_BIND_ACTIVATIONS, &arena);
    let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
    device.op_launch(&queue, &op, &bindings).unwrap();
    device.queue_signal(&queue, &event, 1).unwrap();
    event.wait(1, 60_000_000_000).unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
    let read = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.bytes() as usize];
        device.read(&arena, tensor.offset, &mut bytes).unwrap();
        bytes
    };
    let words =
        |bytes: Vec<u8>| -> Vec<u32> { bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect() };
    let (chosen, slots, logprobs) = (words(read(&chosen)), words(read(&relay)), f32s(&read(&logprobs)));

    let mut keys = Vec::new();
    for (i, (row, sample)) in logits.chunks(ids).zip(&step.samples).enumerate() {
        let max = sampling::finite_max(row).unwrap();
        let draw = Draw {
            temperature: sample.temperature,
            filters: Filters { top_k: sample.top_k, top_p: sample.top_p, min_p: sample.min_p },
            seed: sample.seed,
            position: sample.position,
            sample_index: sample.sample_index,
        };
        let id = sampling::choose(row, max, &draw, &mut keys);
        let found = &chosen[i * CHOSEN_WIDTH..][..CHOSEN_WIDTH];
        assert_eq!((found[0], found[1], slots[i + 1]), (TS_SAMPLED_TOKEN, id, id), "row {i}");
        let Some(k) = sample.n_logprobs.checked_sub(1) else { continue };
        let score = sampling::score(row, max, id, k, &mut keys);
        let best: Vec<u32> = keys.iter().map(|key| sampling::id_of(*key)).collect();
        assert_eq!((found[2], &found[4..4 + k as usize]), (score.rank, &best[..]), "row {i}: rank and the best");
        let off = (logprobs[i * LOGPROBS_WIDTH] - score.logprob).abs();
        assert!(off <= 1e-6 * score.logprob.abs(), "row {i}: log-probability off by {off}");
    }
}
