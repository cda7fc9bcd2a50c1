//! What each op checks and passes on.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    op::OpKind,
    sdk::{BoundOp, Fault, Operand, StepView},
};

use super::memory::{Record, load, load_word, store, store_word};
use crate::{
    check::Check,
    fingerprint,
    world::{Held, Owner, StepFault, World},
};

/// Whether the device runs ops of a kind.
pub fn is_known(kind: OpKind) -> bool {
    use OpKind::{
        Add, Embedding, Gemm, KdaStep, KvWrite, Mul, PagedAttention, RowGather, Sigmoid, SigmoidMul, Slice, TableUpdate,
    };
    matches!(
        kind,
        TableUpdate
            | Embedding
            | KvWrite
            | PagedAttention
            | KdaStep
            | Slice
            | Add
            | SigmoidMul
            | Sigmoid
            | Mul
            | RowGather
            | Gemm
    )
}

/// An op and its memory.
#[derive(Debug)]
pub struct Prepared {
    kind: OpKind,
    operands: Vec<Operand>,
    component: usize,
}

type Outcome = Result<(), Fault>;

/// Note a failure and end the step.
fn fail(world: &mut World, check: Check, what: String) -> Fault {
    world.fail(check, || what.clone());
    Fault::internal(what)
}

impl Prepared {
    pub fn new(op: &BoundOp<'_>) -> Self {
        let component = usize::try_from(op.op.attrs().i[0]).unwrap_or_default();
        Self { kind: op.op.kind(), operands: op.operands.to_vec(), component }
    }

    pub fn run(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        match self.kind {
            OpKind::TableUpdate => self.table_update(world, step),
            OpKind::Embedding => self.embedding(world, step),
            OpKind::KvWrite => self.kv_write(world, step),
            OpKind::PagedAttention => self.attention(world, step),
            OpKind::KdaStep => self.recurrence(world, step),
            OpKind::Slice => {
                let [x, y] = self.operands[..] else { unreachable!("the catalogue checked") };
                (0..step.tokens.len()).for_each(|t| store_word(&y, t, load_word(&x, t * 4)));
                Ok(())
            }
            OpKind::Add | OpKind::Mul | OpKind::SigmoidMul => self.same(world, step),
            OpKind::Sigmoid => {
                let [x, y] = self.operands[..] else { unreachable!("the catalogue checked") };
                (0..step.tokens.len()).for_each(|t| store(&y, t, load(&x, t)));
                Ok(())
            }
            OpKind::RowGather => {
                let [x, y] = self.operands[..] else { unreachable!("the catalogue checked") };
                for (at, &token) in step.logit_rows.iter().enumerate() {
                    store(&y, at, load(&x, token as usize));
                }
                Ok(())
            }
            OpKind::Gemm => self.head(world, step),
            _ => Err(Fault::unsupported(format!("{} is not simulated", self.kind))),
        }
    }

