//! Exact mode: every op is the catalogue's own reference, nothing else.
//!
//! Shares of an op write disjoint outputs and no dot product is split, so any number of workers gives the same bits.

use tokenspeed_backend_api::{
    catalogue::{self, Call, Entry},
    op::Attrs,
    sdk::{BoundOp, Fault, StepView},
    step, tensor,
};

/// An op bound to memory.
#[derive(Debug)]
pub struct ExactOp {
    entry: &'static Entry,
    attrs: Attrs,
    /// At capacity.
    operands: Vec<tensor::View>,
}

impl ExactOp {
    /// Bind `op`; its shapes were accepted by `support`.
    pub fn new(op: &BoundOp<'_>) -> Result<Self, Fault> {
        let descriptors = op.op.descriptors().iter().zip(op.operands);
        let operands = descriptors.map(|(descriptor, operand)| {
            let tensor = tensor::Tensor::from_abi(descriptor).map_err(Fault::invalid)?;
            // SAFETY: the SDK checked that the operand lies in its binding; shares of one op write disjoint outputs, and
            // ops are separated by barriers.
            Ok(unsafe { tensor::View::new(tensor, operand.data) })
        });
        Ok(Self {
            entry: catalogue::entry(op.op.kind()),
            attrs: *op.op.attrs(),
            operands: operands.collect::<Result<_, Fault>>()?,
        })
    }

    /// One share of the op.
    pub fn run(&self, step: &StepView<'_>, index: usize, of: usize) {
        let step = step::StepView {
            header: &step.header,
            rows: step.rows,
            tokens: step.tokens,
            logit_rows: step.logit_rows,
            deltas: step.deltas,
            samples: step.samples,
        };
        let cut = |view: &tensor::View| {
            let mut tensor = view.tensor;
            tensor.dims[0] = step.count(tensor.vary, tensor.dims[0]);
            // SAFETY: the same memory, at most as many rows.
            unsafe { tensor::View::new(tensor, view.data()) }
        };
        let operands: Vec<_> = self.operands.iter().map(cut).collect();
        (self.entry.reference)(&Call { attrs: self.attrs, operands: &operands, step }, catalogue::Part { index, of });
    }
}
