//! A model of how long a launch takes on an MI355X, from what it did. It is a model: nobody has measured anything.
//!
//! The time is that of the busiest resource of the busiest compute unit, plus a constant per launch:
//!
//! | resource | per compute unit, n = ceil(work-groups / 256) of them, r = min(n, what fits at a time) |
//! |---|---|
//! | matrix | n · MFMA cycles of a work-group / SIMDs in use, min(4, r · its waves) |
//! | vector | n · (4 · vector + 8 · transcendental instructions) / SIMDs in use |
//! | LDS | n · cycles of LDS: phases and bank conflicts |
//! | L1 | n · cycles of L1: 64 bytes of a line each |
//! | L2 | lines per work-group, all of them / 2 KiB per cycle and XCD, 8 XCDs |
//! | cache | footprint / 17.2 TB/s, between the L2s and the memory-side cache |
//! | HBM | footprint, or what a modelled memory-side cache leaves of it, / min(8 TB/s, 47 GB/s per compute unit in use) |
//!
//! Sources: 256 compute units of four SIMDs at 2.4 GHz, 8 TB/s, matrix rates that sum to the published 2.5 / 5 / 10 PFLOP/s (AMD's
//! CDNA4 white paper and instruction set manual); 64 bytes a cycle of L1 and half of it for 8 bytes per lane, 8 cycles of a transcendental instruction, and bandwidth by number of
//! work-groups (1.5 TB/s from 32) as reported in ROCm's gfx950 Gluon tutorials; L2 rates and those of the memory-side cache from the CDNA3 white paper. The
//! constant, 2 µs, is an assumption about launches of a captured graph.
//!
//! Left out, so that times are lower bounds and ratios of long latency chains are too kind: latency of dependent loads and
//! barriers, waits, clocks under load (reported matrix kernels reach 46 to 60% of peak), what several L2s fetch each for
//! themselves. Rejected: a
//! cycle-by-cycle model, which would invite to believe its digits.

use super::{
    counters::Counters,
    detail::{Detail, Footprint, LINE_BYTES},
    occupancy::{Occupancy, SIMDS},
};
use crate::isa::Class;

/// Compute units.
pub const UNITS: f64 = 256.0;
/// Cycles per second.
pub const CLOCK: f64 = 2.4e9;
/// Bytes per second of HBM, of the device and of what one compute unit draws.
pub const HBM: f64 = 8e12;
const HBM_UNIT: f64 = 47e9;
/// Bytes per second of the memory-side cache.
const SIDE: f64 = 17.2e12;
/// Bytes per cycle of all L2s.
const L2: f64 = 2048.0 * 8.0;
/// Cycles of a vector and of a transcendental instruction.
const VECTOR: f64 = 4.0;
const TRANSCENDENTAL: f64 = 8.0;
/// Seconds of a launch beside its work.
pub const LAUNCH: f64 = 2e-6;

/// Names of the resources, in the order of [`Estimate::seconds`].
pub const RESOURCES: [&str; 7] = ["matrix", "vector", "LDS", "L1", "L2", "cache", "HBM"];

/// Modelled seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Per resource, see [`RESOURCES`].
    pub seconds: [f64; 7],
    /// The launch.
    pub total: f64,
    /// The resource that decides.
    pub bound: &'static str,
    /// Share of the launch's time in which matrix units are busy: an upper bound of their utilisation.
    pub matrix_share: f64,
}

