//! An owned op record: what a program is a list of.
//!
//! `ts_op` borrows its operands and label; a program outlives every borrow, so host and SDK keep this owned twin and
//! make the C view of it per call (a copy of a few hundred bytes on the stack, no allocation).

use crate::{
    abi::*,
    op::{Attrs, OpKind},
    sized,
};

/// One op with its operands, owned.
#[derive(Clone)]
pub struct OpRecord {
    /// What to compute.
    pub kind: OpKind,
    /// Schema version, from 1.
    pub version: u32,
    /// Operands in catalogue order.
    pub operands: Vec<ts_tensor>,
    /// Attributes.
    pub attrs: Attrs,
    /// Byte offset of the scratch in the activations binding.
    pub workspace_offset: u64,
    /// Its size, at least what `op_support` asked for.
    pub workspace_bytes: u64,
    /// For messages and traces.
    pub label: String,
}

impl OpRecord {
    /// A record of schema version 1 without workspace.
    pub fn new(kind: OpKind, operands: Vec<ts_tensor>, attrs: Attrs, label: impl Into<String>) -> Self {
        Self { kind, version: 1, operands, attrs, workspace_offset: 0, workspace_bytes: 0, label: label.into() }
    }

    /// The C view, valid while `self` is neither moved out of nor changed.
    pub fn as_abi(&self) -> ts_op {
        let mut op: ts_op = sized::zeroed();
        op.kind = self.kind as u32;
        op.version = self.version;
        op.n_operands = self.operands.len() as u32;
        op.operands = self.operands.as_ptr();
        op.attrs_i = self.attrs.i;
        op.attrs_f = self.attrs.f;
        op.workspace_offset = self.workspace_offset;
        op.workspace_bytes = self.workspace_bytes;
        op.label = sized::str_to(&self.label);
        op
    }
}

impl std::fmt::Debug for OpRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({} operands)", self.kind, self.label, self.operands.len())
    }
}
