//! What one step may hold, and how many guesses that leaves room for.

use super::*;

/// Fixed limits of a step.
#[derive(Clone, Debug)]
pub struct StepLimits {
    /// Requests running at once.
    pub max_num_seqs: u32,
    /// Tokens of one step, never exceeded.
    pub max_batch_tokens: u32,
    /// Rows of logits of one step.
    pub max_logit_rows: u32,
    /// Block-table changes of one step.
    pub max_deltas: u32,
    /// Of these, what is left to the second half of a plan made ahead.
    pub late_deltas: u32,
    /// Rows of the block tables.
    pub table_rows: u32,
    /// Most prompt tokens of one request in one step.
    pub chunk_cap: u32,
    /// Chunks that do not complete a prompt end on multiples of this.
    pub chunk_grid: u32,
    /// Tokens of one request.
    pub max_model_len: u32,
    /// Guesses per request, 0 = no speculation.
    pub draft_max: u32,
    /// Rows of side branches in one step.
    pub branch_rows: u32,
    /// Numbers of the paged components.
    pub paged_components: Vec<u32>,
}

impl StepLimits {
    /// Most guesses of a decoding request in its next step.
    pub fn guesses_max(&self, body: &Body, active: &Active, memory: &Memory) -> u32 {
        // The token after the last right guess is always sampled too.
        let most = (body.max_len - body.len()).saturating_sub(1).min(self.draft_max);
        if !memory.has_states() || seeded!(GuessesPassTheBoundary) {
            return most;
        }
        // A turn ends on every page boundary it reaches, so that the state there can be kept.
        let to_boundary = memory.page_tokens() - active.computed % memory.page_tokens();
        most.min(to_boundary - (body.len() - active.computed).min(to_boundary))
    }

    /// Most guesses of all requests together, beside `n_decode` that decode. A chunk on the grid, with logits of all its
    /// tokens, is always left for prefill.
    pub fn guesses_of_all(&self, n_decode: u32) -> u32 {
        let spare = (self.max_logit_rows - self.max_num_seqs).min(self.max_batch_tokens - n_decode);
        spare.saturating_sub(self.chunk_grid)
    }
}
