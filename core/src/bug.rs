//! Bugs that can be switched on, so that what looks for bugs can be seen to find them.
//!
//! `docs/reliability.md` lists them with their origin and the check that finds each; `tests/sim` switches on those of the
//! engine, `driver/races` those of threads, one at a time, in the thread that simulates. Only builds with debug
//! assertions have them: without, `seeded!` is the constant `false` and nothing of this module exists. Rejected: cargo
//! features, which another crate's features could switch on in a release.

/// Whether a seeded bug is on in this thread.
macro_rules! seeded {
    ($name:ident) => {{
        #[cfg(debug_assertions)]
        let is_on = crate::bug::is_on(crate::bug::Bug::$name);
        #[cfg(not(debug_assertions))]
        let is_on = false;
        is_on
    }};
}
pub(crate) use seeded;

#[cfg(debug_assertions)]
mod switch {
    use std::cell::Cell;

    thread_local!(static ON: Cell<Option<Bug>> = const { Cell::new(None) });

    /// Switch a bug on in this thread, and every other one off.
    pub fn switch_on(bug: Option<Bug>) {
        ON.with(|on| on.set(bug));
    }

    pub(crate) fn is_on(bug: Bug) -> bool {
        ON.with(Cell::get) == Some(bug)
    }

    macro_rules! bugs {
        ($($thread:ident: $of_thread:literal,)*; $($name:ident: $what:literal,)*) => {
            /// A seeded bug.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Bug {
                $(#[doc = $of_thread] $thread,)*
                $(#[doc = $what] $name,)*
            }

            impl Bug {
                /// All of threads: `driver/races` finds them.
                pub const THREADS: &[Self] = &[$(Self::$thread),*];

                /// All of the engine, which knows no threads: the simulator finds them.
                pub const ENGINE: &[Self] = &[$(Self::$name),*];

                /// As in `docs/reliability.md`.
                pub fn name(self) -> &'static str {
                    match self {
                        $(Self::$thread => stringify!($thread),)*
                        $(Self::$name => stringify!($name),)*
                    }
                }
            }
        };
    }

