//! Bounds that scheduling promises. Virtual time is deterministic, so latencies may be asserted.

use super::{
    experiments::{chat, mix, overload, stream},
    lab::{Arrival, Lab, Rng, Setup},
};

#[test]
fn time_between_tokens_keeps_to_the_target_under_prompts_without_end() {
    for target_ms in [18.0, 25.0, 60.0] {
        let s = stream(Some(target_ms), 1);
        assert!(s.gap_ms.p99 <= 1.2 * target_ms, "{s:?}");
        // What is left beside 13.6 ms of decoding is used: a prompt token takes 0.02 ms.
        let possible = (target_ms - 13.6) / 0.02 / (target_ms / 1e3);
        assert!(s.prefill_per_s >= 0.8 * possible, "{s:?}, {possible} are possible");
    }
    let s = stream(None, 1);
    assert!(s.gap_ms.p99 <= 1.2 * 2.0 * 13.6, "twice the decode step: {s:?}");
}

#[test]
fn twice_the_load_costs_no_goodput_if_the_rest_is_refused_in_time() {
    let peak = [7.0, 9.0, 11.0].map(|per_s| overload(per_s, true, 60, 1).good_per_s).into_iter().fold(0.0, f64::max);
    let twice = overload(2.0 * peak, true, 60, 1);
    assert!(twice.good_per_s >= 0.9 * peak, "{twice:?}, the peak is {peak}");
    assert!(twice.refused > 0.25, "{twice:?}");
    let queueing = overload(2.0 * peak, false, 60, 1);
    assert!(queueing.good_per_s < 0.7 * peak, "refusing is what saves it: {queueing:?}");
    let half = overload(0.5 * peak, true, 60, 1);
    assert_eq!(half.refused, 0.0, "{half:?}");
}

#[test]
fn shortest_prefill_shortens_the_mean_and_loses_nobody() {
    let (fcfs, shortest) = (mix(0, 30, 3), mix(1, 30, 3));
    assert_eq!((fcfs.requests, shortest.requests), (180, 180));
    assert!(shortest.ttft_ms.mean < 0.9 * fcfs.ttft_ms.mean, "{shortest:?} {fcfs:?}");
    assert!(shortest.later_turn_ttft_ms.mean < 0.8 * fcfs.later_turn_ttft_ms.mean, "{shortest:?} {fcfs:?}");
}

#[test]
fn coalescing_trades_the_first_token_for_the_others_within_its_bound() {
    let (off, on) = (chat(0, 1), chat(200, 1));
    assert!(on.tpot_ms.mean < 0.9 * off.tpot_ms.mean, "{on:?} {off:?}");
    assert!(on.ttft_ms.p99 < off.ttft_ms.p99 + 200.0 + 30.0, "bound and a step: {on:?} {off:?}");
}

#[test]
fn cancelled_requests_leave_their_memory_within_two_steps() {
    let mut rng = Rng(5);
    for steps in [1, 2, 7, 30] {
        let mut lab = Lab::new(Setup { pages: 2000, seats: 8, ..Setup::default() });
        for label in 0..20 {
            lab.arrive(Arrival { at_ns: 0, label, prompt: rng.text(3000), max_tokens: 50 });
        }
        let mut done = Vec::new();
        for _ in 0..steps {
            assert!(lab.turn(&mut done));
        }
        let held = |lab: &Lab| lab.engine.metrics().pages_used - lab.engine.metrics().pages_cached;
        assert!(held(&lab) > 0);
        lab.abort_all();
        for _ in 0..2 {
            lab.turn(&mut done);
        }
        assert_eq!((held(&lab), lab.engine.is_idle()), (0, true), "after {steps} steps");
    }
}
