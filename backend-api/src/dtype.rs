//! Element formats, as a safe enum over `TS_DTYPE_*`.

use crate::abi::*;

/// Element format of a tensor. Block formats have the byte layout of the GGUF type of the same name; `MXFP4` is 32
/// E2M1 values (element 2j in the low nibble of byte j) with one E8M0 scale kept in a separate tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = TS_DTYPE_F32,
    /// IEEE 754 binary16.
    F16 = TS_DTYPE_F16,
    /// bfloat16.
    BF16 = TS_DTYPE_BF16,
    /// OCP FP8 E4M3 (finite, no infinities).
    F8E4M3 = TS_DTYPE_F8_E4M3,
    /// 32-bit signed integer.
    I32 = TS_DTYPE_I32,
    /// 32-bit unsigned integer.
    U32 = TS_DTYPE_U32,
    /// Byte.
    U8 = TS_DTYPE_U8,
    /// 32 int8 values, one f16 scale.
    Q8_0 = TS_DTYPE_Q8_0,
    /// 32 4-bit values minus 8, one f16 scale.
    Q4_0 = TS_DTYPE_Q4_0,
    /// 32 4-bit values, f16 scale and f16 minimum.
    Q4_1 = TS_DTYPE_Q4_1,
    /// 32 5-bit values minus 16, one f16 scale.
    Q5_0 = TS_DTYPE_Q5_0,
    /// 32 5-bit values, f16 scale and f16 minimum.
    Q5_1 = TS_DTYPE_Q5_1,
    /// 256-value super-block of 4-bit values.
    Q4K = TS_DTYPE_Q4_K,
    /// 256-value super-block of 5-bit values.
    Q5K = TS_DTYPE_Q5_K,
    /// 256-value super-block of 6-bit values.
    Q6K = TS_DTYPE_Q6_K,
    /// OCP MXFP4 values.
    Mxfp4 = TS_DTYPE_MXFP4,
    /// OCP MXFP8 E4M3 values.
    Mxfp8 = TS_DTYPE_MXFP8,
}

impl DType {
    /// Every format, for tables and tests.
    pub const ALL: [DType; 17] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::I32,
        DType::U32,
        DType::U8,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::Mxfp4,
        DType::Mxfp8,
    ];

    /// From the ABI's number; `None` for a number this version does not know.
    pub fn from_abi(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as u32 == code)
    }

    /// Values per block (1 for plain formats).
    pub const fn block_len(self) -> usize {
        match self {
            DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Mxfp4 | DType::Mxfp8 => 32,
            DType::Q4K | DType::Q5K | DType::Q6K => 256,
            _ => 1,
        }
    }

    /// Bytes per block (of the values alone for MX formats, whose scales are a separate tensor).
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::F8E4M3 | DType::U8 => 1,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
            DType::Mxfp4 => 16,
            DType::Mxfp8 => 32,
        }
    }

    /// Bytes of `n` consecutive values; `None` on overflow or if `n` is not whole blocks.
    pub fn bytes(self, n: u64) -> Option<u64> {
        let len = self.block_len() as u64;
        if !n.is_multiple_of(len) { None } else { (n / len).checked_mul(self.block_bytes() as u64) }
    }

    /// The name users see and type, as in `--dtype`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "fp8_e4m3",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::Q8_0 => "q8_0",
            DType::Q4_0 => "q4_0",
            DType::Q4_1 => "q4_1",
            DType::Q5_0 => "q5_0",
            DType::Q5_1 => "q5_1",
            DType::Q4K => "q4_k",
            DType::Q5K => "q5_k",
            DType::Q6K => "q6_k",
            DType::Mxfp4 => "mxfp4",
            DType::Mxfp8 => "mxfp8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
