//! What the suite found, as people read it.

use std::fmt;

use super::{Outcome, PROFILES, case::claims_programs, compare::Distance};
use crate::{catalogue::Case, op::OpKind};

/// One op.
#[derive(Clone, Debug)]
pub struct OpLine {
    /// Op.
    pub kind: OpKind,
    /// Cases within tolerance.
    pub passed: usize,
    /// Of them, those whose program the device replays from a recording, all of it.
    pub captured: usize,
    /// Cases the device does not claim, with its reasons.
    pub refusals: Vec<String>,
    /// What was wrong.
    pub failures: Vec<String>,
    /// Worst distance seen.
    pub distance: Distance,
    /// Kernel names seen.
    pub implementations: Vec<String>,
    /// (case, median nanoseconds), if timed.
    pub times: Vec<(String, u64)>,
}

impl OpLine {
    pub(super) fn new(kind: OpKind) -> Self {
        Self {
            kind,
            passed: 0,
            captured: 0,
            refusals: Vec::new(),
            failures: Vec::new(),
            distance: Distance::default(),
            implementations: Vec::new(),
            times: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, case: &Case, outcome: Outcome) {
        match outcome {
            Outcome::Passed { distance, nanoseconds, implementation, captured } => {
                self.passed += 1;
                self.captured += usize::from(captured);
                self.distance = self.distance.worse(distance);
                if !self.implementations.contains(&implementation) {
                    self.implementations.push(implementation);
                }
                self.times.extend(nanoseconds.map(|ns| (case.name.clone(), ns)));
            }
            Outcome::Refused(reason) => self.refusals.push(reason),
            Outcome::Failed(message) => self.failures.push(message),
        }
    }

    /// The first reason for a refusal.
    pub fn refusal(&self) -> &str {
        self.refusals.first().map_or("", String::as_str)
    }
}

/// The whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Claimed tiers.
    pub tiers: u32,
    /// Claimed profiles.
    pub profiles: u32,
    /// Per op, in catalogue order.
    pub lines: Vec<OpLine>,
}

impl Report {
    pub(super) fn new(tiers: u32, profiles: u32) -> Self {
        Self { tiers, profiles, lines: Vec::new() }
    }

    /// Nothing failed.
    pub fn passed(&self) -> bool {
        self.lines.iter().all(|l| l.failures.is_empty())
    }

    /// Cases passed, refused, failed.
    pub fn totals(&self) -> (usize, usize, usize) {
        let sum = |f: fn(&OpLine) -> usize| self.lines.iter().map(f).sum();
        (sum(|l| l.passed), sum(|l| l.refusals.len()), sum(|l| l.failures.len()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16} {:>6} {:>7} {:>6}  {:>9} {:>9}  kernels",
            "op", "passed", "refused", "failed", "NMSE", "max error"
        )?;
        for l in &self.lines {
            writeln!(
                f,
                "{:<16} {:>6} {:>7} {:>6}  {:>9.1e} {:>9.1e}  {}",
                l.kind.name(),
                l.passed,
                l.refusals.len(),
                l.failures.len(),
                l.distance.nmse,
                l.distance.max_error,
                if l.implementations.is_empty() { l.refusal().to_owned() } else { l.implementations.join(", ") }
            )?;
        }
        for l in &self.lines {
            for failure in &l.failures {
                writeln!(f, "FAILED {}: {failure}", l.kind)?;
            }
        }
        for l in &self.lines {
            for (case, ns) in &l.times {
                writeln!(f, "{:>12.1} µs  {} {case}", *ns as f64 / 1e3, l.kind)?;
            }
        }
        let (passed, refused, failed) = self.totals();
        let captured: usize = self.lines.iter().map(|l| l.captured).sum();
        let tier = match (claims_programs(self.tiers), captured) {
            (false, _) => "T0 (ops)".to_owned(),
            (true, 0) => "T1 (programs)".to_owned(),
            (true, n) => format!("T1 (programs, {n} of {passed} captured)"),
        };
        let profiles: Vec<&str> = PROFILES.iter().filter(|(p, _)| self.profiles & p != 0).map(|(_, n)| *n).collect();
        let profiles = if profiles.is_empty() { "none".to_owned() } else { profiles.join(", ") };
        writeln!(f, "tier {tier}, profiles {profiles}: {passed} passed, {refused} refused, {failed} failed")
    }
}
