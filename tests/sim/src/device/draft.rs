//! Passes of a draft model: the first goes over a request's text as far as the draft's rows are missing, each further one
//! over the guess made before. What a row finds before it must be of the text, whoever wrote it.
//!
//! The draft guesses as the target would go on, three times of four; what it guessed is remembered, because the next pass and the
//! next turn must check exactly that.

use std::collections::BTreeSet;

use tokenspeed_backend_api::sdk::{Fault, Operand, StepView};
use tokenspeed_core::{engine::Pass, request::RequestId};

use super::{
    memory::{load, store_word},
    ops::{Outcome, fail},
    rows::{holder_of, other_tokens},
};
use crate::{
    check::Check,
    fingerprint,
    world::{Ahead, Held, StepFault, World},
};

/// The rows of a pass.
pub fn check(world: &mut World, step: &StepView<'_>) -> Outcome {
    let is_first = world.pass == Pass::DraftFirst;
    let (mut seen, mut next_token, mut ends) = (BTreeSet::new(), 0, Vec::new());
    for (at, row) in step.rows.iter().enumerate() {
        let holder = holder_of(world, row)?;
        let truth = &world.truths[&holder.id];
        let len = truth.tokens.len() as u32;
        if is_first {
            let ahead = Ahead { text: truth.clone(), len, seconds: Vec::new() };
            world.ahead.insert(holder.id, ahead);
        }
        let end = row.computed + row.query_len;
        let has_more = row.branch_offset + row.state_read + row.state_write + row.state_tokens > 0;
        let wrong = match world.ahead.get(&holder.id) {
            Some(ahead) if ahead.len == len => {
                let known = ahead.text.tokens.len() as u32;
                if !seen.insert(holder.id) || row.query_start != next_token || has_more {
                    Some(format!("is not the one row of the text from token {next_token} on: {row:?}"))
                } else if row.query_len == 0 || end > known {
                    Some(format!("ends at {end} of {known} tokens"))
                } else if !is_first && (row.query_len, end) != (1, known) {
                    Some(format!("has tokens up to {end}, the newest guess is number {known}"))
                } else {
                    if end == known {
                        ends.push(next_token + row.query_len - 1);
                    }
                    other_tokens(&ahead.text, at, step)
                }
            }
            _ => Some("goes on without a first pass over its text".to_owned()),
        };
        if let Some(wrong) = wrong {
            return Err(fail(world, Check::Step, format!("draft row {at} of {:?} {wrong}", holder.id)));
        }
        next_token += row.query_len;
        world.n_draft_rows += 1;
    }
    if next_token as usize != step.tokens.len() || step.logit_rows != ends {
        let (tokens, logits) = (step.tokens.len(), step.logit_rows);
        let what = format!("{tokens} tokens, rows have {next_token}; logits of {logits:?}, texts end at {ends:?}");
        return Err(fail(world, Check::Step, what));
    }
    Ok(())
}

/// Rows of the text may be written again by everybody who has the page: they are the same. A guess is nobody else's.
pub fn may_write(world: &mut World, holder: &Held, block: u32, position: u32) -> Outcome {
    let is_guess = position as usize >= world.truths[&holder.id].tokens.len();
    if is_guess && world.cached_pages.contains(&block) {
        let what = format!("{:?} writes the draft's row of a guess to page {block} of the cache", holder.id);
        return Err(fail(world, Check::Table, what));
    }
    Ok(())
}

/// Logits of the draft, and what they mean.
pub fn head(operands: &[Operand], world: &mut World, step: &StepView<'_>) -> Outcome {
    if world.fault == Some(StepFault::Fails) {
        return Err(Fault::internal("simulated: the draft's pass failed"));
    }
    let [x, _, y] = operands[..] else { unreachable!("the catalogue checked") };
    let (width, n_ids) = (y.tensor.dims[1], world.sizes.n_ids as usize);
    let (mut of_ids, mut logits) = (vec![0f32; n_ids], vec![0f32; width]);
    for (at, &token) in step.logit_rows.iter().enumerate() {
        let found = load(&x, at).fingerprint();
        let token = &step.tokens[token as usize];
        let holder = holder_of(world, &step.rows[token.row as usize])?;
        if found != world.history(holder.id, 0).prefix[token.position as usize + 1] {
            let what = format!("the draft's logit row {at} of {:?} comes from {found:x}", holder.id);
            return Err(fail(world, Check::Flow, what));
        }
        fingerprint::logits(found ^ u64::from(found.is_multiple_of(4)), n_ids, &mut of_ids);
        for (column, logit) in logits.iter_mut().enumerate() {
            *logit = of_ids.get(id_of(world, column)).copied().unwrap_or(1e9);
        }
        if let Some(StepFault::NotFinite(number)) = world.fault {
            logits[found as usize % width] = if number % 2 == 0 { f32::NAN } else { f32::INFINITY };
        }
        for (column, logit) in logits.iter().enumerate() {
            store_word(&y, at * width + column, logit.to_bits());
        }
        note(world, holder.id, &logits);
    }
    Ok(())
}

fn id_of(world: &World, column: usize) -> usize {
    world.draft_ids.get(column).map_or(column, |id| *id as usize)
}

/// The likeliest real token is the guess; numbers that are none are not likely.
fn note(world: &mut World, id: RequestId, logits: &[f32]) {
    let n_ids = world.sizes.n_ids as usize;
    let columns = logits.iter().enumerate().filter(|(column, x)| !x.is_nan() && id_of(world, *column) < n_ids);
    let mut columns: Vec<(usize, f32)> = columns.map(|(column, x)| (column, *x)).collect();
    columns.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut ids = columns.iter().map(|(column, _)| id_of(world, *column) as u32).collect::<Vec<_>>().into_iter();
    let (best, second) = (ids.next(), ids.next());
    if let (Some(best), Some(ahead)) = (best, world.ahead.get_mut(&id)) {
        ahead.text.push(best);
        ahead.seconds.push(second);
    }
}

/// Whether the draft made these guesses for a text of `len` tokens.
pub fn made(world: &World, id: RequestId, len: u32, ids: &[u32]) -> bool {
    let ahead = world.ahead.get(&id).filter(|ahead| ahead.len == len);
    ahead.is_some_and(|ahead| ahead.text.tokens[len as usize..].starts_with(ids))
}

/// Whether all of these guesses are the draft's but the last, and that its next best.
pub fn nearly_made(world: &World, id: RequestId, ids: &[u32]) -> bool {
    let Some(ahead) = world.ahead.get(&id) else { return false };
    let Some((last, shared)) = ids.split_last() else { return false };
    made(world, id, ahead.len, shared) && ahead.seconds.get(shared.len()) == Some(&Some(*last))
}
