//! At which page boundaries of a prompt the recurrent state is stored while it is computed.
//!
//! * The last one before the prompt's last token: the same prompt again, and every answer to it, resumes there.
//! * Where another request's pages part from this one: seen a second time, so probably not the last (promotion).
//! * Where the caller says that others will part from it: at the end of the system prompt and tools, as the chat layer knows it
//!   before anybody does, so that the second conversation finds the state and not only the third.
//! * A geometric ladder over long prompts, so that an edit early in a conversation does not cost all of it; only while
//!   slots are free, never in exchange for a state that somebody asked for.
//!
//! The end of each turn needs no mark: a request keeps the state of its last boundary and stores it when it ends.
//! Each mark that no other mark stands at is a step more for whoever computes the prompt first. Rejected: every boundary. A state
//! of Kimi K3 is as large as the latent rows of 16,000 tokens. Rejected too: a mark at the end of every earlier turn of a
//! prompt. Turns that were computed here left their states when they ended.

use crate::{bug::seeded, request::BOUNDARIES_MAX};

/// Pages of the first rung; each further rung is twice as deep.
const FIRST_RUNG: u32 = 16;

/// A boundary at which a chunk has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Tokens before it, whole pages.
    pub tokens: u32,
    /// Worth the slot of another stored state.
    pub may_evict: bool,
}

/// Most marks of one prompt: a rung per bit of its length, two, and the caller's.
pub const MARKS_MAX: usize = 34 + BOUNDARIES_MAX;

/// Fill `marks` for a request of `len` tokens that resumes at `computed`, of whose pages `n_seen` are known, and whose caller
/// gave `boundaries` in tokens; ascending.
pub fn place(marks: &mut Vec<Mark>, len: u32, computed: u32, n_seen: u32, boundaries: &[u32], page_tokens: u32) {
    marks.clear();
    let last = (len - 1) / page_tokens;
    let rungs = std::iter::successors(Some(FIRST_RUNG), |rung| rung.checked_mul(2)).take_while(|&rung| rung < last);
    marks.extend(rungs.map(|rung| Mark { tokens: rung * page_tokens, may_evict: false }));
    let boundaries = if seeded!(BoundaryIsIgnored) { &[] } else { boundaries };
    let given = boundaries.iter().map(|tokens| (tokens / page_tokens).min(last));
    for pages in given.chain([n_seen, last]) {
        let tokens = pages * page_tokens;
        match marks.iter().position(|mark| mark.tokens >= tokens) {
            Some(at) if marks[at].tokens == tokens => marks[at].may_evict = true,
            Some(at) => marks.insert(at, Mark { tokens, may_evict: true }),
            None => marks.push(Mark { tokens, may_evict: true }),
        }
    }
    marks.retain(|mark| mark.tokens > computed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_boundary_branch_and_ladder() {
        let mut marks = Vec::with_capacity(MARKS_MAX);
        let mut at = |len, computed, n_seen| -> Vec<(u32, bool)> {
            place(&mut marks, len, computed, n_seen, &[], 64);
            marks.iter().map(|mark| (mark.tokens, mark.may_evict)).collect()
        };
        assert_eq!(at(64, 0, 0), [], "the last token is computed again, so nothing resumes at the end");
        assert_eq!(at(65, 0, 0), [(64, true)]);
        assert_eq!(at(65, 64, 1), []);
        assert_eq!(at(200, 0, 2), [(128, true), (192, true)]);
        assert_eq!(at(5000, 0, 17), [(1024, false), (1088, true), (2048, false), (4096, false), (4992, true)]);
        assert_eq!(at(5000, 1088, 17), [(2048, false), (4096, false), (4992, true)]);
        assert_eq!(at(2049, 0, 32), [(1024, false), (2048, true)]);
        assert!(at(u32::MAX, 0, 3).len() <= MARKS_MAX);
    }

    #[test]
    fn given_boundaries_are_rounded_down_and_marked_once() {
        let mut marks = Vec::with_capacity(MARKS_MAX);
        let mut at = |len, computed, n_seen, given: &[u32]| -> Vec<(u32, bool)> {
            place(&mut marks, len, computed, n_seen, given, 64);
            marks.iter().map(|mark| (mark.tokens, mark.may_evict)).collect()
        };
        assert_eq!(at(2500, 0, 0, &[750]), [(704, true), (1024, false), (2048, false), (2496, true)]);
        assert_eq!(at(2500, 704, 11, &[750]), [(1024, false), (2048, false), (2496, true)], "stored, so resumed from");
        assert_eq!(at(200, 0, 0, &[0, 63]), [(192, true)], "less than a page is none");
        assert_eq!(at(200, 0, 2, &[129, 191, 200]), [(128, true), (192, true)], "the branch, twice, and the last one");
        assert_eq!(at(2500, 0, 0, &[1030]), [(1024, true), (2048, false), (2496, true)], "a rung worth a slot");
        assert_eq!(at(192, 0, 0, &[192]), [(128, true)], "the last token is computed again");
        assert!(at(u32::MAX, 0, 3, &[64 * 5, 64 * 6, 64 * 7, 64 * 9]).len() <= MARKS_MAX);
    }
}
