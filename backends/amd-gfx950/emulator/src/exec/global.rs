//! Global memory: loads, stores, loads into LDS, atomics.

use super::{address, atomic, def, transfer};
use crate::{
    isa::{Def, Inst, Sem},
    machine::Cx,
};

fn load(cx: &mut Cx, inst: &Inst) {
    let (exec, kind) = (cx.w.exec(), transfer::kind(inst.def.name));
    let Some(addresses) = address::global(cx, inst) else { return };
    let Some(mut data) = transfer::gather(cx, &addresses, exec, kind.bytes) else { return };
    transfer::extend(kind, &mut data.words);
    transfer::deliver(cx, inst.d, data, exec, kind.merge);
}

fn load_lds(cx: &mut Cx, inst: &Inst) {
    let (exec, kind) = (cx.w.exec(), transfer::kind(inst.def.name));
    let Some(addresses) = address::global(cx, inst) else { return };
    let Some(mut data) = transfer::gather(cx, &addresses, exec, kind.bytes) else { return };
    transfer::extend(kind, &mut data.words);
    transfer::to_lds(cx, inst, data, exec, kind.bytes);
}

fn store(cx: &mut Cx, inst: &Inst) {
    let (exec, kind) = (cx.w.exec(), transfer::kind(inst.def.name));
    let Some(addresses) = address::global(cx, inst) else { return };
    let Some(words) = transfer::stored(cx, &inst.s[3], kind) else { return };
    if transfer::scatter(cx, &addresses, exec, kind.bytes, &words) {
        transfer::issued(cx);
    }
}

fn update(cx: &mut Cx, inst: &Inst) {
    let exec = cx.w.exec();
    if let Some(addresses) = address::global(cx, inst) {
        atomic::run(cx, inst, &addresses, exec);
    }
}

macro_rules! g {
    ($op:literal $name:literal $sig:literal $f:ident) => {
        def!($op, $name, $sig, VectorMemory, Sem::X($f))
    };
}

/// GLOBAL.
pub static GLOBAL: &[Def] = &[
    g!(16 "global_load_ubyte" "D1" load),
    g!(17 "global_load_sbyte" "D1" load),
    g!(18 "global_load_ushort" "D1" load),
    g!(19 "global_load_sshort" "D1" load),
    g!(20 "global_load_dword" "D1" load),
    g!(21 "global_load_dwordx2" "D2" load),
    g!(22 "global_load_dwordx3" "D3" load),
    g!(23 "global_load_dwordx4" "D4" load),
    g!(24 "global_store_byte" "X1" store),
    g!(25 "global_store_byte_d16_hi" "X1" store),
    g!(26 "global_store_short" "X1" store),
    g!(27 "global_store_short_d16_hi" "X1" store),
    g!(28 "global_store_dword" "X1" store),
    g!(29 "global_store_dwordx2" "X2" store),
    g!(30 "global_store_dwordx3" "X3" store),
    g!(31 "global_store_dwordx4" "X4" store),
    g!(32 "global_load_ubyte_d16" "D1" load),
    g!(33 "global_load_ubyte_d16_hi" "D1" load),
    g!(34 "global_load_sbyte_d16" "D1" load),
    g!(35 "global_load_sbyte_d16_hi" "D1" load),
    g!(36 "global_load_short_d16" "D1" load),
    g!(37 "global_load_short_d16_hi" "D1" load),
    g!(38 "global_load_lds_ubyte" "" load_lds),
    g!(39 "global_load_lds_sbyte" "" load_lds),
    g!(40 "global_load_lds_ushort" "" load_lds),
    g!(41 "global_load_lds_sshort" "" load_lds),
    g!(42 "global_load_lds_dword" "" load_lds),
    g!(125 "global_load_lds_dwordx4" "" load_lds),
    g!(126 "global_load_lds_dwordx3" "" load_lds),
    g!(64 "global_atomic_swap" "X1" update),
    g!(65 "global_atomic_cmpswap" "X2" update),
    g!(66 "global_atomic_add" "X1" update),
    g!(67 "global_atomic_sub" "X1" update),
    g!(68 "global_atomic_smin" "X1" update),
    g!(69 "global_atomic_umin" "X1" update),
    g!(70 "global_atomic_smax" "X1" update),
    g!(71 "global_atomic_umax" "X1" update),
    g!(72 "global_atomic_and" "X1" update),
    g!(73 "global_atomic_or" "X1" update),
    g!(74 "global_atomic_xor" "X1" update),
    g!(75 "global_atomic_inc" "X1" update),
    g!(76 "global_atomic_dec" "X1" update),
    g!(77 "global_atomic_add_f32" "X1" update),
    g!(78 "global_atomic_pk_add_f16" "X1" update),
    g!(79 "global_atomic_add_f64" "X2" update),
    g!(80 "global_atomic_min_f64" "X2" update),
    g!(81 "global_atomic_max_f64" "X2" update),
    g!(82 "global_atomic_pk_add_bf16" "X1" update),
    g!(96 "global_atomic_swap_x2" "X2" update),
    g!(97 "global_atomic_cmpswap_x2" "X4" update),
    g!(98 "global_atomic_add_x2" "X2" update),
    g!(99 "global_atomic_sub_x2" "X2" update),
    g!(100 "global_atomic_smin_x2" "X2" update),
    g!(101 "global_atomic_umin_x2" "X2" update),
    g!(102 "global_atomic_smax_x2" "X2" update),
    g!(103 "global_atomic_umax_x2" "X2" update),
    g!(104 "global_atomic_and_x2" "X2" update),
    g!(105 "global_atomic_or_x2" "X2" update),
    g!(106 "global_atomic_xor_x2" "X2" update),
    g!(107 "global_atomic_inc_x2" "X2" update),
    g!(108 "global_atomic_dec_x2" "X2" update),
];
