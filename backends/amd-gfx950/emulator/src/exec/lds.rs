//! LDS reads, writes and atomics.
//!
//! An operation captures addresses and data when it is issued and does its work when it completes: at once, or, with
//! checks, when a wait demands it. LDS serves a wave in order, so queued operations complete in order.

use super::{atomic, def, transfer};
use crate::{
    isa::{Def, Inst, L, Sem},
    lanes,
    machine::{Access, Cx, LdsOp, Merge},
};

/// Queues or completes an LDS instruction.
pub fn issue(cx: &mut Cx, inst: &Inst) {
    if !cx.require(&inst.s[0], "LDS address") {
        return;
    }
    let mut op = LdsOp {
        at: cx.w.pc - 1,
        address: cx.w.v[inst.s[0].at()],
        data: Vec::new(),
        valid: Vec::new(),
        mask: cx.w.exec(),
    };
    for source in &inst.s[1..3] {
        for r in source.at()..source.at() + source.width as usize {
            op.data.push(cx.w.v[r]);
            op.valid.push(cx.w.valid_v[r]);
        }
    }
    if cx.env.check {
        cx.w.queues.mark(&inst.d, true);
        cx.w.queues.lds.push_back(op);
    } else {
        complete(cx, inst, &op);
    }
}

/// Does the work of an operation.
pub fn complete(cx: &mut Cx, inst: &Inst, op: &LdsOp) {
    let name = inst.def.name;
    if name.ends_with("permute_b32") || name == "ds_swizzle_b32" {
        super::lds_special::complete(cx, inst, op);
    } else if name.starts_with("ds_read") {
        read(cx, inst, op);
    } else if name.starts_with("ds_write") {
        write(cx, inst, op);
    } else {
        update(cx, inst, op);
    }
}

/// Bytes per lane of a plain access.
fn bytes(name: &str) -> usize {
    match name.rsplit(['_']).find(|p| p.len() > 1 && p[1..].bytes().all(|b| b.is_ascii_digit()) && *p != "d16") {
        Some(part) => part[1..].parse::<usize>().unwrap_or(32) / 8,
        None => 4,
    }
}

/// Offsets in bytes of the one or two parts of an access.
fn parts(inst: &Inst, size: usize) -> ([u32; 2], usize) {
    let f = &inst.f;
    if !(inst.def.name.starts_with("ds_read2") || inst.def.name.starts_with("ds_write2")) {
        return ([f.offset as u32, 0], 1);
    }
    let unit = size as u32 * if inst.def.name.contains("st64") { 64 } else { 1 };
    ([f.offset as u32 * unit, u32::from(f.offset1) * unit], 2)
}

/// Counts phases and bank conflicts of the parts of an access.
fn conflicts(cx: &mut Cx, access: Access, op: &LdsOp, offsets: &[u32], size: usize) {
    if let Some(detail) = &mut cx.count.detail {
        offsets.iter().for_each(|offset| detail.lds(access, &op.address, *offset, op.mask, size));
    }
}

fn read(cx: &mut Cx, inst: &Inst, op: &LdsOp) {
    let name = inst.def.name;
    let transposed = name.contains("_tr_");
    let size = if transposed { 8 } else { bytes(name) };
    let (offsets, count) = parts(inst, size);
    let words = size.div_ceil(4);
    let mut out = vec![[0; 64]; words * count];
    let mut valid = vec![u64::MAX; words * count];
    for (part, offset) in offsets.iter().take(count).enumerate() {
        for l in lanes::of(op.mask) {
            let mut buffer = [0; 4];
            let at = op.address[l].wrapping_add(*offset);
            let Some(known) = cx.lds.read(cx.w, l, at, size, &mut buffer) else { return };
            for i in 0..words {
                out[part * words + i][l] = buffer[i];
                valid[part * words + i] &= !(u64::from(!known[i]) << l);
            }
        }
    }
    conflicts(cx, Access::Read, op, &offsets[..count], size);
    cx.count.lds_read_bytes += u64::from(op.mask.count_ones()) * (size * count) as u64;
    if transposed {
        if op.mask != u64::MAX {
            cx.w.fail_at("a transposing read while some lanes are inactive", !op.mask);
            return;
        }
        let element = if name.ends_with("b16") { 2 } else { 1 };
        out = transpose(&out, element);
        // Sixteen lanes exchange elements: one unknown makes all of them unknown.
        let mixed = valid[0] & valid[1];
        let group = |g: u64| mixed >> (16 * g) & 0xffff == 0xffff;
        let lanes = (0..4).fold(0, |all, g| all | if group(g) { 0xffffu64 << (16 * g) } else { 0 });
        valid.fill(lanes);
    }
    let mut merge = Merge::Full;
    if size < 4 {
        let kind = transfer::kind(name);
        merge = kind.merge;
        if name.contains("_i") {
            let shift = 32 - 8 * size as u32;
            out[0].iter_mut().for_each(|x| *x = ((*x as i32) << shift >> shift) as u32);
        }
    }
    give(cx, inst, out, valid, op.mask, merge);
}

