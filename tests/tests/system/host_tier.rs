//! *Prefix cache, host memory*, with real numbers: a conversation whose pages had to leave the device for another's comes
//! back from host memory, and has the tokens and log-probabilities it has alone; and so it has when what is in host memory
//! was damaged, only later.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokenspeed_core::{
    cache::copies::{CopyOrder, Direction},
    driver::{CopyError, StepRunner},
    engine::Pass,
    load::DeviceProgram,
    sampler::device::Sampled,
};
use tokenspeed_server::{engine_setup, progress::Silent};

use crate::{
    batch_invariance::ids,
    support::{self, finish, greedy, models, submit},
};

/// Pages for one request of full length; on a hybrid model, one stored state.
const SMALL: &str = "--mode exact --max-num-seqs 1 --memory 900MiB --threads 1";
const HOST: &str = "--host-cache-bytes 64MiB";

/// Flips bits in host memory before each load while `armed`.
struct Damaging {
    program: DeviceProgram,
    armed: Arc<AtomicBool>,
}

impl StepRunner for Damaging {
    fn run(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.program.run(pass, step, n_logit_rows)
    }

    fn logits(&self, pass: Pass) -> &[f32] {
        self.program.logits(pass)
    }

    fn run_sampled(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.program.run_sampled(pass, step, n_logit_rows)
    }

    fn sampled(&self, pass: Pass) -> Sampled<'_> {
        self.program.sampled(pass)
    }

    fn copy(&mut self, order: &CopyOrder) -> Result<(), CopyError> {
        // Once: flipped twice, a bit is right again.
        if order.direction == Direction::Load && self.armed.swap(false, Ordering::SeqCst) {
            self.program.host_cache().expect("there is one").damage();
        }
        self.program.copy(order)
    }

    fn status(&self) -> Result<(), String> {
        self.program.status()
    }
}

/// Two conversations that begin with so many tokens, too long to be on the device together.
/// `states`: words about those that are kept.
fn tiers(folder: &models::Folder, words: &str, states: &str, first: [usize; 2]) {
    let options = support::options(&folder.model(), &format!("{SMALL} {HOST} {words} {states}"));
    let armed = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&armed);
    let between = Box::new(|program| Box::new(Damaging { program, armed: shared }) as Box<dyn StepRunner>);
    let engine = engine_setup::load_between(&options, &mut Silent, between).expect("loaded").engine;
    let cold = support::load(&folder.model(), &format!("{SMALL} {words} --no-prefix-cache")).engine;
    let ask = |prompt: &[u32], label: &str| -> (usize, Vec<u32>) {
        let answer = finish(submit(&*engine, greedy(prompt, 8)));
        let alone = finish(submit(&*cold, greedy(prompt, 8)));
        assert_eq!(answer.numbers(), alone.numbers(), "{label}");
        (answer.usage.cached_tokens as usize, answer.ids)
    };
    let mut talks = [ids(3, first[0]), ids(4, first[1])];
    let mut turn = |which: usize, salt: u32, label: &str| -> (usize, usize) {
        let before = talks[which].len();
        talks[which].extend(ids(salt, 9));
        let (cached, said) = ask(&talks[which], label);
        talks[which].extend(said);
        (cached, before)
    };
    assert_eq!((turn(0, 5, "first").0, turn(1, 6, "second").0), (0, 0));
    for n in 0..4 {
        let (cached, before) = turn(n as usize % 2, 7 + n, "next turn");
        assert!(before - cached <= 64, "turn {n}: {cached} of {before} tokens reused");
    }
    let metrics = engine.metrics();
    assert!(metrics.host_loaded > 0 && metrics.host_pages[0] > 0 && metrics.host_failed == 0, "{metrics:?}");
    assert!(metrics.relayed_steps > 0, "copies leave steps behind each other: {metrics:?}");
    assert_eq!(metrics.host_states[0] > 0, metrics.states_total > 0, "{metrics:?}");

    armed.store(true, Ordering::SeqCst);
    let (cached, before) = turn(0, 20, "after bits flipped in host memory");
    assert!(before - cached > 64, "a damaged page or state was used: {cached} of {before}");
    assert!(engine.metrics().host_failed > 0);
    turn(1, 21, "the other, damaged as well");
    // Copies of pages that were on the device have not been read yet: they are bad, too.
    turn(0, 22, "what was damaged and not read before");

    engine.flush_cache().expect("idle");
    let metrics = engine.metrics();
    assert_eq!((metrics.pages_used, metrics.host_pages[0], metrics.host_states[0]), (0, 0, 0), "both tiers");
}

#[test]
fn a_conversation_comes_back_from_host_memory() {
    tiers(&models::tiny(), "--max-model-len 256", "", [150, 140]);
}

#[test]
fn a_conversation_with_recurrent_state_comes_back_from_host_memory() {
    tiers(&models::kimi(), "--max-model-len 320", "--prefix-snapshots 1", [210, 200]);
}

/// Without room on the device for both, the second turn computes everything; that is what the tier is for.
#[test]
fn without_host_memory_it_does_not() {
    let engine = support::load(&models::tiny().model(), &format!("{SMALL} --max-model-len 256")).engine;
    let cached = |prompt: &[u32]| finish(submit(&*engine, greedy(prompt, 8))).usage.cached_tokens;
    let talks = [ids(3, 150), ids(4, 140)];
    assert_eq!([cached(&talks[0]), cached(&talks[1])], [0, 0]);
    let reused = cached(&[&talks[0][..], &ids(5, 20)].concat());
    assert!(reused < 128, "{reused}");
    assert!(support::try_load(&models::tiny().model(), "--host-cache-bytes 1").is_err(), "not even one page");
}
