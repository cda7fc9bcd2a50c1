//! MXFP4 experts, specialised for bf16 and e4m3 rows, and portable: every tile height, sorted in either way or walked, and every slab
//! of columns gives the same bits, and what f64 says.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Kernel, Manifest},
};

use crate::support::{Bytes, Random, bf16, configure, counters, device, f32s};

const TOKENS: usize = 75;
const CHOSEN: usize = 2;
const EXPERTS: usize = 5;
const ROUTES: usize = TOKENS * CHOSEN;
const WIDTH: usize = 256;
const HIDDEN: usize = 128;
/// Which of the counters is that of matrix instructions.
const MATRIX: usize = 6;

/// A stack of MXFP4 matrices of `rows` x `columns`.
struct Stack {
    values: Vec<u8>,
    scales: Vec<u8>,
    rows: usize,
    columns: usize,
}

impl Stack {
    fn new(random: &mut Random, rows: usize, columns: usize) -> Self {
        let values = (0..EXPERTS * rows * columns / 2).map(|_| random.bits() as u8).collect();
        let scales = (0..EXPERTS * rows * columns / 32).map(|_| 119 + (random.bits() % 4) as u8).collect();
        Self { values, scales, rows, columns }
    }

    fn at(&self, slot: usize, row: usize, column: usize) -> f64 {
        let i = (slot * self.rows + row) * self.columns + column;
        let nibble = self.values[i / 2] >> (4 * (i % 2)) & 15;
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
        let sign = if nibble & 8 != 0 { -1.0 } else { 1.0 };
        sign * magnitude * f64::from(i32::from(self.scales[i / 32]) - 127).exp2()
    }

    fn times(&self, slot: usize, x: &[f64]) -> Vec<f64> {
        (0..self.rows).map(|r| x.iter().enumerate().map(|(c, v)| self.at(slot, r, c) * v).sum()).collect()
    }
}

/// Nearest bf16, ties to even.
fn rounded(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
}

/// Scales of rows of whole steps: those of 16 rows lie together.
fn scale_bytes(rows: usize, width: usize) -> usize {
    rows.next_multiple_of(16) * width / 32
}

/// A group as e4m3 with one scale, by the definition: the smallest power of two that brings all of it within 448, and 3 bits
/// behind the first, from 2^-6 down to 2^-9 fewer.
pub fn grouped(values: &[f64]) -> Vec<f64> {
    let groups = values.chunks(32).map(|group| {
        let peak = group.iter().fold(0f64, |p, v| p.max(v.abs()));
        let scale = (-126..128).map(|e| f64::from(e).exp2()).find(|s| peak / s <= 448.0).expect("finite");
        group.iter().map(move |v| {
            let step = ((v / scale).abs().log2().floor().max(-6.0) - 3.0).exp2();
            (v / scale / step).round_ties_even() * step * scale
        })
    });
    groups.flatten().collect()
}

/// Which kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Portable,
    Bf16,
    Fp8,
}

impl Form {
    /// Rows as the form takes them.
    fn rows(self, values: &[f64]) -> Vec<f64> {
        match self {
            Form::Fp8 => grouped(values),
            Form::Portable | Form::Bf16 => values.iter().map(|v| rounded(*v)).collect(),
        }
    }
}

struct Problem {
    x: Vec<u16>,
    ids: Vec<u32>,
    weights: Vec<f32>,
    slots: Vec<u32>,
    /// Gate, up, down.
    stacks: [Stack; 3],
}

impl Problem {
    fn new() -> Self {
        let mut random = Random(5);
        // Expert 1 is chosen by every token but the first, expert 3 by nobody.
        let others = [0, 2, 4];
        let ids = (0..TOKENS).flat_map(|t| {
            let other = others[(random.bits() % 3) as usize];
            if t == 0 {
                [0, 4]
            } else if t % 2 == 0 {
                [1, other]
            } else {
                [other, 1]
            }
        });
        let ids = ids.collect();
        let mut random = Random(7);
        Self {
            x: random.bf16(TOKENS * WIDTH),
            ids,
            weights: (0..ROUTES).map(|_| random.unit()).collect(),
            slots: vec![3, 0, 4, 2, 1],
            stacks: [(HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)].map(|(r, c)| Stack::new(&mut random, r, c)),
        }
    }

