//! Scalar memory: loads into scalar registers.

use super::def;
use crate::{
    isa::{Def, File, Inst, Sem},
    machine::{Cx, ScalarLoad},
};

/// Reads dwords and lands them at once, or queues them until a wait covers everything.
fn load(cx: &mut Cx, inst: &Inst, address: u64) {
    let address = (address & !3) as usize;
    let bytes = 4 * inst.d.width as usize;
    let Some(allocation) = cx.env.memory.find(address, bytes).cloned() else {
        let place = cx.env.memory.describe(address);
        cx.w.fail(format!("scalar load of {bytes} bytes at {address:#x}: out of bounds, {place}"), None);
        return;
    };
    if let Some(detail) = &mut cx.count.detail {
        detail.scalar(address as u64, bytes);
    }
    let mut op = ScalarLoad { d: inst.d.at(), data: Vec::new(), valid: Vec::new() };
    for i in 0..inst.d.width as usize {
        let at = address + 4 * i;
        // SAFETY: the whole range lies in one allocation, which `cx.env.memory` keeps alive.
        op.data.push(unsafe { (at as *const u32).read_unaligned() });
        op.valid.push(if !cx.env.check || allocation.written(at, 4) { u32::MAX } else { 0 });
    }
    if cx.env.check {
        cx.w.queues.mark_scalar(op.d, op.data.len(), true);
        cx.w.queues.scalar.push(op);
    } else {
        cx.w.s[op.d..op.d + op.data.len()].copy_from_slice(&op.data);
    }
}

fn offset(cx: &Cx, inst: &Inst) -> i64 {
    let scalar = if inst.s[1].file == File::None { 0 } else { i64::from(cx.w.s[inst.s[1].at()]) };
    scalar + i64::from(inst.f.offset)
}

fn load_plain(cx: &mut Cx, inst: &Inst) {
    let known = cx.require_scalar(&inst.s[0], "address") && cx.require_scalar(&inst.s[1], "address offset");
    if known {
        let base = cx.w.pair(inst.s[0].at());
        let address = base.wrapping_add_signed(offset(cx, inst));
        load(cx, inst, address);
    }
}

/// Through a buffer resource: dwords outside read zero.
fn load_buffer(cx: &mut Cx, inst: &Inst) {
    if !(cx.require_scalar(&inst.s[0], "resource") && cx.require_scalar(&inst.s[1], "address offset")) {
        return;
    }
    let base = cx.w.pair(inst.s[0].at()) & 0xffff_ffff_ffff;
    let records = i64::from(cx.w.s[inst.s[0].at() + 2]);
    let from = offset(cx, inst) & !3;
    if from + 4 * i64::from(inst.d.width) > records {
        cx.w.fail(format!("scalar buffer load past the resource's {records} bytes"), None);
        return;
    }
    load(cx, inst, base.wrapping_add_signed(from));
}

macro_rules! l {
    ($op:literal $name:literal $sig:literal $f:ident) => {
        def!($op, $name, $sig, ScalarMemory, Sem::X($f))
    };
}

/// SMEM.
pub static SMEM: &[Def] = &[
    l!(0 "s_load_dword" "D1A2" load_plain),
    l!(1 "s_load_dwordx2" "D2A2" load_plain),
    l!(2 "s_load_dwordx4" "D4A2" load_plain),
    l!(3 "s_load_dwordx8" "D8A2" load_plain),
    l!(4 "s_load_dwordx16" "DgA2" load_plain),
    l!(8 "s_buffer_load_dword" "D1A4" load_buffer),
    l!(9 "s_buffer_load_dwordx2" "D2A4" load_buffer),
    l!(10 "s_buffer_load_dwordx4" "D4A4" load_buffer),
    l!(11 "s_buffer_load_dwordx8" "D8A4" load_buffer),
    l!(12 "s_buffer_load_dwordx16" "DgA4" load_buffer),
    def!(32, "s_dcache_inv", "", ScalarMemory, Sem::X(|_, _| {})),
    def!(33, "s_dcache_wb", "", ScalarMemory, Sem::X(|_, _| {})),
];
