//! The 64-byte kernel descriptor: registers, LDS, what the hardware puts into scalar registers before the first instruction.
//! Layout: LLVM's AMDGPU guide, "Kernel Descriptor", GFX90A and later columns.

use super::elf::{LoadError, Reader};

/// A kernel descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Static LDS bytes.
    pub lds_bytes: u32,
    /// Scratch bytes per lane.
    pub scratch_bytes: u32,
    /// Bytes of the argument segment.
    pub kernarg_bytes: u32,
    /// Entry, relative to the descriptor.
    pub entry: i64,
    /// Vector registers, accumulation registers included.
    pub vector_registers: usize,
    /// Number of the first accumulation register in the common file.
    pub first_acc: usize,
    /// MODE at start.
    pub mode: u32,
    /// User scalar registers in all.
    pub user_registers: u32,
    /// Which user registers are set up, bits as in the descriptor's properties.
    pub properties: u32,
    /// Dwords of arguments preloaded behind the other user registers.
    pub preload_dwords: u32,
    /// First preloaded dword.
    pub preload_offset: u32,
    /// Group coordinates in scalar registers.
    pub group_id: [bool; 3],
    /// Dimensions of lane coordinates in v0.
    pub lane_id: u32,
}

impl Descriptor {
    /// Parses 64 bytes.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, LoadError> {
        let r = Reader(bytes);
        let int = |at| r.int(at, 4).map(|x| x as u32);
        let (rsrc3, rsrc1, rsrc2) = (int(44)?, int(48)?, int(52)?);
        let (properties, preload) = (r.int(56, 2)? as u32, r.int(58, 2)? as u32);
        Ok(Self {
            lds_bytes: int(0)?,
            scratch_bytes: int(4)?,
            kernarg_bytes: int(8)?,
            entry: r.int(16, 8)? as i64,
            vector_registers: ((rsrc1 & 0x3f) as usize + 1) * 8,
            first_acc: ((rsrc3 & 0x3f) as usize + 1) * 4,
            // Round and denormal modes, then DX10 clamp and IEEE, then the overflow of f16.
            mode: rsrc1 >> 12 & 0xff | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 | (rsrc1 >> 26 & 1) << 23,
            user_registers: rsrc2 >> 1 & 0x1f,
            properties,
            preload_dwords: preload & 0x7f,
            preload_offset: preload >> 7,
            group_id: [rsrc2 >> 7 & 1 != 0, rsrc2 >> 8 & 1 != 0, rsrc2 >> 9 & 1 != 0],
            lane_id: rsrc2 >> 11 & 3,
        })
    }
}
