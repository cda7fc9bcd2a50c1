//! A decoded instruction: what the executor runs and what the printer prints.
//!
//! Decision: one flat record for every encoding, with operands in fixed slots (destination, scalar destination, five
//! sources), so that the executor never looks at bits again and checks (register bounds, pending loads, uninitialised
//! reads) are one loop over slots. Rejected: an enum per encoding; every check would be written a dozen times.

use super::def::Def;

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Slot not used.
    None,
    /// Scalar registers by their encoding: 0..=105, vcc 106, ttmp 108.., m0 124, exec 126.
    Scalar,
    /// Vector or accumulation registers; once loaded, the index is the physical register.
    Vector,
    /// `value` itself.
    Constant,
    /// The scalar condition bit.
    Scc,
    /// 1 if vcc is zero.
    Vccz,
    /// 1 if exec is zero.
    Execz,
}

/// One operand. `width` counts dwords.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operand {
    /// Register file or constant.
    pub file: File,
    /// An accumulation register (until the loader maps it behind the vector registers).
    pub acc: bool,
    /// A constant that stands in a dword behind the instruction.
    pub literal: bool,
    /// Negated (float sign bit).
    pub neg: bool,
    /// Absolute value, applied before `neg`.
    pub abs: bool,
    /// Sign-extended sub-dword selection.
    pub sext: bool,
    /// Sub-dword selection: 0-3 bytes, 4-5 words, 6 whole.
    pub sel: u8,
    /// Dwords.
    pub width: u8,
    /// Register number, or the encoding of an inline constant.
    pub index: u16,
    /// Constant value as a 32-bit pattern.
    pub value: u32,
}

/// An unused slot.
pub const NONE: Operand = Operand {
    file: File::None,
    acc: false,
    literal: false,
    neg: false,
    abs: false,
    sext: false,
    sel: 6,
    width: 0,
    index: 0,
    value: 0,
};

impl Operand {
    /// A scalar register.
    pub const fn scalar(index: u16, width: u8) -> Self {
        Self { file: File::Scalar, index, width, ..NONE }
    }

    /// A vector register.
    pub const fn vector(index: u16, width: u8) -> Self {
        Self { file: File::Vector, index, width, ..NONE }
    }

    /// A constant without an encoding of its own.
    pub const fn constant(value: u32) -> Self {
        Self { file: File::Constant, value, width: 1, literal: true, ..NONE }
    }

    /// Index as a subscript.
    pub fn at(&self) -> usize {
        self.index as usize
    }

    /// Has a float modifier.
    pub fn modified(&self) -> bool {
        self.neg || self.abs
    }
}

/// Encodings, named as in the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Encoding {
    Sop2,
    Sopk,
    Sop1,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vopc,
    Vop3,
    Vop3p,
    Mai,
    Ds,
    Mubuf,
    Global,
}

/// Sub-dword or cross-lane form of a 32-bit vector encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Form {
    Plain,
    Sdwa { dst_sel: u8, dst_unused: u8 },
    Dpp { ctrl: u16, row_mask: u8, bank_mask: u8, bound_ctrl: bool },
}

/// Fields beyond operands; those that an encoding lacks are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Fields {
    pub clamp: bool,
    pub omod: u8,
    /// Per source: which half feeds the low result (VOP3P), or which half is used (VOP3).
    pub op_sel: u8,
    pub op_sel_hi: u8,
    pub neg_hi: u8,
    /// Matrix: formats (f8f6f4) or broadcast controls.
    pub cbsz: u8,
    pub abid: u8,
    pub blgp: u8,
    /// Scale byte selectors of a scaled matrix instruction: bits 0-1 for A, 2-3 for B.
    pub scale_sel: u8,
    pub offset: i32,
    pub offset1: u8,
    pub offen: bool,
    pub idxen: bool,
    pub lds: bool,
    pub sc0: bool,
    pub sc1: bool,
    pub nt: bool,
    /// 16-bit immediate of SOPK and SOPP.
    pub imm: u16,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Inst {
    /// What it is.
    pub def: &'static Def,
    /// How it was encoded.
    pub encoding: Encoding,
    /// Form of a VOP1, VOP2 or VOPC instruction.
    pub form: Form,
    /// Length in dwords.
    pub words: u8,
    /// Main destination.
    pub d: Operand,
    /// Scalar destination of instructions that also write a vector register.
    pub m: Operand,
    /// Sources.
    pub s: [Operand; 5],
    /// Everything else.
    pub f: Fields,
    /// Byte offset in the code section.
    pub address: u32,
    /// Branch target as an instruction index, once resolved.
    pub target: u32,
}

impl Inst {
    /// An instruction without operands.
    pub fn new(def: &'static Def, encoding: Encoding, words: u8) -> Self {
        Self {
            def,
            encoding,
            form: Form::Plain,
            words,
            d: NONE,
            m: NONE,
            s: [NONE; 5],
            f: Fields::default(),
            address: 0,
            target: u32::MAX,
        }
    }

    /// All operands with whether they are written.
    pub fn operands(&self) -> impl Iterator<Item = (&Operand, bool)> {
        [(&self.d, true), (&self.m, true)].into_iter().chain(self.s.iter().map(|s| (s, false)))
    }
}
