//! The workload: coding sessions of many turns, made from a seed.
//!
//! A session begins with a long prompt (system text and tools, which all sessions share, then files and a task); each
//! further turn appends the answer and what the tools returned. Sometimes a turn is asked again, sometimes an older turn
//! is continued in another direction and left there. Content is random numbers, which a target turns into token ids or
//! words: what a prefix cache does depends on lengths and on what is shared, not on meaning.
//!
//! Everything follows from the seed, so two servers, or one server today and tomorrow, see the same requests.

use super::random::Random;

/// Sizes of a workload, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Sessions.
    pub sessions: u32,
    /// Mean length of a first prompt.
    pub first: u32,
    /// Share of the mean first prompt that all sessions begin with, 0 to 1.
    pub shared: f64,
    /// Mean of what a turn adds besides the answer before it.
    pub turn: u32,
    /// Fewest and most turns of a session, forks and retries not counted.
    pub turns: (u32, u32),
    /// Length of each answer.
    pub answer: u32,
    /// Chance that a turn is followed by a retry or a fork, 0 to 1.
    pub forks: f64,
}

impl Sizes {
    /// The same sessions with all lengths multiplied.
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |tokens: u32| ((f64::from(tokens) * factor).round() as u32).max(1);
        Self { first: scale(self.first), turn: scale(self.turn), answer: scale(self.answer), ..self }
    }
}

/// How a turn came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Begins the session.
    First,
    /// Continues it.
    Next,
    /// The turn before it, asked again: the same prompt.
    Retry,
    /// An older turn, continued in another direction.
    Fork,
}

impl Kind {
    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Next => "next",
            Self::Retry => "retry",
            Self::Fork => "fork",
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How it came about.
    pub kind: Kind,
    /// The turn whose prompt and answer it continues.
    pub history: Option<usize>,
    /// What it adds, each to become one token.
    pub new: Vec<u32>,
    /// Tokens of its answer.
    pub answer: u32,
}

/// Requests that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// In order; each is sent when the answer to the one before it is complete.
    pub turns: Vec<Turn>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// How much of each first prompt is the same.
    pub shared: usize,
    /// In the order they are begun.
    pub sessions: Vec<Session>,
}

/// Make the sessions of a seed. `content` changes what is said and nothing else.
pub fn generate(sizes: &Sizes, seed: u64, content: u64) -> Trace {
    let text = |key: u64, n: usize| -> Vec<u32> {
        let mut random = Random::new(seed ^ content.wrapping_mul(0xA076_1D64_78BD_642F), key);
        (0..n).map(|_| random.bits() as u32).collect()
    };
    let shared = (f64::from(sizes.first) * sizes.shared).round() as usize;
    let system = text(0, shared);
    let sessions = (0..sizes.sessions).map(|number| {
        let mut random = Random::new(seed, u64::from(number) + 1);
        let mut n_texts = 0;
        let mut own = |n: usize| {
            n_texts += 1;
            text(u64::from(number + 1) << 32 | n_texts, n)
        };
        let mut turns: Vec<Turn> = Vec::new();
        // Turns that make up the conversation as it goes on.
        let mut line: Vec<usize> = Vec::new();
        let n_turns = random.between(sizes.turns.0, sizes.turns.1);
        for at in 0..n_turns {
            let turn = if at == 0 {
                // A session always says something of its own.
                let length = (random.around(sizes.first, 0.1) as usize).max(shared + 1);
                let new = [system.clone(), own(length - shared)].concat();
                Turn { kind: Kind::First, history: None, new, answer: sizes.answer }
            } else {
                let new = own(random.around(sizes.turn, 0.5) as usize);
                Turn { kind: Kind::Next, history: line.last().copied(), new, answer: sizes.answer }
            };
            line.push(turns.len());
            turns.push(turn);
            if !random.chance(sizes.forks) {
                continue;
            }
            if line.len() < 2 || random.chance(0.5) {
                let again = Turn { kind: Kind::Retry, ..turns[turns.len() - 1].clone() };
                // The session goes on from the second answer.
                line.pop();
                line.push(turns.len());
                turns.push(again);
            } else {
                let from = line[random.between(0, line.len() as u32 - 2) as usize];
                let new = own(random.around(sizes.turn, 0.5) as usize);
                turns.push(Turn { kind: Kind::Fork, history: Some(from), new, answer: sizes.answer });
            }
        }
        Session { turns }
    });
    Trace { shared, sessions: sessions.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes =
        Sizes { sessions: 20, first: 500, shared: 0.3, turn: 40, turns: (4, 7), answer: 10, forks: 0.3 };

    #[test]
    fn a_seed_says_everything() {
        let trace = generate(&SIZES, 7, 0);
        assert_eq!(trace, generate(&SIZES, 7, 0));
        assert_ne!(trace, generate(&SIZES, 8, 0));
        let other = generate(&SIZES, 7, 1);
        let lengths = |trace: &Trace| -> Vec<(Kind, Option<usize>, usize)> {
            trace.sessions.iter().flat_map(|s| &s.turns).map(|t| (t.kind, t.history, t.new.len())).collect()
        };
        assert_eq!(lengths(&trace), lengths(&other), "only the content differs");
        assert_ne!(trace.sessions[0].turns[0].new[0], other.sessions[0].turns[0].new[0]);
    }

    #[test]
    fn sessions_have_the_sizes_asked_for() {
        let trace = generate(&SIZES, 1, 0);
        let mut kinds = std::collections::HashMap::new();
        for session in &trace.sessions {
            let first = &session.turns[0];
            assert!(first.history.is_none() && (450..=550).contains(&first.new.len()), "{}", first.new.len());
            assert_eq!(first.new[..150], trace.sessions[0].turns[0].new[..150], "the shared part");
            let n_line = session.turns.iter().filter(|t| matches!(t.kind, Kind::First | Kind::Next)).count();
            assert!((4..=7).contains(&n_line));
            for (at, turn) in session.turns.iter().enumerate() {
                *kinds.entry(turn.kind).or_insert(0) += 1;
                assert!(turn.history.is_none_or(|from| from < at) && turn.answer == 10);
                match turn.kind {
                    Kind::First | Kind::Next => {}
                    Kind::Retry => {
                        let before = &session.turns[at - 1];
                        assert_eq!((&turn.new, turn.history), (&before.new, before.history));
                    }
                    Kind::Fork => {
                        let others = session.turns.iter().filter(|t| t.history == turn.history);
                        assert!(others.count() >= 2, "the turn it leaves is continued too");
                    }
                }
            }
        }
        let own = |at: usize| &trace.sessions[at].turns[0].new[150..];
        assert_ne!(own(0)[..50], own(1)[..50]);
        assert!(kinds[&Kind::Retry] > 5 && kinds[&Kind::Fork] > 5, "{kinds:?}");
    }

    #[test]
    fn scaling_keeps_at_least_a_token() {
        let scaled = SIZES.scaled(0.01);
        assert_eq!((scaled.first, scaled.turn, scaled.answer, scaled.turns), (5, 1, 1, (4, 7)));
    }
}
