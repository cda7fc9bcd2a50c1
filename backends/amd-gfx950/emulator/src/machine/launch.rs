//! A launch: work-groups over threads, waves interleaved, barriers, the step limit.
//!
//! Decision: waves run in slices chosen by a seeded generator in checked mode, so that a failure is repeated by its seed, and
//! in turn otherwise. A work-group that does not finish in a while (it may spin on another one) makes the scheduler bring in
//! one more, so a kernel whose groups wait for each other ends as it does on a device that holds them all.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{
    context::{Cx, Env, Scratch},
    counters::Counters,
    detail::{Axis, Detail, sample},
    fault::Report,
    lds::Lds,
    memory::{Memory, Owner},
    run::run,
    side_cache::SideCache,
    wave::{Signal, Wave},
};
use crate::code::Kernel;

/// What to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// Work-groups.
    pub groups: [u32; 3],
    /// Lanes per work-group.
    pub block: [u32; 3],
    /// LDS bytes beyond the kernel's own.
    pub dynamic_lds: u32,
    /// Explicit arguments, laid out; hidden ones are filled in.
    pub kernarg: Vec<u8>,
}

/// How to run it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode {
    /// All checks and late landing.
    pub check: bool,
    /// Of the interleaving, in checked mode.
    pub seed: u64,
    /// Host threads, in unchecked mode.
    pub threads: usize,
    /// Instructions of one wave after which it counts as stuck.
    pub max_steps: u64,
    /// Counts lines and bank conflicts too ([`Detail`]).
    pub detail: bool,
    /// Most coordinates per axis at which work-groups run; 0 = all. A launch of which not all run computes garbage.
    pub sample: u32,
    /// Matrix products are counted, not computed: results are garbage, and whatever depends on them.
    pub hollow: bool,
}

/// Packet and queue structures behind the arguments.
const PACKET_BYTES: usize = 64;
const QUEUE_BYTES: usize = 256;
/// Steps of a group after which another one joins. Where details are counted, half of what makes a wave count as stuck: lines per
/// work-group are told apart best while work-groups take no turns.
const PATIENCE: u64 = 200_000;

struct Group {
    id: [u32; 3],
    number: u64,
    lds: Lds,
    waves: Vec<Wave>,
    at_barrier: Vec<bool>,
    done: Vec<bool>,
    steps: u64,
}

/// A small generator: xorshift64*.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n.max(1)
    }
}

struct Shared<'a> {
    env: Env<'a>,
    dispatch: &'a Dispatch,
    mode: Mode,
    kernarg: u64,
    packet: u64,
    queue: u64,
    next: AtomicU64,
    total: u64,
    axes: [Axis; 3],
    stop: AtomicBool,
    report: Mutex<Option<Report>>,
    cache: Option<&'a Mutex<SideCache>>,
}

/// Runs a kernel to its end. With `devices`, it sees the memory of those alone.
///
/// # Errors
/// The first fault of any wave.
pub fn launch(
    kernel: &Kernel,
    memory: &Memory,
    devices: Option<&[i32]>,
    dispatch: &Dispatch,
    mode: Mode,
) -> Result<Counters, Report> {
    launch_behind(None, kernel, memory, devices, dispatch, mode)
}