    /// Results of a few tokens.
    fn want(&self, token: usize, form: Form) -> Vec<f64> {
        let x: Vec<f64> = self.x[token * WIDTH..][..WIDTH].iter().map(|v| bf16(*v)).collect();
        let x = form.rows(&x);
        let mut y = vec![0.0; WIDTH];
        for i in 0..CHOSEN {
            let route = token * CHOSEN + i;
            let slot = self.slots[self.ids[route] as usize] as usize;
            let hidden = self.stacks[0].times(slot, &x).into_iter().zip(self.stacks[1].times(slot, &x));
            let hidden: Vec<f64> = hidden.map(|(g, u)| situ(g, u)).collect();
            for (y, v) in y.iter_mut().zip(self.stacks[2].times(slot, &form.rows(&hidden))) {
                *y += f64::from(self.weights[route]) * rounded(v);
            }
        }
        y
    }
}

fn situ(gate: f64, up: f64) -> f64 {
    4.0 * (gate / 4.0).tanh() / (1.0 + (-gate).exp()) * 25.0 * (up / 25.0).tanh()
}

/// The problem on a device.
struct Run<'a> {
    device: &'a Arc<Device>,
    manifest: &'a Manifest,
    queue: Queue,
    problem: &'a Problem,
    step: Buffer,
    x: Buffer,
    /// The same as f32.
    wide: Buffer,
    ids: Buffer,
    slots: Buffer,
    weights: Buffer,
    values: Vec<Buffer>,
    scales: Vec<Buffer>,
    order: Buffer,
    tiles: Buffer,
}

fn int(x: usize) -> Argument {
    Argument::I32(x as i32)
}

fn pointer(b: &Buffer) -> Argument {
    Argument::Pointer(b.address())
}

