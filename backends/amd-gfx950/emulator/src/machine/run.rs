//! Runs one wave for a while.
//!
//! Decision: plain arithmetic is dispatched here, by kind of meaning, so that fetching sources, modifiers, forms and
//! initialised-ness are written once; everything else is a call with the whole context.

use super::{
    context::{Cx, fetch, scalar64},
    wave::Signal,
};
use crate::{
    isa::{File, Form, Inst, L, Operand, Sem},
    lanes,
};

/// Runs at most `budget` instructions; says why it stopped.
pub fn run(cx: &mut Cx, budget: u32) -> Signal {
    let code = &cx.env.kernel.code;
    let check = cx.env.check;
    for _ in 0..budget {
        let Some(inst) = code.get(cx.w.pc) else {
            cx.w.fail("ran past the end of the code", None);
            return Signal::Fault;
        };
        cx.w.pc += 1;
        cx.w.steps += 1;
        cx.count.count(inst.def.class);
        if !check || cx.check_outstanding(inst) {
            step(cx, inst);
        }
        if cx.w.signal != Signal::Run {
            let signal = cx.w.signal;
            if signal != Signal::Fault && signal != Signal::End {
                cx.w.signal = Signal::Run;
            }
            return signal;
        }
    }
    Signal::Run
}

#[inline(always)]
fn step(cx: &mut Cx, inst: &Inst) {
    match inst.def.sem {
        Sem::X(f) => f(cx, inst),
        Sem::S1(f) => {
            let (r, scc) = f(scalar64(cx.w, &inst.s[0]), cx.w.scc);
            scalar(cx, inst, r, scc);
        }
        Sem::S2(f) => {
            let (r, scc) = f(scalar64(cx.w, &inst.s[0]), scalar64(cx.w, &inst.s[1]), cx.w.scc);
            scalar(cx, inst, r, scc);
        }
        Sem::Sc(f) => {
            let scc = f(scalar64(cx.w, &inst.s[0]), scalar64(cx.w, &inst.s[1]));
            if cx.env.check {
                cx.w.valid_scc = cx.valid(&inst.s[0]) & cx.valid(&inst.s[1]) == u64::MAX;
            }
            cx.w.scc = scc;
        }
        Sem::V1(_) | Sem::V2(_) | Sem::V3(_) if inst.form == Form::Plain => {
            vector(cx, inst);
            if cx.env.check {
                cx.spread_valid(inst);
            }
        }
        Sem::V1(_) | Sem::V2(_) | Sem::V3(_) => formed(cx, inst),
        Sem::C(f) => compare(cx, inst, f),
        Sem::Cw(f) => {
            let is_f64 = inst.def.is_f64();
            let mask = f(&cx.wide(&inst.s[0], is_f64), &cx.wide(&inst.s[1], is_f64)) & cx.w.exec();
            cx.spread_valid(inst);
            cx.w.set_pair(inst.d.at(), mask);
        }
        Sem::W3(f) => {
            let is_f64 = inst.def.is_f64();
            let [a, b, c] = [0, 1, 2].map(|i| cx.wide(&inst.s[i], is_f64));
            let mut out = [0; 64];
            f(&a, &b, &c, &mut out);
            cx.spread_valid(inst);
            cx.write_wide(&inst.d, &out);
        }
    }
}

/// Writes a scalar result.
#[inline(always)]
fn scalar(cx: &mut Cx, inst: &Inst, value: u64, scc: Option<bool>) {
    if cx.env.check {
        scalar_validity(cx, inst, scc.is_some());
    }
    let d = &inst.d;
    cx.w.s[d.at()] = value as u32;
    if d.width == 2 {
        cx.w.s[d.at() + 1] = (value >> 32) as u32;
    }
    if let Some(scc) = scc {
        cx.w.scc = scc;
    }
}

