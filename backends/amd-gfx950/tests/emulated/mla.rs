//! Latent attention in splits, kernel by kernel: every way to the result gives the same bits, and they are right.
//!
//! Cache rows that no token has written are NaN, so that reading one into a sum shows.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Kernel, Manifest},
};
use tokenspeed_backend_api::{dtype::DType, quant, step::StepData};

use crate::support::{Bytes, Random, configure, counters, device, emulator, f32s, long_tests};

const LATENT: usize = 512;
const WIDTH: usize = 576;
const HEADS: usize = 12;
/// Values per head, and rows of a head's weights before theirs.
const VALUES: usize = 64;
const FIRST: usize = 16;

/// A step with its queries and a cache, on the device.
struct Case {
    data: StepData,
    page: usize,
    width: usize,
    format: DType,
    values: Vec<f32>,
    table: Vec<u32>,
    queries: Vec<f32>,
    step: Buffer,
    q: Buffer,
    cache: Buffer,
    pages: Buffer,
    weights: Buffer,
    gate: Buffer,
}

impl Case {
    /// Requests as of `StepData::from_spans`: table row, tokens computed, tokens of the step.
    fn new(device: &Arc<Device>, format: DType, page: usize, spans: &[(u32, u32, usize)], seed: u64) -> Self {
        let ids: Vec<Vec<i32>> = spans.iter().map(|s| vec![0; s.2]).collect();
        let owned: Vec<(u32, u32, &[i32])> = spans.iter().zip(&ids).map(|(s, ids)| (s.0, s.1, &ids[..])).collect();
        let data = StepData::from_spans(&owned);
        let mut random = Random(seed);
        let height = data.rows.iter().map(|r| r.table_row).max().unwrap() as usize + 1;
        let mut needs = vec![0; height];
        for r in &data.rows {
            needs[r.table_row as usize] = needs[r.table_row as usize].max((r.cache_rows() as usize).div_ceil(page));
        }
        let (width, blocks) = (needs.iter().max().unwrap() + 1, needs.iter().sum::<usize>() + 1);
        // Pages in falling order; entries behind a request's last page name page 0, which holds nothing.
        let (mut table, mut next) = (vec![0u32; height * width], blocks as u32);
        for (row, need) in needs.iter().enumerate() {
            for slot in &mut table[row * width..][..*need] {
                next -= 1;
                *slot = next;
            }
        }
        let mut values = vec![f32::NAN; blocks * page * WIDTH];
        for r in &data.rows {
            for position in 0..r.computed + r.query_len {
                let at = r.cache_row(position) as usize;
                let block = table[r.table_row as usize * width + at / page] as usize;
                values[(block * page + at % page) * WIDTH..][..WIDTH].fill_with(|| random.unit());
            }
        }
        let mut bytes = vec![0; values.len() * format.block_bytes()];
        quant::quantize_row(format, &values, &mut bytes);
        quant::dequantize_row(format, &bytes, &mut values);
        let queries: Vec<f32> = (0..data.tokens.len() * HEADS * WIDTH).map(|_| 3.0 * random.unit()).collect();
        let weights = random.bf16(HEADS * (FIRST + VALUES) * LATENT).bytes();
        let gate: Vec<f32> = (0..data.tokens.len() * HEADS * VALUES).map(|_| 3.0 * random.unit()).collect();
        let buffer = |bytes: &[u8]| Buffer::with(device, bytes).unwrap();
        Self {
            weights: buffer(&weights),
            gate: buffer(&gate.bytes()),
            step: buffer(&data.to_bytes()),
            q: buffer(&queries.bytes()),
            cache: buffer(&bytes),
            pages: buffer(&table.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()),
            data,
            page,
            width,
            format,
            values,
            table,
            queries,
        }
    }

