//! Scalar arithmetic with one source, compares, and forms with a 16-bit immediate.

use super::def;
use crate::{
    isa::{Def, Inst, Operand, Sem},
    machine::Cx,
};

type Result1 = (u64, Option<bool>);

const fn lo(x: u64) -> u32 {
    x as u32
}

fn first(x: u64, size: u32) -> Result1 {
    (if x == 0 { u64::from(u32::MAX) } else { u64::from(x.trailing_zeros().min(size)) }, None)
}

/// Leading bits equal to the sign, or all ones if there is no other bit.
fn sign_run(x: u64, size: u32) -> Result1 {
    let aligned = x << (64 - size);
    let different = if (aligned as i64) < 0 { !aligned } else { aligned };
    let run = different.leading_zeros();
    (if run >= size { u64::from(u32::MAX) } else { u64::from(run) }, None)
}

fn leading(x: u64, size: u32) -> Result1 {
    (if x == 0 { u64::from(u32::MAX) } else { u64::from((x << (64 - size)).leading_zeros()) }, None)
}

/// Writes EXEC from EXEC and a source; the destination receives the old EXEC.
fn save_exec(cx: &mut Cx, inst: &Inst, f: fn(u64, u64) -> u64) {
    let old = cx.w.exec();
    let source = crate::machine::scalar_source(cx.w, &inst.s[0]);
    if cx.env.check {
        // Only bits that decide whether a lane runs matter: those that the old mask lets through.
        let valid = cx.valid_mask(&inst.s[0]);
        let matters = f(0, old) ^ f(u64::MAX, old);
        if matters & !valid != 0 {
            cx.w.fail_at("EXEC from an uninitialised value", matters & !valid);
            return;
        }
    }
    let new = f(source, old);
    cx.w.set_pair(126, new);
    cx.w.set_pair(inst.d.at(), old);
    if inst.d.index != 126 {
        cx.set_valid_mask(&Operand::scalar(inst.d.index, 2), u64::MAX);
    }
    (cx.w.scc, cx.w.valid_scc) = (new != 0, true);
}

macro_rules! s {
    ($op:literal $name:literal $sig:literal |$a:ident, $c:pat_param| $e:expr) => {
        def!(
            $op,
            $name,
            $sig,
            Scalar,
            Sem::S1({
                fn f($a: u64, $c: bool) -> Result1 {
                    $e
                }
                f
            })
        )
    };
}
macro_rules! save {
    ($op:literal $name:literal |$s:ident, $e:ident| $f:expr) => {
        def!($op, $name, "D2A2", Scalar, Sem::X(|cx, inst| save_exec(cx, inst, |$s, $e| $f)))
    };
}
macro_rules! cmp {
    ($op:literal $name:literal $sig:literal |$a:ident, $b:ident| $e:expr) => {
        def!(
            $op,
            $name,
            $sig,
            Scalar,
            Sem::Sc({
                fn f($a: u64, $b: u64) -> bool {
                    $e
                }
                f
            })
        )
    };
}

fn bits32(r: u32) -> Result1 {
    (u64::from(r), Some(r != 0))
}

