//! The null backend, called the way the engine calls any backend: by name, through the C table.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};
use tokenspeed_backend_api::{
    abi::*,
    backend::{ArenaKind, Backend, Bindings, Bucket, Device, Load, OpRecord, SegmentKind, StepBuffer},
    dtype::DType,
    graph::Vary,
    loader::{self, SearchPaths},
    op::{Attrs, OpKind},
};
use tokenspeed_null as _;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

/// Counts allocations of the calling thread.
struct Counting;

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOCABULARY: u64 = 16;

fn null() -> Backend {
    loader::load("null", &SearchPaths::default()).unwrap()
}

fn tensor(dims: &[u64], vary: Vary, binding: u32) -> ts_tensor {
    let mut d = [1; TS_MAX_RANK];
    d[..dims.len()].copy_from_slice(dims);
    ts_tensor {
        dtype: DType::F32 as u32,
        rank: dims.len() as u32,
        dims: d,
        stride0: 0,
        vary: vary as u32,
        binding,
        offset: 0,
        layout: 0,
        reserved: 0,
    }
}

/// Gathers rows of activations, "computes" logits into the output.
fn ops() -> Vec<OpRecord> {
    let x = tensor(&[8, 4], Vary::LogitRows, TS_BIND_ACTIVATIONS);
    let w = tensor(&[VOCABULARY, 4], Vary::Fixed, TS_BIND_WEIGHTS);
    let y = tensor(&[8, VOCABULARY], Vary::LogitRows, TS_BIND_OUTPUT);
    vec![
        OpRecord::new(OpKind::Silu, vec![x, x], Attrs::default(), "act"),
        OpRecord::new(OpKind::Gemm, vec![x, w, y], Attrs::default(), "lm_head"),
    ]
}

fn bindings(device: &Device) -> Bindings {
    let mut b = Bindings::new();
    for (slot, kind, bytes) in [
        (TS_BIND_STEP, ArenaKind::Step, 4096),
        (TS_BIND_ACTIVATIONS, ArenaKind::Activations, 4096),
        (TS_BIND_OUTPUT, ArenaKind::Output, 8 * VOCABULARY * 4),
        (TS_BIND_WEIGHTS, ArenaKind::Weights, 4096),
    ] {
        b.bind_all(slot, &device.arena_alloc(kind, bytes).unwrap());
    }
    b
}

/// One request of two tokens (ids 3 and `id`, positions 5 and 6); logits of the last.
fn write_step(step: &mut StepBuffer, id: i32) {
    let header = ts_step {
        struct_size: size_of::<ts_step>() as u32,
        n_tokens: 2,
        n_rows: 1,
        n_logit_rows: 1,
        rows_offset: 64,
        tokens_offset: 96,
        logit_rows_offset: 128,
        bytes: 144,
        ..Default::default()
    };
    let row = ts_step_row { computed: 5, query_len: 2, ..Default::default() };
    let tokens = [3, id].map(|id| ts_step_token { id, position: if id == 3 { 5 } else { 6 }, ..Default::default() });
    let block = step.bytes_mut().expect("the last step is over");
    // SAFETY: the buffer is aligned to 64 and has 4096 bytes.
    unsafe {
        let p = block.as_mut_ptr();
        p.cast::<ts_step>().write(header);
        p.add(64).cast::<ts_step_row>().write(row);
        p.add(96).cast::<[ts_step_token; 2]>().write(tokens);
        p.add(128).cast::<u32>().write(1);
    }
    step.set_len(144);
}

const BUCKET: Bucket = Bucket { max_tokens: 8, max_rows: 8, max_logit_rows: 8 };

#[test]
fn ramp_logits_follow_the_last_token() {
    let device = null().open(0, &[("logits", "ramp")]).unwrap();
    let (queue, event, bindings) = (device.queue_create().unwrap(), device.event_create().unwrap(), bindings(&device));
    let program = device.program_prepare(&ops(), &bindings, BUCKET).unwrap();
    let mut step = StepBuffer::with_capacity(4096);
    for (i, id) in [(1, 7), (2, 11)] {
        write_step(&mut step, id);
        device.program_run(&program, &queue, &mut step, &event, i).unwrap();
        event.wait(i, u64::MAX).unwrap();
        let mut logits = vec![0u8; VOCABULARY as usize * 4];
        device.read(bindings.arena(TS_BIND_OUTPUT).unwrap(), 0, &mut logits).unwrap();
        let logits: Vec<f32> = logits.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(best as u64, (id as u64 + 6 + 1) % VOCABULARY);
        assert_eq!(logits[best], 0.0);
    }
    let segments = device.program_describe(&program).unwrap();
    assert_eq!((segments.len(), segments[0].n_ops, segments[0].kind), (1, 2, SegmentKind::Eager));
}

