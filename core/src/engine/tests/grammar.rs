//! Constrained requests: a toy grammar, and what its masks must never do. That constrained requests hear the same alone,
//! batched, preempted, with right and wrong guesses and with masks made elsewhere is checked by `simulation`.

use super::{
    fake::{Rig, mix},
    oracle,
};
use crate::{
    engine::EngineConfig,
    grammar::{Constraint, ConstraintError, MaskJob, TokenMask},
    request::{Event, FinishReason, Request, SamplingParams},
    speculation::SpeculationConfig,
};

/// Tokens follow one another by chance, but always the same chance. Id 0 ends the answer where that is allowed.
#[derive(Clone, Debug)]
pub struct Toy {
    /// Fingerprints of all accepted prefixes; the first is the grammar.
    path: Vec<u64>,
    /// Whole after this many tokens.
    whole_after: usize,
    /// No mask after this many tokens.
    fails_after: usize,
}

impl Toy {
    pub fn boxed(seed: u64, whole_after: usize, fails_after: usize) -> Box<dyn Constraint> {
        Box::new(Self { path: vec![seed], whole_after, fails_after })
    }

    pub fn allows(&self, id: u32) -> bool {
        let state = *self.path.last().unwrap();
        match id {
            0 => state.is_multiple_of(5),
            // One id always.
            _ => u64::from(id) == 1 + state % 15 || mix(state, id).is_multiple_of(3),
        }
    }
}

impl Constraint for Toy {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        if self.path.len() > self.fails_after {
            return Err(ConstraintError { message: "too deep".into() });
        }
        (0..mask.vocab_size()).filter(|id| self.allows(*id)).for_each(|id| mask.allow(id));
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        assert!(id != 0 && self.allows(id) && !self.is_complete(), "id {id} was not allowed");
        self.path.push(mix(*self.path.last().unwrap(), id));
        Ok(())
    }

    fn roll_back(&mut self, n: usize) -> Result<(), ConstraintError> {
        assert!(n < self.path.len());
        self.path.truncate(self.path.len() - n);
        Ok(())
    }

    fn count_allowed(&mut self, ids: &[u32]) -> Result<usize, ConstraintError> {
        let mut ahead = self.clone();
        let may_follow = |id: &&u32| {
            let is_allowed = **id != 0 && !ahead.is_complete() && ahead.allows(**id);
            ahead.path.push(mix(*ahead.path.last().unwrap(), **id));
            is_allowed
        };
        Ok(ids.iter().take_while(may_follow).count())
    }

    fn is_complete(&self) -> bool {
        self.path.len() > self.whole_after
    }

    fn fresh(&self) -> Box<dyn Constraint> {
        Box::new(Self { path: vec![self.path[0]], ..*self })
    }
}

fn request(constraint: Option<Box<dyn Constraint>>, max_tokens: u32) -> Request {
    let sampling = SamplingParams { max_tokens, logprobs: Some(0), seed: 3, ..SamplingParams::default() };
    Request { prompt: vec![1, 2, 3], sampling, constraint, ..Request::default() }
}

fn config() -> EngineConfig {
    EngineConfig { eos_ids: vec![0], ..EngineConfig::paged(200, 4, 400, 20) }
}

