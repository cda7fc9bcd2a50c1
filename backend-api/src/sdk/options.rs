//! `--backend-option KEY=VALUE`, taken one by one so that none is silently ignored.

use super::fault::Fault;

/// The options of a device. Take the ones you know, then call [`Options::finish`].
#[derive(Clone, Debug)]
pub struct Options<'a> {
    left: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Options<'a> {
    /// Refuses a key given twice.
    pub fn new(options: &[(&'a str, &'a str)]) -> Result<Self, Fault> {
        for (i, (key, _)) in options.iter().enumerate() {
            if options[..i].iter().any(|(k, _)| k == key) {
                return Err(Fault::invalid(format!("option `{key}` is given twice")));
            }
        }
        Ok(Self { left: options.to_vec(), known: Vec::new() })
    }

    /// The value of `key`.
    pub fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.swap_remove(at).1)
    }

    /// The value of `key`, parsed; `default` if absent. `expected` completes "expected …".
    pub fn parse<T: std::str::FromStr>(&mut self, key: &'static str, expected: &str, default: T) -> Result<T, Fault> {
        match self.text(key) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| Fault::invalid(format!("option {key}={text}: expected {expected}"))),
        }
    }

    /// The value of `key`, one of `choices`; the first is the default.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Result<T, Fault> {
        let Some(text) = self.text(key) else { return Ok(choices[0].1) };
        choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(n, _)| *n).collect();
            Fault::invalid(format!("option {key}={text}: expected one of {}", names.join(", ")))
        })
    }

    /// Refuses what is left over, naming what would have been known.
    pub fn finish(self) -> Result<(), Fault> {
        let Some((key, value)) = self.left.first() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        Err(Fault::invalid(format!("unknown option {key}={value}; known options: {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_used_or_refused() {
        let mut o = Options::new(&[("threads", "4"), ("mode", "fast"), ("colour", "red")]).unwrap();
        assert_eq!(o.parse("threads", "a count", 1usize).unwrap(), 4);
        assert!(o.choice("mode", &[("exact", false), ("fast", true)]).unwrap());
        let message = o.finish().unwrap_err().message;
        assert_eq!(message, "unknown option colour=red; known options: threads, mode");
    }

    #[test]
    fn bad_values_are_named() {
        let mut o = Options::new(&[("threads", "many"), ("mode", "odd")]).unwrap();
        assert_eq!(o.parse("threads", "a count", 1usize).unwrap_err().message, "option threads=many: expected a count");
        assert!(o.choice("mode", &[("exact", 0)]).unwrap_err().message.ends_with("expected one of exact"));
        assert!(Options::new(&[("a", "1"), ("a", "2")]).is_err());
    }
}
