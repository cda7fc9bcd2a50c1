//! Guesses that do not pay, and texts in which none are found: turns without them are planned ahead as if there were no
//! speculation, and the text is the same.

use super::fake::Rig;
use crate::{
    engine::EngineConfig,
    request::{Request, RequestId, SamplingParams},
    speculation::{DraftModel, SpeculationConfig},
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
