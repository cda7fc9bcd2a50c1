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
    /// Rows out of the pages of a cache component, at the step's positions or some positions back.
    KvRead = TS_OP_KV_READ,
    /// Cache rows of an accepted branch to where the request's own belong.
    KvMove = TS_OP_KV_MOVE,
    /// Token ids from rows of logits, left in relay slots for the next step.
    Sample = TS_OP_SAMPLE,
    /// Columns of every row.
    Slice = TS_OP_SLICE,
    /// Two rows side by side.
    Concat = TS_OP_CONCAT,
    /// `y = 1 / (1 + e^-x)`.
    Sigmoid = TS_OP_SIGMOID,
    /// Unit length per head, times a scale.
    L2Norm = TS_OP_L2NORM,
    /// Depthwise causal convolution of q, k and v with SiLU, over a window kept in the state slot.
    ShortConv = TS_OP_SHORT_CONV,
    /// Log decay of Kimi Delta Attention.
    KdaGate = TS_OP_KDA_GATE,
    /// Kimi Delta Attention, token by token.
    KdaStep = TS_OP_KDA_STEP,
    /// `kda_step` that leaves the state as it was.
    KdaVerify = TS_OP_KDA_VERIFY,
    /// Keep what a later `kda_replay` needs of the step's tokens.
    KdaRecord = TS_OP_KDA_RECORD,
    /// Advance conv window and state over the accepted prefix of recorded tokens.
    KdaReplay = TS_OP_KDA_REPLAY,
    /// Fold the key projection of latent attention into the query.
    MlaAbsorb = TS_OP_MLA_ABSORB,
    /// Causal attention over latent rows.
    MlaAttention = TS_OP_MLA_ATTENTION,
    /// Value projection of latent attention.
    MlaValue = TS_OP_MLA_VALUE,
    /// Softmax mixture of layer snapshots and the running sum, per token.
    AttnResMix = TS_OP_ATTN_RES_MIX,
    /// Gate of a SiTU MLP.
    SituMul = TS_OP_SITU_MUL,
    /// Choose experts and their weights.
    RouterTopk = TS_OP_ROUTER_TOPK,
    /// The chosen experts' MLPs and their weighted sum.
    Experts = TS_OP_EXPERTS,
    /// All later scores of a layer snapshot.
    AttnResScores = TS_OP_ATTN_RES_SCORES,
    /// The snapshots' part of a mixture.
    AttnResPartial = TS_OP_ATTN_RES_PARTIAL,
    /// The running sum folded into the snapshots' part.
    AttnResCombine = TS_OP_ATTN_RES_COMBINE,
    /// Fused: `y = silu(gate) · up`.
    SiluMul = TS_OP_SILU_MUL,
    /// Fused: `sum = x + residual`, `y = rmsnorm(sum)`.
    AddRmsNorm = TS_OP_ADD_RMSNORM,
    /// Fused: `y = x · sigmoid(gate)`.
    SigmoidMul = TS_OP_SIGMOID_MUL,
    /// Fused: `y = rmsnorm(x) · sigmoid(gate)`.
    GatedRmsNorm = TS_OP_GATED_RMSNORM,
    /// Fused: normalise the latent part of a row and write it into its page.
    MlaWrite = TS_OP_MLA_WRITE,
    /// Fused: `kda_step` over chunks of 64 tokens.
    KdaChunk = TS_OP_KDA_CHUNK,
    /// Fused: Kimi Delta Attention from the convolution to the gated norm.
    KdaMix = TS_OP_KDA_MIX,
    /// Fused: what a latent mixture of experts makes of its input.
    MoeInput = TS_OP_MOE_INPUT,
    /// Fused: the way out of a latent mixture of experts, into the residual stream.
    MoeOutput = TS_OP_MOE_OUTPUT,
    /// Fused: latent attention from the projected query to the gated values.
    MlaMix = TS_OP_MLA_MIX,
}

impl OpKind {
    /// Every kind, in catalogue order.
    pub const ALL: [OpKind; 45] = [
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
        OpKind::KvRead,
        OpKind::KvMove,
        OpKind::Sample,
        OpKind::Slice,
        OpKind::Concat,
        OpKind::Sigmoid,
        OpKind::L2Norm,
        OpKind::ShortConv,
        OpKind::KdaGate,
        OpKind::KdaStep,
        OpKind::KdaVerify,
        OpKind::KdaRecord,
        OpKind::KdaReplay,
        OpKind::MlaAbsorb,
        OpKind::MlaAttention,
        OpKind::MlaValue,
        OpKind::AttnResMix,
        OpKind::SituMul,
        OpKind::RouterTopk,
        OpKind::Experts,
        OpKind::AttnResScores,
        OpKind::AttnResPartial,
        OpKind::AttnResCombine,
        OpKind::SiluMul,
        OpKind::AddRmsNorm,
        OpKind::SigmoidMul,
        OpKind::GatedRmsNorm,
        OpKind::MlaWrite,
        OpKind::KdaChunk,
        OpKind::KdaMix,
        OpKind::MoeInput,
        OpKind::MoeOutput,
        OpKind::MlaMix,
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
            OpKind::KvRead => "kv_read",
            OpKind::KvMove => "kv_move",
            OpKind::Sample => "sample",
            OpKind::Slice => "slice",
            OpKind::Concat => "concat",
            OpKind::Sigmoid => "sigmoid",
            OpKind::L2Norm => "l2norm",
            OpKind::ShortConv => "short_conv",
            OpKind::KdaGate => "kda_gate",
            OpKind::KdaStep => "kda_step",
            OpKind::KdaVerify => "kda_verify",
            OpKind::KdaRecord => "kda_record",
            OpKind::KdaReplay => "kda_replay",
            OpKind::MlaAbsorb => "mla_absorb",
            OpKind::MlaAttention => "mla_attention",
            OpKind::MlaValue => "mla_value",
            OpKind::AttnResMix => "attn_res_mix",
            OpKind::SituMul => "situ_mul",
            OpKind::RouterTopk => "router_topk",
            OpKind::Experts => "experts",
            OpKind::AttnResScores => "attn_res_scores",
            OpKind::AttnResPartial => "attn_res_partial",
            OpKind::AttnResCombine => "attn_res_combine",
            OpKind::SiluMul => "silu_mul",
            OpKind::AddRmsNorm => "add_rmsnorm",
            OpKind::SigmoidMul => "sigmoid_mul",
            OpKind::GatedRmsNorm => "gated_rmsnorm",
            OpKind::MlaWrite => "mla_write",
            OpKind::KdaChunk => "kda_chunk",
            OpKind::KdaMix => "kda_mix",
            OpKind::MoeInput => "moe_input",
            OpKind::MoeOutput => "moe_output",
            OpKind::MlaMix => "mla_mix",
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
