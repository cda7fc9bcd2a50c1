//! A checked view of an op record.

use super::{fault::Fault, tensor::Tensor};
use crate::{
    abi::*,
    op::{Attrs, OpKind},
    record::OpRecord,
    sized,
};

/// More operands than any op has; a guard against reading wild lengths.
const OPERANDS_MAX: usize = 1 << 12;

/// One op: kind known, every descriptor checked, label valid UTF-8.
#[derive(Clone)]
pub struct OpView<'a> {
    kind: OpKind,
    version: u32,
    raw: &'a [ts_tensor],
    attrs: Attrs,
    workspace_offset: u64,
    workspace_bytes: u64,
    label: &'a str,
}

impl<'a> OpView<'a> {
    /// Checks a C record.
    ///
    /// # Safety
    /// `op` follows the rules of [`ts_op`] and everything it points to lives for `'a`.
    pub unsafe fn from_abi(op: *const ts_op) -> Result<Self, Fault> {
        // SAFETY: promised by the caller.
        let op = unsafe { sized::read(op) }.ok_or_else(|| Fault::invalid("the op record is null or has no size"))?;
        let kind = OpKind::from_abi(op.kind)
            .ok_or_else(|| Fault::unsupported(format!("op kind {} is unknown to this backend", op.kind)))?;
        let n = op.n_operands as usize;
        if n > OPERANDS_MAX || (n > 0 && op.operands.is_null()) {
            return Err(Fault::invalid(format!("{kind}: {n} operands at {:?}", op.operands)));
        }
        // SAFETY: n descriptors, promised by the caller.
        let raw = if n == 0 { &[] } else { unsafe { core::slice::from_raw_parts(op.operands, n) } };
        // SAFETY: as above.
        let label = unsafe { sized::str_from(op.label) }.unwrap_or("(label is not UTF-8)");
        let attrs = Attrs { i: op.attrs_i, f: op.attrs_f };
        Self::checked(Self {
            kind,
            version: op.version,
            raw,
            attrs,
            workspace_offset: op.workspace_offset,
            workspace_bytes: op.workspace_bytes,
            label,
        })
    }

    /// Checks an owned record.
    pub fn from_record(op: &'a OpRecord) -> Result<Self, Fault> {
        Self::checked(Self {
            kind: op.kind,
            version: op.version,
            raw: &op.operands,
            attrs: op.attrs,
            workspace_offset: op.workspace_offset,
            workspace_bytes: op.workspace_bytes,
            label: &op.label,
        })
    }

    fn checked(self) -> Result<Self, Fault> {
        if self.version == 0 {
            return Err(Fault::invalid(format!("{}: schema version 0", self.kind)));
        }
        for (i, t) in self.raw.iter().enumerate() {
            Tensor::new(t, i).map_err(|f| Fault::new(f.code, format!("{}: {}", self.kind, f.message)))?;
        }
        Ok(self)
    }

    /// What to compute.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// Schema version, from 1. Answer `Support::no` for one you do not know.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Number of operands.
    pub fn n_operands(&self) -> usize {
        self.raw.len()
    }

    /// Operand `i`, or a fault naming the op: an op with too few operands is the host's mistake.
    pub fn operand(&self, i: usize) -> Result<Tensor, Fault> {
        match self.raw.get(i) {
            Some(t) => Tensor::new(t, i),
            None => Err(Fault::invalid(format!("{}: operand {i} of {} is missing", self.kind, self.raw.len()))),
        }
    }

    /// All operands.
    pub fn operands(&self) -> impl Iterator<Item = Tensor> + '_ {
        self.raw.iter().enumerate().map(|(i, t)| Tensor::new(t, i).expect("checked when the view was made"))
    }

    /// The raw descriptors, for binding and offset.
    pub fn descriptors(&self) -> &'a [ts_tensor] {
        self.raw
    }

    /// Attributes.
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// Offset of the scratch in the activations binding.
    pub fn workspace_offset(&self) -> u64 {
        self.workspace_offset
    }

    /// Size of the scratch.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// For messages.
    pub fn label(&self) -> &'a str {
        self.label
    }

    /// An owned copy.
    pub fn to_record(&self) -> OpRecord {
        OpRecord {
            kind: self.kind,
            version: self.version,
            operands: self.raw.to_vec(),
            attrs: self.attrs,
            workspace_offset: self.workspace_offset,
            workspace_bytes: self.workspace_bytes,
            label: self.label.to_owned(),
        }
    }

    /// Which operands the op writes, by its schema.
    pub fn is_written(&self, operand: usize) -> bool {
        crate::catalogue::role(self.kind, operand, self.raw.len()) != crate::catalogue::Role::In
    }
}

impl std::fmt::Debug for OpView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.kind, self.label, self.operands().collect::<Vec<_>>())
    }
}
