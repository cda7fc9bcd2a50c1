//! Python string methods that templates use and `minijinja_contrib::pycompat` lacks or does otherwise.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, ValueKind, from_args},
};

/// Every method name that can be called on a value.
const KNOWN: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "get",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "items",
    "join",
    "keys",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "values",
    "zfill",
];

/// Methods that change a list or dict. Templates may not call them (Python's immutable sandbox refuses too, when the
/// branch is reached), so a template that only contains one still loads.
const MUTATORS: &[&str] =
    &["append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"];

/// True for names that some value has as a method, for the check at load.
pub fn exists(method: &str) -> bool {
    KNOWN.contains(&method) || MUTATORS.contains(&method)
}

/// Called for a method that the value itself does not have.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let handled = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => string_method(text, method, args)?,
        (ValueKind::Seq, _) if method == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            Some(at.map(Value::from).ok_or_else(|| missing("list.index", &wanted))?)
        }
        _ => None,
    };
    let changes = MUTATORS.contains(&method) && matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
    match handled {
        Some(result) => Ok(result),
        None if changes => {
            let cause = format!("{method}: templates may not change lists and dicts; build a new one instead");
            Err(Error::new(ErrorKind::InvalidOperation, cause))
        }
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn missing(method: &str, wanted: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{method}: {wanted} is not there"))
}

/// What Python's `str.strip()` and `str.split()` take for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

fn strings(parts: impl IntoIterator<Item = impl Into<String>>) -> Value {
    parts.into_iter().map(|part| Value::from(part.into())).collect()
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (set,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
            let start = if method == "rstrip" { text } else { text.trim_start_matches(cut) };
            Value::from(if method == "lstrip" { start } else { start.trim_end_matches(cut) })
        }
        "split" | "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let limit = usize::try_from(limit.unwrap_or(-1)).ok();
            strings(split(text, separator, limit, method == "rsplit")?)
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            strings(split_lines(text, keep.unwrap_or(false)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = match (separator.is_empty(), method) {
                (true, _) => return Err(empty_separator()),
                (_, "partition") => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            let parts = match (found, method) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(wanted) } else { text.rfind(wanted) };
            let at = at.ok_or_else(|| missing(method, &Value::from(wanted)))?;
            Value::from(text[..at].chars().count())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            pad(text, width, fill.unwrap_or(" "), method)?
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = match text.chars().next() {
                Some('+' | '-') => text.split_at(1),
                _ => ("", text),
            };
            let zeros = zeros(width, text)?;
            Value::from(format!("{sign}{zeros}{digits}"))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap =
                |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// A width a template may pad to; more is a mistake or an attack.
const WIDTH_MAX: usize = 1 << 20;

fn missing_width(width: usize, text: &str) -> Result<usize, Error> {
    if width > WIDTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("cannot pad to {width} characters")));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

fn zeros(width: usize, text: &str) -> Result<String, Error> {
    Ok("0".repeat(missing_width(width, text)?))
}

fn pad(text: &str, width: usize, fill: &str, method: &str) -> Result<Value, Error> {
    if fill.chars().count() != 1 {
        return Err(Error::new(ErrorKind::InvalidOperation, "the fill must be one character"));
    }
    let missing = missing_width(width, text)?;
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython puts the odd one left when both the width and what is missing are odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))))
}

fn empty_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "empty separator")
}

fn split<'a>(
    text: &'a str,
    separator: Option<&str>,
    limit: Option<usize>,
    from_right: bool,
) -> Result<Vec<&'a str>, Error> {
    let count = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    match separator {
        Some("") => Err(empty_separator()),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(count, separator).collect();
            parts.reverse();
            Ok(parts)
        }
        Some(separator) => Ok(text.splitn(count, separator).collect()),
        None if from_right => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while let (Some(at), true) = (rest.rfind(is_space), parts.len() + 1 < count) {
                let after = at + rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[after..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            parts.extend((!rest.trim_start_matches(is_space).is_empty()).then_some(rest));
            parts.reverse();
            Ok(parts)
        }
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while let (Some(at), true) = (rest.find(is_space), parts.len() + 1 < count) {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            Ok(parts)
        }
    }
}

fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let c = rest[at..].chars().next().unwrap_or('\n');
        let end = if rest[at..].starts_with("\r\n") { at + 2 } else { at + c.len_utf8() };
        lines.push(if keep { &rest[..end] } else { &rest[..at] });
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