/// Within 16 lanes that hold rows of a matrix: lane t, element j becomes lane n·j + t / m, element t % m, with m elements
/// of `size` bytes in 8 bytes and n = 16 / m. Shown by compiler-made kernels with a row-major second operand.
fn transpose(rows: &[L], size: usize) -> Vec<L> {
    let m = 8 / size;
    let n = 16 / m;
    let mut out = vec![[0u32; 64]; 2];
    let bits = 8 * size;
    let ones = (1u64 << bits) - 1;
    for lane in 0..64 {
        let (base, t) = (lane & !15, lane & 15);
        for j in 0..m {
            let from = base + n * j + t / m;
            let whole = u64::from(rows[0][from]) | u64::from(rows[1][from]) << 32;
            let element = whole >> (bits * (t % m)) & ones;
            let at = bits * j;
            out[at / 32][lane] |= (element as u32) << (at % 32);
        }
    }
    out
}

/// Writes results into the destination of an operation.
pub fn give(cx: &mut Cx, inst: &Inst, words: Vec<L>, valid: Vec<u64>, mask: u64, merge: Merge) {
    let landing = crate::machine::Landing { d: inst.d, data: words, valid, mask, merge };
    cx.land(&landing);
}

fn write(cx: &mut Cx, inst: &Inst, op: &LdsOp) {
    let name = inst.def.name;
    let size = bytes(name);
    let (offsets, count) = parts(inst, size);
    let words = size.div_ceil(4);
    let high = name.ends_with("d16_hi");
    for (part, offset) in offsets.iter().take(count).enumerate() {
        let registers = &op.data[part * words..(part + 1) * words];
        let valid = op.valid[part * words..(part + 1) * words].iter().fold(u64::MAX, |all, v| all & v);
        for l in lanes::of(op.mask) {
            let mut buffer = [0; 4];
            for (word, register) in buffer.iter_mut().zip(registers) {
                *word = if high { register[l] >> 16 } else { register[l] };
            }
            let at = op.address[l].wrapping_add(*offset);
            if !cx.lds.write(cx.w, l, at, size, &buffer, valid >> l & 1 != 0) {
                return;
            }
        }
    }
    conflicts(cx, Access::Write, op, &offsets[..count], size);
    cx.count.lds_write_bytes += u64::from(op.mask.count_ones()) * (size * count) as u64;
}

/// The global atomic that does the same to memory.
fn same_as(name: &str) -> Option<atomic::Update> {
    let plain = name.strip_prefix("ds_")?.replace("_rtn", "");
    atomic::update(match plain.as_str() {
        "add_u32" => "_atomic_add",
        "sub_u32" => "_atomic_sub",
        "min_i32" => "_atomic_smin",
        "max_i32" => "_atomic_smax",
        "min_u32" => "_atomic_umin",
        "max_u32" => "_atomic_umax",
        "and_b32" => "_atomic_and",
        "or_b32" => "_atomic_or",
        "xor_b32" => "_atomic_xor",
        "add_f32" => "_atomic_add_f32",
        "pk_add_f16" => "_atomic_pk_add_f16",
        "pk_add_bf16" => "_atomic_pk_add_bf16",
        "wrxchg_b32" => "_atomic_swap",
        _ => return None,
    })
}

fn update(cx: &mut Cx, inst: &Inst, op: &LdsOp) {
    let Some(update) = same_as(inst.def.name) else {
        cx.w.fail("this LDS atomic is not modelled", None);
        return;
    };
    let mut old = [0; 64];
    let mut valid = vec![u64::MAX];
    for l in lanes::of(op.mask) {
        let at = op.address[l].wrapping_add(inst.f.offset as u32);
        let new = |old: u32| update(u64::from(old), u64::from(op.data[0][l]), 0) as u32;
        let Some((before, known)) = cx.lds.update(cx.w, l, at, op.valid[0] >> l & 1 != 0, new) else { return };
        valid[0] &= !(u64::from(!known) << l);
        old[l] = before;
    }
    conflicts(cx, Access::Write, op, &[inst.f.offset as u32], 4);
    if inst.d.width > 0 {
        give(cx, inst, vec![old], valid, op.mask, Merge::Full);
    }
}

macro_rules! d {
    ($op:literal $name:literal $sig:literal) => {
        def!($op, $name, $sig, Lds, Sem::X(issue))
    };
}

