//! Small float formats: f16, bf16, e4m3, e5m2, e2m3, e3m2, e2m1, as the OCP and IEEE texts define them.

/// Value of a small float: `exponent` and `mantissa` bits, given bias; no infinities or NaN.
fn small(bits: u32, exponent: u32, mantissa: u32, bias: i32) -> f32 {
    let sign = if bits >> (exponent + mantissa) & 1 != 0 { -1.0 } else { 1.0 };
    let e = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
    let m = (bits & ((1 << mantissa) - 1)) as f32 / (1u32 << mantissa) as f32;
    let magnitude = if e == 0 { m * ((1 - bias) as f32).exp2() } else { (1.0 + m) * ((e - bias) as f32).exp2() };
    sign * magnitude
}

/// e4m3: no infinity, NaN with all bits set.
pub fn e4m3(bits: u8) -> f32 {
    if bits & 0x7f == 0x7f { f32::NAN } else { small(u32::from(bits), 4, 3, 7) }
}

/// e5m2: IEEE-like.
pub fn e5m2(bits: u8) -> f32 {
    match (bits >> 2 & 31, bits & 3) {
        (31, 0) => f32::INFINITY.copysign(if bits >> 7 != 0 { -1.0 } else { 1.0 }),
        (31, _) => f32::NAN,
        _ => small(u32::from(bits), 5, 2, 15),
    }
}

/// e2m3, six bits.
pub fn e2m3(bits: u8) -> f32 {
    small(u32::from(bits), 2, 3, 1)
}

/// e3m2, six bits.
pub fn e3m2(bits: u8) -> f32 {
    small(u32::from(bits), 3, 2, 3)
}

/// e2m1, four bits.
pub fn e2m1(bits: u8) -> f32 {
    small(u32::from(bits), 2, 1, 1)
}

/// A power of two from a biased byte; 255 is NaN.
pub fn e8m0(byte: u8) -> f64 {
    // The exponent of an f64, whose bias is 1023.
    if byte == 255 { f64::NAN } else { f64::from_bits((u64::from(byte) + 1023 - 127) << 52) }
}

/// Tables of all values, made once.
#[derive(Debug)]
pub struct Tables {
    /// By matrix format code: e4m3, e5m2, e2m3, e3m2, e2m1.
    pub value: [[f32; 256]; 5],
}

/// The tables.
pub fn tables() -> &'static Tables {
    static TABLES: std::sync::OnceLock<Tables> = std::sync::OnceLock::new();
    TABLES.get_or_init(|| {
        let of = |f: fn(u8) -> f32| std::array::from_fn(|b| f(b as u8));
        Tables { value: [of(e4m3), of(e5m2), of(|b| e2m3(b & 63)), of(|b| e3m2(b & 63)), of(|b| e2m1(b & 15))] }
    })
}

/// The nearest representable code of a table (ties to the even code); magnitudes only, `codes` of them in order.
fn nearest(x: f64, codes: u8, value: impl Fn(u8) -> f64) -> u8 {
    let (mut low, mut high) = (0, codes - 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(middle) <= x { low = middle } else { high = middle }
    }
    let (below, above) = (x - value(low), value(high) - x);
    match below.partial_cmp(&above) {
        Some(std::cmp::Ordering::Less) => low,
        Some(std::cmp::Ordering::Greater) => high,
        _ => {
            if low % 2 == 0 {
                low
            } else {
                high
            }
        }
    }
}

/// f32 to e4m3, to nearest even; overflow gives NaN, or the largest value if `clamp`.
pub fn to_e4m3(x: f64, clamp: bool) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    // Halfway between 448 and the next step, 480, is 464; the tie goes to the even code, which is 448.
    if x.abs() > 464.0 {
        return sign | if clamp { 0x7e } else { 0x7f };
    }
    sign | nearest(x.abs().min(448.0), 0x7f, |c| f64::from(e4m3(c)))
}

