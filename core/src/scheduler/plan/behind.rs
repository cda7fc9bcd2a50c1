//! A step that the device gets while the one before it still runs.
//!
//! It is planned as any step planned ahead is (what is in flight counts as done, nobody loses memory), and then nothing is left
//! to be completed: it goes to the device as it is, with relay slots in place of the tokens being sampled. So it must be whole.
//! A plan that leaves out a decoding request, for want of pages, stays what it was without relay: it is completed, with the
//! means to take memory from others, when the step in flight has been taken in.
//!
//! * A request that ends in the step in flight, by what is sampled there or because its caller leaves, is computed once for
//!   nothing. Its memory stays its own until both steps have been taken in ([`Ending`](super::super::sequence::Ending)).
//! * Memory that the step in flight sets free is not seen by this plan. Waiting requests wait one step longer.
//! * A model with recurrent state stores states where prompts are cut, and moves slots to do so, when a chunk has been computed:
//!   behind chunks of prompts, its next step is planned when they have been taken in.
//! * Requests whose values are in doubt must be forgotten before anybody is admitted who could find their pages.

use super::*;
use crate::scheduler::sequence::Ending;

impl Scheduler {
    /// Whether the step behind the one in flight can be planned as far as that one is concerned.
    pub fn can_plan_behind(&self, queues: &Queues, memory: &Memory) -> bool {
        self.can_plan_ahead(queues) && queues.iter_running().all(|running| may_go_on(running, memory))
    }

    /// Plan the step behind the one in flight, in which nobody guesses, and give every request its part in it
    /// ([`Active::behind`]). False if memory does not suffice or nothing is left to run;
    /// then it has been planned ahead, as by [`Scheduler::plan_ahead`].
    ///
    /// # Panics
    /// If that cannot be, see [`Scheduler::can_plan_behind`].
    pub fn plan_behind(&mut self, now_ns: u64, queues: &mut Queues, memory: &mut Memory) -> bool {
        assert!(self.can_plan_behind(queues, memory), "what is in flight decides too much");
        let n_decode = count_decoding(queues);
        assert!(self.deltas.is_empty(), "the step in flight was told of all changes");
        self.decisions.list.clear();
        self.look_again(queues, memory);
        for running in queues.running.iter_mut().flatten() {
            self.announce_renumbered(running.parts_mut().1, memory);
        }
        let mut budget = self.budget(n_decode, 0);
        let stopped = self.choose(When::Ahead, 0, queues, memory, &mut budget);
        let is_left_out = |running: &Running| {
            let outlook = Outlook::of(running);
            outlook.generates() && running.parts().1.ahead.n_tokens == 0
        };
        let is_whole = !queues.iter_running().any(is_left_out);
        let has_work = queues.iter_running().any(|running| running.parts().1.ahead.n_tokens > 0);
        if !is_whole || !has_work {
            self.ahead = Some(budget);
            return false;
        }
        for running in queues.running.iter_mut().flatten() {
            let (_, active) = running.parts_mut();
            let share = std::mem::take(&mut active.ahead);
            if share.n_tokens > 0 {
                active.start_behind(share, memory);
            }
        }
        (self.decisions.planned_ns, self.decisions.budget_tokens) = (now_ns, self.step_tokens);
        self.decisions.conclude_behind(queues, stopped);
        true
    }
}

/// Whether a request that left still has pages whose values are in doubt.
pub(super) fn is_in_doubt(running: &Running) -> bool {
    matches!(running, Running::Leaving(_)) && running.parts().1.ending == Ending::Discard
}

/// Whether the step behind can be planned as far as this request is concerned.
fn may_go_on(running: &Running, memory: &Memory) -> bool {
    let active = running.parts().1;
    assert!(active.behind.is_none(), "at most two steps are in flight");
    match running {
        Running::Prefilling(_) => active.planned == 0 || !memory.has_states(),
        // Without a part in the step in flight, it lacks memory that a plan made behind cannot give it.
        Running::Decoding(_) => active.planned > 0,
        Running::Leaving(_) => true,
    }
}
