//! Public faults of prefix caches for models with recurrent state. The device checks, at every step, that each state it
//! reads encodes exactly the tokens before it; what is left to show here is that prefixes really are reused.

use super::{fake::Rig, oracle};
use crate::{
    engine::{ComponentClass, ComponentConfig, EngineConfig},
    request::{Event, Request, RequestId, SamplingParams},
};

const PAGE: u32 = 16;

/// Room for two requests at once and `n_snapshots` stored states.
fn config(n_pages: u32, n_snapshots: u32) -> EngineConfig {
    let mut config = EngineConfig::paged(512, PAGE, n_pages + 1, 50);
    config.tokenizer_vocab_size = 45;
    (config.max_num_seqs, config.table_rows) = (2, 2);
    let (class, n_blocks) = (ComponentClass::State, 1 + 4 + n_snapshots);
    config.components.push(ComponentConfig { name: "kda".into(), class, n_blocks });
    config
}

fn text(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i + salt * 7 + i / 3) % 45).collect()
}

fn ask(rig: &mut Rig, prompt: Vec<u32>, max_tokens: u32) -> RequestId {
    let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    rig.submit(Request { prompt, sampling, ..Request::default() })
}

/// Ask alone; returns (tokens from the cache, what was generated), which the oracle agrees with.
fn answer(rig: &mut Rig, prompt: &[u32], max_tokens: u32) -> (u32, Vec<u32>) {
    let id = ask(rig, prompt.to_vec(), max_tokens);
    rig.run_to_idle(600);
    rig.engine.check_conservation().expect("sound");
    let (_, cached) = oracle::without_cached_tokens(&rig.heard[&id]);
    let mut cold = Rig::new(EngineConfig { prefix_cache: false, ..rig.engine.config().clone() });
    let expected = ask(&mut cold, prompt.to_vec(), max_tokens);
    cold.run_to_idle(600);
    assert_eq!(rig.ids(id), cold.ids(expected));
    (cached, rig.ids(id))
}

#[test]
fn case_80_a_hit_resumes_from_a_state_that_was_really_stored() {
    let mut rig = Rig::new(config(64, 8));
    let prompt = text(1, 200);
    assert_eq!(answer(&mut rig, &prompt, 16).0, 0);
    assert_eq!(answer(&mut rig, &prompt, 16).0, 192, "the same again");
    assert_eq!(answer(&mut rig, &[&prompt[..], &text(2, 7)].concat(), 16).0, 192, "and seven more");
    let fork = [&prompt[..150], &text(3, 20)].concat();
    assert_eq!(answer(&mut rig, &fork, 16).0, 0, "no state was stored inside the prompt");
    assert_eq!(answer(&mut rig, &[&prompt[..150], &text(4, 20)].concat(), 16).0, 144, "seen twice, stored");
}

#[test]
fn case_81_the_stored_state_is_the_one_at_the_boundary() {
    for n in [1, 15, 16, 17, 31, 32, 33, 34, 47, 48, 49] {
        let mut rig = Rig::new(config(64, 8));
        answer(&mut rig, &text(1, n), 4);
        let cached = answer(&mut rig, &[text(1, n), text(5, 9)].concat(), 4).0;
        // At the prompt's end, a whole page later than what the prompt itself may resume from.
        assert_eq!(cached, n / PAGE * PAGE, "{n}");
        let cached = answer(&mut rig, &text(1, n), 4).0;
        assert_eq!(cached, (n - 1) / PAGE * PAGE, "{n}, again");
    }
}

/// Ten prompts that share 0 to 9 pages, in random order; two snapshots, many pages.
#[test]
fn case_82_a_hit_is_never_deeper_than_the_deepest_stored_state() {
    let mut rig = Rig::new(config(128, 2));
    let (mut state, mut cached, mut cut) = (1u32, 0, 0);
    for _ in 0..100 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let shared = (state >> 8) % 10;
        let prompt = [text(1, shared * PAGE), text(10 + shared, 9 * PAGE - shared * PAGE + 5)].concat();
        cached += answer(&mut rig, &prompt, 3).0;
        cut = rig.engine.metrics().cut_tokens;
    }
    assert!(cached > 0 && cut > 0, "{cached} tokens reused, {cut} of found ones not");
}

