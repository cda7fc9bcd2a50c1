//! The portable matrix product against f64, over ragged shapes and several interleavings.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device, Queue},
    kernel::{Argument, Entry, Kernel, LaunchError, Manifest},
};

use crate::support::{Bytes, Random, bf16, configure, counters, device, f32s};

/// Sizes of one product.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Operands on the device, padded rows, and what the product must be.
pub struct Case {
    pub shape: Shape,
    pub x: Buffer,
    pub w: Buffer,
    pub out: Buffer,
    pub ldx: usize,
    pub ldo: usize,
    want: Vec<f64>,
    /// Sum of magnitudes per output, which bounds rounding.
    scale: Vec<f64>,
}

/// Bytes that a kernel must leave alone.
const UNTOUCHED: u8 = 0x5a;

impl Case {
    pub fn new(device: &Arc<Device>, shape: Shape, element_bytes: usize, seed: u64) -> Self {
        let Shape { m, n, k } = shape;
        let mut random = Random(seed);
        let (x, w) = (random.bf16(m * k), random.bf16(n * k));
        let (mut want, mut scale) = (vec![0.0; m * n], vec![0.0; m * n]);
        for i in 0..m {
            for j in 0..n {
                for l in 0..k {
                    let product = bf16(x[i * k + l]) * bf16(w[j * k + l]);
                    want[i * n + j] += product;
                    scale[i * n + j] += product.abs();
                }
            }
        }
        // Rows are padded to a multiple of 16 elements; what lies in the padding must not matter, so it is NaN.
        let (ldx, ldo) = (k.next_multiple_of(16), n.next_multiple_of(16));
        let pad = |rows: &[u16], count: usize| {
            let mut padded = vec![0xffffu16; count * ldx];
            for (i, row) in rows.chunks(k).enumerate() {
                padded[i * ldx..i * ldx + k].copy_from_slice(row);
            }
            // The last row ends where its data ends: reading its padding would be out of bounds.
            padded.truncate((count - 1) * ldx + k);
            padded
        };
        let out = vec![UNTOUCHED; m * ldo * element_bytes];
        Self {
            shape,
            x: Buffer::with(device, &pad(&x, m).bytes()).unwrap(),
            w: Buffer::with(device, &pad(&w, n).bytes()).unwrap(),
            out: Buffer::with(device, &out).unwrap(),
            ldx,
            ldo,
            want,
            scale,
        }
    }

    pub fn launch(&self, kernel: &Kernel, queue: &Queue) -> Result<(), LaunchError> {
        let Shape { m, n, k } = self.shape;
        let (bm, bn) = tile(&kernel.entry);
        let int = |x: usize| Argument::I32(x as i32);
        let arguments = [
            ("x", Argument::Pointer(self.x.address())),
            ("w", Argument::Pointer(self.w.address())),
            ("out", Argument::Pointer(self.out.address())),
            ("M", int(m)),
            ("N", int(n)),
            ("K", int(k)),
            ("ldx", int(self.ldx)),
            ("ldw", int(self.ldx)),
            ("ldo", int(self.ldo)),
        ];
        let groups = [m.div_ceil(bm) as u32, n.div_ceil(bn) as u32, 1];
        // SAFETY: buffers are as large as the sizes say, and live until the caller has synchronised.
        unsafe { kernel.launch(queue, groups, &arguments) }
    }

    /// Every output within rounding of the exact sum; nothing else written.
    pub fn check(&self, is_bf16: bool) -> Result<(), String> {
        let Shape { m, n, .. } = self.shape;
        let bytes = self.out.read().map_err(|e| e.to_string())?;
        let element = if is_bf16 { 2 } else { 4 };
        for (i, value) in bytes.chunks_exact(element).enumerate() {
            let (row, column) = (i / self.ldo, i % self.ldo);
            if column >= n {
                if value.iter().any(|b| *b != UNTOUCHED) {
                    return Err(format!("padding of row {row} written"));
                }
                continue;
            }
            let got = if is_bf16 { bf16(u16::from_le_bytes([value[0], value[1]])) } else { f64::from(f32s(value)[0]) };
            let (want, scale) = (self.want[row * n + column], self.scale[row * n + column]);
            // Sums in f32 lose at most a few units of the sum of magnitudes, whatever their order; bf16 rounds once more.
            let tolerance = scale * 1e-6 + if is_bf16 { want.abs() / 256.0 } else { 0.0 } + 1e-30;
            if (got - want).abs() > tolerance || got.is_nan() {
                return Err(format!("[{row}, {column}] of {m}x{n}: {got}, not {want}"));
            }
        }
        Ok(())
    }
}

