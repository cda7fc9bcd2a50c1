//! Launch shapes as the manifest states them: a formula per axis, evaluated to hold the planner's grids against it.
//!
//! A formula is made of whole numbers, the kernel's integer arguments and constants, and counts of the step: `tokens`, `requests`,
//! `logit rows`, and `rows`, what the arguments `count_word` and `count_fixed` count. There is `+`, `*`, `/` (a launch with a remainder is
//! wrong), `ceil(a/b)`, and `sum(f)`: the sum of f over the arguments n0, n1 and so on, each called `ni` in it. Names of [`PLANNED`]
//! stand for what no launch says by itself, tiles of sorted routes or shares of attention: of these axes the planner knows
//! more than the manifest, and they are not compared. Nor are axes of which a launch takes a part ([`super::Extent::Part`]).
//!
//! Decision: a grid that differs is refused in every build, when a program is prepared. Kernels of another version whose tiles are others
//! would leave out rows or columns, or read what is not there, and a hundred formulas take no time. Rejected: making the grids
//! from the formulas: their extents would have to say what counts them, which is [`super::Extent`] once more, in text.

use std::{iter::Peekable, str::Chars};

/// Names whose value the planner alone knows; `rows` and `H`, heads, where no argument says so.
const PLANNED: [&str; 10] =
    ["H", "tiles", "query tiles", "groups", "pairs", "jobs", "positions", "routes", "programs", "rows"];

/// What a formula says: a fraction, or nothing that can be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Known(u64, u64),
    Planned,
}

impl Value {
    fn with(self, other: Self, f: impl Fn([u64; 2], [u64; 2]) -> [u64; 2]) -> Self {
        match (self, other) {
            (Self::Known(a, b), Self::Known(c, d)) => {
                let [up, down] = f([a, b], [c, d]);
                Self::Known(up, down)
            }
            _ => Self::Planned,
        }
    }
}

/// Work-groups along an axis by its formula; `None` where only the planner knows.
///
/// # Errors
/// What is wrong with the formula: a name that nobody knows, a division that leaves a remainder, its form.
pub(super) fn groups(formula: &str, name: &dyn Fn(&str) -> Option<u64>) -> Result<Option<u64>, String> {
    let mut parser = Parser { rest: formula.chars().peekable(), name };
    let value = parser.sum()?;
    match (parser.rest.next(), value) {
        (Some(left), _) => Err(format!("`{left}` where it should end")),
        (None, Value::Planned) => Ok(None),
        (None, Value::Known(_, 0)) => Err("divides by zero".into()),
        (None, Value::Known(up, down)) if up % down == 0 => Ok(Some(up / down)),
        (None, Value::Known(up, down)) => Err(format!("{up} is no multiple of {down}")),
    }
}

struct Parser<'t, 'n> {
    rest: Peekable<Chars<'t>>,
    name: &'n dyn Fn(&str) -> Option<u64>,
}

impl Parser<'_, '_> {
    fn next_is(&mut self, wanted: char) -> bool {
        while self.rest.next_if_eq(&' ').is_some() {}
        self.rest.next_if_eq(&wanted).is_some()
    }

    fn closed(&mut self, value: Value) -> Result<Value, String> {
        if self.next_is(')') { Ok(value) } else { Err("a `)` is missing".into()) }
    }

    fn sum(&mut self) -> Result<Value, String> {
        let mut value = self.product()?;
        while self.next_is('+') {
            value = value.with(self.product()?, |[a, b], [c, d]| [a * d + c * b, b * d]);
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Value, String> {
        let mut value = self.factor()?;
        loop {
            if self.next_is('*') {
                value = value.with(self.factor()?, |[a, b], [c, d]| [a * c, b * d]);
            } else if self.next_is('/') {
                value = value.with(self.factor()?, |[a, b], [c, d]| [a * d, b * c]);
            } else {
                return Ok(value);
            }
        }
    }

    fn factor(&mut self) -> Result<Value, String> {
        if self.next_is('(') {
            let value = self.sum()?;
            return self.closed(value);
        }
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ' ')) {
            word.push(c);
        }
        let word = word.trim();
        if word == "ceil" && self.next_is('(') {
            let value = match self.sum()? {
                Value::Known(_, 0) => return Err("divides by zero".into()),
                Value::Known(up, down) => Value::Known(up.div_ceil(down), 1),
                Value::Planned => Value::Planned,
            };
            return self.closed(value);
        }
        if word == "sum" && self.next_is('(') {
            return self.over_all();
        }
        if let Ok(number) = word.parse() {
            return Ok(Value::Known(number, 1));
        }
        match (self.name)(word) {
            Some(value) => Ok(Value::Known(value, 1)),
            None if PLANNED.contains(&word) => Ok(Value::Planned),
            None => Err(format!("`{word}` is neither an argument nor a constant nor a count")),
        }
    }

    /// What stands in `sum(…)`, once for every n0, n1 and so on.
    fn over_all(&mut self) -> Result<Value, String> {
        let (start, mut total) = (self.rest.clone(), Value::Known(0, 1));
        for i in 0.. {
            let Some(n) = (self.name)(&format!("n{i}")) else {
                if i == 0 {
                    return Err("a sum over nothing".into());
                }
                break;
            };
            let outer = self.name;
            let name = |word: &str| if word == "ni" { Some(n) } else { outer(word) };
            let mut inner = Parser { rest: start.clone(), name: &name };
            total = total.with(inner.sum()?, |[a, b], [c, d]| [a * d + c * b, b * d]);
            self.rest = inner.rest;
        }
        self.closed(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(formula: &str) -> Result<Option<u64>, String> {
        let known = [("N", 100), ("BN", 64), ("logit rows", 7), ("n0", 16), ("n1", 17), ("n2", 0), ("ABSORB", 1)];
        groups(formula, &|word| known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value))
    }

    #[test]
    fn formulas_are_arithmetic() {
        for (formula, value) in [
            ("1", 1),
            ("ceil(N/BN)", 2),
            ("8*ceil((ceil(N/BN) + ceil(2*N/BN))/8)", 8),
            ("logit rows", 7),
            ("ceil(logit rows/4)", 2),
            ("sum(ceil(ni/16))", 3),
            ("8*ceil(sum(ceil(ni/16))/8)", 8),
            ("1 + ceil(N/BN)", 3),
            ("BN/16*ceil(N/BN)+ABSORB", 9),
        ] {
            assert_eq!(of(formula), Ok(Some(value)), "{formula}");
        }
        assert_eq!(of("ceil(tiles/BN)"), Ok(None));
        assert_eq!(of("rows"), Ok(None), "no argument says what it counts");
    }

    #[test]
    fn what_is_no_formula_says_why() {
        for (formula, why) in [
            ("N/BN", "100 is no multiple of 64"),
            ("ceil(M/BN)", "`M` is neither"),
            ("ceil(N/BN", "`)` is missing"),
            ("N)", "`)` where it should end"),
            ("N/n2", "divides by zero"),
            ("ceil(N/n2)", "divides by zero"),
            ("", "`` is neither"),
        ] {
            assert!(of(formula).unwrap_err().contains(why), "{formula}: {:?}", of(formula));
        }
        assert_eq!(groups("sum(ni)", &|_| None), Err("a sum over nothing".into()));
    }
}
