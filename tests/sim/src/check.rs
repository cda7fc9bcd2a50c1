//! What can be found wrong, and the finding.

/// The property that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// The parameter block: rows, tokens, positions, chunk ends.
    Step,
    /// Block tables: a change outside them, a page that another request or the cache owns is written.
    Table,
    /// A cache row is not the one of this history.
    Page,
    /// A recurrent state is not the one of this history, or a slot is used twice.
    State,
    /// A row of the side tables does not say what its request asks for.
    Side,
    /// Values of a step went to the wrong place on their way to the logits.
    Flow,
    /// A request heard something else than alone.
    Heard,
    /// Free, held and cached do not add up.
    Conservation,
    /// Block events tell something else than is cached.
    Events,
    /// Host memory: something is found there that has not arrived whole, or is never fetched.
    Tier,
    /// Who goes first.
    Order,
    /// Somebody is refused who would have started in time, or taken who would not.
    Refusal,
    /// A prefix that must be cached was not found.
    Hit,
    /// The rest of a prompt, less than a page, has no memory reserved with the chunk before it.
    Tail,
    /// The same requests lose their memory again and again.
    Thrash,
    /// A request did not end within its bound.
    Progress,
    /// Something is left over when all is done, or counted wrongly.
    Baseline,
    /// Faults at load are not reported as they should.
    Load,
    /// An assertion of the engine itself.
    Assertion,
    /// The same scenario twice did not give the same steps.
    Repeat,
    /// Another configuration gave other text.
    Variant,
}

impl Check {
    /// As written in `docs/reliability.md`.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub check: Check,
    /// Words.
    pub what: String,
}

impl Failure {
    /// With words.
    pub fn new(check: Check, what: impl Into<String>) -> Self {
        Self { check, what: what.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check.name(), self.what)
    }
}

/// Fails with words unless the condition holds.
pub(crate) fn ensure(holds: bool, check: Check, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(check, what())) }
}
