//! Sampling on the device, and the slots that its tokens wait in for the next step.
//!
//! Tokens are sampled by the catalogue's reference, with side tables that were looked at before ([`side`]). The device remembers whose token is in which slot, and for which position;
//! a row that takes its token from a slot must be of that request and at that position. What rows behind guesses leave in slots is
//! nobody's token yet: those slots must be none that a request has.

use tokenspeed_backend_api::{
    catalogue::{self, Call, Part},
    op::{Attrs, OpKind},
    sdk::{BoundOp, StepView},
    tensor::View,
};

use super::{
    memory::{cut, view},
    ops::{Outcome, fail},
    rows::holder_of,
    side,
};
use crate::{
    check::Check,
    world::{Held, Relayed, World},
};

/// The slot that a token's id names.
pub fn slot_of(id: i32) -> usize {
    id.unsigned_abs() as usize - 1
}

/// What is wrong with a token in a slot, at a position of a request; `None` if it is the one sampled for it.
pub fn other_slot(world: &World, holder: &Held, id: i32, position: u32) -> Option<String> {
    let found = world.relayed.get(&(slot_of(id) as u32));
    let is_own = found.is_some_and(|relayed| (relayed.id, relayed.position) == (holder.id, position));
    (!is_own).then(|| format!("takes the token at {position} from slot {}, which holds {found:?}", slot_of(id)))
}

/// The op.
#[derive(Debug)]
pub struct Sampler {
    attrs: Attrs,
    views: Vec<View>,
}

impl Sampler {
    pub fn new(op: &BoundOp<'_>) -> Self {
        let views = op.op.descriptors().iter().zip(op.operands).map(|(descriptor, operand)| view(descriptor, operand));
        Self { attrs: *op.op.attrs(), views: views.collect() }
    }

    pub fn run(&self, world: &mut World, step: &StepView<'_>) -> Outcome {
        let views: Vec<View> = self.views.iter().map(|view| cut(view, step)).collect();
        side::check(world, step, &views)?;
        let call = Call { attrs: self.attrs, operands: &views, step: *step };
        (catalogue::entry(OpKind::Sample).reference)(&call, Part::WHOLE);
        let mut slots: Vec<u32> = step.samples.iter().map(|sample| sample.relay_slot).collect();
        slots.sort_unstable();
        if let Some(pair) = slots.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(fail(world, Check::Step, format!("two rows of a step are sampled to slot {}", pair[0])));
        }
        for (sample, &token) in step.samples.iter().zip(step.logit_rows) {
            let token = &step.tokens[token as usize];
            let holder = holder_of(world, &step.rows[token.row as usize])?;
            let slot = sample.relay_slot;
            let is_behind_guesses = sample.position as usize > world.truths[&holder.id].tokens.len();
            let is_requests = slot <= world.sizes.table_rows;
            let (is_there, is_next) =
                (slot > 0 && (slot as usize) < views[1].rows(), sample.position == token.position + 1);
            if !is_there || !is_next || is_requests == is_behind_guesses {
                let what = format!("{:?} is sampled behind {} as {sample:?}", holder.id, token.position);
                return Err(fail(world, Check::Step, what));
            }
            if is_behind_guesses {
                world.n_sampled_guesses += 1;
                continue;
            }
            let sampled = views[1].load_u32(slot as usize, 0);
            world.relayed.insert(slot, Relayed { id: holder.id, position: sample.position, token: sampled });
            world.n_sampled += 1;
        }
        Ok(())
    }
}