/// [`launch`] behind a memory-side cache, whose traffic is among the details. Only launches without checks whose work-groups
/// all run know what they do to it; others leave it alone.
///
/// # Errors
/// The first fault of any wave.
pub fn launch_behind(
    cache: Option<&Mutex<SideCache>>,
    kernel: &Kernel,
    memory: &Memory,
    devices: Option<&[i32]>,
    dispatch: &Dispatch,
    mode: Mode,
) -> Result<Counters, Report> {
    let cache = cache.filter(|_| mode.detail && mode.sample == 0 && !mode.check);
    if let Some(cache) = cache {
        locked(cache).begin();
    }
    let kernarg_bytes = kernel.kernarg_bytes.max(dispatch.kernarg.len()).next_multiple_of(64);
    let fail = |what: &str| Report {
        what: what.into(),
        kernel: kernel.name.clone(),
        offset: 0,
        instruction: String::new(),
        group: [0; 3],
        wave: 0,
        lane: None,
    };
    let block = memory
        .allocate(kernarg_bytes + PACKET_BYTES + QUEUE_BYTES, Owner::System, false)
        .ok_or_else(|| fail("no memory for arguments"))?;
    let bytes = argument_block(kernel, dispatch, kernarg_bytes, block.base as u64);
    // SAFETY: the block was just allocated, is not shared yet, and is at least this long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.base as *mut u8, bytes.len()) };
    let axes = sampled(dispatch, mode);
    let view = devices.map_or_else(|| memory.view(), |devices| memory.view().of_devices(devices));
    let shared = Shared {
        env: Env { kernel, memory: &view, check: mode.check, products: !mode.hollow },
        dispatch,
        mode,
        kernarg: block.base as u64,
        packet: (block.base + kernarg_bytes) as u64,
        queue: (block.base + kernarg_bytes + PACKET_BYTES) as u64,
        next: AtomicU64::new(0),
        total: axes.iter().map(|a| a.len() as u64).product(),
        axes,
        stop: AtomicBool::new(false),
        report: Mutex::new(None),
        cache,
    };
    let threads = if mode.check { 1 } else { mode.threads.min(shared.total as usize).max(1) };
    let mut counters = Counters::default();
    if threads == 1 {
        counters = worker(&shared, 0);
    } else {
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads as u64)
                .map(|t| {
                    scope.spawn({
                        let shared = &shared;
                        move || worker(shared, t)
                    })
                })
                .collect();
            for handle in handles {
                match handle.join() {
                    Ok(c) => counters.add(&c),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
    }
    memory.free(block.base);
    if let (Some(cache), Some(detail)) = (cache, &mut counters.detail) {
        detail.hbm = Some(locked(cache).traffic());
    }
    match shared.report.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(report) => Err(report),
        None => Ok(counters),
    }
}

/// A cache that nobody else is looking at.
fn locked(cache: &Mutex<SideCache>) -> std::sync::MutexGuard<'_, SideCache> {
    cache.lock().unwrap_or_else(|e| e.into_inner())
}

/// Coordinates per axis at which work-groups run.
pub fn sampled(dispatch: &Dispatch, mode: Mode) -> [Axis; 3] {
    dispatch.groups.map(|extent| sample(extent, mode.sample))
}

