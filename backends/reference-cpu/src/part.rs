//! One worker's share of an op.
//!
//! Shares are contiguous and fixed by (index, count) alone. Rejected: work stealing, which would also give the same
//! bits but costs an atomic per item and defeats cache affinity between ops.

use std::ops::Range;

/// Worker `index` of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0.
    pub index: usize,
    /// At least 1.
    pub count: usize,
}

impl Part {
    /// The whole op on one worker.
    pub const WHOLE: Part = Part { index: 0, count: 1 };

    /// This worker's share of `n` items.
    pub fn of(self, n: usize) -> Range<usize> {
        self.aligned(n, 1)
    }

    /// This worker's share of `n` items in multiples of `align` (but for the end).
    pub fn aligned(self, n: usize, align: usize) -> Range<usize> {
        debug_assert!(self.index < self.count);
        let units = n.div_ceil(align);
        let at = |i: usize| (units * i / self.count * align).min(n);
        at(self.index)..at(self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once_and_in_order() {
        for n in 0..70 {
            for count in 1..5 {
                for align in [1, 4, 16] {
                    let mut next = 0;
                    for index in 0..count {
                        let r = Part { index, count }.aligned(n, align);
                        assert_eq!(r.start, next);
                        assert!(r.start.is_multiple_of(align) || r.start == n);
                        next = r.end;
                    }
                    assert_eq!(next, n);
                }
            }
        }
    }
}
