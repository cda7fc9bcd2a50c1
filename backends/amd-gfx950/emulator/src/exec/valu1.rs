//! Vector arithmetic with one 32-bit source.

use super::def;
use crate::{
    isa::{Def, Sem},
    lanes::lane,
};

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

/// Transcendental instructions neither take nor give f32 denormals.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

fn transcendental(x: u32, g: fn(f64) -> f64) -> u32 {
    flush(g(f64::from(flush(f(x)))) as f32).to_bits()
}

/// Round to nearest, ties to even.
fn rndne(x: f32) -> f32 {
    x.round_ties_even()
}

fn frexp_exp(x: f32) -> u32 {
    match x {
        x if x == 0.0 || !x.is_finite() => 0,
        x => (f64::from(x).to_bits() >> 52 & 0x7ff) as u32 as i32 as u32,
    }
}

/// Exponent e with x = m·2^e, 0.5 ≤ |m| < 1; every f32 is a normal f64.
fn frexp_exp_i32(x: u32) -> u32 {
    let biased = frexp_exp(f(x));
    if biased == 0 { 0 } else { (biased as i32 - 1022) as u32 }
}

fn frexp_mant(x: u32) -> u32 {
    let v = f(x);
    if v == 0.0 || !v.is_finite() {
        return x;
    }
    let bits = f64::from(v).to_bits() & !(0x7ff << 52) | 1022 << 52;
    (f64::from_bits(bits) as f32).to_bits()
}

fn ffbh_i32(x: u32) -> u32 {
    let different = if (x as i32) < 0 { !x } else { x };
    if different == 0 { u32::MAX } else { different.leading_zeros() }
}

macro_rules! v {
    ($op:literal $name:literal |$a:ident| $e:expr) => {
        def!($op, $name, "D1A1", Vector, Sem::V1(lane!(|$a| $e)))
    };
}
macro_rules! t {
    ($op:literal $name:literal |$a:ident| $e:expr) => {
        def!($op, $name, "D1A1", Transcendental, Sem::V1(lane!(|x| transcendental(x, |$a| $e))))
    };
}

/// VOP1 on 32-bit lanes.
pub static VOP1: &[Def] = &[
    def!(0, "v_nop", "", Vector, Sem::X(|_, _| {})),
    v!(1 "v_mov_b32" |a| a),
    v!(5 "v_cvt_f32_i32" |a| (a as i32 as f32).to_bits()),
    v!(6 "v_cvt_f32_u32" |a| (a as f32).to_bits()),
    // Rust's casts saturate and send NaN to zero, as the instructions do.
    v!(7 "v_cvt_u32_f32" |a| f(a) as u32),
    v!(8 "v_cvt_i32_f32" |a| f(a) as i32 as u32),
    v!(12 "v_cvt_rpi_i32_f32" |a| (f(a) + 0.5).floor() as i32 as u32),
    v!(13 "v_cvt_flr_i32_f32" |a| f(a).floor() as i32 as u32),
    v!(17 "v_cvt_f32_ubyte0" |a| ((a & 255) as f32).to_bits()),
    v!(18 "v_cvt_f32_ubyte1" |a| ((a >> 8 & 255) as f32).to_bits()),
    v!(19 "v_cvt_f32_ubyte2" |a| ((a >> 16 & 255) as f32).to_bits()),
    v!(20 "v_cvt_f32_ubyte3" |a| ((a >> 24) as f32).to_bits()),
    v!(27 "v_fract_f32" |a| (f(a) - f(a).floor()).min(f32::from_bits(0x3f7f_ffff)).to_bits()),
    v!(28 "v_trunc_f32" |a| f(a).trunc().to_bits()),
    v!(29 "v_ceil_f32" |a| f(a).ceil().to_bits()),
    v!(30 "v_rndne_f32" |a| rndne(f(a)).to_bits()),
    v!(31 "v_floor_f32" |a| f(a).floor().to_bits()),
    t!(32 "v_exp_f32" |a| a.exp2()),
    t!(33 "v_log_f32" |a| a.log2()),
    t!(34 "v_rcp_f32" |a| 1.0 / a),
    t!(35 "v_rcp_iflag_f32" |a| 1.0 / a),
    t!(36 "v_rsq_f32" |a| 1.0 / a.sqrt()),
    t!(39 "v_sqrt_f32" |a| a.sqrt()),
    // Sources of sine and cosine are in turns.
    t!(41 "v_sin_f32" |a| (a.fract() * std::f64::consts::TAU).sin()),
    t!(42 "v_cos_f32" |a| (a.fract() * std::f64::consts::TAU).cos()),
    v!(43 "v_not_b32" |a| !a),
    v!(44 "v_bfrev_b32" |a| a.reverse_bits()),
    v!(45 "v_ffbh_u32" |a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
    v!(46 "v_ffbl_b32" |a| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
    v!(47 "v_ffbh_i32" |a| ffbh_i32(a)),
    v!(51 "v_frexp_exp_i32_f32" |a| frexp_exp_i32(a)),
    v!(52 "v_frexp_mant_f32" |a| frexp_mant(a)),
    v!(82 "v_accvgpr_mov_b32" |a| a),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, x: u32) -> u32 {
        let def = VOP1.iter().find(|d| d.name == name).unwrap();
        let Sem::V1(g) = def.sem else { panic!("{name}") };
        let mut out = [0; 64];
        g(&[x; 64], &mut out);
        assert!(out.iter().all(|o| *o == out[0]));
        out[0]
    }

    #[test]
    fn conversions_saturate() {
        assert_eq!(run("v_cvt_u32_f32", (-1f32).to_bits()), 0);
        assert_eq!(run("v_cvt_u32_f32", 1e20f32.to_bits()), u32::MAX);
        assert_eq!(run("v_cvt_i32_f32", f32::NAN.to_bits()), 0);
        assert_eq!(run("v_cvt_i32_f32", (-1e20f32).to_bits()), 0x8000_0000);
    }

    #[test]
    fn mantissa_times_exponent_is_the_value() {
        for x in [1.0f32, -3.75, 1e-40, 6e37, 0.5, f32::MIN_POSITIVE] {
            let (m, e) =
                (f32::from_bits(run("v_frexp_mant_f32", x.to_bits())), run("v_frexp_exp_i32_f32", x.to_bits()) as i32);
            assert!((0.5..1.0).contains(&m.abs()), "{x}: {m}");
            assert_eq!(f64::from(m) * f64::from(e).exp2(), f64::from(x));
        }
    }

    #[test]
    fn transcendentals_flush_denormals() {
        assert_eq!(run("v_exp_f32", (-130f32).to_bits()), 0);
        assert_eq!(run("v_rcp_f32", 1e-40f32.to_bits()), f32::INFINITY.to_bits());
        assert_eq!(run("v_exp_f32", 3f32.to_bits()), 8f32.to_bits());
    }
}
