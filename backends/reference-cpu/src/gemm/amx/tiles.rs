//! The AMX instructions as inline assembly (their intrinsics are not stable), and the tile configuration.
//!
//! Tile use in this crate: 0..=3 products, 4..=6 activations, 7 (and 2, 3 in the narrow kernel) weights.

use std::{arch::asm, marker::PhantomData};

/// Memory operand of LDTILECFG (Intel SDM, "Palette 1").
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Tiles are configured on this thread while this lives.
pub struct Configured(PhantomData<*mut ()>);

impl Configured {
    /// All tiles 64 bytes wide; tile i has `rows[i]` rows.
    ///
    /// # Safety
    /// The process may use AMX.
    pub unsafe fn new(rows: [u8; 8]) -> Self {
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
        config.bytes_per_row[..8].fill(64);
        config.rows[..8].copy_from_slice(&rows);
        // SAFETY: reads 64 bytes of a valid palette-1 configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: AMX is usable, or `new` would have faulted. Back to the initial state: context switches stay cheap.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Tile `$t` := rows at `$p`, `$stride` bytes apart.
macro_rules! load {
    ($t:literal, $p:expr, $stride:expr) => {
        std::arch::asm!(
            concat!("tileloadd tmm", $t, ", [{p} + {s}*1]"),
            p = in(reg) $p, s = in(reg) $stride as usize, options(nostack, readonly, preserves_flags)
        )
    };
}

/// Rows at `$p`, `$stride` bytes apart := tile `$t`.
macro_rules! store {
    ($t:literal, $p:expr, $stride:expr) => {
        std::arch::asm!(
            concat!("tilestored [{p} + {s}*1], tmm", $t),
            p = in(reg) $p, s = in(reg) $stride as usize, options(nostack, preserves_flags)
        )
    };
}

/// Tile `$t` := 0.
macro_rules! zero {
    ($t:literal) => {
        std::arch::asm!(concat!("tilezero tmm", $t), options(nostack, nomem, preserves_flags))
    };
}

/// Tile `$c` += tile `$a` · tile `$b`, bf16 pairs into f32.
macro_rules! multiply {
    ($c:literal, $a:literal, $b:literal) => {
        std::arch::asm!(
            concat!("tdpbf16ps tmm", $c, ", tmm", $a, ", tmm", $b),
            options(nostack, nomem, preserves_flags)
        )
    };
}

pub(crate) use {load, multiply, store, zero};
