//! A draft fitted to a tiny target: the head by least squares on the draft's own hidden states over the target's greedy
//! text, the trunk as it is.
//!
//! Hidden states are taken as drafting makes them: over taps for the first token of a chain, over the draft's own output
//! for the second and third. They are read as the logits of a draft whose head is the identity. The head is fitted to the
//! target's logits, with its choices raised, rather than to the choices alone: every token then says something about every
//! entry of the vocabulary.

use super::{
    Eagle3Config, Eagle3Error, Graphs, Joined, Options, PREFIX,
    chain::argmax,
    solve::Normal,
    source::{self, QUERY_FREQUENCIES, ROW_FREQUENCIES},
    tensors::{EMBEDDING, HEAD},
    tiny::{self, Draw, Made, encode},
    trunk,
    walker::{WalkError, Walker},
};
use crate::{
    config::{self, ConfigError},
    kimi::{self, GraphOptions, KimiConfig, KimiWeights, KimiWeightsError},
    weights::{Checkpoint, WeightsError},
};
use std::{borrow::Cow, path::Path};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{Graph, WeightBytes, WeightSource, WeightSpec},
    quant,
    step::StepData,
};

/// Requests, tokens of their random beginnings, and tokens in all.
const REQUESTS: usize = 12;
const BEGINNING: usize = 12;
const TOKENS: usize = 48;
/// Tokens drafted at a time.
const CHAIN: usize = 3;
const RIDGE: f64 = 1e-4;
/// How much higher the target's choice is wanted than it is. Least squares care for all entries alike; a draft is judged
/// by the first.
const CHOICE: f32 = 4.0;

