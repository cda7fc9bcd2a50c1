//! `row_gather`: the token rows whose logits are wanted.

use crate::part::Part;

/// Copy this worker's rows: y\[i\] = x\[index\[i\]\], rows of `width` f32.
///
/// # Safety
/// Every index is a row of `x`; `y` holds `index.len()` rows that no other worker writes.
pub unsafe fn row_gather(part: Part, x: *const f32, width: usize, index: &[u32], y: *mut f32) {
    for i in part.of(index.len()) {
        // SAFETY: both rows are inside their operands by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(x.add(index[i] as usize * width), y.add(i * width), width) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_land_in_order_on_any_number_of_workers() {
        let x: Vec<f32> = (0..12).map(|x| x as f32).collect();
        for count in 1..4 {
            let mut y = vec![0f32; 9];
            for index in 0..count {
                // SAFETY: indices are under 4 and y holds three rows.
                unsafe { row_gather(Part { index, count }, x.as_ptr(), 3, &[3, 0, 3], y.as_mut_ptr()) };
            }
            assert_eq!(y, [9., 10., 11., 0., 1., 2., 9., 10., 11.]);
        }
    }
}