impl<'a> Run<'a> {
    fn new(device: &'a Arc<Device>, manifest: &'a Manifest, problem: &'a Problem) -> Self {
        let with = |bytes: &[u8]| Buffer::with(device, bytes).unwrap();
        let words = |v: &[u32]| with(&v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        let mut step = [0u32; 64];
        step[1] = TOKENS as u32;
        Self {
            device,
            manifest,
            queue: Queue::new(device).unwrap(),
            problem,
            step: words(&step),
            x: with(&problem.x.bytes()),
            wide: with(&problem.x.iter().map(|v| bf16(*v) as f32).collect::<Vec<_>>().bytes()),
            ids: words(&problem.ids),
            slots: words(&problem.slots),
            weights: with(&problem.weights.bytes()),
            values: problem.stacks.iter().map(|s| with(&s.values)).collect(),
            scales: problem.stacks.iter().map(|s| with(&s.scales)).collect(),
            order: with(&vec![0xff; ROUTES * 4]),
            tiles: with(&vec![0xff; 16 * (1 + ROUTES)]),
        }
    }

    fn launch(&self, name: &str, groups: [u32; 3], arguments: &[(&str, Argument)]) {
        let kernel = Kernel::load(self.device, self.manifest, name).unwrap();
        // SAFETY: buffers are as large as the sizes say, and live until the queue is done.
        unsafe { kernel.launch(&self.queue, groups, arguments) }.unwrap();
        self.queue.synchronize().unwrap();
    }

    fn counted<'n>(&self, more: &[(&'n str, Argument)]) -> Vec<(&'n str, Argument)> {
        let first =
            [("step", pointer(&self.step)), ("count_word", int(1)), ("count_fixed", int(0)), ("k", int(CHOSEN))];
        [&first[..], more].concat()
    }

    /// Sorts routes in one launch, or in four; checks what came out.
    fn sort(&self, each: usize, at_once: bool) {
        let routes = self.counted(&[("ids", pointer(&self.ids)), ("ldi", int(CHOSEN))]);
        let (order, tiles, each_) =
            (("order", pointer(&self.order)), ("tiles", pointer(&self.tiles)), ("each", int(each)));
        if at_once {
            self.launch("routes_sort", [1, 1, 1], &[&routes[..], &[order, tiles, each_]].concat());
        } else {
            let space = |n: usize| Buffer::with(self.device, &vec![0xee; 4 * n]).unwrap();
            let (counts, starts, rank) = (space(EXPERTS), space(EXPERTS), space(ROUTES));
            let (counts, starts) = (("counts", pointer(&counts)), ("starts", pointer(&starts)));
            let (rank, experts) = (("rank", pointer(&rank)), ("E", int(EXPERTS)));
            self.launch("routes_clear", [1, 1, 1], &[counts, experts]);
            self.launch("routes_count", [1, 1, 1], &[&routes[..], &[counts, rank]].concat());
            self.launch("routes_cut", [1, 1, 1], &[counts, starts, tiles, experts, each_]);
            self.launch("routes_place", [1, 1, 1], &[&routes[..], &[starts, rank, order]].concat());
        }
        let words = |b: &Buffer| -> Vec<usize> {
            b.read().unwrap().chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()) as usize).collect()
        };
        let (order, tiles) = (words(&self.order), words(&self.tiles));
        let mut seen = [false; ROUTES];
        for tile in tiles[4..].chunks_exact(4).take(tiles[0]) {
            let [expert, first, many, _] = tile else { unreachable!() };
            assert!((1..=each).contains(many), "a tile of {many}");
            for route in &order[*first..first + many] {
                assert_eq!(self.problem.ids[*route] as usize, *expert, "route {route}");
                assert!(!std::mem::replace(&mut seen[*route], true), "route {route} twice");
            }
        }
        assert!(seen.iter().all(|s| *s), "routes are missing");
    }

    /// All outputs by tiles of one kind, `slab` columns of products at a time.
    fn outputs(&self, form: Form, kind: &str, height: usize, slab: usize) -> Vec<f32> {
        let space = |bytes: usize| Buffer::with(self.device, &vec![0xff; bytes]).unwrap();
        let (hidden, parts, y) = (space(ROUTES * HIDDEN * 2), space(ROUTES * slab * 2), space(TOKENS * WIDTH * 4));
        let (small, scales, hidden_scales) =
            (space(TOKENS * WIDTH), space(scale_bytes(TOKENS, WIDTH)), space(scale_bytes(ROUTES, HIDDEN)));
        if form == Form::Fp8 {
            let (x, y, s) = (("x", pointer(&self.wide)), ("y", pointer(&small)), ("s", pointer(&scales)));
            let counted = [("step", pointer(&self.step)), ("count_word", int(1)), ("count_fixed", int(0))];
            let arguments = [&counted[..], &[x, y, s, ("D", int(WIDTH)), ("ldx", int(WIDTH))]].concat();
            self.launch("fp8_quantise", [TOKENS as u32, 1, 1], &arguments);
        }
        let common = self.counted(&[
            ("ids", pointer(&self.ids)),
            ("slots", pointer(&self.slots)),
            ("ldi", int(CHOSEN)),
            ("tiles", pointer(&self.tiles)),
            ("order", pointer(&self.order)),
            ("N", int(HIDDEN)),
            ("K", int(WIDTH)),
            ("h", pointer(&hidden)),
        ]);
        let (pitch, scale_pitch) = (int(WIDTH * HIDDEN / 2), int(WIDTH * HIDDEN / 32));
        let groups = (ROUTES.min(ROUTES / height + EXPERTS)) as u32;
        let groups = if kind.starts_with("walk_16") { ROUTES as u32 } else { groups };
        let name = |product: &str| match form {
            Form::Fp8 => format!("experts_fp8_{product}_{kind}"),
            Form::Bf16 => format!("experts_mxfp4_{product}_{kind}"),
            Form::Portable => format!("experts_{product}_mxfp4_bf16_{kind}"),
        };
        let grid = |name: &str, n: usize| {
            let blocks = (n as i64 / self.manifest.find(name).unwrap().constant("BN").unwrap()) as u32;
            if form == Form::Portable { [groups, blocks, 1] } else { [blocks, groups, 1] }
        };
        let up = [
            ("w1", pointer(&self.values[0])),
            ("w3", pointer(&self.values[1])),
            ("s1", pointer(&self.scales[0])),
            ("s3", pointer(&self.scales[1])),
            ("pitch1", pitch),
            ("pitch3", pitch),
            ("spitch1", scale_pitch),
            ("spitch3", scale_pitch),
            ("act", int(1)),
            ("beta", Argument::F32(4.0)),
            ("linear", Argument::F32(25.0)),
        ];
        let (whole, scaled) = (("KB", int(WIDTH / 2)), [("xs", pointer(&scales)), ("hs", pointer(&hidden_scales))]);
        let rows = match form {
            Form::Fp8 => vec![("x", pointer(&small)), scaled[0], scaled[1], whole],
            Form::Bf16 => vec![("x", pointer(&self.x)), scaled[0], scaled[1], whole],
            Form::Portable => vec![("x", pointer(&self.wide)), ("ldx", int(WIDTH))],
        };
        let up = [&up[..], &rows].concat();
        let kernel = name("up");
        self.launch(&kernel, grid(&kernel, HIDDEN), &[&common[..], &up].concat());
        let rows = if form == Form::Portable { vec![] } else { vec![("NB", int(HIDDEN / 2)), scaled[1]] };
        for first in (0..WIDTH).step_by(slab) {
            let width = slab.min(WIDTH - first);
            let shared = [("o", pointer(&parts)), ("first", int(first)), ("width", int(width))];
            let down = [
                ("w2", pointer(&self.values[2])),
                ("s2", pointer(&self.scales[2])),
                ("pitch", pitch),
                ("spitch", scale_pitch),
            ];
            let kernel = name("down");
            let arguments = [&common[..], &shared, &down, &rows].concat();
            self.launch(&kernel, grid(&kernel, width), &arguments);
            let sum =
                [("weights", pointer(&self.weights)), ("y", pointer(&y)), ("ldw", int(CHOSEN)), ("ldy", int(WIDTH))];
            let arguments = self.counted(&[&shared[..], &sum].concat());
            self.launch("experts_combine_bf16", [TOKENS as u32, 1, 1], &arguments);
        }
        f32s(&y.read().unwrap())
    }
}