/// Bit by bit for moves and logic, so that masks keep the lanes that are known; all or nothing for the rest.
fn scalar_validity(cx: &mut Cx, inst: &Inst, writes_scc: bool) {
    let bits = |cx: &Cx, o: &Operand| match (o.file, o.width) {
        (File::Scalar, 2) => cx.valid_mask(o),
        (File::Scalar, _) => u64::from(cx.w.valid_s[o.at()]) | 0xffff_ffff << 32,
        (File::Scc, _) if !cx.w.valid_scc => 0,
        _ => u64::MAX,
    };
    let (a, b) = (&inst.s[0], &inst.s[1]);
    let (va, vb) = (bits(cx, a), bits(cx, b));
    let (xa, xb) = (scalar64(cx.w, a), scalar64(cx.w, b));
    let name = inst.def.name;
    let known = match name {
        n if n.starts_with("s_and_b") => va & vb | va & !xa | vb & !xb,
        n if n.starts_with("s_or_b") => va & vb | va & xa | vb & xb,
        n if n.starts_with("s_andn2_b") => va & vb | va & !xa | vb & xb,
        n if n.starts_with("s_orn2_b") => va & vb | va & xa | vb & !xb,
        n if n.starts_with("s_xor_b")
            || n.starts_with("s_mov_b")
            || n.starts_with("s_not_b")
            || n.starts_with("s_xnor") =>
        {
            va & vb
        }
        n if n.starts_with("s_cselect") => {
            let chosen = if cx.w.scc { va } else { vb };
            if cx.w.valid_scc { chosen } else { 0 }
        }
        n => {
            let carries = n.starts_with("s_addc") || n.starts_with("s_subb");
            if va & vb == u64::MAX && (!carries || cx.w.valid_scc) { u64::MAX } else { 0 }
        }
    };
    if inst.d.index == 126 || inst.d.index == 127 {
        // Bits that are off in the old mask and stay off do not matter.
        if known != u64::MAX && inst.d.width == 2 {
            cx.w.fail_at("EXEC from an uninitialised value", !known);
        }
    }
    cx.set_valid_mask(&inst.d, known);
    if writes_scc {
        let full = if inst.d.width == 2 { u64::MAX } else { 0xffff_ffff };
        cx.w.valid_scc = known & full == full;
    }
}

#[inline(always)]
fn vector(cx: &mut Cx, inst: &Inst) {
    let (w, s) = (&mut *cx.w, &mut *cx.scratch);
    match inst.def.sem {
        Sem::V1(f) => f(fetch(w, &inst.s[0], &mut s.a), &mut s.out),
        Sem::V2(f) => f(fetch(w, &inst.s[0], &mut s.a), fetch(w, &inst.s[1], &mut s.b), &mut s.out),
        Sem::V3(f) => f(
            fetch(w, &inst.s[0], &mut s.a),
            fetch(w, &inst.s[1], &mut s.b),
            fetch(w, &inst.s[2], &mut s.c),
            &mut s.out,
        ),
        _ => {}
    }
    if inst.f.omod != 0 || inst.f.clamp {
        if inst.def.name.ends_with("_u32") {
            saturate(inst, fetch(w, &inst.s[0], &mut s.a), fetch(w, &inst.s[1], &mut s.b), &mut s.out);
        } else {
            output_modifiers(inst, &mut s.out);
        }
    }
    let exec = w.exec();
    lanes::merge(&mut w.v[inst.d.at()], &s.out, exec);
}

/// Clamped sums and differences of unsigned integers: the largest number where they would wrap upwards, 0 downwards.
fn saturate(inst: &Inst, a: &L, b: &L, out: &mut L) {
    for (lane, x) in out.iter_mut().enumerate() {
        *x = match inst.def.name {
            "v_add_u32" => a[lane].saturating_add(b[lane]),
            "v_sub_u32" => a[lane].saturating_sub(b[lane]),
            name => {
                assert_eq!(name, "v_subrev_u32", "the decoder lets no other clamped integer through");
                b[lane].saturating_sub(a[lane])
            }
        };
    }
}