/// SOP1.
pub static SOP1: &[Def] = &[
    s!(0 "s_mov_b32" "D1A1" |a, _| (a, None)),
    s!(1 "s_mov_b64" "D2A2" |a, _| (a, None)),
    s!(4 "s_not_b32" "D1A1" |a, _| bits32(!lo(a))),
    s!(5 "s_not_b64" "D2A2" |a, _| (!a, Some(!a != 0))),
    s!(8 "s_brev_b32" "D1A1" |a, _| (u64::from(lo(a).reverse_bits()), None)),
    s!(9 "s_brev_b64" "D2A2" |a, _| (a.reverse_bits(), None)),
    s!(10 "s_bcnt0_i32_b32" "D1A1" |a, _| bits32(lo(a).count_zeros())),
    s!(11 "s_bcnt0_i32_b64" "D1A2" |a, _| bits32(a.count_zeros())),
    s!(12 "s_bcnt1_i32_b32" "D1A1" |a, _| bits32(lo(a).count_ones())),
    s!(13 "s_bcnt1_i32_b64" "D1A2" |a, _| bits32(a.count_ones())),
    s!(16 "s_ff1_i32_b32" "D1A1" |a, _| first(u64::from(lo(a)), 32)),
    s!(17 "s_ff1_i32_b64" "D1A2" |a, _| first(a, 64)),
    s!(18 "s_flbit_i32_b32" "D1A1" |a, _| leading(u64::from(lo(a)), 32)),
    s!(19 "s_flbit_i32_b64" "D1A2" |a, _| leading(a, 64)),
    s!(20 "s_flbit_i32" "D1A1" |a, _| sign_run(a, 32)),
    s!(21 "s_flbit_i32_i64" "D1A2" |a, _| sign_run(a, 64)),
    s!(22 "s_sext_i32_i8" "D1A1" |a, _| (u64::from(a as i8 as i32 as u32), None)),
    s!(23 "s_sext_i32_i16" "D1A1" |a, _| (u64::from(a as i16 as i32 as u32), None)),
    def!(24, "s_bitset0_b32", "D1A1", Scalar, Sem::X(|cx, inst| bit_set(cx, inst, false))),
    def!(26, "s_bitset1_b32", "D1A1", Scalar, Sem::X(|cx, inst| bit_set(cx, inst, true))),
    def!(
        28,
        "s_getpc_b64",
        "D2",
        Scalar,
        Sem::X(|cx, inst| {
            let next = u64::from(inst.address) + 4 * u64::from(inst.words);
            cx.w.set_pair(inst.d.at(), cx.env.kernel.code_address + next);
            cx.set_valid_mask(&inst.d, u64::MAX);
        })
    ),
    save!(32 "s_and_saveexec_b64" |s, e| s & e),
    save!(33 "s_or_saveexec_b64" |s, e| s | e),
    save!(34 "s_xor_saveexec_b64" |s, e| s ^ e),
    save!(35 "s_andn2_saveexec_b64" |s, e| s & !e),
    save!(36 "s_orn2_saveexec_b64" |s, e| s | !e),
    save!(51 "s_andn1_saveexec_b64" |s, e| !s & e),
    save!(52 "s_orn1_saveexec_b64" |s, e| !s | e),
    s!(48 "s_abs_i32" "D1A1" |a, _| bits32((lo(a) as i32).wrapping_abs() as u32)),
];

fn bit_set(cx: &mut Cx, inst: &Inst, to: bool) {
    let bit = 1 << (crate::machine::scalar_source(cx.w, &inst.s[0]) & 31);
    let register = &mut cx.w.s[inst.d.at()];
    *register = if to { *register | bit } else { *register & !bit };
}

/// SOPC.
pub static SOPC: &[Def] = &[
    cmp!(0 "s_cmp_eq_i32" "A1B1" |a, b| lo(a) == lo(b)),
    cmp!(1 "s_cmp_lg_i32" "A1B1" |a, b| lo(a) != lo(b)),
    cmp!(2 "s_cmp_gt_i32" "A1B1" |a, b| lo(a) as i32 > lo(b) as i32),
    cmp!(3 "s_cmp_ge_i32" "A1B1" |a, b| lo(a) as i32 >= lo(b) as i32),
    cmp!(4 "s_cmp_lt_i32" "A1B1" |a, b| (lo(a) as i32) < lo(b) as i32),
    cmp!(5 "s_cmp_le_i32" "A1B1" |a, b| lo(a) as i32 <= lo(b) as i32),
    cmp!(6 "s_cmp_eq_u32" "A1B1" |a, b| lo(a) == lo(b)),
    cmp!(7 "s_cmp_lg_u32" "A1B1" |a, b| lo(a) != lo(b)),
    cmp!(8 "s_cmp_gt_u32" "A1B1" |a, b| lo(a) > lo(b)),
    cmp!(9 "s_cmp_ge_u32" "A1B1" |a, b| lo(a) >= lo(b)),
    cmp!(10 "s_cmp_lt_u32" "A1B1" |a, b| lo(a) < lo(b)),
    cmp!(11 "s_cmp_le_u32" "A1B1" |a, b| lo(a) <= lo(b)),
    cmp!(12 "s_bitcmp0_b32" "A1B1" |a, b| lo(a) >> (b & 31) & 1 == 0),
    cmp!(13 "s_bitcmp1_b32" "A1B1" |a, b| lo(a) >> (b & 31) & 1 != 0),
    cmp!(14 "s_bitcmp0_b64" "A2B1" |a, b| a >> (b & 63) & 1 == 0),
    cmp!(15 "s_bitcmp1_b64" "A2B1" |a, b| a >> (b & 63) & 1 != 0),
    cmp!(18 "s_cmp_eq_u64" "A2B2" |a, b| a == b),
    cmp!(19 "s_cmp_lg_u64" "A2B2" |a, b| a != b),
];

/// A compare with an immediate, sign- or zero-extended.
fn compare_immediate(cx: &mut Cx, inst: &Inst, signed: bool, f: fn(i64, i64) -> bool) {
    let value = cx.w.s[inst.s[0].at()];
    let (a, b) = match signed {
        true => (i64::from(value as i32), i64::from(inst.f.imm as i16)),
        false => (i64::from(value), i64::from(inst.f.imm)),
    };
    cx.w.scc = f(a, b);
    cx.w.valid_scc = cx.valid(&inst.s[0]) != 0;
}

