//! `experts`: the MLPs of the chosen experts, from weights in the stored layout.
//!
//! Routes are sorted by expert and taken in waves. In a wave, workers first share the rows of w1 and w3 of each expert and
//! write its activated hidden rows, meet, then share the rows of w2 and add each expert's weighted output to y, experts
//! in ascending order. So every weight is read once per wave, by one worker, and y has one writer per column. The
//! arithmetic of one product depends on format, depth and tier alone (see [`vector`] and [`amx`]).
//!
//! Rejected: experts shared out whole. One token's experts are few and their rows many.

mod activate;
#[cfg(target_arch = "x86_64")]
mod amx;
mod matrix;
mod routes;
#[cfg(test)]
mod tests;
mod vector;

pub use activate::Act;
pub use matrix::{Matrix, TILE_ROWS};

use crate::{
    level::Level,
    part::Part,
    pool::Worker,
    residency::{Residency, Stacks},
    scratch::{Carver, region_bytes},
    simd::{Kernel, Simd, dispatch},
};
use matrix::{Inputs, Tile};
use routes::{Choice, GROUP_TOKENS, Group, Routes};
use std::ops::Range;
use tokenspeed_backend_api::dtype::DType;

/// Routes whose hidden rows exist at the same time.
const WAVE_ROUTES: usize = 64;

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsArgs {
    /// `[tokens, k]`.
    pub x: *const f32,
    /// `[tokens, top]`.
    pub ids: *const u32,
    /// `[tokens, top]`.
    pub weights: *const f32,
    /// `[experts]`.
    pub slots: *const u32,
    /// Gate, `[experts, n, k]`.
    pub w1: Matrix,
    /// Up, `[experts, n, k]`.
    pub w3: Matrix,
    /// Down, `[experts, k, n]`.
    pub w2: Matrix,
    /// `[tokens, k]`.
    pub y: *mut f32,
    /// [`hidden_bytes`] that all workers share.
    pub hidden: *mut f32,
    /// Rows of x.
    pub tokens: usize,
    /// Experts per token.
    pub top: usize,
    /// Experts in a stack.
    pub experts: usize,
    /// Joins gate and up.
    pub act: Act,
    /// Keeps mapped experts within a budget: the device's, and where this layer's experts lie.
    pub residency: Option<(*const Residency, *const Stacks)>,
}

impl ExpertsArgs {
    /// The budget's keeper.
    ///
    /// # Safety
    /// Both outlive the op, as the arguments' maker promises.
    unsafe fn keeper(&self) -> Option<(&Residency, &Stacks)> {
        // SAFETY: the caller's promise.
        self.residency.map(|(residency, stacks)| unsafe { (&*residency, &*stacks) })
    }
}

/// Whether [`experts`] reads weights of this format.
pub const fn supported(dtype: DType) -> bool {
    matches!(dtype, DType::Mxfp4 | DType::F32 | DType::F16 | DType::BF16)
}

/// Shared memory for hidden rows of width `n`.
pub const fn hidden_bytes(n: usize) -> usize {
    WAVE_ROUTES * n * size_of::<f32>()
}

/// Name of the kernel a format runs on, for the support table.
pub fn kernel_name(level: Level, dtype: DType) -> String {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx if amx::takes(dtype) => format!("experts-amx-bf16x3-{dtype}"),
        Level::Amx => format!("experts-{}-{dtype}", Level::Avx512),
        _ => format!("experts-{level}-{dtype}"),
    }
}

fn on_tiles(level: Level, dtype: DType) -> bool {
    #[cfg(target_arch = "x86_64")]
    return level == Level::Amx && amx::takes(dtype);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (level, dtype);
        false
    }
}

