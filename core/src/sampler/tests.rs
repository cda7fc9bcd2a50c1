//! The sampler against its naive twin (a full sort in f64) and against the op `sample`, and the public fault cases it must survive.

use tokenspeed_backend_api::{
    abi::{TS_SAMPLED_TOKEN, ts_sample},
    catalogue::{CHOSEN_WIDTH, Case, LOGPROBS_WIDTH},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    step::StepData,
};

use super::*;

/// The definition, done the obvious way.
fn naive(row: &[f32], vocab_size: usize, context: &RowContext<'_>) -> u32 {
    let p = context.params;
    let ends = |id: u32| context.eos_ids.contains(&id) || p.stop_token_ids.contains(&id);
    let n_prompt = context.tokens.len() - context.n_generated as usize;
    let generated = &context.tokens[n_prompt..];
    let mut candidates: Vec<(u32, f32)> = Vec::new();
    for (id, &logit) in (0u32..).zip(&row[..vocab_size]) {
        let banned_word = p.bad_words.iter().any(|w| {
            let history = [context.tokens, &[id]].concat();
            history.ends_with(w)
        });
        let is_allowed = p.allowed_token_ids.as_ref().is_none_or(|ids| ids.contains(&id));
        if !is_allowed || banned_word || (context.n_generated < p.min_tokens && ends(id)) {
            continue;
        }
        let mut x = logit;
        for &(_, bias) in p.logit_bias.iter().filter(|b| b.0 == id) {
            x += bias;
        }
        let count = generated.iter().filter(|&&t| t == id).count() as f32;
        if context.tokens.contains(&id) {
            x = if x > 0.0 { x / p.repetition_penalty } else { x * p.repetition_penalty };
        }
        if count > 0.0 {
            x -= p.frequency_penalty * count;
            x -= p.presence_penalty;
        }
        candidates.push((id, x));
    }
    candidates.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    if p.temperature == 0.0 {
        return candidates[0].0;
    }
    if p.top_k > 0 {
        candidates.truncate(p.top_k as usize);
    }
    let max = f64::from(candidates[0].1);
    let weights: Vec<f64> =
        candidates.iter().map(|c| ((f64::from(c.1) - max) / f64::from(p.temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = weights.len();
    if p.top_p < 1.0 {
        let reaches = |n: &usize| weights[..*n].iter().sum::<f64>() >= f64::from(p.top_p) * total;
        kept = (1..=kept).find(reaches).unwrap_or(kept);
    }
    kept = weights[..kept].iter().filter(|&&w| w >= f64::from(p.min_p)).count();
    let position = u32::try_from(context.tokens.len()).unwrap();
    let target = philox::uniform(p.seed, position, p.sample_index) * weights[..kept].iter().sum::<f64>();
    let mut sum = 0.0;
    let drawn = weights[..kept].iter().position(|w| {
        sum += w;
        sum > target
    });
    candidates[drawn.unwrap_or(kept - 1)].0
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 += 1;
        (philox::uniform(99, self.0 as u32, (self.0 >> 32) as u32) * f64::from(n)) as u32
    }
    fn unit(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 20) as f32
    }
    fn ids(&mut self, n: u32, vocab_size: u32) -> Vec<u32> {
        (0..n).map(|_| self.below(vocab_size)).collect()
    }
}

#[test]
fn equals_the_naive_twin_on_random_rows() {
    let mut rng = Rng(0);
    for round in 0..3000u32 {
        let vocab_size = [3, 17, 130, 700][rng.below(4) as usize];
        let scale = [0.01, 1.0, 8.0][rng.below(3) as usize];
        let mut row: Vec<f32> = (0..vocab_size + 5)
            .map(|_| if round % 3 == 0 { rng.below(6) as f32 - 2.0 } else { (rng.unit() - 0.5) * 2.0 * scale })
            .collect();
        for x in &mut row[vocab_size as usize..] {
            *x = if round % 2 == 0 { f32::NAN } else { 1e9 };
        }
        let chance = |rng: &mut Rng| rng.below(3) == 0;
        let params = SamplingParams {
            temperature: [0.0, 1e-6, 0.3, 1.0, 2.0][rng.below(5) as usize],
            top_p: if chance(&mut rng) { 0.05 + 0.9 * rng.unit() } else { 1.0 },
            top_k: if chance(&mut rng) { rng.below(vocab_size + 3) } else { 0 },
            min_p: if chance(&mut rng) { rng.unit() } else { 0.0 },
            repetition_penalty: if chance(&mut rng) { 0.5 + rng.unit() * 2.0 } else { 1.0 },
            frequency_penalty: if chance(&mut rng) { rng.unit() * 4.0 - 2.0 } else { 0.0 },
            presence_penalty: if chance(&mut rng) { rng.unit() * 4.0 - 2.0 } else { 0.0 },
            logit_bias: if chance(&mut rng) {
                vec![(rng.below(vocab_size), rng.unit() * 10.0 - 5.0); if round % 5 == 0 { 2 } else { 1 }]
            } else {
                vec![]
            },
            logprobs: if chance(&mut rng) { Some(rng.below(21)) } else { None },
            seed: u64::from(rng.below(1000)),
            sample_index: rng.below(3),
            min_tokens: rng.below(4),
            stop_token_ids: rng.ids(1, vocab_size),
            allowed_token_ids: chance(&mut rng).then(|| rng.ids(6, vocab_size)),
            bad_words: if chance(&mut rng) { vec![rng.ids(1, vocab_size), rng.ids(2, vocab_size)] } else { vec![] },
            ..SamplingParams::default()
        };
        let prompt = {
            let n = 1 + rng.below(6);
            rng.ids(n, vocab_size)
        };
        let generated = {
            let n = rng.below(6);
            rng.ids(n, vocab_size)
        };
        let mut history = History::new(&params, &prompt, generated.len());
        generated.iter().for_each(|&id| history.push(id));
        let tokens = [prompt, generated.clone()].concat();
        let eos_ids = rng.ids(1, vocab_size);
        let context = RowContext {
            params: &params,
            history: &history,
            tokens: &tokens,
            n_generated: generated.len() as u32,
            eos_ids: &eos_ids,
            mask: None,
        };
        match Sampler::new(vocab_size).sample(&row, &context) {
            Ok(choice) => {
                assert_eq!(choice.id, naive(&row, vocab_size as usize, &context), "round {round}: {params:?}");
                if params.logit_bias.len() < 2 {
                    let [chosen, logprobs] = by_the_op(&row, vocab_size, &context);
                    let found = sampled_token(&chosen, &logprobs, params.logprobs.is_some());
                    assert_eq!(found, (choice.id, choice.logprobs), "round {round}: {params:?}");
                }
            }
            Err(error) => {
                assert_eq!(error, SampleError::NothingLeft);
                assert!(params.allowed_token_ids.is_some() || vocab_size == 3, "round {round}");
            }
        }
    }
}

/// The op `sample` with the side tables that say what `context` says.
fn by_the_op(row: &[f32], vocab_size: u32, context: &RowContext<'_>) -> [Vec<u8>; 2] {
    let (p, width) = (context.params, row.len());
    let mut mask = vec![0u32; 2 * width.div_ceil(32)];
    let mut bias = vec![0f32; 2 * width];
    let mut counts = vec![0u32; 2 * width];
    let ends = |id: u32| context.eos_ids.contains(&id) || p.stop_token_ids.contains(&id);
    for id in 0..vocab_size {
        let is_allowed = p.allowed_token_ids.as_ref().is_none_or(|ids| ids.contains(&id))
            && !p.bad_words.iter().any(|word| [context.tokens, &[id]].concat().ends_with(word))
            && !(context.n_generated < p.min_tokens && ends(id));
        mask[width.div_ceil(32) + id as usize / 32] |= u32::from(is_allowed) << (id % 32);
    }
    // Twice the same bias is added one after the other, and rounds twice.
    assert!(p.logit_bias.iter().all(|&(id, _)| p.logit_bias.iter().filter(|other| other.0 == id).count() == 1));
    p.logit_bias.iter().for_each(|&(id, x)| bias[width + id as usize] = x);
    for o in context.history.occurrences() {
        counts[width + o.id as usize] = o.count | 1 << 31;
    }
    let spans = [(0, context.tokens.len() as u32 - 1, &[0][..])];
    let mut case = Case {
        name: String::new(),
        kind: OpKind::Sample,
        attrs: Attrs::default(),
        operands: Vec::new(),
        step: StepData::from_spans(&spans),
    };
    case.attrs.i[0] = vocab_size.into();
    case.step.samples.push(ts_sample {
        temperature: p.temperature,
        top_p: p.top_p,
        min_p: p.min_p,
        repetition_penalty: p.repetition_penalty,
        frequency_penalty: p.frequency_penalty,
        presence_penalty: p.presence_penalty,
        top_k: p.top_k,
        n_logprobs: p.logprobs.map_or(0, |k| k + 1),
        seed: p.seed,
        position: context.tokens.len() as u32,
        sample_index: p.sample_index,
        counts_handle: 1,
        bias_handle: 1,
        mask_handle: 1,
        relay_slot: 1,
    });
    let (n, words) =
        (width as u64, |words: Vec<u32>| words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>());
    case.push(Vary::LogitRows, &[1, n], row.to_vec());
    case.push_inout(DType::I32, Vary::Fixed, &[2], vec![0; 8]);
    case.push_inout(DType::U32, Vary::Fixed, &[2, n], words(counts));
    case.push(Vary::Fixed, &[2, n], bias);
    case.push_raw(DType::U32, Vary::Fixed, &[2, n.div_ceil(32)], words(mask));
    case.push_output_as(DType::U32, Vary::LogitRows, &[1, CHOSEN_WIDTH as u64]);
    case.push_output(Vary::LogitRows, &[1, LOGPROBS_WIDTH as u64]);
    case.desc().check().unwrap();
    let mut results = case.run_reference(1);
    let logprobs = results.pop().unwrap();
    [results.pop().unwrap(), logprobs]
}

/// What the op says of a token.
fn sampled_token(chosen: &[u8], logprobs: &[u8], reports: bool) -> (u32, Option<TokenLogprobs>) {
    let words: Vec<u32> = chosen.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect();
    let values: Vec<f32> = logprobs.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
    assert_eq!(words[0], TS_SAMPLED_TOKEN);
    let top = (0..words[3] as usize).map(|at| (words[4 + at], values[1 + at])).collect();
    (words[1], reports.then_some(TokenLogprobs { logprob: values[0], rank: words[2], top }))
}

/// Sample with no history beyond a one-token prompt.
fn sample(row: &[f32], params: &SamplingParams) -> Result<Choice, SampleError> {
    let history = History::new(params, &[0], 0);
    let context = RowContext { params, history: &history, tokens: &[0], n_generated: 0, eos_ids: &[], mask: None };
    Sampler::new(row.len() as u32).sample(row, &context)
}

fn noise(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| philox::uniform(5, i, 0) as f32 * 12.0 - 4.0).collect()
}

