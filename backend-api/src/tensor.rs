//! Operand descriptors: a checked, safe form of `ts_tensor`, and views of the bytes behind one.

use crate::{abi::*, dtype::DType, graph::Vary};

/// A dense row-major tensor: dtype, shape, and where it lives among a program's bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Element format.
    pub dtype: DType,
    /// Number of meaningful entries of `dims`.
    pub rank: u32,
    /// Outermost first; unused entries are 1.
    pub dims: [u64; TS_MAX_RANK],
    /// Bytes between consecutive entries of dimension 0; 0 = dense.
    pub stride0: u64,
    /// What dimension 0 counts.
    pub vary: Vary,
    /// Binding slot.
    pub binding: u32,
    /// Bytes into the binding.
    pub offset: u64,
    /// 0 = canonical.
    pub layout: u32,
}

impl Tensor {
    /// A dense tensor at offset 0 of binding 0. Panics if `dims` has more than four entries.
    pub fn new(dtype: DType, vary: Vary, dims: &[u64]) -> Self {
        assert!(dims.len() <= TS_MAX_RANK, "rank {} exceeds {TS_MAX_RANK}", dims.len());
        let mut all = [1; TS_MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Self { dtype, rank: dims.len() as u32, dims: all, stride0: 0, vary, binding: 0, offset: 0, layout: 0 }
    }

    /// The ABI form.
    pub fn to_abi(self) -> ts_tensor {
        ts_tensor {
            dtype: self.dtype as u32,
            rank: self.rank,
            dims: self.dims,
            stride0: self.stride0,
            vary: self.vary as u32,
            binding: self.binding,
            offset: self.offset,
            layout: self.layout,
            reserved: 0,
        }
    }

    /// From the ABI form: known format, rank 1 to 4, no empty dimension, no overflow, rows that are whole blocks and do
    /// not overlap. The error says what is wrong.
    pub fn from_abi(t: &ts_tensor) -> Result<Self, String> {
        let dtype = DType::from_abi(t.dtype).ok_or_else(|| format!("unknown element format {}", t.dtype))?;
        let vary = match t.vary {
            TS_VARY_FIXED => Vary::Fixed,
            TS_VARY_TOKENS => Vary::Tokens,
            TS_VARY_ROWS => Vary::Rows,
            TS_VARY_LOGIT_ROWS => Vary::LogitRows,
            other => return Err(format!("unknown vary {other}")),
        };
        let rank = t.rank as usize;
        if rank == 0 || rank > TS_MAX_RANK {
            return Err(format!("rank {rank} is outside 1..={TS_MAX_RANK}"));
        }
        let mut dims = [1; TS_MAX_RANK];
        dims[..rank].copy_from_slice(&t.dims[..rank]);
        if let Some(i) = dims.iter().position(|d| *d == 0) {
            return Err(format!("dimension {i} is 0"));
        }
        let tensor = Self {
            dtype,
            rank: t.rank,
            dims,
            stride0: t.stride0,
            vary,
            binding: t.binding,
            offset: t.offset,
            layout: t.layout,
        };
        if rank == 1 && t.stride0 != 0 && (dtype.block_len() != 1 || t.stride0 != dtype.block_bytes() as u64) {
            return Err(format!("a vector of {dtype} with stride {}", t.stride0));
        }
        match tensor.checked_bytes() {
            Some(bytes) if bytes <= isize::MAX as u64 => Ok(tensor),
            _ => Err(format!(
                "shape {:?} of {dtype} with stride {} is not whole blocks, overlaps, or is too large",
                tensor.dims(),
                t.stride0
            )),
        }
    }

    /// With the first dimension cut from its capacity to the step's count.
    pub fn cut(mut self, step: &crate::step::StepView<'_>) -> Self {
        self.dims[0] = step.count(self.vary, self.dims[0] as usize) as u64;
        self
    }

    /// The meaningful dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.rank as usize]
    }

