//! Op kinds, as a safe enum over `TS_OP_*`. What each op computes stands in [`crate::catalogue`].

use crate::abi::*;

/// Kind of an op record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum OpKind {
    /// Apply the step's block-table deltas.
    TableUpdate = TS_OP_TABLE_UPDATE,
    /// Copy with conversion of element format.
    Copy = TS_OP_COPY,
    /// `y = x · wᵀ (+ bias)`.
    Gemm = TS_OP_GEMM,
    /// Root-mean-square normalisation of the last dimension.
    RmsNorm = TS_OP_RMSNORM,
    /// Rotary position embedding.
    Rope = TS_OP_ROPE,
    /// `y = x · sigmoid(x)`.
    Silu = TS_OP_SILU,
    /// `y = a + b`.
    Add = TS_OP_ADD,
    /// `y = a · b`.
    Mul = TS_OP_MUL,
    /// Rows of a table by the step's token ids.
    Embedding = TS_OP_EMBEDDING,
    /// Write per-token rows into the pages of a cache component.
    KvWrite = TS_OP_KV_WRITE,
    /// Causal attention of the step's tokens over pages (MHA/GQA, optional sliding window).
    PagedAttention = TS_OP_PAGED_ATTENTION,
    /// Select the token rows whose logits are wanted.
    RowGather = TS_OP_ROW_GATHER,
    /// Fused: `y = silu(gate) · up`.
    SiluMul = TS_OP_SILU_MUL,
    /// Fused: `sum = x + residual`, `y = rmsnorm(sum)`.
    AddRmsNorm = TS_OP_ADD_RMSNORM,
}

impl OpKind {
    /// Every kind, in catalogue order.
    pub const ALL: [OpKind; 14] = [
        OpKind::TableUpdate,
        OpKind::Copy,
        OpKind::Gemm,
        OpKind::RmsNorm,
        OpKind::Rope,
        OpKind::Silu,
        OpKind::Add,
        OpKind::Mul,
        OpKind::Embedding,
        OpKind::KvWrite,
        OpKind::PagedAttention,
        OpKind::RowGather,
        OpKind::SiluMul,
        OpKind::AddRmsNorm,
    ];

    /// From the ABI's number; `None` for a number this version does not know.
    pub fn from_abi(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u32 == code)
    }

    /// Fused ops have a decomposition into basic ones and are refused in exact mode.
    pub const fn is_fused(self) -> bool {
        self as u32 >= 256
    }

    /// The catalogue name.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::TableUpdate => "table_update",
            OpKind::Copy => "copy",
            OpKind::Gemm => "gemm",
            OpKind::RmsNorm => "rmsnorm",
            OpKind::Rope => "rope",
            OpKind::Silu => "silu",
            OpKind::Add => "add",
            OpKind::Mul => "mul",
            OpKind::Embedding => "embedding",
            OpKind::KvWrite => "kv_write",
            OpKind::PagedAttention => "paged_attention",
            OpKind::RowGather => "row_gather",
            OpKind::SiluMul => "silu_mul",
            OpKind::AddRmsNorm => "add_rmsnorm",
        }
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Integer and float attributes of an op; meaning by op, see the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attrs {
    /// Integers.
    pub i: [i64; TS_MAX_ATTRS_I],
    /// Floats.
    pub f: [f64; TS_MAX_ATTRS_F],
}

/// `attrs.i[0]` of `rope`: rotate pairs (d, d + half), as Hugging Face checkpoints store them.
pub const ROPE_HALVES: i64 = 0;
/// `attrs.i[0]` of `rope`: rotate pairs (2d, 2d + 1), as GGUF stores the llama family.
pub const ROPE_PAIRS: i64 = 1;
