//! The way into and out of a latent mixture of experts: a fused op has the bits of the ops it stands for, where it is the
//! same arithmetic, and a token has the same bits in every tile.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    tensor::Tensor,
};

use crate::{
    replay::{Bench, attrs, rows},
    support::{Bytes, Launches, Random, backend_device, configure, emulator, f32s},
};

/// Tokens of steps, one for each height of tile.
const TOKENS: [usize; 3] = [3, 20, 300];
/// Fewer, for what is so wide that 20, 100 and 130 take the wider tiles of [`MANY`].
const FEWER: [usize; 4] = [3, 20, 100, 130];
/// Input, experts, latent width, shared width, output: ragged beside tiles of 32 and 64.
const RAGGED: [u64; 5] = [80, 70, 48, 112, 144];
/// The same, wide enough to be quantised: ragged beside tiles of 16, 32 and 128 too, and beside steps of 128.
const WIDE: [u64; 5] = [288, 70, 160, 160, 176];

/// Enough columns either way for 16, 32 and 64 rows to be in tiles of 64 columns, and 128 in the largest; see `ops/gemm.rs` and `ops/gemm_many.rs`.
const MANY: [u64; 5] = [80, 16_384, 48, 112, 16_384];

struct Made {
    logits: Tensor,
    z: Tensor,
    h: Tensor,
    y: Tensor,
}

fn agree(options: &[(&str, &str)], [k, e, l, s, n]: [u64; 5], tokens: &[usize]) {
    let Some((_backend, device)) = backend_device(options) else { return };
    configure(emulator(), true, 2);
    let mut bench = Bench::new(&device);
    let mut random = Random(11);
    let most = *tokens.last().unwrap() as u64;
    let mut value = |bench: &mut Bench<'_>, width: u64| {
        let numbers: Vec<f32> = (0..most * width).map(|_| random.unit() * 2.0).collect();
        bench.place(DType::F32, Vary::Tokens, &[most, width], Some(numbers.bytes()))
    };
    let [x, r, before] = [k, l, n].map(|width| value(&mut bench, width));
    let mut random = Random(12);
    let mut matrix = |rows: u64, columns: u64| {
        let numbers = random.bf16((rows * columns) as usize).bytes();
        bench.place(DType::BF16, Vary::Fixed, &[rows, columns], Some(numbers))
    };
    let matrices = [(e, k), (l, k), (s, k), (s, k)].map(|(n, k)| matrix(n, k));
    let (up, down) = (matrix(n, l), matrix(n, s));
    let norm: Vec<f32> = (0..l).map(|i| 1.0 + i as f32 / 64.0).collect();
    let norm = bench.place(DType::F32, Vary::Fixed, &[l], Some(norm.bytes()));
    let mut output = |tokens: usize, width| bench.place(DType::F32, Vary::Tokens, &[tokens as u64, width], None);
    let made: Vec<Made> = tokens
        .iter()
        .map(|&t| Made { logits: output(t, e), z: output(t, l), h: output(t, s), y: output(t, n) })
        .collect();
    let [logits, z, gates, ups, h] = [e, l, s, s, s].map(|width| output(tokens[1], width));
    bench.load();

    let betas = attrs(&[], &[4.0, 25.0]);
    for (t, made) in tokens.iter().zip(&made) {
        let inputs = [&[rows(&x, 0, *t)], &matrices[..], &[made.logits, made.z, made.h]].concat();
        let outputs = vec![rows(&r, 0, *t), norm, up, made.h, down, rows(&before, 0, *t), made.y];
        let ops = [(OpKind::MoeInput, inputs, betas), (OpKind::MoeOutput, outputs, attrs(&[1], &[1e-5]))];
        bench.run(ts_step_row { query_len: *t as u32, ..Default::default() }, &ops);
    }
    let part = rows(&x, 0, tokens[1]);
    let mut parts: Vec<_> = matrices
        .iter()
        .zip([logits, z, gates, ups])
        .map(|(w, y)| (OpKind::Gemm, vec![part, *w, y], Attrs::default()))
        .collect();
    parts[0].2 = attrs(&[0, 1], &[]);
    parts.push((OpKind::SituMul, vec![gates, ups, h], betas));
    bench.run(ts_step_row { query_len: tokens[1] as u32, ..Default::default() }, &parts);

    let few = tokens[0];
    let bits = |tensor: &Tensor, n: usize| bench.read(&rows(tensor, 0, n));
    let [low, middle, ..] = &made[..] else { unreachable!("two steps at least") };
    // Choices are made of logits: their factors are never e4m3.
    for (name, own, part) in [("logits", middle.logits, logits), ("z", middle.z, z), ("h", middle.h, h)] {
        assert!(bits(&own, tokens[1]) == bits(&part, tokens[1]), "{name} has other bits than in parts");
    }
    let every = |made: &Made| [made.logits, made.z, made.h, made.y];
    for taller in &made[1..] {
        for ((name, a), b) in ["logits", "z", "h", "y"].into_iter().zip(every(low)).zip(every(taller)) {
            assert!(bits(&a, few) == bits(&b, few), "{name} of a token has other bits among {} tokens", b.dims[0]);
        }
    }
}