/// f32 to e5m2, to nearest even; overflow, infinity included, gives infinity, or the largest value if `clamp` (manual 7.3).
pub fn to_e5m2(x: f64, clamp: bool) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    if x.abs() >= 61440.0 {
        return sign | if clamp { 0x7b } else { 0x7c };
    }
    sign | nearest(x.abs().min(57344.0), 0x7c, |c| f64::from(e5m2(c)))
}

/// f32 to e2m1, to nearest even; overflow and NaN give the largest value.
pub fn to_e2m1(x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 8 } else { 0 };
    if x.is_nan() || x.abs() >= 6.0 {
        return sign | 7;
    }
    sign | nearest(x.abs(), 8, |c| f64::from(e2m1(c)))
}

/// f32 to bf16 bits, to nearest even, NaN kept quiet.
#[inline(always)]
pub fn to_bf16(x: u32) -> u32 {
    if f32::from_bits(x).is_nan() {
        return x >> 16 | 0x40;
    }
    (x + 0x7fff + (x >> 16 & 1)) >> 16
}

/// f16 to f32, exactly.
pub fn f16_to_f32(bits: u16) -> f32 {
    match (bits >> 10 & 31, bits & 0x3ff) {
        (31, 0) => f32::INFINITY.copysign(if bits >> 15 != 0 { -1.0 } else { 1.0 }),
        (31, m) => f32::from_bits(u32::from(bits >> 15) << 31 | 0x7fc0_0000 | u32::from(m) << 13),
        _ => small(u32::from(bits), 5, 10, 15),
    }
}

/// f32 to f16 bits, to nearest even or towards zero.
pub fn f32_to_f16(x: f32, towards_zero: bool) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    if x.is_nan() {
        return sign | 0x7e00;
    }
    let a = f64::from(x.abs());
    if x.is_infinite() {
        return sign | 0x7c00;
    }
    let e = if a < (-14f64).exp2() { -14 } else { ((a.to_bits() >> 52) as i32) - 1023 };
    let steps = a / f64::from(e - 10).exp2();
    let whole = if towards_zero { steps.trunc() } else { steps.round_ties_even() } as u64;
    let bits = whole + (u64::from((e + 14) as u32) << 10);
    if bits >= 0x7c00 { sign | if towards_zero { 0x7bff } else { 0x7c00 } } else { sign | bits as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the OCP specifications.
    #[test]
    fn extremes() {
        assert_eq!((e4m3(0x7e), e4m3(1), e4m3(0xb8)), (448.0, 2f32.powi(-9), -1.0));
        assert_eq!((e5m2(0x7b), e5m2(1), e5m2(0xfc)), (57344.0, 2f32.powi(-16), f32::NEG_INFINITY));
        assert_eq!((e2m3(0x1f), e3m2(0x1f), e2m1(7), e2m1(9)), (7.5, 28.0, 6.0, -0.5));
        assert_eq!((e8m0(127), e8m0(0)), (1.0, 2f64.powi(-127)));
    }

    #[test]
    fn conversions_invert_and_round_to_even() {
        for c in 0..=255u8 {
            if !e4m3(c).is_nan() {
                assert_eq!(to_e4m3(f64::from(e4m3(c)), false), c);
            }
            if !e5m2(c).is_nan() {
                assert_eq!(to_e5m2(f64::from(e5m2(c)), false), c);
            }
        }
        assert_eq!((to_e4m3(464.0, false), to_e4m3(465.0, false), to_e4m3(1e9, true)), (0x7e, 0x7f, 0x7e));
        assert_eq!((to_e2m1(2.5), to_e2m1(3.5), to_e2m1(-0.25), to_e2m1(99.0)), (4, 6, 8, 7));
        for h in (0..=0xffffu16).filter(|h| h >> 10 & 31 != 31) {
            assert_eq!(f32_to_f16(f16_to_f32(h), false), h);
        }
        assert_eq!((f32_to_f16(65520.0, false), f32_to_f16(65520.0, true)), (0x7c00, 0x7bff));
    }
}
