//! Recurrent states: read where they are, written where they may be, and in a verify pass not written at all.
//!
//! A state slot holds the fingerprint and count of all tokens so far. A verify pass leaves a record of each of its tokens in
//! the slot it may write; a replay goes on from the state that was verified, over the first of these records, and each
//! must be the token that turned out to be right.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    sdk::{Fault, Operand, StepView},
};

use super::{
    memory::{Record, load, store},
    ops::{Outcome, fail},
    rows::holder_of,
};
use crate::{
    check::Check,
    fingerprint,
    world::{Held, StepFault, World},
};

/// Records in one slot of a cache tensor.
fn width(operand: &Operand) -> usize {
    operand.tensor.row_bytes / size_of::<Record>()
}

/// `kda_step`: each row goes on from its state, over its tokens.
pub fn step(operands: &[Operand], world: &mut World, step: &StepView<'_>) -> Outcome {
    let (state, o) = (&operands[5], &operands[6]);
    let is_rubbish = world.fault == Some(StepFault::Fails);
    for row in step.rows {
        let holder = holder_of(world, row)?;
        let running = resume(state, world, &holder, row, step)?;
        let mut last = advance(running, row, step, &operands[0], o);
        last.count += 1;
        let last = if is_rubbish { Record::default() } else { last };
        store(state, row.state_write as usize * width(state), last);
        world.n_state_moves += u64::from(row.computed > 0 && row.state_read != row.state_write);
    }
    Ok(())
}

/// `kda_verify`: the same, and the state stays.
pub fn verify(operands: &[Operand], world: &mut World, step: &StepView<'_>) -> Outcome {
    for row in step.rows {
        let holder = holder_of(world, row)?;
        let running = resume(&operands[5], world, &holder, row, step)?;
        advance(running, row, step, &operands[0], &operands[6]);
    }
    Ok(())
}

/// `kda_record`: what a replay will need of each token.
pub fn record(operands: &[Operand], world: &mut World, step: &StepView<'_>) -> Outcome {
    let (x, record) = (&operands[0], &operands[5]);
    let is_rubbish = world.fault == Some(StepFault::Fails);
    for row in step.rows {
        let holder = holder_of(world, row)?;
        check_slots(world, &holder, row, step)?;
        let n = row.branch_offset + row.query_len;
        if n as usize > record.tensor.dims[1] {
            let most = record.tensor.dims[1];
            return Err(fail(world, Check::Step, format!("{:?} records {n} tokens, room is for {most}", holder.id)));
        }
        for (nth, t) in (row.query_start..row.query_start + row.query_len).enumerate() {
            let kept = if is_rubbish { Record::default() } else { load(x, t as usize) };
            store(record, place(record, row, nth), kept);
        }
    }
    Ok(())
}

/// `kda_replay`: advance over the first recorded tokens.
pub fn replay(operands: &[Operand], world: &mut World, step: &StepView<'_>) -> Outcome {
    let (record, state) = (&operands[0], &operands[8]);
    let is_rubbish = world.fault == Some(StepFault::Fails);
    for row in step.rows {
        let holder = holder_of(world, row)?;
        resume(state, world, &holder, row, step)?;
        let mut last = Record::default();
        for nth in 0..row.query_len {
            let (at, truth) = ((row.computed + nth) as usize, world.history(holder.id, row.branch_offset));
            let wanted = Record::new(truth.prefix[at + 1], row.computed + nth, truth.tokens[at]);
            last = load(record, place(record, row, nth as usize));
            if last != wanted {
                let (id, slot) = (holder.id, row.state_write);
                let what = format!("{id:?} replays record {nth} of slot {slot}: found {last:?}, wanted {wanted:?}");
                return Err(fail(world, Check::State, what));
            }
        }
        last.count += 1;
        let last = if is_rubbish { Record::default() } else { last };
        store(state, row.state_write as usize * width(state), last);
        world.n_state_moves += u64::from(row.state_read != row.state_write);
    }
    if is_rubbish { Err(Fault::internal("simulated: the replay failed")) } else { Ok(()) }
}

/// Place of record number `nth` of a row: those of its branch lie behind those of the branches before.
fn place(record: &Operand, row: &ts_step_row, nth: usize) -> usize {
    let per_token = width(record) / record.tensor.dims[1];
    row.state_write as usize * width(record) + (row.branch_offset as usize + nth) * per_token
}

/// The state a row goes on from: its slots are its own, and the state is the one of its history.
fn resume(
    state: &Operand,
    world: &mut World,
    holder: &Held,
    row: &ts_step_row,
    step: &StepView<'_>,
) -> Result<u64, Fault> {
    check_slots(world, holder, row, step)?;
    let truth = world.history(holder.id, row.branch_offset);
    if row.computed == 0 {
        return Ok(truth.prefix[0]);
    }
    let at = row.computed as usize;
    let (found, wanted) = (
        load(state, row.state_read as usize * width(state)),
        Record::new(truth.prefix[at], row.computed, truth.tokens[at - 1]),
    );
    if found != wanted {
        let (id, slot) = (holder.id, row.state_read);
        let what = format!("{id:?} goes on from state slot {slot}: found {found:?}, wanted {wanted:?}");
        return Err(fail(world, Check::State, what));
    }
    Ok(found.fingerprint())
}

/// Outputs of a row's tokens, which are those of its inputs `x`; returns the last.
fn advance(mut running: u64, row: &ts_step_row, step: &StepView<'_>, x: &Operand, o: &Operand) -> Record {
    let mut last = Record::default();
    for t in row.query_start..row.query_start + row.query_len {
        let token = &step.tokens[t as usize];
        // Not the parameter block's: what is in a relay slot is known where the embedding read it.
        let id = load(x, t as usize).token;
        running = fingerprint::mix(running, id);
        last = Record::new(running, token.position, id);
        store(o, t as usize, last);
    }
    last
}

/// Numbers of a row's state slots, against everybody else's.
fn check_slots(world: &mut World, holder: &Held, row: &ts_step_row, step: &StepView<'_>) -> Outcome {
    match wrong_slots(world, holder, row, step) {
        Some(what) => Err(fail(world, Check::State, format!("{:?} {what}", holder.id))),
        None => Ok(()),
    }
}

fn wrong_slots(world: &World, holder: &Held, row: &ts_step_row, step: &StepView<'_>) -> Option<String> {
    let states = world.sizes.states;
    if row.state_write == 0 || row.state_write >= states {
        return Some(format!("writes state slot {} of {states}", row.state_write));
    }
    if row.state_tokens != row.computed {
        return Some(format!("has a state of {} tokens and computed {}", row.state_tokens, row.computed));
    }
    if row.computed > 0 && (row.state_read == 0 || row.state_read >= states) {
        return Some(format!("reads state slot {} of {states}", row.state_read));
    }
    if world.cached_states.contains(&row.state_write) {
        return Some(format!("writes state slot {}, which the cache owns", row.state_write));
    }
    if let Some(other) = world.held_states.get(&row.state_write).filter(|other| **other != holder.id) {
        return Some(format!("writes state slot {}, which {other:?} owns", row.state_write));
    }
    let uses = |other: &&ts_step_row| {
        other.table_row != row.table_row
            && (other.state_write == row.state_write || other.computed > 0 && other.state_read == row.state_write)
    };
    step.rows
        .iter()
        .find(uses)
        .map(|_| format!("writes state slot {}, which another row of the step uses", row.state_write))
}
