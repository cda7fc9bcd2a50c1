//! Side branches of a tree of guesses: rows of their own behind the chain's, over the same text.
//!
//! From the parameter block and the history alone: no two rows of a request write one cache row, all go on from the same text
//! and state, and each has the tokens it says. Where the rows went is seen when they are read, and once more when they are moved.

use tokenspeed_backend_api::{abi::ts_step_row, sdk::StepView};

use super::{
    draft,
    ops::{Outcome, fail},
};
use crate::{
    check::Check,
    world::{Held, World},
};

/// Row `at` is a side branch of a request whose chain of guesses comes before it.
pub fn check(world: &mut World, holder: &Held, at: usize, step: &StepView<'_>) -> Outcome {
    let row = &step.rows[at];
    let before: Vec<&ts_step_row> = step.rows[..at].iter().filter(|other| other.table_row == row.table_row).collect();
    let from = |row: &ts_step_row| (row.computed, row.state_read, row.state_write, row.state_tokens);
    let written = |row: &ts_step_row| row.computed + row.branch_offset..row.cache_rows();
    let wrong = match before.first() {
        Some(chain) if chain.branch_offset == 0 && world.guessed.contains_key(&(holder.id, 0)) => {
            if from(chain) != from(row) {
                Some(format!("goes on from {:?}, the chain from {:?}", from(row), from(chain)))
            } else if row.query_len < 2 || row.query_len > chain.query_len {
                Some(format!("has {} tokens, the chain {}", row.query_len, chain.query_len))
            } else if before.len() > world.sizes.branches as usize {
                Some(format!("is one more than {} side branches", world.sizes.branches))
            } else {
                None
            }
        }
        _ => Some("is a side branch of no guesses".to_owned()),
    };
    if let Some(wrong) = wrong {
        return Err(fail(world, Check::Step, format!("row {at} of {:?} {wrong}", holder.id)));
    }
    let own = written(row);
    let shares = |other: &&&ts_step_row| written(other).start < own.end && own.start < written(other).end;
    if let Some(other) = before.iter().find(shares) {
        let what = format!("row {at} of {:?} writes cache rows {own:?}, another row {:?}", holder.id, written(other));
        return Err(fail(world, Check::Table, what));
    }
    let tokens = &step.tokens[row.query_start as usize..][..row.query_len as usize];
    let ids: Vec<u32> = tokens[1..].iter().map(|token| token.id.cast_unsigned()).collect();
    if world.sizes.drafts && !draft::nearly_made(world, holder.id, &ids) {
        let what = format!("row {at} of {:?} has guesses {ids:?}, which are not the draft's next best", holder.id);
        return Err(fail(world, Check::Step, what));
    }
    let guessed = world.truths[&holder.id].guess(ids.into_iter());
    world.guessed.insert((holder.id, row.branch_offset), guessed);
    world.verified.insert((holder.id, row.branch_offset), *row);
    world.n_branches += 1;
    Ok(())
}