/// Models a launch of `groups` work-groups, of which `counters.groups` ran.
pub fn estimate(counters: &Counters, groups: u64, occupancy: Occupancy, footprint: &Footprint) -> Estimate {
    let ran = counters.groups.max(1) as f64;
    let each = |sum: u64| sum as f64 / ran;
    let nothing = Detail::default();
    let detail = counters.detail.as_deref().unwrap_or(&nothing);
    let groups = groups as f64;
    let n = (groups / UNITS).ceil();
    let resident = n.min(f64::from(occupancy.groups_per_unit.max(1)));
    let simds = f64::from(SIMDS).min(resident * f64::from(occupancy.group_waves));
    let class = |class: Class| each(counters.instructions[class as usize]);
    let vector = VECTOR * class(Class::Vector) + TRANSCENDENTAL * class(Class::Transcendental);
    let moved = (footprint.read_lines + footprint.written_lines) * LINE_BYTES as f64;
    let hbm = detail.hbm.map_or(moved, |t| ((t.read + t.written) * LINE_BYTES) as f64);
    let seconds = [
        n * each(counters.matrix_cycles) / simds / CLOCK,
        n * vector / simds / CLOCK,
        n * each(detail.lds_cycles) / CLOCK,
        n * each(detail.l1_cycles) / CLOCK,
        groups * each(detail.group_lines) * LINE_BYTES as f64 / L2 / CLOCK,
        moved / SIDE,
        hbm / HBM.min(HBM_UNIT * groups.min(UNITS)),
    ];
    let busiest = (0..seconds.len()).max_by(|a, b| seconds[*a].total_cmp(&seconds[*b])).unwrap_or(0);
    let total = seconds[busiest] + LAUNCH;
    // All SIMDs of the device, busy or not.
    let matrix = groups * each(counters.matrix_cycles) / (UNITS * f64::from(SIMDS)) / CLOCK;
    let matrix_share = if seconds[busiest] > 0.0 { matrix / seconds[busiest] } else { 0.0 };
    Estimate { seconds, total, bound: RESOURCES[busiest], matrix_share }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    #[test]
    fn a_full_device_of_matrix_work_runs_at_the_published_peak() {
        // 256 work-groups of 4 waves, each wave 1000 instructions of 16x16x32 bf16: 16 cycles, 16384 operations.
        let counters = Counters { groups: 256, matrix_cycles: 256 * 4 * 1000 * 16, ..Counters::default() };
        let e = estimate(&counters, 256, Occupancy::new(128, 256, 0), &Footprint::default());
        let rate = 256.0 * 4.0 * 1000.0 * 16384.0 / e.seconds[0];
        assert!((rate / 2.5e15 - 1.0).abs() < 0.02 && e.bound == "matrix" && close(e.matrix_share, 1.0), "{rate}");
        // One more work-group than units takes twice as long, and half of the device idles.
        let more = Counters { groups: 257, matrix_cycles: 257 * 4 * 1000 * 16, ..Counters::default() };
        let more = estimate(&more, 257, Occupancy::new(128, 256, 0), &Footprint::default());
        assert!(close(more.seconds[0], 2.0 * e.seconds[0]) && more.matrix_share < 0.51);
        // A wave alone has one SIMD.
        let one = Counters { groups: 1, matrix_cycles: 1000 * 16, ..Counters::default() };
        let one = estimate(&one, 1, Occupancy::new(128, 64, 0), &Footprint::default());
        assert!(close(one.seconds[0], e.seconds[0]));
    }

    #[test]
    fn memory_is_slower_from_few_work_groups() {
        let footprint = Footprint { read_lines: 1e6, ..Footprint::default() };
        let time = |groups| {
            let counters = Counters { groups, ..Counters::default() };
            estimate(&counters, groups, Occupancy::new(64, 256, 0), &footprint).seconds[6]
        };
        assert!(close(time(1024), 128e6 / 8e12) && close(time(32), 128e6 / 1.504e12));
    }

    #[test]
    fn sampled_launches_are_scaled_by_work_groups() {
        let detail = Detail { group_lines: 20, lds_cycles: 70, l1_cycles: 80, ..Detail::default() };
        let counters = Counters { groups: 2, detail: Some(Box::new(detail)), ..Counters::default() };
        let e = estimate(&counters, 512, Occupancy::new(64, 256, 0), &Footprint::default());
        assert!(close(e.seconds[2], 2.0 * 35.0 / CLOCK) && close(e.seconds[3], 2.0 * 40.0 / CLOCK));
        assert!(close(e.seconds[4], 512.0 * 10.0 * 128.0 / 16384.0 / CLOCK));
        assert!(close(e.total, e.seconds[3] + LAUNCH) && e.bound == "L1");
    }
}
