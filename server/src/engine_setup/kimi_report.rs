//! A plan as text and as JSON. Sizes are decimal throughout, as device memory is sold: 1 GB = 10^9 bytes.

use serde_json::{Value, json};
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::kimi::plan::{Fit, PartBytes, RankPlan};

use super::kimi_plan::KimiReport;

/// Width of the first column.
const LABEL: usize = 38;

/// For people.
pub(super) fn text(report: &KimiReport) -> String {
    let plan = &report.plan;
    let mut out = head(report);
    out.push_str(&fixed(plan));
    out.push_str(&cache(plan));
    out.push_str(&conversations(plan));
    out
}

fn head(report: &KimiReport) -> String {
    let (plan, request) = (&report.plan, &report.plan.request);
    let total = plan.checkpoint.total();
    let ranks = match request.ranks {
        1 => "one rank".to_owned(),
        n => format!("each of {n} ranks, {} exchanges per pass", plan.exchanges),
    };
    let [kda, mla] = report.layers;
    let mut out = String::new();
    let mut line = |label: &str, value: String| out.push_str(&format!("{label:<11}{value}\n"));
    line("model", report.config.display().to_string());
    line("layers", format!("{} ({kda} KDA, {mla} MLA)", kda + mla));
    line("checkpoint", format!("{} bytes in {} tensors", grouped(total.bytes), grouped(total.tensors)));
    if plan.checkpoint.vision.tensors > 0 {
        line("", format!("of them vision, not loaded: {} bytes", grouped(plan.checkpoint.vision.bytes)));
    }
    line("plan for", ranks);
    line("units", "1 GB = 1,000,000,000 bytes".to_owned());
    // What is sized here and not there yet is said, not left to be found out.
    if request.ranks > 1 {
        line("note", "sizes only: this version runs one rank".to_owned());
    }
    out
}

fn fixed(plan: &RankPlan) -> String {
    let request = &plan.request;
    let mut out = format!("\n{:<LABEL$}{:>18}{:>9}\n", "memory of a rank", "bytes", "GB");
    let mut line = |label: &str, bytes: u64, note: &str| {
        let line = format!("  {label:<w$}{:>18}{:>9.2}  {note}", grouped(bytes), gb(bytes), w = LABEL - 2);
        out.push_str(line.trim_end());
        out.push('\n');
    };
    for part in &plan.weights {
        line(part.part.name(), part.rank_bytes, if request.ranks > 1 { held(part, request.ranks) } else { "" });
    }
    line("= weights", plan.weight_bytes(), "");
    if let Some(draft) = plan.draft {
        let divided = if request.ranks > 1 { ", divided" } else { "" };
        let note = format!("{} stored{divided}; the embedding is the model's", grouped(draft.stored_bytes));
        line(&format!("draft model {}", draft.draft.name), draft.rank_bytes, &note);
    }
    let step = &plan.step;
    line(
        "values of a step",
        step.values,
        &format!("{} tokens, f32; kernels' scratch not counted", grouped(step.tokens)),
    );
    if step.taps > 0 {
        line("hidden states for the draft", step.taps, "");
    }
    line("logits", step.logits, &format!("{} rows", grouped(step.logit_rows)));
    line("page tables", step.tables, &format!("{} running requests", grouped(request.max_num_seqs)));
    if request.ranks > 1 {
        line("exchange buffers", step.exchange, "both ends of the largest exchange");
    }
    line("page 0 and state slot 0", plan.page_bytes + plan.slot.total(), "for padding");
    let fixed = plan.fixed_bytes() + plan.page_bytes + plan.slot.total();
    line("= everything but conversations", fixed, "");
    if let Some(device) = plan.device {
        let share = format!("{}% of {:.2} GB", (request.memory_share * 1000.0).round() / 10.0, gb(device.device));
        line("budget", device.budget, &format!("{share}; the rest is for driver, code and captured graphs"));
        match device.left {
            Ok(left) => line("= left for conversations", left, ""),
            Err(missing) => line("= missing", missing, "the model does not fit"),
        }
    }
    out
}

/// Less than a thousandth that is not divided is not worth a word.
fn held(part: &PartBytes, ranks: u64) -> &'static str {
    let whole = part.rank_bytes - part.whole_bytes / ranks;
    if part.rank_bytes == part.whole_bytes {
        "whole on every rank"
    } else if whole * 1000 < part.rank_bytes {
        "divided"
    } else {
        "divided, some whole on every rank"
    }
}

