//! The last steps for readers on other threads.

use std::sync::Arc;

use shuttle::thread;

use super::{
    breaks, finds, holds,
    locks::{Sound, Torn},
};
use crate::{
    bug::Bug,
    driver::steps::Steps,
    monitor::Monitor,
    request::RequestId,
    scheduler::{
        decision::{Decision, Decisions, What, Why},
        trace::{StepRecord, StepTrace},
    },
};

/// Steps of a run, in a ring for three of them and four decisions.
const N: u64 = 6;
const KEPT: usize = 3;

fn step(sequence: u64) -> Decisions {
    let decision = |i| Decision { id: RequestId(sequence * 10 + i), what: What::Waits(Why::NoSeat) };
    Decisions { sequence, list: (0..sequence % 3).map(decision).collect(), ..Decisions::default() }
}

/// What was read is what was written; a list may have been displaced before its step.
fn check(records: &[StepRecord]) {
    for record in records {
        let StepRecord { decisions, ended_ns } = record;
        let whole = step(decisions.sequence);
        assert!(*decisions == whole || *decisions == Decisions { list: Vec::new(), ..whole }, "{decisions:?}");
        assert!(ended_ns.is_none_or(|ns| ns == decisions.sequence * 10), "{record:?}");
    }
    let numbers: Vec<u64> = records.iter().map(|record| record.decisions.sequence).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice: {numbers:?}");
}

/// An engine that writes and one that reads, a step at a time and from where it was.
fn watching<M: Monitor<StepTrace> + Send + Sync + 'static>() {
    let steps = Arc::new(Steps::<M>::new(StepTrace::new(KEPT, 4)));
    let reader = {
        let steps = Arc::clone(&steps);
        thread::spawn(move || {
            let mut read = Vec::new();
            for _ in 0..3 {
                let last = read.last().map_or(0, |record: &StepRecord| record.decisions.sequence);
                read.extend(steps.copy(last, 3, 1));
                check(&read);
                let last = steps.copy_last(2, 1);
                check(&last);
                assert!(last.len() <= 2);
            }
        })
    };
    for sequence in 1..=N {
        steps.planned(&step(sequence));
        steps.ended(sequence, sequence * 10);
    }
    reader.join().unwrap();
    let kept = steps.copy(0, usize::MAX, 2);
    check(&kept);
    let numbers: Vec<_> = kept.iter().map(|record| (record.decisions.sequence, record.ended_ns)).collect();
    assert_eq!(numbers, [(4, Some(40)), (5, Some(50)), (6, Some(60))]);
}

#[test]
fn readers_of_steps_see_each_once() {
    holds(watching::<Sound<_>>);
    breaks(watching::<Torn<_>>);
    finds(Bug::StepsAreCountedNotNumbered, watching::<Sound<_>>);
}
