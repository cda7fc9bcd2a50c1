//! Conversions between f32 and the small float formats, element by element, round to nearest even.
//!
//! e4m3 is the OCP FP8 format without infinities: values beyond ±448 saturate, NaN is 0x7F.

use half::{bf16, f16};
use tokenspeed_backend_api::dtype::DType;

/// e4m3 to f32, exact.
pub fn f32_from_e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = ((code >> 3) & 15, (code & 7) as f32);
    match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa / 512.0,
        _ => sign * (1.0 + mantissa / 8.0) * f32::from_bits((exponent as u32 + 120) << 23),
    }
}

/// f32 to e4m3: nearest, ties to even, saturating.
pub fn e4m3_from_f32(x: f32) -> u8 {
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7F;
    }
    if magnitude >= 448.0 {
        return sign | 0x7E;
    }
    // The spacing of e4m3 at this magnitude is 2^(exponent-3), at least 2^-9; adding and subtracting 2^23 times the
    // spacing rounds to it.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let big = f32::from_bits(((exponent - 3 + 23 + 127) as u32) << 23);
    let rounded = (magnitude + big) - big;
    if rounded < 1.0 / 64.0 {
        return sign | (rounded * 512.0) as u8;
    }
    let bits = rounded.to_bits();
    sign | ((((bits >> 23) - 120) << 3) | ((bits >> 20) & 7)) as u8
}

/// Every e4m3 code as f32.
pub fn e4m3_table() -> &'static [f32; 256] {
    static TABLE: std::sync::LazyLock<[f32; 256]> =
        std::sync::LazyLock::new(|| std::array::from_fn(|code| f32_from_e4m3(code as u8)));
    &TABLE
}

/// Whether [`load`] and [`store`] know `dtype`.
pub const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3)
}

/// Element `i` of an array of f32, f16, bf16 or e4m3.
///
/// # Safety
/// `p` points to at least `i + 1` elements.
#[inline(always)]
pub unsafe fn load(dtype: DType, p: *const u8, i: usize) -> f32 {
    // SAFETY: the caller's promise; reads are unaligned.
    unsafe {
        match dtype {
            DType::F32 => p.cast::<f32>().add(i).read_unaligned(),
            DType::F16 => f16::from_bits(p.cast::<u16>().add(i).read_unaligned()).to_f32(),
            DType::BF16 => bf16::from_bits(p.cast::<u16>().add(i).read_unaligned()).to_f32(),
            DType::F8E4M3 => f32_from_e4m3(*p.add(i)),
            _ => panic!("{dtype} is not a float format"),
        }
    }
}

/// Set element `i` of an array of f32, f16, bf16 or e4m3.
///
/// # Safety
/// `p` points to at least `i + 1` elements.
#[inline(always)]
pub unsafe fn store(dtype: DType, p: *mut u8, i: usize, x: f32) {
    // SAFETY: the caller's promise; writes are unaligned.
    unsafe {
        match dtype {
            DType::F32 => p.cast::<f32>().add(i).write_unaligned(x),
            DType::F16 => p.cast::<u16>().add(i).write_unaligned(f16::from_f32(x).to_bits()),
            DType::BF16 => p.cast::<u16>().add(i).write_unaligned(bf16::from_f32(x).to_bits()),
            DType::F8E4M3 => *p.add(i) = e4m3_from_f32(x),
            _ => panic!("{dtype} is not a float format"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_round_trips_every_code_and_rounds_to_the_nearest() {
        let values: Vec<f32> = (0..=0x7Eu8).map(f32_from_e4m3).collect();
        for code in 0..=255u8 {
            let x = f32_from_e4m3(code);
            assert!(e4m3_from_f32(x) == code || x.is_nan(), "{code:#x}");
        }
        for i in 0..20_000 {
            let x = (i as f32 * 0.0173).sin().powi(3) * 500.0 * (i as f32 / 20_000.0).powi(4);
            let got = f32_from_e4m3(e4m3_from_f32(x)).abs();
            let best = values.iter().map(|v| (v - x.abs()).abs()).fold(f32::INFINITY, f32::min);
            assert_eq!((got - x.abs()).abs(), best, "{x} became {got}");
        }
        assert_eq!(e4m3_from_f32(1e9), 0x7E);
        assert_eq!(e4m3_from_f32(f32::NAN) & 0x7F, 0x7F);
        // Ties go to the even mantissa: 1.0625 lies between 1.0 (even) and 1.125.
        assert_eq!(f32_from_e4m3(e4m3_from_f32(1.0625)), 1.0);
        assert_eq!(f32_from_e4m3(e4m3_from_f32(1.1875)), 1.25);
    }
}
