//! Matrix instructions as the compiler uses them, against f64: the second source of every lane map that we rely on.
//!
//! Formats are decoded here from their definitions, independently of the emulator's tables.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Kernel},
};

use crate::support::{Bytes, Random, configure, device, f32s};

/// Value of a small float with sign, exponent and mantissa bits; e4m3 and e5m2 special codes are not asked for.
fn small(code: u32, exponent: u32, mantissa: u32) -> f64 {
    let bias = (1 << (exponent - 1)) - 1;
    let e = code >> mantissa & ((1 << exponent) - 1);
    let m = f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    let sign = if code >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    sign * if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e as i32 - bias) }
}

/// An operand format: bits per element, exponent and mantissa.
#[derive(Clone, Copy)]
struct Format {
    bits: usize,
    exponent: u32,
    mantissa: u32,
}

fn format(name: &str) -> Format {
    let (bits, exponent, mantissa) = match name {
        "bf16" => (16, 8, 7),
        "f16" => (16, 5, 10),
        "f32" => (32, 8, 23),
        "fp8" | "e4m3" => (8, 4, 3),
        "bf8" | "e5m2" => (8, 5, 2),
        "e2m1" => (4, 2, 1),
        other => panic!("format {other}"),
    };
    Format { bits, exponent, mantissa }
}

/// `count` random elements: packed bytes and values. Exponents stay near one, so that sums are not dominated by one term,
/// but include zero and denormals.
fn elements(f: Format, count: usize, random: &mut Random) -> (Vec<u8>, Vec<f64>) {
    let mut codes = Vec::new();
    for _ in 0..count {
        let middle = (1 << (f.exponent - 1)) - 1;
        let exponent = match f.exponent {
            2 => random.bits() as u32 & 3,
            _ if random.bits().is_multiple_of(16) => 0,
            _ => middle - 2 + (random.bits() % 4) as u32,
        };
        let low = random.bits() as u32 & ((1 << f.mantissa) - 1);
        codes.push((random.bits() as u32 & 1) << (f.exponent + f.mantissa) | exponent << f.mantissa | low);
    }
    let values = codes.iter().map(|c| small(*c, f.exponent, f.mantissa)).collect();
    let bytes = match f.bits {
        4 => codes.chunks(2).map(|c| (c[0] | c[1] << 4) as u8).collect(),
        8 => codes.iter().map(|c| *c as u8).collect(),
        16 => codes.iter().flat_map(|c| (*c as u16).to_le_bytes()).collect(),
        _ => codes.iter().flat_map(|c| c.to_le_bytes()).collect(),
    };
    (bytes, values)
}

fn compare(name: &str, got: &[f32], want: impl Fn(usize, usize) -> (f64, f64)) {
    for (i, got) in got.iter().enumerate() {
        let (value, scale) = want(i / 64, i % 64);
        assert!(
            (f64::from(*got) - value).abs() <= scale * 1e-6 + 1e-30,
            "{name} [{}, {}]: {got}, not {value}",
            i / 64,
            i % 64
        );
    }
}

fn dot(device: &Arc<Device>, kernel: &Kernel, k: usize, seed: u64) {
    let name = &kernel.entry.name;
    let f = format(name.split('_').nth(1).unwrap());
    let mut random = Random(seed);
    let (a, va) = elements(f, 64 * k, &mut random);
    let (b, vb) = elements(f, k * 64, &mut random);
    let (a, b) = (Buffer::with(device, &a).unwrap(), Buffer::with(device, &b).unwrap());
    let out = Buffer::new(device, 64 * 64 * 4).unwrap();
    let queue = Queue::new(device).unwrap();
    let arguments = [
        ("a", Argument::Pointer(a.address())),
        ("b", Argument::Pointer(b.address())),
        ("out", Argument::Pointer(out.address())),
        ("K", Argument::I32(k as i32)),
    ];
    // SAFETY: operands are as large as K says, and live until the read below.
    unsafe { kernel.launch(&queue, [1, 1, 1], &arguments) }.unwrap();
    queue.synchronize().unwrap();
    compare(name, &f32s(&out.read().unwrap()), |i, j| {
        let products = (0..k).map(|l| va[i * k + l] * vb[l * 64 + j]);
        (products.clone().sum(), products.map(f64::abs).sum())
    });
}

fn dots(filter: &str) {
    let Some((device, manifest)) = device() else { return };
    let names = manifest.kernels.iter().map(|k| &k.name).filter(|n| n.starts_with(filter));
    let names: Vec<_> = names.cloned().collect();
    assert!(!names.is_empty());
    for name in names {
        let kernel = Kernel::load(&device, &manifest, &name).unwrap();
        for seed in 0..2 {
            configure(device.hip, true, seed);
            dot(&device, &kernel, 256, seed);
        }
    }
}

#[test]
fn products_of_bf16() {
    dots("dot_bf16");
}

#[test]
fn products_of_f16() {
    dots("dot_f16");
}

#[test]
fn products_of_f32() {
    dots("dot_f32");
}

#[test]
fn products_of_8_bit_floats() {
    dots("dot_fp8");
    dots("dot_bf8");
}

