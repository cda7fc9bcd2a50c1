//! Code objects: ELF files with kernels for gfx950.

mod descriptor;
mod elf;
mod kernel;
mod msgpack;

pub use descriptor::Descriptor;
pub use elf::{Elf, LoadError};
pub use kernel::{Argument, Kernel, Object};
