//! `slice` and `concat`: some columns of every row, and rows side by side.

use crate::part::Part;

/// Copy this worker's rows: `width` f32 each, rows `from_width` and `to_width` apart.
///
/// # Safety
/// Both operands hold `rows` rows with `width` values from their pointers on, and do not overlap; no other worker writes
/// them meanwhile.
pub unsafe fn copy_columns(
    part: Part,
    rows: usize,
    width: usize,
    (from, from_width): (*const f32, usize),
    (to, to_width): (*mut f32, usize),
) {
    for row in part.of(rows) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.add(row * from_width), to.add(row * to_width), width) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_land_where_they_belong_in_any_split() {
        let x: Vec<f32> = (0..35).map(|i| i as f32).collect();
        let mut y = vec![-1f32; 20];
        for index in 0..3 {
            let part = Part { index, count: 3 };
            // SAFETY: five rows of seven, columns 2..5, into five rows of four, columns 1..4.
            unsafe { copy_columns(part, 5, 3, (x.as_ptr().add(2), 7), (y.as_mut_ptr().add(1), 4)) };
        }
        for row in 0..5 {
            let first = 7.0 * row as f32 + 2.0;
            assert_eq!(y[4 * row..][..4], [-1.0, first, first + 1.0, first + 2.0]);
        }
    }
}
