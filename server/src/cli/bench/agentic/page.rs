//! The report as one HTML file: tables and inline SVG, no script and nothing from elsewhere.

use std::fmt::Write as _;

use super::{
    figures::{Figures, Spread},
    report::Report,
};
use crate::cli::bench::plot::{Axis, BarChart, LineChart, Series, escape};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1320px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}td,th{padding:.2em .9em;text-align:right;\
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{margin:.5em;max-width:100%;height:auto;\
border:1px solid #eee}h1{font-size:1.4em}";

/// The file's text.
pub fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Agentic workload</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Agentic workload</h1>\n<p>{}</p>\n<p>{}</p>\n",
        escape(&report.target),
        escape(&report.workload)
    );
    let cells = |page: &mut String, tag: &str, name: &str, cells: &[String]| {
        let _ = write!(page, "<tr><{tag}>{}</{tag}>", escape(name));
        for cell in cells {
            let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
        }
        page.push_str("</tr>\n");
    };
    page.push_str("<table>\n");
    let header: Vec<String> = report.passes.iter().map(|f| f.concurrency.to_string()).collect();
    cells(&mut page, "th", "sessions at once", &header);
    report.rows().iter().for_each(|(name, row)| cells(&mut page, "td", name, row));
    page.push_str("</table>\n");
    for line in report.findings() {
        let _ = writeln!(page, "<p>{}</p>", escape(&line));
    }
    charts(report).iter().for_each(|chart| page.push_str(chart));
    page.push_str("</body>\n</html>\n");
    page
}

fn charts(report: &Report) -> Vec<String> {
    let passes = &report.passes;
    let sessions = || Axis::log("sessions at once").with_ticks(passes.iter().map(|f| f.concurrency.into()));
    let line = |name: &str, value: &dyn Fn(&Figures) -> Option<f64>| {
        let points = passes.iter().map(|f| (f.concurrency.into(), value(f).unwrap_or(f64::NAN)));
        Series::new(name, points.collect())
    };
    let spread = |name: &str, spread: fn(&Figures) -> Option<Spread>| {
        [line(&format!("{name}p50"), &|f| Some(spread(f)?.p50)), line(&format!("{name}p95"), &|f| Some(spread(f)?.p95))]
    };
    let mut ttft = spread("first turn, ", |f| f.ttft_first).to_vec();
    ttft.extend(spread("later turns, ", |f| f.ttft_later));
    let mut by_turn: Vec<Series> = passes
        .iter()
        .map(|f| {
            let points = f.ttft_by_turn.iter().enumerate().map(|(turn, &ms)| (turn as f64 + 1.0, ms));
            Series::new(format!("{} at once", f.concurrency), points.collect())
        })
        .collect();
    if let Some(compared) = &report.compared {
        let last = passes.iter().map(|f| f.ttft_by_turn.len()).max().unwrap_or(2) as f64;
        let points = vec![(2.0, compared.expected_ms), (last, compared.expected_ms)];
        by_turn.push(Series::new("cold request of the new tokens, and attention", points).dashed());
    }
    let trade = passes.iter().map(|f| (f.tokens_per_s_per_user().unwrap_or(f64::NAN), f.answer_tokens_per_s()));
    let share = |name: &str, value: &dyn Fn(&Figures) -> Option<f64>| {
        (name.to_owned(), passes.iter().map(|f| value(f).map_or(f64::NAN, |share| share * 100.0)).collect())
    };
    let mut charts = vec![
        LineChart { title: "Time to first token".into(), x: sessions(), y: Axis::log("ms"), series: ttft }.render(),
        LineChart {
            title: "Time to first token by turn, p50".into(),
            x: Axis::linear("turn"),
            y: Axis::log("ms"),
            series: by_turn,
        }
        .render(),
        LineChart {
            title: "Time per output token".into(),
            x: sessions(),
            y: Axis::from_zero("ms"),
            series: spread("", |f| f.tpot).to_vec(),
        }
        .render(),
        LineChart {
            title: "Throughput against what one user sees".into(),
            x: Axis::from_zero("tokens/s per user"),
            y: Axis::from_zero("output tokens/s, all users"),
            series: vec![Series::new("", trade.collect())],
        }
        .render(),
        BarChart {
            title: "Prompt tokens from the cache".into(),
            x_label: "sessions at once".into(),
            y: Axis::from_zero("% of prompt tokens"),
            groups: passes.iter().map(|f| f.concurrency.to_string()).collect(),
            series: vec![share("maximum", &Figures::hit_rate_maximum), share("this run", &Figures::hit_rate)],
        }
        .render(),
    ];
    if let Some(half) = &report.half {
        let share = |tokens: u64| tokens as f64 * 100.0 / half.prompt_tokens.max(1) as f64;
        let bars = [
            ("maximum", half.maximum),
            ("this engine, enough memory", half.found_in_enough),
            ("Belady, half", half.belady),
            ("this engine, half", half.found),
        ];
        charts.push(
            BarChart {
                title: format!("Prompt tokens from the cache, {} sessions in turn", half.alive),
                x_label: format!("{} pages of the {} needed", half.pages, half.pages_needed),
                y: Axis::from_zero("% of prompt tokens"),
                groups: vec![String::new()],
                series: bars.map(|(name, tokens)| (name.to_owned(), vec![share(tokens)])).into(),
            }
            .render(),
        );
    }
    charts
}