#[test]
fn a_whole_answer_ends_without_another_step() {
    for max_tokens in 1..8 {
        let mut rig = Rig::new(config());
        let mut request = request(Some(Toy::boxed(8, 6, 100)), max_tokens);
        // Not before, so that the answer becomes whole.
        request.sampling.logit_bias = vec![(0, -100.0)];
        let id = rig.submit(request);
        rig.run_to_idle(7);
        let Event::Finished { reason, usage } = rig.end(id) else { panic!("{:?}", rig.end(id)) };
        let expected = if max_tokens < 6 { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!((*reason, usage.completion_tokens), (expected, max_tokens.min(6)), "whole is more than full");
    }
}

#[test]
fn neighbours_without_a_grammar_hear_what_they_hear_alone() {
    let run = |constraint: Option<Box<dyn Constraint>>| {
        let mut rig = Rig::new(config());
        let free = rig.submit(request(None, 20));
        if constraint.is_some() {
            rig.submit(request(constraint, 50));
        }
        rig.run_to_idle(60);
        rig.heard[&free].clone()
    };
    assert_eq!(run(None), run(Some(Toy::boxed(3, 9, 100))));
    assert_eq!(run(None), run(Some(Toy::boxed(3, 9, 4))), "not even when it fails");
}

#[test]
fn a_failing_grammar_ends_its_request_and_leaves_the_cache() {
    let mut rig = Rig::new(config());
    let id = rig.submit(request(Some(Toy::boxed(8, 50, 3)), 50));
    rig.run_to_idle(10);
    let Event::Failed { message } = rig.end(id) else { panic!("{:?}", rig.end(id)) };
    assert_eq!(message, "the grammar of this request failed: too deep");
    assert_eq!(rig.ids(id).len(), 3, "what was generated before was delivered");
    rig.engine.check_conservation().unwrap();
}

/// Public fault: after guesses past the end of the grammar the matcher was in a state that never existed.
#[test]
fn case_79_guesses_past_the_end_of_the_grammar() {
    let run = |speculation| {
        let mut rig = Rig::new(EngineConfig { speculation, max_logit_rows: 400, ..config() });
        let ids: Vec<_> = (0..40)
            .map(|seed| {
                let mut request = request(Some(Toy::boxed(seed, 3 + seed as usize % 20, 100)), 60);
                // Few ids, so that guesses are often right; repeated, so that there are some.
                request.prompt = [5, 9, 5, 9, 5, 9, 5, 9].to_vec();
                request.sampling.logit_bias = (0..20).filter(|id| ![5, 9].contains(id)).map(|id| (id, -4.0)).collect();
                rig.submit(request)
            })
            .collect();
        rig.run_to_idle(4000);
        let heard: Vec<_> = ids.iter().map(|id| rig.heard[id].clone()).collect();
        (heard, rig.engine.metrics())
    };
    let (without, _) = run(None);
    let (with, metrics) = run(Some(SpeculationConfig { draft_max: 7, ngram: 1, branches: 0 }));
    assert_eq!(with, without);
    assert!(metrics.drafts[0] > 20 && metrics.accepted[0] > 10, "{:?} {:?}", metrics.drafts, metrics.accepted);
}

/// Public fault: noise in the padding rows of the head won, and crashed the grammar.
#[test]
fn case_73_padding_ids_never_come_out_of_a_grammar() {
    for (temperature, speculation) in [(0.0, None), (1.0, None), (2.0, Some(SpeculationConfig::default()))] {
        let config = EngineConfig { tokenizer_vocab_size: 17, speculation, max_logit_rows: 400, ..config() };
        let mut rig = Rig::new(config.clone());
        for seed in 0..20 {
            let mut request = request(Some(Toy::boxed(seed, 30, 100)), 40);
            (request.sampling.temperature, request.sampling.seed) = (temperature, seed);
            request.sampling.logprobs = Some(17);
            let id = rig.submit(request.clone());
            rig.run_to_idle(100);
            assert_eq!(oracle::without_cached_tokens(&rig.heard[&id]).0, oracle::alone(&request, &config));
            for event in &rig.heard[&id] {
                // The largest logits of all are those of the padding.
                let Event::Token { id, logprobs: Some(logprobs) } = event else { continue };
                assert!(*id < 17 && logprobs.top.iter().all(|&(id, _)| id < 17), "{event:?}");
            }
        }
    }
}

#[test]
fn masks_made_elsewhere_are_the_same_masks() {
    let mut rig = Rig::new(config());
    let ids: Vec<_> = (0..6).map(|seed| rig.submit(request(Some(Toy::boxed(seed, 30, 100)), 20))).collect();
    let mut aborted = false;
    while let Some(plan) = rig.plan() {
        let mut jobs: Vec<MaskJob> = Vec::new();
        rig.engine.lend_masks(&mut |job| jobs.push(job));
        assert_eq!(jobs.len() as u32, plan.n_logit_rows);
        if !aborted && rig.ids(ids[2]).len() == 5 {
            aborted = rig.abort(ids[2]);
        }
        // The other way round, on another thread, half of them not run at all.
        jobs.reverse();
        let jobs = std::thread::spawn(move || {
            jobs.iter_mut().step_by(2).for_each(MaskJob::run);
            jobs
        });
        jobs.join().unwrap().into_iter().for_each(|job| rig.engine.return_masks(job));
        rig.finish_step(plan);
    }
    let mut alone = Rig::new(config());
    for (seed, id) in ids.iter().enumerate() {
        let same = alone.submit(request(Some(Toy::boxed(seed as u64, 30, 100)), 20));
        alone.run_to_idle(60);
        if seed == 2 {
            assert_eq!(rig.ids(*id)[..], alone.ids(same)[..5]);
        } else {
            assert_eq!(rig.ids(*id), alone.ids(same));
        }
    }
}

#[test]
fn ignore_eos_contradicts_a_grammar() {
    let mut rig = Rig::new(config());
    let mut request = request(Some(Toy::boxed(1, 9, 9)), 9);
    request.sampling.ignore_eos = true;
    let error = rig.engine.submit(request, 0).unwrap_err();
    assert!(error.to_string().starts_with("ignore_eos cannot stand together with a grammar"), "{error}");
}