    /// Runs the kernels of one way; bytes of the result, and with `gated` those of the gated values behind it, which come to
    /// the same whether parts are put together before or by the kernel that projects and gates.
    fn run(&self, device: &Arc<Device>, manifest: &Manifest, way: Way, split_bits: usize, gated: bool) -> Vec<u8> {
        let tokens = self.data.tokens.len();
        let splits = (self.width * self.page).div_ceil(1 << split_bits);
        let format = if self.format == DType::BF16 { "bf16" } else { "fp8" };
        let (rows, fold) = (way.rows, way.fold);
        let poison = |bytes: usize| Buffer::with(device, &vec![0xff; bytes]).unwrap();
        let (list, y) = (poison(64 + 32 * tokens * splits), poison(tokens * HEADS * LATENT * 4));
        let (partial, sums) = (poison(tokens * HEADS * splits * 768), poison(tokens * HEADS * splits * 8));
        let queue = Queue::new(device).unwrap();
        let launch = |name: &str, groups: [u32; 3], arguments: &[(&str, Argument)]| {
            let kernel = Kernel::load(device, manifest, name).unwrap();
            // SAFETY: buffers are as large as the sizes say and live until the queue was waited for.
            unsafe { kernel.launch(&queue, groups, arguments) }.unwrap();
        };
        let at = |buffer: &Buffer| Argument::Pointer(buffer.address());
        let int = |x: usize| Argument::I32(x as i32);
        let listed = int(if fold { 30 } else { split_bits });
        let arguments =
            [("step", at(&self.step)), ("plan", at(&list)), ("TQ", int(rows / HEADS)), ("split_bits", listed)];
        launch("mla_deal", [self.data.rows.len() as u32, 1, 1], &arguments);
        let arguments = [
            ("plan", at(&list)),
            ("q", at(&self.q)),
            ("cache", at(&self.cache)),
            ("table", at(&self.pages)),
            ("y", at(&y)),
            ("partial", at(&partial)),
            ("sums", at(&sums)),
            ("H", int(HEADS)),
            ("width", int(self.width)),
            ("page_bits", int(self.page.trailing_zeros() as usize)),
            ("split_bits", int(split_bits)),
            ("NS", int(splits)),
            ("ldq", int(HEADS * WIDTH)),
            ("ldc", int(self.page * WIDTH)),
            ("ldy", int(HEADS * LATENT)),
            ("scale", Argument::F32(scale() as f32)),
        ];
        let projected = |name: &str, grid: [u32; 3], more: &[(&str, Argument)]| {
            let out = poison(tokens * HEADS * VALUES * 4);
            let common = [
                ("step", at(&self.step)),
                ("w", at(&self.weights)),
                ("gate", at(&self.gate)),
                ("y", at(&out)),
                ("first", int(FIRST)),
                ("per_head", int(FIRST + VALUES)),
                ("ldw", int(LATENT)),
            ];
            launch(name, grid, &[&common[..], more].concat());
            out
        };
        let fold_name = if fold { "_fold" } else { "" };
        launch(&format!("mla_decode_{format}_{rows}{fold_name}"), [way.groups, 1, 1], &arguments);
        let settled = (gated && !fold).then(|| {
            let more = [
                ("partial", at(&partial)),
                ("sums", at(&sums)),
                ("mixed", at(&y)),
                ("H", int(HEADS)),
                ("V", int(VALUES)),
                ("NS", int(splits)),
                ("split_bits", int(split_bits)),
            ];
            projected("mla_settle", [tokens as u32, HEADS as u32, VALUES as u32 / 32], &more)
        });
        if !fold {
            let arguments = [
                ("step", at(&self.step)),
                ("partial", at(&partial)),
                ("sums", at(&sums)),
                ("y", at(&y)),
                ("H", int(HEADS)),
                ("NS", int(splits)),
                ("split_bits", int(split_bits)),
                ("ldy", int(HEADS * LATENT)),
            ];
            launch("mla_merge", [tokens as u32, HEADS as u32, 4], &arguments);
        }
        let more = [
            ("count_word", int(1)),
            ("count_fixed", int(0)),
            ("x", at(&y)),
            ("N", int(VALUES)),
            ("K", int(LATENT)),
            ("rope", int(0)),
            ("xh", int(LATENT)),
            ("yh", int(VALUES)),
            ("ldx", int(HEADS * LATENT)),
            ("ldy", int(HEADS * VALUES)),
        ];
        let grid = [tokens.div_ceil(64) as u32, HEADS as u32, 1];
        let values = gated.then(|| projected("mla_gated_value", grid, &more));
        queue.synchronize().unwrap();
        let mut result = y.read().unwrap();
        if let Some(values) = values {
            let values = values.read().unwrap();
            if let Some(settled) = settled {
                assert!(settled.read().unwrap() == values, "{way:?}: other bits in one kernel than in two");
            }
            result.extend(values);
        }
        result
    }

