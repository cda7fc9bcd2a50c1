//! The conformance suite: does a backend compute what the catalogue says?
//!
//! Every op × case the device claims runs on it and is compared with the reference: largest error and NMSE, bytes
//! around outputs (guards), rows beyond the step's count, a second run (determinism), the same row alone (batch
//! invariance, where claimed), and `program_run` against `op_launch`. An op the claimed profile needs but the device
//! refuses is a failure; any other refusal is counted and shown.

mod case;
mod compare;
mod report;

pub use case::Outcome;
pub use report::{OpLine, Report};

use crate::{
    abi::*,
    backend::{BackendError, Device},
    catalogue::{CATALOGUE, Case, Entry},
    op::OpKind,
};

/// Ops a profile consists of. Fused ops are never part of one: the host expands them.
pub fn profile_ops(profile: u32) -> &'static [OpKind] {
    match profile {
        TS_PROFILE_LLAMA => &[
            OpKind::TableUpdate,
            OpKind::Copy,
            OpKind::Gemm,
            OpKind::RmsNorm,
            OpKind::Rope,
            OpKind::Silu,
            OpKind::Add,
            OpKind::Mul,
            OpKind::Embedding,
            OpKind::KvWrite,
            OpKind::PagedAttention,
            OpKind::RowGather,
        ],
        TS_PROFILE_KIMI => &[
            OpKind::TableUpdate,
            OpKind::Copy,
            OpKind::Gemm,
            OpKind::RmsNorm,
            OpKind::Silu,
            OpKind::Add,
            OpKind::Mul,
            OpKind::Embedding,
            OpKind::KvWrite,
            OpKind::RowGather,
            OpKind::Slice,
            OpKind::Concat,
            OpKind::Sigmoid,
            OpKind::L2Norm,
            OpKind::ShortConv,
            OpKind::KdaGate,
            OpKind::KdaStep,
            OpKind::KdaVerify,
            OpKind::KdaRecord,
            OpKind::KdaReplay,
            OpKind::MlaAbsorb,
            OpKind::MlaAttention,
            OpKind::MlaValue,
            OpKind::AttnResMix,
            OpKind::SituMul,
            OpKind::RouterTopk,
            OpKind::Experts,
        ],
        _ => &[],
    }
}

/// Profiles this version of the catalogue knows, with their names.
pub const PROFILES: [(u32, &str); 2] = [(TS_PROFILE_LLAMA, "llama"), (TS_PROFILE_KIMI, "kimi")];

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Seed of the generated inputs.
    pub seed: u64,
    /// Repetitions for timing; 0 = do not time.
    pub timing_runs: u32,
    /// Only the op of this name, or if there is none, ops whose name contains it.
    pub only: Option<String>,
}

/// Run the suite. `profiles` and `tiers` are what the backend claims. Errors only if the device itself is lost.
pub fn run(device: &Device, tiers: u32, profiles: u32, options: &Options) -> Result<Report, BackendError> {
    let mut session = case::Session::new(device)?;
    let mut report = Report::new(tiers, profiles);
    let exact = CATALOGUE.iter().any(|e| options.only.as_deref() == Some(e.kind.name()));
    let chosen = |e: &&Entry| match options.only.as_deref() {
        None => true,
        Some(name) if exact => e.kind.name() == name,
        Some(text) => e.kind.name().contains(text),
    };
    for entry in CATALOGUE.iter().filter(chosen) {
        let mut line = OpLine::new(entry.kind);
        for case in (entry.cases)(options.seed) {
            let outcome = run_case(&mut session, entry, &case, options)?;
            line.add(&case, outcome);
        }
        let needed = PROFILES.iter().any(|(p, _)| profiles & p != 0 && profile_ops(*p).contains(&entry.kind));
        if needed && line.passed == 0 && line.failures.is_empty() {
            line.failures.push(format!("the claimed profile needs it, but every case is refused: {}", line.refusal()));
        }
        report.lines.push(line);
    }
    Ok(report)
}

fn run_case(
    session: &mut case::Session<'_>,
    entry: &Entry,
    case: &Case,
    options: &Options,
) -> Result<Outcome, BackendError> {
    match case::run(session, entry, case, options.timing_runs) {
        // A lost device ends the suite; any other error is this case's.
        Err(error) if error.is_sticky() => Err(error),
        Err(error) => Ok(Outcome::Failed(error.to_string())),
        Ok(outcome) => Ok(outcome),
    }
}
