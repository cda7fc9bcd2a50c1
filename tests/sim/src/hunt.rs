//! The test of the test: switch one seeded bug on and count the seeds until something is found wrong.

use tokenspeed_core::bug::{Bug, switch_on};

use crate::{
    campaign::silence_panics,
    check::{Check, Failure},
    generate::scenario,
    simulate::examine,
};

/// A bug that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Seeds it took, this one included.
    pub seeds: u64,
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub failure: Failure,
}

/// Look for a bug with `seeds` seeds from `from` on.
pub fn hunt(bug: Bug, from: u64, seeds: u64) -> Option<Found> {
    silence_panics();
    (0..seeds).find_map(|number| {
        let seed = from + number;
        switch_on(Some(bug));
        let result = examine(&scenario(seed));
        switch_on(None);
        result.err().map(|failure| Found { seeds: number + 1, seed, failure })
    })
}

/// The checks that may find a bug first, as in `docs/reliability.md`.
pub fn expected(bug: Bug) -> &'static [Check] {
    use Check::{
        Assertion, Baseline, Conservation, Flow, Heard, Hit, Order, Page, Progress, State, Step, Table, Thrash,
    };
    match bug {
        Bug::JointMatchTakesPagesOnly => &[State, Assertion],
        Bug::HitIsNotCounted => &[Table, Assertion],
        Bug::FoundPagesAreNotAnnounced => &[Page, Table],
        Bug::RenumberedPageIsNotAnnounced => &[Page, Table],
        Bug::WholePromptIsReused => &[Assertion, Progress],
        Bug::UncomputedPageIsPublished => &[Page, Table, Assertion],
        Bug::SaltIsIgnored | Bug::EmptySaltIsNoSalt => &[Page],
        Bug::PageIsFoundWithoutItsHistory => &[Page, Conservation],
        Bug::NothingIsEverFound | Bug::OutputIsNotPublished | Bug::SnapshotsAreNeverKept => &[Hit],
        Bug::NewestIsEvictedFirst => &[Assertion],
        Bug::PreemptedLosesItsLastToken => &[Step, Heard, Assertion],
        Bug::NextInOrderIsPreempted => &[Order],
        Bug::ReturnNeedsNoRoom => &[Thrash, Assertion],
        Bug::ChunkEndsOffTheGrid => &[Step, Assertion],
        Bug::LaterChunkStartsFromScratch | Bug::StateCountLagsBehind | Bug::ScratchSlotIsHandedOut => &[State],
        Bug::PageAtTheBoundaryIsForgotten => &[Table, Page, Assertion],
        Bug::AbortKeepsPages => &[Conservation],
        Bug::AbortFreesBeforeTheStepEnds => &[Order],
        Bug::AbortIsNotCounted | Bug::NamespaceIsNeverForgotten | Bug::FlushIgnoresRunningRequests => &[Baseline],
        Bug::PromptRowsShiftTheSample | Bug::LengthHidesStop | Bug::FirstTokenIsNotPenalised => &[Heard],
        Bug::CachedTokensAreOverwritten => &[Heard],
        Bug::ReleaseWakesNobody => &[Assertion, Progress],
        Bug::DecodingWaitsForPrefill | Bug::PriorityIsIgnored => &[Order],
        Bug::HeldPageIsEvicted => &[Conservation, Assertion],
        Bug::DuplicatePageIsLost | Bug::ReleaseStartsAtTheFront => &[Conservation, Assertion],
        Bug::DoubtfulPagesStayCached => &[Page],
        Bug::SnapshotIsNeverWritten => &[State, Assertion, Flow],
        Bug::SnapshotIsTakenOffBoundary | Bug::SnapshotIsWrittenInPlace => &[State],
        Bug::SnapshotIsEvictedWhileRead | Bug::SnapshotOutlivesItsPages => &[Conservation, Assertion],
    }
}