#[test]
fn case_85_a_prompt_of_whole_pages_computes_its_last_one_again() {
    for pages in 1..4 {
        let mut rig = Rig::new(config(64, 8));
        let prompt = text(1, pages * PAGE);
        answer(&mut rig, &prompt, 1);
        assert_eq!(answer(&mut rig, &prompt, 1).0, (pages - 1) * PAGE);
    }
}

#[test]
fn case_90_a_conversation_computes_little_more_than_its_new_tokens() {
    let mut rig = Rig::new(config(96, 6));
    let mut talks = [text(1, 100), text(2, 90)];
    let turn = |rig: &mut Rig, talk: &mut Vec<u32>, what: &str, salt| {
        let before = talk.len() as u32;
        talk.extend(text(salt, 20));
        let (cached, said) = answer(rig, talk, 10);
        talk.extend(said);
        assert!(what == "first" || before - cached <= PAGE, "{what}: {cached} of {before} tokens reused");
    };
    turn(&mut rig, &mut talks[0], "first", 3);
    for n in 0..6 {
        turn(&mut rig, &mut talks[0], "next turn", 4 + n);
    }
    // The last user turn is edited: everything before it is reused.
    let mut edited = talks[0][..talks[0].len() - 30].to_vec();
    turn(&mut rig, &mut edited, "edited turn", 20);
    turn(&mut rig, &mut talks[1], "first", 21);
    for n in 0..3 {
        for talk in &mut talks {
            turn(&mut rig, talk, "alternating", 30 + n);
        }
    }
}

/// `prompt` behind `system`, which the caller says others share.
fn ask_behind(rig: &mut Rig, system: &[u32], prompt: &[u32], max_tokens: u32) -> RequestId {
    let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    let boundaries = vec![system.len() as u32];
    rig.submit(Request { prompt: [system, prompt].concat(), sampling, boundaries, ..Request::default() })
}

/// What the second conversation under a system prompt costs: tokens found, steps, states stored so far; and the cold one's steps.
fn second(is_told: bool, n_system: u32) -> [u64; 4] {
    let mut rig = Rig::new(config(64, 8));
    let system = text(1, n_system);
    let mut figures = Vec::new();
    for salt in [2, 3] {
        let (prompt, steps) = (text(salt, 40), rig.engine.metrics().steps);
        let id = match is_told {
            true => ask_behind(&mut rig, &system, &prompt, 4),
            false => ask(&mut rig, [&system[..], &prompt].concat(), 4),
        };
        rig.run_to_idle(100);
        let (_, cached) = oracle::without_cached_tokens(&rig.heard[&id]);
        let mut cold = Rig::new(EngineConfig { prefix_cache: false, ..rig.engine.config().clone() });
        let expected = ask(&mut cold, [&system[..], &prompt].concat(), 4);
        cold.run_to_idle(100);
        assert_eq!(rig.ids(id), cold.ids(expected), "told or not, the same");
        let metrics = rig.engine.metrics();
        figures.push([cached.into(), metrics.steps - steps, metrics.states_cached]);
    }
    let [[0, cold_steps, _], [cached, steps, states]] = figures[..] else { panic!("{figures:?}") };
    [cached, steps, states, cold_steps]
}

#[test]
fn case_90_the_second_conversation_under_a_system_prompt_finds_it_all() {
    let [cached, steps, states, cold] = second(true, 150);
    let [cached_untold, steps_untold, states_untold, cold_untold] = second(false, 150);
    assert_eq!((cached, cached_untold), (144, 0));
    // The first pays a step for it, the second would have: promotion stores the same state then.
    assert_eq!((cold, steps + 1), (cold_untold + 1, steps_untold));
    assert_eq!(states, states_untold, "stored once");
    // Where a state is stored anyway, or nothing can be resumed, nothing changes: the last boundary of the prompt, less than a page.
    for n_system in [0, PAGE - 1] {
        let figures = second(true, n_system);
        assert_eq!(figures, second(false, n_system), "{n_system}");
    }
    let mut rig = Rig::new(config(64, 8));
    let id = ask_behind(&mut rig, &text(1, 150), &text(2, 5), 1);
    rig.run_to_idle(10);
    assert_eq!((rig.ids(id).len(), rig.engine.metrics().steps), (1, 2), "the last boundary and the end");
}

