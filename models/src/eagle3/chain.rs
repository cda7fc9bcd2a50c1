//! Greedy decoding with a draft, one request in a plain loop: draft a chain, verify it in one pass, commit what the target
//! agrees with.
//!
//! What is emitted is always the target's own choice, so the text is that of decoding without a draft, whatever is
//! proposed. This is the meaning of speculation, and what a faster scheduler is tested against; it knows neither batches
//! nor sampling.

use tokenspeed_backend_api::step::StepData;

/// Which graph to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The target's forward pass.
    Forward,
    /// The target over candidates.
    Verify,
    /// Commit the target's states over accepted candidates.
    Replay,
    /// The draft over newly computed rows.
    First,
    /// The draft over its own output.
    Next,
}

/// Runs graphs over one cache.
pub trait Passes {
    /// Why a pass failed.
    type Error;
    /// Run one step; returns the wanted rows of logits.
    fn run(&mut self, pass: Pass, step: &StepData) -> Result<Vec<Vec<f32>>, Self::Error>;
}

/// Where a request's cache is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Row of the tables.
    pub row: u32,
    /// State slot.
    pub slot: u32,
}

impl Place {
    /// A step of `ids` (at least one) at the positions from `computed` on, wanting the logits of every token or of the last
    /// one.
    pub fn step(self, computed: u32, ids: &[i32], all_logits: bool) -> StepData {
        assert!(!ids.is_empty(), "a step has a token");
        let mut step = StepData::from_spans(&[(self.row, computed, ids)]);
        for row in &mut step.rows {
            (row.state_read, row.state_write, row.state_tokens) = (self.slot, self.slot, computed);
        }
        if all_logits {
            step.logit_rows = (0..ids.len() as u32).collect();
        }
        step
    }
}

/// Proposes continuations.
pub trait Drafter<P: Passes> {
    /// The target has computed all of `history` but its last token: keep up with it, then propose at most `n` tokens to
    /// follow. Wrong or impossible tokens cost time only.
    fn propose(&mut self, passes: &mut P, history: &[i32], n: usize) -> Result<Vec<i32>, P::Error>;
}

/// The EAGLE3 draft of one request.
#[derive(Clone, Debug)]
pub struct Eagle<'a> {
    place: Place,
    /// Rows of the draft that are final: made from taps.
    rows: u32,
    token_ids: Option<&'a [u32]>,
}

impl<'a> Eagle<'a> {
    /// A draft that has seen nothing; `token_ids` as of [`super::Eagle3Weights::token_ids`].
    pub fn new(place: Place, token_ids: Option<&'a [u32]>) -> Self {
        Self { place, rows: 0, token_ids }
    }

    fn choice(&self, logits: &[f32]) -> i32 {
        let row = argmax(logits);
        self.token_ids.map_or(row as i32, |ids| ids[row] as i32)
    }
}

impl<P: Passes> Drafter<P> for Eagle<'_> {
    fn propose(&mut self, passes: &mut P, history: &[i32], n: usize) -> Result<Vec<i32>, P::Error> {
        let ids = &history[self.rows as usize..];
        let step = self.place.step(self.rows, ids, false);
        let mut logits = passes.run(Pass::First, &step)?;
        self.rows = history.len() as u32;
        let mut chain = Vec::new();
        while chain.len() < n {
            let Some(row) = logits.last() else { break };
            let id = self.choice(row);
            chain.push(id);
            if chain.len() < n {
                let step = self.place.step(self.rows + chain.len() as u32 - 1, &[id], false);
                logits = passes.run(Pass::Next, &step)?;
            }
        }
        Ok(chain)
    }
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The tokens.
    pub ids: Vec<i32>,
    /// Per verify pass: candidates proposed, candidates accepted.
    pub verified: Vec<(usize, usize)>,
}

impl Generated {
    /// Share of the proposed candidates that were accepted.
    pub fn acceptance(&self) -> f64 {
        let (proposed, accepted) =
            self.verified.iter().fold((0, 0), |(p, a), (proposed, accepted)| (p + proposed, a + accepted));
        accepted as f64 / (proposed as f64).max(1.0)
    }

    /// Tokens emitted per verify pass.
    pub fn tokens_per_pass(&self) -> f64 {
        let accepted: usize = self.verified.iter().map(|(_, accepted)| accepted + 1).sum();
        accepted as f64 / (self.verified.len() as f64).max(1.0)
    }
}

/// Greedily generate `n` tokens after `ids` (at least one), reading them in chunks of `chunk` and drafting `width` tokens
/// at a time. The target's graphs must allow `width + 1` candidates.
pub fn generate<P: Passes>(
    passes: &mut P,
    place: Place,
    ids: &[i32],
    chunk: usize,
    drafter: &mut dyn Drafter<P>,
    width: usize,
    n: usize,
) -> Result<Generated, P::Error> {
    assert!(!ids.is_empty() && chunk > 0, "a request has a token, a chunk too");
    let (mut history, mut out) = (ids.to_vec(), Generated::default());
    let mut logits = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        logits = passes.run(Pass::Forward, &place.step((i * chunk) as u32, part, false))?;
    }
    history.push(argmax(&logits[0]) as i32);
    while history.len() < ids.len() + n {
        let computed = history.len() as u32 - 1;
        let mut candidates = vec![history[computed as usize]];
        candidates.extend(drafter.propose(passes, &history, width)?);
        candidates.truncate(width + 1);
        let logits = passes.run(Pass::Verify, &place.step(computed, &candidates, true))?;
        let choices: Vec<i32> = logits.iter().map(|row| argmax(row) as i32).collect();
        let accepted = candidates[1..].iter().zip(&choices).take_while(|(a, b)| a == b).count();
        passes.run(Pass::Replay, &place.step(computed, &candidates[..=accepted], false))?;
        history.extend(&choices[..=accepted]);
        out.verified.push((candidates.len() - 1, accepted));
    }
    out.ids = history[ids.len()..][..n].to_vec();
    Ok(out)
}

/// Index of the largest value; the first of equals.
pub fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        // NaN never wins over a number, whichever comes first.
        if *v > row[best] || row[best].is_nan() && !v.is_nan() {
            best = i;
        }
    }
    best
}
