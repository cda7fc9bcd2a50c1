//! Every seeded bug of the engine is found, and by a check that is meant to find it.
#![cfg(debug_assertions)]

use std::sync::Mutex;

use tokenspeed_core::bug::Bug;
use tokenspeed_sim::hunt::{expected, hunt};

/// Where the hunt for most bugs begins, short or long.
const MOST: u64 = 2_001_870;

/// Where the short hunt begins. In the range of most of them the rarest come early; these few do not, and take some hundred
/// seeds on average.
fn start(bug: Bug) -> u64 {
    match bug {
        Bug::RelaySlotIsAnothers | Bug::WastedTokenIsHeard | Bug::FreedBeforeTheStepBehind => 0,
        Bug::NothingComesBack | Bug::ForwardPassDecidesWhoSamples => 1_000_000,
        Bug::PageLoadedInVainIsLost | Bug::GuessesOverwriteTheKeptState => 1_000_140,
        Bug::MaskOfTheFirstRowForAll | Bug::RefusalCountsWhoeverWaits => 1_000_190,
        Bug::GuessesTakeOthersPages | Bug::ReturnNeedsNoRoom => 1_000_400,
        Bug::StateGivenUpMeanwhileIsKept => 2_002_600,
        Bug::BoundaryIsIgnored => 2_002_000,
        Bug::AbortEndsTheLoad => 2_000_140,
        _ => rarest(bug).unwrap_or(MOST),
    }
}

/// Faults that the simulator found once in thousands of seeds, and that were mended: where it did.
fn rarest(bug: Bug) -> Option<u64> {
    match bug {
        Bug::ChangesAreForgottenUntold => Some(70_003_150),
        Bug::RestTakesEveryPage => Some(70_003_980),
        _ => None,
    }
}

#[test]
fn every_seeded_bug_is_found() {
    let is_long = std::env::var_os("TOKENSPEED_LONG_TESTS").is_some();
    // Most bugs share a range of either length; the starts of the others were chosen.
    let seeds = if is_long { 1000 } else { 50 };
    let (next, wrong) = (Mutex::new(Bug::ENGINE.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(bug) = next.lock().unwrap().next().copied() else { break };
                    let from = if is_long { rarest(bug).unwrap_or(MOST) } else { start(bug) };
                    let line = match hunt(bug, from, seeds) {
                        None => format!("{} was not found in {seeds} seeds", bug.name()),
                        Some(found) => {
                            let line = format!("{}: {} seeds, {}", bug.name(), found.seeds, found.failure);
                            println!("{line}");
                            if expected(bug).contains(&found.failure.check) {
                                continue;
                            }
                            format!("{line}; expected {:?}", expected(bug))
                        }
                    };
                    wrong.lock().unwrap().push(line);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The list in the documents is the list in the code.
#[test]
fn every_seeded_bug_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reliability.md");
    let text = std::fs::read_to_string(path).unwrap();
    let listed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|l| l.0)
        .filter(|name| !name.contains(' '))
        .collect();
    let bugs: Vec<&str> = Bug::THREADS.iter().chain(Bug::ENGINE).map(|bug| bug.name()).collect();
    assert_eq!(listed, bugs);
}