#[test]
fn case_67_openai_penalties_count_generated_tokens_only() {
    let row = [2.0, 1.9, -1.0];
    let chosen = |params: &SamplingParams, generated: &[u32]| {
        let mut history = History::new(params, &[0; 30], 8);
        generated.iter().for_each(|&id| history.push(id));
        let tokens = [&[0; 30][..], generated].concat();
        let context = RowContext {
            params,
            history: &history,
            tokens: &tokens,
            n_generated: generated.len() as u32,
            eos_ids: &[],
            mask: None,
        };
        let mut sampler = Sampler::new(3);
        let id = sampler.sample(&row, &context).unwrap().id;
        (id, sampler.edited)
    };
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let frequency = SamplingParams { frequency_penalty: 2.0, ..greedy.clone() };
    let presence = SamplingParams { presence_penalty: 2.0, ..greedy.clone() };
    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy.clone() };
    assert_eq!(chosen(&frequency, &[]).0, 0, "thirty prompt tokens count for nothing");
    assert_eq!(chosen(&presence, &[]).0, 0);
    assert_eq!(chosen(&repetition, &[]), (1, vec![1.0, 1.9, -1.0]), "repetition counts the prompt");
    assert_eq!(chosen(&repetition, &[2, 2]).1, vec![1.0, 1.9, -2.0], "negative logits are multiplied, once");
    assert_eq!(chosen(&frequency, &[0, 0, 0]).1, vec![2.0 - 6.0, 1.9, -1.0]);
    assert_eq!(chosen(&presence, &[0, 0, 0]).1, vec![2.0 - 2.0, 1.9, -1.0]);
}

