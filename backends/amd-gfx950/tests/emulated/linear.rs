//! `linear` by tiles of every size: which one a step takes must not show in a single bit.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Kernel, Manifest},
};

use crate::support::{Bytes, Random, bf16, configure, device, f32s};

const ROWS: usize = 21;
const COLUMNS: usize = 80;
const K: usize = 192;

fn product(device: &Arc<Device>, manifest: &Manifest, tile: (usize, usize), x: &[f32], w: &[u16]) -> Vec<f32> {
    let mut step = [0u32; 64];
    step[1] = ROWS as u32;
    let step: Vec<u8> = step.iter().flat_map(|x| x.to_le_bytes()).collect();
    let buffer = |bytes: &[u8]| Buffer::with(device, bytes).unwrap();
    let (step, x, w) = (buffer(&step), buffer(&x.bytes()), buffer(&w.bytes()));
    let y = buffer(&vec![0xff; ROWS * COLUMNS * 4]);
    let at = |b: &Buffer| Argument::Pointer(b.address());
    let int = |n: usize| Argument::I32(n as i32);
    let arguments = [
        ("step", at(&step)),
        ("count_word", int(1)),
        ("count_fixed", int(0)),
        ("x", at(&x)),
        ("w", at(&w)),
        ("bias", at(&x)),
        ("y", at(&y)),
        ("N", int(COLUMNS)),
        ("K", int(K)),
        ("ldx", int(K)),
        ("ldw", int(K)),
        ("ldy", int(COLUMNS)),
    ];
    let kernel = Kernel::load(device, manifest, &format!("linear_bf16_bf16_{}x{}", tile.0, tile.1)).unwrap();
    let groups = [ROWS.div_ceil(tile.0) as u32, COLUMNS.div_ceil(tile.1) as u32, 1];
    let queue = Queue::new(device).unwrap();
    // SAFETY: buffers are as large as the sizes say and live until the queue was waited for.
    unsafe { kernel.launch(&queue, groups, &arguments) }.unwrap();
    queue.synchronize().unwrap();
    f32s(&y.read().unwrap())
}

#[test]
fn tiles_of_every_size_give_the_same_bits() {
    let Some((device, manifest)) = device() else { return };
    let mut random = Random(7);
    let x: Vec<f32> = (0..ROWS * K).map(|_| random.unit()).collect();
    let w = random.bf16(COLUMNS * K);
    let mut first: Option<Vec<f32>> = None;
    for (i, tile) in [(16, 16), (16, 64), (64, 16), (64, 64), (128, 128)].into_iter().enumerate() {
        configure(device.hip, true, i as u64);
        let y = product(&device, &manifest, tile, &x, &w);
        if let Some(first) = &first {
            let same = first.iter().zip(&y).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "tiles of {tile:?} give other bits");
            continue;
        }
        for (row, y) in y.chunks(COLUMNS).enumerate() {
            for (column, y) in y.iter().enumerate() {
                let rounded = |x: f32| f64::from(half::bf16::from_f32(x).to_f32());
                let terms = x[row * K..][..K].iter().zip(&w[column * K..][..K]).map(|(x, w)| rounded(*x) * bf16(*w));
                let want: f64 = terms.sum();
                assert!((f64::from(*y) - want).abs() < 1e-4, "row {row}, column {column}: {y}, expected {want}");
            }
        }
        first = Some(y);
    }
}
