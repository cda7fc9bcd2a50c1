//! `kda_gate`: the log decay per head and key channel.

use crate::{
    gates::sigmoid,
    level::Level,
    part::Part,
    simd::{Kernel, LANES, Simd, dispatch},
    softplus::softplus,
};

/// Which function gives the decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateKind {
    /// bound · σ(a · z), with the bound under 0.
    Bounded(f32),
    /// −a · softplus(z).
    Softplus,
}

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct GateArgs {
    /// `[tokens, heads, keys]`.
    pub f: *const f32,
    /// `[heads]`: ln a.
    pub a_log: *const f32,
    /// `[heads, keys]`, added to f.
    pub dt_bias: *const f32,
    /// `[tokens, heads, keys]`.
    pub g: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Keys of a head.
    pub keys: usize,
    /// Function.
    pub kind: GateKind,
}

/// One head of one token.
///
/// # Safety
/// As [`Simd`]; `f`, `dt_bias` and `g` hold `keys` values.
#[inline(always)]
pub(super) unsafe fn log_decay<S: Simd>(
    kind: GateKind,
    a_log: f32,
    f: *const f32,
    dt_bias: *const f32,
    g: *mut f32,
    keys: usize,
) {
    // One value per head: libm's exponential is affordable, and exact to the last bit but one on every tier.
    let a = f64::from(a_log).exp() as f32;
    for d in (0..keys).step_by(LANES) {
        let n = LANES.min(keys - d);
        // SAFETY: n lanes from d on are inside every operand.
        unsafe {
            let z = S::add(S::load_n(f.add(d), n), S::load_n(dt_bias.add(d), n));
            let y = match kind {
                GateKind::Bounded(bound) => S::mul(S::splat(bound), sigmoid::<S>(S::mul(S::splat(a), z))),
                GateKind::Softplus => S::mul(S::splat(-a), softplus::<S>(z)),
            };
            S::store_n(g.add(d), y, n);
        }
    }
}

struct Run(GateArgs, Part);

impl Kernel for Run {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(args, part) = self;
        for unit in part.of(args.tokens * args.heads) {
            let (head, at) = (unit % args.heads, unit * args.keys);
            // SAFETY: the unit is inside the operands.
            unsafe {
                let bias = args.dt_bias.add(head * args.keys);
                log_decay::<S>(args.kind, *args.a_log.add(head), args.f.add(at), bias, args.g.add(at), args.keys);
            }
        }
    }
}

/// This worker's share of the log decays.
///
/// # Safety
/// `level` is available; the operands have the shapes above; no other worker writes them meanwhile.
pub unsafe fn kda_gate(level: Level, part: Part, args: GateArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(args, part)) }
}
