//! Exact mode: every op is the catalogue's own reference, nothing else.
//!
//! Shares of an op write disjoint outputs and no dot product is split, so any number of workers gives the same bits.

use tokenspeed_backend_api::{
    catalogue::{self, Call, Entry},
    op::Attrs,
    sdk::{BoundOp, Fault, StepView},
    tensor,
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
        let cut = |view: &tensor::View| {
            // SAFETY: the same memory, at most as many rows.
            unsafe { tensor::View::new(view.tensor.cut(step), view.data()) }
        };
        // A step allocates nothing, and no op but `table_update` has more operands than this.
        const ON_STACK: usize = 16;
        let (mut few, many): ([_; ON_STACK], Vec<_>);
        let operands = if self.operands.len() <= ON_STACK {
            few = [self.operands[0]; ON_STACK];
            self.operands.iter().zip(&mut few).for_each(|(view, slot)| *slot = cut(view));
            &few[..self.operands.len()]
        } else {
            many = self.operands.iter().map(cut).collect();
            &many[..]
        };
        (self.entry.reference)(&Call { attrs: self.attrs, operands, step: *step }, catalogue::Part { index, of });
    }
}
