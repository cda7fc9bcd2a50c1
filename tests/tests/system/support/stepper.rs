//! An engine stepped by hand, with a clock that every pass moves by the same amount: widths of guesses then follow from
//! acceptance alone, and a run repeats itself.

use std::collections::BTreeMap;

use tokenspeed_backend_api::backend::{Segment, SegmentKind};
use tokenspeed_core::{
    driver::StepRunner,
    engine::{EngineConfig, EngineState, Logits, Pass},
    load::DeviceProgram,
    request::{Event, Request, RequestId},
    step::{StepBuffer, StepReader},
};
use tokenspeed_server::{engine_setup, progress::Silent};

use super::{Answer, options};

/// Changes a draft's logits before the engine sees them.
pub type Adversary = Box<dyn FnMut(&mut [f32])>;

/// See above.
pub struct Stepper {
    pub state: EngineState,
    program: DeviceProgram,
    step: StepBuffer,
    now_ns: u64,
    width: usize,
    pub adversary: Option<Adversary>,
    heard: BTreeMap<RequestId, Vec<Event>>,
    /// Tokens that the draft's first passes computed.
    pub caught_up: u64,
    /// Passes of the draft.
    pub draft_passes: u64,
    /// The first guess after a text of some length, and its logit; of the latest request that had one.
    pub first_guesses: BTreeMap<u32, (usize, f32)>,
}

const TURN_NS: u64 = 1_000_000;
const DRAFT_NS: u64 = 10_000;

impl Stepper {
    pub fn new(model: &str, words: &str) -> Self {
        Self::changed(model, words, |_| {})
    }

    /// With a configuration that the command line cannot ask for.
    pub fn changed(model: &str, words: &str, change: impl FnOnce(&mut EngineConfig)) -> Self {
        // Modes and threads are the CPU's.
        let mode = match (words.contains("--backend "), words.contains("--mode")) {
            (true, _) => "",
            (false, true) => "--threads 1",
            (false, false) => "--threads 1 --mode exact",
        };
        let words = format!("--memory 900MiB {mode} {words}");
        let loaded = engine_setup::load_parts(&options(model, &words), &mut Silent);
        let (mut config, program) = loaded.unwrap_or_else(|e| panic!("{model} {words}: {}", e.render()));
        change(&mut config);
        let width = config.draft.as_ref().map_or(0, |d| d.vocab_size as usize);
        let state = EngineState::new(config).expect("a sound configuration");
        let step = state.new_step_buffer();
        let (heard, adversary) = (BTreeMap::new(), None);
        let (caught_up, draft_passes, first_guesses) = (0, 0, BTreeMap::new());
        Self { state, program, step, now_ns: 1, width, adversary, heard, caught_up, draft_passes, first_guesses }
    }

    /// How the device executes each prepared program: the most tokens of a step, and its segments.
    pub fn segments(&self) -> Vec<(u32, Vec<SegmentKind>)> {
        let segments = self.program.segments().expect("described");
        let kinds = |all: Vec<Segment>| all.iter().map(|s| s.kind).collect();
        segments.into_iter().map(|(bucket, all)| (bucket.max_tokens, kinds(all))).collect()
    }

    pub fn submit(&mut self, request: Request) -> RequestId {
        let id = self.state.submit(request, self.now_ns).expect("a good request");
        self.heard.insert(id, Vec::new());
        id
    }

    pub fn abort(&mut self, id: RequestId) {
        let heard = &mut self.heard;
        self.state.abort(id, &mut |id, event| heard.entry(id).or_default().push(event));
    }

    /// One turn and the drafting after it; false if there was nothing to do.
    pub fn turn(&mut self) -> bool {
        let Some(plan) = self.state.plan(self.now_ns, &mut self.step) else { return false };
        if plan.n_rows > 0 {
            self.program.run(Pass::Forward, self.step.bytes(), plan.n_logit_rows).expect("runs");
        }
        if let Some(rows) = plan.verify {
            self.program.run(Pass::Verify, self.state.verify_step().bytes(), rows).expect("runs");
        }
        self.now_ns += TURN_NS;
        let forward = if plan.n_rows > 0 { self.program.logits(Pass::Forward) } else { &[] };
        let verify = if plan.verify.is_some() { self.program.logits(Pass::Verify) } else { &[] };
        let heard = &mut self.heard;
        let deliver = &mut |id, event| heard.entry(id).or_default().push(event);
        self.state.advance(self.now_ns, plan, Logits { forward, verify }, deliver);
        if let Some(replay) = self.state.replay_step() {
            self.program.run(Pass::Replay, replay.bytes(), 0).expect("runs");
            self.state.replayed(self.now_ns);
        }
        while let Some(draft) = self.state.draft_step(self.now_ns) {
            let pass = draft.pass;
            self.draft_passes += 1;
            self.program.run(pass, draft.step.bytes(), draft.n_logit_rows).expect("runs");
            if pass == Pass::DraftFirst {
                let step = StepReader::read(draft.step.bytes()).expect("sound");
                self.caught_up += step.tokens.len() as u64;
                for (&at, row) in step.logit_rows.iter().zip(self.program.logits(pass).chunks(self.width)) {
                    let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
                    self.first_guesses.insert(step.tokens[at as usize].position + 1, (best, row[best]));
                }
            }
            self.now_ns += DRAFT_NS;
            let mut logits = self.program.logits(pass).to_vec();
            if let Some(adversary) = &mut self.adversary {
                logits.chunks_mut(self.width).for_each(adversary);
            }
            self.state.drafted(self.now_ns, &logits);
        }
        true
    }

    /// Step until nothing runs or waits, and check that all memory is accounted for.
    pub fn run(&mut self) {
        while self.turn() {}
        self.state.check_conservation().expect("nothing is lost");
    }

    /// What a request heard, which has ended well.
    pub fn answer(&mut self, id: RequestId) -> Answer {
        super::answer(self.heard.remove(&id).expect("it was submitted"))
    }

    /// All of them together.
    pub fn answers(&mut self, requests: &[Request]) -> Vec<Answer> {
        let ids: Vec<RequestId> = requests.iter().map(|r| self.submit(r.clone())).collect();
        self.run();
        ids.into_iter().map(|id| self.answer(id)).collect()
    }

    /// Checked guesses, right guesses, and requests' turns that had guesses.
    pub fn guesses(&self) -> [u64; 3] {
        let metrics = self.state.metrics();
        [metrics.drafts.iter().sum(), metrics.accepted.iter().sum(), metrics.drafts[0]]
    }

    /// Tokens that a request got from each of its turns that had guesses.
    pub fn tokens_per_verify(&self) -> f64 {
        let [_, accepted, turns] = self.guesses();
        (accepted + turns) as f64 / (turns as f64).max(1.0)
    }
}
