//! The gfx950 instruction set: records, decoder, printer.

mod decode;
mod decode_memory;
mod decode_vector;
mod def;
mod inst;
mod print;
mod tables;

pub use decode::{DecodeError, decode};
pub use def::{CLASSES, Class, Def, L, Sem, W};
pub use inst::{Encoding, Fields, File, Form, Inst, NONE, Operand};
pub use print::print;
pub use tables::all as all_tables;
