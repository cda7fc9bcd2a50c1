//! How many tests passed and failed, read from what the runners print.

use std::ops::Add;

/// Totals of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed, crashed or could not be run.
    pub failed: usize,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Counts {
    /// A stage that is one test; a failure is printed.
    pub fn of_one(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self { passed: 1, failed: 0 },
            Err(message) => {
                println!("{message}");
                Self { passed: 0, failed: 1 }
            }
        }
    }

    /// Sums the summary lines of nextest, of `cargo test` and of Python's unittest. Nextest prints what a failed test's process
    /// printed, with a summary of that one test, so behind its own summary no other counts.
    pub fn of_output(text: &str) -> Self {
        let mut counts = Self::default();
        let of_nextest = |line: &str| line.starts_with("Summary [") && line.contains("run:");
        let nextest = text.lines().any(|line| of_nextest(line.trim()));
        for line in text.lines().map(str::trim) {
            if of_nextest(line) || !nextest && line.starts_with("test result:") {
                let failed = ["failed", "timed out", "exec failed"].into_iter().map(|what| before(line, what)).sum();
                counts = counts + Self { passed: before(line, "passed"), failed };
            } else if let Some(ran) = line.strip_prefix("Ran ").filter(|l| l.contains(" test")) {
                counts.passed += leading_number(ran);
            } else if let Some(list) = line.strip_prefix("FAILED (") {
                let failed = after(list, "failures=") + after(list, "errors=");
                counts.failed += failed;
                counts.passed = counts.passed.saturating_sub(failed + after(list, "skipped="));
            } else if let Some(list) = line.strip_prefix("OK (") {
                counts.passed = counts.passed.saturating_sub(after(list, "skipped="));
            }
        }
        counts
    }

    /// A runner that failed without a failed test (it did not build, it crashed) counts as one failure.
    pub fn checked(self, succeeded: bool) -> Self {
        if succeeded || self.failed > 0 { self } else { self + Self { passed: 0, failed: 1 } }
    }
}

/// The number in front of `what` where it stands as an item of a list: `3 passed (1 slow), 2 failed`.
fn before(line: &str, what: &str) -> usize {
    let items = line.split([',', ';', ':', '.']).map(str::trim);
    let counts = items.filter_map(|item| {
        let (number, rest) = item.split_once(' ')?;
        let rest = rest.split(" (").next()?;
        if rest == what { number.parse::<usize>().ok() } else { None }
    });
    counts.sum()
}

fn after(list: &str, key: &str) -> usize {
    list.split_once(key).map_or(0, |(_, rest)| leading_number(rest))
}

fn leading_number(text: &str) -> usize {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> (usize, usize) {
        let counts = Counts::of_output(text);
        (counts.passed, counts.failed)
    }

    #[test]
    fn reads_nextest() {
        assert_eq!(counts("     Summary [   0.008s] 5 tests run: 5 passed, 0 skipped"), (5, 0));
        let mixed = " Summary [ 1.2s] 9 tests run: 6 passed (2 slow), 2 failed, 1 timed out, 3 skipped";
        assert_eq!(counts(mixed), (6, 3));
        let shown = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 8 filtered out\n\
                     Summary [ 1.2s] 9 tests run: 8 passed, 1 failed, 3 skipped";
        assert_eq!(counts(shown), (8, 1));
    }

    #[test]
    fn reads_cargo_test_over_several_binaries() {
        let text = "test a ... ok\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(counts(text), (4, 2));
    }

    #[test]
    fn reads_unittest() {
        assert_eq!(counts("Ran 4 tests in 0.1s\n\nOK"), (4, 0));
        assert_eq!(counts("Ran 6 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)"), (2, 3));
        assert_eq!(counts("Ran 3 tests in 0.1s\n\nOK (skipped=1)"), (2, 0));
    }

    #[test]
    fn a_runner_that_never_ran_a_test_is_a_failure() {
        assert_eq!(Counts::of_output("error: could not compile").checked(false).failed, 1);
        assert_eq!(Counts { passed: 1, failed: 2 }.checked(false).failed, 2);
        assert_eq!(Counts { passed: 1, failed: 0 }.checked(true), Counts { passed: 1, failed: 0 });
    }
}