/// Scratch a worker needs for `tokens` tokens of `top` of `experts` experts with depths `k` and `n`.
pub fn scratch_bytes(
    level: Level,
    dtype: DType,
    tokens: usize,
    top: usize,
    experts: usize,
    k: usize,
    n: usize,
) -> usize {
    let (group, depth) = (GROUP_TOKENS.min(tokens * top), k.max(n));
    let kernel = if on_tiles(level, dtype) {
        #[cfg(target_arch = "x86_64")]
        {
            region_bytes::<u8>(amx::panel_bytes(group, depth)) + amx::Work::bytes(depth)
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no tiles")
    } else {
        region_bytes::<f32>(vector::panel_len(group, depth))
    };
    routes::scratch_bytes(tokens * top, experts) + region_bytes::<f32>(2 * group * TILE_ROWS) + kernel
}

/// One of the two ways to multiply, with a worker's scratch.
#[derive(Clone, Copy)]
enum Engine {
    Vector {
        panel: *mut f32,
    },
    #[cfg(target_arch = "x86_64")]
    Tiles {
        panel: *mut u8,
        work: amx::Work,
    },
}

impl Engine {
    fn new(level: Level, dtype: DType, group: usize, depth: usize, carver: &mut Carver) -> Self {
        #[cfg(target_arch = "x86_64")]
        if on_tiles(level, dtype) {
            let panel = carver.take(amx::panel_bytes(group, depth));
            return Self::Tiles { panel, work: amx::Work::new(carver, depth) };
        }
        let _ = (level, dtype);
        Self::Vector { panel: carver.take(vector::panel_len(group, depth)) }
    }

    /// Lay out a group's activations.
    #[inline(always)]
    unsafe fn build(&self, dtype: DType, inputs: &Inputs<'_>) {
        // SAFETY: panels are sized for a group at the larger depth; the rows exist by the caller's promise.
        unsafe {
            match *self {
                Self::Vector { panel } => vector::build(inputs, dtype == DType::Mxfp4, panel),
                #[cfg(target_arch = "x86_64")]
                Self::Tiles { panel, .. } => amx::build(inputs, panel),
            }
        }
    }

    /// `out[tile][token][16]`.
    #[inline(always)]
    unsafe fn products<S: Simd>(
        &self,
        dtype: DType,
        pair: &[Tile; 2],
        inputs: &Inputs<'_>,
        out: *mut f32,
        ahead: &[Tile; 2],
    ) {
        // SAFETY: the caller's promise; `build` was called for the same inputs.
        unsafe {
            match self {
                Self::Vector { panel } => {
                    for (i, tile) in pair.iter().enumerate() {
                        let out = out.add(i * inputs.len() * TILE_ROWS);
                        vector::products::<S>(dtype, tile, inputs.width, *panel, inputs.len(), out);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                Self::Tiles { panel, work } => amx::products(dtype, pair, inputs, *panel, work, out, ahead),
            }
        }
    }
}

/// What both halves of a wave need.
#[derive(Clone, Copy)]
struct Wave<'a> {
    args: &'a ExpertsArgs,
    routes: Routes<'a>,
    groups: &'a [Group],
    engine: Engine,
    /// `[2][group tokens][16]`.
    out: *mut f32,
    part: Part,
}

/// This worker's share; all workers call it. `Err` names a route to nowhere, on every worker.
///
/// # Safety
/// `level` is available; the operands have the shapes above; the worker's scratch has [`scratch_bytes`]; no one else
/// touches `y` and `hidden`.
pub unsafe fn experts(level: Level, worker: &mut Worker<'_>, args: &ExpertsArgs) -> Result<(), String> {
    let (part, n) = (worker.part(), args.tokens * args.top);
    let mut carver = worker.scratch().carve();
    // SAFETY: the caller's promise about operands and scratch.
    let routes = unsafe {
        let choice = Choice {
            ids: std::slice::from_raw_parts(args.ids, n),
            weights: std::slice::from_raw_parts(args.weights, n),
            slots: std::slice::from_raw_parts(args.slots, args.experts),
            top: args.top,
        };
        Routes::sort(&choice, &mut carver)?
    };
    let group = GROUP_TOKENS.min(n);
    let out = carver.take(2 * group * TILE_ROWS);
    let engine = Engine::new(level, args.w1.dtype, group, args.w1.k.max(args.w2.k), &mut carver);
    let columns = part.aligned(args.w2.rows, TILE_ROWS);
    for token in 0..args.tokens {
        // SAFETY: columns of y that only this worker writes.
        unsafe { args.y.add(token * args.w2.rows + columns.start).write_bytes(0, columns.len()) };
    }
    // SAFETY: the caller's promise.
    let keeper = unsafe { args.keeper() };
    let places = |range: &Range<usize>| routes.groups[range.clone()].iter().map(|group| group.slot);
    // One worker keeps the books. Workers meet after it, so that no one touches what there is no room for yet.
    let admit = |range: &Range<usize>| {
        if let Some((residency, stacks)) = keeper.filter(|_| part.index == 0 && !range.is_empty()) {
            residency.admit(stacks, distinct(places(range)));
        }
    };
    let mut range = wave(&routes, 0, keeper);
    admit(&range);
    if keeper.is_some() {
        worker.barrier();
    }
    while !range.is_empty() {
        let next = wave(&routes, range.end, keeper);
        admit(&next);
        let wave = Wave { args, routes, groups: &routes.groups[range.clone()], engine, out, part };
        // SAFETY: the caller's promise; workers meet between writing and reading hidden rows.
        unsafe {
            dispatch(level, Hidden(wave));
            worker.barrier();
            dispatch(level, Down(wave));
        }
        if keeper.is_some() || !next.is_empty() {
            worker.barrier();
        }
        if let Some((residency, stacks)) = keeper.filter(|_| part.index == 0) {
            residency.release(stacks, distinct(places(&range)));
        }
        range = next;
    }
    Ok(())
}

/// Places in groups' order, each once: the groups of one expert are neighbours.
fn distinct(places: impl Iterator<Item = u32> + Clone) -> impl Iterator<Item = u32> + Clone {
    let mut last = None;
    places.filter(move |place| last.replace(*place) != Some(*place))
}

/// As many groups from `first` on as hidden rows, and the budget for mapped experts, have room for.
fn wave(routes: &Routes<'_>, first: usize, keeper: Option<(&Residency, &Stacks)>) -> Range<usize> {
    let (mut total, mut bytes, mut last) = (0, 0, None);
    let more = routes.groups[first..].iter().take_while(|group| {
        total += group.count as usize;
        if let Some((_, stacks)) = keeper.filter(|_| last.replace(group.slot) != Some(group.slot)) {
            bytes += stacks.bytes(group.slot);
        }
        total <= WAVE_ROUTES && keeper.is_none_or(|(residency, _)| bytes <= residency.wave_bytes())
    });
    first..first + more.count()
}

impl Wave<'_> {
    /// Where the hidden rows of a group start.
    fn hidden(&self, group: &Group) -> *mut f32 {
        let row = (group.first - self.groups[0].first) as usize;
        self.args.hidden.wrapping_add(row * self.args.w1.rows)
    }

    /// The expert after `index`, or the same.
    fn slot_after(&self, index: usize) -> u32 {
        self.groups.get(index + 1).unwrap_or(&self.groups[index]).slot
    }
}

/// Hidden rows of a wave: `act(w1·x, w3·x)`.
struct Hidden<'a>(Wave<'a>);

