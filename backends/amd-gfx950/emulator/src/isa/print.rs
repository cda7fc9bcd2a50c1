//! An instruction as text that LLVM's assembler turns back into the same bits.
//!
//! Used in error reports, and as the decoder's proof: every shipped object and random encodings are decoded, printed,
//! assembled by LLVM and compared with the original dwords. Branch targets print as distances.

use std::fmt::Write;

use super::inst::{Encoding, File, Form, Inst, Operand};

/// Mnemonics that have one encoding only and take no suffix.
const BARE: &[&str] =
    &["v_readfirstlane_b32", "v_fmamk_f32", "v_fmaak_f32", "v_swap_b32", "v_accvgpr_mov_b32", "v_nop"];

/// The text of one instruction.
pub fn print(inst: &Inst) -> String {
    let mut text = inst.def.name.to_string();
    let vector = matches!(inst.encoding, Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc);
    let short_exists = inst.encoding == Encoding::Vop3 && inst.def.op < 448 && !is_native_vop3(inst);
    text += match inst.form {
        Form::Sdwa { .. } => "_sdwa",
        Form::Dpp { .. } => "_dpp",
        Form::Plain if BARE.contains(&inst.def.name) => "",
        Form::Plain if vector => "_e32",
        Form::Plain if short_exists => "_e64",
        Form::Plain => "",
    };
    let operands = operands(inst);
    if !operands.is_empty() {
        text.push(' ');
        text += &operands.join(", ");
    }
    modifiers(inst, &mut text);
    text
}

fn is_native_vop3(inst: &Inst) -> bool {
    super::tables::find(Encoding::Vop3, u32::from(inst.def.op)).is_some_and(|d| std::ptr::eq(d, inst.def))
}

fn operands(inst: &Inst) -> Vec<String> {
    let f = &inst.f;
    let off = |o: &Operand| if o.file == File::None { "off".to_string() } else { register(o) };
    match inst.encoding {
        Encoding::Sopp => match inst.def.name {
            "s_endpgm" if f.imm == 0 => vec![],
            "s_barrier" | "s_icache_inv" => vec![],
            _ => vec![f.imm.to_string()],
        },
        Encoding::Sopk => {
            let immediate = f.imm.to_string();
            match inst.def.name {
                "s_setreg_b32" => vec![immediate, register(&inst.s[0])],
                "s_setreg_imm32_b32" => vec![immediate, operand(inst, &inst.s[0])],
                name if name.starts_with("s_cmpk") => vec![register(&inst.s[0]), immediate],
                _ => vec![register(&inst.d), immediate],
            }
        }
        Encoding::Smem => {
            if inst.s[0].file == File::None {
                return if inst.d.file == File::None { vec![] } else { vec![register(&inst.d)] };
            }
            let offset = match inst.s[1].file {
                File::None => format!("{:#x}", f.offset),
                _ if f.offset != 0 => format!("{} offset:{:#x}", register(&inst.s[1]), f.offset),
                _ => register(&inst.s[1]),
            };
            let offset = if f.offset < 0 { format!("-{:#x}", -i64::from(f.offset)) } else { offset };
            vec![register(&inst.d), register(&inst.s[0]), offset]
        }
        Encoding::Global => {
            let mut list = Vec::new();
            if inst.d.file != File::None {
                list.push(register(&inst.d));
            }
            list.push(register(&inst.s[0]));
            if inst.s[3].file != File::None {
                list.push(register(&inst.s[3]));
            }
            list.push(off(&inst.s[2]));
            list
        }
        Encoding::Mubuf => {
            if inst.def.sig.is_empty() {
                return vec![];
            }
            let data = if inst.s[3].file != File::None { &inst.s[3] } else { &inst.d };
            let mut list = Vec::new();
            if data.file != File::None {
                list.push(register(data));
            }
            list.extend([off(&inst.s[0]), register(&inst.s[1]), operand(inst, &inst.s[2])]);
            list
        }
        _ => by_signature(inst),
    }
}