#[test]
fn case_68_tiny_temperatures_are_greedy() {
    let row = noise(5000);
    let greedy = sample(&row, &SamplingParams { temperature: 0.0, ..SamplingParams::default() }).unwrap();
    for temperature in [0.0, 1e-45, 1e-30, 1e-6, 1e-5, 1e-4] {
        for (top_p, top_k) in [(1.0, 0), (1e-4, 0), (1.0, 50), (1e-4, 50)] {
            for seed in 0..20 {
                let params = SamplingParams { temperature, top_p, top_k, seed, ..SamplingParams::default() };
                assert_eq!(sample(&row, &params).unwrap(), greedy);
            }
        }
    }
    let with_filters =
        SamplingParams { temperature: 0.0, top_p: 1e-4, top_k: 3, min_p: 1.0, ..SamplingParams::default() };
    assert_eq!(sample(&row, &with_filters).unwrap(), greedy);
}

#[test]
fn case_69_top_k_keeps_exactly_k_with_ties_to_the_lower_id() {
    let mut row = noise(400);
    for id in [17, 230, 399] {
        row[id] = 50.0;
    }
    let mut seen = [0; 400];
    for seed in 0..200 {
        let params = |top_k| SamplingParams { top_k, seed, ..SamplingParams::default() };
        assert_eq!(sample(&row, &params(1)).unwrap().id, 17);
        seen[sample(&row, &params(2)).unwrap().id as usize] += 1;
    }
    assert_eq!(seen[17] + seen[230], 200, "the third of three tied ids is never a candidate");
    assert!(seen[17] > 60 && seen[230] > 60, "{} {}", seen[17], seen[230]);
}

