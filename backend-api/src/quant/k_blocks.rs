//! The 256-value super-block formats ("K" kinds): f16 scales for the whole, small integer scales per 32 (or 16) values.

use super::half_at;

/// The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K, packed in 12 bytes: bytes 0–3 hold scales 0–3, bytes 4–7
/// minima 0–3 (low six bits each); bytes 8–11 hold the low nibbles of scales 4–7 and, above, of minima 4–7, whose two
/// high bits are the top bits of bytes 0–3 and 4–7.
fn scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// `[d: f16][dmin: f16][12 scale bytes][128 bytes]`: `x = (d · scale) · q − dmin · min`. Bytes 32c…32c+31 hold group
/// 2c in their low and group 2c + 1 in their high nibbles.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin, scales, low) = (half_at(block, 0), half_at(block, 2), &block[4..16], &block[16..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let nibbles = &low[group / 2 * 32..][..32];
        for (o, byte) in out.iter_mut().zip(nibbles) {
            *o = scale * f32::from(byte >> (group % 2 * 4) & 15) - min;
        }
    }
}

/// `[d: f16][dmin: f16][12 scale bytes][32 high][128 low]`: as Q4_K with a fifth bit, bit `group` of `high[j]` for value
/// j of that group.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin, scales) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (high, low) = (&block[16..48], &block[48..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let nibbles = &low[group / 2 * 32..][..32];
        for (j, o) in out.iter_mut().enumerate() {
            let q = nibbles[j] >> (group % 2 * 4) & 15 | (high[j] >> group & 1) << 4;
            *o = scale * f32::from(q) - min;
        }
    }
}

/// `[128 low][64 high][16 × i8 scales][d: f16]`: `x = (d · scale) · (q − 32)`, one scale per 16 values. In each half of
/// 128 values, quarter k (32 values) takes its low nibbles from bytes 32·(k mod 2)…, low or high nibble by k / 2, and
/// its two high bits from bits 2k of the half's 32 high bytes.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (group / 4, group % 4);
        let nibbles = &low[half * 64 + quarter % 2 * 32..][..32];
        let high = &high[half * 32..][..32];
        for (j, o) in out.iter_mut().enumerate() {
            let q = nibbles[j] >> (quarter / 2 * 4) & 15 | (high[j] >> (quarter * 2) & 3) << 4;
            let scale = f32::from(scales[group * 2 + j / 16] as i8);
            *o = d * scale * f32::from(q as i8 - 32);
        }
    }
}
