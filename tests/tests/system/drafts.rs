//! *Speculation with a draft model*: EAGLE3 on Kimi K3 and small Llama drafts. Whatever the draft says, and whatever else
//! happens meanwhile, tokens and log-probabilities are those of a request that runs alone and without; and a good draft
//! is worth having.

use tokenspeed_core::{
    engine::ComponentClass,
    request::{FinishReason, Request, SamplingParams},
};
use tokenspeed_models::{
    eagle3,
    kimi::{
        self,
        LayerKind::{Kda, Mla},
    },
    tiny::Tiny,
};
use tokenspeed_server::acceptance::AcceptanceWatch;

use crate::{
    batch_invariance::ids,
    support::{
        self, Answer, finish, finish_all, greedy, models,
        stepper::{Adversary, Stepper},
        submit,
    },
};

const SEED: u64 = 20_260_801;
pub(crate) const LIMITS: &str = "--max-model-len 256 --max-num-seqs 4";

pub(crate) fn eagle(draft: &models::Folder) -> String {
    format!("{LIMITS} --speculative-algorithm eagle3 --speculative-draft-model {}", draft.model())
}

fn target_config() -> kimi::KimiConfig {
    let mut config = kimi::tiny::k3();
    config.layers = [Kda, Kda, Kda, Mla, Kda, Kda, Mla].to_vec();
    config.moe.experts = 8;
    config
}

/// A Kimi K3 whose text can be guessed, and a draft fitted to it.
pub(crate) fn fitted_pair() -> (models::Folder, models::Folder) {
    let (target, draft) = (models::kimi(), models::Folder::new("draft"));
    eagle3::tiny::write_target(target.path(), &target_config(), SEED).expect("written");
    eagle3::tiny::fitted(target.path(), draft.path(), 7).expect("fitted");
    (target, draft)
}

pub(crate) fn random_draft(target: &kimi::KimiConfig) -> models::Folder {
    let draft = models::Folder::new("random-draft");
    let config = eagle3::Eagle3Config { draft_vocab_size: 200, ..eagle3::tiny::config(target) };
    eagle3::tiny::write(draft.path(), &config, SEED, false).expect("written");
    draft
}

/// Of every kind: greedy over page boundaries, sampled, penalised, scored, stopped, restricted, and very short ones.
pub(crate) fn subjects() -> Vec<Request> {
    let mut all =
        vec![greedy(&ids(3, 100), 60), greedy(&ids(4, 63), 40), greedy(&ids(5, 64), 3), greedy(&ids(6, 1), 90)];
    let sampled = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        seed: 11,
        prompt_logprobs: Some(2),
        ..greedy(&[], 50).sampling
    };
    all.push(Request { prompt: ids(7, 130), sampling: sampled.clone(), ..Request::default() });
    let narrow = SamplingParams { allowed_token_ids: Some(vec![5, 6, 7]), stop_token_ids: vec![7], ..sampled };
    all.push(Request { prompt: ids(8, 30), sampling: narrow, ..Request::default() });
    all
}

pub(crate) fn alone(model: &str, requests: &[Request]) -> Vec<Answer> {
    let mut plain = Stepper::new(model, &format!("{LIMITS} --no-prefix-cache"));
    requests.iter().flat_map(|r| plain.answers(std::slice::from_ref(r))).collect()
}

pub(crate) fn assert_same(stepper: &mut Stepper, requests: &[Request], expected: &[Answer], label: &str) {
    for (n, (answer, expected)) in stepper.answers(requests).iter().zip(expected).enumerate() {
        assert_eq!(answer.numbers(), expected.numbers(), "{label}: request {n}");
        assert_eq!(answer.reason, expected.reason, "{label}: request {n}");
    }
}