#[test]
fn case_72_the_same_seed_repeats_and_seed_zero_is_a_seed() {
    let row = noise(1000);
    let draw = |seed, sample_index| {
        let params = SamplingParams { seed, sample_index, ..SamplingParams::default() };
        sample(&row, &params).unwrap().id
    };
    for seed in 0..50 {
        assert_eq!(draw(seed, 0), draw(seed, 0));
    }
    let distinct = |draws: Vec<u32>| draws.into_iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(distinct((0..50).map(|seed| draw(seed, 0)).collect()) > 10);
    assert!(distinct((0..50).map(|index| draw(0, index)).collect()) > 10, "choices of one request differ");
}

#[test]
fn case_73_padding_ids_are_never_sampled_nor_listed() {
    let mut row = noise(384);
    row[300..].fill(1e6);
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, logprobs: Some(20), ..SamplingParams::default() };
        let context = RowContext {
            params: &params,
            history: &History::default(),
            tokens: &[0],
            n_generated: 0,
            eos_ids: &[],
            mask: None,
        };
        let choice = Sampler::new(300).sample(&row, &context).unwrap();
        let logprobs = choice.logprobs.unwrap();
        assert!(choice.id < 300 && logprobs.top.iter().all(|&(id, _)| id < 300));
        assert!(logprobs.logprob > -20.0, "padding takes no probability");
    }
}

#[test]
fn rows_that_are_not_numbers_fail_with_the_id() {
    let params = SamplingParams::default();
    for (id, bad) in [(0, f32::NAN), (15, f32::INFINITY), (1002, f32::NAN)] {
        let mut row = noise(1003);
        row[id] = bad;
        assert_eq!(sample(&row, &params), Err(SampleError::NotFinite { id: id as u32 }));
    }
    assert_eq!(sample(&[f32::NEG_INFINITY; 40], &params), Err(SampleError::NothingLeft));
}

#[test]
fn logprobs_are_those_of_the_unmodified_row() {
    let row = noise(777);
    let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
    for seed in 0..30 {
        let params =
            SamplingParams { seed, logit_bias: vec![(3, 9.0)], logprobs: Some(4), ..SamplingParams::default() };
        let choice = sample(&row, &params).unwrap();
        let logprobs = choice.logprobs.unwrap();
        let expected = |id: usize| f64::from(row[id]) - sum.ln();
        assert!((f64::from(logprobs.logprob) - expected(choice.id as usize)).abs() < 1e-5);
        assert_eq!(order[logprobs.rank as usize - 1], choice.id as usize);
        for (&(id, logprob), &wanted) in logprobs.top.iter().zip(&order[..4]) {
            assert_eq!(id as usize, wanted);
            assert!((f64::from(logprob) - expected(wanted)).abs() < 1e-5);
        }
    }
}

#[test]
fn draws_follow_the_distribution() {
    let row = [1.0f32, 0.0, 2.0, -1.0, 0.5];
    let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
    let mut counts = [0u32; 5];
    for seed in 0..20_000 {
        let params = SamplingParams { seed, ..SamplingParams::default() };
        counts[sample(&row, &params).unwrap().id as usize] += 1;
    }
    let chi_squared: f64 = row
        .iter()
        .zip(counts)
        .map(|(&x, n)| {
            let expected = f64::from(x).exp() / sum * 20_000.0;
            (f64::from(n) - expected).powi(2) / expected
        })
        .sum();
    assert!(chi_squared < 18.5, "{chi_squared}: 99.9% of fair draws are below this");
}
