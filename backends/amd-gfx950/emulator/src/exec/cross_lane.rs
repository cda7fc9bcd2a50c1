//! Data that moves between lanes: single lanes to and from scalars, swaps of rows. (DPP is a form of other instructions and
//! lives with their execution.)

use super::def;
use crate::{
    isa::{Def, Inst, Sem},
    lanes,
    machine::Cx,
};

/// The first active lane, or lane 0 if none is.
fn first_lane(cx: &Cx) -> usize {
    let exec = cx.w.exec();
    if exec == 0 { 0 } else { exec.trailing_zeros() as usize }
}

fn read(cx: &mut Cx, inst: &Inst, lane: usize) {
    let o = &inst.s[0];
    let (value, valid) = (cx.lanes(o)[lane], cx.valid(o) >> lane & 1 != 0);
    cx.w.s[inst.d.at()] = value;
    cx.w.valid_s[inst.d.at()] = if valid { u32::MAX } else { 0 };
    if inst.d.index == 126 || inst.d.index == 127 {
        cx.w.fail("EXEC from a lane", None);
    }
}

fn lane_of(cx: &mut Cx, inst: &Inst) -> Option<usize> {
    let fine = cx.require_scalar(&inst.s[1], "lane number");
    fine.then(|| crate::machine::scalar_source(cx.w, &inst.s[1]) as usize & 63)
}

fn write_lane(cx: &mut Cx, inst: &Inst) {
    let Some(lane) = lane_of(cx, inst) else { return };
    let valid = cx.valid(&inst.s[0]) != 0;
    let value = crate::machine::scalar_source(cx.w, &inst.s[0]) as u32;
    cx.w.v[inst.d.at()][lane] = value;
    let lanes = &mut cx.w.valid_v[inst.d.at()];
    *lanes = *lanes & !(1 << lane) | u64::from(valid) << lane;
}

/// Exchanges `rows` lanes of one register with the neighbouring lanes of another, whatever EXEC says about other lanes:
/// compilers run it with all lanes active, and anything else is refused.
fn swap_rows(cx: &mut Cx, inst: &Inst, rows: usize) {
    if cx.w.exec() != u64::MAX {
        cx.w.fail_at("a row swap while some lanes are inactive", !cx.w.exec());
        return;
    }
    let (d, s) = (inst.d.at(), inst.s[0].at());
    let (mut x, mut y) = (cx.w.v[d], cx.w.v[s]);
    let (mut vx, mut vy) = (cx.w.valid_v[d], cx.w.valid_v[s]);
    for l in (0..64).filter(|l| l & rows == 0) {
        std::mem::swap(&mut x[l + rows], &mut y[l]);
        let (upper, lower) = (vx >> (l + rows) & 1, vy >> l & 1);
        vx = vx & !(1 << (l + rows)) | lower << (l + rows);
        vy = vy & !(1 << l) | upper << l;
    }
    (cx.w.v[d], cx.w.v[s]) = (x, y);
    (cx.w.valid_v[d], cx.w.valid_v[s]) = (vx, vy);
}

fn swap(cx: &mut Cx, inst: &Inst) {
    let (d, s) = (inst.d.at(), inst.s[0].at());
    let (x, y, exec) = (cx.w.v[d], cx.w.v[s], cx.w.exec());
    lanes::merge(&mut cx.w.v[d], &y, exec);
    lanes::merge(&mut cx.w.v[s], &x, exec);
    let (vx, vy) = (cx.w.valid_v[d], cx.w.valid_v[s]);
    cx.w.valid_v[d] = vx & !exec | vy & exec;
    cx.w.valid_v[s] = vy & !exec | vx & exec;
}

/// VOP1.
pub static VOP1: &[Def] = &[
    def!(2, "v_readfirstlane_b32", "S1A1", Vector, Sem::X(|cx, inst| read(cx, inst, first_lane(cx)))),
    def!(81, "v_swap_b32", "D1A1", Vector, Sem::X(swap)),
    def!(89, "v_permlane16_swap_b32", "D1A1", Vector, Sem::X(|cx, inst| swap_rows(cx, inst, 16))),
    def!(90, "v_permlane32_swap_b32", "D1A1", Vector, Sem::X(|cx, inst| swap_rows(cx, inst, 32))),
];

/// VOP3.
pub static VOP3: &[Def] = &[
    def!(
        649,
        "v_readlane_b32",
        "S1A1B1",
        Vector,
        Sem::X(|cx, inst| {
            if let Some(lane) = lane_of(cx, inst) {
                read(cx, inst, lane);
            }
        })
    ),
    def!(650, "v_writelane_b32", "D1A1B1", Vector, Sem::X(write_lane)),
];
