//! `tokenspeed bench policies`: what scheduling does to latencies, measured in virtual time.
//!
//! `docs/scheduling.md` explains the figures, with the charts that `--plots` writes. Rejected: measuring policies on a real
//! model here. What a policy changes is the order of work, and beside the noise of a machine small effects of order vanish.

mod experiments;
mod lab;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use self::experiments::{
    Chat, GOOD_TTFT_MS, Mix, Overload, POLICIES, QUEUE_DELAY_MS, Stream, chat, mix, overload, stream,
};
use super::plot::{Axis, BarChart, LineChart, Series};
use crate::error::CliError;

/// Arguments of `bench policies`.
#[derive(Clone, Debug, Args)]
pub struct BenchPoliciesArgs {
    /// Seed of arrivals and texts
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write charts into this folder
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Figures {
    stream: Vec<Stream>,
    /// Requests refused in time.
    overload_refusing: Vec<Overload>,
    /// Everybody queued.
    overload_queueing: Vec<Overload>,
    mix: Vec<Mix>,
    chat: Vec<Chat>,
}

/// Run it.
pub fn run(args: &BenchPoliciesArgs) -> Result<(), CliError> {
    let targets = [None, Some(18.0), Some(20.0), Some(25.0), Some(30.0), Some(40.0), Some(60.0), Some(100.0)];
    let loads = [4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0];
    let overload = |refuses| loads.map(|per_s| overload(per_s, refuses, 120, args.seed)).to_vec();
    let figures = Figures {
        stream: targets.map(|target_ms| stream(target_ms, args.seed)).to_vec(),
        overload_refusing: overload(true),
        overload_queueing: overload(false),
        mix: (0..POLICIES.len()).map(|number| mix(number, 80, args.seed)).collect(),
        chat: [0, 50, 100, 200, 400].map(|coalescing_ms| chat(coalescing_ms, args.seed)).to_vec(),
    };
    if let Some(folder) = &args.plots {
        for (name, svg) in figures.charts() {
            write(folder, name, &svg)?;
        }
    }
    if args.json {
        let json = serde_json::to_string(&figures).map_err(|error| CliError::new(error.to_string(), "", ""))?;
        println!("{json}");
    } else {
        print!("{}", figures.tables());
    }
    Ok(())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), CliError> {
    let path = folder.join(name);
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text)).map_err(|error| {
        CliError::new(format!("cannot write: {error}"), path.display().to_string(), "give another --plots FOLDER")
    })
}

