//! Errors of the command line: what went wrong, where, and what to do.

/// What a command ends with when it does not succeed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what}{}", in_brackets(.place))]
pub struct CliError {
    /// What is wrong, one line.
    pub what: String,
    /// File, address or argument concerned; may be empty.
    pub place: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// Process exit code: 1 for failures, 2 for wrong usage.
    pub exit_code: u8,
}

fn in_brackets(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(" ({place})") }
}

impl CliError {
    /// A failure.
    pub fn new(what: impl Into<String>, place: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), place: place.into(), hint: hint.into(), exit_code: 1 }
    }

    /// Wrong arguments.
    pub fn usage(what: impl Into<String>, place: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit_code: 2, ..Self::new(what, place, hint) }
    }

    /// The text for the terminal: `error: what (where)` and, if there is one, `  hint: …`.
    pub fn render(&self) -> String {
        let mut text = format!("error: {self}");
        if !self.hint.is_empty() {
            text.push_str("\n  hint: ");
            text.push_str(&self.hint);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_what_where_and_hint() {
        let error = CliError::new("cannot read the model", "m.gguf", "check the path");
        assert_eq!(error.render(), "error: cannot read the model (m.gguf)\n  hint: check the path");
        assert_eq!(CliError::new("gone", "", "").render(), "error: gone");
    }
}
