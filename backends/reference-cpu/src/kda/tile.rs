//! Sixteen tokens of one head at once, as small matrix products over a state kept key by key.
//!
//! With Γ_i the product of the decays up to token i of the tile and S the state before it: `r_i = v_i − (k_i ⊙ Γ_i)·S`;
//! `u_i = beta_i · (r_i − Σ_j<i L_ij u_j)`; `o_i = (q_i ⊙ Γ_i)·S + Σ_j≤i A_ij u_j`; `S ← Γ_16 ⊙ S + Σ_j (k_j ⊙ Γ_16/Γ_j) ⊗ u_j`,
//! where L_ij = (k_i ⊙ Γ_i/Γ_j)·k_j and A_ij the same with q_i. It is the catalogue's chunk with W folded away.
//!
//! A ratio Γ_i/Γ_j is never a quotient: it is the product of the decays between, each e^g, so with g ≤ 0 nothing leaves
//! the range of f32 whatever the gate, and vanishing factors just vanish.
//!
//! Rejected: the state over 64 tokens at a time. Without matrix units a tile of 16 needs fewer operations (the triangles
//! grow with the square), a quarter of the scratch, and leaves at most 15 tokens at either end to the recurrence. Tiles
//! stand at multiples of 16 of the position, which the 64-token grid consists of.

use super::step::Tokens;
use crate::{
    exp::exp,
    scratch::{Carver, region_bytes},
    simd::{LANES, Simd},
};

/// Tokens of a tile.
pub(super) const TILE: usize = 16;
/// Decay products below this are zero: they no longer reach the last bit of anything, and would soon be subnormal, which
/// processors compute slowly.
const VANISHED: f32 = 1e-24;

/// Scratch regions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions {
    /// `[keys][values]`.
    pub state: *mut f32,
    /// Decays, `[16][keys]`.
    decay: *mut f32,
    /// `k_i ⊙ Γ_i`, then `q_i ⊙ Γ_i`: `[32][keys]`.
    left: *mut f32,
    /// Products of `left` with the state, `[32][values]`; the first half becomes u.
    right: *mut f32,
    /// `k_j ⊙ Γ_16/Γ_j`, `[16][keys]`.
    late: *mut f32,
    /// Γ_16, `[keys]`.
    total: *mut f32,
}

/// Whether tiles can have this shape.
pub(super) fn takes(keys: usize, values: usize) -> bool {
    keys.is_multiple_of(LANES) && values.is_multiple_of(LANES)
}

/// Scratch of [`Regions`].
pub(super) const fn scratch_bytes(keys: usize, values: usize) -> usize {
    region_bytes::<f32>(keys * values)
        + 2 * region_bytes::<f32>(TILE * keys)
        + region_bytes::<f32>(2 * TILE * keys)
        + region_bytes::<f32>(2 * TILE * values)
        + region_bytes::<f32>(keys)
}

impl Regions {
    pub fn new(carver: &mut Carver, keys: usize, values: usize) -> Self {
        Self {
            state: carver.take(keys * values),
            decay: carver.take(TILE * keys),
            left: carver.take(2 * TILE * keys),
            right: carver.take(2 * TILE * values),
            late: carver.take(TILE * keys),
            total: carver.take(keys),
        }
    }

    /// One tile: `tokens` are sixteen.
    ///
    /// # Safety
    /// As [`Simd`]; the shape is one that [`takes`] allows, and the regions were made for it.
    #[inline(always)]
    pub unsafe fn tile<S: Simd>(&self, tokens: &Tokens, keys: usize, values: usize) {
        debug_assert!(tokens.n == TILE && takes(keys, values));
        let mut l = [[0f32; TILE]; TILE];
        let mut a = [[0f32; TILE]; TILE];
        // SAFETY: the caller's promise.
        unsafe {
            self.decayed::<S>(tokens, keys);
            let mut d = 0;
            macro_rules! triangles {
                ($vectors:literal) => {
                    while keys - d >= $vectors * LANES {
                        self.triangles::<S, $vectors>(tokens, keys, d, &mut l, &mut a);
                        d += $vectors * LANES;
                    }
                };
            }
            if S::GEMM_ROWS >= 4 {
                triangles!(8);
                triangles!(4);
            }
            triangles!(1);
            self.read_state::<S>(keys, values);
            let mut x = 0;
            macro_rules! solve {
                ($vectors:literal) => {
                    while values - x >= $vectors * LANES {
                        self.solve::<S, $vectors>(tokens, values, x, &l, &a);
                        x += $vectors * LANES;
                    }
                };
            }
            if S::GEMM_ROWS >= 4 {
                solve!(4);
            }
            solve!(1);
            self.write_state::<S>(keys, values);
        }
    }

