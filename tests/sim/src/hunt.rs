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
        Assertion, Baseline, Conservation, Events, Heard, Hit, Order, Page, Progress, Refusal, Side, State, Step,
        Table, Tail, Thrash, Tier,
    };
    match bug {
        Bug::JointMatchTakesPagesOnly
        | Bug::WholePromptIsReused
        | Bug::NewestIsEvictedFirst
        | Bug::SnapshotIsMislabelled
        | Bug::ReleaseWakesNobody => &[Assertion],
        Bug::HitIsNotCounted => &[Table, Assertion],
        Bug::FoundPagesAreNotAnnounced => &[Page, Table],
        Bug::RenumberedPageIsNotAnnounced | Bug::PageAtTheBoundaryIsForgotten => &[Table],
        Bug::UncomputedPageIsPublished => &[Table, Page],
        Bug::SaltIsIgnored | Bug::EmptySaltIsNoSalt => &[Page, State],
        Bug::DoubtfulPagesStayCached => &[Page],
        Bug::PageIsFoundWithoutItsHistory => &[Page, Conservation, Assertion],
        Bug::FoundPathIsNotChecked => &[Table, Page, State, Conservation, Assertion],
        Bug::NothingIsEverFound => &[Hit, Progress],
        Bug::OutputIsNotPublished | Bug::SnapshotsAreNeverKept | Bug::BoundaryIsIgnored => &[Hit],
        Bug::PreemptedLosesItsLastToken => &[Assertion, Step, Heard],
        Bug::NextInOrderIsPreempted
        | Bug::AbortFreesBeforeTheStepEnds
        | Bug::DecodingWaitsForPrefill
        | Bug::PriorityIsIgnored => &[Order],
        Bug::TailIsNotReserved => &[Tail],
        Bug::ReturnNeedsNoRoom | Bug::GuessesTakeOthersPages => &[Thrash],
        Bug::PlannedAheadIsNotAnnounced => &[Table, Page],
        Bug::VerifyWritesTheState | Bug::ReplayIsSkipped => &[State],
        Bug::ReplayOneTokenShort | Bug::RejectedGuessIsReplayed | Bug::ReplayReadsWhatItWrites => &[Step],
        Bug::GuessesPassTheBoundary | Bug::GuessesOverwriteTheKeptState => &[Hit],
        Bug::RejectedGuessCounts => &[Step, Assertion, Order],
        Bug::WrongGuessIsAccepted => &[Heard, State, Page],
        Bug::BranchesShareCacheRows => &[Table],
        Bug::BranchIsNotMoved => &[Page, State],
        Bug::BranchLogitsAreTheChains => &[Heard],
        Bug::RelaySlotIsAnothers | Bug::GuessIsSampledAtTheBase => &[Step],
        Bug::LogprobsOfTheFirstRowForAll | Bug::ForwardPassDecidesWhoSamples => &[Heard],
        Bug::CountsOfTheRowBefore
        | Bug::RightGuessesAreNotCounted
        | Bug::BiasOfTheNeighbour
        | Bug::MaskOutlivesMinTokens
        | Bug::SideRowKeepsItsPast
        | Bug::MadeMaskIsNotWritten => &[Side],
        Bug::WastedTokenIsHeard => &[Heard, Baseline],
        Bug::FreedBeforeTheStepBehind => &[Table],
        Bug::DraftRowsOutliveTheirPage => &[Page],
        Bug::ChunkEndsOffTheGrid => &[Step, Assertion],
        Bug::LaterChunkStartsFromScratch
        | Bug::StateCountLagsBehind
        | Bug::ScratchSlotIsHandedOut
        | Bug::SnapshotIsNeverWritten
        | Bug::SnapshotIsWrittenInPlace => &[State],
        Bug::SnapshotIsTakenOffBoundary => &[State, Assertion],
        Bug::AbortKeepsPages
        | Bug::DuplicatePageIsLost
        | Bug::SnapshotIsEvictedWhileRead
        | Bug::SnapshotOutlivesItsPages => &[Conservation],
        Bug::AbortIsNotCounted | Bug::NamespaceIsNeverForgotten | Bug::FlushIgnoresRunningRequests => &[Baseline],
        Bug::PromptRowsShiftTheSample | Bug::LengthHidesStop | Bug::CachedTokensAreOverwritten => &[Heard],
        Bug::FirstTokenIsNotPenalised => &[Heard, Side],
        Bug::RemovalIsNotAnnounced | Bug::AnnouncedParentIsWrong => &[Events],
        Bug::CopyIsFoundBeforeItEnds | Bug::BadCopyIsKept => &[Tier],
        Bug::FailedCopyIsBelieved => &[Tier, Page, State],
        Bug::VoidCopyIsBelieved | Bug::LoadHoldsNothing => &[Assertion, Conservation, Tier, Page],
        Bug::StateGivenUpMeanwhileIsKept => &[State],
        Bug::CopyEndsTwice => &[Tier, Page, State, Assertion],
        Bug::PagesBehindAGapCount => &[Conservation, Assertion],
        Bug::PageLoadedInVainIsLost => &[Conservation],
        Bug::ChecksumIsNotLookedAt => &[Page, State],
        Bug::ChangesAreForgottenUntold => &[Table, Page],
        Bug::RestTakesEveryPage => &[Thrash],
        Bug::AbortEndsTheLoad => &[Page, Table, Conservation],
        Bug::LoadWakesNobody => &[Progress, Assertion],
        Bug::NothingComesBack => &[Hit],
        Bug::FlushLeavesHostMemory | Bug::FlushIgnoresCopies => &[Baseline, Assertion, Events],
        Bug::FirstWaitsForAnothersLoad => &[Tier],
        Bug::LongestPrefillGoesFirst
        | Bug::OvertakenForEver
        | Bug::NewGoesBeforeReturning
        | Bug::CoalescingHasNoBound => &[Order],
        Bug::CoalescingHoldsWithoutWork => &[Order, Assertion],
        Bug::RefusalCountsWhoeverWaits | Bug::BurstSlipsThrough => &[Refusal],
        Bug::MaskOfTheFirstRowForAll => &[Heard, Assertion, Side],
        Bug::GuessStaysInTheGrammar => &[Heard, Side],
        Bug::WholeAnswerGoesOn | Bug::FailureAheadEndsTheAnswer => &[Heard],
        Bug::HeldPageIsEvicted | Bug::ReleaseStartsAtTheFront => &[Conservation, Assertion],
        // There are no threads here.
        Bug::NewestIsTakenFirst
        | Bug::ClosingWakesNobody
        | Bug::ThreadsAreLeftBehind
        | Bug::FailedTurnStopsNothing
        | Bug::MaskBeingMadeIsNotWaitedFor
        | Bug::OneReaderIsWoken
        | Bug::EndOfEventsWakesNobody
        | Bug::GapIsNotTold
        | Bug::StepsAreCountedNotNumbered => &[],
    }
}
