//! The recurrence, token by token: rows of one head's state over consecutive tokens.
//!
//! Value rows of a state do not see each other, so a pair of rows is taken through all tokens in registers: the state is
//! read once and written once, however many tokens there are. Where keys are not 32, 64 or 128 wide a row waits in scratch
//! instead; which way a row goes depends on shape and tier alone. Every other form of Kimi Delta Attention that goes token by token runs this code, so they agree bit
//! for bit.

use crate::{
    exp::exp,
    simd::{LANES, Simd},
};

/// Tokens whose decays are prepared at a time.
pub(super) const SEGMENT: usize = 64;

/// Consecutive tokens of one head; pointers are at the first token's head, `ld` values apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    /// Number of tokens.
    pub n: usize,
    /// Queries and keys, `[keys]` each.
    pub q: *const f32,
    pub k: *const f32,
    /// Log decays, `[keys]`.
    pub g: *const f32,
    /// Between tokens of q, k and g.
    pub ld_keys: usize,
    /// `[values]`.
    pub v: *const f32,
    /// `[values]`.
    pub o: *mut f32,
    /// Between tokens of v and o.
    pub ld_values: usize,
    /// One value.
    pub beta: *const f32,
    /// Between tokens of beta.
    pub ld_beta: usize,
}

impl Tokens {
    /// Tokens `first..first + n`.
    #[inline(always)]
    pub fn from(&self, first: usize, n: usize) -> Self {
        Self {
            n,
            q: self.q.wrapping_add(first * self.ld_keys),
            k: self.k.wrapping_add(first * self.ld_keys),
            g: self.g.wrapping_add(first * self.ld_keys),
            v: self.v.wrapping_add(first * self.ld_values),
            o: self.o.wrapping_add(first * self.ld_values),
            beta: self.beta.wrapping_add(first * self.ld_beta),
            ..*self
        }
    }

    /// e^g of every token: `out[token][keys padded to lanes]`, ones in the padding.
    ///
    /// # Safety
    /// As [`Simd`]; `out` has room.
    #[inline(always)]
    pub unsafe fn decays<S: Simd>(&self, keys: usize, out: *mut f32) {
        let padded = keys.next_multiple_of(LANES);
        for token in 0..self.n {
            for d in (0..keys).step_by(LANES) {
                // SAFETY: the token's decays, and its row of `out`.
                unsafe {
                    let g = S::load_n(self.g.add(token * self.ld_keys + d), LANES.min(keys - d));
                    S::store(out.add(token * padded + d), exp::<S>(g));
                }
            }
        }
    }
}

/// Where the state comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct States {
    /// `[values][keys]`; null = zeros.
    pub from: *const f32,
    /// `[values][keys]`; null = dropped. May equal `from`.
    pub to: *mut f32,
}

/// Rows `rows` of the state through all tokens.
///
/// # Safety
/// As [`Simd`]; `decay` is what [`Tokens::decays`] wrote; `row` has room for a padded row.
#[inline(always)]
pub(super) unsafe fn rows<S: Simd>(
    tokens: &Tokens,
    keys: usize,
    states: States,
    decay: *const f32,
    row: *mut f32,
    rows: std::ops::Range<usize>,
) {
    let mut at = rows.start;
    macro_rules! in_registers {
        ($vectors:literal) => {
            while at + 2 <= rows.end {
                // SAFETY: the caller's promise.
                unsafe { in_registers::<S, $vectors>(tokens, states, decay, at) };
                at += 2;
            }
        };
    }
    // The portable tier has no registers to hold rows in.
    if S::GEMM_ROWS >= 4 {
        match keys {
            32 => in_registers!(2),
            64 => in_registers!(4),
            128 => in_registers!(8),
            _ => {}
        }
    }
    for at in at..rows.end {
        // SAFETY: the caller's promise.
        unsafe { in_scratch::<S>(tokens, keys, states, decay, row, at) };
    }
}

/// Rows taken at a time.
const R: usize = 2;

