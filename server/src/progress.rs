//! What a person sees while a model loads: the preflight table, then a progress bar, or JSON lines for machines.

use indicatif::{ProgressBar, ProgressStyle};

use crate::log::Log;

/// Lines of the preflight table: (label, value). Labels repeat for continued sections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preflight {
    /// In printing order.
    pub rows: Vec<(String, String)>,
}

impl Preflight {
    /// Add a line.
    pub fn row(&mut self, label: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.rows.push((label.into(), value.into()));
        self
    }

    /// Two aligned columns; a value with line breaks continues under itself.
    pub fn render(&self) -> String {
        let width = self.rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (label, value) in &self.rows {
            for (number, line) in value.split('\n').enumerate() {
                let label = if number == 0 { label.as_str() } else { "" };
                text.push_str(format!("  {label:<width$}  {line}").trim_end());
                text.push('\n');
            }
        }
        text
    }
}

/// Hears how loading goes. Calls come from one thread, in order.
pub trait Progress: Send {
    /// Everything that will be done, before any weight is read.
    fn preflight(&mut self, table: &Preflight);
    /// Work of `total_bytes` starts.
    fn begin(&mut self, label: &str, total_bytes: u64);
    /// `bytes` more are done.
    fn advance(&mut self, bytes: u64);
    /// The work that began last is done.
    fn finish(&mut self);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn preflight(&mut self, _table: &Preflight) {}
    fn begin(&mut self, _label: &str, _total_bytes: u64) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
}

/// Table and bar on standard error. The bar hides itself where standard error is no terminal.
#[derive(Debug)]
pub struct Terminal {
    log: Log,
    table: bool,
    bar: Option<ProgressBar>,
}

impl Terminal {
    /// `table`: print the preflight table too.
    pub fn new(log: Log, table: bool) -> Self {
        Self { log, table, bar: None }
    }
}

/// The one style of bars in this program.
pub fn bar(label: &str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("  {msg} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}");
    let bar = ProgressBar::new(total_bytes);
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(label.to_owned());
    bar
}

impl Progress for Terminal {
    fn preflight(&mut self, table: &Preflight) {
        if self.log.is_json() {
            let fields: Vec<(&str, &str)> = table.rows.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            self.log.event("preflight", &fields);
        } else if self.table {
            eprint!("{}", table.render());
        }
    }

    fn begin(&mut self, label: &str, total_bytes: u64) {
        if self.log.is_json() {
            self.log.event("load", &[("what", label), ("bytes", &total_bytes.to_string())]);
        } else {
            self.bar = Some(bar(label, total_bytes));
        }
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_aligned_and_continues_long_values() {
        let mut table = Preflight::default();
        table.row("model", "m").row("chosen kernels", "gemm: a\nrope: b");
        assert_eq!(table.render(), "  model           m\n  chosen kernels  gemm: a\n                  rope: b\n");
    }
}