    /// Table changes for real, each checked; then who has which page.
    fn table_update(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        world.n_steps += 1;
        if world.fault == Some(StepFault::Lost) {
            world.is_lost = true;
        }
        if world.is_lost {
            return Err(Fault::device_lost("the simulated device is gone"));
        }
        let mut seen = Vec::with_capacity(step.deltas.len());
        for delta in step.deltas {
            let blocks = world.sizes.blocks;
            let table = self.operands.get(delta.component as usize).map(|table| table.tensor.dims);
            let is_inside =
                table.is_some_and(|dims| (delta.table_row as usize) < dims[0] && (delta.index as usize) < dims[1]);
            if !is_inside || delta.block == 0 || delta.block >= blocks {
                let (component, row, index) = (delta.component, delta.table_row, delta.index);
                let what = format!("block {} of {blocks} at entry [{component}][{row}][{index}]", delta.block);
                return Err(fail(world, Check::Table, what));
            }
            seen.push((delta.component, delta.table_row, delta.index));
            let table = &self.operands[delta.component as usize];
            store_word(table, delta.table_row as usize * table.tensor.dims[1] + delta.index as usize, delta.block);
        }
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(fail(world, Check::Table, format!("entry {:?} is changed twice in one step", twice[0])));
        }
        self.find_owners(world);
        world.guessed.clear();
        check_rows(world, step)
    }

    /// From the tables of all that hold memory; only to notice what is used twice.
    fn find_owners(&self, world: &mut World) {
        let block_tokens = world.sizes.block_tokens;
        let World { held, pages, owners, .. } = world;
        owners.resize_with(self.operands.len(), Vec::new);
        pages.resize_with(self.operands.len(), Vec::new);
        for (component, table) in self.operands.iter().enumerate() {
            let (owners, pages) = (&mut owners[component], &mut pages[component]);
            owners.clear();
            owners.resize(world.sizes.blocks as usize, Owner::Nobody);
            pages.resize_with(world.sizes.blocks as usize, Default::default);
            for (at, holder) in held.iter().enumerate() {
                for index in 0..(holder.computed + holder.planned).div_ceil(block_tokens) {
                    let block = load_word(table, holder.table_row as usize * table.tensor.dims[1] + index as usize);
                    let owner = &mut owners[block as usize];
                    *owner = if *owner == Owner::Nobody { Owner::One(at) } else { Owner::Several };
                    let notes = &mut pages[block as usize];
                    notes.index = index;
                    if !notes.users.contains(&holder.id) {
                        notes.users.push(holder.id);
                    }
                }
            }
        }
    }

    fn embedding(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let y = &self.operands[1];
        for (t, token) in step.tokens.iter().enumerate() {
            let holder = holder_of(world, &step.rows[token.row as usize])?;
            let fingerprint = world.history(holder.id).prefix[token.position as usize + 1];
            store(y, t, Record::new(fingerprint, token.position, token.id.cast_unsigned()));
        }
        Ok(())
    }

    /// Block and slot of a position, through the table.
    fn locate(
        &self,
        world: &mut World,
        table: &Operand,
        row: &ts_step_row,
        position: u32,
    ) -> Result<(u32, usize), Fault> {
        let block_tokens = world.sizes.block_tokens;
        let (index, slot) = (position / block_tokens, position % block_tokens);
        let width = table.tensor.dims[1];
        let block = load_word(table, row.table_row as usize * width + index as usize);
        if index as usize >= width || block == 0 || block >= world.sizes.blocks {
            let what = format!("position {position} of table row {} is in block {block}", row.table_row);
            return Err(fail(world, Check::Table, what));
        }
        Ok((block, (block * block_tokens + slot) as usize))
    }

    fn kv_write(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let [x, cache, table] = self.operands[..] else { unreachable!("the catalogue checked") };
        for (t, token) in step.tokens.iter().enumerate() {
            let row = &step.rows[token.row as usize];
            let holder = holder_of(world, row)?;
            let (block, place) = self.locate(world, &table, row, token.position)?;
            if world.cached_pages.contains(&block) {
                let what = format!("{:?} writes position {} to page {block} of the cache", holder.id, token.position);
                return Err(fail(world, Check::Table, what));
            }
            if world.owners[self.component][block as usize] == Owner::Several {
                let what = format!("{:?} writes position {} to page {block}, used twice", holder.id, token.position);
                return Err(fail(world, Check::Table, what));
            }
            if token.position % world.sizes.block_tokens == 0 {
                let notes = &mut world.pages[self.component][block as usize];
                (notes.users, notes.is_doubtful) = (vec![holder.id], false);
            }
            let is_rubbish = world.fault == Some(StepFault::Fails);
            store(&cache, place, if is_rubbish { Record::default() } else { load(&x, t) });
        }
        Ok(())
    }

    /// Every row from the first position on must be the one of this history.
    fn attention(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        if world.fault == Some(StepFault::Fails) {
            return Ok(());
        }
        let [_, cache, _, table, y] = self.operands[..] else { unreachable!("the catalogue checked") };
        for row in step.rows {
            let holder = holder_of(world, row)?;
            for position in 0..row.computed + row.query_len {
                let (block, place) = self.locate(world, &table, row, position)?;
                let found = load(&cache, place);
                let truth = world.history(holder.id);
                let at = position as usize;
                let wanted = Record::new(truth.prefix[at + 1], position, truth.tokens[at]);
                let is_doubtful = world.pages[self.component][block as usize].is_doubtful;
                if found != wanted || is_doubtful {
                    let (id, component) = (holder.id, self.component);
                    let why = if found == wanted { ", of a failed request" } else { "" };
                    let what = format!(
                        "{id:?} reads position {position} of component {component} in page {block}: found {found:?}{why}, \
                         wanted {wanted:?}"
                    );
                    return Err(fail(world, Check::Page, what));
                }
                if position >= row.computed {
                    store(&y, (row.query_start + position - row.computed) as usize, found);
                }
            }
        }
        Ok(())
    }

    fn recurrence(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let (state, o) = (&self.operands[5], &self.operands[6]);
        // Records of one slot.
        let width = state.tensor.row_bytes / size_of::<Record>();
        let is_rubbish = world.fault == Some(StepFault::Fails);
        for row in step.rows {
            let holder = holder_of(world, row)?;
            if let Err(what) = check_slots(world, &holder, row, step) {
                return Err(fail(world, Check::State, format!("{:?} {what}", holder.id)));
            }
            let mut running = world.history(holder.id).prefix[0];
            if row.computed > 0 {
                let found = load(state, row.state_read as usize * width);
                let truth = world.history(holder.id);
                let at = row.computed as usize;
                let wanted = Record::new(truth.prefix[at], row.computed, truth.tokens[at - 1]);
                if found != wanted {
                    let (id, slot) = (holder.id, row.state_read);
                    let what = format!("{id:?} goes on from state slot {slot}: found {found:?}, wanted {wanted:?}");
                    return Err(fail(world, Check::State, what));
                }
                running = found.fingerprint();
                world.n_state_moves += u64::from(row.state_read != row.state_write);
            }
            let mut last = Record::default();
            for t in row.query_start..row.query_start + row.query_len {
                let token = &step.tokens[t as usize];
                running = fingerprint::mix(running, token.id.cast_unsigned());
                last = Record::new(running, token.position, token.id.cast_unsigned());
                store(o, t as usize, last);
            }
            last.count += 1;
            store(state, row.state_write as usize * width, if is_rubbish { Record::default() } else { last });
        }
        Ok(())
    }

    /// Two ways to one value must agree.
    fn same(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let [a, b, y] = self.operands[..] else { unreachable!("the catalogue checked") };
        for t in 0..step.tokens.len() {
            let (left, right) = (load(&a, t), load(&b, t));
            if left != right && world.fault != Some(StepFault::Fails) {
                let what = format!("token {t}: {left:?} by one way, {right:?} by the other");
                return Err(fail(world, Check::Flow, what));
            }
            store(&y, t, left);
        }
        Ok(())
    }

    /// Logits, and the faults that come last.
    fn head(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        if world.fault == Some(StepFault::Fails) {
            return Err(Fault::internal("simulated: the step failed"));
        }
        let [x, _, y] = self.operands[..] else { unreachable!("the catalogue checked") };
        let width = y.tensor.dims[1];
        let n_ids = world.sizes.n_ids as usize;
        let mut logits = vec![0f32; width];
        for (at, &token) in step.logit_rows.iter().enumerate() {
            let found = load(&x, at);
            let token = &step.tokens[token as usize];
            let holder = holder_of(world, &step.rows[token.row as usize])?;
            if found.fingerprint() != world.history(holder.id).prefix[token.position as usize + 1] {
                let what = format!("logit row {at} of {:?} comes from {found:?}", holder.id);
                return Err(fail(world, Check::Flow, what));
            }
            fingerprint::logits(found.fingerprint(), n_ids, &mut logits);
            if let Some(StepFault::NotFinite(wanted)) = world.fault
                && wanted as usize % step.logit_rows.len() == at
            {
                let id = (found.fingerprint() % n_ids as u64) as u32;
                logits[id as usize] = if found.count.is_multiple_of(2) { f32::NAN } else { f32::INFINITY };
                world.poisoned = Some((holder.id, token.position + 1, id));
            }
            for (column, logit) in logits.iter().enumerate() {
                store_word(&y, at * width + column, logit.to_bits());
            }
        }
        Ok(())
    }
}

