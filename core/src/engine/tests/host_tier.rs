//! The host tier as a request meets it: what left the device comes back, or is computed again.

use tokenspeed_backend_api::{
    abi::TS_SAMPLED_TOKEN,
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
};

use super::{fake::Rig, oracle};
use crate::{
    engine::{ComponentClass, ComponentConfig, EngineConfig},
    request::{Event, Request, RequestId, SamplingParams},
    sampler::device::Sampled,
    scheduler::policy::{Order, SchedulingConfig},
};

const PAGE: u32 = 8;

/// Pages for one conversation and a half; host memory for several.
fn config(is_hybrid: bool) -> EngineConfig {
    let mut config = EngineConfig::paged(160, PAGE, 1 + 22, 50);
    config.tokenizer_vocab_size = 45;
    (config.max_num_seqs, config.table_rows) = (2, 2);
    (config.host_pages, config.host_states) = (100, 10);
    if is_hybrid {
        let (class, n_blocks) = (ComponentClass::State, 1 + 6);
        config.components.push(ComponentConfig { name: "kda".into(), class, n_blocks });
    }
    config
}

fn text(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i + salt * 7 + i / 3) % 45).collect()
}

fn submit(rig: &mut Rig, prompt: &[u32], max_tokens: u32) -> RequestId {
    let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    rig.submit(Request { prompt: prompt.to_vec(), sampling, ..Request::default() })
}

/// Ask alone; (tokens from the cache, the answer), which is that of an engine without any cache.
fn answer(rig: &mut Rig, prompt: &[u32], max_tokens: u32) -> (u32, Vec<u32>) {
    let id = submit(rig, prompt, max_tokens);
    while rig.turn() | rig.copy_all() {
        rig.engine.check_conservation().expect("sound");
    }
    let (_, cached) = oracle::without_cached_tokens(&rig.heard[&id]);
    let plain = EngineConfig { prefix_cache: false, host_pages: 0, host_states: 0, ..rig.engine.config().clone() };
    let mut cold = Rig::new(plain);
    let expected = submit(&mut cold, prompt, max_tokens);
    cold.run_to_idle(600);
    assert_eq!(rig.ids(id), cold.ids(expected));
    (cached, rig.ids(id))
}

#[test]
fn a_conversation_that_left_the_device_comes_back() {
    for is_hybrid in [false, true] {
        let mut rig = Rig::new(config(is_hybrid));
        let mut talks = [text(1, 100), text(2, 100)];
        let mut turn = |rig: &mut Rig, which: usize, salt| {
            let before = talks[which].len() as u32;
            talks[which].extend(text(salt, 5));
            let (cached, said) = answer(rig, &talks[which], 7);
            talks[which].extend(said);
            (cached, before)
        };
        turn(&mut rig, 0, 3);
        turn(&mut rig, 1, 4);
        for n in 0..4 {
            let loaded = rig.engine.metrics().host_loaded;
            let (cached, before) = turn(&mut rig, n as usize % 2, 5 + n);
            assert!(before - cached <= PAGE, "hybrid {is_hybrid}: {cached} of {before} tokens reused");
            assert!(rig.engine.metrics().host_loaded > loaded, "too few pages for both on the device");
        }
    }
}

#[test]
fn a_copy_that_fails_is_a_miss() {
    for is_hybrid in [false, true] {
        let mut rig = Rig::new(config(is_hybrid));
        answer(&mut rig, &text(1, 100), 7);
        answer(&mut rig, &text(2, 100), 7);
        let id = submit(&mut rig, &text(1, 100), 7);
        assert!(rig.plan().is_none(), "it waits for its pages");
        rig.take_orders();
        assert_eq!(rig.engine.metrics().loading, 1);
        let n = rig.copies.len();
        assert!(n > 1);
        // One in the middle: nothing from there on is used.
        for at in (0..n).rev() {
            rig.end_copy(at, at != n / 2);
        }
        while rig.turn() | rig.copy_all() {}
        let (_, cached) = oracle::without_cached_tokens(&rig.heard[&id]);
        assert!(cached < 96, "hybrid {is_hybrid}: {cached}");
        assert_eq!(rig.engine.metrics().host_failed, 1);
        rig.engine.check_conservation().expect("sound");
        assert!(matches!(rig.end(id), Event::Finished { .. }));
    }
}

#[test]
fn others_go_on_and_an_abort_leaves_the_load_its_pages() {
    let mut rig = Rig::new(config(false));
    answer(&mut rig, &text(1, 100), 7);
    answer(&mut rig, &text(2, 100), 7);
    let waits = submit(&mut rig, &text(1, 100), 7);
    let other = submit(&mut rig, &text(3, 10), 7);
    for _ in 0..10 {
        assert!(rig.turn() || !rig.ids(other).is_empty());
        rig.take_orders();
    }
    assert_eq!((rig.ids(other).len(), rig.ids(waits).len()), (7, 0), "the other does not wait for the load");
    assert!(rig.abort(waits));
    assert!(rig.engine.is_idle() && rig.engine.flush_cache().is_err(), "copies are under way");
    rig.engine.check_conservation().expect("the load keeps its pages");
    while rig.turn() | rig.copy_all() {}
    let loaded = rig.engine.metrics().host_loaded;
    assert!(loaded > 0, "the copies ended all the same");
    assert_eq!(answer(&mut rig, &text(1, 100), 7).0, 96, "what was loaded is there");
    assert_eq!(rig.engine.metrics().host_loaded, loaded, "and need not be loaded again");
    rig.engine.flush_cache().expect("idle");
    let metrics = rig.engine.metrics();
    assert_eq!((metrics.pages_used, metrics.host_pages[0]), (0, 0), "both tiers are empty");
}