fn same_bits(form: Form, tiles: &[(&str, usize)]) {
    let Some((device, manifest)) = device() else { return };
    let problem = Problem::new();
    let mut first: Option<Vec<f32>> = None;
    for (i, (kind, height)) in tiles.iter().enumerate() {
        configure(device.hip, true, i as u64);
        let run = Run::new(&device, &manifest, &problem);
        if *height > 1 {
            run.sort(*height, i % 2 == 1);
        }
        // Every other kind takes two slabs of columns.
        let got = run.outputs(form, kind, *height, WIDTH / (1 + i % 2));
        if let Some(first) = &first {
            assert_eq!(first, &got, "{kind}");
            continue;
        }
        for token in [0, 1, TOKENS - 1] {
            let want = problem.want(token, form);
            let rms = (want.iter().map(|w| w * w).sum::<f64>() / WIDTH as f64).sqrt();
            for (got, want) in got[token * WIDTH..].iter().zip(&want) {
                assert!((f64::from(*got) - want).abs() < 2e-3 * rms, "token {token}: {got}, expected {want}");
            }
        }
        first = Some(got);
    }
}

/// Outputs of walked bf16 rows with all columns of products at a time, and with half of them.
pub fn slabs() -> Option<[Vec<f32>; 2]> {
    let (device, manifest) = device()?;
    configure(device.hip, true, 3);
    let problem = Problem::new();
    let run = Run::new(&device, &manifest, &problem);
    Some([WIDTH, WIDTH / 2].map(|slab| run.outputs(Form::Bf16, "walk_16", 1, slab)))
}

#[test]
fn slabs_of_columns_change_no_bit() {
    let Some([one, two]) = slabs() else { return };
    assert_eq!(one, two);
}

const SPECIALISED: [(&str, usize); 5] =
    [("walk_16", 1), ("sorted_16", 16), ("sorted_32", 32), ("sorted_64", 64), ("sorted_128", 128)];

#[test]
fn specialised_tiles_of_every_height_give_the_same_bits() {
    same_bits(Form::Bf16, &SPECIALISED);
}

#[test]
fn e4m3_tiles_of_every_height_give_the_same_bits() {
    same_bits(Form::Fp8, &SPECIALISED);
}

#[test]
fn portable_tiles_of_every_height_give_the_same_bits() {
    same_bits(
        Form::Portable,
        &[("walk_16", 1), ("walk_16_ragged", 1), ("sorted_16", 16), ("sorted_16_ragged", 16), ("sorted_64", 64)],
    );
}

/// What e4m3 rows are for: one matrix instruction of 32 cycles where bf16 takes four of 16.
#[test]
fn e4m3_rows_take_a_quarter_of_the_matrix_instructions() {
    let Some((device, manifest)) = device() else { return };
    let problem = Problem::new();
    for (kind, height) in SPECIALISED {
        let [bf16, fp8] = [Form::Bf16, Form::Fp8].map(|form| {
            configure(device.hip, false, 0);
            let run = Run::new(&device, &manifest, &problem);
            if height > 1 {
                run.sort(height, true);
            }
            counters(device.hip);
            run.outputs(form, kind, height, WIDTH);
            counters(device.hip)[MATRIX]
        });
        assert!(bf16 > 0 && bf16 == 4 * fp8, "{kind}: {bf16} and {fp8}");
    }
}