/// Whenever a request is given up, nothing of it stays but what can be resumed or evicted.
#[test]
fn case_95_a_boundary_of_an_aborted_or_preempted_request_holds_nothing() {
    let system = text(1, 100);
    let mut n_stored = 0;
    for at in 0..8 {
        let mut rig = Rig::new(config(64, 8));
        let id = ask_behind(&mut rig, &system, &text(2, 60), 8);
        (0..at).for_each(|_| assert!(rig.turn()));
        let plan = rig.plan().expect("it has more to do");
        assert!(rig.abort(id));
        rig.finish_step(plan);
        rig.run_to_idle(2);
        rig.engine.check_conservation().expect("sound");
        let metrics = rig.engine.metrics();
        assert_eq!(metrics.states_used, metrics.states_cached, "{at}");
        n_stored += metrics.states_cached;
        let id = ask_behind(&mut rig, &system, &text(3, 60), 2);
        rig.run_to_idle(20);
        let (_, cached) = oracle::without_cached_tokens(&rig.heard[&id]);
        assert_eq!(cached, if metrics.states_cached > 0 { 96 } else { 0 }, "{at}");
        rig.engine.flush_cache().expect("idle");
        assert_eq!((rig.engine.metrics().pages_used, rig.engine.metrics().states_used), (0, 0));
    }
    assert!(n_stored > 0, "some came as far as the boundary");
    // Six at once in the memory of three.
    let mut config = config(25, 0);
    (config.max_model_len, config.max_num_seqs, config.table_rows) = (160, 6, 6);
    (config.components[1].n_blocks, config.max_batch_tokens) = (1 + 14, 300);
    let mut rig = Rig::new(config);
    let ids: Vec<RequestId> = (0..6).map(|salt| ask_behind(&mut rig, &text(salt, 50), &text(9, 30), 80)).collect();
    rig.run_to_idle(3000);
    assert!(ids.iter().all(|id| rig.ids(*id).len() == 80));
    assert!(rig.engine.metrics().preemptions > 0);
    rig.engine.flush_cache().expect("idle");
    assert_eq!((rig.engine.metrics().pages_used, rig.engine.metrics().states_used), (0, 0));
}

#[test]
fn case_91_a_preempted_request_resumes_from_a_kept_state() {
    let mut config = config(25, 0);
    (config.max_model_len, config.max_num_seqs, config.table_rows) = (160, 6, 6);
    config.components[1].n_blocks = 1 + 14;
    config.max_batch_tokens = 300;
    let mut rig = Rig::new(config.clone());
    let prompts: Vec<Vec<u32>> = (0..6).map(|salt| text(salt, 80)).collect();
    let ids: Vec<RequestId> = prompts.iter().map(|prompt| ask(&mut rig, prompt.clone(), 80)).collect();
    rig.run_to_idle(3000);
    for (id, prompt) in ids.iter().zip(&prompts) {
        let mut alone = Rig::new(config.clone());
        let expected = ask(&mut alone, prompt.clone(), 80);
        alone.run_to_idle(600);
        assert_eq!(rig.ids(*id), alone.ids(expected));
        assert!(matches!(rig.end(*id), Event::Finished { .. }));
    }
    let metrics = rig.engine.metrics();
    assert!(metrics.preemptions > 0);
    rig.engine.flush_cache().expect("idle");
    let metrics = rig.engine.metrics();
    assert_eq!((metrics.pages_used, metrics.states_used), (0, 0));
}

/// One slot per request and none to spare: nothing is stored, everything is right.
#[test]
fn without_a_second_slot_nothing_is_stored_and_nothing_is_wrong() {
    let mut config = config(64, 0);
    config.components[1].n_blocks = 2;
    let mut rig = Rig::new(config);
    let prompt = text(1, 100);
    for _ in 0..3 {
        answer(&mut rig, &prompt, 40);
    }
    assert_eq!(rig.engine.metrics().running, 0);
}
