//! What each op checks and passes on.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    op::OpKind,
    sdk::{BoundOp, Fault, Operand, StepView},
};
use tokenspeed_core::engine::Pass;

use super::{
    draft,
    memory::{Record, load, load_word, store, store_word},
    recurrent, relay,
    rows::{self, holder_of},
};
use crate::{
    check::Check,
    fingerprint,
    world::{Held, Owner, Sizes, StepFault, World},
};

/// Whether the device runs ops of a kind.
pub fn is_known(kind: OpKind) -> bool {
    use OpKind::{
        Add, Embedding, Gemm, KdaRecord, KdaReplay, KdaStep, KdaVerify, KvMove, KvWrite, Mul, PagedAttention,
        RowGather, Sample, Sigmoid, SigmoidMul, Slice, TableUpdate,
    };
    matches!(
        kind,
        TableUpdate
            | Embedding
            | KvWrite
            | KvMove
            | PagedAttention
            | KdaStep
            | KdaRecord
            | KdaVerify
            | KdaReplay
            | Slice
            | Add
            | SigmoidMul
            | Sigmoid
            | Mul
            | RowGather
            | Gemm
            | Sample
    )
}

/// An op and its memory.
#[derive(Debug)]
pub struct Prepared {
    kind: OpKind,
    operands: Vec<Operand>,
    component: usize,
    sampler: Option<relay::Sampler>,
}

pub(super) type Outcome = Result<(), Fault>;

/// Note a failure and end the step.
pub(super) fn fail(world: &mut World, check: Check, what: String) -> Fault {
    world.fail(check, || what.clone());
    Fault::internal(what)
}

impl Prepared {
    pub fn new(op: &BoundOp<'_>) -> Self {
        let component = usize::try_from(op.op.attrs().i[0]).unwrap_or_default();
        let sampler = (op.op.kind() == OpKind::Sample).then(|| relay::Sampler::new(op));
        Self { kind: op.op.kind(), operands: op.operands.to_vec(), component, sampler }
    }

