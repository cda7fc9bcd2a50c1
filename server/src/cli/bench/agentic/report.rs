//! The whole result, as a table for a terminal and as JSON.

use serde_json::{Value, json};

use super::{figures::Figures, reference::Compared, replay::Pass};

/// A run against half the memory it needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HalfMemory {
    /// Sessions alive at a time.
    pub alive: usize,
    /// Requests.
    pub requests: usize,
    /// Fewest pages with which Belady finds everything.
    pub pages_needed: usize,
    /// Pages of the engine.
    pub pages: usize,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// The maximum with unlimited memory, in tokens.
    pub maximum: u64,
    /// What this engine found with enough memory.
    pub found_in_enough: u64,
    /// What it found with half.
    pub found: u64,
    /// What Belady finds with half.
    pub belady: u64,
}

impl HalfMemory {
    /// Ours over Belady's.
    pub fn ratio(&self) -> f64 {
        if self.belady == 0 { 1.0 } else { self.found as f64 / self.belady as f64 }
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whom, and how ids are known.
    pub target: String,
    /// What was replayed, in words.
    pub workload: String,
    /// Tokens of a reusable unit.
    pub page_tokens: u32,
    /// By concurrency.
    pub passes: Vec<Figures>,
    /// Later turns at concurrency 1 beside cold requests.
    pub compared: Option<Compared>,
    /// Under memory pressure.
    pub half: Option<HalfMemory>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// A cell of the table.
pub fn cell(value: Option<f64>, digits: usize) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// A share as per cent. Never rounded up to 100.
pub fn percent(share: Option<f64>) -> String {
    let floor = |share: f64| (share * 1e4).floor() / 1e2;
    share.filter(|share| share.is_finite()).map_or_else(|| "-".into(), |share| format!("{:.2}%", floor(share)))
}

impl Report {
    /// Label and a cell per pass.
    pub fn rows(&self) -> Vec<(&'static str, Vec<String>)> {
        let row = |name, cell: &dyn Fn(&Figures) -> String| (name, self.passes.iter().map(cell).collect());
        let mut rows = vec![
            row("requests", &|f| f.requests.to_string()),
            row("failures", &|f| f.failures.len().to_string()),
            row("wall, s", &|f| cell(Some(f.wall_s), 1)),
            row("TTFT first turn, mean, ms", &|f| cell(f.ttft_first.map(|s| s.mean), 1)),
            row("TTFT first turn, p50", &|f| cell(f.ttft_first.map(|s| s.p50), 1)),
            row("TTFT first turn, p95", &|f| cell(f.ttft_first.map(|s| s.p95), 1)),
            row("TTFT later turns, mean, ms", &|f| cell(f.ttft_later.map(|s| s.mean), 1)),
            row("TTFT later turns, p50", &|f| cell(f.ttft_later.map(|s| s.p50), 1)),
            row("TTFT later turns, p95", &|f| cell(f.ttft_later.map(|s| s.p95), 1)),
            row("TPOT, mean, ms", &|f| cell(f.tpot.map(|s| s.mean), 2)),
            row("TPOT, p50", &|f| cell(f.tpot.map(|s| s.p50), 2)),
            row("TPOT, p95", &|f| cell(f.tpot.map(|s| s.p95), 2)),
            row("tokens/s per user", &|f| cell(f.tokens_per_s_per_user(), 1)),
            row("output tokens/s, all", &|f| cell(Some(f.answer_tokens_per_s()), 1)),
            row("prompt + output tokens/s", &|f| cell(Some(f.tokens_per_s()), 0)),
            row("prompt tokens", &|f| f.prompt_tokens.to_string()),
            row("hit rate", &|f| percent(f.hit_rate())),
            row("hit rate, maximum", &|f| percent(f.hit_rate_maximum())),
            row("of the maximum", &|f| percent(f.hits.map(|hits| hits.share()))),
            row("of the maximum of all sent", &|f| {
                let most = f.hits.map(|hits| hits.maximum_sent as f64).filter(|&most| most > 0.0);
                percent(f.cached_tokens.zip(most).map(|(cached, most)| cached as f64 / most))
            }),
            row("requests short of it", &|f| f.hits.map_or("-".into(), |hits| hits.n_short.to_string())),
        ];
        if self.passes.iter().any(|f| f.pages.is_some()) {
            let count = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
            rows.push(row("distinct pages", &|f| count(f.hits.map(|hits| hits.pages as u64))));
            rows.push(row("pages of the engine", &|f| count(f.pages)));
            rows.push(row("cut tokens", &|f| count(f.cut_tokens)));
            rows.push(row("steps", &|f| count(f.steps)));
            rows.push(row("preemptions", &|f| count(f.preemptions)));
        }
        rows
    }

    /// What was found out beside the table, a line each.
    pub fn findings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(c) = &self.compared {
            lines.push(format!(
                "second turn at concurrency 1: {:.1} ms (median of {}), expected {:.1} ms for {:.0} new tokens behind {:.0} \
                 cached, {:.1} ms of it attention; median ratio {:.3}, over all later turns {:.3}",
                c.second_ms,
                c.n_second,
                c.expected_ms,
                c.new_tokens,
                c.cached_tokens,
                c.attention_ms,
                c.ratio_second,
                c.ratio_later
            ));
        }
        if let Some(h) = &self.half {
            lines.push(format!(
                "half the memory: {} of the {} pages that {} rotating sessions need; found {} tokens, Belady finds {}: {} \
                 of Belady, {} of the maximum (with enough memory {})",
                h.pages,
                h.pages_needed,
                h.alive,
                h.found,
                h.belady,
                percent(Some(h.ratio())),
                percent(Some(h.found as f64 / h.maximum.max(1) as f64)),
                percent(Some(h.found_in_enough as f64 / h.maximum.max(1) as f64)),
            ));
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }

    /// For a terminal.
    pub fn render(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.target, self.workload);
        let header: Vec<String> = self.passes.iter().map(|f| f.concurrency.to_string()).collect();
        let rows = self.rows();
        let width = rows.iter().flat_map(|(_, cells)| cells).chain(&header).map(String::len).max().unwrap_or(0) + 2;
        for (name, cells) in std::iter::once(&("sessions at once", header.clone())).chain(&rows) {
            text += &format!("  {name:<28}");
            cells.iter().for_each(|cell| text += &format!("{cell:>width$}"));
            text.push('\n');
        }
        text.push('\n');
        for line in self.findings() {
            text += &format!("{line}\n");
        }
        text
    }

    /// Everything.
    pub fn to_json(&self) -> Value {
        let compared = self.compared.as_ref().map(|c| {
            json!({
                "second_turns": c.n_second,
                "new_tokens_p50": c.new_tokens,
                "cached_tokens_p50": c.cached_tokens,
                "ttft_p50_ms": c.second_ms,
                "expected_p50_ms": c.expected_ms,
                "expected_attention_p50_ms": c.attention_ms,
                "ratio_p50": c.ratio_second,
                "ratio_later_turns_p50": c.ratio_later,
                "cold_tokens_ms": c.reference.cold,
                "cold_long_tokens_ms": c.reference.long,
                "attention_ms_per_new_and_cached_token": c.reference.attention,
            })
        });
        let half = self.half.as_ref().map(|h| {
            json!({
                "sessions_alive": h.alive,
                "requests": h.requests,
                "pages_needed": h.pages_needed,
                "pages": h.pages,
                "prompt_tokens": h.prompt_tokens,
                "maximum_tokens": h.maximum,
                "cached_tokens_with_enough_memory": h.found_in_enough,
                "cached_tokens": h.found,
                "belady_tokens": h.belady,
                "share_of_belady": h.ratio(),
            })
        });
        json!({
            "target": self.target,
            "workload": self.workload,
            "page_tokens": self.page_tokens,
            "passes": self.passes.iter().map(Figures::to_json).collect::<Vec<_>>(),
            "second_turn": compared,
            "half_memory": half,
            "notes": self.notes,
        })
    }
}

/// Prompt tokens of a pass and what of them was cached.
pub fn sums(pass: &Pass) -> (u64, u64) {
    let cached = pass.served.iter().filter_map(|served| served.answer.cached_tokens).sum();
    (pass.served.iter().map(|served| served.answer.prompt_tokens).sum(), cached)
}
