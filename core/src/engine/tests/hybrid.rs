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
