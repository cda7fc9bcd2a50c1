//! The op table: each file holds one op's answer (can it, with which kernel) and its launches, and submits them here.
//!
//! An op is planned once per program: [`OpEntry::plan`] picks kernels by shape and capacity and decides every argument.
//! Kernels read the step's counts and tokens from the parameter block, whose address is one of the arguments, so that a
//! plan holds for every step of the program. Kernel names are those of `kernels/variants.py`.

mod ahead;
mod attn_res;
mod cache;
mod columns;
mod convert;
mod elementwise;
mod experts;
mod gate_up;
mod gemm;
mod gemm_few;
mod gemm_fp8;
mod gemm_many;
mod head_norm;
mod kda;
mod kda_chunk;
mod kda_mix;
mod kda_replay;
mod mla;
mod mla_mix;
mod mla_prefill;
mod mla_split;
mod moe_edges;
mod moe_edges_fp8;
mod paged;
mod rmsnorm;
mod rope;
mod router;
mod sample;
mod short_conv;
mod tables;

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    graph::Vary,
    op::OpKind,
    sdk::{Bucket, Fault, OpView, Support, Tensor},
};

use crate::{
    kernel::{Argument, Extent, Plan},
    settings::Settings,
};

pub use ahead::Ahead;
pub use mla_prefill::Expansion;

/// Makes the packed bytes of an operand from its source.
pub type Packer = fn(&OpView<'_>, usize, &[u8], &Settings) -> Result<Vec<u8>, Fault>;

/// One op of the backend.
#[derive(Debug)]
pub struct OpEntry {
    /// Which.
    pub kind: OpKind,
    /// The answer for a descriptor that the catalogue has checked.
    pub support: fn(&OpDesc, &Settings) -> Support,
    /// Adds its launches.
    pub plan: fn(&BoundOp<'_>, &mut Plan<'_>) -> Result<(), Fault>,
    /// Packed bytes of an operand, where `support` asks for packing.
    pub pack: Option<Packer>,
}

inventory::collect!(OpEntry);

/// The entry of a kind, if this backend has one.
pub fn entry(kind: OpKind) -> Option<&'static OpEntry> {
    inventory::iter::<OpEntry>.into_iter().find(|e| e.kind == kind)
}

/// Plans the first of these consecutive ops of a program together, if some of them share launches: how many ops that are, else 0.
///
/// # Errors
/// As [`OpEntry::plan`].
pub fn together(ops: &[BoundOp<'_>], plan: &mut Plan<'_>) -> Result<usize, Fault> {
    let Some(first) = ops.first() else { return Ok(0) };
    plan.ahead.enter(first);
    let planned = gemm_few::together(ops, plan)?;
    ops[..planned].iter().skip(1).for_each(|op| plan.ahead.enter(op));
    Ok(planned)
}

/// An operand in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Shape and format.
    pub tensor: Tensor,
    /// Device address of its first byte.
    pub address: u64,
}

impl Operand {
    /// As a kernel argument.
    pub fn pointer(&self) -> Argument {
        Argument::Pointer(self.address)
    }

    /// Elements between consecutive entries of its first dimension, of a format without blocks.
    pub fn stride(&self) -> Argument {
        int(self.tensor.row_bytes / self.tensor.dtype.block_bytes())
    }

    /// Values per entry of its first dimension.
    pub fn row_len(&self) -> Argument {
        int(self.tensor.row_len())
    }

    /// What a kernel needs to know how many entries there are: the word of the parameter block that counts them, or 0 and a
    /// fixed number; see `rows_of` in `kernels/step.py`.
    pub fn count(&self) -> [(&'static str, Argument); 2] {
        let (word, fixed) = match self.tensor.vary {
            Vary::Fixed => (0, self.tensor.dims[0]),
            Vary::Tokens => (1, 0),
            Vary::Rows => (2, 0),
            Vary::LogitRows => (3, 0),
        };
        [("count_word", int(word)), ("count_fixed", int(fixed))]
    }

    /// A grid axis with a work-group for every `each` entries.
    pub fn rows(&self, each: u32) -> Extent {
        Extent::rows(self.tensor.vary, self.tensor.dims[0], each)
    }
}

/// Columns per work-group of kernels that take a row in panels, their `B`, where they state no other.
pub const PANEL: usize = 1024;

/// A grid axis with a work-group for every `each` columns.
pub fn panels(columns: usize, each: usize) -> Extent {
    Extent::Fixed(columns.div_ceil(each) as u32)
}

/// A size as a kernel argument; sizes beyond 31 bits were refused by [`small`].
pub fn int(n: usize) -> Argument {
    Argument::I32(i32::try_from(n).expect("support refused sizes beyond 31 bits"))
}

/// An attribute as a kernel argument.
pub fn float(x: f64) -> Argument {
    Argument::F32(x as f32)
}

/// Refuses shapes whose extents do not fit the kernels' 32-bit sizes.
pub fn small(op: &OpDesc) -> Result<(), String> {
    let fits =
        |t: &tokenspeed_backend_api::tensor::Tensor| t.dims.iter().all(|d| *d < 1 << 31) && t.row_len() < 1 << 31;
    match op.operands.iter().position(|t| !fits(t)) {
        Some(i) => Err(format!("operand {i} is {:?}: extents are below 2^31", op.operands[i].dims())),
        None => Ok(()),
    }
}

/// An op with its operands in device memory.
#[derive(Debug)]
pub struct BoundOp<'a> {
    /// Kind, attributes, label.
    pub op: &'a OpView<'a>,
    /// In catalogue order.
    pub operands: &'a [Operand],
    /// Device address of the parameter block.
    pub step: u64,
    /// Device address of `op.workspace_bytes()` bytes of scratch; 0 if none are wanted.
    pub workspace: u64,
    /// Capacities of the program.
    pub bucket: Bucket,
    /// The device's options.
    pub settings: &'a Settings,
}

impl BoundOp<'_> {
    /// The parameter block as the argument `step`.
    pub fn step(&self) -> (&'static str, Argument) {
        ("step", Argument::Pointer(self.step))
    }

    /// Most entries of what `vary` counts.
    pub fn capacity(&self, operand: &Operand) -> u32 {
        self.bucket.most(operand.tensor.vary).unwrap_or(operand.tensor.dims[0] as u32)
    }
}