/// Explicit and hidden arguments, the dispatch packet, an empty queue.
fn argument_block(kernel: &Kernel, d: &Dispatch, kernarg_bytes: usize, base: u64) -> Vec<u8> {
    let mut bytes = vec![0; kernarg_bytes + PACKET_BYTES + QUEUE_BYTES];
    bytes[..d.kernarg.len()].copy_from_slice(&d.kernarg);
    let axis = |kind: &str| match kind.as_bytes().last() {
        Some(b'y') => 1,
        Some(b'z') => 2,
        _ => 0,
    };
    for a in kernel.arguments.iter().filter(|a| a.kind.starts_with("hidden_")) {
        let i = axis(&a.kind);
        let value: u64 = match a.kind.trim_end_matches(['x', 'y', 'z']) {
            "hidden_block_count_" => d.groups[i].into(),
            "hidden_group_size_" => d.block[i].into(),
            "hidden_grid_dims" => 3,
            "hidden_dynamic_lds_size" => d.dynamic_lds.into(),
            "hidden_queue_ptr" => base + (kernarg_bytes + PACKET_BYTES) as u64,
            // Remainders and global offsets are zero; heaps and host services do not exist.
            _ => 0,
        };
        bytes[a.offset..a.offset + a.size].copy_from_slice(&value.to_le_bytes()[..a.size.min(8)]);
    }
    let packet = &mut bytes[kernarg_bytes..];
    let mut put = |at: usize, value: u64, len: usize| packet[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    put(0, 2, 2);
    put(2, 3, 2);
    for i in 0..3 {
        put(4 + 2 * i, d.block[i].into(), 2);
        put(12 + 4 * i, u64::from(d.groups[i]) * u64::from(d.block[i]), 4);
    }
    put(28, u64::from(kernel.descriptor.lds_bytes + d.dynamic_lds), 4);
    put(40, base, 8);
    bytes
}

fn worker(shared: &Shared, thread: u64) -> Counters {
    let check = shared.mode.check;
    let mut random = Random::new(shared.mode.seed.wrapping_add(thread));
    let (mut counters, mut scratch) = (Counters::default(), Scratch::default());
    let fresh = shared.cache.map(|_| Vec::new());
    counters.detail = shared.mode.detail.then(|| Box::new(Detail { fresh, ..Detail::default() }));
    let (mut active, mut spare): (Vec<Group>, Vec<Group>) = (Vec::new(), Vec::new());
    let mut wanted = if check { 1 + random.below(4) as usize } else { 1 };
    let mut turn = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        while active.len() < wanted {
            let id = shared.next.fetch_add(1, Ordering::Relaxed);
            if id >= shared.total {
                break;
            }
            let group = begin(shared, id, spare.pop());
            active.push(group);
        }
        if active.is_empty() {
            break;
        }
        turn += 1;
        let at = if check { random.below(active.len() as u64) as usize } else { turn % active.len() };
        let group = &mut active[at];
        let ready: Vec<usize> = (0..group.waves.len()).filter(|w| !group.done[*w] && !group.at_barrier[*w]).collect();
        let number = ready[if check {
            random.below(ready.len() as u64) as usize
        } else {
            turn / active_len_hint(wanted) % ready.len()
        }];
        let budget = match check {
            // Mostly short slices, now and then a long one, so that one wave runs far ahead.
            true if random.below(8) == 0 => 2000,
            true => 1 + random.below(60) as u32,
            false => 4096,
        };
        let before = group.waves[number].steps;
        if let Some(detail) = &mut counters.detail {
            detail.enter(group.id);
        }
        let signal = {
            let mut cx = Cx {
                w: &mut group.waves[number],
                lds: &mut group.lds,
                env: &shared.env,
                count: &mut counters,
                scratch: &mut scratch,
            };
            run(&mut cx, budget)
        };
        group.steps += group.waves[number].steps - before;
        match signal {
            Signal::Barrier => group.at_barrier[number] = true,
            Signal::End => group.done[number] = true,
            Signal::Fault => {
                stop(shared, group, number);
                break;
            }
            Signal::Yield | Signal::Run => {}
        }
        if group.waves[number].steps > shared.mode.max_steps {
            let what = stuck(shared, &active);
            let group = &mut active[at];
            group.waves[number].fail(what, None);
            stop(shared, group, number);
            break;
        }
        let group = &mut active[at];
        let patience = if counters.detail.is_some() { shared.mode.max_steps / 2 } else { PATIENCE };
        if group.steps > patience {
            group.steps = 0;
            wanted = (wanted + 1).min(1024);
        }
        let waiting = (0..group.waves.len()).all(|w| group.done[w] || group.at_barrier[w]);
        if waiting && group.done.iter().all(|d| *d) {
            counters.groups += 1;
            if let (Some(cache), Some(fresh)) = (shared.cache, counters.detail.as_mut().and_then(|d| d.fresh.as_mut()))
            {
                locked(cache).group(group.number, std::mem::take(fresh));
            }
            spare.push(active.swap_remove(at));
        } else if waiting {
            for w in 0..group.waves.len() {
                if group.at_barrier[w] {
                    group.waves[w].epoch += 1;
                    counters.barriers += 1;
                }
                group.at_barrier[w] = false;
            }
        }
    }
    counters
}

/// In unchecked mode every wave of a group gets a turn before the group's first one again.
fn active_len_hint(wanted: usize) -> usize {
    wanted.max(1)
}

fn stop(shared: &Shared, group: &Group, number: usize) {
    let wave = &group.waves[number];
    let kernel = shared.env.kernel;
    let offset = kernel.code.get(wave.pc.saturating_sub(1)).map_or(0, |i| i.address);
    let fault = wave.fault.clone();
    let mut report = shared.report.lock().unwrap_or_else(|e| e.into_inner());
    if let (None, Some(fault)) = (&*report, fault) {
        *report = Some(Report {
            what: fault.what,
            kernel: kernel.name.clone(),
            offset,
            instruction: kernel.disassemble(offset),
            group: group.id,
            wave: wave.index,
            lane: fault.lane,
        });
    }
    shared.stop.store(true, Ordering::Relaxed);
}

