//! Threads that make masks.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU32, Ordering};

use super::{
    breaks, finds, holds,
    locks::{Deaf, Sound, Torn, n_live, nobody_lives, toss},
};
use crate::{
    bug::Bug,
    driver::{
        masks::{Job, MaskThreads},
        queue::Items,
    },
    monitor::Monitor,
};

/// A job that counts how often it was done.
#[derive(Clone)]
struct Made {
    number: u32,
    times: Arc<AtomicU32>,
}

impl Job for Made {
    fn run(&mut self) {
        self.times.fetch_add(1, Ordering::SeqCst);
    }
}

/// Three steps with masks, of which the last is never asked for: each job is done once and comes back once, in its step.
fn making<M: Monitor<Items<Made>> + Send + Sync + 'static>() {
    nobody_lives();
    let mut threads = MaskThreads::<Made, M>::of(2);
    let begin = |threads: &mut MaskThreads<Made, M>, numbers: std::ops::Range<u32>| {
        let jobs = numbers.map(|number| Made { number, times: Arc::default() });
        jobs.for_each(|job| threads.begin(job));
    };
    for numbers in [0..3, 3..4] {
        begin(&mut threads, numbers.clone());
        let mut made = Vec::new();
        threads.finish(&mut |job| {
            assert_eq!(job.times.load(Ordering::SeqCst), 1, "mask {} is made once", job.number);
            made.push(job.number);
        });
        made.sort_unstable();
        assert_eq!(made, numbers.collect::<Vec<_>>(), "of this step");
    }
    if toss() {
        begin(&mut threads, 4..6);
    }
    drop(threads);
    assert_eq!(n_live(), 0, "the threads have ended");
}

#[test]
fn each_mask_is_made_once_and_comes_back_in_its_step() {
    holds(making::<Sound<_>>);
    breaks(making::<Deaf<_>>);
    breaks(making::<Torn<_>>);
    finds(Bug::MaskBeingMadeIsNotWaitedFor, making::<Sound<_>>);
    finds(Bug::ClosingWakesNobody, making::<Sound<_>>);
    finds(Bug::ThreadsAreLeftBehind, making::<Sound<_>>);
}
