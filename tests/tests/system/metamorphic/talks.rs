//! Random conversations: what clients of an agent do to a prefix cache.

use tokenspeed_core::request::{Request, SamplingParams};
use tokenspeed_models::dummy::SplitMix64;

use crate::support::Answer;

/// A request to make.
#[derive(Clone, Debug)]
pub struct Turn {
    pub request: Request,
    /// Its caller leaves after so many tokens.
    pub gives_up_after: Option<usize>,
    /// The conversation that its answer continues.
    talk: usize,
}

/// Several conversations at once.
pub struct Talks {
    random: SplitMix64,
    vocabulary: u32,
    texts: Vec<Vec<u32>>,
    /// Of the round whose answers are awaited.
    turns: Vec<Turn>,
}

impl Turn {
    /// Ask for nothing that needs the host's sampler. Little to choose from, so that guesses can be right, is a matter of the
    /// temperature then.
    pub fn leave_to_the_device(&mut self) {
        let s = &mut self.request.sampling;
        (s.frequency_penalty, s.repetition_penalty) = (0.0, 1.0);
        (s.prompt_logprobs, s.allowed_token_ids) = (None, None);
        s.top_k = if s.temperature > 0.0 { 2 } else { 0 };
    }

    /// Ask for nothing that needs the host's sampler where the device has side tables, and for everything that needs these.
    pub fn leave_to_side_tables(&mut self) {
        let s = &mut self.request.sampling;
        s.prompt_logprobs = None;
        s.presence_penalty = s.frequency_penalty / 2.0;
        (s.logit_bias, s.min_tokens) = (vec![(5, 0.5), (9, -1.5)], s.max_tokens / 2);
        s.bad_words = if s.seed.is_multiple_of(3) { vec![vec![6, 7], vec![11]] } else { Vec::new() };
    }
}

impl Talks {
    pub fn new(seed: u64, vocabulary: u32) -> Self {
        let mut talks =
            Self { random: SplitMix64::named(seed, "talks"), vocabulary, texts: Vec::new(), turns: Vec::new() };
        // Two begin with the same words, like all who use one system prompt; the others fill most of a page.
        let n_shared = talks.between(65, 130);
        let shared = talks.fresh(n_shared);
        for n in 0..5 {
            let n_own = talks.between(20, 60);
            let own = talks.fresh(n_own);
            talks.texts.push(if n < 2 { [&shared[..], &own].concat() } else { own });
        }
        talks
    }

    pub fn rounds(&self) -> u32 {
        3
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.random.next_u64() % u64::from(n)) as u32
    }

    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn fresh(&mut self, n: u32) -> Vec<u32> {
        (0..n).map(|_| self.below(self.vocabulary)).collect()
    }

    /// What a user adds.
    fn remark(&mut self) -> Vec<u32> {
        let n = self.between(1, 20);
        self.fresh(n)
    }

    /// The next round: a turn of each conversation, some of them forked, edited or repeated first. A prompt and its answer
    /// have at most `max_len` tokens.
    pub fn turns(&mut self, max_len: u32) -> Vec<Turn> {
        let mut turns = Vec::new();
        for talk in 0..self.texts.len() {
            let mut prompt = self.texts[talk].clone();
            match self.below(6) {
                0 => {
                    // A fork: the beginning of another one, and something else.
                    let other = self.below(self.texts.len() as u32) as usize;
                    prompt = self.texts[other].clone();
                    prompt.truncate(self.below(prompt.len() as u32 + 1) as usize);
                    prompt.extend(self.remark());
                }
                1 => {
                    // An edit: all behind it is another history.
                    let at = self.below(prompt.len() as u32) as usize;
                    prompt[at] = (prompt[at] + 1) % self.vocabulary;
                }
                2 => {}
                _ => prompt.extend(self.remark()),
            }
            let answer = self.pick([1, 8, 40, 130]);
            // What has grown too long begins anew.
            prompt.truncate(if prompt.len() as u32 + answer >= max_len { 60 } else { prompt.len() });
            self.texts[talk].clone_from(&prompt);
            let request = Request { prompt, sampling: self.sampling(answer), ..Request::default() };
            let gives_up_after = self.one_in(5).then(|| self.below(answer) as usize);
            turns.push(Turn { request, gives_up_after, talk });
            if self.one_in(6) {
                // The same again, at the same time.
                turns.push(turns[turns.len() - 1].clone());
            }
        }
        self.turns.clone_from(&turns);
        turns
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.below(N as u32) as usize]
    }

    fn sampling(&mut self, max_tokens: u32) -> SamplingParams {
        let penalises = self.one_in(4);
        SamplingParams {
            temperature: self.pick([0.0, 0.9]),
            top_p: self.pick([1.0, 0.9]),
            seed: self.random.next_u64(),
            frequency_penalty: if penalises { 0.7 } else { 0.0 },
            repetition_penalty: if penalises { 1.2 } else { 1.0 },
            max_tokens,
            ignore_eos: !self.one_in(4),
            logprobs: self.pick([Some(5), Some(0), None]),
            prompt_logprobs: if self.one_in(8) { Some(2) } else { None },
            // A random model repeats itself, so that guesses can be right, only if it has little choice.
            allowed_token_ids: self.one_in(2).then(|| vec![5, 6, 7]),
            ..SamplingParams::default()
        }
    }

    /// What was answered, whole: conversations go on from there.
    pub fn heard(&mut self, answers: &[Answer]) {
        for (turn, answer) in std::mem::take(&mut self.turns).iter().zip(answers) {
            if turn.gives_up_after.is_none() {
                self.texts[turn.talk] = [&turn.request.prompt[..], &answer.ids].concat();
            }
        }
    }
}
