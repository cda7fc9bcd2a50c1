//! A few seeds, a shrunk failure, and that the seeds do what they are meant to. `cargo xtask test` runs thousands more.

use tokenspeed_core::engine::Pass;
use tokenspeed_sim::{
    campaign::{Campaign, silence_panics},
    check::{Check, Failure},
    generate::scenario,
    model,
    shrink::shrink,
    simulate::{examine, run},
    world::StepFault,
};

#[test]
fn the_first_seeds_fail_nowhere_and_reach_everything() {
    let report = Campaign { from: 0, seeds: 300, time: None, jobs: 2 }.run();
    assert_eq!(report.failure, None);
    assert_eq!(report.seeds, 300);
    let t = report.tally;
    let reached = [
        ("cached tokens", t.cached),
        ("promised hits", t.promised),
        ("preemptions", t.preemptions),
        ("aborts", t.aborts),
        ("failed requests", t.failed),
        ("failed steps", t.step_failures),
        ("plans made ahead", t.plans_ahead),
        ("refused requests", t.refused),
        ("guesses", t.guesses),
        ("right guesses", t.accepted),
        ("hits on recurrent states", t.hybrid_hits),
        ("replayed rows", t.replays),
        ("rows of draft passes", t.draft_rows),
        ("right guesses of drafts", t.right_drafts),
        ("side branches", t.branches),
        ("right side branches", t.right_branches),
        ("moved rows", t.moves),
        ("variants", t.variants),
        ("relayed steps", t.relayed_steps),
        ("those of engines that speculate", t.relayed_unguessed),
        ("rows sampled on the device", t.sampled),
        ("rows behind guesses sampled there", t.sampled_guesses),
        ("rows sampled there with side tables", t.side_rows),
        ("rows behind guesses with counts of their own", t.side_guesses),
        ("rows with a grammar's mask", t.guided_rows),
        ("right guesses sampled there", t.accepted_on_device),
    ];
    assert!(reached.iter().all(|(_, n)| *n > 10), "{reached:?}");
    assert!(t.copies_between > 3, "{} copies between a step and the one behind it", t.copies_between);
    assert!(t.millions > 0 && t.million_hits > 0, "prompts of a million tokens: {}, {}", t.millions, t.million_hits);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let backend = model::backend();
    for seed in 0..20 {
        let (a, b) = (scenario(seed), scenario(seed));
        assert_eq!(a, b);
        let (a, b) = (run(&backend, &a).unwrap(), run(&backend, &b).unwrap());
        assert!(a.digest == b.digest && a.heard == b.heard && a.tally == b.tally, "seed {seed}");
    }
}

/// A configuration that no request fits fails at once; everything else is noise that the shrinker takes away.
#[test]
fn a_failing_case_shrinks_to_what_matters() {
    silence_panics();
    let mut busy = (0..).map(scenario).find(|s| s.arrivals.len() > 15 && s.faults.len() > 3).unwrap();
    busy.load_faults.clear();
    busy.config.max_logprobs = 0;
    busy.arrivals.iter_mut().for_each(|arrival| arrival.sampling.logprobs = None);
    busy.arrivals.iter_mut().for_each(|arrival| arrival.sampling.prompt_logprobs = None);
    busy.arrivals[7].sampling.logprobs = Some(1);
    let failure = examine(&busy).unwrap_err();
    assert_eq!(failure.check, Check::Heard, "{failure}");
    let (small, why): (_, Failure) = shrink(&busy, &failure);
    assert_eq!((small.arrivals.len(), small.faults.len(), why.check), (1, 0, Check::Heard), "{why}");
    assert_eq!(small.arrivals[0].label, busy.arrivals[7].label);
    assert_eq!(examine(&small), Err(why), "the small case fails again");
}

#[test]
fn faults_of_every_kind_occur() {
    use tokenspeed_sim::scenario::Fault;
    let faults: Vec<Fault> = (0..1000).flat_map(|seed| scenario(seed).faults).map(|(_, fault)| fault).collect();
    let is_there = |wanted: fn(&Fault) -> bool| faults.iter().any(wanted);
    for pass in [Pass::Forward, Pass::Verify, Pass::Replay] {
        for what in [StepFault::Fails, StepFault::Lost] {
            assert!(faults.contains(&Fault::Step(what, pass)), "{what:?} in {pass:?}");
        }
    }
    assert!(is_there(|f| matches!(f, Fault::Step(_, Pass::DraftFirst))));
    assert!(is_there(|f| matches!(f, Fault::Step(_, Pass::DraftNext))));
    assert!(is_there(|f| matches!(f, Fault::Step(StepFault::NotFinite(_), _))));
    assert!(is_there(|f| matches!(f, Fault::Stall(_))) && is_there(|f| matches!(f, Fault::Clock(_))));
    assert!(is_there(|f| matches!(f, Fault::StepTokens(_))) && is_there(|f| *f == Fault::Flush));
}
