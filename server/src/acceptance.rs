//! A warning when a draft model is hardly ever right.
//!
//! A draft of another model, or one whose weights are read as something else, changes no answer: every guess is checked. What
//! shows is that a turn with guesses gives little more than one token, and that is easy to overlook, because drafting that
//! does not pay is given up and costs next to nothing. So the server says it once, and not again for an hour. Guesses from
//! the text itself are not watched: a text that does not repeat itself is no mistake of the set-up.

use std::{sync::Arc, time::Duration};

use tokenspeed_core::client::{Engine, Metrics};

use crate::log::Log;

/// Request's turns with guesses from which on acceptance means something.
const TURNS_ENOUGH: u64 = 30;
/// Tokens per turn with guesses, below which a draft is of no use.
const LEAST_TOKENS: f64 = 1.1;
/// Seconds between two warnings, at least.
const QUIET_S: u64 = 3600;
/// How often to look.
const EVERY: Duration = Duration::from_secs(10);

/// What was seen of a draft model's guesses.
#[derive(Debug, Default)]
pub struct AcceptanceWatch {
    /// Turns with guesses and right guesses, up to the last verdict.
    judged: [u64; 2],
    warned_at_s: Option<u64>,
}

impl AcceptanceWatch {
    /// Look at the figures at some second; the text of a warning if one is due.
    pub fn look(&mut self, now_s: u64, metrics: &Metrics) -> Option<String> {
        let counts = [metrics.drafts[0], metrics.accepted.iter().sum()];
        let [turns, right] = [0, 1].map(|at| counts[at].saturating_sub(self.judged[at]));
        if turns < TURNS_ENOUGH {
            return None;
        }
        self.judged = counts;
        let tokens = 1.0 + right as f64 / turns as f64;
        let is_quiet = self.warned_at_s.is_some_and(|at| now_s.saturating_sub(at) < QUIET_S);
        if tokens >= LEAST_TOKENS || is_quiet {
            return None;
        }
        self.warned_at_s = Some(now_s);
        Some(format!(
            "the draft model is hardly ever right: the last {turns} turns with guesses gave {tokens:.2} tokens each, where 1.00 is \
             what no draft gives; was it made for this model?"
        ))
    }
}

/// Look every few seconds for as long as the runtime lives.
pub async fn watch(engine: Arc<dyn Engine>, log: Log) {
    let (mut watch, mut now_s) = (AcceptanceWatch::default(), 0);
    loop {
        tokio::time::sleep(EVERY).await;
        now_s += EVERY.as_secs();
        if let Some(message) = watch.look(now_s, &engine.metrics()) {
            log.event("warning", &[("message", &message)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(turns: u64, right: u64) -> Metrics {
        let mut metrics = Metrics::default();
        (metrics.drafts[0], metrics.drafts[1]) = (turns, turns / 2);
        (metrics.accepted[0], metrics.accepted[1]) = (right - right / 3, right / 3);
        metrics
    }

    /// Case 102: acceptance near 1.0 is told, once in a while.
    #[test]
    fn a_draft_that_is_never_right_is_told_once_an_hour() {
        let mut watch = AcceptanceWatch::default();
        assert_eq!(watch.look(0, &metrics(29, 0)), None, "too few to tell");
        let said = watch.look(10, &metrics(60, 2)).expect("a warning");
        assert!(said.contains("the last 60 turns with guesses gave 1.03 tokens each"), "{said}");
        assert_eq!(watch.look(20, &metrics(200, 2)), None, "said a moment ago");
        assert_eq!(watch.look(3700, &metrics(220, 3)), None, "nothing new to judge by");
        assert!(watch.look(3710, &metrics(400, 2)).is_some(), "an hour later");
        assert_eq!(watch.look(9000, &metrics(500, 100)), None, "right often enough");
        assert_eq!(watch.look(9010, &metrics(10, 0)), None, "counters that begin anew");
    }
}
