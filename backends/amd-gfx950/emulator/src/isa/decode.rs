//! Dwords to instructions: dispatch on the leading bits, scalar encodings, source operands.
//!
//! Everything unknown is an error that names the dword; nothing is skipped or guessed. Field positions: CDNA4 manual,
//! chapter 13; checked against LLVM's assembler by printing what was decoded and assembling it again.

use super::{
    decode_memory, decode_vector,
    def::Def,
    inst::{Encoding, File, Inst, NONE, Operand},
    tables::find,
};

/// Why a dword is not an instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No such opcode here.
    #[error("unknown opcode {op} of encoding {encoding}: dword {word:#010x}")]
    Opcode {
        /// Encoding by name.
        encoding: String,
        /// Opcode number.
        op: u32,
        /// First dword.
        word: u32,
    },
    /// A field has a value that is not supported.
    #[error("{what} in dword {word:#010x}")]
    Field {
        /// What.
        what: String,
        /// First dword.
        word: u32,
    },
    /// The code ends inside an instruction.
    #[error("the code ends inside the instruction {word:#010x}")]
    Truncated {
        /// First dword.
        word: u32,
    },
}

/// The dwords of one instruction and of those behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a>(pub &'a [u32]);

impl Words<'_> {
    pub fn get(&self, index: usize) -> Result<u32, DecodeError> {
        self.0.get(index).copied().ok_or(DecodeError::Truncated { word: self.0.first().copied().unwrap_or(0) })
    }

    pub fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, DecodeError> {
        Err(DecodeError::Field { what: what.into(), word: self.0[0] })
    }

    pub fn def(&self, encoding: Encoding, op: u32) -> Result<&'static Def, DecodeError> {
        let unknown = || DecodeError::Opcode { encoding: format!("{encoding:?}"), op, word: self.0[0] };
        find(encoding, op).ok_or_else(unknown)
    }

    /// A source operand of 8 or 9 bits; a literal is the dword at `literal`.
    pub fn source(&self, code: u32, width: u8, literal: Option<usize>) -> Result<Operand, DecodeError> {
        let index = code as u16;
        let constant = |value: u32| Operand { file: File::Constant, value, index, width, ..NONE };
        Ok(match code {
            0..=107 | 124 | 126 | 127 => Operand::scalar(index, width),
            128..=192 => constant(code - 128),
            193..=208 => constant((192 - code as i32) as u32),
            240..=248 => {
                const FLOATS: [f32; 9] = [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.159_154_94];
                constant(FLOATS[code as usize - 240].to_bits())
            }
            251 => Operand { file: File::Vccz, width: 1, ..NONE },
            252 => Operand { file: File::Execz, width: 1, ..NONE },
            253 => Operand { file: File::Scc, width: 1, ..NONE },
            255 => match literal {
                Some(at) => Operand { literal: true, ..constant(self.get(at)?) },
                None => return self.unsupported("a literal in an encoding without literals"),
            },
            256..=511 => Operand::vector(index - 256, width),
            other => return self.unsupported(format!("source operand {other}")),
        })
    }

    /// A scalar destination of 7 bits.
    pub fn scalar_destination(&self, code: u32, width: u8) -> Result<Operand, DecodeError> {
        match code {
            0..=107 | 124 | 126 | 127 => Ok(Operand::scalar(code as u16, width)),
            other => self.unsupported(format!("scalar destination {other}")),
        }
    }
}

/// Decodes the instruction at the start of `words`.
///
/// # Errors
/// Unknown opcodes, unsupported fields and truncated code.
pub fn decode(words: &[u32]) -> Result<Inst, DecodeError> {
    let w = Words(words);
    let first = w.get(0)?;
    match first >> 23 {
        0b1_0111_1101 => sop1(w),
        0b1_0111_1110 => sopc(w),
        0b1_0111_1111 => sopp(w),
        0b1_1010_0111 => decode_vector::vop3p(w),
        _ => match first >> 26 {
            0b11_0000 => decode_memory::smem(w),
            0b11_0100 => decode_vector::vop3(w),
            0b11_0110 => decode_memory::ds(w),
            0b11_0111 => decode_memory::global(w),
            0b11_1000 => decode_memory::mubuf(w),
            _ if first >> 28 == 0b1011 => sopk(w),
            _ if first >> 30 == 0b10 => sop2(w),
            _ if first >> 31 == 0 => decode_vector::short(w),
            other => w.unsupported(format!("encoding {other:#08b} of the leading six bits")),
        },
    }
}

/// Sets `words` to 2 if a source is a literal.
pub(super) fn literal_words(inst: &mut Inst) {
    if inst.s.iter().any(|s| s.literal) {
        inst.words = 2;
    }
}

fn sop2(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let def = w.def(Encoding::Sop2, first >> 23 & 0x7f)?;
    let mut inst = Inst::new(def, Encoding::Sop2, 1);
    inst.d = w.scalar_destination(first >> 16 & 0x7f, def.width('D').unwrap_or(1))?;
    inst.s[0] = w.source(first & 0xff, def.width('A').unwrap_or(1), Some(1))?;
    inst.s[1] = w.source(first >> 8 & 0xff, def.width('B').unwrap_or(1), Some(1))?;
    literal_words(&mut inst);
    Ok(inst)
}

fn sop1(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let def = w.def(Encoding::Sop1, first >> 8 & 0xff)?;
    let mut inst = Inst::new(def, Encoding::Sop1, 1);
    if let Some(width) = def.width('D') {
        inst.d = w.scalar_destination(first >> 16 & 0x7f, width)?;
    }
    if let Some(width) = def.width('A') {
        inst.s[0] = w.source(first & 0xff, width, Some(1))?;
    }
    literal_words(&mut inst);
    Ok(inst)
}

fn sopc(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let def = w.def(Encoding::Sopc, first >> 16 & 0x7f)?;
    let mut inst = Inst::new(def, Encoding::Sopc, 1);
    inst.s[0] = w.source(first & 0xff, def.width('A').unwrap_or(1), Some(1))?;
    inst.s[1] = w.source(first >> 8 & 0xff, def.width('B').unwrap_or(1), Some(1))?;
    literal_words(&mut inst);
    Ok(inst)
}

fn sopk(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let op = first >> 23 & 0x1f;
    let def = w.def(Encoding::Sopk, op)?;
    let mut inst = Inst::new(def, Encoding::Sopk, 1);
    inst.f.imm = first as u16;
    let register = w.scalar_destination(first >> 16 & 0x7f, 1);
    match def.name {
        "s_setreg_imm32_b32" => {
            inst.words = 2;
            inst.s[0] = Operand::constant(w.get(1)?);
        }
        "s_setreg_b32" => inst.s[0] = register?,
        name if name.starts_with("s_cmpk") => inst.s[0] = register?,
        _ => {
            inst.d = register?;
            inst.s[0] = inst.d;
        }
    }
    if matches!(def.name, "s_movk_i32" | "s_getreg_b32") {
        inst.s[0] = NONE;
    }
    Ok(inst)
}

fn sopp(w: Words) -> Result<Inst, DecodeError> {
    let first = w.get(0)?;
    let def = w.def(Encoding::Sopp, first >> 16 & 0x7f)?;
    let mut inst = Inst::new(def, Encoding::Sopp, 1);
    if !matches!(def.name, "s_barrier" | "s_icache_inv") {
        inst.f.imm = first as u16;
    }
    Ok(inst)
}