/// Where everybody is, when somebody runs for too long.
fn stuck(shared: &Shared, active: &[Group]) -> String {
    let mut places = Vec::new();
    for group in active {
        for (i, wave) in group.waves.iter().enumerate().filter(|(i, _)| !group.done[*i]) {
            let offset = shared.env.kernel.code.get(wave.pc.saturating_sub(1)).map_or(0, |i| i.address);
            let what = if group.at_barrier[i] { "at a barrier" } else { "running" };
            places.push(format!("group {:?} wave {i} {what} at {offset:#x}", group.id));
        }
    }
    let (count, limit) = (places.len(), shared.mode.max_steps);
    places.truncate(8);
    format!("deadlock or endless loop: still running after {limit} instructions; {count} waves: {}", places.join("; "))
}

/// A work-group with registers as the hardware sets them up.
fn begin(shared: &Shared, id: u64, spare: Option<Group>) -> Group {
    let [x, y, z] = &shared.axes;
    let (nx, ny, number) = (x.len(), y.len(), id);
    let id = number as usize;
    let id = [x[id % nx], y[id / nx % ny], z[id / nx / ny]];
    let kernel = shared.env.kernel;
    let d = &kernel.descriptor;
    let lanes: u32 = shared.dispatch.block.iter().product();
    let waves = lanes.div_ceil(64);
    let mut group = spare.unwrap_or_else(|| Group {
        id,
        number,
        lds: Lds::default(),
        waves: (0..waves).map(|w| Wave::new(d.vector_registers, w, id)).collect(),
        at_barrier: Vec::new(),
        done: Vec::new(),
        steps: 0,
    });
    (group.id, group.number) = (id, number);
    group.steps = 0;
    group.lds.reset((d.lds_bytes + shared.dispatch.dynamic_lds) as usize, shared.mode.check);
    group.at_barrier = vec![false; waves as usize];
    group.done = vec![false; waves as usize];
    for (number, wave) in group.waves.iter_mut().enumerate() {
        wave.reset(number as u32, id);
        wave.mode = d.mode;
        set_scalars(shared, wave, id);
        set_lanes(shared, wave, number as u32, lanes);
    }
    group
}

fn set_scalars(shared: &Shared, wave: &mut Wave, id: [u32; 3]) {
    let kernel = shared.env.kernel;
    let d = &kernel.descriptor;
    let mut next = 0;
    let pointers =
        [(0, 4, 0), (1, 2, shared.packet), (2, 2, shared.queue), (3, 2, shared.kernarg), (4, 2, 0), (5, 2, 0)];
    for (bit, dwords, value) in pointers {
        if d.properties >> bit & 1 == 0 {
            continue;
        }
        for i in 0..dwords {
            wave.set_valid(next + i, if i < 2 { (value >> (32 * i)) as u32 } else { 0 });
        }
        next += dwords;
    }
    if d.properties >> 6 & 1 != 0 {
        wave.set_valid(next, 0);
        next += 1;
    }
    // Both entries must work: with arguments preloaded, and with the prologue that loads them.
    let preloads = !shared.mode.check || shared.mode.seed & 1 == 0;
    if let Some(entry) = kernel.preload_entry.filter(|_| preloads) {
        wave.pc = entry;
        for i in 0..d.preload_dwords as usize {
            let at = shared.kernarg as usize + 4 * (d.preload_offset as usize + i);
            // SAFETY: preloaded dwords lie in the argument block, which is at least as long as the segment they are from.
            let value = unsafe { (at as *const u32).read_unaligned() };
            wave.set_valid(next + i, value);
        }
    }
    next = next.max(d.user_registers as usize);
    for axis in 0..3 {
        if d.group_id[axis] {
            wave.set_valid(next, id[axis]);
            next += 1;
        }
    }
}

fn set_lanes(shared: &Shared, wave: &mut Wave, number: u32, lanes: u32) {
    let [bx, by, _] = shared.dispatch.block;
    for lane in 0..64 {
        let flat = 64 * number + lane;
        // Packed coordinates, ten bits each.
        wave.v[0][lane as usize] = flat % bx | (flat / bx % by) << 10 | (flat / bx / by) << 20;
    }
    wave.valid_v[0] = u64::MAX;
    let here = (lanes - 64 * number).min(64);
    let exec = if here == 64 { u64::MAX } else { (1 << here) - 1 };
    wave.set_valid(126, exec as u32);
    wave.set_valid(127, (exec >> 32) as u32);
}