/// Multiplies by 2, 4 or 1/2, then clamps to 0..1; float results only.
fn output_modifiers(inst: &Inst, out: &mut L) {
    let factor = [1.0, 2.0, 4.0, 0.5][inst.f.omod as usize];
    for x in out {
        let mut v = f32::from_bits(*x) * factor;
        if inst.f.clamp {
            v = if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) };
        }
        *x = v.to_bits();
    }
}

fn compare(cx: &mut Cx, inst: &Inst, f: fn(&L, &L) -> u64) {
    let mask = if inst.form == Form::Plain {
        let (w, s) = (&*cx.w, &mut *cx.scratch);
        f(fetch(w, &inst.s[0], &mut s.a), fetch(w, &inst.s[1], &mut s.b))
    } else {
        let float = inst.def.name.ends_with("_f32") || inst.def.name.ends_with("_f16");
        f(&selected(cx, &inst.s[0], float), &selected(cx, &inst.s[1], float))
    };
    cx.spread_valid(inst);
    cx.w.set_pair(inst.d.at(), mask & cx.w.exec());
}

/// A source through its sub-dword selection, then sign extension or float modifiers.
pub fn selected(cx: &Cx, o: &Operand, float: bool) -> L {
    let plain = Operand { neg: false, abs: false, ..*o };
    let mut out = cx.lanes(&plain);
    let (shift, bits) = match o.sel {
        sel @ 0..=3 => (8 * u32::from(sel), 8),
        sel @ 4..=5 => (16 * u32::from(sel - 4), 16),
        _ => (0, 32),
    };
    for x in &mut out {
        let spare = 32 - bits;
        let raised = *x >> shift << spare;
        *x = if o.sext { (raised as i32 >> spare) as u32 } else { raised >> spare };
        if float {
            let sign = 1 << (bits - 1);
            if o.abs {
                *x &= !sign;
            }
            if o.neg {
                *x ^= sign;
            }
        }
    }
    out
}

/// Sub-dword and cross-lane forms.
fn formed(cx: &mut Cx, inst: &Inst) {
    let old = cx.w.v[inst.d.at()];
    let mut out = [0; 64];
    let exec = cx.w.exec();
    match inst.form {
        Form::Sdwa { dst_sel, dst_unused } => {
            let sources = [0, 1, 2].map(|i| selected(cx, &inst.s[i], true));
            apply(inst, &sources, &mut out);
            if inst.f.omod != 0 || inst.f.clamp {
                output_modifiers(inst, &mut out);
            }
            place(dst_sel, dst_unused, &old, &mut out);
            cx.spread_valid(inst);
            cx.write(inst.d.at(), &out);
        }
        Form::Dpp { ctrl, row_mask, bank_mask, bound_ctrl } => {
            let from: [Option<usize>; 64] = std::array::from_fn(|l| dpp_source(ctrl, l));
            let taken = lanes::mask(|l| from[l].is_some_and(|f| exec >> f & 1 != 0));
            let source = cx.lanes(&inst.s[0]);
            let known = cx.valid(&inst.s[0]);
            let mut sources = [source, cx.lanes(&inst.s[1]), cx.lanes(&inst.s[2])];
            // A lane without a source, or whose source is inactive, reads zero if it writes at all.
            sources[0] = std::array::from_fn(|l| if taken >> l & 1 != 0 { source[from[l].unwrap_or(l)] } else { 0 });
            if inst.s[0].modified() {
                // Modifiers were applied before the move; a zero from outside gets them too.
                for l in lanes::of(!taken) {
                    sources[0][l] = if inst.s[0].neg { 0x8000_0000 } else { 0 };
                }
            }
            apply(inst, &sources, &mut out);
            let enabled = lanes::mask(|l| row_mask >> (l / 16) & 1 != 0 && bank_mask >> (l % 16 / 4) & 1 != 0);
            let write = exec & enabled & if bound_ctrl { u64::MAX } else { taken };
            if cx.env.check {
                let moved = lanes::mask(|l| taken >> l & 1 == 0 || known >> from[l].unwrap_or(l) & 1 != 0);
                let valid = moved & cx.valid(&inst.s[1]) & cx.valid(&inst.s[2]);
                let lanes = &mut cx.w.valid_v[inst.d.at()];
                *lanes = *lanes & !write | valid & write;
            }
            lanes::merge(&mut cx.w.v[inst.d.at()], &out, write);
        }
        Form::Plain => {}
    }
}