/// Two rows from `first` on, of N vectors each.
#[inline(always)]
unsafe fn in_registers<S: Simd, const N: usize>(tokens: &Tokens, states: States, decay: *const f32, first: usize) {
    // SAFETY: the caller of `rows` promises rows first..first + R of N · 16 keys, and the tokens.
    unsafe {
        let zero = S::splat(0.0);
        let mut s = [[zero; N]; R];
        if !states.from.is_null() {
            for (r, row) in s.iter_mut().enumerate() {
                for (n, v) in row.iter_mut().enumerate() {
                    *v = S::load(states.from.add(((first + r) * N + n) * LANES));
                }
            }
        }
        for t in 0..tokens.n {
            let (q, k) = (tokens.q.add(t * tokens.ld_keys), tokens.k.add(t * tokens.ld_keys));
            let decay = decay.add(t * N * LANES);
            // Two chains, even and odd vectors: half the latency of one.
            let mut predicted = [[zero; 2]; R];
            for n in 0..N {
                let (a, k) = (S::load(decay.add(n * LANES)), S::load(k.add(n * LANES)));
                for r in 0..R {
                    s[r][n] = S::mul(s[r][n], a);
                    predicted[r][n % 2] = S::fma(s[r][n], k, predicted[r][n % 2]);
                }
            }
            let beta = *tokens.beta.add(t * tokens.ld_beta);
            let mut change = [zero; R];
            for r in 0..R {
                let v = *tokens.v.add(t * tokens.ld_values + first + r);
                change[r] = S::splat(beta * (v - S::sum(S::add(predicted[r][0], predicted[r][1]))));
            }
            let mut out = [[zero; 2]; R];
            for n in 0..N {
                let (q, k) = (S::load(q.add(n * LANES)), S::load(k.add(n * LANES)));
                for r in 0..R {
                    s[r][n] = S::fma(change[r], k, s[r][n]);
                    out[r][n % 2] = S::fma(s[r][n], q, out[r][n % 2]);
                }
            }
            for (r, out) in out.iter().enumerate() {
                *tokens.o.add(t * tokens.ld_values + first + r) = S::sum(S::add(out[0], out[1]));
            }
        }
        if !states.to.is_null() {
            for (r, row) in s.iter().enumerate() {
                for (n, v) in row.iter().enumerate() {
                    S::store(states.to.add(((first + r) * N + n) * LANES), *v);
                }
            }
        }
    }
}

/// One row of any width.
#[inline(always)]
unsafe fn in_scratch<S: Simd>(
    tokens: &Tokens,
    keys: usize,
    states: States,
    decay: *const f32,
    row: *mut f32,
    index: usize,
) {
    let padded = keys.next_multiple_of(LANES);
    // SAFETY: the caller of `rows` promises the row, the tokens and the padded scratch row.
    unsafe {
        for d in (0..keys).step_by(LANES) {
            let n = LANES.min(keys - d);
            let v = if states.from.is_null() { S::splat(0.0) } else { S::load_n(states.from.add(index * keys + d), n) };
            S::store(row.add(d), v);
        }
        for t in 0..tokens.n {
            let (q, k) = (tokens.q.add(t * tokens.ld_keys), tokens.k.add(t * tokens.ld_keys));
            let mut predicted = S::splat(0.0);
            for d in (0..keys).step_by(LANES) {
                let s = S::mul(S::load(row.add(d)), S::load(decay.add(t * padded + d)));
                S::store(row.add(d), s);
                predicted = S::fma(s, S::load_n(k.add(d), LANES.min(keys - d)), predicted);
            }
            let at = t * tokens.ld_values + index;
            let beta = *tokens.beta.add(t * tokens.ld_beta);
            let change = S::splat(beta * (*tokens.v.add(at) - S::sum(predicted)));
            let mut out = S::splat(0.0);
            for d in (0..keys).step_by(LANES) {
                let n = LANES.min(keys - d);
                let s = S::fma(change, S::load_n(k.add(d), n), S::load(row.add(d)));
                S::store(row.add(d), s);
                out = S::fma(s, S::load_n(q.add(d), n), out);
            }
            *tokens.o.add(at) = S::sum(out);
        }
        if !states.to.is_null() {
            for d in (0..keys).step_by(LANES) {
                S::store_n(states.to.add(index * keys + d), S::load(row.add(d)), LANES.min(keys - d));
            }
        }
    }
}