fn by_signature(inst: &Inst) -> Vec<String> {
    let mut list = Vec::new();
    if inst.encoding == Encoding::Vopc || inst.def.name.starts_with("v_cmp") {
        list.push(register(&inst.d));
    }
    for slot in inst.def.sig.bytes().step_by(2) {
        let slot = match slot {
            b'D' | b'S' => &inst.d,
            b'M' => &inst.m,
            b'A' => &inst.s[0],
            b'B' => &inst.s[1],
            b'C' => &inst.s[2],
            b'X' => &inst.s[3],
            b'Y' => &inst.s[4],
            _ => continue,
        };
        list.push(operand(inst, slot));
    }
    list
}

/// An operand with its modifiers.
fn operand(inst: &Inst, o: &Operand) -> String {
    let mut text = match o.file {
        File::None => "off".into(),
        File::Scc => "src_scc".into(),
        File::Vccz => "src_vccz".into(),
        File::Execz => "src_execz".into(),
        File::Constant => constant(inst, o),
        _ => register(o),
    };
    if o.abs {
        text = format!("|{text}|");
    }
    if o.sext {
        text = format!("sext({text})");
    }
    if o.neg && (inst.encoding != Encoding::Vop3p || inst.def.is_mixed()) {
        text = format!("-{text}");
    }
    text
}

fn constant(inst: &Inst, o: &Operand) -> String {
    if o.literal {
        return format!("{:#x}", o.value);
    }
    match o.index {
        128..=192 => o.value.to_string(),
        193..=208 => (o.value as i32).to_string(),
        248 if inst.def.is_f64() || o.width == 2 => "0.15915494309189532".into(),
        248 if inst.def.name.ends_with("16") => "0.15915494".into(),
        248 => "0.15915494".into(),
        _ => format!("{:?}", f32::from_bits(o.value)),
    }
}

fn register(o: &Operand) -> String {
    let (index, width) = (o.index, u16::from(o.width));
    let ranged = |prefix: &str, index: u16| match width {
        1 => format!("{prefix}{index}"),
        _ => format!("{prefix}[{index}:{}]", index + width - 1),
    };
    if o.file == File::Vector {
        return ranged(if o.acc { "a" } else { "v" }, index);
    }
    let pair = |name: &str, half: u16| match (width, half) {
        (1, 0) => format!("{name}_lo"),
        (1, _) => format!("{name}_hi"),
        _ => name.to_string(),
    };
    match index {
        102 | 103 => pair("flat_scratch", index & 1),
        104 | 105 => pair("xnack_mask", index & 1),
        106 | 107 => pair("vcc", index & 1),
        126 | 127 => pair("exec", index & 1),
        124 => "m0".into(),
        _ => ranged("s", index),
    }
}

