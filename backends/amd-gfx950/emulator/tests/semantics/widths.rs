//! The widths that instructions move between memory and registers, the same for global addresses and for buffers.

/// A load: its name behind `global_load_` or `buffer_load_`, bytes, whether the sign is extended, the half that alone is written.
#[derive(Clone, Copy)]
pub struct Load(pub &'static str, pub usize, bool, Option<u32>);

/// A store: its name behind `global_store_` or `buffer_store_`, bytes, the first bit that is stored.
pub type Store = (&'static str, usize, u32);

pub const LOADS: [Load; 14] = [
    Load("ubyte", 1, false, None),
    Load("sbyte", 1, true, None),
    Load("ushort", 2, false, None),
    Load("sshort", 2, true, None),
    Load("dword", 4, false, None),
    Load("dwordx2", 8, false, None),
    Load("dwordx3", 12, false, None),
    Load("dwordx4", 16, false, None),
    Load("ubyte_d16", 1, false, Some(0)),
    Load("ubyte_d16_hi", 1, false, Some(16)),
    Load("sbyte_d16", 1, true, Some(0)),
    Load("sbyte_d16_hi", 1, true, Some(16)),
    Load("short_d16", 2, false, Some(0)),
    Load("short_d16_hi", 2, false, Some(16)),
];

pub const STORES: [Store; 8] = [
    ("byte", 1, 0),
    ("byte_d16_hi", 1, 16),
    ("short", 2, 0),
    ("short_d16_hi", 2, 16),
    ("dword", 4, 0),
    ("dwordx2", 8, 0),
    ("dwordx3", 12, 0),
    ("dwordx4", 16, 0),
];

/// Sign-extended low `bits` bits.
pub fn signed(x: u64, bits: u32) -> i128 {
    let x = i128::from(x) % (1i128 << bits);
    if x >= 1i128 << (bits - 1) { x - (1i128 << bits) } else { x }
}

impl Load {
    /// What a register that held `old` has when `found` was in memory.
    pub fn register(self, old: u32, found: u64) -> u32 {
        let Self(_, bytes, extends, half) = self;
        let found = if extends { signed(found, 8 * bytes as u32) as u32 } else { found as u32 };
        match half {
            Some(low) => old & !(0xffff << low) | (found & 0xffff) << low,
            None => found,
        }
    }
}
