//! *Chunked prefill boundary mismatch* on a model with recurrent states and convolution windows: where a prompt is cut, and
//! with how many tokens it ends, changes nothing. In fast mode whole tiles of a prompt are matrix products, so a cut inside
//! one shows in the last bits; in exact mode nothing does.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokenspeed_core::{
    client::Engine,
    driver::StepRunner,
    engine::Pass,
    load::DeviceProgram,
    request::{Event, Request},
    sampler::device::Sampled,
};
use tokenspeed_server::{engine_setup, progress::Silent};

use crate::{
    batch_invariance::ids,
    support::{
        self, Answer, finish, finish_all, greedy, load,
        models::{self, long_tests},
        submit,
    },
};

fn engine(folder: &models::Folder, words: &str) -> Arc<dyn Engine> {
    load(&folder.model(), &format!("--max-model-len 640 --max-num-seqs 4 --no-prefix-cache {words}")).engine
}

/// Equal: to the last bit in exact mode, nearly in fast mode.
fn assert_same(mode: &str, found: &Answer, wanted: &Answer, label: &str) {
    if mode == "exact" {
        assert_eq!(found.numbers(), wanted.numbers(), "{mode}: {label}");
        return;
    }
    assert_eq!(found.ids, wanted.ids, "{mode}: {label}");
    for (found, wanted) in found.logprobs.iter().zip(&wanted.logprobs) {
        for (found, wanted) in found.top.iter().zip(&wanted.top) {
            assert!((found.1 - wanted.1).abs() <= 1e-4, "{mode}: {label}: {found:?} for {wanted:?}");
        }
    }
}

/// Case 92: every length, whole against token by token; then the state goes on into decoding.
#[test]
fn chunked_prefill_boundary_mismatch_of_the_last_chunk() {
    let folder = models::small_kimi();
    for mode in ["exact", "fast"] {
        let whole = engine(&folder, &format!("--mode {mode}"));
        let single = engine(&folder, &format!("--mode {mode} --chunked-prefill-size 1"));
        let lengths: Vec<usize> = if long_tests() {
            (1..=200).chain(289..=301).chain(511..=513).collect()
        } else {
            // Around windows, tiles, pages.
            (1..=5)
                .chain(15..=18)
                .chain(31..=33)
                .chain(47..=49)
                .chain(62..=66)
                .chain(79..=81)
                .chain([129, 193])
                .collect()
        };
        for n in lengths {
            let request = greedy(&ids(n as u32, n), 3);
            let [wanted, found] = [&whole, &single].map(|engine| finish(submit(&**engine, request.clone())));
            assert_same(mode, &found, &wanted, &format!("{n} tokens"));
        }
    }
}

/// Case 93: chunks of every awkward size, alone and beside others that decode.
#[test]
fn chunked_prefill_boundary_mismatch_of_the_window() {
    let folder = models::small_kimi();
    for mode in ["exact", "fast"] {
        let request = greedy(&ids(3, 150), 4);
        let wanted = finish(submit(&*engine(&folder, &format!("--mode {mode}")), request.clone()));
        let sizes: &[u32] = if long_tests() { &[1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 1000] } else { &[1, 3, 7, 63, 65] };
        for size in sizes {
            let engine = engine(&folder, &format!("--mode {mode} --chunked-prefill-size {size}"));
            let decoding: Vec<Request> = (0..3).map(|n| greedy(&ids(20 + n, 9), 60)).collect();
            let answers = finish_all(&*engine, decoding.into_iter().chain([request.clone()]));
            assert_same(mode, &answers[3], &wanted, &format!("chunks of {size}, beside others"));
            let alone = finish(submit(&*engine, request.clone()));
            assert_same(mode, &alone, &wanted, &format!("chunks of {size}"));
        }
    }
}

/// Makes every page and state no number before the next step while `armed`.
struct Poisoning {
    program: DeviceProgram,
    armed: Arc<AtomicBool>,
}

impl Poisoning {
    fn poison(&mut self) -> Result<(), String> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.program.poison_cache().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl StepRunner for Poisoning {
    fn run(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.poison()?;
        self.program.run(pass, step, n_logit_rows)
    }

    fn logits(&self, pass: Pass) -> &[f32] {
        self.program.logits(pass)
    }

    fn run_sampled(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.poison()?;
        self.program.run_sampled(pass, step, n_logit_rows)
    }

    fn sampled(&self, pass: Pass) -> Sampled<'_> {
        self.program.sampled(pass)
    }

    fn status(&self) -> Result<(), String> {
        self.program.status()
    }
}

/// Case 98 as far as a CPU goes: odd numbers of rows that end at different times; whatever pads a batch is nobody's state.
/// Every place that no request holds is no number, the scratch slot too: who reads one shows it.
#[test]
fn odd_batches_of_recurrent_rows() {
    let folder = models::small_kimi();
    let sizes: &[u32] = if long_tests() { &[5, 7, 50] } else { &[5, 7] };
    let most = *sizes.last().expect("some");
    let request = |n: u32| greedy(&ids(n, 5 + 11 * (n as usize % 13)), 3 + 4 * (n % 9));
    let requests: Vec<Request> = (0..most).map(request).collect();
    let alone = engine(&folder, "--mode exact");
    let wanted: Vec<Answer> = requests.iter().map(|r| finish(submit(&*alone, r.clone()))).collect();
    for &n in sizes {
        let words = format!("--mode exact --max-model-len 640 --max-num-seqs {n} --no-prefix-cache --threads 1");
        let options = support::options(&folder.model(), &format!("{words} --memory 900MiB"));
        let armed = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&armed);
        let between = Box::new(|program| Box::new(Poisoning { program, armed: shared }) as Box<dyn StepRunner>);
        let engine = engine_setup::load_between(&options, &mut Silent, between).expect("loaded").engine;
        for rows in (1..=n as usize).filter(|rows| *rows < 8 || [17, 33, 49, 50].contains(rows)) {
            armed.store(true, Ordering::SeqCst);
            let answers = finish_all(&*engine, requests[..rows].to_vec());
            assert!(!armed.load(Ordering::SeqCst), "nothing was poisoned");
            for (at, (found, wanted)) in answers.iter().zip(&wanted).enumerate() {
                assert_eq!(found.numbers(), wanted.numbers(), "row {at} of {rows} of at most {n}");
            }
        }
        // What is held is poisoned as well, if a request runs: it says so.
        let mut running = submit(&*engine, greedy(&ids(1, 20), 200));
        running.blocking_next().expect("it starts");
        armed.store(true, Ordering::SeqCst);
        let end = std::iter::from_fn(|| running.blocking_next()).last();
        assert!(matches!(end, Some(Event::Failed { .. })), "poison does not show: {end:?}");
        let again = finish(submit(&*engine, requests[0].clone()));
        assert_eq!(again.numbers(), wanted[0].numbers(), "poison was left behind");
    }
}
