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
    let [best, portable] = sums else { return sums.iter().map(|s| line(row, floor, "best", s, "")).collect() };
    let alike = best == portable;
    let ratio = if alike { "".to_string() } else { format!("{:.2}x", portable.micros / best.micros) };
    let mut out = line(row, floor, if alike { "the same" } else { "best" }, best, &ratio);
    if !alike {
        out += &line(row, floor, "portable", portable, "");
    }
    out
}

fn line(row: &Row, floor: f64, kernels: &str, s: &Sum, ratio: &str) -> String {
    let about = if s.sampled { "~" } else { "" };
    let bytes = s.behind.unwrap_or(s.line_bytes);
    let over = bytes / floor;
    let (mark, without) = match s.behind {
        Some(_) => (" †", format!(", {:.2} without cache", s.line_bytes / floor)),
        None => ("", String::new()),
    };
    let gate = if !row.memory_bound || over <= GATE { "" } else { " **over**" };
    let least = if row.macs > 0.0 { format!("{:.2}", s.macs / row.macs) } else { String::new() };
    let conflicts = s.conflicts().map_or_else(String::new, |c| format!("{:.0}%", 100.0 * c));
    let (_, kernel, [registers, waves, groups], bound) = &s.longest;
    let published = if kernels == "portable" { "" } else { row.published };
    format!(
        "| {} | {kernels} | {} | {about}{:.2}{mark} | {about}{over:.2}{gate}{without} | {about}{:.1} | {least} | {:.0}% | {conflicts} | {kernel}: {registers}, {waves}, {groups} | {:.1} | {bound} | {ratio} | {published} |\n",
        if kernels == "portable" { "" } else { &row.title },
        s.launches,
        bytes / 1e6,
        s.fetched_bytes / floor,
        100.0 * s.matrix_micros / s.micros.max(1e-9),
        s.micros,
    )
}
