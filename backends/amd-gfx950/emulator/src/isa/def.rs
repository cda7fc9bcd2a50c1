//! What an opcode is: its number, its name, its operands and its meaning, in one line of a table.
//!
//! Decision: the tables stand beside the semantics (`exec/`), so a reader sees `number name operands meaning` together, and
//! an opcode without meaning cannot be decoded. Numbers are facts of the CDNA4 manual and were compared with LLVM.

use super::inst::Inst;
use crate::machine::Cx;

/// A register of 64 lanes.
pub type L = [u32; 64];
/// The same with 64-bit lanes.
pub type W = [u64; 64];

/// Meaning of an opcode. Plain arithmetic is a function of values; whatever touches more state takes the context.
#[derive(Clone, Copy)]
pub enum Sem {
    /// Scalar, one source and scc in; result and, if written, scc.
    S1(fn(u64, bool) -> (u64, Option<bool>)),
    /// Scalar, two sources.
    S2(fn(u64, u64, bool) -> (u64, Option<bool>)),
    /// Scalar compare into scc.
    Sc(fn(u64, u64) -> bool),
    /// Vector, one source.
    V1(fn(&L, &mut L)),
    /// Vector, two sources.
    V2(fn(&L, &L, &mut L)),
    /// Vector, three sources.
    V3(fn(&L, &L, &L, &mut L)),
    /// Vector compare of 32-bit lanes into a mask.
    C(fn(&L, &L) -> u64),
    /// Vector compare of 64-bit lanes into a mask.
    Cw(fn(&W, &W) -> u64),
    /// Vector with some 64-bit operands (32-bit ones zero-extended).
    W3(fn(&W, &W, &W, &mut W)),
    /// Anything else.
    X(fn(&mut Cx, &Inst)),
}

impl std::fmt::Debug for Sem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sem")
    }
}

/// Classes of instructions, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Class {
    Scalar,
    Branch,
    Wait,
    ScalarMemory,
    Vector,
    Transcendental,
    Matrix,
    Lds,
    VectorMemory,
}

/// Names of the classes in order.
pub const CLASSES: [&str; 9] =
    ["scalar", "branch", "wait", "scalar memory", "vector", "transcendental", "matrix", "LDS", "vector memory"];

/// One opcode of one encoding.
#[derive(Debug)]
pub struct Def {
    /// Opcode number in its own encoding.
    pub op: u16,
    /// Mnemonic without `_e32`, `_e64`, `_dpp`, `_sdwa`.
    pub name: &'static str,
    /// Operands in printing order, two characters each: slot and width in dwords (hexadecimal, `g` = 16). Slots: `D`
    /// destination (vector, or scalar in scalar encodings), `S` scalar destination of a vector instruction, `M` second,
    /// scalar destination, `A` `B` `C` `X` `Y` sources; a small letter is used but not printed.
    pub sig: &'static str,
    /// Meaning.
    pub sem: Sem,
    /// For counters.
    pub class: Class,
}

impl Def {
    /// Width in dwords of a slot, if the opcode has it.
    pub fn width(&self, slot: char) -> Option<u8> {
        let bytes = self.sig.as_bytes();
        let at = bytes.iter().step_by(2).position(|b| b.eq_ignore_ascii_case(&(slot as u8)))?;
        Some(match bytes[2 * at + 1] {
            b'g' => 16,
            digit => (digit as char).to_digit(16).unwrap_or(1) as u8,
        })
    }

    /// Operates on doubles: inline constants become doubles.
    pub fn is_f64(&self) -> bool {
        self.name.ends_with("_f64")
    }

    /// Multiplies and adds f32 and f16 sources in any mix.
    pub fn is_mixed(&self) -> bool {
        self.name.starts_with("v_fma_mix")
    }
}