    /// The result in f64, over queries rounded as the kernels round them.
    fn reference(&self) -> Vec<f64> {
        let rounded = |x: f32| f64::from(half::bf16::from_f32(x).to_f32());
        let mut out = Vec::new();
        for (t, token) in self.data.tokens.iter().enumerate() {
            let request = &self.data.rows[token.row as usize];
            let row = |p: u32| {
                let at = request.cache_row(p) as usize;
                let block = self.table[request.table_row as usize * self.width + at / self.page] as usize;
                &self.values[(block * self.page + at % self.page) * WIDTH..][..WIDTH]
            };
            for q in self.queries[t * HEADS * WIDTH..][..HEADS * WIDTH].chunks(WIDTH) {
                let score = |p| row(p).iter().zip(q).map(|(k, q)| f64::from(*k) * rounded(*q)).sum::<f64>() * scale();
                let scores: Vec<f64> = (0..=token.position).map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp2()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; LATENT];
                for (p, weight) in weights.iter().enumerate() {
                    sums.iter_mut().zip(row(p as u32)).for_each(|(sum, v)| *sum += weight / total * f64::from(*v));
                }
                out.extend(sums);
            }
        }
        out
    }
}

/// Softmax scale in bits.
fn scale() -> f64 {
    (WIDTH as f64).powf(-0.5) * std::f64::consts::LOG2_E
}

/// One choice of kernels.
#[derive(Debug, Clone, Copy)]
struct Way {
    rows: usize,
    fold: bool,
    groups: u32,
}

const WAYS: [Way; 5] = [
    Way { rows: 16, fold: false, groups: 5 },
    Way { rows: 48, fold: false, groups: 3 },
    Way { rows: 48, fold: false, groups: 64 },
    Way { rows: 96, fold: false, groups: 4 },
    Way { rows: 48, fold: true, groups: 2 },
];

fn every_way_agrees(format: DType, page: usize, spans: &[(u32, u32, usize)], split_bits: usize) {
    let Some((device, manifest)) = device() else { return };
    let case = Case::new(&device, format, page, spans, 5);
    let want = case.reference();
    // Each way in an interleaving of its own; long tests run more.
    let seeds = if long_tests() { 12 } else { 1 };
    for seed in 0..seeds {
        let mut order = seed * WAYS.len() as u64;
        let results = WAYS.map(|way| {
            order += 1;
            configure(emulator(), true, order);
            case.run(&device, &manifest, way, split_bits, true)
        });
        check(&results, &want).unwrap();
    }
}

/// All alike, and the first one right.
fn check(results: &[Vec<u8>], want: &[f64]) -> Result<(), String> {
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    for (got, want) in f32s(&results[0]).iter().zip(want) {
        // A NaN is not near anything.
        let near = (f64::from(*got) - want).abs() < 0.02 * rms;
        if !near {
            return Err(format!("wrong numbers: {got} for {want}, rms {rms}"));
        }
    }
    match results.iter().position(|result| *result != results[0]) {
        Some(way) => Err(format!("way {way} gives other bits than the first one")),
        None => Ok(()),
    }
}

/// Parts and folding over contexts of several splits: `None` without kernels, else what is wrong.
pub fn ways_agree() -> Option<Result<(), String>> {
    let (device, manifest) = device()?;
    let case = Case::new(&device, DType::BF16, 32, &[(0, 300, 4), (1, 127, 9)], 5);
    configure(emulator(), true, 3);
    let results = [WAYS[1], WAYS[4]].map(|way| case.run(&device, &manifest, way, 7, false));
    Some(check(&results, &case.reference()))
}

