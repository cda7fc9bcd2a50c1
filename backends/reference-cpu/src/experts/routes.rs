//! Which tokens go to which expert, in the order the sums want: by expert, then by token.
//!
//! Every worker sorts for itself: a counting sort over some thousand routes costs less than a barrier, and all workers
//! come to the same answer, a refusal included.

use crate::scratch::{Carver, region_bytes};

/// Most tokens of one group: their activations stay in the level-2 cache while an expert's rows pass.
pub const GROUP_TOKENS: usize = 50;

/// A token's use of an expert.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub token: u32,
    pub weight: f32,
}

/// Consecutive routes to one expert; an expert with many tokens has several.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Where in the stacks the expert lies.
    pub slot: u32,
    /// First route.
    pub first: u32,
    /// Number of routes.
    pub count: u32,
}

/// Sorted routes, in a worker's scratch.
#[derive(Clone, Copy, Debug)]
pub struct Routes<'a> {
    pub groups: &'a [Group],
    pub routes: &'a [Route],
}

/// The step's choice of experts.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// `[tokens, top]`.
    pub ids: &'a [u32],
    /// `[tokens, top]`.
    pub weights: &'a [f32],
    /// `[experts]`.
    pub slots: &'a [u32],
    pub top: usize,
}

/// Most groups that `routes` routes to `experts` experts make.
fn groups_max(routes: usize, experts: usize) -> usize {
    routes.min(experts + routes / GROUP_TOKENS)
}

/// Scratch for [`Routes::sort`].
pub fn scratch_bytes(routes: usize, experts: usize) -> usize {
    region_bytes::<u32>(experts + 1)
        + region_bytes::<Route>(routes)
        + region_bytes::<Group>(groups_max(routes, experts))
}

impl Routes<'_> {
    /// Sort a choice. `Err` names an expert or a place that does not exist.
    ///
    /// # Safety
    /// `carver` has [`scratch_bytes`], which no one else uses while the result lives.
    pub unsafe fn sort<'a>(choice: &Choice<'_>, carver: &mut Carver) -> Result<Routes<'a>, String> {
        let (n, experts) = (choice.ids.len(), choice.slots.len());
        let (next, routes, groups): (*mut u32, *mut Route, *mut Group) =
            (carver.take(experts + 1), carver.take(n), carver.take(groups_max(n, experts)));
        // SAFETY: just carved with these lengths; every element is written before it is read.
        let (next, routes) = unsafe {
            next.write_bytes(0, experts + 1);
            routes.write_bytes(0, n);
            (std::slice::from_raw_parts_mut(next, experts + 1), std::slice::from_raw_parts_mut(routes, n))
        };
        for id in choice.ids {
            let count = next.get_mut(*id as usize + 1).ok_or_else(|| format!("expert {id} of {experts} is chosen"))?;
            *count += 1;
        }
        if let Some(slot) = choice.slots.iter().find(|s| **s as usize >= experts) {
            return Err(format!("place {slot} of {experts} in a stack is named"));
        }
        let mut len = 0;
        for expert in 0..experts {
            let (first, count) = (next[expert], next[expert + 1]);
            for at in (0..count).step_by(GROUP_TOKENS) {
                let count = (GROUP_TOKENS as u32).min(count - at);
                // SAFETY: at most `groups_max` groups: one per GROUP_TOKENS routes and one more per expert with any.
                unsafe { groups.add(len).write(Group { slot: choice.slots[expert], first: first + at, count }) };
                len += 1;
            }
            next[expert + 1] += first;
        }
        for (i, (id, weight)) in choice.ids.iter().zip(choice.weights).enumerate() {
            let at = &mut next[*id as usize];
            routes[*at as usize] = Route { token: (i / choice.top) as u32, weight: *weight };
            *at += 1;
        }
        // SAFETY: `len` groups were written.
        Ok(Routes { groups: unsafe { std::slice::from_raw_parts(groups, len) }, routes })
    }

    /// The routes of a group.
    pub fn of(&self, group: &Group) -> &[Route] {
        &self.routes[group.first as usize..][..group.count as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn sorted(ids: &[u32], slots: &[u32], top: usize) -> Result<Vec<(u32, Vec<u32>)>, String> {
        let weights = vec![1.0; ids.len()];
        let mut scratch = Scratch::new(scratch_bytes(ids.len(), slots.len()));
        let choice = Choice { ids, weights: &weights, slots, top };
        // SAFETY: sized above, and the scratch outlives the routes.
        let routes = unsafe { Routes::sort(&choice, &mut scratch.carve()) }?;
        Ok(routes.groups.iter().map(|g| (g.slot, routes.of(g).iter().map(|r| r.token).collect())).collect())
    }

    #[test]
    fn by_expert_then_token_and_long_groups_are_cut() {
        let got = sorted(&[2, 0, 2, 1, 0, 2], &[5, 0, 1, 2, 3, 4], 2).unwrap();
        assert_eq!(got, [(5, vec![0, 2]), (0, vec![1]), (1, vec![0, 1, 2])]);
        let got = sorted(&[1; 120], &[0, 1], 1).unwrap();
        assert_eq!(got.iter().map(|g| g.1.len()).collect::<Vec<_>>(), [50, 50, 20]);
        assert_eq!(got[2].1[0], 100);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        assert!(sorted(&[0, 9], &[0, 1], 2).unwrap_err().contains("expert 9 of 2"));
        assert!(sorted(&[0, 1], &[0, 7], 2).unwrap_err().contains("place 7 of 2"));
        assert!(sorted(&[u32::MAX], &[0], 1).is_err());
    }
}
