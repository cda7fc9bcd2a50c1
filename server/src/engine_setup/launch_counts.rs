//! What launches did, by code object: a log of JSON lines that an emulated device writes.

use std::{collections::HashMap, fmt, path::Path};

use serde::Deserialize;

/// The variable that makes an emulated device write the log.
pub const VARIABLE: &str = "TOKENSPEED_EMULATOR_COUNTERS";

#[derive(Deserialize)]
struct Launch {
    object: String,
    groups: f64,
    groups_run: f64,
    group_bytes: f64,
    lds_cycles: f64,
    lds_conflict_cycles: f64,
    line_bytes: [f64; 2],
    touched_bytes: [f64; 2],
    modelled: Modelled,
}

#[derive(Deserialize)]
struct Modelled {
    total: f64,
    bound: String,
    matrix_share: f64,
}

/// Sums over the launches of one code object.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    launches: u64,
    line_bytes: f64,
    touched_bytes: f64,
    fetched_bytes: f64,
    lds_cycles: f64,
    conflict_cycles: f64,
    micros: f64,
    matrix_micros: f64,
    /// Of the longest launch.
    longest: f64,
    bound: Bound,
}

/// Name of a resource, cut to what a column holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bound([u8; 8]);

impl Bound {
    fn new(name: &str) -> Self {
        let mut out = [b' '; 8];
        out.iter_mut().zip(name.bytes().filter(u8::is_ascii_graphic)).for_each(|(to, from)| *to = from);
        Self(out)
    }
}

impl Counts {
    /// Sums by the hash of the code object.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no launch.
    pub fn read(log: &Path) -> Result<HashMap<u64, Self>, String> {
        let text = std::fs::read_to_string(log).map_err(|e| e.to_string())?;
        let mut all: HashMap<u64, Self> = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: String| format!("line {}: {what}", number + 1);
            let launch: Launch = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
            let object = u64::from_str_radix(&launch.object, 16).map_err(|e| wrong(format!("object: {e}")))?;
            all.entry(object).or_default().add(&launch);
        }
        Ok(all)
    }

    fn add(&mut self, l: &Launch) {
        let scale = l.groups / l.groups_run.max(1.0);
        self.launches += 1;
        self.line_bytes += l.line_bytes.iter().sum::<f64>();
        self.touched_bytes += l.touched_bytes.iter().sum::<f64>();
        self.fetched_bytes += scale * l.group_bytes;
        self.lds_cycles += scale * l.lds_cycles;
        self.conflict_cycles += scale * l.lds_conflict_cycles;
        self.micros += l.modelled.total;
        self.matrix_micros += l.modelled.total * l.modelled.matrix_share;
        if l.modelled.total > self.longest {
            (self.longest, self.bound) = (l.modelled.total, Bound::new(&l.modelled.bound));
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        write!(
            f,
            "{:>8} {:>10.0} {:>7.2} {:>7.2} {:>6.0}% {:>8.0}%  {}",
            self.launches,
            self.line_bytes,
            of(self.line_bytes, self.touched_bytes),
            of(self.fetched_bytes, self.touched_bytes),
            100.0 * of(self.matrix_micros, self.micros),
            100.0 * of(self.conflict_cycles, self.lds_cycles),
            String::from_utf8_lossy(&self.bound.0).trim_end()
        )
    }
}
