//! Buffers: bounds-checked loads, stores, loads into LDS and atomics through a resource; cache maintenance.
//!
//! Outside the resource loads give zero and stores do nothing, as on hardware: compilers mask lanes that way. What lies
//! inside the resource but outside the allocation is an error here, because a resource's size is often a constant.

use super::{address, atomic, def, transfer};
use crate::{
    isa::{Def, Inst, Sem},
    machine::Cx,
};

/// Loads dword by dword where the resource ends inside an access.
fn gather(cx: &mut Cx, inst: &Inst, kind: transfer::Kind) -> Option<transfer::Data> {
    let exec = cx.w.exec();
    let buffer = address::buffer(cx, inst, kind.bytes)?;
    let whole = buffer.inside.iter().fold(exec, |all, i| all & i);
    let mut data = transfer::gather(cx, &buffer.address, whole, kind.bytes)?;
    for (i, inside) in buffer.inside.iter().enumerate() {
        let partly = inside & exec & !whole;
        if partly != 0 {
            let at = buffer.address.map(|a| a + 4 * i as u64);
            let part = transfer::gather(cx, &at, partly, 4)?;
            for l in crate::lanes::of(partly) {
                data.words[i][l] = part.words[0][l];
            }
            data.valid[i] &= part.valid[0] | !partly;
        }
    }
    transfer::extend(kind, &mut data.words);
    Some(data)
}

fn load(cx: &mut Cx, inst: &Inst) {
    let (exec, kind) = (cx.w.exec(), transfer::kind(inst.def.name));
    let Some(data) = gather(cx, inst, kind) else { return };
    if inst.f.lds {
        transfer::to_lds(cx, inst, data, exec, kind.bytes);
    } else {
        transfer::deliver(cx, inst.d, data, exec, kind.merge);
    }
}

fn store(cx: &mut Cx, inst: &Inst) {
    let (exec, kind) = (cx.w.exec(), transfer::kind(inst.def.name));
    let Some(buffer) = address::buffer(cx, inst, kind.bytes) else { return };
    let Some(words) = transfer::stored(cx, &inst.s[3], kind) else { return };
    let whole = buffer.inside.iter().fold(exec, |all, i| all & i);
    let mut fine = transfer::scatter(cx, &buffer.address, whole, kind.bytes, &words);
    for (i, inside) in buffer.inside.iter().enumerate() {
        let partly = inside & exec & !whole;
        if fine && partly != 0 {
            let at = buffer.address.map(|a| a + 4 * i as u64);
            fine = transfer::scatter(cx, &at, partly, 4, &words[i..=i]);
        }
    }
    if fine {
        transfer::issued(cx);
    }
}

fn update(cx: &mut Cx, inst: &Inst) {
    let exec = cx.w.exec();
    let bytes = 4 * inst.s[3].width as usize / if inst.def.name.contains("cmpswap") { 2 } else { 1 };
    if let Some(buffer) = address::buffer(cx, inst, bytes) {
        let whole = buffer.inside.iter().fold(exec, |all, i| all & i);
        atomic::run(cx, inst, &buffer.address, whole);
    }
}

macro_rules! b {
    ($op:literal $name:literal $sig:literal $f:expr) => {
        def!($op, $name, $sig, VectorMemory, Sem::X($f))
    };
}

/// MUBUF.
pub static MUBUF: &[Def] = &[
    b!(16 "buffer_load_ubyte" "D1" load),
    b!(17 "buffer_load_sbyte" "D1" load),
    b!(18 "buffer_load_ushort" "D1" load),
    b!(19 "buffer_load_sshort" "D1" load),
    b!(20 "buffer_load_dword" "D1" load),
    b!(21 "buffer_load_dwordx2" "D2" load),
    b!(22 "buffer_load_dwordx3" "D3" load),
    b!(23 "buffer_load_dwordx4" "D4" load),
    b!(24 "buffer_store_byte" "X1" store),
    b!(25 "buffer_store_byte_d16_hi" "X1" store),
    b!(26 "buffer_store_short" "X1" store),
    b!(27 "buffer_store_short_d16_hi" "X1" store),
    b!(28 "buffer_store_dword" "X1" store),
    b!(29 "buffer_store_dwordx2" "X2" store),
    b!(30 "buffer_store_dwordx3" "X3" store),
    b!(31 "buffer_store_dwordx4" "X4" store),
    b!(32 "buffer_load_ubyte_d16" "D1" load),
    b!(33 "buffer_load_ubyte_d16_hi" "D1" load),
    b!(34 "buffer_load_sbyte_d16" "D1" load),
    b!(35 "buffer_load_sbyte_d16_hi" "D1" load),
    b!(36 "buffer_load_short_d16" "D1" load),
    b!(37 "buffer_load_short_d16_hi" "D1" load),
    // Caches are not modelled: memory is coherent at every access. Write-back counts in vmcnt, invalidation does too.
    b!(40 "buffer_wbl2" "" |cx, _| transfer::issued(cx)),
    b!(41 "buffer_inv" "" |_, _| {}),
    b!(64 "buffer_atomic_swap" "X1" update),
    b!(65 "buffer_atomic_cmpswap" "X2" update),
    b!(66 "buffer_atomic_add" "X1" update),
    b!(67 "buffer_atomic_sub" "X1" update),
    b!(68 "buffer_atomic_smin" "X1" update),
    b!(69 "buffer_atomic_umin" "X1" update),
    b!(70 "buffer_atomic_smax" "X1" update),
    b!(71 "buffer_atomic_umax" "X1" update),
    b!(72 "buffer_atomic_and" "X1" update),
    b!(73 "buffer_atomic_or" "X1" update),
    b!(74 "buffer_atomic_xor" "X1" update),
    b!(75 "buffer_atomic_inc" "X1" update),
    b!(76 "buffer_atomic_dec" "X1" update),
    b!(77 "buffer_atomic_add_f32" "X1" update),
    b!(78 "buffer_atomic_pk_add_f16" "X1" update),
    b!(79 "buffer_atomic_add_f64" "X2" update),
    b!(80 "buffer_atomic_min_f64" "X2" update),
    b!(81 "buffer_atomic_max_f64" "X2" update),
    b!(82 "buffer_atomic_pk_add_bf16" "X1" update),
    b!(96 "buffer_atomic_swap_x2" "X2" update),
    b!(97 "buffer_atomic_cmpswap_x2" "X4" update),
    b!(98 "buffer_atomic_add_x2" "X2" update),
    b!(99 "buffer_atomic_sub_x2" "X2" update),
    b!(100 "buffer_atomic_smin_x2" "X2" update),
    b!(101 "buffer_atomic_umin_x2" "X2" update),
    b!(102 "buffer_atomic_smax_x2" "X2" update),
    b!(103 "buffer_atomic_umax_x2" "X2" update),
    b!(104 "buffer_atomic_and_x2" "X2" update),
    b!(105 "buffer_atomic_or_x2" "X2" update),
    b!(106 "buffer_atomic_xor_x2" "X2" update),
    b!(107 "buffer_atomic_inc_x2" "X2" update),
    b!(108 "buffer_atomic_dec_x2" "X2" update),
];
