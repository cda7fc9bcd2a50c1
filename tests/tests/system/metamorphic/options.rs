//! What may be switched without anybody noticing.
//!
//! Where guesses come from depends on the model: `{draft}` in the words stands for the folder of its draft model, which
//! [`Bench::new`] makes when the first words want it.

use std::{cell::OnceCell, sync::Arc};

use tokenspeed_core::client::Engine;
use tokenspeed_models::{config::ModelConfig, dummy::SplitMix64, eagle3, kimi::Taps};

use crate::support::{self, models};

/// Prompt lookup of so many tokens, with so many guesses at most.
macro_rules! ngram {
    ($n:literal, $guesses:literal) => {
        concat!("--speculative-algorithm ngram --speculative-ngram ", $n, " --speculative-num-draft-tokens ", $guesses)
    };
}

/// The draft model of the subject, a folder.
const DRAFT: &str = "{draft}";

/// The values of each dimension, as words of the command line; an empty one is the default. Add a dimension, or a value, as
/// a line here. One more dimension is the subject's own: [`Subject::guesses`].
pub const DIMENSIONS: &[&[&str]] = &[
    &["--chunked-prefill-size 64", "--chunked-prefill-size 100", "--chunked-prefill-size 8192"],
    &["", "--prefix-snapshots 1", "--no-prefix-cache", "--host-cache-bytes 8MiB"],
    &["--max-num-seqs 3", "--max-num-seqs 2", "--max-num-seqs 8"],
    &["--memory least", "", "--memory some"],
    &["", "--step-time-target-ms 0.001"],
    // One dimension, because each of these takes the place of relaying tokens on the device, which is to be met as well.
    &[
        "",
        "--host-sampling",
        "",
        "--disable-overlap-schedule --prefill-coalescing-ms 20",
        "--scheduling-policy shortest-prefill --prefill-coalescing-ms 20",
        "--disable-overlap-schedule --scheduling-policy shortest-prefill",
    ],
];

/// What steps that the device samples are to meet besides: prompts in pieces, too little memory for all, nothing to resume from.
pub const CRAMPED: [&str; 3] = [
    "",
    "--chunked-prefill-size 64 --memory least --max-num-seqs 3",
    "--chunked-prefill-size 100 --memory some --no-prefix-cache --max-num-seqs 8",
];

/// Of the reference: one request at a time, and nothing is kept, guessed or cut.
pub const EVERYTHING_OFF: &str =
    "--no-prefix-cache --max-num-seqs 1 --chunked-prefill-size 8192 --disable-overlap-schedule";

/// From the text, from an EAGLE3 draft, as a chain and as a tree.
const KIMI_GUESSES: &[&str] = &[
    "",
    ngram!(1, 15),
    concat!(ngram!(1, 4), " --speculative-eagle-topk 3"),
    "--speculative-algorithm eagle3 --speculative-num-draft-tokens 3 --speculative-draft-model {draft}",
    "--speculative-algorithm eagle3 --speculative-eagle-topk 3 --speculative-draft-model {draft}",
];

/// From the text, from a small model, as a chain and as a tree.
const LLAMA_GUESSES: &[&str] = &[
    "",
    ngram!(1, 3),
    ngram!(1, 15),
    ngram!(2, 1),
    concat!(ngram!(1, 4), " --speculative-eagle-topk 3"),
    "--speculative-algorithm draft-model --speculative-draft-model {draft}",
    "--speculative-algorithm draft-model --speculative-eagle-topk 3 --speculative-draft-model {draft}",
];

/// A model in a mode.
pub struct Subject {
    /// Of its test.
    pub name: &'static str,
    pub model: fn() -> models::Folder,
    /// A draft for the model.
    draft: fn(&models::Folder) -> models::Folder,
    /// It has recurrent states: options about them are refused without.
    pub has_states: bool,
    /// Where guesses come from.
    pub guesses: &'static [&'static str],
    pub mode: &'static str,
    pub vocabulary: u32,
    pub max_len: u32,
    /// Seeds in a short run.
    pub seeds: u64,
}

pub const KIMI_EXACT: Subject = Subject {
    name: "kimi_exact",
    model: models::small_kimi,
    draft: random_draft,
    has_states: true,
    guesses: KIMI_GUESSES,
    mode: "exact",
    vocabulary: 250,
    max_len: 256,
    seeds: 6,
};
pub const LLAMA_EXACT: Subject = Subject { name: "llama_exact", mode: "exact", seeds: 8, ..LLAMA_FAST };
pub const LLAMA_FAST: Subject = Subject {
    name: "llama_fast",
    model: models::tiny,
    draft: |_| models::tiny(),
    has_states: false,
    guesses: LLAMA_GUESSES,
    mode: "fast",
    vocabulary: 250,
    max_len: 256,
    seeds: 12,
};

/// A random EAGLE3 draft that reads all layers of a small model.
fn random_draft(model: &models::Folder) -> models::Folder {
    let draft = models::Folder::new("metamorphic-draft");
    let ModelConfig::Kimi(target) = ModelConfig::read(&model.path().join("config.json"), None).expect("written") else {
        unreachable!("the subject is a Kimi model")
    };
    let config = eagle3::Eagle3Config { taps: Taps::new(&[1, 2, 3]), ..eagle3::tiny::config(&target) };
    eagle3::tiny::write(draft.path(), &config, 7, false).expect("written");
    draft
}

/// A subject's files.
pub struct Bench {
    folder: models::Folder,
    draft: OnceCell<models::Folder>,
}

impl Bench {
    /// The model; its draft is made when it is wanted.
    pub fn new(subject: &Subject) -> Self {
        Self { folder: (subject.model)(), draft: OnceCell::new() }
    }
}

impl Subject {
    /// All dimensions.
    pub fn dimensions(&self) -> impl Iterator<Item = &'static [&'static str]> {
        DIMENSIONS.iter().copied().chain([self.guesses])
    }

    /// Whether a value says something, and something about this model.
    pub fn takes(&self, word: &str) -> bool {
        !word.is_empty() && (self.has_states || !word.starts_with("--prefix-snapshots"))
    }

    /// The options of a seed: of each dimension the value whose turn it is, in an order drawn anew when all had one.
    pub fn draw(&self, seed: u64) -> String {
        let value = |(number, values): (usize, &'static [&'static str])| {
            let (round, at) = (seed / values.len() as u64, seed as usize % values.len());
            let mut random = SplitMix64::named(round, &format!("dimension {number}"));
            let mut order: Vec<usize> = (0..values.len()).collect();
            (1..order.len()).for_each(|i| order.swap(i, (random.next_u64() % (i as u64 + 1)) as usize));
            values[order[at]]
        };
        let words = self.dimensions().enumerate().map(value).filter(|word| self.takes(word));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Load the model with `words`; [`support::in_bytes`] has what `least` and `some` memory is.
    pub fn load(&self, bench: &Bench, words: &str) -> Arc<dyn Engine> {
        let mut words = format!("--mode {} --max-model-len {} {words}", self.mode, self.max_len);
        let folder = &bench.folder;
        if words.contains(DRAFT) {
            let draft = bench.draft.get_or_init(|| (self.draft)(folder));
            words = words.replace(DRAFT, &draft.model());
            words += " --skip-server-warmup";
        }
        let words = support::in_bytes(&folder.model(), &words);
        support::load(&folder.model(), &words).engine
    }
}
