//! Branches, waits, barriers, the end.

use super::def;
use crate::{
    isa::{Def, Inst, Sem},
    machine::{Cx, Signal},
};

fn jump(cx: &mut Cx, inst: &Inst, taken: bool) {
    if taken {
        cx.w.pc = inst.target as usize;
    }
}

/// Branches on scc must not hang on a value that nobody wrote.
fn on_scc(cx: &mut Cx, inst: &Inst, want: bool) {
    if cx.env.check && !cx.w.valid_scc {
        cx.w.fail("branch on an uninitialised scc", None);
        return;
    }
    jump(cx, inst, cx.w.scc == want);
}

fn on_vcc(cx: &mut Cx, inst: &Inst, want_zero: bool) {
    let vcc = cx.w.pair(106);
    if cx.env.check {
        let valid = u64::from(cx.w.valid_s[106]) | u64::from(cx.w.valid_s[107]) << 32;
        // Known to be non-zero is enough.
        if vcc & valid == 0 && valid != u64::MAX {
            cx.w.fail_at("branch on an uninitialised vcc", !valid);
            return;
        }
    }
    jump(cx, inst, (vcc == 0) == want_zero);
}

/// Fields of `s_waitcnt`: vector memory and LDS/scalar counts. The maximum is a wait too, though mostly for nothing: of 64 loads in
/// a row the compiler knows the oldest to be there at `vmcnt(63)`, the most that the counter holds.
fn wait(cx: &mut Cx, inst: &Inst) {
    let imm = usize::from(inst.f.imm);
    let (vector, lds) = (imm & 0xf | (imm >> 14 & 3) << 4, imm >> 8 & 0xf);
    cx.land_vector(vector);
    cx.land_lds(lds);
}

macro_rules! p {
    ($op:literal $name:literal $class:ident |$cx:pat_param, $i:pat_param| $e:expr) => {
        def!($op, $name, "", $class, Sem::X(|$cx, $i| $e))
    };
}

/// SOPP.
pub static SOPP: &[Def] = &[
    p!(0 "s_nop" Wait |_, _| {}),
    p!(1 "s_endpgm" Wait |cx, _| {
        cx.land_vector(0);
        cx.land_lds(0);
        if cx.w.signal == Signal::Run {
            cx.w.signal = Signal::End;
        }
    }),
    p!(2 "s_branch" Branch |cx, i| jump(cx, i, true)),
    p!(4 "s_cbranch_scc0" Branch |cx, i| on_scc(cx, i, false)),
    p!(5 "s_cbranch_scc1" Branch |cx, i| on_scc(cx, i, true)),
    p!(6 "s_cbranch_vccz" Branch |cx, i| on_vcc(cx, i, true)),
    p!(7 "s_cbranch_vccnz" Branch |cx, i| on_vcc(cx, i, false)),
    p!(8 "s_cbranch_execz" Branch |cx, i| jump(cx, i, cx.w.exec() == 0)),
    p!(9 "s_cbranch_execnz" Branch |cx, i| jump(cx, i, cx.w.exec() != 0)),
    p!(10 "s_barrier" Wait |cx, _| cx.w.signal = Signal::Barrier),
    p!(12 "s_waitcnt" Wait |cx, i| wait(cx, i)),
    p!(14 "s_sleep" Wait |cx, _| cx.w.signal = Signal::Yield),
    p!(15 "s_setprio" Wait |_, _| {}),
    p!(19 "s_icache_inv" Wait |_, _| {}),
];