fn apply(inst: &Inst, s: &[L; 3], out: &mut L) {
    match inst.def.sem {
        Sem::V1(f) => f(&s[0], out),
        Sem::V2(f) => f(&s[0], &s[1], out),
        Sem::V3(f) => f(&s[0], &s[1], &s[2], out),
        _ => {}
    }
}

/// Puts a narrow result into its part of the destination.
pub fn place(dst_sel: u8, dst_unused: u8, old: &L, out: &mut L) {
    let (shift, bits) = match dst_sel {
        sel @ 0..=3 => (8 * u32::from(sel), 8),
        sel @ 4..=5 => (16 * u32::from(sel - 4), 16),
        _ => return,
    };
    let mask = ((1u32 << bits) - 1) << shift;
    for (x, old) in out.iter_mut().zip(old) {
        let value = *x << shift & mask;
        *x = match dst_unused {
            0 => value,
            1 => {
                let signed = ((*x << (32 - bits)) as i32 >> (32 - bits)) as u32;
                signed << shift
            }
            _ => value | old & !mask,
        };
    }
}

/// The lane that lane `l` reads, `None` beyond the edge of its row or wave.
fn dpp_source(ctrl: u16, l: usize) -> Option<usize> {
    let (row, at, n) = (l & !15, l & 15, (ctrl & 15) as usize);
    match ctrl {
        0..=0xff => Some(l & !3 | (ctrl >> (2 * (l & 3)) & 3) as usize),
        0x101..=0x10f => (at + n < 16).then_some(l + n),
        0x111..=0x11f => (at >= n).then(|| l - n),
        0x121..=0x12f => Some(row | (at + 16 - n) & 15),
        0x130 => (l < 63).then_some(l + 1),
        0x134 => Some((l + 1) & 63),
        0x138 => l.checked_sub(1),
        0x13c => Some((l + 63) & 63),
        0x140 => Some(row | (15 - at)),
        0x141 => Some(l & !7 | (7 - (l & 7))),
        0x142 => (l > 15).then(|| row - 1),
        0x143 => (l > 31).then_some(31),
        _ => Some(row | n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_lane_sources() {
        let of = |ctrl, l| dpp_source(ctrl, l);
        assert_eq!((of(0b01_00_11_10, 4), of(0x111, 16), of(0x111, 17)), (Some(6), None, Some(16)));
        assert_eq!((of(0x101, 15), of(0x121, 16), of(0x140, 18), of(0x141, 9)), (None, Some(31), Some(29), Some(14)));
        assert_eq!((of(0x142, 15), of(0x142, 20), of(0x143, 40), of(0x153, 40)), (None, Some(15), Some(31), Some(35)));
    }

    #[test]
    fn narrow_results_go_to_their_place() {
        let (old, value) = ([0x1111_2222; 64], 0x80u32);
        let run = |sel, unused| {
            let mut out = [value; 64];
            place(sel, unused, &old, &mut out);
            out[0]
        };
        assert_eq!((run(1, 0), run(1, 2), run(5, 2), run(6, 0)), (0x8000, 0x1111_8022, 0x0080_2222, 0x80));
        assert_eq!(run(2, 1), 0xff80_0000);
    }
}