/// Parts of splits have no code for what is no number but one for their step: it reaches the result, beside it three columns at most.
#[test]
fn no_number_is_lost_between_splits() {
    let Some((device, manifest)) = device() else { return };
    configure(emulator(), true, 6);
    let mut case = Case::new(&device, DType::BF16, 32, &[(0, 300, 1)], 8);
    let (position, column) = (140, 77);
    let block = case.table[position / case.page] as usize;
    case.values[(block * case.page + position % case.page) * WIDTH + column] = f32::NAN;
    let mut bytes = vec![0; case.values.len() * 2];
    quant::quantize_row(DType::BF16, &case.values, &mut bytes);
    case.cache = Buffer::with(&device, &bytes).unwrap();
    for way in WAYS {
        let y = f32s(&case.run(&device, &manifest, way, 7, false));
        // The key has no score either, so all of its split is no number, and with it all of the result.
        assert!(y.iter().all(|x| x.is_nan()), "{way:?}");
    }
}

/// Contexts of one split, of several, ending within a step and at the end of one; a branch; a window across a split's edge.
const SPANS: [(u32, u32, usize); 5] = [(0, 300, 4), (1, 63, 1), (2, 127, 9), (0, 300, 2), (3, 0, 1)];

#[test]
fn bf16_in_splits() {
    every_way_agrees(DType::BF16, 32, &SPANS, 7);
}

#[test]
fn fp8_in_splits() {
    every_way_agrees(DType::F8E4M3, 64, &SPANS, 7);
}

/// Every way in six interleavings, over contexts of several splits that end within a step of keys.
#[test]
fn every_interleaving_gives_the_same_bits() {
    let Some((device, manifest)) = device() else { return };
    for format in [DType::BF16, DType::F8E4M3] {
        let case = Case::new(&device, format, 64, &[(0, 130, 1), (1, 40, 2)], 9);
        let mut results = (0..6u64).flat_map(|seed| WAYS.map(|way| (seed, way))).map(|(seed, way)| {
            configure(emulator(), true, 100 + seed);
            (seed, way, case.run(&device, &manifest, way, 6, false))
        });
        let (_, _, first) = results.next().unwrap();
        for (seed, way, result) in results {
            assert!(result == first, "{format}, interleaving {seed}, {way:?}: other bits");
        }
    }
}

/// What 2048 more rows of context cost a window of tokens: their bytes, read once for all heads and tokens. Counted is what
/// lanes ask for, page numbers included, which all lanes of a wave ask for; what a split costs whatever its length cancels out.
#[test]
fn rows_are_read_once_for_all_heads_and_tokens() {
    let Some((device, manifest)) = device() else { return };
    for (format, rows, fold) in [
        (DType::BF16, 16, false),
        (DType::BF16, 48, false),
        (DType::BF16, 48, true),
        (DType::BF16, 96, false),
        (DType::F8E4M3, 16, false),
        (DType::F8E4M3, 48, false),
        (DType::F8E4M3, 48, true),
        (DType::F8E4M3, 96, false),
    ] {
        let tokens = rows / HEADS;
        let cost = |context: usize| {
            let case = Case::new(&device, format, 64, &[(0, (context - tokens) as u32, tokens)], 1);
            // Without checks for speed; the counters are the same.
            configure(emulator(), false, 0);
            counters(emulator());
            case.run(&device, &manifest, Way { rows, fold, groups: 1 }, 12, false);
            counters(emulator())
        };
        let (short, long) = (cost(2048), cost(4096));
        let read = (long[10] - short[10]) as f64;
        let floor = (2048 * WIDTH * format.block_bytes()) as f64;
        assert!(read < 1.15 * floor, "{format}, {rows} rows: {read} bytes for {floor}");
        // Each of four waves scores 16 or 32 rows, needed or not; sums are of the rows there are.
        let macs = 4 * 2048 * (rows.div_ceil(64) * 16 * WIDTH + rows * LATENT / 4);
        assert_eq!((long[9] - short[9]) as usize, macs, "{format}, {rows} rows: multiply-adds");
    }
}
