//! Loops over 64 lanes, compiled twice: for the baseline processor and for one with AVX2 and FMA.
//!
//! Decision: every lane function exists as a plain loop that the compiler vectorises, chosen at run time. Rejected:
//! intrinsics (one more place to misread an instruction) and requiring AVX2 (an emulator should run anywhere).
//!
//! SAFETY: the fast version of each function is called only after the processor said that it has the features.

use crate::isa::L;

/// The processor has AVX2 and FMA.
#[inline(always)]
pub fn fast() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// Defines a function that exists twice.
macro_rules! twice {
    ($(#[$m:meta])* $v:vis fn $name:ident($($a:ident: $t:ty),*) $body:block) => {
        $(#[$m])*
        $v fn $name($($a: $t),*) {
            #[inline(always)]
            fn body($($a: $t),*) $body
            #[target_feature(enable = "avx2,fma")]
            fn wide($($a: $t),*) { body($($a),*) }
            if $crate::lanes::fast() {
                // SAFETY: the features were detected.
                unsafe { wide($($a),*) }
            } else {
                body($($a),*)
            }
        }
    };
}
pub(crate) use twice;

/// `fn(&L, …, &mut L)` from an expression over one lane of each source, compiled twice.
macro_rules! lane {
    (|$a:ident| $e:expr) => {{
        $crate::lanes::twice! { fn over_lanes(x: &$crate::isa::L, o: &mut $crate::isa::L) {
            for l in 0..64 { let $a = x[l]; o[l] = $e; }
        } }
        over_lanes
    }};
    (|$a:ident, $b:ident| $e:expr) => {{
        $crate::lanes::twice! { fn over_lanes(x: &$crate::isa::L, y: &$crate::isa::L, o: &mut $crate::isa::L) {
            for l in 0..64 { let ($a, $b) = (x[l], y[l]); o[l] = $e; }
        } }
        over_lanes
    }};
    (|$a:ident, $b:ident, $c:ident| $e:expr) => {{
        $crate::lanes::twice! { fn over_lanes(x: &$crate::isa::L, y: &$crate::isa::L, z: &$crate::isa::L, o: &mut $crate::isa::L) {
            for l in 0..64 { let ($a, $b, $c) = (x[l], y[l], z[l]); o[l] = $e; }
        } }
        over_lanes
    }};
}
pub(crate) use lane;

twice! {
    /// `to` takes `from` in the lanes of `mask`.
    pub fn merge(to: &mut L, from: &L, mask: u64) {
        if mask == u64::MAX {
            *to = *from;
            return;
        }
        for (half, bits) in [(0, mask as u32), (32, (mask >> 32) as u32)] {
            for l in 0..32 {
                let keep = (bits >> l & 1).wrapping_sub(1);
                to[half + l] = to[half + l] & keep | from[half + l] & !keep;
            }
        }
    }
}

twice! {
    /// Float modifiers.
    pub fn modify(from: &L, abs: bool, neg: bool, to: &mut L) {
        let and = if abs { 0x7fff_ffff } else { u32::MAX };
        let xor = if neg { 0x8000_0000 } else { 0 };
        for l in 0..64 {
            to[l] = from[l] & and ^ xor;
        }
    }
}

/// A mask from one truth value per lane.
pub fn mask(f: impl Fn(usize) -> bool) -> u64 {
    (0..64).fold(0, |all, l| all | u64::from(f(l)) << l)
}

/// The lanes of a mask, in order.
pub fn of(mask: u64) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_follows_the_mask() {
        let (mut to, from) = ([1; 64], [2; 64]);
        merge(&mut to, &from, 1 << 63 | 5);
        assert_eq!((to[0], to[1], to[2], to[62], to[63]), (2, 1, 2, 1, 2));
        assert_eq!(of(1 << 63 | 5).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(mask(|l| l % 32 == 1), 1 << 1 | 1 << 33);
    }
}
