//! Checked views of tensor descriptors, without and with memory behind them.

use super::fault::Fault;
use crate::{abi::*, dtype::DType, graph::Vary, tensor};

/// A descriptor whose numbers have been checked: known format, non-empty shape, no overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Element format.
    pub dtype: DType,
    /// Number of dimensions, 1 to 4.
    pub rank: usize,
    /// Outermost first; 1 after `rank`.
    pub dims: [usize; TS_MAX_RANK],
    /// Bytes between consecutive entries of `dims[0]`.
    pub row_bytes: usize,
    /// Bytes from the first to the last byte used.
    pub bytes: usize,
    /// What `dims[0]` counts; then it is a capacity.
    pub vary: Vary,
    /// 0, or a layout that this backend named itself; then `row_bytes` and `bytes` describe the canonical form.
    pub layout: u32,
}

impl Tensor {
    /// Checks operand `index` of an op.
    pub fn new(t: &ts_tensor, index: usize) -> Result<Self, Fault> {
        let t = tensor::Tensor::from_abi(t).map_err(|what| Fault::invalid(format!("operand {index}: {what}")))?;
        // Sizes fit: checked bytes are at most isize::MAX.
        let row_bytes = if t.rank == 1 { t.dtype.block_bytes() } else { t.stride() };
        let bytes = t.bytes() as usize;
        let dims = t.dims.map(|d| d as usize);
        Ok(Self { dtype: t.dtype, rank: t.rank as usize, dims, row_bytes, bytes, vary: t.vary, layout: t.layout })
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The last dimension.
    pub fn last(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// Values per entry of `dims[0]`.
    pub fn row_len(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// Whether consecutive rows touch.
    pub fn is_dense(&self) -> bool {
        self.rank == 1 || self.dtype.bytes(self.row_len() as u64).is_some_and(|row| row == self.row_bytes as u64)
    }
}

/// A tensor with host memory behind it: inside its binding and aligned for its elements, both checked.
///
/// The pointer stays valid while the arenas of the bindings do, which is as long as the program exists; aliasing
/// between operands is the program's business (in-place ops share memory on purpose), hence the raw pointer.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Shape and format.
    pub tensor: Tensor,
    /// First byte.
    pub data: *mut u8,
    /// Usable bytes from `data`: `tensor.bytes`, or for a private layout all that is left of the binding.
    pub bytes: usize,
    /// The host's own memory, used in place and read-only.
    pub imported: bool,
}

// SAFETY: a pointer and numbers; whoever dereferences it has to say why that is sound on that thread.
unsafe impl Send for Operand {}
// SAFETY: as above.
unsafe impl Sync for Operand {}

impl Operand {
    /// First byte of entry `row` of `dims[0]`; the caller checked `row < dims[0]`.
    ///
    /// # Safety
    /// `row < self.tensor.dims[0]` and the arena is alive.
    pub unsafe fn row(&self, row: usize) -> *mut u8 {
        debug_assert!(row < self.tensor.dims[0]);
        // SAFETY: rows lie inside the checked span.
        unsafe { self.data.add(row * self.tensor.row_bytes) }
    }
}

/// Elements whose alignment the SDK checks: the scalar of plain formats, the f16 scale of block formats.
pub(crate) fn element_align(dtype: DType) -> usize {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => 4,
        DType::F8E4M3 | DType::U8 | DType::Mxfp4 | DType::Mxfp8 => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(dtype: DType, dims: &[u64]) -> ts_tensor {
        let mut d = [1; TS_MAX_RANK];
        d[..dims.len()].copy_from_slice(dims);
        ts_tensor {
            dtype: dtype as u32,
            rank: dims.len() as u32,
            dims: d,
            stride0: 0,
            vary: 0,
            binding: 3,
            offset: 0,
            layout: 0,
            reserved: 0,
        }
    }

    #[test]
    fn spans() {
        let t = Tensor::new(&desc(DType::Q8_0, &[3, 64]), 0).unwrap();
        assert_eq!((t.row_bytes, t.bytes), (68, 204));
        let mut strided = desc(DType::F32, &[3, 5]);
        strided.stride0 = 64;
        let t = Tensor::new(&strided, 0).unwrap();
        assert_eq!((t.row_bytes, t.bytes, t.is_dense()), (64, 148, false));
        let v = Tensor::new(&desc(DType::F32, &[7]), 0).unwrap();
        assert_eq!((v.row_bytes, v.bytes, v.row_len()), (4, 28, 1));
    }

    #[test]
    fn nonsense_is_refused() {
        type Change = fn(&mut ts_tensor);
        let cases: [(&str, Change); 7] = [
            ("format", |t| t.dtype = 999),
            ("rank 0", |t| t.rank = 0),
            ("rank 5", |t| t.rank = 5),
            ("dimension 0", |t| t.dims[0] = 0),
            ("not whole blocks", |t| (t.dtype, t.dims[1]) = (TS_DTYPE_Q8_0, 33)),
            ("overlap", |t| t.stride0 = 3),
            ("too large", |t| t.dims[1] = u64::MAX / 2),
        ];
        for (what, change) in cases {
            let mut t = desc(DType::F32, &[2, 4]);
            change(&mut t);
            let message = Tensor::new(&t, 1).expect_err(what).message;
            assert!(message.starts_with("operand 1: "), "{what}: {message}");
        }
    }
}