impl Figures {
    fn tables(&self) -> String {
        let mut lines = vec![
            "decoding beside prompts without end (16 requests decode, a step without prompts takes 13.6 ms)".to_owned(),
            "  step target ms    p50 ms    p99 ms  prompt tokens/s".to_owned(),
        ];
        for s in &self.stream {
            let target = s.target_ms.map_or("default".into(), |ms| ms.to_string());
            lines.push(format!("  {target:>14}{:>10.1}{:>10.1}{:>17.0}", s.gap_ms.p50, s.gap_ms.p99, s.prefill_per_s));
        }
        lines.push(String::new());
        lines.push(format!(
            "overload (answers that begin within {:.0} s count; refused if they would start later than in {} s)",
            GOOD_TTFT_MS / 1e3,
            QUEUE_DELAY_MS / 1000
        ));
        lines.push("  asked/s   good/s  refused  ttft p99 ms | queueing all: good/s  ttft p99 ms".to_owned());
        for (r, q) in self.overload_refusing.iter().zip(&self.overload_queueing) {
            lines.push(format!(
                "  {:>7.1}{:>9.2}{:>8.0}%{:>13.0} |{:>21.2}{:>13.0}",
                r.asked_per_s,
                r.good_per_s,
                r.refused * 100.0,
                r.ttft_ms.p99,
                q.good_per_s,
                q.ttft_ms.p99
            ));
        }
        lines.push(String::new());
        lines.push("policies on coding sessions (milliseconds: mean, p50, p95)".to_owned());
        lines.push(format!("  {:<38}{:>24}{:>24}{:>24}{:>20}", "", "ttft", "of first turns", "of later turns", "tpot"));
        for m in &self.mix {
            let three = |s: &experiments::Spread| format!("{:>8.0}{:>8.0}{:>8.0}", s.mean, s.p50, s.p95);
            let tpot = format!("{:>8.1}{:>6.1}{:>6.1}", m.tpot_ms.mean, m.tpot_ms.p50, m.tpot_ms.p95);
            let ttft = [&m.ttft_ms, &m.first_turn_ttft_ms, &m.later_turn_ttft_ms].map(three).concat();
            lines.push(format!("  {:<38}{ttft}{tpot}", m.policy));
        }
        lines.push(String::new());
        lines.push(
            "coalescing short questions, a step with prompts takes 10 ms more (milliseconds: mean, p50, p95)".into(),
        );
        lines.push(format!("  {:<38}{:>24}{:>20}", "coalescing ms", "ttft", "tpot"));
        for c in &self.chat {
            let ttft = format!("{:>8.0}{:>8.0}{:>8.0}", c.ttft_ms.mean, c.ttft_ms.p50, c.ttft_ms.p95);
            let tpot = format!("{:>8.1}{:>6.1}{:>6.1}", c.tpot_ms.mean, c.tpot_ms.p50, c.tpot_ms.p95);
            lines.push(format!("  {:<38}{ttft}{tpot}", c.coalescing_ms));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// File name and contents.
    fn charts(&self) -> Vec<(&'static str, String)> {
        let fixed: Vec<_> = self.stream.iter().filter_map(|s| Some((s.target_ms?, s))).collect();
        let line = |value: &dyn Fn(&Stream) -> f64| fixed.iter().map(|(x, s)| (*x, value(s))).collect::<Vec<_>>();
        let gaps = LineChart {
            title: "Time between tokens beside prompts without end".into(),
            x: Axis::linear("step time target, ms"),
            y: Axis::from_zero("milliseconds"),
            series: vec![
                Series::new("p50", line(&|s| s.gap_ms.p50)),
                Series::new("p99", line(&|s| s.gap_ms.p99)),
                Series::new("1.2 x target", fixed.iter().map(|(x, _)| (*x, 1.2 * x)).collect()).dashed(),
            ],
        };
        let throughput = LineChart {
            title: "What that leaves for prompts".into(),
            x: Axis::linear("step time target, ms"),
            y: Axis::from_zero("prompt tokens per second"),
            series: vec![Series::new("", line(&|s| s.prefill_per_s))],
        };
        let good = |list: &[Overload]| list.iter().map(|o| (o.asked_per_s, o.good_per_s)).collect::<Vec<_>>();
        let goodput = LineChart {
            title: "Answers that begin within ten seconds".into(),
            x: Axis::from_zero("requests asked per second"),
            y: Axis::from_zero("answers per second"),
            series: vec![
                Series::new("refusing in time", good(&self.overload_refusing)),
                Series::new("queueing all", good(&self.overload_queueing)),
            ],
        };
        let ttft = BarChart {
            title: "Time to first token by policy".into(),
            y: Axis::from_zero("milliseconds"),
            groups: ["mean", "p50", "p95", "mean, first turns", "mean, later turns"].map(Into::into).to_vec(),
            series: self
                .mix
                .iter()
                .map(|m| {
                    let (first, later) = (m.first_turn_ttft_ms.mean, m.later_turn_ttft_ms.mean);
                    (m.policy.into(), vec![m.ttft_ms.mean, m.ttft_ms.p50, m.ttft_ms.p95, first, later])
                })
                .collect(),
            ..BarChart::default()
        };
        let tpot = BarChart {
            title: "Time per output token by policy".into(),
            y: Axis::from_zero("milliseconds"),
            groups: ["mean", "p50", "p95"].map(Into::into).to_vec(),
            series: self
                .mix
                .iter()
                .map(|m| (m.policy.into(), vec![m.tpot_ms.mean, m.tpot_ms.p50, m.tpot_ms.p95]))
                .collect(),
            ..BarChart::default()
        };
        let chat =
            |value: &dyn Fn(&Chat) -> f64| self.chat.iter().map(|c| (c.coalescing_ms as f64, value(c))).collect();
        let coalescing = LineChart {
            title: "Short questions, collected before they are computed".into(),
            x: Axis::from_zero("prefill coalescing, ms"),
            y: Axis::from_zero("milliseconds"),
            series: vec![
                Series::new("time to first token, mean", chat(&|c| c.ttft_ms.mean)),
                Series::new("time per output token, mean", chat(&|c| c.tpot_ms.mean)),
            ],
        };
        vec![
            ("step-target-gaps.svg", gaps.render()),
            ("step-target-throughput.svg", throughput.render()),
            ("overload-goodput.svg", goodput.render()),
            ("policies-ttft.svg", ttft.render()),
            ("policies-tpot.svg", tpot.render()),
            ("coalescing.svg", coalescing.render()),
        ]
    }
}