/// One by one, again with cached prefixes, all together, in small chunks, and where memory does not suffice.
fn unchanged(model: &str, words: &str, adversary: fn() -> Option<Adversary>) -> [u64; 3] {
    let requests = subjects();
    let expected = alone(model, &requests);
    let mut total = [0; 3];
    let mut add = |stepper: &Stepper| total.iter_mut().zip(stepper.guesses()).for_each(|(sum, n)| *sum += n);
    let mut one = Stepper::new(model, words);
    one.adversary = adversary();
    for way in ["alone", "again"] {
        for (request, expected) in requests.iter().zip(&expected) {
            assert_same(&mut one, std::slice::from_ref(request), std::slice::from_ref(expected), way);
        }
    }
    assert!(one.state.metrics().cached_tokens >= 64, "{words}: the cache was not used");
    for more in ["--chunked-prefill-size 16", "--no-prefix-cache"] {
        let mut all = Stepper::new(model, &format!("{words} {more}"));
        all.adversary = adversary();
        assert_same(&mut all, &requests, &expected, more);
        add(&all);
    }
    // Four texts of three pages each in five pages.
    let crowd: Vec<Request> = (40..44).map(|seed| greedy(&ids(seed, 40), 100)).collect();
    let expected = alone(model, &crowd);
    let mut tight = Stepper::changed(model, words, |config| {
        let paged = config.components.iter_mut().filter(|c| c.class == ComponentClass::Paged);
        paged.for_each(|c| c.n_blocks = 6);
    });
    tight.adversary = adversary();
    assert_same(&mut tight, &crowd, &expected, "in little memory");
    assert!(tight.state.metrics().preemptions > 0, "{words}: nobody lost memory");
    add(&tight);
    add(&one);
    total
}

fn some_are_right([checked, right, _]: [u64; 3]) {
    assert!(right > 0 && right < checked, "of {checked} guesses {right} were right");
}

#[test]
fn a_fitted_draft_gives_two_tokens_a_turn_and_changes_nothing() {
    let (target, draft) = fitted_pair();
    some_are_right(unchanged(&target.model(), &eagle(&draft), || None));
    let mut stepper = Stepper::new(&target.model(), &eagle(&draft));
    let prompts: Vec<Request> = (10..14).map(|seed| greedy(&ids(seed, 12), 48)).collect();
    stepper.answers(&prompts);
    let rate = stepper.tokens_per_verify();
    println!("{rate:.2} tokens a turn, {:?}", stepper.guesses());
    assert!(rate >= 2.0, "{rate} tokens a turn");
    assert_eq!(AcceptanceWatch::default().look(0, &stepper.state.metrics()), None, "nothing to warn of");
    aborted_anywhere(&target.model(), &eagle(&draft));
}

/// Draft rows found with cached pages are those that would have been made: the same guesses to the last bit, and nothing
/// but the rest of the text is computed for them. For every continuation of the pages (case 83).
#[test]
fn cached_pages_bring_their_draft_rows() {
    let (target, draft) = fitted_pair();
    let words = eagle(&draft);
    let mut warm = Stepper::new(&target.model(), &words);
    // The model's own text, which the draft is good at.
    let text = warm.answers(&[greedy(&ids(3, 12), 120)]).remove(0).ids;
    let page = [&ids(3, 12)[..], &text[..116]].concat();
    let continued = |seed: usize, n| greedy(&[&page[..], &text[seed..seed + 3]].concat(), n);
    warm.answers(&[continued(20, 30)]);
    for seed in [41, 63, 82] {
        let request = continued(seed, 40);
        let mut cold = Stepper::new(&target.model(), &format!("{words} --no-prefix-cache"));
        let expected = cold.answers(std::slice::from_ref(&request)).remove(0);
        warm.first_guesses.clear();
        let before = warm.caught_up;
        let answer = warm.answers(std::slice::from_ref(&request)).remove(0);
        assert_eq!(answer.numbers(), expected.numbers());
        assert_eq!(answer.usage.cached_tokens, 128);
        assert!(warm.caught_up - before <= 3 + 40, "rows of the cached pages were there: {}", warm.caught_up - before);
        assert!(cold.caught_up >= 128, "and had to be made without a cache");
        let both = cold.first_guesses.iter().filter_map(|(at, guess)| Some((guess, warm.first_guesses.get(at)?)));
        assert!(both.clone().count() >= 5, "continuation {seed}: the texts were hardly drafted for");
        both.for_each(|(cold, warm)| assert_eq!(cold, warm, "continuation {seed}"));
    }
}