fn cache(plan: &RankPlan) -> String {
    let (request, slot) = (&plan.request, &plan.slot);
    let draft = plan.draft.map_or(0, |d| d.token_bytes);
    let formats = [DType::BF16, DType::F8E4M3];
    let mut out = format!("\n{:<LABEL$}", "cache of a rank, bytes");
    formats.iter().for_each(|dtype| out.push_str(&format!("{:>18}", dtype.name())));
    let other = !formats.contains(&request.latent);
    if other {
        out.push_str(&format!("{:>18}", request.latent.name()));
    }
    out.push('\n');
    let mut line = |label: &str, of: &dyn Fn(DType) -> u64, note: &str| {
        out.push_str(&format!("  {label:<w$}", w = LABEL - 2));
        formats.iter().for_each(|dtype| out.push_str(&format!("{:>18}", grouped(of(*dtype)))));
        if other {
            out.push_str(&format!("{:>18}", grouped(of(request.latent))));
        }
        out.push_str(if note.is_empty() { "" } else { "  " });
        out.push_str(note);
        out.push('\n');
    };
    let latent = |dtype| plan.latent_token_bytes_in(dtype);
    line("MLA rows per token", &latent, "the same on every rank");
    if draft > 0 {
        line("draft rows per token, always bf16", &|_| draft, "the same on every rank");
    }
    let page = format!("page of {} tokens", request.block_tokens);
    line(&page, &|dtype| (latent(dtype) + draft) * request.block_tokens, "");
    let all = format!("{:.1} MB over all ranks", (slot.recurrent() * request.ranks) as f64 / 1e6);
    line("state slot: KDA states and windows", &|_| slot.recurrent(), &all);
    if slot.record > 0 {
        let note = format!("{} tokens to verify", request.candidates);
        line("state slot: verify record", &|_| slot.record, &note);
    }
    out
}

fn conversations(plan: &RankPlan) -> String {
    let request = &plan.request;
    let Some(device) = plan.device else {
        return "\nHow many conversations fit is counted with --device-memory, like --device-memory 288GB.\n"
            .to_owned();
    };
    if device.left.is_err() {
        return String::new();
    }
    if plan.fits.is_empty() {
        return "\nNo conversation length to count is within the longest request.\n".to_owned();
    }
    let mut out = format!("\nconversations that fit at once, latent rows in {}\n", request.latent.name());
    out.push_str(&format!(
        "  by snapshots kept of each in the prefix cache, {:.3} GB each; a running one has two states, or one without cache\n",
        gb(plan.slot.total())
    ));
    out.push_str(&format!("  {:>10}{:>12}", "tokens", "rows, GB"));
    request.snapshots.iter().for_each(|n| out.push_str(&format!("{:>9}", snapshots(*n))));
    out.push('\n');
    for row in plan.fits.chunks(request.snapshots.len()) {
        let rows = row[0].tokens.div_ceil(request.block_tokens) * plan.page_bytes;
        out.push_str(&format!("  {:>10}{:>12.2}", grouped(row[0].tokens), gb(rows)));
        row.iter().for_each(|fit| out.push_str(&format!("{:>9}", grouped(fit.conversations))));
        out.push('\n');
    }
    let most = plan.fits.iter().map(|f| f.conversations).max().unwrap_or(0);
    if most > request.max_num_seqs {
        out.push_str(&format!(
            "  of which {} run at the same time (--max-num-seqs); the others wait or are between turns\n",
            grouped(request.max_num_seqs)
        ));
    }
    out
}

fn snapshots(n: u64) -> String {
    match n {
        0 => "no cache".to_owned(),
        n => grouped(n),
    }
}

/// For programs.
pub(super) fn json(report: &KimiReport) -> Value {
    let (plan, request) = (&report.plan, &report.plan.request);
    let weights = plan
        .weights
        .iter()
        .map(|p| json!({"part": p.part.name(), "rank_bytes": p.rank_bytes, "whole_bytes": p.whole_bytes}));
    let draft = plan.draft.map(|d| {
        json!({"name": d.draft.name, "stored_bytes": d.stored_bytes, "rank_bytes": d.rank_bytes, "token_bytes": d.token_bytes})
    });
    let step = &plan.step;
    let device = plan.device.map(|d| {
        json!({
            "device_bytes": d.device, "budget_bytes": d.budget, "left_bytes": d.left.ok(), "missing_bytes": d.left.err(),
        })
    });
    let fit = |f: &Fit| json!({"tokens": f.tokens, "snapshots": f.snapshots, "bytes": f.bytes, "conversations": f.conversations});
    json!({
        "config": report.config.display().to_string(),
        "ranks": request.ranks,
        "checkpoint": {
            "tensors": plan.checkpoint.total().tensors,
            "bytes": plan.checkpoint.total().bytes,
            "vision_bytes": plan.checkpoint.vision.bytes,
        },
        "weights": weights.collect::<Vec<_>>(),
        "weight_bytes": plan.weight_bytes(),
        "draft": draft,
        "step": {
            "tokens": step.tokens, "logit_rows": step.logit_rows, "values_bytes": step.values, "taps_bytes": step.taps,
            "logits_bytes": step.logits, "tables_bytes": step.tables, "exchange_bytes": step.exchange,
            "exchanges": plan.exchanges,
        },
        "cache": {
            "latent_dtype": request.latent.name(),
            "latent_token_bytes": plan.latent_token_bytes,
            "page_tokens": request.block_tokens,
            "page_bytes": plan.page_bytes,
            "slot_state_bytes": plan.slot.state,
            "slot_window_bytes": plan.slot.window,
            "slot_record_bytes": plan.slot.record,
            "slot_bytes": plan.slot.total(),
        },
        "fixed_bytes": plan.fixed_bytes() + plan.page_bytes + plan.slot.total(),
        "device": device,
        "conversations": plan.fits.iter().map(fit).collect::<Vec<_>>(),
    })
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