    /// Decays and everything scaled by their products.
    #[inline(always)]
    unsafe fn decayed<S: Simd>(&self, tokens: &Tokens, keys: usize) {
        // SAFETY: as in `tile`: every region has rows of `keys`.
        unsafe {
            let floor = S::splat(VANISHED);
            for d in (0..keys).step_by(LANES) {
                let mut product = S::splat(1.0);
                for i in 0..TILE {
                    let at = i * tokens.ld_keys + d;
                    let decay = exp::<S>(S::load(tokens.g.add(at)));
                    S::store(self.decay.add(i * keys + d), decay);
                    product = S::mul(product, decay);
                    product = S::zero_if_less(product, floor, product);
                    S::store(self.left.add(i * keys + d), S::mul(S::load(tokens.k.add(at)), product));
                    S::store(self.left.add((TILE + i) * keys + d), S::mul(S::load(tokens.q.add(at)), product));
                }
                S::store(self.total.add(d), product);
                let mut product = S::splat(1.0);
                for j in (0..TILE).rev() {
                    let k = S::load(tokens.k.add(j * tokens.ld_keys + d));
                    S::store(self.late.add(j * keys + d), S::mul(k, product));
                    product = S::mul(product, S::load(self.decay.add(j * keys + d)));
                    product = S::zero_if_less(product, floor, product);
                }
            }
        }
    }

    /// What keys `d..d + 16·N` add to L and A.
    #[inline(always)]
    unsafe fn triangles<S: Simd, const N: usize>(
        &self,
        tokens: &Tokens,
        keys: usize,
        d: usize,
        l: &mut [[f32; TILE]; TILE],
        a: &mut [[f32; TILE]; TILE],
    ) {
        // SAFETY: as in `tile`.
        unsafe {
            let row = |p: *const f32, i: usize| p.add(i * tokens.ld_keys + d);
            for j in 0..TILE {
                let mut key = [S::splat(0.0); N];
                let mut sum = [S::splat(0.0); 2];
                for (n, key) in key.iter_mut().enumerate() {
                    *key = S::load(row(tokens.k, j).add(n * LANES));
                    sum[n % 2] = S::fma(S::load(row(tokens.q, j).add(n * LANES)), *key, sum[n % 2]);
                }
                a[j][j] += S::sum(S::add(sum[0], sum[1]));
                for i in j + 1..TILE {
                    let [mut by_k, mut by_q] = [[S::splat(0.0); 2]; 2];
                    for (n, key) in key.iter_mut().enumerate() {
                        let at = n * LANES;
                        *key = S::mul(*key, S::load(self.decay.add(i * keys + d + at)));
                        by_k[n % 2] = S::fma(S::load(row(tokens.k, i).add(at)), *key, by_k[n % 2]);
                        by_q[n % 2] = S::fma(S::load(row(tokens.q, i).add(at)), *key, by_q[n % 2]);
                    }
                    l[i][j] += S::sum(S::add(by_k[0], by_k[1]));
                    a[i][j] += S::sum(S::add(by_q[0], by_q[1]));
                }
            }
        }
    }

    /// `right = left · state`.
    #[inline(always)]
    unsafe fn read_state<S: Simd>(&self, keys: usize, values: usize) {
        macro_rules! blocks {
            ($rows:literal, $vectors:literal, $from:expr) => {{
                let mut x = $from;
                while values - x >= $vectors * LANES {
                    for row in (0..2 * TILE).step_by($rows) {
                        // SAFETY: as in `tile`.
                        unsafe { self.read_block::<S, $rows, $vectors>(keys, values, row, x) };
                    }
                    x += $vectors * LANES;
                }
                x
            }};
        }
        // As many sums as the tier has registers for; each sum runs over the keys in order whatever the block.
        if S::GEMM_ROWS >= 8 && S::GEMM_TILES == 2 {
            let x = blocks!(8, 2, 0);
            blocks!(8, 1, x);
        } else if S::GEMM_ROWS >= 4 {
            blocks!(4, 1, 0);
        } else {
            blocks!(2, 1, 0);
        }
    }

