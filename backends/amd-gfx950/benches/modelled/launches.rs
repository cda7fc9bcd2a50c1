//! Launches as the emulator logged them; see its `hip/log.rs` for what members mean.

use std::collections::BTreeSet;

use serde::Deserialize;

/// One launch.
#[derive(Debug, Deserialize)]
pub struct Launch {
    /// Symbol.
    pub kernel: String,
    /// Vector registers.
    pub registers: u32,
    /// Waves per SIMD.
    pub waves_per_simd: u32,
    /// Work-groups that a compute unit holds.
    pub groups_per_unit: u32,
    /// Work-groups.
    pub groups: f64,
    /// Work-groups that ran.
    pub groups_run: f64,
    /// Registers that the compiler spilt, vector and scalar.
    spills: [u32; 2],
    matrix_macs: f64,
    group_bytes: f64,
    /// Cycles of LDS.
    lds_cycles: f64,
    lds_conflict_cycles: f64,
    line_bytes: [f64; 2],
    /// Behind a memory-side cache.
    hbm_bytes: Option<[f64; 2]>,
    /// Microseconds.
    pub modelled: Modelled,
}

/// What the emulator's timing model says.
#[derive(Debug, Deserialize)]
pub struct Modelled {
    /// Microseconds in all.
    pub total: f64,
    /// The resource that decides.
    pub bound: String,
    /// Share of the time that matrix units are busy.
    pub matrix_share: f64,
}

/// Sums over launches.
#[derive(Debug, Default, PartialEq)]
pub struct Sum {
    /// How many.
    pub launches: usize,
    /// Some were sampled.
    pub sampled: bool,
    /// Lines to and from HBM with an ideal cache within each launch, none between launches.
    pub line_bytes: f64,
    /// The same behind a memory-side cache, where one is modelled.
    pub behind: Option<f64>,
    /// Lines that work-groups fetch and write.
    pub fetched_bytes: f64,
    /// Multiply-adds of matrix instructions.
    pub macs: f64,
    /// Modelled microseconds.
    pub micros: f64,
    /// Of them, microseconds that matrix units are busy.
    pub matrix_micros: f64,
    lds_cycles: f64,
    conflict_cycles: f64,
    /// Kernels that spill.
    pub spilling: BTreeSet<String>,
    /// Of the launch that takes longest: microseconds, kernel, registers, waves per SIMD, work-groups per unit, bound.
    pub longest: (f64, String, [u32; 3], String),
}

impl Sum {
    /// Over the lines of a log.
    ///
    /// # Errors
    /// A line that is no launch.
    pub fn of(log: &str) -> Result<Self, String> {
        let mut sum = Self::default();
        for line in log.lines() {
            let launch: Launch = serde_json::from_str(line).map_err(|e| format!("{e} in {line}"))?;
            sum.add(launch);
        }
        Ok(sum)
    }

    /// One line per launch, as text.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn list(log: &str) -> Result<String, String> {
        let mut out = String::new();
        for line in log.lines() {
            let l: Launch = serde_json::from_str(line).map_err(|e| format!("{e} in {line}"))?;
            let scale = l.groups / l.groups_run.max(1.0);
            out += &format!(
                "  {:<16} {:>9} groups {:>9.1} µs by {:<6} HBM {:>9.2} MB, fetched {:>9.2} MB, conflicts {:>4.0}%, {} registers\n",
                l.kernel,
                l.groups,
                l.modelled.total,
                l.modelled.bound,
                l.hbm_bytes.unwrap_or(l.line_bytes).iter().sum::<f64>() / 1e6,
                scale * l.group_bytes / 1e6,
                100.0 * l.lds_conflict_cycles / l.lds_cycles.max(1.0),
                l.registers,
            );
        }
        Ok(out)
    }

    fn add(&mut self, l: Launch) {
        let scale = l.groups / l.groups_run.max(1.0);
        self.launches += 1;
        if l.spills != [0, 0] {
            self.spilling.insert(l.kernel.clone());
        }
        self.sampled |= l.groups > l.groups_run;
        self.line_bytes += l.line_bytes[0] + l.line_bytes[1];
        if let Some(moved) = l.hbm_bytes {
            *self.behind.get_or_insert(0.0) += moved[0] + moved[1];
        }
        self.fetched_bytes += scale * l.group_bytes;
        self.macs += scale * l.matrix_macs;
        self.micros += l.modelled.total;
        self.matrix_micros += l.modelled.total * l.modelled.matrix_share;
        self.lds_cycles += scale * l.lds_cycles;
        self.conflict_cycles += scale * l.lds_conflict_cycles;
        if l.modelled.total > self.longest.0 {
            let numbers = [l.registers, l.waves_per_simd, l.groups_per_unit];
            self.longest = (l.modelled.total, l.kernel, numbers, l.modelled.bound);
        }
    }

    /// Share of LDS cycles that conflicts cost; `None` without LDS.
    pub fn conflicts(&self) -> Option<f64> {
        (self.lds_cycles > 0.0).then(|| self.conflict_cycles / self.lds_cycles)
    }
}
