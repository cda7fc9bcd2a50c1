//! Stored weight formats to f32, element by element, by each format's own formula.
//!
//! Layouts are those of the GGUF types of the same name (ggml `ggml-common.h` documents them). This is the readable
//! version: embedding rows and packing use it, and the fast kernels are tested against it.

use crate::small_float;
use half::f16;
use tokenspeed_backend_api::dtype::DType;

/// Formats this backend can read as weights.
pub const fn is_weight_format(dtype: DType) -> bool {
    !matches!(dtype, DType::I32 | DType::U32 | DType::U8 | DType::Mxfp4 | DType::Mxfp8)
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[inline(always)]
fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i % 16] >> (4 * (i / 16))) & 15
}

#[inline(always)]
fn fifth_bit(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 8] >> (i % 8)) & 1
}

/// The 6-bit scale and minimum of sub-block `j` of a `Q4_K` or `Q5_K` super-block, from its 12 packed bytes.
pub fn k_scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6) << 4)
    }
}

/// The integer code of value `i` of a block, before scale and minimum; signed formats are already centred.
#[inline(always)]
pub fn code(dtype: DType, block: &[u8], i: usize) -> i32 {
    match dtype {
        DType::Q8_0 => block[2 + i] as i8 as i32,
        DType::Q4_0 => nibble(&block[2..], i) as i32 - 8,
        DType::Q4_1 => nibble(&block[4..], i) as i32,
        DType::Q5_0 => (nibble(&block[6..], i) | fifth_bit(&block[2..], i) << 4) as i32 - 16,
        DType::Q5_1 => (nibble(&block[8..], i) | fifth_bit(&block[4..], i) << 4) as i32,
        // Sub-blocks 2g and 2g+1 are the low and high nibbles of bytes 32g..32g+32.
        DType::Q4K => (block[16 + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15) as i32,
        DType::Q5K => {
            let low = block[48 + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15;
            (low | (block[16 + i % 32] >> (i / 32) & 1) << 4) as i32
        }
        // Halves of 128: 64 bytes of low nibbles, 32 bytes of high bit pairs.
        DType::Q6K => {
            let (half, j) = (i / 128, i % 128);
            let low = block[64 * half + j % 64] >> (4 * (j / 64)) & 15;
            let high = block[128 + 32 * half + j % 32] >> (2 * (j / 32)) & 3;
            (low | high << 4) as i32 - 32
        }
        _ => panic!("{dtype} is not a block format"),
    }
}

/// Scale and offset of value `i` of a block: value = scale · code + offset.
pub fn scale_offset(dtype: DType, block: &[u8], i: usize) -> (f32, f32) {
    match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => (half_at(block, 0), 0.0),
        DType::Q4_1 | DType::Q5_1 => (half_at(block, 0), half_at(block, 2)),
        DType::Q4K | DType::Q5K => {
            let (scale, min) = k_scale_min(&block[4..16], i / 32);
            (half_at(block, 0) * scale as f32, -(half_at(block, 2) * min as f32))
        }
        DType::Q6K => (half_at(block, 208) * (block[192 + i / 16] as i8 as f32), 0.0),
        _ => panic!("{dtype} is not a block format"),
    }
}

/// Decode `out.len()` values starting at value `first` of a row.
///
/// `row` holds the whole row in `dtype`; both `first` and the length may cut blocks.
pub fn dequantise(dtype: DType, row: &[u8], first: usize, out: &mut [f32]) {
    let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
    if len == 1 {
        assert!((first + out.len()) * bytes <= row.len(), "row too short");
        for (i, y) in out.iter_mut().enumerate() {
            // SAFETY: checked above.
            *y = unsafe { small_float::load(dtype, row.as_ptr(), first + i) };
        }
        return;
    }
    for (i, y) in out.iter_mut().enumerate() {
        let at = first + i;
        let block = &row[at / len * bytes..][..bytes];
        let (scale, offset) = scale_offset(dtype, block, at % len);
        *y = scale * code(dtype, block, at % len) as f32 + offset;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every format a weight can have.
    pub(crate) const FORMATS: [DType; 12] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
    ];

    /// Reproducible noise.
    pub(crate) fn noise(seed: u64) -> impl FnMut() -> u32 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        }
    }

    /// Plausible random weights: quants of all values, scales around 0.01, finite floats.
    pub(crate) fn random_weights(dtype: DType, n: usize, k: usize, seed: u64) -> Vec<u8> {
        let mut next = noise(seed);
        let bytes = n * dtype.bytes(k as u64).unwrap() as usize;
        if dtype.block_len() == 1 {
            let mut out = vec![0u8; bytes];
            for i in 0..n * k {
                let x = (next() as f32 / u32::MAX as f32 - 0.5) * 0.2;
                // SAFETY: `out` holds n * k elements.
                unsafe { small_float::store(dtype, out.as_mut_ptr(), i, x) };
            }
            return out;
        }
        let mut out: Vec<u8> = (0..bytes).map(|_| next() as u8).collect();
        let scales: &[usize] = match dtype {
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q6K => &[208],
            _ => &[0],
        };
        for block in out.chunks_mut(dtype.block_bytes()) {
            for at in scales {
                let x = (next() as f32 / u32::MAX as f32 - 0.3) * 0.02;
                block[*at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
            }
        }
        out
    }

    #[test]
    fn hand_written_blocks_decode_to_the_values_of_the_format_description() {
        let one = f16::from_f32(1.0).to_le_bytes();
        let two = f16::from_f32(2.0).to_le_bytes();
        let decode = |dtype: DType, block: &[u8]| {
            let mut out = vec![0f32; dtype.block_len()];
            dequantise(dtype, block, 0, &mut out);
            out
        };
        // Q4_1: byte j holds value j (low) and j + 16 (high).
        let mut block = [two, one].concat();
        block.extend([0x31u8; 16]);
        assert_eq!(decode(DType::Q4_1, &block), [vec![3.0; 16], vec![7.0; 16]].concat());
        // Q5_0: the fifth bit of value 20 only.
        let mut block = one.to_vec();
        block.extend((1u32 << 20).to_le_bytes());
        block.extend([0u8; 16]);
        let got = decode(DType::Q5_0, &block);
        assert!(got.iter().enumerate().all(|(i, x)| *x == if i == 20 { 0.0 } else { -16.0 }));
        // Q4_K: scale of sub-block 5 is 0b10_0011 = 35, its minimum 0b01_0010 = 18, spread over bytes 9, 1 and 5.
        let mut block = [one, one].concat();
        let mut packed = [0u8; 12];
        packed[9] = 0x23;
        packed[1] = 0b10 << 6;
        packed[5] = 0b01 << 6;
        block.extend(packed);
        block.extend([0x40u8; 128]);
        assert_eq!(decode(DType::Q4K, &block)[160..192], [35.0 * 4.0 - 18.0; 32]);
        // Q6_K: value 128 + 33 has its low nibble in byte 64 + 33, its high pair in bits 2..4 of byte 128 + 32 + 1.
        let mut block = vec![0u8; 208];
        block[64 + 33] = 5;
        block[128 + 32 + 1] = 0b11 << 2;
        block[192 + 161 / 16] = 2;
        block.extend(one);
        let got = decode(DType::Q6K, &block);
        assert_eq!(got[161], 2.0 * (53.0 - 32.0));
        assert_eq!(got[160], 2.0 * -32.0);
    }

    #[test]
    fn a_slice_of_a_row_equals_that_part_of_the_row() {
        for dtype in FORMATS {
            let row = random_weights(dtype, 1, 512, 7);
            let mut whole = vec![0f32; 512];
            dequantise(dtype, &row, 0, &mut whole);
            let mut part = vec![0f32; 99];
            dequantise(dtype, &row, 201, &mut part);
            assert_eq!(part, whole[201..300], "{dtype}");
        }
    }
}
