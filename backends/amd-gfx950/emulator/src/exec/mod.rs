//! Meaning of the instructions, one file per family. Each table line is `number name operands meaning`.
//!
//! Semantics follow the CDNA4 instruction set manual, chapter 12, in our own words; where the manual and the results of
//! compiler-made kernels disagree, the kernels count and a comment says so.

pub mod address;
pub mod atomic;
pub mod buffer;
pub mod carry;
pub mod compare;
pub mod control;
pub mod convert;
pub mod cross_lane;
pub mod formats;
pub mod global;
pub mod lds;
pub mod lds_special;
pub mod mfma;
pub mod packed;
pub mod salu;
pub mod salu1;
pub mod smem;
pub mod transfer;
pub mod valu1;
pub mod valu2;
pub mod valu3;
pub mod wide;

/// A table line.
macro_rules! def {
    ($op:expr, $name:expr, $sig:expr, $class:ident, $sem:expr) => {
        $crate::isa::Def { op: $op, name: $name, sig: $sig, sem: $sem, class: $crate::isa::Class::$class }
    };
}
pub(crate) use def;
