//! Memory encodings: scalar loads, LDS, buffers, global.

use super::{
    decode::{DecodeError, Words},
    def::Def,
    inst::{Encoding, Inst, NONE, Operand},
};

fn width(def: &Def, slot: char) -> u8 {
    def.width(slot).unwrap_or(1)
}

/// Scalar memory. Sources: base pair or quad, scalar offset; the immediate is `offset`.
pub(super) fn smem(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let def = w.def(Encoding::Smem, first >> 18 & 0xff)?;
    let mut inst = Inst::new(def, Encoding::Smem, 2);
    let bit = |n: u32| first >> n & 1 != 0;
    if let Some(width) = def.width('D') {
        inst.d = w.scalar_destination(first >> 6 & 0x7f, width)?;
    }
    if let Some(width) = def.width('A') {
        inst.s[0] = w.scalar_destination((first & 0x3f) << 1, width)?;
        let (soffset, immediate) = (bit(14), bit(17));
        if immediate {
            inst.f.offset = (second as i32) << 11 >> 11;
        }
        if soffset {
            inst.s[1] = w.scalar_destination(second >> 25 & 0x7f, 1)?;
        } else if !immediate {
            inst.s[1] = w.scalar_destination(second & 0x7f, 1)?;
        }
    }
    inst.f.sc0 = bit(16);
    Ok(inst)
}

/// LDS. Sources: address, data 0, data 1.
pub(super) fn ds(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let def = w.def(Encoding::Ds, first >> 17 & 0xff)?;
    let mut inst = Inst::new(def, Encoding::Ds, 2);
    let acc = first >> 25 & 1 != 0;
    if first >> 16 & 1 != 0 {
        return w.unsupported("an access to the global data share");
    }
    let vector = |code: u32, width: u8, acc: bool| Operand { acc, ..Operand::vector((code & 0xff) as u16, width) };
    if let Some(width) = def.width('D') {
        inst.d = vector(second >> 24, width, acc);
    }
    if def.width('A').is_some() {
        inst.s[0] = vector(second, 1, false);
    }
    if let Some(width) = def.width('B') {
        inst.s[1] = vector(second >> 8, width, acc);
    }
    if let Some(width) = def.width('C') {
        inst.s[2] = vector(second >> 16, width, acc);
    }
    if has_two_offsets(def) {
        inst.f.offset = (first & 0xff) as i32;
        inst.f.offset1 = (first >> 8 & 0xff) as u8;
    } else {
        inst.f.offset = (first & 0xffff) as i32;
    }
    Ok(inst)
}

/// `read2`, `write2` and their strided forms.
pub(super) fn has_two_offsets(def: &Def) -> bool {
    def.name.starts_with("ds_read2") || def.name.starts_with("ds_write2")
}

/// Buffers. Sources: offset or index register, resource quad, scalar offset, stored data.
pub(super) fn mubuf(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let def = w.def(Encoding::Mubuf, first >> 18 & 0x7f)?;
    let mut inst = Inst::new(def, Encoding::Mubuf, 2);
    let bit = |n: u32| first >> n & 1 != 0;
    (inst.f.sc0, inst.f.sc1, inst.f.nt) = (bit(14), bit(15), bit(17));
    // Cache instructions have a scope and nothing else.
    if def.sig.is_empty() {
        inst.f.nt = false;
        return Ok(inst);
    }
    inst.f.offset = (first & 0xfff) as i32;
    (inst.f.offen, inst.f.idxen, inst.f.lds) = (bit(12), bit(13), bit(16));
    if inst.f.idxen {
        return w.unsupported("a structured buffer (idxen)");
    }
    let data = Operand { acc: second >> 23 & 1 != 0, ..Operand::vector((second >> 8 & 0xff) as u16, 1) };
    if inst.f.offen {
        inst.s[0] = Operand::vector((second & 0xff) as u16, 1);
    }
    inst.s[1] = Operand::scalar((second >> 16 & 0x1f) as u16 * 4, 4);
    inst.s[2] = w.source(second >> 24, 1, None)?;
    let returns = def.name.contains("atomic") && inst.f.sc0;
    if let Some(width) = def.width('X') {
        inst.s[3] = Operand { width, ..data };
        if returns {
            inst.d = Operand { width: result_width(def), ..data };
        }
    } else if !inst.f.lds {
        inst.d = Operand { width: width(def, 'D'), ..data };
    }
    Ok(inst)
}

/// Dwords that an atomic returns: half of what compare-and-swap takes.
pub(super) fn result_width(def: &Def) -> u8 {
    let data = width(def, 'X');
    if def.name.contains("cmpswap") { data / 2 } else { data }
}

/// Global memory. Sources: address register(s), stored data in slot 3, scalar base in slot 2.
pub(super) fn global(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    match first >> 14 & 3 {
        0 => return w.unsupported("a flat access"),
        1 => return w.unsupported("a scratch access"),
        3 => return w.unsupported("segment 3"),
        _ => {}
    }
    let def = w.def(Encoding::Global, first >> 18 & 0x7f)?;
    let mut inst = Inst::new(def, Encoding::Global, 2);
    let bit = |n: u32| first >> n & 1 != 0;
    inst.f.offset = (first as i32) << 19 >> 19;
    (inst.f.sc0, inst.f.nt, inst.f.sc1) = (bit(16), bit(17), bit(25));
    inst.f.lds = def.name.contains("_lds_");
    if bit(13) {
        return w.unsupported("the LDS bit of a global access");
    }
    let acc = second >> 23 & 1 != 0;
    let saddr = second >> 16 & 0x7f;
    let has_base = saddr != 0x7f;
    inst.s[0] = Operand::vector((second & 0xff) as u16, if has_base { 1 } else { 2 });
    inst.s[2] = if has_base { w.scalar_destination(saddr, 2)? } else { NONE };
    let result = Operand { acc, ..Operand::vector((second >> 24) as u16, 1) };
    if let Some(width) = def.width('X') {
        inst.s[3] = Operand { acc, ..Operand::vector((second >> 8 & 0xff) as u16, width) };
        if def.name.contains("atomic") && inst.f.sc0 {
            inst.d = Operand { width: result_width(def), ..result };
        }
    } else if !inst.f.lds {
        inst.d = Operand { width: width(def, 'D'), ..result };
    }
    Ok(inst)
}
