//! Vector encodings: VOP1, VOP2, VOPC with their SDWA and DPP forms, VOP3, VOP3P and matrix instructions.

use super::{
    decode::{DecodeError, Words},
    def::{Def, Sem},
    inst::{Encoding, Fields, File, Form, Inst, NONE, Operand},
};

const VCC: u16 = 106;
const SDWA: u32 = 249;
const DPP: u32 = 250;

fn width(def: &Def, slot: char) -> u8 {
    def.width(slot).unwrap_or(1)
}

/// The destination of a vector encoding: a vector register, a scalar register (`S`), or none.
fn destination(w: Words, def: &Def, code: u32) -> Result<Operand, DecodeError> {
    match (def.width('D'), def.width('S')) {
        (Some(width), _) => Ok(Operand::vector(code as u16, width)),
        (_, Some(width)) => w.scalar_destination(code & 0x7f, width),
        _ => Ok(NONE),
    }
}

/// Operands that an encoding implies: vcc as carry in and out, the destination as accumulator.
fn implied(inst: &mut Inst) {
    let def = inst.def;
    if def.sig.contains('c') {
        inst.s[2] = Operand { width: width(def, 'C'), ..inst.d };
    }
}

/// VOP1, VOP2 and VOPC, whose first source is nine bits.
pub(super) fn short(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let (encoding, op) = match first >> 25 & 0x3f {
        0x3f => (Encoding::Vop1, first >> 9 & 0xff),
        0x3e => (Encoding::Vopc, first >> 17 & 0xff),
        op => (Encoding::Vop2, op),
    };
    let def = w.def(encoding, op)?;
    let mut inst = Inst::new(def, encoding, 1);
    inst.d = match encoding {
        Encoding::Vopc => Operand::scalar(VCC, 2),
        _ => destination(w, def, first >> 17 & 0xff)?,
    };
    if def.width('M').is_some() {
        inst.m = Operand::scalar(VCC, 2);
    }
    let between_accumulators = def.name == "v_accvgpr_mov_b32";
    inst.d.acc = between_accumulators;
    let code = first & 0x1ff;
    let special = matches!(code, SDWA | DPP);
    if def.width('A').is_some() && !special {
        inst.s[0] = w.source(code, width(def, 'A'), Some(1))?;
        inst.s[0].acc = between_accumulators;
        if between_accumulators && inst.s[0].file != File::Vector {
            return w.unsupported("a source of v_accvgpr_mov_b32 that is no register");
        }
    }
    if encoding != Encoding::Vop1 {
        inst.s[1] = Operand::vector((first >> 9 & 0xff) as u16, width(def, 'B'));
    }
    match def.name {
        // The constant of these two always stands behind the instruction, between or after the register sources.
        "v_fmamk_f32" => {
            inst.s[2] = inst.s[1];
            inst.s[1] = Operand::constant(w.get(1)?);
        }
        "v_fmaak_f32" => inst.s[2] = Operand::constant(w.get(1)?),
        _ if def.width('C').is_some() && !def.sig.contains('c') => inst.s[2] = Operand::scalar(VCC, 2),
        _ => implied(&mut inst),
    }
    if special {
        // Conversions of small floats, and the choice by a mask, read their selection themselves.
        let selects = code == SDWA && (def.name.starts_with("v_cvt_") || def.name == "v_cndmask_b32");
        if matches!(def.sem, Sem::X(_) | Sem::W3(_) | Sem::Cw(_)) && !selects {
            return w.unsupported(format!("{} with sub-dword or cross-lane operands", def.name));
        }
        inst.words = 2;
        let second = w.get(1)?;
        if code == SDWA { sdwa(w, &mut inst, second)? } else { dpp(w, &mut inst, second)? }
    } else if inst.s.iter().any(|s| s.literal) {
        inst.words = 2;
    }
    Ok(inst)
}

