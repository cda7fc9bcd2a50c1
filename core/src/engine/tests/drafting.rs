//! Guesses that do not pay, and texts in which none are found: turns without them are planned ahead as if there were no
//! speculation, and the text is the same.

use super::{fake::Rig, simulation::Rng};
use crate::{
    engine::EngineConfig,
    request::{Request, RequestId, SamplingParams},
    speculation::{DRAFT_MAX, DraftModel, SpeculationConfig},
};

const N_TOKENS: u32 = 1500;

fn config() -> EngineConfig {
    let mut config = EngineConfig::paged(2000, 16, 300, 24);
    config.max_num_seqs = 2;
    config.table_rows = 2;
    config.tokenizer_vocab_size = 21;
    config.max_logit_rows = 32;
    config.eos_ids = Vec::new();
    config
}

fn rig(draft_ns: Option<u64>) -> Rig {
    let mut config = config();
    if draft_ns.is_some() {
        let mut component = config.components[0].clone();
        component.name = "draft".into();
        config.components.push(component);
        config.draft = Some(DraftModel { vocab_size: config.vocab_size, token_ids: None });
        config.speculation = Some(SpeculationConfig { draft_max: 4, ngram: 2, branches: 0 });
    }
    let mut rig = Rig::new(config);
    rig.plans_ahead = true;
    rig.draft_ns = draft_ns.unwrap_or(0);
    rig
}

/// Two requests to their end; returns their tokens and the number of turns.
fn run(rig: &mut Rig) -> (Vec<Vec<u32>>, u64) {
    let ask = |rig: &mut Rig, first: u32| -> RequestId {
        let sampling = SamplingParams { max_tokens: N_TOKENS, temperature: 0.0, ..SamplingParams::default() };
        rig.submit(Request { prompt: vec![first, 2, 3], sampling, ..Request::default() })
    };
    let ids = [ask(rig, 1), ask(rig, 9)];
    rig.run_to_idle(2 * N_TOKENS as usize);
    (ids.iter().map(|id| rig.ids(*id)).collect(), rig.engine.metrics().steps)
}

#[test]
fn turns_without_guesses_are_planned_ahead() {
    let mut plain = rig(None);
    let (texts, n_plain) = run(&mut plain);
    // A turn takes 2,000.
    let mut dear = rig(Some(20_000));
    let (same, n_turns) = run(&mut dear);
    assert_eq!(same, texts);
    let metrics = dear.engine.metrics();
    assert!(metrics.drafts[0] > 0, "it is tried now and then");
    assert!(dear.n_ahead * 100 >= n_turns * 95, "{} of {n_turns} turns planned ahead", dear.n_ahead);
    assert!(dear.now_ns * 100 <= plain.now_ns * 103, "{} ns against {}", dear.now_ns, plain.now_ns);

    let mut cheap = rig(Some(10));
    let (same, n_turns) = run(&mut cheap);
    assert_eq!(same, texts);
    assert!(n_turns * 2 < n_plain, "its guesses are used: {n_turns} turns against {n_plain}");
    assert!(cheap.n_ahead * 10 < n_turns, "{} of {n_turns} turns planned ahead", cheap.n_ahead);
}

#[test]
fn where_nothing_is_found_nobody_looks() {
    let [(texts, ..), (same, n_turns, n_ahead)] = [None, Some(12)].map(|ngram| {
        let mut config = config();
        // Nothing comes twice in a text that goes on by its history.
        config.speculation = ngram.map(|ngram| SpeculationConfig { draft_max: 4, ngram, branches: 0 });
        let mut rig = Rig::new(config);
        rig.plans_ahead = true;
        let (texts, n_turns) = run(&mut rig);
        (texts, n_turns, rig.n_ahead)
    });
    assert_eq!(same, texts);
    assert!(n_ahead * 100 >= n_turns * 97, "{n_ahead} of {n_turns} turns planned ahead");
}

/// Guesses from the text against answers that are known beforehand: how many of each place were checked, and right.
#[test]
fn guesses_are_counted_by_their_place() {
    for (seed, draft_max) in [(1, 3), (2, 8), (3, 1)] {
        let mut config = config();
        config.speculation = Some(SpeculationConfig { draft_max, ngram: 1, branches: 0 });
        let width = config.vocab_size as usize;
        let rng = &mut Rng(seed);
        // Runs of a few tokens that come again and again, now and then with another one in them.
        let script: Vec<u32> = (0..400).map(|n| if rng.one_in(9) { rng.below(21) } else { n % 5 }).collect();
        let mut rig = Rig::new(config);
        let sampling = SamplingParams { max_tokens: 400, temperature: 0.0, ..SamplingParams::default() };
        let id = rig.submit(Request { prompt: vec![1, 2, 3, 4, 0, 1, 2, 3, 4, 0], sampling, ..Request::default() });
        let (mut checked, mut right) = ([0; DRAFT_MAX as usize], [0; DRAFT_MAX as usize]);
        while let Some(plan) = rig.plan() {
            let done = rig.ids(id).len();
            let (body, _) = rig.engine.queues.iter_running().next().expect("it runs").parts();
            let guesses = body.drafts.ids.clone();
            let n_right = guesses.iter().zip(&script[done..]).take_while(|(guess, said)| guess == said).count();
            checked.iter_mut().take(guesses.len()).for_each(|n| *n += 1);
            right.iter_mut().take(n_right).for_each(|n| *n += 1);
            let mut rows = vec![0.0; width * plan.n_logit_rows as usize];
            for (row, said) in rows.chunks_exact_mut(width).zip(&script[done..]) {
                row[*said as usize] = 10.0;
            }
            rig.finish_step_with(plan, &rows);
        }
        assert_eq!(rig.ids(id), script);
        let metrics = rig.engine.metrics();
        assert_eq!((metrics.drafts, metrics.accepted), (checked, right), "at most {draft_max} guesses");
        assert_eq!(metrics.draft_max, draft_max);
        let last = draft_max as usize - 1;
        assert!(checked[last] > right[last] && right[last] > 0, "{checked:?} {right:?}");
    }
}
