//! The server's log: one line per event on standard error, as text or as JSON.
//!
//! Written by hand: the server logs about ten kinds of event, and a logging framework would be the largest dependency
//! of this crate.

use std::{
    io::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// `event key=value …`
    #[default]
    Text,
    /// One JSON object per line: `ts` (seconds), `event`, then the fields.
    Json,
}

/// Writes events. Copyable; lines are written whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log {
    format: LogFormat,
}

impl Log {
    /// A log of that format.
    pub fn new(format: LogFormat) -> Self {
        Self { format }
    }

    /// JSON lines were asked for.
    pub fn is_json(self) -> bool {
        self.format == LogFormat::Json
    }

    /// Write one event.
    pub fn event(self, name: &str, fields: &[(&str, &str)]) {
        let mut line = self.line(name, fields);
        line.push('\n');
        // A closed standard error must not stop the server.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn line(self, name: &str, fields: &[(&str, &str)]) -> String {
        if self.is_json() {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
            let mut object = serde_json::Map::new();
            object.insert("ts".into(), serde_json::Value::from((seconds * 1e3).round() / 1e3));
            object.insert("event".into(), name.into());
            for (key, value) in fields {
                object.insert((*key).into(), (*value).into());
            }
            return serde_json::Value::Object(object).to_string();
        }
        let mut line = name.to_owned();
        for (key, value) in fields {
            let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
            if plain {
                line.push_str(&format!(" {key}={value}"));
            } else {
                line.push_str(&format!(" {key}={value:?}"));
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_in_a_value_cannot_forge_a_log_line() {
        let text = Log::new(LogFormat::Text).line("error", &[("what", "a\nready url=evil")]);
        assert_eq!(text, r#"error what="a\nready url=evil""#);
        let json = Log::new(LogFormat::Json).line("error", &[("what", "a\nb")]);
        let parsed: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
        assert_eq!(parsed["what"], "a\nb");
    }
}
