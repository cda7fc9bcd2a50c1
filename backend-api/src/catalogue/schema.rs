//! A concrete op descriptor and the small vocabulary its checks are written in.

use crate::{
    dtype::DType,
    op::{Attrs, OpKind},
    tensor::Tensor,
};

/// An op with concrete operands.
#[derive(Clone, Debug)]
pub struct OpDesc {
    /// Kind.
    pub kind: OpKind,
    /// Attributes.
    pub attrs: Attrs,
    /// Operands in catalogue order.
    pub operands: Vec<Tensor>,
}

/// Formats a matrix weight or an embedding table may have.
pub const WEIGHT_DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

/// Formats a cache component may have.
pub const CACHE_DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];

impl OpDesc {
    /// Schema check by the catalogue.
    pub fn check(&self) -> Result<(), String> {
        (super::entry(self.kind).check)(self).map_err(|e| format!("{}: {e}", self.kind))
    }

    pub(super) fn count(&self, n: usize) -> Result<(), String> {
        if self.operands.len() == n { Ok(()) } else { Err(format!("{} operands, expected {n}", self.operands.len())) }
    }

    pub(super) fn dtype(&self, index: usize, allowed: &[DType]) -> Result<(), String> {
        let dtype = self.operands[index].dtype;
        if allowed.contains(&dtype) {
            Ok(())
        } else {
            Err(format!("operand {index} is {dtype}, expected one of {allowed:?}"))
        }
    }

    pub(super) fn f32(&self, indices: &[usize]) -> Result<(), String> {
        indices.iter().try_for_each(|i| self.dtype(*i, &[DType::F32]))
    }

    pub(super) fn same_shape(&self, a: usize, b: usize) -> Result<(), String> {
        let (x, y) = (&self.operands[a], &self.operands[b]);
        if x.dims[0] == y.dims[0] && x.row_len() == y.row_len() {
            Ok(())
        } else {
            Err(format!("operand {a} is {:?} and operand {b} is {:?}", x.dims(), y.dims()))
        }
    }

    pub(super) fn require(&self, ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
        if ok { Ok(()) } else { Err(what()) }
    }
}
