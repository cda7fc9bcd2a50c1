//! First come, first served within a class. The default: a request's start depends on nobody who comes later.

use super::{Policy, Prefill};

/// Order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct FirstCome;

impl Policy for FirstCome {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn place(&self, _prefill: &Prefill) -> u64 {
        0
    }

    fn is_first_come(&self) -> bool {
        true
    }

    fn plans_ahead(&self) -> bool {
        true
    }
}