fn modifiers(inst: &Inst, text: &mut String) {
    let f = &inst.f;
    let mut add = |word: String| {
        text.push(' ');
        *text += &word;
    };
    let bits = |bits: u8, n: usize| (0..n).map(|i| (bits >> i & 1).to_string()).collect::<Vec<_>>().join(",");
    let sources = inst.s.iter().take(3).filter(|s| s.file != File::None).count();
    match inst.encoding {
        Encoding::Vop3p => {
            let mixed = inst.def.is_mixed();
            // Their sources carry modifiers themselves, and are f32 unless they say otherwise.
            let neg = inst.s.iter().enumerate().fold(0, |all, (i, s)| all | u8::from(s.neg && !mixed) << i);
            let full = (1 << sources) - 1;
            for (name, value, default) in [
                ("op_sel", f.op_sel, 0),
                ("op_sel_hi", f.op_sel_hi & full, if mixed { 0 } else { full }),
                ("neg_lo", neg, 0),
                ("neg_hi", f.neg_hi, 0),
            ] {
                if value != default {
                    add(format!("{name}:[{}]", bits(value, sources)));
                }
            }
        }
        Encoding::Vop3 if f.op_sel != 0 => {
            let list = bits(f.op_sel, sources);
            add(format!("op_sel:[{list},{}]", f.op_sel >> 3 & 1));
        }
        Encoding::Mai => {
            if inst.def.op & 0x100 != 0 {
                let (lo, hi) =
                    (f.scale_sel & 1 | (f.scale_sel >> 2 & 1) << 1, f.scale_sel >> 1 & 1 | (f.scale_sel >> 3 & 1) << 1);
                if lo != 0 {
                    add(format!("op_sel:[{},0]", bits(lo, 2)));
                }
                add(format!("op_sel_hi:[{},0]", bits(hi, 2)));
            }
            for (name, value) in [("cbsz", f.cbsz), ("abid", f.abid), ("blgp", f.blgp)] {
                if value != 0 {
                    add(format!("{name}:{value}"));
                }
            }
        }
        Encoding::Ds if super::decode_memory::has_two_offsets(inst.def) => {
            add(format!("offset0:{} offset1:{}", f.offset, f.offset1));
        }
        Encoding::Mubuf if f.offen => add("offen".into()),
        _ => {}
    }
    if matches!(inst.encoding, Encoding::Global | Encoding::Mubuf)
        || inst.encoding == Encoding::Ds && !super::decode_memory::has_two_offsets(inst.def)
    {
        if f.offset != 0 {
            add(format!("offset:{}", f.offset));
        }
        for (on, name) in [(f.sc0, "sc0"), (f.nt, "nt"), (f.sc1, "sc1")] {
            if on {
                add(name.into());
            }
        }
        if f.lds && inst.encoding == Encoding::Mubuf {
            add("lds".into());
        }
    }
    if inst.encoding == Encoding::Smem && f.sc0 {
        add("glc".into());
    }
    if inst.def.name.starts_with("v_bitop3") && f.imm != 0 {
        add(format!("bitop3:{:#x}", f.imm));
    }
    if f.clamp {
        add("clamp".into());
    }
    if f.omod != 0 {
        add(["", "mul:2", "mul:4", "div:2"][f.omod as usize].into());
    }
    form(inst, text);
}

fn form(inst: &Inst, text: &mut String) {
    const SEL: [&str; 7] = ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"];
    match inst.form {
        Form::Plain => {}
        Form::Sdwa { dst_sel, dst_unused } => {
            if inst.encoding != Encoding::Vopc {
                let unused = ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"][dst_unused as usize];
                let _infallible = write!(text, " dst_sel:{} dst_unused:{unused}", SEL[dst_sel as usize]);
            }
            let _infallible = write!(text, " src0_sel:{}", SEL[inst.s[0].sel as usize]);
            if inst.encoding != Encoding::Vop1 {
                let _infallible = write!(text, " src1_sel:{}", SEL[inst.s[1].sel as usize]);
            }
        }
        Form::Dpp { ctrl, row_mask, bank_mask, bound_ctrl } => {
            let low = ctrl & 15;
            let control = match ctrl {
                0..=0xff => {
                    format!("quad_perm:[{},{},{},{}]", ctrl & 3, ctrl >> 2 & 3, ctrl >> 4 & 3, ctrl >> 6 & 3)
                }
                0x101..=0x10f => format!("row_shl:{low}"),
                0x111..=0x11f => format!("row_shr:{low}"),
                0x121..=0x12f => format!("row_ror:{low}"),
                0x130 => "wave_shl:1".into(),
                0x134 => "wave_rol:1".into(),
                0x138 => "wave_shr:1".into(),
                0x13c => "wave_ror:1".into(),
                0x140 => "row_mirror".into(),
                0x141 => "row_half_mirror".into(),
                0x142 => "row_bcast:15".into(),
                0x143 => "row_bcast:31".into(),
                _ => format!("row_newbcast:{low}"),
            };
            let bound = if bound_ctrl { " bound_ctrl:0" } else { "" };
            let _infallible = write!(text, " {control} row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}{bound}");
        }
    }
}
