//! The parameter block against what the simulator knows: whose rows, which tokens, where each pass may begin and end.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    sdk::{Fault, StepView},
};
use tokenspeed_core::engine::Pass;

use super::{
    branches, draft,
    ops::{Outcome, fail},
    relay,
};
use crate::{
    check::Check,
    world::{Held, Truth, World},
};

/// Whose row it is: the simulator says so.
pub fn holder_of(world: &mut World, row: &ts_step_row) -> Result<Held, Fault> {
    let mut own = world.held.iter().filter(|holder| holder.table_row == row.table_row);
    match (own.next().copied(), own.next()) {
        (Some(holder), None) if world.truths.contains_key(&holder.id) => Ok(holder),
        _ => Err(fail(world, Check::Table, format!("table row {} belongs to nobody or to several", row.table_row))),
    }
}

/// A pass that computes tokens.
pub fn check(world: &mut World, step: &StepView<'_>) -> Outcome {
    let mut next_token = 0;
    for (at, row) in step.rows.iter().enumerate() {
        let holder = holder_of(world, row)?;
        if row.branch_offset > 0 {
            branches::check(world, &holder, at, step)?;
        } else if world.unseen.remove(&holder.id) {
            guesses(world, &holder, row, step)?;
        } else {
            let what = format!("row {at} is of {holder:?}, not planned or in a pass before");
            return Err(fail(world, Check::Step, what));
        }
        let (sizes, len) = (world.sizes, world.truths[&holder.id].tokens.len() as u32);
        let end = row.computed + row.query_len;
        let truth = world.history(holder.id, row.branch_offset);
        let is_branch = row.branch_offset > 0;
        let has_its_part = is_branch || (row.computed, row.query_len) == (holder.computed, holder.planned);
        let wrong = if !has_its_part || row.query_start != next_token {
            Some(format!("does not match {holder:?}, first token {next_token}"))
        } else if row.query_len == 0 || end as usize > truth.tokens.len() {
            Some(format!("ends at {end} of {len} tokens"))
        } else if end < len && !end.is_multiple_of(sizes.chunk_grid) && !end.is_multiple_of(sizes.block_tokens) {
            Some(format!("ends at {end} of {len}, off the grid of {}", sizes.chunk_grid))
        } else if end <= len && row.query_len > sizes.chunk_cap {
            Some(format!("has {} tokens, the cap is {}", row.query_len, sizes.chunk_cap))
        } else {
            let tokens = &step.tokens[row.query_start as usize..][..row.query_len as usize];
            let mut relayed = tokens.iter().filter(|token| token.id < 0);
            let other_slot = relayed.find_map(|token| relay::other_slot(world, &holder, token.id, token.position));
            other_slot.or_else(|| other_tokens(truth, at, step))
        };
        if let Some(wrong) = wrong {
            return Err(fail(world, Check::Step, format!("row {at} of {:?} {wrong}", holder.id)));
        }
        next_token += row.query_len;
    }
    if next_token as usize != step.tokens.len() {
        return Err(fail(world, Check::Step, format!("{} tokens, rows have {next_token}", step.tokens.len())));
    }
    match world.unseen.first() {
        Some(id) if world.is_last_pass => {
            let what = format!("{id:?} was planned and is in no pass");
            Err(fail(world, Check::Step, what))
        }
        _ => Ok(()),
    }
}

/// What is wrong with the tokens of row `at`, whose history reaches that far.
pub fn other_tokens(truth: &Truth, at: usize, step: &StepView<'_>) -> Option<String> {
    let row = &step.rows[at];
    let tokens = step.tokens[row.query_start as usize..].iter().zip(row.computed..row.computed + row.query_len);
    let wanted = |position: u32| truth.tokens[position as usize].cast_signed();
    let mut other = tokens.filter(|(token, position)| {
        // Which token is in a slot is checked where it is read.
        let id = if token.id < 0 { wanted(*position) } else { token.id };
        (id, token.position, token.row as usize) != (wanted(*position), *position, at)
    });
    other.next().map(|(token, position)| {
        let (id, place, wanted) = (token.id, token.position, wanted(position));
        format!("says token {id} at {place}, it has {wanted} at {position}")
    })
}