/// Ended in any turn by its caller, a request leaves nothing behind and disturbs nobody.
fn aborted_anywhere(model: &str, words: &str) {
    let kept = greedy(&ids(31, 70), 40);
    let expected = alone(model, std::slice::from_ref(&kept)).remove(0);
    for turns in [1, 2, 3, 5, 8] {
        let mut stepper = Stepper::new(model, words);
        let (stays, goes) = (stepper.submit(kept.clone()), stepper.submit(greedy(&ids(32, 70), 40)));
        (0..turns).for_each(|_| assert!(stepper.turn()));
        stepper.abort(goes);
        stepper.run();
        assert_eq!(stepper.answer(stays).numbers(), expected.numbers(), "after {turns} turns");
        assert_eq!(stepper.answer(goes).reason, FinishReason::Abort);
    }
}

/// Every mixture of the draft's own choice, another token, one that no text has, and no number at all.
fn liar() -> Option<Adversary> {
    let mut turn = 0usize;
    Some(Box::new(move |row| {
        turn += 1;
        let n = row.len();
        match turn % 5 {
            0 => row[turn * 7 % n] = 1e9,
            1 => row[n - 1] = f32::INFINITY,
            2 => row.fill(f32::NAN),
            _ => {}
        }
    }))
}

#[test]
fn a_random_draft_and_a_liar_change_nothing() {
    let (target, draft) = fitted_pair();
    some_are_right(unchanged(&target.model(), &eagle(&draft), liar));
    let random = random_draft(&target_config());
    let [checked, _, _] =
        unchanged(&target.model(), &format!("{} --speculative-num-draft-tokens 7", eagle(&random)), || None);
    assert!(checked > 0);
}

fn small(draft: &models::Folder) -> String {
    format!("{LIMITS} --speculative-algorithm draft-model --speculative-draft-model {}", draft.model())
}

/// A draft that is the target itself is always right; another one is not; and neither changes anything.
#[test]
fn small_draft_models_change_nothing() {
    let target = models::tiny();
    let [checked, right, _] = unchanged(&target.model(), &small(&target), || None);
    assert!(right > 0, "of {checked} guesses none was right");
    let mut same = Stepper::new(&target.model(), &small(&target));
    same.answers(&[greedy(&ids(3, 100), 80), greedy(&ids(4, 10), 80)]);
    assert_eq!(same.guesses()[0], same.guesses()[1], "a model agrees with itself");
    assert!(same.tokens_per_verify() > 3.5, "{}", same.tokens_per_verify());
    let other = models::tiny();
    let llama = Tiny::llama().with("vocab_size", 384.into()).with("num_hidden_layers", 1.into());
    llama.write_folder(other.path(), tokenspeed_backend_api::dtype::DType::F32).expect("written");
    unchanged(&target.model(), &small(&other), || None);
    // A recurrent target, checked in a pass of its own.
    unchanged(&models::kimi().model(), &small(&other), liar);
}

/// A published model, as its own draft: right wherever it is asked, in the mode that serves.
#[test]
fn smollm2_drafts_for_itself() {
    let model = models::smollm2();
    let limits = "--mode fast --max-model-len 256 --max-num-seqs 2 --chunked-prefill-size 64";
    let requests = [greedy(&[1, 504, 3575, 282, 4649, 314], 24), greedy(&ids(3, 70), 16)];
    let expected = Stepper::new(&model, &format!("{limits} --no-prefix-cache")).answers(&requests);
    let words = format!("{limits} --speculative-algorithm draft-model --speculative-draft-model {model}");
    let mut drafted = Stepper::new(&model, &words);
    for way in ["first", "again"] {
        assert_same(&mut drafted, &requests, &expected, way);
    }
    let [checked, right, _] = drafted.guesses();
    assert!(checked > 20 && checked == right, "of {checked} guesses {right} were right");
}

