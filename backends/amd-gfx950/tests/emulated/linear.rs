//! `linear` by tiles of every size: which one a step takes must not show in a single bit.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Kernel, Manifest},
};

use crate::support::{Bytes, Random, bf16, configure, device, f32s, long_tests};

/// Rows, columns and values of K.
type Shape = [usize; 3];

const SMALL: Shape = [70, 80, 176];
/// Nine tiles of 128 rows, one more than a band has, and two of 256 columns, the last of either with one in it.
const TALL: Shape = [1025, 257, 48];

/// Columns of the first of two products that share a launch.
const FIRST: usize = 48;

/// Kernels, and rows and columns of their tiles.
const TILES: [(&str, usize, usize); 11] = [
    ("linear_bf16_bf16", 16, 16),
    ("linear_bf16_bf16", 16, 64),
    ("linear_bf16_bf16", 64, 64),
    ("linear_many", 32, 32),
    ("linear_many", 32, 64),
    ("linear_many", 64, 64),
    ("linear_many", 128, 256),
    ("linear_many_several", 32, 32),
    ("linear_many_several", 32, 64),
    ("linear_many_several", 64, 64),
    ("linear_many_several", 128, 256),
];

fn product(
    device: &Arc<Device>,
    manifest: &Manifest,
    ((name, rows, columns), suffix): ((&str, usize, usize), &str),
    [m, n, k]: Shape,
    [x, bias]: [&[f32]; 2],
    w: &[u16],
) -> Vec<f32> {
    let mut step = [0u32; 64];
    step[1] = m as u32;
    let step: Vec<u8> = step.iter().flat_map(|x| x.to_le_bytes()).collect();
    let buffer = |bytes: &[u8]| Buffer::with(device, bytes).unwrap();
    let (step, x, w, added) = (buffer(&step), buffer(&x.bytes()), buffer(&w.bytes()), buffer(&bias.bytes()));
    let [y, total] = [(); 2].map(|()| buffer(&vec![0xff; m * n * 4]));
    let residual: Vec<f32> = (0..m * n).map(|i| (i % 11) as f32).collect();
    let before = buffer(&residual.bytes());
    let at = |b: &Buffer, element: usize, bytes: usize| Argument::Pointer(b.address() + (element * bytes) as u64);
    let int = |n: usize| Argument::I32(n as i32);
    let mut arguments: Vec<(String, Argument)> = Vec::new();
    let mut add = |name: &str, value| arguments.push((name.into(), value));
    add("step", at(&step, 0, 0));
    add("count_word", int(1));
    add("count_fixed", int(0));
    add("x", at(&x, 0, 0));
    add("K", int(k));
    add("ldx", int(k));
    let parts = [(0, FIRST), (FIRST, n - FIRST), (0, 0), (0, 0), (0, 0), (0, 0)];
    let mut tiles = n.div_ceil(columns);
    if name.ends_with("several") {
        for (i, (first, own)) in parts.into_iter().enumerate() {
            add(&format!("w{i}"), at(&w, first * k, 2));
            add(&format!("y{i}"), at(&y, first, 4));
            add(&format!("n{i}"), int(own));
            add(&format!("lw{i}"), int(k));
            add(&format!("ly{i}"), int(n));
        }
        tiles = parts.map(|(_, own)| own.div_ceil(columns)).iter().sum();
    } else {
        add("w", at(&w, 0, 0));
        add("y", at(&y, 0, 0));
        add("bias", at(&added, 0, 0));
        add("biased", int(1));
        add("N", int(n));
        add("ldw", int(k));
        add("ldy", int(n));
    }
    if name == "linear_many" {
        for (name, value) in [("add", 1), ("keep", 1), ("ldb", n), ("ldt", n)] {
            add(name, int(value));
        }
        add("before", at(&before, 0, 0));
        add("total", at(&total, 0, 0));
    }
    if name.starts_with("linear_many") && rows < 128 {
        tiles = tiles.next_multiple_of(8);
    }
    let arguments: Vec<(&str, Argument)> = arguments.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let kernel = Kernel::load(device, manifest, &format!("{name}_{rows}x{columns}{suffix}")).unwrap();
    let queue = Queue::new(device).unwrap();
    let groups = [m.div_ceil(rows) as u32, tiles as u32, 1];
    // SAFETY: buffers are as large as the sizes say and live until the queue was waited for.
    unsafe { kernel.launch(&queue, groups, &arguments) }.unwrap();
    queue.synchronize().unwrap();
    let mut sums = f32s(&y.read().unwrap());
    if name == "linear_many" {
        let total = f32s(&total.read().unwrap());
        assert!(
            total.iter().zip(&sums).zip(&residual).all(|((t, y), r)| t.to_bits() == (r + y).to_bits()),
            "{rows}x{columns}"
        );
    }
    if name.ends_with("several") {
        sums.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % n]);
    }
    sums
}

/// Values of a product of that shape.
fn drawn([m, n, k]: Shape) -> (Vec<f32>, Vec<u16>, Vec<f32>) {
    let mut random = Random(7);
    let x = (0..m * k).map(|_| random.unit()).collect();
    (x, random.bf16(n * k), (0..n).map(|_| random.unit()).collect())
}

/// Holds a product against sums in f64.
fn check(y: &[f32], [_, n, k]: Shape, [x, bias]: [&[f32]; 2], w: &[u16]) {
    for (row, y) in y.chunks(n).enumerate() {
        for (column, y) in y.iter().enumerate() {
            let rounded = |x: f32| f64::from(half::bf16::from_f32(x).to_f32());
            let terms = x[row * k..][..k].iter().zip(&w[column * k..][..k]).map(|(x, w)| rounded(*x) * bf16(*w));
            let want = terms.sum::<f64>() + f64::from(bias[column]);
            assert!((f64::from(*y) - want).abs() < 1e-4, "row {row}, column {column}: {y}, expected {want}");
        }
    }
}

#[test]
fn tiles_of_every_size_give_the_same_bits() {
    let Some((device, manifest)) = device() else { return };
    let (x, w, bias) = drawn(SMALL);
    let mut first: Option<Vec<f32>> = None;
    // What makes no promise about its arguments gives what its sibling gives.
    let promised = TILES.into_iter().filter(|(name, ..)| *name == "linear_bf16_bf16");
    let tiles = TILES.into_iter().map(|tile| (tile, "")).chain(promised.map(|tile| (tile, "_ragged")));
    for (i, tile) in tiles.enumerate() {
        configure(device.hip, true, i as u64);
        let y = product(&device, &manifest, tile, SMALL, [&x, &bias], &w);
        if let Some(first) = &first {
            let same = first.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "tiles of {tile:?} give other bits");
            continue;
        }
        check(&y, SMALL, [&x, &bias], &w);
        first = Some(y);
    }
}

#[test]
fn tall_tiles_go_round_in_bands() {
    let Some((device, manifest)) = device() else { return };
    let (x, w, bias) = drawn(TALL);
    let names = ["linear_many", "linear_many_several"];
    for (seed, name) in names.into_iter().cycle().take(if long_tests() { 40 } else { 2 }).enumerate() {
        configure(device.hip, true, seed as u64);
        let y = product(&device, &manifest, ((name, 128, 256), ""), TALL, [&x, &bias], &w);
        check(&y, TALL, [&x, &bias], &w);
    }
}
