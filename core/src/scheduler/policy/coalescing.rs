//! Collect new prompts and compute them together, so that those who decode are held up less often.
//!
//! A mixed step costs decoding requests the time of its prompt tokens plus what any forward pass with many rows costs. The
//! second part is paid once for prompts that share a step. The price is time to first token, bounded by `wait_ns_max` for
//! each request. Nothing is held back when nobody decodes, or when the step has a prefill anyway.

use super::{Policy, Prefill, Waiter};
use crate::bug::seeded;

/// Holds admissions back until together they fill a step, or one has waited long enough.
#[derive(Debug)]
pub struct Coalescing {
    /// Who goes first.
    pub order: Box<dyn Policy>,
    /// Longest wait, in nanoseconds.
    pub wait_ns_max: u64,
}

impl Policy for Coalescing {
    fn name(&self) -> &'static str {
        self.order.name()
    }

    fn place(&self, prefill: &Prefill) -> u64 {
        self.order.place(prefill)
    }

    fn is_first_come(&self) -> bool {
        self.order.is_first_come()
    }

    fn holds(&self, room: u32, waiters: &mut dyn Iterator<Item = Waiter>) -> bool {
        let mut tokens = 0u32;
        for waiter in waiters {
            tokens = tokens.saturating_add(waiter.remaining);
            let is_late = waiter.waited_ns >= self.wait_ns_max && !seeded!(CoalescingHasNoBound);
            if is_late || tokens >= room {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::policy::FirstCome;

    #[test]
    fn holds_until_a_step_is_full_or_one_has_waited_long_enough() {
        let policy = Coalescing { order: Box::new(FirstCome), wait_ns_max: 100 };
        let holds = |room, waiters: &[(u32, u64)]| {
            policy.holds(room, &mut waiters.iter().map(|&(remaining, waited_ns)| Waiter { remaining, waited_ns }))
        };
        assert!(holds(64, &[(10, 0), (53, 99)]));
        assert!(!holds(64, &[(10, 0), (54, 0)]), "they fill a step");
        assert!(!holds(64, &[(10, 0), (1, 100)]), "whoever has waited long enough takes the others along");
        assert!(!holds(u32::MAX, &[(u32::MAX, 0), (5, 0)]), "no overflow");
    }
}
