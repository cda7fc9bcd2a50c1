//! A small Kimi K3 with the published widths of heads, served by the whole engine on the emulated MI355X: the plugin and the
//! code objects that ship.
//!
//! What the engine may do for speed must change nothing: captured programs or single launches, guesses or none. Answers are
//! compared in every bit of their log-probabilities. Rejected: tokens alone. A random model's tokens survive errors that a
//! trained one's would not.

use tokenspeed_backend_api::backend::SegmentKind;
use tokenspeed_core::request::Request;
use tokenspeed_models::eagle3;
use tokenspeed_server::cli::{Cli, Command, tiny};

use crate::{
    batch_invariance::ids,
    gfx950::emulated,
    support::{
        self, Answer, finish, greedy,
        models::{self, Folder},
        stepper::Stepper,
        submit,
    },
};
use clap::Parser as _;

/// Tokens of the prompt: a whole chunk of the recurrent layers.
const PROMPT: usize = 64;

/// Tokens generated.
fn decoded() -> u32 {
    if models::long_tests() { 32 } else { 8 }
}

/// A checkpoint with heads as wide as the published ones.
fn written(more: &[&str]) -> Folder {
    let folder = Folder::new("kimi-served");
    let model = folder.model();
    let line = ["tokenspeed", "tiny", "kimi-k3", "--force", "--real-heads", "--out", &model];
    let line = line.iter().chain(more);
    let Command::Tiny(command) = Cli::try_parse_from(line).expect("known options").command else { panic!("tiny") };
    tiny::run(command).expect("written");
    folder
}

fn stepper(model: &Folder, words: &str) -> Stepper {
    let plugin = emulated(false);
    let limits = "--max-model-len 256 --max-num-seqs 2 --chunked-prefill-size 64 --no-prefix-cache --host-sampling";
    Stepper::new(&model.model(), &format!("--backend {plugin} {limits} {words}"))
}

fn answers(model: &Folder, words: &str, requests: &[Request]) -> (Vec<Answer>, [u64; 3]) {
    let mut stepper = stepper(model, words);
    executes_as_asked(&stepper, words);
    (stepper.answers(requests), stepper.guesses())
}

/// Equal bits would not show that anything is captured: the programs say how they execute. All of them are small enough for it.
fn executes_as_asked(stepper: &Stepper, words: &str) {
    let kind = if words.contains("graphs=off") { SegmentKind::Eager } else { SegmentKind::Captured };
    let segments = stepper.segments();
    assert!(segments.len() > 1, "{segments:?}");
    for (tokens, kinds) in segments {
        assert_eq!(kinds, [kind], "programs of up to {tokens} tokens, {words:?}");
    }
}

fn assert_same(found: &[Answer], expected: &[Answer], label: &str) {
    for (n, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found.logprobs.iter().all(|report| report.logprob.is_finite()), "{label}, request {n}: {found:?}");
        assert_eq!(found.numbers(), expected.numbers(), "{label}, request {n}");
    }
}

/// `off`: how far the first log-probability may be from the CPU's.
fn graphs_change_no_bit(cache: &str, off: f32) {
    let model = written(&["--layers", "5"]);
    let requests = [greedy(&ids(3, PROMPT), decoded())];
    let words = |graphs: &str| format!("--kv-cache-dtype {cache} --backend-option graphs={graphs}");
    let [(captured, _), (launched, _)] = ["on", "off"].map(|graphs| answers(&model, &words(graphs), &requests));
    assert_eq!(captured[0].ids.len(), decoded() as usize);
    assert_same(&captured, &launched, cache);
    as_the_cpu_says(&model, &requests[0], &captured[0], off);
}

/// Programs of the device compared with themselves would agree on a shared mistake. So the first token, behind a whole prompt, is the
/// CPU's, and as likely but for rounding and the few choices of experts that it changes. Logits deviate by 1, wrong ones by as much.
fn as_the_cpu_says(model: &Folder, request: &Request, found: &Answer, off: f32) {
    let cpu = support::load(&model.model(), "--max-model-len 256 --no-prefix-cache").engine;
    let expected = finish(submit(&*cpu, greedy(&request.prompt, 1)));
    let [ours, theirs] = [found, &expected].map(|answer| answer.logprobs[0].logprob);
    println!("first token {}, log-probability {ours} and by the CPU {theirs}", found.ids[0]);
    assert_eq!(found.ids[0], expected.ids[0]);
    assert!((ours - theirs).abs() < off, "{ours} and {theirs}");
}

#[test]
fn captured_programs_change_no_bit_with_a_bf16_cache() {
    graphs_change_no_bit("bf16", 0.1);
}

#[test]
fn captured_programs_change_no_bit_with_an_fp8_cache() {
    graphs_change_no_bit("fp8_e4m3", 0.1);
}

/// Some ops have several weights that are quantised at load.
#[test]
fn captured_programs_change_no_bit_with_e4m3_factors() {
    graphs_change_no_bit("bf16 --backend-option precision=fp8", 0.75);
}

/// A target whose text can be guessed. A draft's taps want 7 layers.
fn guessable(layers: u32) -> Folder {
    written(&["--guessable", "--layers", &layers.to_string()])
}

/// One text that goes on as it did before, so that guesses are right, and one that does not.
fn requests(model: &Folder) -> [Request; 2] {
    let start = ids(3, 12);
    // The CPU's text is the device's but for rounding, and cheaper.
    let cpu = support::load(&model.model(), "--max-model-len 256").engine;
    let text = finish(submit(&*cpu, greedy(&start, 52))).ids;
    let again = [&start[..], &text, &text[20..23]].concat();
    [greedy(&again, 2 * decoded()), greedy(&ids(3, PROMPT), decoded())]
}

fn guesses_change_nothing(model: &Folder, cache: &str, words: &str) -> [u64; 3] {
    let (cache, requests) = (format!("--kv-cache-dtype {cache}"), requests(model));
    let (expected, _) = answers(model, &cache, &requests);
    let (found, guesses) = answers(model, &format!("{cache} {words}"), &requests);
    assert_same(&found, &expected, words);
    println!("{words}, {cache}: {guesses:?} checked, right, turns");
    guesses
}

const NGRAM: &str = "--speculative-algorithm ngram --speculative-num-draft-tokens 5 --speculative-ngram 1";

#[test]
fn guesses_from_the_text_change_nothing() {
    let model = guessable(5);
    let [checked, right, _] = guesses_change_nothing(&model, "bf16", NGRAM);
    assert!(right > 0, "of {checked} guesses none was right");
    if models::long_tests() {
        guesses_change_nothing(&model, "fp8_e4m3", NGRAM);
    }
}

/// Fitting a draft takes a minute: with the long tests.
#[test]
fn a_drafts_guesses_change_nothing() {
    if !models::long_tests() {
        return;
    }
    let (model, draft) = (guessable(7), Folder::new("kimi-served-draft"));
    eagle3::tiny::fitted(model.path(), draft.path(), 7).expect("fitted");
    let words = format!("--speculative-algorithm eagle3 --speculative-draft-model {}", draft.model());
    let [checked, right, _] = guesses_change_nothing(&model, "bf16", &words);
    assert!(right > 0 && right < checked, "of {checked} guesses {right} were right: replay wants both kinds");
}
