//! `embedding`: rows of a table by token id, from any weight format, as f32.

use crate::{blocks::dequantise, part::Part};
use tokenspeed_backend_api::dtype::DType;

/// Operands.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingArgs<'a> {
    /// `[vocabulary, width]` in the stored layout of `dtype`.
    pub table: &'a [u8],
    /// Format of the table.
    pub dtype: DType,
    /// Row length, in whole blocks of `dtype`.
    pub width: usize,
    /// `[tokens, width]`.
    pub y: *mut f32,
    /// Number of tokens.
    pub tokens: usize,
}

/// A token id outside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} has id {id}, but the embedding table has {rows} rows")]
pub struct BadTokenId {
    /// Index in the step.
    pub token: usize,
    /// Its id.
    pub id: i64,
    /// Rows of the table.
    pub rows: usize,
}

/// Copy this worker's tokens. Ids are checked before anything is written.
///
/// # Safety
/// `y` holds `tokens · width` elements that no other worker writes for the same tokens.
pub unsafe fn embedding(part: Part, args: EmbeddingArgs<'_>, id: impl Fn(usize) -> i64) -> Result<(), BadTokenId> {
    let row_bytes = args.width / args.dtype.block_len() * args.dtype.block_bytes();
    let rows = args.table.len() / row_bytes;
    let mine = part.of(args.tokens);
    for token in mine.clone() {
        if id(token) < 0 || id(token) >= rows as i64 {
            return Err(BadTokenId { token, id: id(token), rows });
        }
    }
    for token in mine {
        let row = &args.table[id(token) as usize * row_bytes..][..row_bytes];
        // SAFETY: row `token` of y is inside the operand and this worker's.
        let y = unsafe { std::slice::from_raw_parts_mut(args.y.add(token * args.width), args.width) };
        dequantise(args.dtype, row, 0, y);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::tests::{FORMATS, random_weights};

    #[test]
    fn picks_rows_of_every_format_and_refuses_ids_outside() {
        for dtype in FORMATS {
            let (rows, width) = (5, 256);
            let table = random_weights(dtype, rows, width, 3);
            let mut want = vec![0f32; rows * width];
            for (r, out) in want.chunks_mut(width).enumerate() {
                dequantise(dtype, &table[r * table.len() / rows..][..table.len() / rows], 0, out);
            }
            let ids = [4i64, 0, 4];
            let mut y = vec![0f32; 3 * width];
            let args = EmbeddingArgs { table: &table, dtype, width, y: y.as_mut_ptr(), tokens: 3 };
            for index in 0..2 {
                // SAFETY: y holds three rows.
                unsafe { embedding(Part { index, count: 2 }, args, |t| ids[t]) }.unwrap();
            }
            assert_eq!(&y[..width], &want[4 * width..], "{dtype}");
            assert_eq!(&y[width..2 * width], &want[..width], "{dtype}");
            for id in [5, -1] {
                // SAFETY: as above.
                let error = unsafe { embedding(Part::WHOLE, args, |_| id) }.unwrap_err();
                assert_eq!(error, BadTokenId { token: 0, id, rows });
            }
        }
    }
}