fn sdwa(w: Words, inst: &mut Inst, second: u32) -> Result<(), DecodeError> {
    let bit = |n: u32| second >> n & 1 != 0;
    let source = |code: u32, scalar: bool| match scalar {
        true => w.source(code, 1, None),
        false => Ok(Operand::vector(code as u16, 1)),
    };
    inst.s[0] = source(second & 0xff, bit(23))?;
    (inst.s[0].sel, inst.s[0].sext, inst.s[0].neg, inst.s[0].abs) =
        ((second >> 16 & 7) as u8, bit(19), bit(20), bit(21));
    if inst.encoding != Encoding::Vop1 {
        if bit(31) {
            inst.s[1] = source(u32::from(inst.s[1].index), true)?;
        }
        (inst.s[1].sel, inst.s[1].sext, inst.s[1].neg, inst.s[1].abs) =
            ((second >> 24 & 7) as u8, bit(27), bit(28), bit(29));
    }
    if inst.s[0].sel == 7 || inst.s[1].sel == 7 {
        return w.unsupported("sub-dword selection 7");
    }
    if inst.encoding == Encoding::Vopc {
        if bit(15) {
            inst.d = w.scalar_destination(second >> 8 & 0x7f, 2)?;
        }
        inst.form = Form::Sdwa { dst_sel: 6, dst_unused: 0 };
        return Ok(());
    }
    let (dst_sel, dst_unused) = ((second >> 8 & 7) as u8, (second >> 11 & 3) as u8);
    if dst_sel == 7 || dst_unused == 3 {
        return w.unsupported("sub-dword destination selection");
    }
    (inst.f.clamp, inst.f.omod) = (bit(13), (second >> 14 & 3) as u8);
    inst.form = Form::Sdwa { dst_sel, dst_unused };
    output_modifiers(w, inst)
}

fn dpp(w: Words, inst: &mut Inst, second: u32) -> Result<(), DecodeError> {
    let bit = |n: u32| second >> n & 1 != 0;
    inst.s[0] = Operand::vector((second & 0xff) as u16, 1);
    (inst.s[0].neg, inst.s[0].abs) = (bit(20), bit(21));
    (inst.s[1].neg, inst.s[1].abs) = (bit(22), bit(23));
    let ctrl = (second >> 8 & 0x1ff) as u16;
    let known = matches!(ctrl, 0..=0xff | 0x101..=0x10f | 0x111..=0x11f | 0x121..=0x12f | 0x130 | 0x134 | 0x138 | 0x13c
        | 0x140..=0x143 | 0x150..=0x15f);
    if !known {
        return w.unsupported(format!("cross-lane control {ctrl:#x}"));
    }
    inst.form =
        Form::Dpp { ctrl, row_mask: (second >> 28) as u8, bank_mask: (second >> 24 & 0xf) as u8, bound_ctrl: bit(19) };
    Ok(())
}

/// VOP3: the 64-bit form of the short encodings and everything with three sources.
pub(super) fn vop3(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let op = first >> 16 & 0x3ff;
    let (short, number) = match op {
        0..=255 => (Encoding::Vopc, op),
        256..=319 => (Encoding::Vop2, op - 256),
        320..=447 => (Encoding::Vop1, op - 320),
        _ => (Encoding::Vop3, op),
    };
    let def = w.def(short, number)?;
    let mut inst = Inst::new(def, Encoding::Vop3, 2);
    inst.d = match short {
        Encoding::Vopc => w.scalar_destination(first & 0x7f, 2)?,
        _ => destination(w, def, first & 0xff)?,
    };
    for (i, slot) in ['A', 'B', 'C'].into_iter().enumerate() {
        let implied = slot == 'C' && def.sig.contains('c');
        if short == Encoding::Vopc && i < 2 || def.width(slot).is_some() && !implied {
            let code = second >> (9 * i) & 0x1ff;
            inst.s[i] = w.source(code, width(def, slot), None)?;
            inst.s[i].neg = second >> (29 + i) & 1 != 0;
        }
    }
    implied(&mut inst);
    inst.f.omod = (second >> 27 & 3) as u8;
    inst.f.clamp = first >> 15 & 1 != 0;
    if let Some(width) = def.width('M') {
        inst.m = w.scalar_destination(first >> 8 & 0x7f, width)?;
        output_modifiers(w, &inst)?;
        return Ok(inst);
    }
    inst.f.op_sel = (first >> 11 & 0xf) as u8;
    if def.name.starts_with("v_bitop3") {
        return bitop3(w, inst, first, second);
    }
    for i in 0..3 {
        if inst.s[i].file != File::None && !(i == 2 && def.sig.contains('c')) {
            inst.s[i].abs = first >> (8 + i) & 1 != 0;
        }
    }
    let lane_is_vector = matches!(def.name, "v_readlane_b32" | "v_writelane_b32") && inst.s[1].file == File::Vector;
    if lane_is_vector || def.name == "v_writelane_b32" && inst.s[0].file == File::Vector {
        return w.unsupported(format!("a vector register as lane or value of {}", def.name));
    }
    if matches!(def.name, "v_nop" | "v_readfirstlane_b32" | "v_swap_b32" | "v_accvgpr_mov_b32") {
        return w.unsupported(format!("the long encoding of {}", def.name));
    }
    let takes_floats = def.name.contains("_f") || def.name.contains("bf16") || def.name.starts_with("v_cndmask");
    if inst.s.iter().any(Operand::modified) && !takes_floats {
        return w.unsupported(format!("float modifiers of {}", def.name));
    }
    // Conversions to and from small floats select halves or bytes; for plain arithmetic that is not modelled.
    if inst.f.op_sel != 0 && !(matches!(def.sem, Sem::X(_)) && def.name.starts_with("v_cvt")) {
        return w.unsupported(format!("op_sel of {}", def.name));
    }
    output_modifiers(w, &inst)?;
    Ok(inst)
}