/// Rows and columns of a work-group's tile.
pub fn tile(entry: &Entry) -> (usize, usize) {
    (entry.constant("BM").unwrap() as usize, entry.constant("BN").unwrap() as usize)
}

/// Runs one case to its end.
pub fn run(device: &Arc<Device>, kernel: &Kernel, shape: Shape, seed: u64) -> Result<(), String> {
    let is_bf16 = kernel.entry.name.starts_with("gemm_bf16_bf16");
    let case = Case::new(device, shape, if is_bf16 { 2 } else { 4 }, seed);
    let queue = Queue::new(device).unwrap();
    case.launch(kernel, &queue).map_err(|e| e.to_string())?;
    queue.synchronize().map_err(|e| e.to_string())?;
    case.check(is_bf16)
}

fn over_shapes(filter: &str, shapes: &[(usize, usize, usize)], seeds: u64) {
    let Some((device, manifest)) = device() else { return };
    let mut run_count = 0;
    for name in kernels(&manifest, filter) {
        let kernel = Kernel::load(&device, &manifest, &name).unwrap();
        for (m, n, k) in shapes.iter().copied() {
            for seed in 0..seeds {
                configure(device.hip, true, seed);
                run(&device, &kernel, Shape { m, n, k }, seed).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
                run_count += 1;
            }
        }
    }
    assert!(run_count > 0, "no kernel is named {filter}");
}

fn kernels(manifest: &Manifest, filter: &str) -> Vec<String> {
    manifest.kernels.iter().map(|k| k.name.clone()).filter(|n| n.starts_with("gemm") && n.contains(filter)).collect()
}

#[test]
fn small_tiles_on_ragged_shapes() {
    over_shapes("16x64x128", &[(1, 64, 128), (3, 70, 136), (16, 128, 256), (17, 33, 48), (5, 1, 1)], 3);
}

#[test]
fn middle_tiles_on_ragged_shapes() {
    over_shapes("64x64x64", &[(64, 64, 64), (65, 66, 200), (1, 100, 31)], 3);
}

#[test]
fn large_tiles_on_ragged_shapes() {
    over_shapes("128x128x64", &[(128, 128, 128), (100, 130, 72)], 2);
}

/// Without checks, on all cores, the same bits as with checks: timing and order of waves must not matter.
#[test]
fn checked_and_unchecked_runs_agree_bit_for_bit() {
    let Some((device, manifest)) = device() else { return };
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let case = Case::new(&device, Shape { m: 70, n: 90, k: 100 }, 4, 7);
    let queue = Queue::new(&device).unwrap();
    let mut results = Vec::new();
    for (checks, seed) in [(true, 0), (true, 5), (false, 0)] {
        configure(device.hip, checks, seed);
        case.launch(&kernel, &queue).unwrap();
        queue.synchronize().unwrap();
        case.check(false).unwrap();
        results.push(case.out.read().unwrap());
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

/// Matrix work is what the shape says, tiles included: a counter that counts something else would mislead every comparison.
#[test]
fn counters_count_the_tiles() {
    let Some((device, manifest)) = device() else { return };
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    counters(device.hip);
    run(&device, &kernel, Shape { m: 65, n: 64, k: 100 }, 1).unwrap();
    let counts = counters(device.hip);
    let (macs, written, groups) = (counts[9], counts[11], counts[15]);
    assert_eq!((macs, groups), (2 * 64 * 64 * 128, 2));
    assert_eq!(written, 65 * 64 * 4);
}

#[test]
fn arguments_are_checked_before_the_device_sees_them() {
    let Some((device, manifest)) = device() else { return };
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let queue = Queue::new(&device).unwrap();
    let mut case = Case::new(&device, Shape { m: 8, n: 8, k: 16 }, 4, 1);
    case.ldx = 17;
    let line = case.launch(&kernel, &queue).unwrap_err().to_string();
    assert!(line.contains("ldx") && line.contains("multiple of 16"), "{line}");
    // SAFETY: refused before anything is launched.
    let line = unsafe { kernel.launch(&queue, [1, 1, 1], &[("x", Argument::I32(3))]) }.unwrap_err().to_string();
    assert!(line.contains("argument x"), "{line}");
}
