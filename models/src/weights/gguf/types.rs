//! Element types by their GGUF number.

use super::super::tensor::Format;
use tokenspeed_backend_api::dtype::DType;

/// Format, values per block, bytes per block.
pub(super) fn block(number: u32) -> Option<(Format, u64, u64)> {
    let known = |dtype: DType| Some((Format::Known(dtype), dtype.block_len() as u64, dtype.block_bytes() as u64));
    let other = |name, values, bytes| Some((Format::Other(name), values, bytes));
    match number {
        0 => known(DType::F32),
        1 => known(DType::F16),
        2 => known(DType::Q4_0),
        3 => known(DType::Q4_1),
        6 => known(DType::Q5_0),
        7 => known(DType::Q5_1),
        8 => known(DType::Q8_0),
        10 => other("Q2_K", 256, 84),
        11 => other("Q3_K", 256, 110),
        12 => known(DType::Q4K),
        13 => known(DType::Q5K),
        14 => known(DType::Q6K),
        16 => other("IQ2_XXS", 256, 66),
        17 => other("IQ2_XS", 256, 74),
        18 => other("IQ3_XXS", 256, 98),
        19 => other("IQ1_S", 256, 50),
        20 => other("IQ4_NL", 32, 18),
        21 => other("IQ3_S", 256, 110),
        22 => other("IQ2_S", 256, 82),
        23 => other("IQ4_XS", 256, 136),
        24 => other("I8", 1, 1),
        25 => other("I16", 1, 2),
        26 => known(DType::I32),
        27 => other("I64", 1, 8),
        28 => other("F64", 1, 8),
        29 => other("IQ1_M", 256, 56),
        30 => known(DType::BF16),
        34 => other("TQ1_0", 256, 54),
        35 => other("TQ2_0", 256, 66),
        // GGUF keeps the scale inside the block, `DType::Mxfp4` beside it.
        39 => other("MXFP4", 32, 17),
        40 => other("NVFP4", 64, 36),
        _ => None,
    }
}

/// The GGUF number of a format, for writing; `None` if GGUF has no such type.
pub fn type_number(dtype: DType) -> Option<u32> {
    (0..64).find(|n| block(*n).is_some_and(|(format, ..)| format == Format::Known(dtype)))
}