/// Clamp and output scaling are modelled for plain f32 arithmetic, and clamp for sums of unsigned integers in the long form.
fn output_modifiers(w: Words, inst: &Inst) -> Result<(), DecodeError> {
    let plain = matches!(inst.def.sem, Sem::V1(_) | Sem::V2(_) | Sem::V3(_)) && inst.def.name.ends_with("_f32");
    let saturates = matches!(inst.def.name, "v_add_u32" | "v_sub_u32" | "v_subrev_u32") && inst.form == Form::Plain;
    if (inst.f.clamp || inst.f.omod != 0) && !plain && !(saturates && inst.f.omod == 0) {
        return w.unsupported(format!("clamp or output scaling of {}", inst.def.name));
    }
    Ok(())
}

/// `v_bitop3`: table bits 0-2 stand in neg, 3-5 in abs, 6-7 in omod.
fn bitop3(w: Words, mut inst: Inst, first: u32, second: u32) -> Result<Inst, DecodeError> {
    for source in &mut inst.s {
        (source.neg, source.abs) = (false, false);
    }
    inst.f.omod = 0;
    if inst.f.op_sel != 0 || inst.f.clamp {
        return w.unsupported("op_sel or clamp of v_bitop3");
    }
    inst.f.imm = ((second >> 27 & 3) << 6 | (first >> 8 & 7) << 3 | second >> 29 & 7) as u16;
    Ok(inst)
}

/// VOP3P and its matrix form.
pub(super) fn vop3p(w: Words) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let op = first >> 16 & 0x7f;
    if op == SCALE_PREFIX {
        return scaled(w);
    }
    let Ok(def) = w.def(Encoding::Mai, op) else { return packed(w, op) };
    mai(w, def, first, second, 2)
}

const SCALE_PREFIX: u32 = 0x2c;

