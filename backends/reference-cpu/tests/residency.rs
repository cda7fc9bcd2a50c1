//! Experts in a file several times larger than the memory allowed for them: the same results, and the mapping stays small.

use std::{
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_WEIGHTS},
    backend::{ArenaKind, Bindings, Bucket, Device},
    dtype::DType,
    exec::Executable,
    graph::Vary,
    loader::{SearchPaths, load},
    op::{Attrs, OpKind},
    record::OpRecord,
    step::StepData,
    tensor::Tensor,
};
use tokenspeed_reference_cpu as _;

const LAYERS: usize = 4;
const EXPERTS: usize = 16;
const TOP: usize = 4;
const TOKENS: usize = 8;
const K: usize = 1024;
const N: usize = 1024;
/// Codes and scales of one matrix.
const VALUES: usize = K * N / 2;
const SCALES: usize = K * N / 32;
const EXPERT: usize = 3 * (VALUES + SCALES);
const BUDGET: u64 = 24 << 20;

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
}

/// A mapped file of experts, all six tensors of one together, that goes away with its owner.
struct Mapped {
    path: PathBuf,
    data: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: read-only memory.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(name: &str) -> Arc<Self> {
        let path = std::env::temp_dir().join(format!("tokenspeed-experts-{}-{name}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let (mut noise, mut expert) = (Noise(7), Vec::with_capacity(EXPERT));
        for _ in 0..LAYERS * EXPERTS {
            expert.clear();
            for _ in 0..3 {
                expert.extend((0..VALUES / 8).flat_map(|_| noise.next().to_le_bytes()));
                // Scales between 2^-9 and 2^-6.
                expert.extend((0..SCALES / 8).flat_map(|_| (noise.next() & 0x0303_0303_0303_0303).to_le_bytes()));
                let scales = expert.len() - SCALES;
                expert[scales..].iter_mut().for_each(|s| *s += 118);
            }
            file.write_all(&expert).unwrap();
        }
        let bytes = LAYERS * EXPERTS * EXPERT;
        // SAFETY: maps a file that nobody else changes.
        let data =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(data, libc::MAP_FAILED);
        Arc::new(Self { path, data, bytes })
    }

    fn view(&self) -> &[u8] {
        // SAFETY: mapped above with this length.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes) }
    }

    /// Bytes of the mapping that are in this process's memory.
    fn resident(&self) -> u64 {
        let start = format!("{:x}-", self.data as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        assert!(lines.next().is_some(), "the mapping is listed");
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("a size");
        rss.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Out of this process's memory.
    fn forget(&self) {
        // SAFETY: pages of a read-only file mapping come back with the same contents.
        unsafe { libc::madvise(self.data, self.bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no arena is left, as they own a reference.
        unsafe { libc::munmap(self.data, self.bytes) };
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A program of one `experts` op per layer.
struct Program {
    executable: Executable,
    inputs: tokenspeed_backend_api::backend::Arena,
}

/// Where the inputs of a layer stand: x, ids, weights, slots, workspace.
const INPUTS: [usize; 6] = {
    let x = TOKENS * K * 4;
    let few = (TOKENS * TOP * 4).next_multiple_of(64);
    let slots = EXPERTS * 4;
    [0, x, x + few, x + 2 * few, x + 2 * few + slots, x + 2 * few + slots + (1 << 19)]
};

impl Program {
    fn new(mapped: &Arc<Mapped>, options: &[(&str, &str)]) -> Self {
        let device = load("reference-cpu", &SearchPaths::only([])).unwrap().open(0, options).unwrap();
        let mut bindings = Bindings::new();
        let mut arena = |slot, kind, bytes: usize| {
            let arena = device.arena_alloc(kind, bytes as u64).unwrap();
            bindings.bind_all(slot, &arena);
            arena
        };
        arena(TS_BIND_STEP, ArenaKind::Step, 4096);
        let inputs = arena(TS_BIND_ACTIVATIONS, ArenaKind::Activations, LAYERS * INPUTS[5]);
        arena(TS_BIND_OUTPUT, ArenaKind::Output, LAYERS * TOKENS * K * 4);
        let weights = device.arena_import(ArenaKind::Weights, Arc::clone(mapped), |m| m.view()).unwrap();
        bindings.bind_all(TS_BIND_WEIGHTS, &weights);
        let ops: Vec<OpRecord> = (0..LAYERS).map(|layer| op(&device, layer)).collect();
        let bucket = Bucket { max_tokens: TOKENS as u32, max_rows: 1, max_logit_rows: 1 };
        let executable = Executable::new(device, vec![(ops, bindings, bucket)], None).unwrap();
        Self { executable, inputs }
    }

    /// One step of `tokens` tokens; the choice of experts and everything else follows from the seed.
    fn step(&mut self, seed: u64, tokens: usize) -> (Vec<u8>, u64) {
        let mut noise = Noise(seed);
        let mut chosen = 0;
        for layer in 0..LAYERS {
            let (mut ids, mut all): (Vec<u32>, Vec<u32>) = Default::default();
            for _ in 0..tokens {
                let mut left: Vec<u32> = (0..EXPERTS as u32).collect();
                ids.extend((0..TOP).map(|_| left.swap_remove(noise.next() as usize % left.len())));
            }
            all.extend(&ids);
            all.sort();
            all.dedup();
            chosen += all.len() as u64;
            let mut unit = || (noise.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            let x: Vec<u8> = (0..tokens * K).flat_map(|_| unit().to_ne_bytes()).collect();
            let weights: Vec<u8> = (0..tokens * TOP).flat_map(|_| unit().to_ne_bytes()).collect();
            let slots: Vec<u8> = (0..EXPERTS as u32).flat_map(|e| ((e * 5 + 3) % 16).to_ne_bytes()).collect();
            let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
            for (place, bytes) in INPUTS.iter().zip([x, ids, weights, slots]) {
                self.executable.device().write(&self.inputs, (layer * INPUTS[5] + place) as u64, &bytes).unwrap();
            }
        }
        let step = StepData::from_spans(&[(0, 0, &vec![0; tokens][..])]).to_bytes();
        self.executable.run(0, &step, LAYERS * TOKENS * K).unwrap();
        let out = self.executable.logits(0);
        let used = out.chunks(TOKENS * K).flat_map(|layer| &layer[..tokens * K]);
        (used.flat_map(|v| v.to_ne_bytes()).collect(), chosen)
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.executable.device().counters().unwrap();
        counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} in {counters:?}")).1
    }
}

fn op(device: &Device, layer: usize) -> OpRecord {
    let place = |dtype, vary, dims: &[u64], binding, offset: usize| {
        let tensor = Tensor { binding, offset: offset as u64, ..Tensor::new(dtype, vary, dims) };
        tensor.to_abi()
    };
    let (t, e, k, n, top) = (TOKENS as u64, EXPERTS as u64, K as u64, N as u64, TOP as u64);
    let input = |i: usize| layer * INPUTS[5] + INPUTS[i];
    let mut operands = vec![
        place(DType::F32, Vary::Tokens, &[t, k], TS_BIND_ACTIVATIONS, input(0)),
        place(DType::U32, Vary::Tokens, &[t, top], TS_BIND_ACTIVATIONS, input(1)),
        place(DType::F32, Vary::Tokens, &[t, top], TS_BIND_ACTIVATIONS, input(2)),
        place(DType::U32, Vary::Fixed, &[e], TS_BIND_ACTIVATIONS, input(3)),
    ];
    for scales in [false, true] {
        for (i, shape) in [[e, n, k], [e, n, k], [e, k, n]].into_iter().enumerate() {
            let at = layer * EXPERTS * EXPERT + i * (VALUES + SCALES);
            let mut stack = match scales {
                false => place(DType::Mxfp4, Vary::Fixed, &shape, TS_BIND_WEIGHTS, at),
                true => {
                    place(DType::U8, Vary::Fixed, &[shape[0], shape[1], shape[2] / 32], TS_BIND_WEIGHTS, at + VALUES)
                }
            };
            stack.stride0 = EXPERT as u64;
            operands.push(stack);
        }
    }
    operands.push(place(DType::F32, Vary::Tokens, &[t, k], TS_BIND_OUTPUT, layer * TOKENS * K * 4));
    let mut attrs = Attrs::default();
    (attrs.i[0], attrs.f[0], attrs.f[1]) = (1, 4.0, 25.0);
    let mut op = OpRecord::new(OpKind::Experts, operands, attrs, format!("layers.{layer}.experts"));
    let support = device.op_support(&op).unwrap();
    assert!(support.is_supported() && support.workspace_bytes <= 1 << 19, "{support:?}");
    (op.workspace_offset, op.workspace_bytes) = (input(4) as u64, support.workspace_bytes);
    op
}

const STEPS: [usize; 8] = [1, 1, 3, 8, 1, 2, 8, 1];

#[test]
fn a_budget_bounds_the_mapping_and_changes_no_bit() {
    let mapped = Mapped::new("budget");
    assert!(mapped.bytes as u64 > 4 * BUDGET);
    let mut free = Program::new(&mapped, &[("threads", "2")]);
    let want: Vec<_> = STEPS.iter().enumerate().map(|(i, tokens)| free.step(i as u64, *tokens)).collect();
    assert!(mapped.resident() > 3 * BUDGET, "without a budget all chosen experts stay");
    assert!(free.executable.device().counters().unwrap().is_empty());
    drop(free);
    mapped.forget();

    let budget = BUDGET.to_string();
    let mut held = Program::new(&mapped, &[("threads", "2"), ("expert_cache_bytes", &budget)]);
    let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let sampler = std::thread::spawn({
        let (mapped, most, done) = (Arc::clone(&mapped), Arc::clone(&most), Arc::clone(&done));
        move || {
            while !done.load(Relaxed) {
                most.fetch_max(mapped.resident(), Relaxed);
            }
        }
    });
    let mut chosen = 0;
    for (i, (tokens, (want, count))) in STEPS.iter().zip(&want).enumerate() {
        let (got, _) = held.step(i as u64, *tokens);
        assert!(got == *want, "step {i} of {tokens} tokens");
        chosen += count;
        most.fetch_max(mapped.resident(), Relaxed);
    }
    done.store(true, Relaxed);
    sampler.join().unwrap();
    let most = most.load(Relaxed);
    assert!(most <= BUDGET + BUDGET / 10, "{most} bytes were mapped at a time");
    assert!(most > BUDGET / 4, "the budget is used");
    let (hits, misses) = (held.counter("expert_hits"), held.counter("expert_misses"));
    assert_eq!(hits + misses, chosen, "{hits} hits, {misses} misses");
    assert!(misses > 0 && hits < misses, "{hits} hits, {misses} misses");
    let (read, resident) = (held.counter("expert_bytes_read"), held.counter("expert_bytes_resident"));
    let per = EXPERT as u64;
    assert!(misses * per <= read && read <= misses * (per + (8 << 10)), "{read} bytes for {misses} misses");
    assert!(resident <= BUDGET, "{resident}");

    drop(held);

    // With room for all of them, the same token finds its experts where they are.
    let mut roomy = Program::new(&mapped, &[("threads", "1"), ("expert_cache_bytes", "1000000000")]);
    let (first, chosen) = roomy.step(0, 1);
    assert!(first == want[0].0);
    assert_eq!((roomy.counter("expert_hits"), roomy.counter("expert_misses")), (0, chosen));
    roomy.step(0, 1);
    assert_eq!((roomy.counter("expert_hits"), roomy.counter("expert_misses")), (chosen, chosen));
}

#[test]
fn a_budget_for_less_than_two_experts_is_refused_by_name() {
    let mapped = Mapped::new("refused");
    let device = load("reference-cpu", &SearchPaths::only([])).unwrap();
    let device = device.open(0, &[("expert_cache_bytes", "7000000")]).unwrap();
    let mut bindings = Bindings::new();
    let mut keep = Vec::new();
    for (slot, kind, bytes) in [
        (TS_BIND_STEP, ArenaKind::Step, 4096),
        (TS_BIND_ACTIVATIONS, ArenaKind::Activations, LAYERS * INPUTS[5]),
        (TS_BIND_OUTPUT, ArenaKind::Output, LAYERS * TOKENS * K * 4),
    ] {
        let arena = device.arena_alloc(kind, bytes as u64).unwrap();
        bindings.bind_all(slot, &arena);
        keep.push(arena);
    }
    let weights = device.arena_import(ArenaKind::Weights, Arc::clone(&mapped), |m| m.view()).unwrap();
    bindings.bind_all(TS_BIND_WEIGHTS, &weights);
    let bucket = Bucket { max_tokens: TOKENS as u32, max_rows: 1, max_logit_rows: 1 };
    let ops = vec![op(&device, 0)];
    let refused = Executable::new(device, vec![(ops, bindings, bucket)], None).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("layers.0.experts") && message.contains("expert_cache_bytes"), "{message}");
}

#[test]
fn exact_mode_has_no_budget() {
    let backend = load("reference-cpu", &SearchPaths::only([])).unwrap();
    let refused = backend.open(0, &[("mode", "exact"), ("expert_cache_bytes", "1")]).unwrap_err().to_string();
    assert!(refused.contains("mode=fast"), "{refused}");
}