/// Block-scaled products: every combination of formats that the kernels use, both shapes, scales from 2^-7 to 2^6.
#[test]
fn scaled_products() {
    let Some((device, manifest)) = device() else { return };
    let entries: Vec<_> = manifest.kernels.iter().filter(|k| k.name.starts_with("scaled_")).cloned().collect();
    assert!(!entries.is_empty());
    for entry in entries {
        let kernel = Kernel::load(&device, &manifest, &entry.name).unwrap();
        let parts: Vec<&str> = entry.name.split('_').collect();
        let (fa, fb, k) = (format(parts[1]), format(parts[2]), 512);
        let rows = entry.constant("BM").unwrap() as usize;
        for seed in 0..2 {
            configure(device.hip, true, seed);
            let mut random = Random(seed + 100);
            let (a, va) = elements(fa, rows * k, &mut random);
            let (b, vb) = elements(fb, 64 * k, &mut random);
            let mut scales =
                |rows: usize| (0..rows * k / 32).map(|_| 120 + (random.bits() % 14) as u8).collect::<Vec<u8>>();
            let (mut sa, sb) = (scales(rows), scales(64));
            // bf16 has none: each is 2^0.
            if fa.bits == 16 {
                sa.fill(127);
            }
            let buffers = [&a, &sa, &b, &sb].map(|bytes| Buffer::with(&device, bytes).unwrap());
            let out = Buffer::new(&device, rows * 64 * 4).unwrap();
            let queue = Queue::new(&device).unwrap();
            let pointer = |i: usize| Argument::Pointer(buffers[i].address());
            let arguments = [
                ("a", pointer(0)),
                ("sa", pointer(1)),
                ("b", pointer(2)),
                ("sb", pointer(3)),
                ("out", Argument::Pointer(out.address())),
                ("K", Argument::I32(k as i32)),
            ];
            // SAFETY: operands are as large as K says, and live until the read below.
            unsafe { kernel.launch(&queue, [1, 1, 1], &arguments) }.unwrap();
            queue.synchronize().unwrap();
            let power = |s: u8| 2f64.powi(i32::from(s) - 127);
            compare(&entry.name, &f32s(&out.read().unwrap()), |i, j| {
                let products = (0..k).map(|l| {
                    let scale = power(sa[i * k / 32 + l / 32]) * power(sb[j * k / 32 + l / 32]);
                    va[i * k + l] * vb[j * k + l] * scale
                });
                (products.clone().sum(), products.map(f64::abs).sum())
            });
        }
    }
}

/// Reductions across lanes and waves, transcendentals and a division.
#[test]
fn reductions() {
    let Some((device, manifest)) = device() else { return };
    let kernel = Kernel::load(&device, &manifest, "reduce").unwrap();
    for (n, seed) in [(1000usize, 0), (1024, 1), (1, 2), (130, 3)] {
        configure(device.hip, true, seed);
        let (rows, mut random) = (3, Random(seed));
        let x: Vec<f32> = (0..rows * n).map(|_| 4.0 * random.unit()).collect();
        let input = Buffer::with(&device, &x.bytes()).unwrap();
        let out = Buffer::new(&device, rows * 5 * 4).unwrap();
        let queue = Queue::new(&device).unwrap();
        let arguments = [
            ("x", Argument::Pointer(input.address())),
            ("out", Argument::Pointer(out.address())),
            ("n", Argument::I32(n as i32)),
        ];
        // SAFETY: three rows of n values, five results each.
        unsafe { kernel.launch(&queue, [rows as u32, 1, 1], &arguments) }.unwrap();
        queue.synchronize().unwrap();
        for (row, got) in x.chunks(n).zip(f32s(&out.read().unwrap()).chunks(5)) {
            let v: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let top = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let want = [
                v.iter().sum(),
                top,
                v.iter().map(|x| (x - top).exp2()).sum(),
                1.0 / (v.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt(),
                v.iter().position(|x| *x == top).unwrap() as f64,
            ];
            for (got, want) in got.iter().zip(want) {
                let magnitude: f64 = v.iter().map(|x| x.abs()).sum::<f64>() + want.abs();
                assert!((f64::from(*got) - want).abs() < 1e-6 * magnitude, "n = {n}: {got}, not {want}");
            }
        }
    }
}

/// Atomics: sums arrive whole, and tickets are handed out once each, whatever the order of groups.
#[test]
fn atomics() {
    let Some((device, manifest)) = device() else { return };
    let kernel = Kernel::load(&device, &manifest, "ticket").unwrap();
    let (programs, n) = (7usize, 1700usize);
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..6 {
        configure(device.hip, true, seed);
        let x: Vec<f32> = (0..n).map(|i| (i % 37) as f32).collect();
        let input = Buffer::with(&device, &x.bytes()).unwrap();
        let sums = Buffer::with(&device, &vec![0; 64 * 4]).unwrap();
        let counter = Buffer::with(&device, &[0; 4]).unwrap();
        let order = Buffer::new(&device, programs * 4).unwrap();
        let queue = Queue::new(&device).unwrap();
        let arguments = [
            ("x", Argument::Pointer(input.address())),
            ("sums", Argument::Pointer(sums.address())),
            ("counter", Argument::Pointer(counter.address())),
            ("order", Argument::Pointer(order.address())),
            ("n", Argument::I32(n as i32)),
        ];
        // SAFETY: n values, 64 bins, one counter, a ticket per program.
        unsafe { kernel.launch(&queue, [programs as u32, 1, 1], &arguments) }.unwrap();
        queue.synchronize().unwrap();
        for (bin, got) in f32s(&sums.read().unwrap()).iter().enumerate() {
            // Small integers: exact in any order.
            assert_eq!(*got, x.iter().skip(bin).step_by(64).sum::<f32>(), "bin {bin}");
        }
        let order: Vec<u8> = order.read().unwrap().chunks(4).map(|c| c[0]).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..programs as u8).collect::<Vec<_>>());
        orders.insert(order);
    }
    assert!(orders.len() > 1, "seeds make no difference");
}