fn mai(w: Words, def: &'static Def, first: u32, second: u32, words: u8) -> Result<Inst, DecodeError> {
    let mut inst = Inst::new(def, Encoding::Mai, words);
    let accumulates = first >> 15 & 1 != 0;
    inst.d = Operand { acc: accumulates, ..Operand::vector((first & 0xff) as u16, width(def, 'D')) };
    inst.f = Fields {
        cbsz: (first >> 8 & 7) as u8,
        abid: (first >> 11 & 0xf) as u8,
        blgp: (second >> 29 & 7) as u8,
        ..Fields::default()
    };
    for (i, slot) in ['A', 'B', 'C'].into_iter().enumerate() {
        let Some(mut dwords) = def.width(slot) else { continue };
        if def.name.contains("f8f6f4") && i < 2 {
            let format = if i == 0 { inst.f.cbsz } else { inst.f.blgp };
            dwords = match format {
                0 | 1 => 8,
                2 | 3 => 6,
                4 => 4,
                other => return w.unsupported(format!("matrix format {other}")),
            };
        }
        let mut operand = w.source(second >> (9 * i) & 0x1ff, dwords, None)?;
        operand.acc = match i {
            2 => accumulates,
            _ => second >> (27 + i) & 1 != 0,
        } && operand.file == File::Vector;
        inst.s[i] = operand;
    }
    // Moves between the two halves of the register file are packed instructions: the opcode names one side, and the bits
    // elsewhere are defaults of op_sel_hi.
    if def.name.starts_with("v_accvgpr") {
        inst.f = Fields::default();
        inst.s[0].acc = def.name == "v_accvgpr_read_b32";
        inst.d.acc = !inst.s[0].acc;
    }
    Ok(inst)
}

/// A scaled matrix instruction: two dwords that load scales, then the matrix instruction itself.
fn scaled(w: Words) -> Result<Inst, DecodeError> {
    let (prefix, scales, first, second) = (w.get(0)?, w.get(1)?, w.get(2)?, w.get(3)?);
    let op = first >> 16 & 0x7f;
    let name = match op {
        0x2d => 0x2d,
        0x2e => 0x2e,
        other => return w.unsupported(format!("scale prefix before opcode {other}")),
    };
    // Scaled forms have numbers of their own in the table: the prefix is part of the opcode.
    let def = w.def(Encoding::Mai, 0x100 | name)?;
    let mut inst = mai(w, def, first, second, 4)?;
    // The lowest bit of this field marks the second half of a scaled instruction.
    inst.f.abid = 0;
    inst.s[3] = w.source(scales & 0x1ff, 1, None)?;
    inst.s[4] = w.source(scales >> 9 & 0x1ff, 1, None)?;
    let (lo, hi) = (prefix >> 11 & 7, scales >> 27 & 3);
    inst.f.scale_sel = (lo & 1 | (hi & 1) << 1 | (lo >> 1 & 1) << 2 | (hi >> 1 & 1) << 3) as u8;
    Ok(inst)
}

fn packed(w: Words, op: u32) -> Result<Inst, DecodeError> {
    let (first, second) = (w.get(0)?, w.get(1)?);
    let def = w.def(Encoding::Vop3p, op)?;
    let mut inst = Inst::new(def, Encoding::Vop3p, 2);
    inst.d = Operand::vector((first & 0xff) as u16, width(def, 'D'));
    for (i, slot) in ['A', 'B', 'C'].into_iter().enumerate() {
        if def.width(slot).is_some() {
            inst.s[i] = w.source(second >> (9 * i) & 0x1ff, width(def, slot), None)?;
            inst.s[i].neg = second >> (29 + i) & 1 != 0;
        }
    }
    // Fields of a source that the opcode lacks mean nothing; its bit of op_sel_hi counts as set, the default.
    let present = inst.s.iter().take(3).enumerate().fold(0, |all, (i, s)| all | u32::from(s.file != File::None) << i);
    inst.f.op_sel = (first >> 11 & present) as u8;
    inst.f.op_sel_hi = ((second >> 27 & 3 | (first >> 14 & 1) << 2) & present | !present & 7) as u8;
    inst.f.neg_hi = (first >> 8 & present) as u8;
    if first >> 15 & 1 != 0 {
        return w.unsupported(format!("clamp of {}", def.name));
    }
    // Mixed multiply-adds have magnitudes where others negate the upper halves.
    if def.is_mixed() {
        for (i, source) in inst.s.iter_mut().enumerate().take(3) {
            source.abs = inst.f.neg_hi >> i & 1 != 0;
        }
        inst.f.neg_hi = 0;
    }
    let negated = inst.f.neg_hi != 0 || inst.s.iter().any(|s| s.neg);
    if def.name.starts_with("v_dot2") && (negated || inst.f.op_sel != 0 || inst.f.op_sel_hi != 7) {
        return w.unsupported(format!("modifiers of {}", def.name));
    }
    Ok(inst)
}
