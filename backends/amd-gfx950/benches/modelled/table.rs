//! The table as Markdown.

use crate::{launches::Sum, rows::Row};

/// Its head.
pub const HEAD: &str = "\
| step | kernels | launches | HBM, MB | of the floor | fetched, of the floor | matrix work, of the least | matrix share | LDS conflicts | registers, waves, groups | modelled, µs | bound by | ratio | published |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Largest share of the floor that memory-bound steps may move.
const GATE: f64 = 1.15;

/// Two lines, or one where both sets of kernels are the same.
pub fn lines(row: &Row, floor: f64, sums: &[Sum]) -> String {
    let [best, portable] = sums else { return String::new() };
    let alike = best == portable;
    let ratio = if alike { "".to_string() } else { format!("{:.2}x", portable.micros / best.micros) };
    let mut out = line(row, floor, if alike { "the same" } else { row.kernels[0] }, best, &ratio);
    if !alike {
        out += &line(row, floor, row.kernels[1], portable, "");
    }
    out
}

fn line(row: &Row, floor: f64, kernels: &str, s: &Sum, ratio: &str) -> String {
    let about = if s.sampled { "~" } else { "" };
    let over = s.hbm_bytes / floor;
    let gate = if !row.memory_bound || over <= GATE { "" } else { " **over**" };
    let least = if row.macs > 0.0 { format!("{:.2}", s.macs / row.macs) } else { String::new() };
    let conflicts = s.conflicts().map_or_else(String::new, |c| format!("{:.0}%", 100.0 * c));
    let (_, kernel, [registers, waves, groups], bound) = &s.longest;
    let second = kernels == row.kernels[1];
    let published = if second { "" } else { row.published };
    format!(
        "| {} | {kernels} | {} | {about}{:.2} | {about}{over:.2}{gate} | {about}{:.1} | {least} | {:.0}% | {conflicts} | {kernel}: {registers}, {waves}, {groups} | {:.1} | {bound} | {ratio} | {published} |\n",
        if second { "" } else { &row.title },
        s.launches,
        s.hbm_bytes / 1e6,
        s.fetched_bytes / floor,
        100.0 * s.matrix_micros / s.micros.max(1e-9),
        s.micros,
    )
}
