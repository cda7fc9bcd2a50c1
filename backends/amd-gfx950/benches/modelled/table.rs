//! The table as Markdown.

use crate::{launches::Sum, limits, rows::Row};

/// Its head.
pub const HEAD: &str = "\
| step | kernels | launches | HBM, MB | of the floor | fetched, of the floor | matrix work, of the least | matrix share | LDS conflicts | registers, waves, groups | modelled, µs | bound by | ratio | published |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Largest share of the floor that memory-bound steps may move.
const GATE: f64 = 1.15;

/// What a row's first line, that of the specialised kernels, must not do: move more than the gate lets a memory-bound step, spill, or miss
/// a limit of its own.
pub fn problems(row: &Row, floor: f64, s: &Sum) -> Vec<String> {
    let over = bytes(s) / floor;
    let mut out: Vec<String> =
        s.spilling.iter().map(|kernel| format!("{}: {kernel} spills registers", row.title)).collect();
    if row.memory_bound && over > GATE {
        out.push(format!("{}: {over:.3} of the floor, {GATE} at most", row.title));
    }
    out.extend(limits::problems(row, s));
    out
}

/// Bytes to and from HBM, as well as they are known.
fn bytes(s: &Sum) -> f64 {
    s.behind.unwrap_or(s.line_bytes)
}

/// What a row compares: devices of the session, and what their lines are called.
pub struct Sets {
    /// The first line's and the second's.
    pub devices: [usize; 2],
    /// Names.
    pub names: [&'static str; 2],
}

/// The best kernels and the portable ones.
pub const KERNELS: Sets = Sets { devices: [0, 1], names: ["best", "portable"] };
/// Both forms of latent attention for long steps.
pub const FORMS: Sets = Sets { devices: [2, 0], names: ["expanded", "absorbed"] };
/// Both factors of expanded latent attention.
pub const EXPANDED_FACTORS: Sets = Sets { devices: [4, 2], names: ["e4m3", "bf16"] };
/// A program that shares launches, and its parts.
pub const PARTS: Sets = Sets { devices: [0, 0], names: ["one launch", "in parts"] };
/// Both factors of dense products.
pub const FACTORS: Sets = Sets { devices: [3, 0], names: ["e4m3", "bf16"] };

/// Two lines, or one where both sets of kernels are the same.
pub fn lines(row: &Row, floors: [f64; 2], sums: &[Sum], sets: &Sets) -> String {
    // With a ratio of blank, since only second lines have none.
    let [best, portable] = sums else {
        return sums.iter().map(|s| line(row, floors[0], sets.names[0], s, " ")).collect();
    };
    let alike = best == portable;
    let ratio = if alike { "".to_string() } else { format!("{:.2}x", portable.micros / best.micros) };
    let mut out = line(row, floors[0], if alike { "the same" } else { sets.names[0] }, best, &ratio);
    if !alike {
        out += &line(row, floors[1], sets.names[1], portable, "");
    }
    out
}

fn line(row: &Row, floor: f64, kernels: &str, s: &Sum, ratio: &str) -> String {
    let about = if s.sampled { "~" } else { "" };
    let bytes = bytes(s);
    let over = bytes / floor;
    let (mark, without) = match s.behind {
        Some(_) => (" †", format!(", {:.2} without cache", s.line_bytes / floor)),
        None => ("", String::new()),
    };
    let gate = if !row.memory_bound || over <= GATE { "" } else { " **over**" };
    let least = if row.macs > 0.0 { format!("{:.2}", s.macs / row.macs) } else { String::new() };
    let conflicts = s.conflicts().map_or_else(String::new, |c| format!("{:.0}%", 100.0 * c));
    let (_, kernel, [registers, waves, groups], bound) = &s.longest;
    let second = ratio.is_empty() && kernels != "the same";
    let published = if second { "" } else { row.published };
    format!(
        "| {} | {kernels} | {} | {about}{:.2}{mark} | {about}{over:.2}{gate}{without} | {about}{:.1} | {least} | {:.0}% | {conflicts} | {kernel}: {registers}, {waves}, {groups} | {:.1} | {bound} | {ratio} | {published} |\n",
        if second { "" } else { &row.title },
        s.launches,
        bytes / 1e6,
        s.fetched_bytes / floor,
        100.0 * s.matrix_micros / s.micros.max(1e-9),
        s.micros,
    )
}
