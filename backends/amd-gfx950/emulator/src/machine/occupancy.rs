//! How many waves and work-groups of a kernel a compute unit holds.
//!
//! A SIMD has 512 vector registers per lane, given out in eights, and places for 8 waves; a compute unit has four SIMDs and
//! 160 KiB of LDS, given out in pieces of 1280 bytes (CDNA4 instruction set manual; waves by registers as LLVM prints them).

/// Vector registers of a SIMD, accumulation registers among them, and their granule.
const REGISTERS: (u32, u32) = (512, 8);
/// Waves of a SIMD.
const WAVES: u32 = 8;
/// SIMDs of a compute unit.
pub const SIMDS: u32 = 4;
/// LDS of a compute unit.
pub const LDS_BYTES: u32 = 160 << 10;
const LDS_GRANULE: u32 = 1280;

/// What fits at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Waves per SIMD that registers allow.
    pub waves_per_simd: u32,
    /// Waves of a work-group.
    pub group_waves: u32,
    /// Work-groups per compute unit, by registers and LDS.
    pub groups_per_unit: u32,
}

impl Occupancy {
    /// Of a kernel with so many registers per lane, launched with so many lanes and bytes of LDS.
    pub fn new(vector_registers: u32, lanes: u32, lds_bytes: u32) -> Self {
        let group_waves = lanes.div_ceil(64).max(1);
        let registers = vector_registers.max(1).next_multiple_of(REGISTERS.1);
        let waves_per_simd = (REGISTERS.0 / registers).min(WAVES);
        let by_lds = LDS_BYTES.checked_div(lds_bytes.next_multiple_of(LDS_GRANULE)).unwrap_or(u32::MAX);
        Self { waves_per_simd, group_waves, groups_per_unit: (SIMDS * waves_per_simd / group_waves).min(by_lds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_by_registers_are_those_of_the_manual() {
        let waves = |registers| Occupancy::new(registers, 64, 0).waves_per_simd;
        let steps = [(64, 8), (72, 7), (96, 5), (104, 4), (168, 3), (169, 2), (256, 2), (257, 1), (512, 1)];
        for (registers, want) in steps {
            assert_eq!(waves(registers), want, "{registers} registers");
        }
    }

    #[test]
    fn groups_by_what_runs_out_first() {
        let groups = |registers, lanes, lds| Occupancy::new(registers, lanes, lds).groups_per_unit;
        assert_eq!((groups(32, 256, 0), groups(128, 256, 0), groups(256, 512, 0)), (8, 4, 1));
        assert_eq!((groups(32, 256, 80 << 10), groups(32, 256, (80 << 10) + 1), groups(32, 64, 163_840)), (2, 1, 1));
        assert_eq!(groups(300, 1024, 0), 0, "sixteen waves of 300 registers do not fit");
    }
}