    pub fn run(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        match self.kind {
            OpKind::TableUpdate => self.table_update(world, step),
            OpKind::Embedding => self.embedding(world, step),
            OpKind::KvWrite => self.kv_write(world, step),
            OpKind::KvMove => self.kv_move(world, step),
            OpKind::PagedAttention => self.attention(world, step),
            OpKind::KdaStep => recurrent::step(&self.operands, world, step),
            OpKind::KdaRecord => recurrent::record(&self.operands, world, step),
            OpKind::KdaVerify => recurrent::verify(&self.operands, world, step),
            OpKind::KdaReplay => recurrent::replay(&self.operands, world, step),
            OpKind::Slice => {
                let [x, y] = self.operands[..] else { unreachable!("the catalogue checked") };
                let width = y.tensor.dims[1];
                let words = (0..step.tokens.len()).flat_map(|t| (0..width).map(move |i| (t * width + i, t * 4 + i)));
                words.for_each(|(to, from)| store_word(&y, to, load_word(&x, from)));
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
            OpKind::Gemm if world.is_drafting() => draft::head(&self.operands, world, step),
            OpKind::Gemm => self.head(world, step),
            OpKind::Sample => self.sampler.as_ref().expect("made with the op").run(world, step),
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
        match world.pass {
            Pass::Replay => return rows::check_replay(world, step),
            Pass::DraftFirst | Pass::DraftNext => return draft::check(world, step),
            Pass::Forward | Pass::Verify => self.find_owners(world, step),
        }
        rows::check(world, step)
    }

    /// From the tables of all that hold memory; only to notice what is used twice.
    fn find_owners(&self, world: &mut World, step: &StepView<'_>) {
        let block_tokens = world.sizes.block_tokens;
        let World { held, pages, owners, .. } = world;
        // Side branches have rows behind those of the text.
        let end = |holder: &Held| {
            let own = step.rows.iter().filter(|row| row.table_row == holder.table_row).map(ts_step_row::cache_rows);
            own.fold(holder.computed + holder.planned, u32::max)
        };
        let ends: Vec<u32> = held.iter().map(end).collect();
        owners.resize_with(self.operands.len(), Vec::new);
        pages.resize_with(self.operands.len(), Vec::new);
        for (component, table) in self.operands.iter().enumerate() {
            let (owners, pages) = (&mut owners[component], &mut pages[component]);
            owners.clear();
            owners.resize(world.sizes.blocks as usize, Owner::Nobody);
            pages.resize_with(world.sizes.blocks as usize, Default::default);
            for (at, holder) in held.iter().enumerate() {
                for index in 0..ends[at].div_ceil(block_tokens).min(table.tensor.dims[1] as u32) {
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
        let (y, relay) = (self.operands[self.operands.len() - 1], &self.operands[1]);
        for row in step.rows {
            let holder = holder_of(world, row)?;
            let truth = world.history(holder.id, row.branch_offset);
            for t in row.query_start as usize..(row.query_start + row.query_len) as usize {
                let token = &step.tokens[t];
                let at = token.position as usize;
                // Rows were checked: the slot exists.
                let id =
                    if token.id < 0 { load_word(relay, relay::slot_of(token.id)) } else { token.id.cast_unsigned() };
                let wanted = truth.tokens[at];
                if id != wanted {
                    let what = format!("token {at} of {:?} is {id} in the relay, and was {wanted}", holder.id);
                    return Err(fail(world, Check::Step, what));
                }
                store(&y, t, Record::new(truth.prefix[at + 1], token.position, id));
            }
        }
        Ok(())
    }

    /// The block of a cache row, through the table; what is wrong with it, if anything is.
    fn block_at(sizes: &Sizes, table: &Operand, row: &ts_step_row, cache_row: u32) -> Result<u32, String> {
        let (index, width) = (cache_row / sizes.block_tokens, table.tensor.dims[1]);
        let block = load_word(table, row.table_row as usize * width + index as usize);
        if index as usize >= width || block == 0 || block >= sizes.blocks {
            return Err(format!("position {cache_row} of table row {} is in block {block}", row.table_row));
        }
        Ok(block)
    }

    /// Block and slot of a position, through the table.
    fn locate(
        &self,
        world: &mut World,
        table: &Operand,
        row: &ts_step_row,
        position: u32,
    ) -> Result<(u32, usize), Fault> {
        let sizes = world.sizes;
        match Self::block_at(&sizes, table, row, position) {
            Ok(block) => Ok((block, (block * sizes.block_tokens + position % sizes.block_tokens) as usize)),
            Err(what) => Err(fail(world, Check::Table, what)),
        }
    }

    fn kv_write(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let [x, cache, table] = self.operands[..] else { unreachable!("the catalogue checked") };
        let is_rubbish = world.fault == Some(StepFault::Fails);
        for row in step.rows {
            let holder = holder_of(world, row)?;
            // Of the page that was looked up last, for all rows in it.
            let (mut index, mut block) = (None, 0);
            for (t, token) in
                (row.query_start as usize..).zip(&step.tokens[row.query_start as usize..][..row.query_len as usize])
            {
                let at = row.cache_row(token.position);
                let (page, slot) = (at / world.sizes.block_tokens, at % world.sizes.block_tokens);
                if index != Some(page) {
                    block = self.locate(world, &table, row, at)?.0;
                    index = Some(page);
                    if !world.is_drafting() {
                        self.may_write(world, &holder, block, token.position)?;
                    }
                }
                if world.is_drafting() {
                    draft::may_write(world, &holder, block, token.position)?;
                } else if slot == 0 {
                    let notes = &mut world.pages[self.component][block as usize];
                    (notes.users, notes.is_doubtful) = (vec![holder.id], false);
                }
                let place = (block * world.sizes.block_tokens + slot) as usize;
                store(&cache, place, if is_rubbish { Record::default() } else { load(&x, t) });
            }
        }
        Ok(())
    }

    /// Whether a request may write to a page outside of passes of a draft.
    fn may_write(&self, world: &mut World, holder: &Held, block: u32, position: u32) -> Outcome {
        let id = holder.id;
        if world.cached_pages.contains(&block) {
            let what = format!("{id:?} writes position {position} to page {block} of the cache");
            Err(fail(world, Check::Table, what))
        } else if world.owners[self.component][block as usize] == Owner::Several {
            Err(fail(world, Check::Table, format!("{id:?} writes position {position} to page {block}, used twice")))
        } else {
            Ok(())
        }
    }

    /// Every row from the first position on must be the one of this history.
    fn attention(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        if world.fault == Some(StepFault::Fails) {
            return Ok(());
        }
        for row in step.rows {
            let holder = holder_of(world, row)?;
            if let Err((check, what)) = self.attend(world, row, &holder) {
                return Err(fail(world, check, what));
            }
        }
        Ok(())
    }

    /// One row of a step, page by page: a prompt may have a million rows.
    fn attend(&self, world: &World, row: &ts_step_row, holder: &Held) -> Result<(), (Check, String)> {
        let [_, cache, _, table, y] = self.operands[..] else { unreachable!("the catalogue checked") };
        let truth = world.history(holder.id, row.branch_offset);
        let block_tokens = world.sizes.block_tokens;
        let end = row.computed + row.query_len;
        let mut next = 0;
        while next < end {
            let at = row.cache_row(next);
            let block = Self::block_at(&world.sizes, &table, row, at).map_err(|what| (Check::Table, what))?;
            let notes = &world.pages[self.component][block as usize];
            // The request that failed may be in the step behind for nothing.
            let is_doubtful = !world.is_drafting() && notes.is_doubtful && notes.users != [holder.id];
            // Behind what was computed, the rows of a side branch lie further on.
            let until = if next < row.computed { row.computed } else { end };
            let in_page = next..until.min(next + block_tokens - at % block_tokens);
            next = in_page.end;
            for (position, place) in in_page.zip((block * block_tokens + at % block_tokens) as usize..) {
                let found = load(&cache, place);
                let n = position as usize;
                let wanted = Record::new(truth.prefix[n + 1], position, truth.tokens[n]);
                if found != wanted || is_doubtful {
                    let (id, component) = (holder.id, self.component);
                    let why = if found == wanted { ", of a failed request" } else { "" };
                    let what = format!(
                        "{id:?} reads position {position} of component {component} in page {block}: found {found:?}{why}, \
                         wanted {wanted:?}"
                    );
                    return Err((Check::Page, what));
                }
                if position >= row.computed {
                    store(&y, (row.query_start + position - row.computed) as usize, found);
                }
            }
        }
        Ok(())
    }

    /// Rows of a right branch go where the text's rows are; all rows of the replay must then be those of the text.
    fn kv_move(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let [cache, table] = self.operands[..] else { unreachable!("the catalogue checked") };
        let is_rubbish = world.fault == Some(StepFault::Fails);
        for row in step.rows {
            let holder = holder_of(world, row)?;
            for position in row.computed..row.computed + row.query_len {
                let (block, to) = self.locate(world, &table, row, position)?;
                let (_, from) = self.locate(world, &table, row, row.cache_row(position))?;
                let found = load(&cache, from);
                if row.branch_offset > 0 {
                    store(&cache, to, if is_rubbish { Record::default() } else { found });
                    world.n_moves += 1;
                }
                let (at, truth) = (position as usize, &world.truths[&holder.id]);
                let wanted = Record::new(truth.prefix[at + 1], position, truth.tokens[at]);
                if found != wanted {
                    let (id, offset) = (holder.id, row.branch_offset);
                    let what = format!(
                        "position {position} of {id:?} in page {block}, from {offset} rows behind: found {found:?}, wanted {wanted:?}"
                    );
                    return Err(fail(world, Check::Page, what));
                }
            }
        }
        if is_rubbish { Err(Fault::internal("simulated: the replay failed")) } else { Ok(()) }
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
            let row = &step.rows[token.row as usize];
            let holder = holder_of(world, row)?;
            if found.fingerprint() != world.history(holder.id, row.branch_offset).prefix[token.position as usize + 1] {
                let what = format!("logit row {at} of {:?} comes from {found:?}", holder.id);
                return Err(fail(world, Check::Flow, what));
            }
            fingerprint::logits(found.fingerprint(), n_ids, &mut logits);
            if let Some(StepFault::NotFinite(wanted)) = world.fault
                && wanted as usize % step.logit_rows.len() == at
            {
                let id = (found.fingerprint() % n_ids as u64) as u32;
                logits[id as usize] = if found.count.is_multiple_of(2) { f32::NAN } else { f32::INFINITY };
                world.poisoned = Some((holder.id, token.position + 1, id, found.fingerprint()));
            }
            for (column, logit) in logits.iter().enumerate() {
                store_word(&y, at * width + column, logit.to_bits());
            }
        }
        Ok(())
    }
}