    #[inline(always)]
    unsafe fn read_block<S: Simd, const R: usize, const N: usize>(
        &self,
        keys: usize,
        values: usize,
        row: usize,
        x: usize,
    ) {
        // SAFETY: as in `tile`; rows row..row + R of 32, values x..x + 16·N.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; R];
            let (left, state) = (self.left.add(row * keys), self.state.add(x));
            for d in 0..keys {
                let mut s = [S::splat(0.0); N];
                for (n, s) in s.iter_mut().enumerate() {
                    *s = S::load(state.add(d * values + n * LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let left = S::splat(*left.add(r * keys + d));
                    for (sum, s) in sums.iter_mut().zip(s) {
                        *sum = S::fma(left, s, *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    S::store(self.right.add((row + r) * values + x + n * LANES), *sum);
                }
            }
        }
    }

    /// u and o for values `x..x + 16·N`.
    #[inline(always)]
    unsafe fn solve<S: Simd, const N: usize>(
        &self,
        tokens: &Tokens,
        values: usize,
        x: usize,
        l: &[[f32; TILE]; TILE],
        a: &[[f32; TILE]; TILE],
    ) {
        // SAFETY: as in `tile`.
        unsafe {
            let u = self.right.add(x);
            for i in 0..TILE {
                let (mut rest, mut out) = ([S::splat(0.0); N], [S::splat(0.0); N]);
                for n in 0..N {
                    let v = S::load(tokens.v.add(i * tokens.ld_values + x + n * LANES));
                    rest[n] = S::sub(v, S::load(u.add(i * values + n * LANES)));
                    out[n] = S::load(u.add((TILE + i) * values + n * LANES));
                }
                for j in 0..i {
                    let (l, a) = (S::splat(-l[i][j]), S::splat(a[i][j]));
                    for n in 0..N {
                        let u = S::load(u.add(j * values + n * LANES));
                        rest[n] = S::fma(l, u, rest[n]);
                        out[n] = S::fma(a, u, out[n]);
                    }
                }
                let (beta, own) = (S::splat(*tokens.beta.add(i * tokens.ld_beta)), S::splat(a[i][i]));
                for n in 0..N {
                    let change = S::mul(beta, rest[n]);
                    S::store(u.add(i * values + n * LANES), change);
                    S::store(tokens.o.add(i * tokens.ld_values + x + n * LANES), S::fma(own, change, out[n]));
                }
            }
        }
    }

    /// The state after the tile.
    #[inline(always)]
    unsafe fn write_state<S: Simd>(&self, keys: usize, values: usize) {
        macro_rules! blocks {
            ($rows:literal, $vectors:literal, $from:expr) => {{
                let mut x = $from;
                while values - x >= $vectors * LANES {
                    for d in (0..keys).step_by($rows) {
                        // SAFETY: as in `tile`; keys are a multiple of 16.
                        unsafe { self.write_block::<S, $rows, $vectors>(keys, values, d, x) };
                    }
                    x += $vectors * LANES;
                }
                x
            }};
        }
        if S::GEMM_ROWS >= 8 && S::GEMM_TILES == 2 {
            let x = blocks!(8, 2, 0);
            blocks!(8, 1, x);
        } else if S::GEMM_ROWS >= 4 {
            blocks!(4, 1, 0);
        } else {
            blocks!(2, 1, 0);
        }
    }

    #[inline(always)]
    unsafe fn write_block<S: Simd, const R: usize, const N: usize>(
        &self,
        keys: usize,
        values: usize,
        d: usize,
        x: usize,
    ) {
        // SAFETY: as in `tile`; keys d..d + R, values x..x + 16·N.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                let decay = S::splat(*self.total.add(d + r));
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul(decay, S::load(self.state.add((d + r) * values + x + n * LANES)));
                }
            }
            for j in 0..TILE {
                let mut u = [S::splat(0.0); N];
                for (n, u) in u.iter_mut().enumerate() {
                    *u = S::load(self.right.add(j * values + x + n * LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let late = S::splat(*self.late.add(j * keys + d + r));
                    for (sum, u) in sums.iter_mut().zip(u) {
                        *sum = S::fma(late, u, *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    S::store(self.state.add((d + r) * values + x + n * LANES), *sum);
                }
            }
        }
    }

    /// Take the state from value-major `from`; null = zeros.
    ///
    /// # Safety
    /// As [`Self::tile`]; `from` holds a state.
    #[inline(always)]
    pub unsafe fn load_state<S: Simd>(&self, from: *const f32, keys: usize, values: usize) {
        if from.is_null() {
            // SAFETY: the region holds a state.
            unsafe { self.state.write_bytes(0, keys * values) };
            return;
        }
        for x in (0..values).step_by(LANES) {
            for d in (0..keys).step_by(LANES) {
                // SAFETY: sixteen rows and columns of either form.
                unsafe { S::transpose16(from.add(x * keys + d), keys, self.state.add(d * values + x), values) };
            }
        }
    }

    /// Leave the state in value-major `to`.
    ///
    /// # Safety
    /// As [`Self::load_state`].
    #[inline(always)]
    pub unsafe fn store_state<S: Simd>(&self, to: *mut f32, keys: usize, values: usize) {
        for x in (0..values).step_by(LANES) {
            for d in (0..keys).step_by(LANES) {
                // SAFETY: sixteen rows and columns of either form.
                unsafe { S::transpose16(self.state.add(d * values + x), values, to.add(x * keys + d), keys) };
            }
        }
    }
}