impl Kernel for Hidden<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Hidden(wave) = self;
        let (args, dtype) = (wave.args, wave.args.w1.dtype);
        let tiles = wave.part.of(args.w1.tiles());
        let mut built: &[routes::Route] = &[];
        for (index, group) in wave.groups.iter().enumerate().filter(|_| !tiles.is_empty()) {
            let inputs = Inputs { base: args.x, width: args.w1.k, routes: wave.routes.of(group), by_token: true };
            let count = inputs.len();
            // SAFETY: tokens, tiles and hidden rows exist; only this worker writes these columns of them.
            unsafe {
                // All experts of one token have the same activations.
                if built.len() != count || built.iter().zip(inputs.routes).any(|(a, b)| a.token != b.token) {
                    wave.engine.build(dtype, &inputs);
                    built = inputs.routes;
                }
                for tile in tiles.clone() {
                    let both = |slot: u32, tile: usize| [args.w1.tile(slot, tile), args.w3.tile(slot, tile)];
                    let pair = both(group.slot, tile);
                    let ahead = match tile + 1 < tiles.end {
                        true => both(group.slot, tile + 1),
                        false => both(wave.slot_after(index), tiles.start),
                    };
                    wave.engine.products::<S>(dtype, &pair, &inputs, wave.out, &ahead);
                    for j in 0..count {
                        let product = |i: usize| S::load(wave.out.add((i * count + j) * TILE_ROWS));
                        let v = activate::activate::<S>(args.act, product(0), product(1));
                        S::store_n(wave.hidden(group).add(j * args.w1.rows + tile * TILE_ROWS), v, pair[0].rows);
                    }
                }
            }
        }
    }
}

/// The wave's outputs: `y += weight · w2·hidden`.
struct Down<'a>(Wave<'a>);

impl Kernel for Down<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Down(wave) = self;
        let (args, dtype) = (wave.args, wave.args.w2.dtype);
        let tiles = wave.part.of(args.w2.tiles());
        for (index, group) in wave.groups.iter().enumerate().filter(|_| !tiles.is_empty()) {
            let routes = wave.routes.of(group);
            let inputs = Inputs { base: wave.hidden(group), width: args.w2.k, routes, by_token: false };
            let count = inputs.len();
            // SAFETY: rows and tiles exist; only this worker writes these columns of y.
            unsafe {
                wave.engine.build(dtype, &inputs);
                for tile in tiles.clone().step_by(2) {
                    let last = tiles.end - 1;
                    let both =
                        |slot: u32, tile: usize| [args.w2.tile(slot, tile), args.w2.tile(slot, (tile + 1).min(last))];
                    let pair = both(group.slot, tile);
                    let ahead = match tile + 2 < tiles.end {
                        true => both(group.slot, tile + 2),
                        false => both(wave.slot_after(index), tiles.start),
                    };
                    wave.engine.products::<S>(dtype, &pair, &inputs, wave.out, &ahead);
                    for (i, rows) in pair.iter().map(|t| t.rows).enumerate().take(tiles.end - tile) {
                        for (j, route) in routes.iter().enumerate() {
                            let v = S::load(wave.out.add((i * count + j) * TILE_ROWS));
                            let y = args.y.add(route.token as usize * args.w2.rows + (tile + i) * TILE_ROWS);
                            S::store_n(y, S::fma(S::splat(route.weight), v, S::load_n(y, rows)), rows);
                        }
                    }
                }
            }
        }
    }
}