    bugs! {
        // Of threads.
        NewestIsTakenFirst: "What was given last is taken first.",
        ClosingWakesNobody: "Who sleeps until there is something to do does not hear that there will be nothing.",
        ThreadsAreLeftBehind: "Nobody waits for threads that were told to end.",
        FailedTurnStopsNothing: "The turn behind one that failed is run.",
        MaskBeingMadeIsNotWaitedFor: "Masks that are being made when they are needed come with the next step's.",
        OneReaderIsWoken: "Of those who wait for block events one hears that there are some.",
        EndOfEventsWakesNobody: "Who waits for block events does not hear that no more will come.",
        GapIsNotTold: "A reader who missed block events does not hear of it.",
        StepsAreCountedNotNumbered: "A reader of steps goes on by how many it read, not by the last one's number.",
        ;
        // Of the engine.
        JointMatchTakesPagesOnly: "A hit counts where the pages resume, whatever the state does.",
        HitIsNotCounted: "Pages of a hit are held, computing starts at 0.",
        FoundPagesAreNotAnnounced: "The device does not hear of the pages of a hit.",
        RenumberedPageIsNotAnnounced: "A page given up for an equal cached one stays in the device's table.",
        WholePromptIsReused: "Nothing is left to compute after a full hit.",
        UncomputedPageIsPublished: "Pages are cached once their tokens are known.",
        SaltIsIgnored: "All salts share one namespace.",
        EmptySaltIsNoSalt: "An empty salt is no salt.",
        PageIsFoundWithoutItsHistory: "A page is found by its own tokens alone.",
        FoundPathIsNotChecked: "What a request found is taken for cached although its pages have other owners by now.",
        NothingIsEverFound: "Lookup gives up before the first page.",
        OutputIsNotPublished: "Pages of generated text are not cached.",
        NewestIsEvictedFirst: "The eviction list is read from the wrong end.",
        PreemptedLosesItsLastToken: "A preempted request comes back without its newest token.",
        NextInOrderIsPreempted: "Memory is taken from the next in order instead of the last.",
        ReturnNeedsNoRoom: "A preempted request comes back as soon as its first chunk fits.",
        ChunkEndsOffTheGrid: "Chunks end one token after the boundary.",
        LaterChunkStartsFromScratch: "The second chunk reads the scratch state.",
        StateCountLagsBehind: "The token count of a state is one too small.",
        TailIsNotReserved: "A chunk that leaves less than a page reserves no memory for what it leaves.",
        PageAtTheBoundaryIsForgotten: "No page is added when a request grows past its last one.",
        ScratchSlotIsHandedOut: "State slot 0 goes to a request.",
        AbortKeepsPages: "An abort in a step gives pages back to nobody.",
        AbortFreesBeforeTheStepEnds: "An abort frees pages that a step in flight writes.",
        AbortIsNotCounted: "An aborted request is in no counter.",
        PromptRowsShiftTheSample: "The sampled row ignores the rows of prompt log-probabilities.",
        LengthHidesStop: "The length cap is looked at before the stop token.",
        FirstTokenIsNotPenalised: "The first generated token is missing from the penalty counts.",
        CachedTokensAreOverwritten: "A return from preemption changes the reported hit.",
        NamespaceIsNeverForgotten: "Salts stay open for ever.",
        ReleaseWakesNobody: "A blocked admission is not retried when memory is released.",
        DecodingWaitsForPrefill: "Decoding tokens come out of what prefill leaves.",
        PriorityIsIgnored: "The queue is in order of arrival only.",
        HeldPageIsEvicted: "Holding a cached page does not take it off the eviction list.",
        DuplicatePageIsLost: "The copy given up for an equal cached page goes nowhere.",
        ReleaseStartsAtTheFront: "A path is let go first page first.",
        DoubtfulPagesStayCached: "Pages of a request whose logits were not finite can be hit.",
        FlushIgnoresRunningRequests: "A flush is accepted while requests run.",
        SnapshotIsNeverWritten: "The slot given to the cache is not the one the step wrote.",
        SnapshotIsTakenOffBoundary: "A state off the boundary is labelled with the boundary before it.",
        SnapshotIsMislabelled: "A stored state says that it encodes a page more than it does.",
        SnapshotIsWrittenInPlace: "A request goes on in the slot of the snapshot it resumed from.",
        SnapshotIsEvictedWhileRead: "Reading a snapshot does not take it off the eviction list.",
        SnapshotOutlivesItsPages: "A page is evicted and its snapshot stays.",
        SnapshotsAreNeverKept: "No boundary of a hybrid model is ever resumable.",
        BoundaryIsIgnored: "No state is stored where the caller says that others will part.",
        RejectedGuessCounts: "Rows of rejected guesses count as computed.",
        WrongGuessIsAccepted: "A guess is accepted whatever was sampled in its place.",
        PlannedAheadIsNotAnnounced: "The device does not hear of pages given out ahead.",
        GuessesTakeOthersPages: "Guesses take pages that requests behind need.",
        VerifyWritesTheState: "Guesses run in the pass that advances states.",
        ReplayIsSkipped: "States are not advanced over right guesses.",
        ReplayOneTokenShort: "States are advanced over one right guess too few.",
        RejectedGuessIsReplayed: "States are advanced over the first wrong guess too.",
        ReplayReadsWhatItWrites: "States are advanced from the slot written, not from the committed one.",
        GuessesPassTheBoundary: "Guesses go on over a page boundary, where a state should have been kept.",
        GuessesOverwriteTheKeptState: "A step that may end off the boundary is planned as if all its guesses were right.",
        BranchesShareCacheRows: "All side branches of a request are computed in the same cache rows.",
        BranchIsNotMoved: "The cache rows of a right side branch stay where they were computed.",
        BranchLogitsAreTheChains: "Tokens of a side branch are sampled from the chain's logits.",
        RelaySlotIsAnothers: "A row takes its token from the relay slot before its own.",
        GuessIsSampledAtTheBase: "Rows behind guesses are sampled on the device as if at the position before the guesses.",
        LogprobsOfTheFirstRowForAll: "Right guesses that the device sampled have the log-probabilities of the row before them.",
        ForwardPassDecidesWhoSamples: "A pass that checks guesses is sampled by whoever samples the forward pass.",
        CountsOfTheRowBefore: "Penalties of a row behind guesses leave out the last of them.",
        RightGuessesAreNotCounted: "The device's counts miss the tokens that were guesses and right.",
        BiasOfTheNeighbour: "A row is biased as the next row of the side tables says.",
        MaskOutlivesMinTokens: "A mask made before `min_tokens` stays when they are there.",
        SideRowKeepsItsPast: "A row of the side tables is taken for written when another request gets it.",
        MadeMaskIsNotWritten: "A mask made while the device runs the step is not written before its rows are sampled.",
        WastedTokenIsHeard: "A request that ended hears what the step behind computed for nothing.",
        FreedBeforeTheStepBehind: "A request that ends frees its memory while the step behind still writes it.",
        DraftRowsOutliveTheirPage: "A page taken for writing counts as having its draft rows, if it once had some.",
        RemovalIsNotAnnounced: "A page is evicted and no event says so.",
        AnnouncedParentIsWrong: "Every stored page is announced as the first of a text.",
        CopyIsFoundBeforeItEnds: "A copy to host memory can be found once it is ordered.",
        FailedCopyIsBelieved: "A copy that failed counts as one that did not.",
        VoidCopyIsBelieved: "The copy of a page that left the device meanwhile is believed.",
        StateGivenUpMeanwhileIsKept: "The copy of a state that was given up meanwhile is believed.",
        CopyEndsTwice: "Who hears twice that a copy has ended takes the second for another copy.",
        PagesBehindAGapCount: "Of a load, pages behind one that failed count.",
        PageLoadedInVainIsLost: "A page that was computed while it was loaded goes nowhere.",
        BadCopyIsKept: "A copy that was found to be bad stays in host memory.",
        ChecksumIsNotLookedAt: "What comes back from host memory is believed whatever its checksum.",
        LoadHoldsNothing: "The pages before those of a load can be evicted meanwhile.",
        AbortEndsTheLoad: "The abort of a request that waits for a load frees the pages it fills.",
        ChangesAreForgottenUntold: "A plan that finds nothing to run forgets the exchanged pages it was to tell of.",
        LoadWakesNobody: "Who waits for a load waits for ever.",
        NothingComesBack: "What is in host memory is never loaded.",
        FlushLeavesHostMemory: "A flush empties the device only.",
        FlushIgnoresCopies: "A flush is accepted while copies are under way.",
        FirstWaitsForAnothersLoad: "The first in the queue waits for a load, whoever it is for.",
        LongestPrefillGoesFirst: "Shortest prefill first goes by the longest.",
        OvertakenForEver: "Whoever was overtaken often enough is overtaken still.",
        RestTakesEveryPage: "Who is no favourite of the policy takes the pages that those just admitted count on.",
        NewGoesBeforeReturning: "A new request may go before a preempted one of its class.",
        CoalescingHasNoBound: "A new request is kept waiting however long it has waited.",
        CoalescingHoldsWithoutWork: "New requests are kept waiting though the step has nothing to do, or a prefill anyway.",
        RefusalCountsWhoeverWaits: "A request is refused because of others that would wait for it.",
        BurstSlipsThrough: "Requests on their way to the engine are not counted by the one that refuses.",
        MaskOfTheFirstRowForAll: "The rows behind guesses have the mask of the row before them.",
        GuessStaysInTheGrammar: "One guess is not taken back when its masks are made.",
        WholeAnswerGoesOn: "An answer that is whole is not over.",
        FailureAheadEndsTheAnswer: "A grammar that fails behind a guess fails before it.",
    }
}

#[cfg(debug_assertions)]
pub(crate) use switch::is_on;
#[cfg(debug_assertions)]
pub use switch::{Bug, switch_on};