    /// Values per entry of dimension 0 (a scalar counts as one row of one value).
    pub fn row_len(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// Bytes of one entry of dimension 0.
    pub fn row_bytes(&self) -> usize {
        self.dtype.bytes(self.row_len() as u64).expect("checked at construction") as usize
    }

    /// Bytes from one entry of dimension 0 to the next.
    pub fn stride(&self) -> usize {
        if self.stride0 == 0 { self.row_bytes() } else { self.stride0 as usize }
    }

    /// Size of the whole tensor at capacity, or `None` if it overflows or a row cuts a block.
    pub fn checked_bytes(&self) -> Option<u64> {
        let row = self.dims[1..].iter().try_fold(1u64, |a, d| a.checked_mul(*d))?;
        // A vector of a block format is blocked along its only dimension.
        let (rows, row) = if self.rank <= 1 { (1, self.dims[0]) } else { (self.dims[0], row) };
        let row_bytes = self.dtype.bytes(row)?;
        if rows == 0 {
            return Some(0);
        }
        let stride = if self.stride0 == 0 { row_bytes } else { self.stride0 };
        if stride < row_bytes {
            return None;
        }
        stride.checked_mul(rows - 1)?.checked_add(row_bytes)
    }

    /// [`Self::checked_bytes`] of a descriptor known to be sound.
    pub fn bytes(&self) -> u64 {
        self.checked_bytes().expect("sound descriptor")
    }
}

/// The bytes of an operand in host memory, with its first dimension cut to the step's actual count.
///
/// Reads and writes go through copies of rows, so an output may alias an input of the same op.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Descriptor; `dims[0]` is the actual count.
    pub tensor: Tensor,
    data: *mut u8,
}

// SAFETY: a view is a pointer with a descriptor; `View::new` makes the caller promise that concurrent users of one view
// write disjoint rows.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// # Safety
    /// `data` must be valid for reads (and, for outputs, writes) of `tensor.bytes()` bytes while the view is used, and
    /// threads sharing a view must write disjoint rows or disjoint columns.
    pub unsafe fn new(tensor: Tensor, data: *mut u8) -> Self {
        Self { tensor, data }
    }

    /// First byte.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// Entries of dimension 0.
    pub fn rows(&self) -> usize {
        self.tensor.dims[0] as usize
    }

    /// Values per row.
    pub fn row_len(&self) -> usize {
        self.tensor.row_len()
    }

    /// Bytes of row `row`.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        assert!(row < self.rows(), "row {row} of {:?}", self.tensor.dims());
        // SAFETY: in bounds by the assert and `View::new`'s contract.
        unsafe { std::slice::from_raw_parts(self.data.add(row * self.tensor.stride()), self.tensor.row_bytes()) }
    }

    /// Copy row `row` into `out`, converted to f32.
    pub fn load_row(&self, row: usize, out: &mut [f32]) {
        crate::quant::dequantize_row(self.tensor.dtype, self.row_bytes(row), out);
    }

    /// Round `values` once into row `row`, from column `first` on. The dtype must be a plain one.
    pub fn store(&self, row: usize, first: usize, values: &[f32]) {
        let dtype = self.tensor.dtype;
        assert!(dtype.block_len() == 1, "cannot store part of a {dtype} block");
        assert!(row < self.rows() && first + values.len() <= self.row_len());
        let size = dtype.block_bytes();
        // SAFETY: in bounds by the asserts and `View::new`'s contract.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                self.data.add(row * self.tensor.stride() + first * size),
                values.len() * size,
            )
        };
        crate::quant::quantize_row(dtype, values, out);
    }

    /// Entry (`row`, `column`) of a u32 tensor.
    pub fn load_u32(&self, row: usize, column: usize) -> u32 {
        let bytes = self.row_bytes(row);
        u32::from_ne_bytes(bytes[4 * column..4 * column + 4].try_into().expect("four bytes"))
    }

    /// Set entry (`row`, `column`) of a u32 tensor.
    pub fn store_u32(&self, row: usize, column: usize, value: u32) {
        assert!(row < self.rows() && column < self.row_len());
        // SAFETY: in bounds by the assert and `View::new`'s contract.
        let out = unsafe { self.data.add(row * self.tensor.stride() + 4 * column) };
        // SAFETY: as above; unaligned writes are allowed here.
        unsafe { out.cast::<u32>().write_unaligned(value) }
    }
}
