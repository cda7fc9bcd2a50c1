//! `GET /debug/steps?last=N`: what the last steps did, for whom, who waited and why.

use serde_json::{Value, json};
use tokenspeed_core::{
    client::Engine,
    scheduler::{
        decision::{Decision, What},
        trace::{STEPS_MAX, StepRecord},
    },
};

use super::error::ApiError;

/// Steps shown where the caller does not say.
const LAST_DEFAULT: usize = 32;

/// Answer a query string.
pub fn answer(engine: &dyn Engine, query: &str) -> Result<Value, ApiError> {
    let mut last = LAST_DEFAULT;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let wrong = || {
            let message = format!("'last' must be a number from 1 to {STEPS_MAX}, and is the only parameter.");
            ApiError::param("last", message)
        };
        last = match pair.split_once('=') {
            Some(("last", n)) => n.parse().ok().filter(|n| (1..=STEPS_MAX).contains(n)).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
    }
    let steps: Vec<Value> = engine.last_steps(last).iter().map(step).collect();
    Ok(json!({"object": "list", "data": steps}))
}

fn step(record: &StepRecord) -> Value {
    let d = &record.decisions;
    let duration_us = record.ended_ns.map(|ended_ns| ended_ns.saturating_sub(d.planned_ns) as f64 / 1e3);
    // The step budget is open where nobody decodes.
    let budget = (d.budget_tokens < u32::MAX).then_some(d.budget_tokens);
    json!({
        "step": d.sequence,
        "planned_us": d.planned_ns as f64 / 1e3,
        "duration_us": duration_us,
        "budget_tokens": budget,
        "decode_tokens": d.decode_tokens,
        "prefill_tokens": d.prefill_tokens,
        "running": d.running,
        "waiting": d.waiting,
        "decisions": d.list.iter().map(decision).collect::<Vec<_>>(),
    })
}

fn decision(decision: &Decision) -> Value {
    let id = decision.id.0;
    match decision.what {
        What::Admitted { cached, returns } => {
            json!({"request": id, "what": if returns { "returns" } else { "admitted" }, "cached_tokens": cached})
        }
        What::Prefills { computed, tokens } => {
            json!({"request": id, "what": "prefill", "tokens": tokens, "computed_tokens": computed})
        }
        What::Decodes { computed, tokens } => {
            json!({"request": id, "what": "decode", "tokens": tokens, "computed_tokens": computed})
        }
        What::Waits(why) => json!({"request": id, "what": "waits", "why": why.text()}),
        What::Preempted { by } => json!({"request": id, "what": "preempted", "by": by.0}),
    }
}
