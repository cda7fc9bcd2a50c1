//! Template values as Python writes them: `str()`, `repr()` and `json.dumps`.
//!
//! Chat templates are trained with Python's output, so a `1.0`, a `True` or a list in a prompt must look exactly so.

use std::fmt::Write;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// `repr(float)`: the shortest digits that read back, in exponent form from 1e16 up and below 1e-4.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn is_printable(c: char) -> bool {
    let hidden = c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}');
    !hidden
}

fn write_string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        let result = match c {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\\' => out.write_str("\\\\"),
            c if c == quote => write!(out, "\\{c}"),
            c if is_printable(c) => out.write_char(c),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
        debug_assert!(result.is_ok(), "writing to a string cannot fail");
    }
    out.push(quote);
}

/// Append `repr(value)`.
pub fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => write_string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, out)?;
                count += 1;
            }
            out.push_str(if open == '(' && count == 1 { "," } else { "" });
            out.push(close);
        }
        _ => write_str(value, out)?,
    }
    Ok(())
}

/// Append `str(value)`; an undefined value is empty.
pub fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => {}
        ValueKind::Number if !value.is_integer() => out.push_str(&float_repr(f64::try_from(value.clone())?)),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => write_repr(value, out)?,
        _ => {
            let result = write!(out, "{value}");
            debug_assert!(result.is_ok(), "writing to a string cannot fail");
        }
    }
    Ok(())
}

/// `str(value)`.
pub fn to_str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(value, &mut out)?;
    Ok(out)
}

/// How `json.dumps` is asked to write.
#[derive(Clone, Debug)]
pub struct JsonStyle {
    /// Escape everything outside ASCII.
    pub ensure_ascii: bool,
    /// One item per line, with this in front per level.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: String,
    /// Between key and value.
    pub key_separator: String,
    /// Order keys.
    pub sort_keys: bool,
    /// Characters never escaped: stand-ins that turn into other characters later.
    pub untouched: std::ops::Range<u32>,
}

/// `json.dumps(value)`.
pub fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{C}' => out.push_str("\\f"),
            _ if code < 0x20 || (style.ensure_ascii && code > 0x7E && !style.untouched.contains(&code)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

fn line(style: &JsonStyle, level: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..level).for_each(|_| out.push_str(indent));
    }
}

/// `level`: how deep `value` lies.
fn write_json(value: &Value, style: &JsonStyle, level: usize, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => write_str(value, out)?,
        ValueKind::Number => {
            let number = f64::try_from(value.clone())?;
            out.push_str(&match number {
                n if n.is_nan() => "NaN".into(),
                n if n.is_infinite() => {
                    if n > 0.0 {
                        "Infinity".into()
                    } else {
                        "-Infinity".into()
                    }
                }
                n => float_repr(n),
            });
        }
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            if items.is_empty() {
                out.push_str("[]");
                return Ok(());
            }
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { &style.item_separator } else { "" });
                line(style, level + 1, out);
                write_json(item, style, level + 1, out)?;
            }
            line(style, level, out);
            out.push(']');
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                let text = match key.kind() {
                    ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                    ValueKind::None | ValueKind::Bool | ValueKind::Number => to_json(&key, style)?,
                    kind => return Err(not_json(format!("a key of type {kind}"))),
                };
                entries.push((text, value.get_item(&key)?));
            }
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            if entries.is_empty() {
                out.push_str("{}");
                return Ok(());
            }
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { &style.item_separator } else { "" });
                line(style, level + 1, out);
                write_json_string(key, style, out);
                out.push_str(&style.key_separator);
                write_json(item, style, level + 1, out)?;
            }
            line(style, level, out);
            out.push('}');
        }
        kind => return Err(not_json(format!("a value of type {kind}"))),
    }
    Ok(())
}

fn not_json(what: String) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {what} has no JSON form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected strings from CPython 3.11's `repr`.
    #[test]
    fn floats_look_like_python() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(float_repr(value), expected);
        }
    }
}