/// A draft that is never right is soon left alone.
#[test]
fn a_useless_draft_is_left_alone() {
    let (target, other) = (models::tiny(), models::tiny());
    let llama = Tiny::llama().with("vocab_size", 384.into()).with("num_hidden_layers", 1.into());
    llama.write_folder(other.path(), tokenspeed_backend_api::dtype::DType::F32).expect("written");
    let mut stepper = Stepper::new(&target.model(), &small(&other));
    stepper.adversary = Some(Box::new(|row| row[0] = f32::INFINITY));
    for seed in 0..6 {
        stepper.answers(&[greedy(&ids(seed, 20), 200)]);
    }
    let turns = stepper.state.metrics().steps;
    assert!(stepper.draft_passes * 10 < turns, "{} draft passes in {turns} turns", stepper.draft_passes);
    // But it is told, once there were some tries (case 102).
    let mut watch = AcceptanceWatch::default();
    let warning = (6..100).find_map(|seed| {
        stepper.answers(&[greedy(&ids(seed, 20), 200)]);
        watch.look(0, &stepper.state.metrics())
    });
    let warning = warning.expect("a warning");
    assert!(warning.contains("gave 1.00 tokens each"), "{warning}");
}

/// As served: threads, clocks and costs of this machine.
#[test]
fn served_drafts_change_nothing() {
    let (target, draft) = fitted_pair();
    let requests = subjects();
    let expected = alone(&target.model(), &requests);
    let engine = support::load(&target.model(), &format!("--mode exact {}", eagle(&draft))).engine;
    let fresh = engine.metrics();
    assert_eq!((fresh.steps, fresh.generation_tokens, fresh.drafts), (0, 0, [0; _]), "the warm-up is not counted");
    assert_eq!((fresh.pages_used, fresh.pages_cached), (0, 0), "the warm-up leaves nothing");
    assert!(engine.last_steps(1).is_empty(), "nor steps to look at");
    for (request, expected) in requests.iter().zip(&expected) {
        assert_eq!(finish(submit(&*engine, request.clone())).numbers(), expected.numbers());
    }
    for (answer, expected) in finish_all(&*engine, requests).iter().zip(&expected) {
        assert_eq!(answer.numbers(), expected.numbers());
    }
}

#[test]
fn drafts_for_other_targets_are_refused_in_one_line() {
    let (kimi, llama, wide) = (models::kimi(), models::tiny(), models::Folder::new("wide"));
    let mut config = eagle3::tiny::config(&kimi::tiny::k3());
    config.hidden_size *= 2;
    eagle3::tiny::write(wide.path(), &config, SEED, false).expect("written");
    let few = models::tiny();
    Tiny::llama()
        .with("vocab_size", 128.into())
        .write_folder(few.path(), tokenspeed_backend_api::dtype::DType::F32)
        .expect("written");
    for (target, words, says) in [
        (&kimi, eagle(&wide), "hidden_size"),
        (&kimi, eagle(&llama), "config.json"),
        (&llama, eagle(&wide), "do not keep"),
        (&llama, small(&few), "they share no tokenizer"),
        (&llama, small(&kimi), "Llama family"),
        (&llama, "--speculative-algorithm eagle3".into(), "needs a draft model"),
        (&llama, format!("--speculative-draft-model {}", llama.model()), "eagle3 and draft-model only"),
    ] {
        let error = support::try_load(&target.model(), &words).expect_err("refused");
        assert!(error.to_string().contains(says) && !error.what.contains('\n'), "{words}: {error}");
    }
}
