//! `router_topk`: choose experts by biased sigmoid scores.
//!
//! Choices are compared as integers in the total order of f32, so ties, signed zeros and NaN fall as the catalogue says.
//! Blocks of sixteen experts keep their best choice; taking one expert costs a look at all blocks and one block anew.
//!
//! Rejected: sorting. Sixteen of 896 are wanted.

use crate::{
    gates::sigmoid,
    level::Level,
    part::Part,
    scratch::{Scratch, region_bytes},
    simd::{Kernel, LANES, Simd, dispatch},
};

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct RouterArgs {
    /// `[tokens, experts]`.
    pub logits: *const f32,
    /// `[experts]`.
    pub bias: *const f32,
    /// `[tokens, k]`.
    pub ids: *mut u32,
    /// `[tokens, k]`.
    pub weights: *mut f32,
    /// Tokens.
    pub tokens: usize,
    /// Experts.
    pub experts: usize,
    /// Experts per token.
    pub k: usize,
    /// Groups of consecutive experts.
    pub groups: usize,
    /// Groups that take part.
    pub chosen: usize,
    /// Whether weights are divided by their sum.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f64,
}

/// Scratch a worker needs.
pub fn scratch_bytes(experts: usize, groups: usize) -> usize {
    2 * region_bytes::<f32>(experts) + region_bytes::<u32>(experts.div_ceil(LANES)) + region_bytes::<f32>(groups)
}

/// Place of `v` in the total order, over 0; NaN is the worst.
fn key(v: f32) -> u32 {
    let bits = if v.is_nan() { f32::NEG_INFINITY.to_bits() } else { v.to_bits() };
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Not to be chosen (again); below every [`key`].
const GONE: u32 = 0;

/// Index of the largest, the lowest of equal ones.
fn largest(keys: &[u32]) -> usize {
    let mut best = 0;
    for (i, k) in keys.iter().enumerate() {
        if *k > keys[best] {
            best = i;
        }
    }
    best
}

struct Run<'a>(Part, &'a mut Scratch, RouterArgs);

impl Kernel for Run<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(part, scratch, args) = self;
        let experts = args.experts;
        let mut carver = scratch.carve();
        // SAFETY: the regions are this worker's, of these sizes; every element is written before it is read.
        let (scores, keys, best, of_group) = unsafe {
            (
                std::slice::from_raw_parts_mut(carver.take::<f32>(experts), experts),
                std::slice::from_raw_parts_mut(carver.take::<u32>(experts), experts),
                std::slice::from_raw_parts_mut(carver.take::<u32>(experts.div_ceil(LANES)), experts.div_ceil(LANES)),
                std::slice::from_raw_parts_mut(carver.take::<u32>(args.groups), args.groups),
            )
        };
        for token in part.of(args.tokens) {
            for i in (0..experts).step_by(LANES) {
                let n = LANES.min(experts - i);
                // SAFETY: n lanes from i on are inside the row, the bias and scratch; the choice lies there as f32.
                unsafe {
                    let s = sigmoid::<S>(S::load_n(args.logits.add(token * experts + i), n));
                    S::store_n(scores.as_mut_ptr().add(i), s, n);
                    let choice = S::add(s, S::load_n(args.bias.add(i), n));
                    S::store_n(keys.as_mut_ptr().cast::<f32>().add(i), choice, n);
                }
            }
            close_groups(keys, of_group, &args);
            keys.chunks(LANES).zip(&mut *best).for_each(|(keys, best)| *best = keys[largest(keys)]);
            // SAFETY: k ids and weights of this token, which is this worker's.
            let (ids, weights) = unsafe {
                (
                    std::slice::from_raw_parts_mut(args.ids.add(token * args.k), args.k),
                    std::slice::from_raw_parts_mut(args.weights.add(token * args.k), args.k),
                )
            };
            let mut total = 0f64;
            for id in &mut *ids {
                let block = largest(best);
                let first = block * LANES;
                let keys = &mut keys[first..experts.min(first + LANES)];
                let at = largest(keys);
                keys[at] = GONE;
                best[block] = keys[largest(keys)];
                *id = (first + at) as u32;
                total += f64::from(scores[first + at]);
            }
            let scale = args.scale / if args.renormalise { total + 1e-20 } else { 1.0 };
            for (id, weight) in ids.iter().zip(weights) {
                *weight = (f64::from(scores[*id as usize]) * scale) as f32;
            }
        }
    }
}

/// Turn choices, f32 bits, into keys, and close the groups that do not take part.
fn close_groups(keys: &mut [u32], of_group: &mut [u32], args: &RouterArgs) {
    let per_group = args.experts / args.groups;
    if args.chosen < args.groups {
        for (group, score) in keys.chunks_exact(per_group).zip(&mut *of_group) {
            let mut two = [f32::NEG_INFINITY; 2];
            for bits in group {
                let choice = f32::from_bits(*bits);
                if key(choice) > key(two[0]) {
                    two = [choice, two[0]];
                } else if key(choice) > key(two[1]) {
                    two[1] = choice;
                }
            }
            *score = key(two[0] + two[1]);
        }
    }
    keys.iter_mut().for_each(|bits| *bits = key(f32::from_bits(*bits)));
    if args.chosen < args.groups {
        for _ in 0..args.chosen {
            of_group[largest(of_group)] = GONE;
        }
        for (group, score) in keys.chunks_exact_mut(per_group).zip(of_group) {
            if *score != GONE {
                group.fill(GONE);
            }
        }
    }
}

/// This worker's tokens of the choice.
///
/// # Safety
/// `level` is available; operands have the shapes above; `scratch` has [`scratch_bytes`].
pub unsafe fn router_topk(level: Level, part: Part, scratch: &mut Scratch, args: RouterArgs) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(level, Run(part, scratch, args)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_total_order_with_nan_last() {
        let ordered = [f32::NAN, -1e30, -1.0, -0.0, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(ordered.windows(2).all(|w| key(w[0]) < key(w[1])));
        assert_eq!(key(-f32::NAN), key(f32::NEG_INFINITY));
        assert!(key(f32::NAN) > GONE);
    }

    /// NaN everywhere: real experts are named, each once, and weights carry the NaN on.
    #[test]
    fn a_poisoned_token_still_names_real_experts() {
        let (experts, k) = (20, 18);
        let (logits, bias) = (vec![f32::NAN; experts], vec![0f32; experts]);
        let (mut ids, mut weights) = (vec![u32::MAX; k], vec![0f32; k]);
        let mut scratch = Scratch::new(scratch_bytes(experts, 1));
        let args = RouterArgs {
            logits: logits.as_ptr(),
            bias: bias.as_ptr(),
            ids: ids.as_mut_ptr(),
            weights: weights.as_mut_ptr(),
            tokens: 1,
            experts,
            k,
            groups: 1,
            chosen: 1,
            renormalise: true,
            scale: 1.0,
        };
        // SAFETY: shapes as documented; the portable tier is always available.
        unsafe { router_topk(Level::Portable, Part::WHOLE, &mut scratch, args) };
        assert_eq!(ids, (0..k as u32).collect::<Vec<_>>());
        assert!(weights.iter().all(|w| w.is_nan()));
    }
}