macro_rules! cmpk {
    ($op:literal $name:literal $signed:literal |$a:ident, $b:ident| $e:expr) => {
        def!($op, $name, "A1", Scalar, Sem::X(|cx, inst| compare_immediate(cx, inst, $signed, |$a, $b| $e)))
    };
}

/// Position and width of a hardware register field, as packed in the immediate.
fn hardware_register(inst: &Inst) -> (u16, u32, u32) {
    let imm = inst.f.imm;
    (imm & 0x3f, u32::from(imm >> 6 & 31), u32::from(imm >> 11) + 1)
}

/// Writes a field of MODE; other hardware registers are refused.
fn set_register(cx: &mut Cx, inst: &Inst, value: u32) {
    let (register, offset, width) = hardware_register(inst);
    if register != 1 {
        cx.w.fail(format!("writes hardware register {register}"), None);
        return;
    }
    let mask = (((1u64 << width) - 1) << offset) as u32;
    cx.w.mode = cx.w.mode & !mask | value << offset & mask;
    // Round to nearest even and denormals kept for f32: the only arithmetic that is modelled.
    if cx.w.mode & 0xf != 0 || cx.w.mode >> 4 & 3 != 3 {
        cx.w.fail(format!("MODE {:#x}: only rounding to nearest with f32 denormals is modelled", cx.w.mode), None);
    }
}

/// SOPK.
pub static SOPK: &[Def] = &[
    def!(
        0,
        "s_movk_i32",
        "D1",
        Scalar,
        Sem::X(|cx, inst| {
            cx.w.set_valid(inst.d.at(), inst.f.imm as i16 as i32 as u32);
        })
    ),
    cmpk!(2 "s_cmpk_eq_i32" true |a, b| a == b),
    cmpk!(3 "s_cmpk_lg_i32" true |a, b| a != b),
    cmpk!(4 "s_cmpk_gt_i32" true |a, b| a > b),
    cmpk!(5 "s_cmpk_ge_i32" true |a, b| a >= b),
    cmpk!(6 "s_cmpk_lt_i32" true |a, b| a < b),
    cmpk!(7 "s_cmpk_le_i32" true |a, b| a <= b),
    cmpk!(8 "s_cmpk_eq_u32" false |a, b| a == b),
    cmpk!(9 "s_cmpk_lg_u32" false |a, b| a != b),
    cmpk!(10 "s_cmpk_gt_u32" false |a, b| a > b),
    cmpk!(11 "s_cmpk_ge_u32" false |a, b| a >= b),
    cmpk!(12 "s_cmpk_lt_u32" false |a, b| a < b),
    cmpk!(13 "s_cmpk_le_u32" false |a, b| a <= b),
    def!(
        14,
        "s_addk_i32",
        "D1",
        Scalar,
        Sem::X(|cx, inst| {
            let (r, overflow) = (cx.w.s[inst.d.at()] as i32).overflowing_add(i32::from(inst.f.imm as i16));
            cx.w.s[inst.d.at()] = r as u32;
            (cx.w.scc, cx.w.valid_scc) = (overflow, cx.valid(&inst.d) != 0);
        })
    ),
    def!(
        15,
        "s_mulk_i32",
        "D1",
        Scalar,
        Sem::X(|cx, inst| {
            let register = &mut cx.w.s[inst.d.at()];
            *register = (*register as i32).wrapping_mul(i32::from(inst.f.imm as i16)) as u32;
        })
    ),
    def!(
        17,
        "s_getreg_b32",
        "D1",
        Scalar,
        Sem::X(|cx, inst| {
            let (register, offset, width) = hardware_register(inst);
            if register != 1 {
                cx.w.fail(format!("reads hardware register {register}"), None);
                return;
            }
            let value = u64::from(cx.w.mode) >> offset & ((1 << width) - 1);
            cx.w.set_valid(inst.d.at(), value as u32);
        })
    ),
    def!(
        18,
        "s_setreg_b32",
        "A1",
        Scalar,
        Sem::X(|cx, inst| {
            if cx.require_scalar(&inst.s[0], "value for a hardware register") {
                let value = cx.w.s[inst.s[0].at()];
                set_register(cx, inst, value);
            }
        })
    ),
    def!(20, "s_setreg_imm32_b32", "A1", Scalar, Sem::X(|cx, inst| set_register(cx, inst, inst.s[0].value))),
];