#[test]
fn two_that_want_the_same_wait_for_one_load() {
    let mut rig = Rig::new(config(false));
    answer(&mut rig, &text(1, 60), 7);
    answer(&mut rig, &text(2, 150), 7);
    let ids = [text(1, 60), [text(1, 60), text(9, 3)].concat()].map(|prompt| submit(&mut rig, &prompt, 7));
    assert!(rig.plan().is_none());
    rig.take_orders();
    assert_eq!(rig.engine.metrics().loading, 2);
    let n = rig.copies.len();
    while rig.turn() | rig.copy_all() {}
    let cached = ids.map(|id| oracle::without_cached_tokens(&rig.heard[&id]).1);
    assert_eq!(cached, [56, 56]);
    assert_eq!(rig.engine.metrics().host_loaded as usize, n);
}

#[test]
fn what_is_said_twice_about_a_copy_is_heard_once() {
    let mut rig = Rig::new(config(true));
    answer(&mut rig, &text(1, 100), 7);
    answer(&mut rig, &text(2, 100), 7);
    let waits = submit(&mut rig, &text(1, 100), 7);
    assert!(rig.plan().is_none(), "it waits for its pages");
    rig.take_orders();
    let first = rig.copies[0].id;
    rig.end_copy(0, true);
    // The place of the first is free for another copy, which must not be taken for it.
    let other = submit(&mut rig, &text(3, 60), 7);
    for _ in 0..40 {
        rig.engine.copied(first, true);
        rig.engine.copied(u64::MAX, true);
        rig.engine.check_conservation().expect("sound");
        rig.turn();
        rig.take_orders();
    }
    assert_eq!((rig.ids(other).len(), rig.ids(waits).len()), (7, 0), "its other copies have not ended");
    while rig.turn() | rig.copy_all() {
        rig.engine.copied(first, false);
        rig.engine.check_conservation().expect("sound");
    }
    assert_eq!(rig.ids(waits).len(), 7);
    assert_eq!(rig.engine.metrics().host_failed, 0);
}

/// While steps run behind each other nothing else is planned: what others let go is stored all the same.
#[test]
fn what_is_let_go_is_stored_beside_steps_behind() {
    let mut config = config(false);
    config.relay = true;
    let mut rig = Rig::new(config);
    let [short, long] = [(text(1, 20), 3), (text(2, 20), 40)].map(|(prompt, most)| submit(&mut rig, &prompt, most));
    let mut other = rig.engine.new_step_buffer();
    let (mut chosen, logprobs) = ([0; 2 * CHOSEN_WIDTH], [0.0; 2 * LOGPROBS_WIDTH]);
    chosen.chunks_mut(CHOSEN_WIDTH).for_each(|row| (row[0], row[1]) = (TS_SAMPLED_TOKEN, 7));
    let mut plan = rig.engine.plan(rig.now_ns, &mut rig.step).expect("there is work");
    while rig.ids(long).len() < 20 {
        rig.now_ns += 1000;
        let behind = rig.engine.plan_behind(rig.now_ns, &mut other).expect("nothing needs the host");
        let n = plan.n_logit_rows as usize;
        let sampled = Sampled { chosen: &chosen[..n * CHOSEN_WIDTH], logprobs: &logprobs[..n * LOGPROBS_WIDTH] };
        let heard = &mut rig.heard;
        rig.engine
            .advance_sampled(rig.now_ns, plan, sampled, &mut |id, event| heard.entry(id).or_default().push(event));
        plan = behind;
        rig.take_orders();
    }
    assert!(matches!(rig.end(short), Event::Finished { .. }));
    assert_eq!(rig.copies.len(), 2, "its whole pages");
    rig.engine.check_conservation().expect("sound");
}

/// The policy's favourite is not the first in the queue; it is the one that waits for its pages.
#[test]
fn the_one_that_is_to_be_admitted_waits_for_its_load() {
    let scheduling = SchedulingConfig { order: Order::ShortestPrefill, ..SchedulingConfig::default() };
    let mut rig = Rig::new(EngineConfig { scheduling, ..config(false) });
    answer(&mut rig, &text(1, 60), 7);
    answer(&mut rig, &text(2, 150), 7);
    let long = submit(&mut rig, &text(5, 140), 2);
    let known = submit(&mut rig, &[text(1, 60), text(9, 3)].concat(), 2);
    rig.turn();
    assert_eq!(rig.engine.loading().collect::<Vec<_>>(), [known]);
    while rig.turn() | rig.copy_all() {}
    let cached = [long, known].map(|id| oracle::without_cached_tokens(&rig.heard[&id]).1);
    assert_eq!(cached, [0, 56]);
}