/// Why a draft could not be fitted.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The target's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The target's files.
    #[error(transparent)]
    File(#[from] WeightsError),
    /// The target's weights.
    #[error(transparent)]
    Target(#[from] KimiWeightsError),
    /// The target has too few layers to tap.
    #[error(transparent)]
    Draft(#[from] Eagle3Error),
    /// A pass failed.
    #[error("running the target or the draft on the host: {0}")]
    Walk(#[from] WalkError),
    /// Numbers that are not numbers.
    #[error("the draft's hidden states or the target's logits are not finite: nothing can be fitted")]
    NotFinite,
    /// The draft cannot be written.
    #[error("{path}: cannot be written: {cause}")]
    Write {
        /// Where.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// What a fit came to, over the text it was made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Hidden states used.
    pub samples: usize,
    /// Share of them from which the head chooses as the target does. Text the fit has not seen gives less.
    pub agreement: f64,
}

/// Write a fitted draft for the tiny target in `target` into the existing folder `out`: `config.json` and
/// `model.safetensors`, without an embedding table. The same target and seed give the same bytes.
///
/// How much such a draft can achieve is the target's affair: the text of a plain random model is as good as noise (about
/// 1% of the candidates are accepted), that of [`tiny::write_target`]'s can be guessed (about 75%).
pub fn fitted(target: &Path, out: &Path, seed: u64) -> Result<Fit, FitError> {
    let target_config = config::from_kimi(&target.join("config.json"), None)?;
    let checkpoint = Checkpoint::open(&target.join("model.safetensors.index.json"))?;
    let target_weights = KimiWeights::open(checkpoint, &target_config)?;
    let config = trunk::config(&target_config);
    let taps = config.taps_of(&target_config)?;
    let mut made = trunk::weights(&config, seed);
    made.retain(|(t, _)| t.name != EMBEDDING);

    let mut graphs = kimi::Graphs::new(&target_config, GraphOptions { taps, ..GraphOptions::EXACT });
    let (identity, memory) = with_identity(&config, &made);
    let draft = Graphs::attach(&identity, &mut graphs, Options { latent: DType::F32, own_embedding: false });
    let source = Joined::<&dyn WeightSource> { target: &target_weights, draft: &memory };
    let mut walker = Walker::new(&draft.first.components, &source, REQUESTS as u64, TOKENS as u64);
    let text = Text::generate(&mut walker, &graphs.forward, &target_config, seed)?;
    let samples = hidden_states(&mut walker, &draft, &text)?;

    let mut normal = Normal::new(config.hidden_size as usize, config.vocab_size as usize);
    for (x, logits) in &samples {
        let mut wanted = logits.to_vec();
        wanted[argmax(logits)] += CHOICE;
        normal.add(x, &wanted);
    }
    let head = normal.solve(RIDGE).ok_or(FitError::NotFinite)?;
    let agree = |(x, y): &&Sample<'_>| {
        let guess: Vec<f32> = head.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        argmax(&guess) == argmax(y)
    };
    let agreement = samples.iter().filter(agree).count() as f64 / samples.len() as f64;
    for (tensor, bytes) in made.iter_mut().filter(|(t, _)| t.name == HEAD) {
        *bytes = encode(tensor.dtype, &head);
    }
    let failed = |cause| FitError::Write { path: out.display().to_string(), cause };
    tiny::save(out, &config, made).map_err(failed)?;
    Ok(Fit { samples: samples.len(), agreement })
}

/// Greedy text of the target, with the logits of every token.
struct Text {
    ids: Vec<Vec<i32>>,
    logits: Vec<Vec<Vec<f32>>>,
}

impl Text {
    fn generate(walker: &mut Walker<'_>, graph: &Graph, config: &KimiConfig, seed: u64) -> Result<Self, WalkError> {
        let mut draw = Draw::new(seed, "text");
        let mut any = || (draw.next() % config.vocab_size) as i32;
        let mut text = Text {
            ids: (0..REQUESTS).map(|_| (0..BEGINNING).map(|_| any()).collect()).collect(),
            logits: vec![Vec::new(); REQUESTS],
        };
        let mut at = 0;
        while at < TOKENS {
            let step = step(at as u32, text.ids.iter().map(|ids| &ids[at..]));
            let n = text.ids[0].len() - at;
            for (row, logits) in walker.run(graph, &step)?.into_iter().enumerate() {
                text.logits[row / n].push(logits);
            }
            at += n;
            if at < TOKENS {
                let next = text.logits.iter().map(|l| argmax(&l[at - 1]) as i32);
                text.ids.iter_mut().zip(next).for_each(|(ids, id)| ids.push(id));
            }
        }
        Ok(text)
    }
}

/// One request per span, each from position `at`; wants the logits of every token.
fn step<'a>(at: u32, spans: impl Iterator<Item = &'a [i32]>) -> StepData {
    let spans: Vec<_> = spans.enumerate().map(|(row, ids)| (row as u32, at, ids)).collect();
    let mut step = StepData::from_spans(&spans);
    for (slot, row) in (1..).zip(&mut step.rows) {
        (row.state_read, row.state_write, row.state_tokens) = (slot, slot, at);
    }
    step.logit_rows = (0..step.tokens.len() as u32).collect();
    step
}

/// A hidden state, and the target's logits there.
type Sample<'t> = (Vec<f32>, &'t [f32]);

/// Hidden states before the head, each with the target's logits that the head should give.
fn hidden_states<'t>(walker: &mut Walker<'_>, draft: &Graphs, text: &'t Text) -> Result<Vec<Sample<'t>>, WalkError> {
    let mut samples = Vec::new();
    let rows = walker.run(&draft.first, &step(0, text.ids.iter().map(|ids| &ids[..])))?;
    // The first token of a text has no hidden states before it.
    for (i, x) in rows.into_iter().enumerate().filter(|(i, _)| i % TOKENS > 0) {
        samples.push((x, &text.logits[i / TOKENS][i % TOKENS][..]));
    }
    // From the last start to the first: a chain overwrites rows after its start, which no earlier start reads.
    for start in (1..TOKENS).rev() {
        for p in (start + 1..start + CHAIN).take_while(|p| *p < TOKENS) {
            let rows = walker.run(&draft.next, &step(p as u32, text.ids.iter().map(|ids| &ids[p..p + 1])))?;
            samples.extend(rows.into_iter().zip(&text.logits).map(|(x, logits)| (x, &logits[p][..])));
        }
    }
    Ok(samples)
}

/// The draft with a head that shows its input, and its weights in memory.
fn with_identity(config: &Eagle3Config, made: &[Made]) -> (Eagle3Config, Memory) {
    let n = config.hidden_size;
    let identity = Eagle3Config { draft_vocab_size: n, ..config.clone() };
    let ones: Vec<f32> = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let mut weights: Vec<(String, DType, Vec<u8>)> =
        made.iter().map(|(t, bytes)| (t.name.clone(), t.dtype, bytes.clone())).collect();
    weights.retain(|(name, ..)| name != HEAD);
    weights.push((HEAD.into(), config.stored, encode(config.stored, &ones)));
    for (name, still) in [(QUERY_FREQUENCIES, config.nope_dim), (ROW_FREQUENCIES, config.kv_rank)] {
        weights.push((name[PREFIX.len()..].into(), DType::F32, source::frequencies(config, still)));
    }
    (identity, Memory { weights })
}

/// Weights that were never in a file.
struct Memory {
    weights: Vec<(String, DType, Vec<u8>)>,
}

impl WeightSource for Memory {
    fn regions(&self) -> Vec<&[u8]> {
        Vec::new()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let found = self.weights.iter().find(|(name, ..)| spec.name.strip_prefix(PREFIX) == Some(name));
        let (_, dtype, bytes) = found.ok_or_else(|| format!("`{}` was not made", spec.name))?;
        if *dtype == spec.dtype {
            return Ok(WeightBytes::Owned(Cow::Borrowed(bytes)));
        }
        let mut values = vec![0f32; spec.dims.iter().product::<u64>() as usize];
        quant::dequantize_row(*dtype, bytes, &mut values);
        Ok(WeightBytes::Owned(Cow::Owned(encode(spec.dtype, &values))))
    }
}