/// DS.
#[rustfmt::skip]
pub static DS: &[Def] = &[
    d!(0 "ds_add_u32" "A1B1"), d!(1 "ds_sub_u32" "A1B1"), d!(5 "ds_min_i32" "A1B1"), d!(6 "ds_max_i32" "A1B1"),
    d!(7 "ds_min_u32" "A1B1"), d!(8 "ds_max_u32" "A1B1"), d!(9 "ds_and_b32" "A1B1"), d!(10 "ds_or_b32" "A1B1"),
    d!(11 "ds_xor_b32" "A1B1"), d!(21 "ds_add_f32" "A1B1"), d!(23 "ds_pk_add_f16" "A1B1"), d!(24 "ds_pk_add_bf16" "A1B1"),
    d!(32 "ds_add_rtn_u32" "D1A1B1"), d!(33 "ds_sub_rtn_u32" "D1A1B1"), d!(37 "ds_min_rtn_i32" "D1A1B1"),
    d!(38 "ds_max_rtn_i32" "D1A1B1"), d!(39 "ds_min_rtn_u32" "D1A1B1"), d!(40 "ds_max_rtn_u32" "D1A1B1"),
    d!(41 "ds_and_rtn_b32" "D1A1B1"), d!(42 "ds_or_rtn_b32" "D1A1B1"), d!(43 "ds_xor_rtn_b32" "D1A1B1"),
    d!(45 "ds_wrxchg_rtn_b32" "D1A1B1"), d!(53 "ds_add_rtn_f32" "D1A1B1"),
    d!(13 "ds_write_b32" "A1B1"), d!(14 "ds_write2_b32" "A1B1C1"), d!(15 "ds_write2st64_b32" "A1B1C1"),
    d!(30 "ds_write_b8" "A1B1"), d!(31 "ds_write_b16" "A1B1"), d!(77 "ds_write_b64" "A1B2"),
    d!(78 "ds_write2_b64" "A1B2C2"), d!(79 "ds_write2st64_b64" "A1B2C2"), d!(84 "ds_write_b8_d16_hi" "A1B1"),
    d!(85 "ds_write_b16_d16_hi" "A1B1"), d!(222 "ds_write_b96" "A1B3"), d!(223 "ds_write_b128" "A1B4"),
    d!(54 "ds_read_b32" "D1A1"), d!(55 "ds_read2_b32" "D2A1"), d!(56 "ds_read2st64_b32" "D2A1"),
    d!(57 "ds_read_i8" "D1A1"), d!(58 "ds_read_u8" "D1A1"), d!(59 "ds_read_i16" "D1A1"), d!(60 "ds_read_u16" "D1A1"),
    d!(86 "ds_read_u8_d16" "D1A1"), d!(87 "ds_read_u8_d16_hi" "D1A1"), d!(88 "ds_read_i8_d16" "D1A1"),
    d!(89 "ds_read_i8_d16_hi" "D1A1"), d!(90 "ds_read_u16_d16" "D1A1"), d!(91 "ds_read_u16_d16_hi" "D1A1"),
    d!(118 "ds_read_b64" "D2A1"), d!(119 "ds_read2_b64" "D4A1"), d!(120 "ds_read2st64_b64" "D4A1"),
    d!(226 "ds_read_b64_tr_b8" "D2A1"), d!(227 "ds_read_b64_tr_b16" "D2A1"),
    d!(254 "ds_read_b96" "D3A1"), d!(255 "ds_read_b128" "D4A1"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_mnemonic() {
        for (name, want) in [
            ("ds_read_b128", 16),
            ("ds_read2st64_b64", 8),
            ("ds_read_u8_d16_hi", 1),
            ("ds_write_b16_d16_hi", 2),
            ("ds_read_i16", 2),
            ("ds_write_b96", 12),
            ("ds_write2_b32", 4),
        ] {
            assert_eq!(bytes(name), want, "{name}");
        }
    }

    /// Reading rows through the transposing load gives columns: a 16 x 16 matrix of bytes is transposed by two loads.
    #[test]
    fn transposition() {
        let element = |row: usize, column: usize| (16 * row + column) as u8;
        // Eight rows of sixteen bytes per load, two lanes per row.
        let mut rows = [[0u32; 64]; 2];
        for lane in 0..64 {
            let (t, half) = (lane & 15, lane & 1);
            for j in 0..8 {
                rows[j / 4][lane] |= u32::from(element(t / 2, 8 * half + j)) << (8 * (j % 4));
            }
        }
        let out = transpose(&rows, 1);
        for lane in 0..16 {
            for j in 0..8 {
                assert_eq!((out[j / 4][lane] >> (8 * (j % 4))) as u8, element(j, lane), "lane {lane}, element {j}");
            }
        }
    }
}