#[test]
fn a_step_allocates_nothing() {
    let device = null().open(0, &[("logits", "ramp")]).unwrap();
    let (queue, event, bindings) = (device.queue_create().unwrap(), device.event_create().unwrap(), bindings(&device));
    let program = device.program_prepare(&ops(), &bindings, BUCKET).unwrap();
    let mut step = StepBuffer::with_capacity(4096);
    let output = bindings.arena(TS_BIND_OUTPUT).unwrap();
    let mut logits = vec![0u8; VOCABULARY as usize * 4];
    let before = ALLOCATIONS.get();
    for i in 1..=100 {
        write_step(&mut step, 7);
        device.program_run(&program, &queue, &mut step, &event, i).unwrap();
        event.wait(i, u64::MAX).unwrap();
        assert_eq!(event.query().unwrap(), i);
        device.read(output, 0, &mut logits).unwrap();
        device.write(output, 0, &logits).unwrap();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn steps_that_do_not_fit_are_refused_and_stick_to_the_event() {
    let device = null().open(0, &[]).unwrap();
    let (queue, event, bindings) = (device.queue_create().unwrap(), device.event_create().unwrap(), bindings(&device));
    let program = device.program_prepare(&ops(), &bindings, Bucket { max_tokens: 1, ..BUCKET }).unwrap();
    let mut step = StepBuffer::with_capacity(4096);
    write_step(&mut step, 7);
    let error = device.program_run(&program, &queue, &mut step, &event, 1).unwrap_err();
    assert_eq!(error.code, TS_ERR_INVALID);
    assert!(error.to_string().starts_with("null: program_run: invalid argument: step 0: 2 tokens"), "{error}");
    assert_eq!(event.query().unwrap_err().message, error.message);
    assert!(step.bytes_mut().is_some(), "the block is free again");
    // Operands smaller than the bucket are found when the program is prepared.
    let error = device.program_prepare(&ops(), &bindings, Bucket { max_logit_rows: 9, ..BUCKET }).unwrap_err();
    assert!(error.message.contains("silu act: operand 0: holds 8 entries of the 9 wanted"), "{error}");
    // So are operands outside of what is bound.
    let mut far = ops();
    far[1].operands[1].offset = 4000;
    let error = device.program_prepare(&far, &bindings, BUCKET).unwrap_err();
    assert!(error.message.contains("gemm lm_head: operand 1: needs 256 bytes, 96 are bound"), "{error}");
}

#[test]
fn ops_can_be_launched_one_by_one() {
    let device = null().open(0, &[("logits", "ramp")]).unwrap();
    let (queue, bindings) = (device.queue_create().unwrap(), bindings(&device));
    let mut step = StepBuffer::with_capacity(4096);
    write_step(&mut step, 2);
    device.write(bindings.arena(TS_BIND_STEP).unwrap(), 0, step.bytes()).unwrap();
    for op in ops() {
        assert!(device.op_support(&op).unwrap().is_supported());
        device.op_launch(&queue, &op, &bindings).unwrap();
    }
    let mut best = [1u8; 4];
    device.read(bindings.arena(TS_BIND_OUTPUT).unwrap(), 9 * 4, &mut best).unwrap();
    assert_eq!(f32::from_ne_bytes(best), 0.0, "token 2 at position 6 gives 9");
}

#[test]
fn options_are_used_or_refused() {
    let error = null().open(0, &[("speed", "max")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "null: device_open: invalid argument: unknown option speed=max; known options: step_us, token_us, logits, sample \
         (device 0)"
    );
    let error = null().open(0, &[("step_us", "-1")]).unwrap_err();
    assert!(error.message.contains("option step_us=-1: expected microseconds"), "{error}");
    let error = null().open(3, &[]).unwrap_err();
    assert!(error.message.contains("device 3 does not exist: there are 1"), "{error}");
    let device = null().open(0, &[("step_us", "5"), ("token_us", "2")]).unwrap();
    let bindings = bindings(&device);
    let program = device.program_prepare(&ops(), &bindings, BUCKET).unwrap();
    let load = Load { n_tokens: 10, ..Default::default() };
    assert_eq!(device.program_cost(&program, &load).unwrap(), Some(25_000));
}

#[test]
fn objects_keep_the_device_open_and_free_once() {
    let device = null().open(0, &[]).unwrap();
    let (event, arena) = (device.event_create().unwrap(), device.arena_alloc(ArenaKind::Cache, 64).unwrap());
    let program = device.program_prepare(&ops(), &bindings(&device), BUCKET).unwrap();
    let copy = arena.clone();
    drop(device);
    assert_eq!(event.query().unwrap(), 0, "an event answers after its device handle is gone");
    std::thread::spawn(move || drop((program, arena))).join().unwrap();
    drop((copy, event));
}

#[test]
fn imported_memory_is_read_only_and_kept_alive() {
    let device = null().open(0, &[]).unwrap();
    let owner = std::sync::Arc::new(vec![7u8; 64]);
    let arena = device.arena_import(ArenaKind::Weights, owner.clone(), |v| v.as_slice()).unwrap();
    let mut byte = [0];
    device.read(&arena, 63, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    assert!(device.write(&arena, 0, &[1]).unwrap_err().message.contains("read-only"));
    assert!(device.read(&arena, 64, &mut byte).is_err());
    assert_eq!(std::sync::Arc::strong_count(&owner), 2);
    drop((arena, device));
    assert_eq!(std::sync::Arc::strong_count(&owner), 1, "closing the device lets go of it");
}