/// Whether guesses are right shows later; what they are is in the step. Where there are recurrent states they have a pass of
/// their own, because only that one leaves the states alone.
fn guesses(world: &mut World, holder: &Held, row: &ts_step_row, step: &StepView<'_>) -> Outcome {
    let (sizes, truth) = (world.sizes, &world.truths[&holder.id]);
    let (end, len) = (row.computed + row.query_len, truth.tokens.len() as u32);
    let has_guesses = end > len && row.computed + 1 == len && end - len <= sizes.draft_max;
    if has_guesses {
        let tokens = &step.tokens[row.query_start as usize..][..row.query_len as usize];
        let ids: Vec<u32> = tokens[1..].iter().map(|token| token.id.cast_unsigned()).collect();
        let guessed = truth.guess(ids.iter().copied());
        if sizes.drafts && !draft::made(world, holder.id, len, &ids) {
            let what = format!("guesses {ids:?} for {:?} are not those of the draft", holder.id);
            return Err(fail(world, Check::Step, what));
        }
        world.guessed.insert((holder.id, 0), guessed);
        world.n_guesses += u64::from(end - len);
    }
    match world.pass {
        Pass::Forward if has_guesses && sizes.states > 0 => {
            let what = format!("{} guesses of {:?} would advance its state", end - len, holder.id);
            Err(fail(world, Check::State, what))
        }
        Pass::Verify if !has_guesses => {
            let what = format!("{:?} has no guesses, and no state would be advanced over its tokens", holder.id);
            Err(fail(world, Check::Step, what))
        }
        _ => {
            if has_guesses {
                world.verified.insert((holder.id, 0), *row);
            }
            Ok(())
        }
    }
}

/// The pass that advances states, and moves rows of side branches, over what turned out to be right: from where the verify pass began, over the tokens that
/// were heard since but the last, which nobody has computed.
pub fn check_replay(world: &mut World, step: &StepView<'_>) -> Outcome {
    let mut next_token = 0;
    for (at, row) in step.rows.iter().enumerate() {
        let holder = holder_of(world, row)?;
        let truth = &world.truths[&holder.id].tokens;
        let n_right = (truth.len() as u32 - 1).saturating_sub(row.computed);
        // Without recurrent states, what a row says about them is nobody's concern.
        let has_state = world.sizes.states > 0;
        let state = |row: &ts_step_row| has_state.then_some((row.state_read, row.state_write, row.state_tokens));
        let from = |row: &ts_step_row| (row.computed, state(row));
        let wrong = match world.verified.get(&(holder.id, row.branch_offset)) {
            None => Some("was not verified in this turn".to_owned()),
            Some(_) if world.unheard.contains(&holder.id) => Some("ended without hearing its tokens".to_owned()),
            Some(verified) if from(verified) != from(row) => {
                Some(format!("goes on from {:?}, verified were {:?}", from(row), from(verified)))
            }
            Some(_) if (row.query_start, row.query_len) != (next_token, n_right) => {
                Some(format!("has tokens {}+{}, right were {next_token}+{n_right}", row.query_start, row.query_len))
            }
            Some(_) => {
                let tokens = (row.computed..).zip(&truth[row.computed as usize..truth.len() - 1]);
                let wanted = tokens.map(|(position, id)| (id.cast_signed(), position, at as u32));
                let found = &step.tokens[next_token as usize..][..row.query_len as usize];
                let found = found.iter().map(|token| (token.id, token.position, token.row));
                (!found.eq(wanted)).then(|| "has other tokens than were heard".to_owned())
            }
        };
        if let Some(wrong) = wrong {
            return Err(fail(world, Check::Step, format!("replay row {at} of {:?} {wrong}", holder.id)));
        }
        next_token += row.query_len;
        world.n_replays += 1;
    }
    if next_token as usize != step.tokens.len() || !step.logit_rows.is_empty() || !step.deltas.is_empty() {
        let (tokens, logits, deltas) = (step.tokens.len(), step.logit_rows.len(), step.deltas.len());
        let what = format!("a replay of {next_token} tokens has {tokens}, {logits} logit rows, {deltas} table changes");
        return Err(fail(world, Check::Step, what));
    }
    Ok(())
}
