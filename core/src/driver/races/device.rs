//! The device's thread with a step behind the one in flight.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use shuttle::{
    rand::{Rng, thread_rng},
    sync::atomic::{AtomicU64, Ordering},
};
use tokenspeed_backend_api::catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH};

use super::{
    breaks, finds, holds,
    locks::{Deaf, Sound, n_live, nobody_lives, toss},
};
use crate::{
    bug::Bug,
    cache::copies::{CopyOrder, Direction},
    driver::{
        CopyError, StepRunner,
        device::{DeviceThread, Failure, Turn},
        queue::Items,
    },
    engine::Pass,
    monitor::Monitor,
    sampler::device::Sampled,
    step::{StepBuffer, StepCapacity},
};

/// Turns of a run. A turn has as many rows of logits as is its number.
const N: u32 = 4;

/// What is added to a turn's number to name the copy that went with it.
const COPY: u32 = 100;

/// What a device did.
#[derive(Debug, Default)]
struct Record {
    /// Turns run and copies carried out, by number.
    run: Vec<u32>,
    n_dropped: u32,
}

/// A device that samples its turn's number in every row.
struct Device {
    record: Arc<Mutex<Record>>,
    /// Turn that it refuses, and its copy.
    refused: u32,
    /// Something that others can come between.
    steps: AtomicU64,
    chosen: Vec<u32>,
    logprobs: Vec<f32>,
}

impl StepRunner for Device {
    fn run(&mut self, _: Pass, _: &[u8], n_logit_rows: u32) -> Result<(), String> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.record.lock().unwrap().run.push(n_logit_rows);
        self.steps.fetch_add(1, Ordering::SeqCst);
        if n_logit_rows == self.refused { Err("refused".into()) } else { Ok(()) }
    }

    fn logits(&self, _: Pass) -> &[f32] {
        &[]
    }

    fn copy(&mut self, order: &CopyOrder) -> Result<(), CopyError> {
        self.record.lock().unwrap().run.push(COPY + order.id as u32);
        self.steps.fetch_add(1, Ordering::SeqCst);
        if order.id == u64::from(self.refused) { Err(CopyError::NoHostMemory) } else { Ok(()) }
    }

    fn run_sampled(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let n = n_logit_rows as usize;
        self.chosen = vec![n_logit_rows; n * CHOSEN_WIDTH];
        self.logprobs = vec![n_logit_rows as f32; n * LOGPROBS_WIDTH];
        self.run(pass, step, n_logit_rows)
    }

    fn sampled(&self, _: Pass) -> Sampled<'_> {
        Sampled { chosen: &self.chosen, logprobs: &self.logprobs }
    }

    fn status(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.record.lock().unwrap().n_dropped += 1;
    }
}

/// The engine thread's side of a run.
struct Engine<M: Monitor<Items<Box<Turn>>>> {
    thread: DeviceThread<M>,
    #[expect(clippy::vec_box, reason = "they go through queues as they are")]
    idle: Vec<Box<Turn>>,
    record: Arc<Mutex<Record>>,
}

impl<M: Monitor<Items<Box<Turn>>> + Send + Sync + 'static> Engine<M> {
    fn new(refused: u32) -> Self {
        nobody_lives();
        let capacity = StepCapacity { tokens: 1, rows: 1, logit_rows: N, deltas: 1, samples: N };
        let block = || StepBuffer::new(capacity);
        let mut idle = vec![Turn::of(block(), block()), Turn::of(block(), block())];
        let record = Arc::<Mutex<Record>>::default();
        let device = Device {
            record: Arc::clone(&record),
            refused,
            steps: AtomicU64::new(0),
            chosen: Vec::new(),
            logprobs: Vec::new(),
        };
        idle[0].runner = Some(Box::new(device));
        let clock = AtomicU64::new(0);
        let thread = DeviceThread::start(move || clock.fetch_add(1, Ordering::SeqCst) + 1);
        Self { thread, idle, record }
    }

    /// As the driver does it: the device goes along, if it is here.
    fn launch(&mut self, number: u32, is_sampled: bool, is_behind: bool) {
        let mut turn = self.idle.pop().expect("two turns at most");
        if let Some(other) = self.idle.iter_mut().find(|other| other.runner.is_some()) {
            turn.runner = other.runner.take();
        }
        turn.set_forward(number, is_sampled, is_behind);
        let id = u64::from(number);
        turn.copies.push((CopyOrder { id, direction: Direction::Store, hash: id, page: None, state: None }, false));
        self.thread.launch(turn);
    }
}

