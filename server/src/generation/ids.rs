//! Ids and seeds that nobody can guess or repeat.
//!
//! Both come from the standard library's randomly keyed hasher over a counter: unique within a process by the counter,
//! between processes by the key. Rejected: a random-number crate, for two numbers per request.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

static KEYS: LazyLock<(RandomState, RandomState)> = LazyLock::new(|| (RandomState::new(), RandomState::new()));
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A 64-bit number unlike any other handed out.
pub fn random_u64() -> u64 {
    KEYS.0.hash_one(COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// `prefix` followed by 32 hexadecimal digits.
pub fn unique_id(prefix: &str) -> String {
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:016x}{:016x}", KEYS.0.hash_one(count), KEYS.1.hash_one(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| unique_id("x-")).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 34 && id.starts_with("x-")));
    }
}
