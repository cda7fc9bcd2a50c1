//! GEMM against a naive f64 loop, and bit for bit against itself for any number of rows and workers.

use super::*;
use crate::{
    blocks::{
        dequantise,
        tests::{FORMATS, noise, random_weights},
    },
    level::testable,
};

fn activations(m: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut next = noise(seed);
    (0..m * k).map(|_| (next() as f32 / u32::MAX as f32 - 0.5) * 4.0).collect()
}

struct Case {
    dtype: DType,
    n: usize,
    k: usize,
    stored: Vec<u8>,
    packed: Vec<u8>,
    bias: Vec<f32>,
}

impl Case {
    fn new(dtype: DType, n: usize, k: usize) -> Self {
        let stored = random_weights(dtype, n, k, (n * 1000 + k) as u64);
        let mut packed = vec![0u8; packed_bytes(dtype, n, k)];
        pack_tiles(dtype, &stored, n, k, 0..n.div_ceil(TILE_ROWS), &mut packed);
        Self { dtype, n, k, stored, packed, bias: activations(1, n, 5) }
    }

    fn run(&self, level: Level, workers: usize, x: &[f32], packed: bool, bias: bool) -> Vec<f32> {
        let m = x.len() / self.k;
        let data = if packed { &self.packed } else { &self.stored };
        let mut y = vec![f32::NAN; m * self.n];
        let args = GemmArgs {
            x: x.as_ptr(),
            ldx: self.k,
            weight: Weight { data: data.as_ptr(), dtype: self.dtype, packed },
            bias: if bias { self.bias.as_ptr() } else { std::ptr::null() },
            y: y.as_mut_ptr(),
            ldy: self.n,
            m,
            n: self.n,
            k: self.k,
        };
        let mut scratch = Scratch::new(scratch_bytes(level, self.dtype, m, self.k));
        for index in 0..workers {
            // SAFETY: shapes as documented; the tier is available.
            unsafe { gemm(level, Part { index, count: workers }, &mut scratch, &args) };
        }
        y
    }

    /// Naive f64 sums and sums of magnitudes.
    fn exact(&self, x: &[f32]) -> Vec<(f64, f64)> {
        let row_bytes = self.stored.len() / self.n;
        let mut w = vec![0f32; self.n * self.k];
        for (row, out) in self.stored.chunks(row_bytes).zip(w.chunks_mut(self.k)) {
            dequantise(self.dtype, row, 0, out);
        }
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).fold((0.0, 0.0), |(s, m), (a, b)| {
                let p = *a as f64 * *b as f64;
                (s + p, m + p.abs())
            })
        };
        x.chunks(self.k).flat_map(|x| w.chunks(self.k).map(|w| dot(x, w)).collect::<Vec<_>>()).collect()
    }
}

fn depths(dtype: DType) -> &'static [usize] {
    match dtype.block_len() {
        1 => &[1, 31, 32, 100, 576],
        32 => &[32, 288, 576],
        _ => &[256, 768],
    }
}

#[test]
fn close_to_f64_for_every_format_tier_and_ragged_shape() {
    for dtype in FORMATS {
        for &k in depths(dtype) {
            for (n, m) in [(1, 1), (16, 3), (37, 40), (70, 17)] {
                let case = Case::new(dtype, n, k);
                let x = activations(m, k, 9);
                let exact = case.exact(&x);
                for level in testable() {
                    let y = case.run(level, 1, &x, true, false);
                    for (i, (got, (sum, magnitude))) in y.iter().zip(&exact).enumerate() {
                        let error = (*got as f64 - sum).abs();
                        // Square-root growth of rounding over K is far below this; a wrong k or lane far above.
                        assert!(
                            error <= 1e-6 * magnitude + 1e-12,
                            "{level} {dtype} n {n} k {k} m {m}: element {i} is {got}, exactly {sum}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_workers() {
    for dtype in FORMATS {
        let k = if dtype.block_len() == 256 { 512 } else { 576 };
        let case = Case::new(dtype, 90, k);
        let x = activations(70, k, 3);
        for level in testable() {
            let all = case.run(level, 1, &x, true, true);
            assert_eq!(all, case.run(level, 2, &x, true, true), "{level} {dtype}: two workers");
            assert_eq!(all, case.run(level, 3, &x, true, true), "{level} {dtype}: three workers");
            for m in (1..=20).chain([31, 32, 33, 47, 64, 69]) {
                let some = case.run(level, 1 + m % 2, &x[(70 - m) * k..], true, true);
                assert_eq!(some, all[(70 - m) * case.n..], "{level} {dtype}: {m} rows");
            }
        }
    }
}

#[test]
fn stored_weights_give_the_bits_of_packed_ones() {
    for dtype in FORMATS {
        let case = Case::new(dtype, 37, 256);
        for m in [1, 5, 70] {
            let x = activations(m, 256, 8);
            for level in testable() {
                let packed = case.run(level, 1, &x, true, true);
                assert_eq!(packed, case.run(level, 2, &x, false, true), "{level} {dtype} {m} rows");
            }
        }
    }
}

#[test]
fn bias_is_added_to_the_finished_sum() {
    let case = Case::new(DType::Q4_1, 37, 576);
    let x = activations(33, 576, 2);
    for level in testable() {
        let without = case.run(level, 1, &x, true, false);
        let with = case.run(level, 1, &x, true, true);
        for (i, (a, b)) in without.iter().zip(&with).enumerate() {
            assert_eq!(a + case.bias[i % 37], *b, "{level}");
        }
    }
}

#[test]
fn a_group_has_the_bits_of_its_members_one_by_one() {
    let formats = [DType::Q4_1, DType::Q8_0, DType::BF16];
    let cases: Vec<Case> = formats.iter().zip([90, 16, 37]).map(|(dtype, n)| Case::new(*dtype, n, 576)).collect();
    for m in [1, 3, 16, 100] {
        let x = activations(m, 576, 4);
        for level in testable() {
            let mut results: Vec<Vec<f32>> = cases.iter().map(|c| vec![f32::NAN; m * c.n]).collect();
            let group: Vec<GemmArgs> = cases
                .iter()
                .zip(&mut results)
                .map(|(case, y)| GemmArgs {
                    x: x.as_ptr(),
                    ldx: 576,
                    weight: Weight { data: case.packed.as_ptr(), dtype: case.dtype, packed: true },
                    bias: std::ptr::null(),
                    y: y.as_mut_ptr(),
                    ldy: case.n,
                    m,
                    n: case.n,
                    k: 576,
                })
                .collect();
            let bytes = formats.iter().map(|dtype| scratch_bytes(level, *dtype, m, 576)).max().unwrap();
            let mut scratch = Scratch::new(bytes);
            for index in 0..2 {
                // SAFETY: shapes as documented; the tier is available.
                unsafe { gemm_group(level, Part { index, count: 2 }, &mut scratch, &group) };
            }
            for (case, y) in cases.iter().zip(&results) {
                assert_eq!(*y, case.run(level, 1, &x, true, false), "{level} {} {m} rows", case.dtype);
            }
        }
    }
}
