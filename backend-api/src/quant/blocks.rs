//! The 32-value block formats: one f16 scale `d` per block, plus an f16 minimum `m` in the `_1` kinds.
//!
//! 4- and 5-bit kinds keep value j (j < 16) in the low nibble of byte j and value j + 16 in its high nibble; 5-bit
//! kinds keep bit 4 of value j in bit j of a little-endian u32.

use super::half_at;
use half::f16;

/// `[d: f16][32 × i8]`: `x = q · d`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (o, q) in out.iter_mut().zip(&block[2..]) {
        *o = f32::from(*q as i8) * d;
    }
}

/// `[d: f16][16 bytes]`: `x = (q − 8) · d`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, byte) in block[2..].iter().enumerate() {
        out[j] = d * f32::from((byte & 15) as i8 - 8);
        out[j + 16] = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// `[d: f16][m: f16][16 bytes]`: `x = q · d + m`, product and sum each rounded.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, byte) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(byte & 15) + m;
        out[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// `[d: f16][high bits: u32][16 bytes]`: `x = (q − 16) · d`.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    five_bits(&block[2..], |j, q| out[j] = d * f32::from(q as i8 - 16));
}

/// `[d: f16][m: f16][high bits: u32][16 bytes]`: `x = q · d + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    five_bits(&block[4..], |j, q| out[j] = d * f32::from(q) + m);
}

fn five_bits(bits_and_nibbles: &[u8], mut put: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes([bits_and_nibbles[0], bits_and_nibbles[1], bits_and_nibbles[2], bits_and_nibbles[3]]);
    for (j, byte) in bits_and_nibbles[4..].iter().enumerate() {
        put(j, (byte & 15) | ((high >> j) as u8 & 1) << 4);
        put(j + 16, (byte >> 4) | ((high >> (j + 16)) as u8 & 1) << 4);
    }
}

/// The value of largest magnitude, the first of equals, with its sign.
fn extreme(values: &[f32; 32]) -> f32 {
    values.iter().fold(0.0, |best: f32, v| if v.abs() > best.abs() { *v } else { best })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Scale so that the extreme is ±127; rounds halves away from zero.
pub(super) fn to_q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let d = extreme(values).abs() / 127.0;
    let inv = inverse(d);
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (b, v) in block[2..].iter_mut().zip(values) {
        *b = (v * inv).round() as i8 as u8;
    }
}

/// Scale so that the extreme, with its sign, is −8.
pub(super) fn to_q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    let d = extreme(values) / -8.0;
    let inv = inverse(d);
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    nibbles(&mut block[2..], |j| values[j] * inv + 8.5);
}

/// Spread minimum to maximum over 0…15.
pub(super) fn to_q4_1(values: &[f32; 32], block: &mut [u8; 20]) {
    let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let d = (max - min) / 15.0;
    let inv = inverse(d);
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
    nibbles(&mut block[4..], |j| (values[j] - min) * inv + 0.5);
}

/// `as u8` truncates and saturates, so a biased value of up to 16.5 needs only the upper clamp.
fn nibbles(bytes: &mut [u8], biased: impl Fn(usize) -> f32) {
    for (j, byte) in bytes.iter_mut().enumerate() {
        *byte = (biased(j) as u8).min(15) | (biased(j + 16) as u8).min(15) << 4;
    }
}