#[test]
fn one_launch_has_the_bits_of_its_parts_in_every_tile() {
    agree(&[], RAGGED, &TOKENS[..2]);
}

#[test]
fn one_launch_has_the_bits_of_its_parts_in_wide_tiles() {
    agree(&[], MANY, &FEWER);
}

#[test]
fn one_launch_has_the_bits_of_its_parts_in_f32() {
    agree(&[("precision", "f32")], RAGGED, &TOKENS);
}

#[test]
fn e4m3_factors_have_the_bits_of_the_parts_in_every_tile() {
    agree(&[("precision", "fp8")], WIDE, &TOKENS);
}

/// From the input of a mixture of experts to the sum of its experts: in a program, whose first launch leaves latent rows in bf16 for the
/// experts, the bits are those of single ops, and no launch rounds.
#[test]
fn latent_rows_are_left_as_experts_want_them() {
    const E: u64 = 24;
    const WIDTH: u64 = 128;
    const CHOSEN: u64 = 2;
    let launches = Launches::recorded();
    let Some((_backend, device)) = backend_device(&[]) else { return };
    configure(emulator(), true, 2);
    let roundings = || launches.take().iter().filter(|kernel| *kernel == "convert").count();
    // The last step has the largest tiles, by the columns of its shared experts.
    for (tokens, shared) in [(3, WIDTH), (20, WIDTH), (130, 8192)] {
        let t = tokens as u64;
        let mut bench = Bench::new(&device);
        let mut random = Random(21);
        let numbers: Vec<f32> = (0..t * WIDTH).map(|_| random.unit()).collect();
        let x = bench.place(DType::F32, Vary::Tokens, &[t, WIDTH], Some(numbers.bytes()));
        let matrices = [E, WIDTH, shared, shared].map(|n| {
            let numbers = random.bf16((n * WIDTH) as usize).bytes();
            bench.place(DType::BF16, Vary::Fixed, &[n, WIDTH], Some(numbers))
        });
        let bias = bench.place(DType::F32, Vary::Fixed, &[E], Some(vec![0f32; E as usize].bytes()));
        let slots: Vec<u8> = (0..E as u32).flat_map(u32::to_le_bytes).collect();
        let slots = bench.place(DType::U32, Vary::Fixed, &[E], Some(slots));
        let stacks = [(); 3].map(|()| {
            let bytes = (0..E * WIDTH * WIDTH / 2).map(|_| random.bits() as u8).collect();
            bench.place(DType::Mxfp4, Vary::Fixed, &[E, WIDTH, WIDTH], Some(bytes))
        });
        let scales = [(); 3].map(|()| {
            let bytes = (0..E * WIDTH * WIDTH / 32).map(|_| 118 + (random.bits() % 4) as u8).collect();
            bench.place(DType::U8, Vary::Fixed, &[E, WIDTH, WIDTH / 32], Some(bytes))
        });
        let mut made = |dtype, n| bench.place(dtype, Vary::Tokens, &[t, n], None);
        let [logits, z, h, weights] = [E, WIDTH, shared, CHOSEN].map(|n| made(DType::F32, n));
        let ids = made(DType::U32, CHOSEN);
        let y = made(DType::F32, WIDTH);
        bench.load();
        let betas = attrs(&[], &[4.0, 25.0]);
        let ops = [
            (OpKind::MoeInput, [&[x], &matrices[..], &[logits, z, h]].concat(), betas),
            (OpKind::RouterTopk, vec![logits, bias, ids, weights], attrs(&[1, 1, 1], &[1.0])),
            (
                OpKind::Experts,
                [&[z, ids, weights, slots], &stacks[..], &scales, &[y]].concat(),
                attrs(&[1], &[4.0, 25.0]),
            ),
        ];
        bench.run(ts_step_row { query_len: tokens as u32, ..Default::default() }, &ops);
        let (alone, before) = ([z, y].map(|made| bench.read(&made)), roundings());
        bench.run_program(tokens, &ops);
        assert!(before > 0 && roundings() == 0, "{tokens} tokens: rows are rounded again");
        assert!(
            [z, y].map(|made| bench.read(&made)) == alone,
            "{tokens} tokens: a program gives other bits than its ops"
        );
        assert!(f32s(&alone[1]).iter().all(|v| v.is_finite()) && f32s(&alone[1]).iter().any(|v| *v != 0.0));
    }
}
