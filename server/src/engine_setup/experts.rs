//! Models whose experts are larger than the memory budget.
//!
//! Experts are mapped, so the system would keep whatever was touched last, budget or not. Where all of them do not fit,
//! the backend is told how many bytes of them may be resident, and gives back what was not used for longest. What is
//! left after everything that must be in memory is divided: four fifths for experts, whose reads from disk decide the
//! speed, the rest for cache beyond the smallest.
//!
//! Rejected: a budget for experts that fit. Counting uses costs time, and gains nothing then.

use tokenspeed_core::memory::{MemoryError, MemoryRequest};
use tokenspeed_models::loader::{Model, Weights};

/// Name of the backend's option, in bytes.
const OPTION: &str = "expert_cache_bytes";

/// How much of the experts is in memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertBudget {
    /// Of these.
    pub all_bytes: u64,
    /// So many.
    pub resident_bytes: u64,
}

impl ExpertBudget {
    /// The budget under which a model fits that `error` says does not; `None` if no budget makes it fit.
    pub fn that_fits(model: &Model, error: &MemoryError) -> Option<Self> {
        let MemoryError::TooSmall { needed_bytes, budget_bytes, .. } = *error else { return None };
        let Weights::Kimi(weights) = &model.weights else { return None };
        let all_bytes = model.sizes().expert_bytes;
        // Copies are memory like any other.
        if all_bytes == 0 || weights.copied_expert_bytes() > 0 {
            return None;
        }
        let left = budget_bytes.checked_sub(needed_bytes - all_bytes)?;
        let resident_bytes = left / 5 * 4;
        (resident_bytes > 0).then_some(Self { all_bytes, resident_bytes })
    }

    /// As the backend wants to be told.
    pub fn option(&self) -> (String, String) {
        (OPTION.to_owned(), self.resident_bytes.to_string())
    }

    /// The request under which a plan, which counts all weights, comes out right.
    pub fn adjust(&self, request: MemoryRequest) -> MemoryRequest {
        MemoryRequest { budget_bytes: request.budget_bytes + (self.all_bytes - self.resident_bytes), ..request }
    }
}

/// What happened to experts while `tokens` were computed, from the device's counters; `None` if it counts nothing.
pub fn summary(counters: &[(String, u64)], tokens: u64) -> Option<String> {
    let get = |name: &str| counters.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
    let (hits, misses, read) = (get("expert_hits")?, get("expert_misses")?, get("expert_bytes_read")?);
    let per_token = read as f64 / tokens.max(1) as f64 / f64::from(1 << 20);
    let share = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
    Some(format!("experts: {hits} hits, {misses} misses ({share:.1}% hits), {per_token:.2} MiB read per token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_per_token_and_silent_without_counters() {
        let counters = [("expert_hits", 30), ("expert_misses", 10), ("expert_bytes_read", 64 << 20)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value));
        let text = summary(&counters, 16).expect("counted");
        assert_eq!(text, "experts: 30 hits, 10 misses (75.0% hits), 4.00 MiB read per token");
        assert_eq!(summary(&[], 16), None);
    }
}