/// Whose row it is: the simulator says so.
fn holder_of(world: &mut World, row: &ts_step_row) -> Result<Held, Fault> {
    let mut own = world.held.iter().filter(|holder| holder.table_row == row.table_row);
    match (own.next().copied(), own.next()) {
        (Some(holder), None) if world.truths.contains_key(&holder.id) => Ok(holder),
        _ => Err(fail(world, Check::Table, format!("table row {} belongs to nobody or to several", row.table_row))),
    }
}

/// The parameter block against what the simulator knows.
fn check_rows(world: &mut World, step: &StepView<'_>) -> Outcome {
    let n_planned = world.held.iter().filter(|holder| holder.planned > 0).count();
    if n_planned != step.rows.len() {
        return Err(fail(world, Check::Step, format!("{} rows for {n_planned} requests", step.rows.len())));
    }
    let mut next_token = 0;
    for (at, row) in step.rows.iter().enumerate() {
        let holder = holder_of(world, row)?;
        let (sizes, len) = (world.sizes, world.truths[&holder.id].tokens.len() as u32);
        let end = row.computed + row.query_len;
        if end > len && row.computed + 1 == len && end - len <= sizes.draft_max {
            // Whether guesses are right shows later; what they are is in the step.
            let tokens = &step.tokens[row.query_start as usize..][..row.query_len as usize];
            let ids = tokens[1..].iter().map(|token| token.id.cast_unsigned());
            let guessed = world.truths[&holder.id].guess(ids);
            world.guessed.insert(holder.id, guessed);
            world.n_guesses += u64::from(end - len);
        }
        let truth = world.history(holder.id);
        let mut wrong = None;
        if (row.computed, row.query_len) != (holder.computed, holder.planned) || row.query_start != next_token {
            wrong = Some(format!("does not match {holder:?}, first token {next_token}"));
        } else if row.query_len == 0 || end as usize > truth.tokens.len() {
            wrong = Some(format!("ends at {end} of {len} tokens"));
        } else if end < len && !end.is_multiple_of(sizes.chunk_grid) && !end.is_multiple_of(sizes.block_tokens) {
            wrong = Some(format!("ends at {end} of {len}, off the grid of {}", sizes.chunk_grid));
        } else if end <= len && row.query_len > sizes.chunk_cap {
            wrong = Some(format!("has {} tokens, the cap is {}", row.query_len, sizes.chunk_cap));
        } else {
            for position in row.computed..end {
                let token = step.tokens[(next_token + position - row.computed) as usize];
                let wanted = truth.tokens[position as usize].cast_signed();
                if (token.id, token.position, token.row as usize) != (wanted, position, at) {
                    let (id, place) = (token.id, token.position);
                    wrong = Some(format!("says token {id} at {place}, it has {wanted} at {position}"));
                    break;
                }
            }
        }
        if let Some(wrong) = wrong {
            return Err(fail(world, Check::Step, format!("row {at} of {:?} {wrong}", holder.id)));
        }
        next_token += row.query_len;
    }
    if next_token as usize != step.tokens.len() {
        return Err(fail(world, Check::Step, format!("{} tokens, rows have {next_token}", step.tokens.len())));
    }
    Ok(())
}

/// Numbers of a row's state slots, against everybody else's.
fn check_slots(world: &World, holder: &Held, row: &ts_step_row, step: &StepView<'_>) -> Result<(), String> {
    let states = world.sizes.states;
    if row.state_write == 0 || row.state_write >= states {
        return Err(format!("writes state slot {} of {states}", row.state_write));
    }
    if row.state_tokens != row.computed {
        return Err(format!("has a state of {} tokens and computed {}", row.state_tokens, row.computed));
    }
    if row.computed > 0 && (row.state_read == 0 || row.state_read >= states) {
        return Err(format!("reads state slot {} of {states}", row.state_read));
    }
    if world.cached_states.contains(&row.state_write) {
        return Err(format!("writes state slot {}, which the cache owns", row.state_write));
    }
    if let Some(other) = world.held_states.get(&row.state_write).filter(|other| **other != holder.id) {
        return Err(format!("writes state slot {}, which {other:?} owns", row.state_write));
    }
    let others = step.rows.iter().filter(|other| other.table_row != row.table_row);
    for other in others {
        if other.state_write == row.state_write || other.computed > 0 && other.state_read == row.state_write {
            return Err(format!("writes state slot {}, which another row of the step uses", row.state_write));
        }
    }
    Ok(())
}