/// How a turn's copies ended.
fn ends(turn: &mut Turn) -> Vec<(u32, bool)> {
    turn.copies.drain(..).map(|(order, is_ok)| (order.id as u32, is_ok)).collect()
}

/// Steps behind steps, one of which may be refused: turns come back in order, each with what was sampled in it and how its copy
/// ended, the one behind a refused one was not run, and the one after that is. The last brings the device home.
fn pipeline<M: Monitor<Items<Box<Turn>>> + Send + Sync + 'static>() {
    let refused = thread_rng().gen_range(0..=N);
    let mut engine = Engine::<M>::new(refused);
    let (mut flying, mut next, mut ended_ns) = (VecDeque::new(), 1, 0);
    let (mut ran, mut not_run) = (Vec::new(), Vec::new());
    while next <= N || !flying.is_empty() {
        while next <= N && (flying.is_empty() || flying.len() < 2 && toss()) {
            engine.launch(next, next < N, !flying.is_empty());
            flying.push_back(next);
            next += 1;
        }
        let mut turn = engine.thread.wait();
        let number = flying.pop_front().expect("something is under way");
        assert_eq!(ends(&mut turn), [(number, number != refused)]);
        assert!(turn.ended_ns > ended_ns, "turns end one after the other");
        ended_ns = turn.ended_ns;
        ran.extend([COPY + number, number]);
        match &turn.outcome {
            Ok(()) => {
                assert_ne!(number, refused);
                let chosen = turn.sampled().forward.chosen;
                let n_rows = if number < N { number as usize } else { 0 };
                assert_eq!(chosen, vec![number; n_rows * CHOSEN_WIDTH], "what turn {number} sampled");
            }
            Err(failure) => {
                assert_eq!((number, failure), (refused, &Failure::Refused("refused".into())));
                for behind in flying.drain(..) {
                    let mut turn = engine.thread.wait();
                    assert_eq!(ends(&mut turn), [(behind, false)]);
                    assert_eq!(turn.outcome, Err(Failure::NotRun), "turn {behind} is behind {refused}");
                    not_run.push(behind);
                    engine.idle.push(turn);
                }
            }
        }
        engine.idle.push(turn);
    }
    assert_eq!(engine.idle.iter().filter(|turn| turn.runner.is_some()).count(), 1, "the device is at home");
    let Engine { thread, idle, record } = engine;
    drop(thread);
    assert_eq!(n_live(), 0, "the thread has ended");
    assert_eq!(record.lock().unwrap().run, ran, "and {not_run:?} were left alone");
    assert_eq!(record.lock().unwrap().n_dropped, 0);
    drop(idle);
    assert_eq!(record.lock().unwrap().n_dropped, 1);
}

/// The thread is dropped with one or two turns under way: it ends, and the device is dropped with it.
fn dropping<M: Monitor<Items<Box<Turn>>> + Send + Sync + 'static>() {
    let mut engine = Engine::<M>::new(0);
    engine.launch(1, true, false);
    if toss() {
        engine.launch(2, true, true);
    }
    if toss() {
        drop(engine.thread.wait());
    }
    let record = Arc::clone(&engine.record);
    drop(engine);
    assert_eq!(n_live(), 0, "the thread has ended");
    let record = record.lock().unwrap();
    let all = [COPY + 1, 1, COPY + 2, 2];
    assert!(record.run.len().is_multiple_of(2) && all.starts_with(&record.run), "{:?}", record.run);
    assert_eq!(record.n_dropped, 1);
}

#[test]
fn turns_come_back_in_order_and_none_runs_behind_a_failed_one() {
    holds(pipeline::<Sound<_>>);
    breaks(pipeline::<Deaf<_>>);
    finds(Bug::FailedTurnStopsNothing, pipeline::<Sound<_>>);
    finds(Bug::NewestIsTakenFirst, pipeline::<Sound<_>>);
}

#[test]
fn a_device_thread_that_is_dropped_ends() {
    holds(dropping::<Sound<_>>);
    breaks(dropping::<Deaf<_>>);
    finds(Bug::ClosingWakesNobody, dropping::<Sound<_>>);
    finds(Bug::ThreadsAreLeftBehind, dropping::<Sound<_>>);
}
