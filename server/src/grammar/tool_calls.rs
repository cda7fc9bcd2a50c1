//! Tool calls as grammars, in each format that the parsers read.

use serde_json::Value;

use super::{
    Calls, GrammarError,
    text::{json_of, literal, mark},
    vocabulary::Specials,
};

/// `call` once, or as often as wished.
fn repeated(calls: &Calls, separator: &str) -> String {
    if calls.many { format!("call ({separator} call)*") } else { "call".into() }
}

/// `<tool_call>` around `{"name": …, "arguments": …}`, spaced as models are trained to. The arguments are a grammar of
/// their own, because references in a tool's schema start at that schema.
pub(super) fn hermes(calls: &Calls, specials: &Specials) -> String {
    let any: Vec<String> = (0..calls.tools.len()).map(|at| format!("object_{at}")).collect();
    let (open, close) = (mark("<tool_call>", specials), mark("</tool_call>", specials));
    let mut lark = format!(
        "calls: {}\ncall: {open} \"\\n\"? ({}) \"\\n\"? {close}\n",
        repeated(calls, "\"\\n\"?"),
        any.join(" | ")
    );
    for (at, (name, parameters)) in calls.tools.iter().enumerate() {
        let head = literal(&format!("{{\"name\": {}, \"arguments\": ", Value::from(name.as_str())));
        lark.push_str(&format!("object_{at}: {head} arguments_{at} \"}}\"\n"));
        lark.push_str(&format!("arguments_{at}: {}\n", json_of(parameters)));
    }
    lark
}

fn must(text: &str, specials: &Specials) -> Result<String, GrammarError> {
    let missing = || GrammarError::Unsupported(format!("this model's vocabulary has no special token '{text}'"));
    specials.id_of(text).map(|id| format!("<[{id}]>")).ok_or_else(missing)
}

/// Kimi K2: sections of special tokens, `functions.NAME:INDEX` and a JSON object.
pub(super) fn sections(calls: &Calls, specials: &Specials) -> Result<String, GrammarError> {
    let token = |text: &str| must(text, specials);
    let mut lark = format!(
        "calls: {} {} {}\n",
        token("<|tool_calls_section_begin|>")?,
        repeated(calls, ""),
        token("<|tool_calls_section_end|>")?
    );
    let any: Vec<String> = (0..calls.tools.len()).map(|at| format!("call_{at}")).collect();
    lark.push_str(&format!("call: {}\n", any.join(" | ")));
    for (at, (name, parameters)) in calls.tools.iter().enumerate() {
        lark.push_str(&format!(
            "call_{at}: {} {} NUMBER {} arguments_{at} {}\narguments_{at}: {}\n",
            token("<|tool_call_begin|>")?,
            literal(&format!("functions.{name}:")),
            token("<|tool_call_argument_begin|>")?,
            token("<|tool_call_end|>")?,
            json_of(parameters)
        ));
    }
    lark.push_str("NUMBER: /[0-9]{1,4}/\n");
    Ok(lark)
}

/// An argument's kind in XTML and the grammar of its body; `None` where only JSON as a whole can say it.
fn argument(schema: &Value) -> Option<(&'static str, String)> {
    let map = schema.as_object()?;
    let kind = map.get("type")?.as_str()?;
    if map.contains_key("$ref") {
        return None;
    }
    if kind != "string" {
        let kind = match kind {
            "integer" | "number" => "number",
            "boolean" => "boolean",
            "null" => "null",
            "object" => "object",
            "array" => "array",
            _ => return None,
        };
        return Some((kind, json_of(schema)));
    }
    // The body of a string is the text itself, so rules for JSON strings do not apply to it.
    let free = ["type", "description", "title", "default", "examples", "enum"];
    if map.keys().any(|key| !free.contains(&key.as_str())) {
        return None;
    }
    match map.get("enum") {
        None => Some(("string", "FREE".into())),
        Some(values) => {
            let texts: Option<Vec<String>> = values.as_array()?.iter().map(|v| v.as_str().map(literal)).collect();
            Some(("string", texts?.join(" | ")))
        }
    }
}

/// `&` and `"` of attributes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;")
}

/// The elements of a call, argument by argument as the model was trained to; `None` where a schema says more than that
/// can express. References into `$defs` are such a case.
fn arguments(at: usize, parameters: &Value, marks: &[String; 3]) -> Option<String> {
    let [open, close, sep] = marks;
    let map = parameters.as_object()?;
    let plain = ["type", "properties", "required", "additionalProperties", "description", "title", "$schema"];
    if map.keys().any(|key| !plain.contains(&key.as_str())) || parameters.to_string().contains("\"$ref\"") {
        return None;
    }
    let empty = serde_json::Map::new();
    let properties = map.get("properties").map_or(Some(&empty), Value::as_object)?;
    let required: Vec<&str> =
        map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if required.iter().any(|name| !properties.contains_key(*name)) {
        return None;
    }
    let (mut elements, mut rules) = (String::new(), String::new());
    for (number, (key, schema)) in properties.iter().enumerate() {
        let (kind, body) = argument(schema)?;
        let head = literal(&format!("argument key=\"{}\" type=\"{kind}\"", escaped(key)));
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        elements.push_str(&format!(" argument_{at}_{number}{optional}"));
        rules.push_str(&format!(
            "argument_{at}_{number}: {open} {head} {sep} value_{at}_{number} {close} \"argument\" {sep}\n\
             value_{at}_{number}: {body}\n"
        ));
    }
    let elements = if elements.is_empty() { " \"\"".into() } else { elements };
    Some(format!("arguments_{at}:{elements}\n{rules}"))
}

/// Kimi K3: channels `think`, `response` and `tools`.
pub(super) fn xtml(
    text: Option<&str>,
    calls: Option<&Calls>,
    in_reasoning: bool,
    specials: &Specials,
) -> Result<String, GrammarError> {
    let marks = [must("<|open|>", specials)?, must("<|close|>", specials)?, must("<|sep|>", specials)?];
    let [open, close, sep] = &marks;
    let opened = |name: &str| format!("{open} {} {sep}", literal(name));
    let closed = |name: &str| format!("{close} {} {sep}", literal(name));
    let end = closed("message");
    // Thinking leads to any channel; without it the answer starts inside `response`.
    let (thoughts, into_response) =
        if in_reasoning { (format!("FREE {}", closed("think")), opened("response")) } else { Default::default() };
    let mut alternatives = Vec::new();
    let mut rules = String::new();
    if let Some(text) = text {
        alternatives.push(format!("{into_response} text {}", closed("response")));
        rules.push_str(&format!("text: {text}\n"));
    }
    if let Some(calls) = calls {
        let said = format!("{into_response} FREE {}", closed("response"));
        let said = match (in_reasoning, text) {
            // With a form for text, there is no other text.
            (true, Some(_)) => String::new(),
            (false, Some(_)) => closed("response"),
            (true, None) => format!("({said})?"),
            (false, None) => said,
        };
        alternatives.push(format!("{said} {} calls {}", opened("tools"), closed("tools")));
        let any: Vec<String> = (0..calls.tools.len()).map(|at| format!("call_{at}")).collect();
        rules.push_str(&format!("calls: {}\ncall: {}\n", repeated(calls, ""), any.join(" | ")));
        for (at, (name, parameters)) in calls.tools.iter().enumerate() {
            let head = literal(&format!("call tool=\"{}\" index=\"", escaped(name)));
            rules.push_str(&format!(
                "call_{at}: {open} {head} NUMBER \"\\\"\" {sep} arguments_{at} {}\n",
                closed("call")
            ));
            let whole = || {
                let head = literal("json type=\"object\"");
                format!(
                    "arguments_{at}: {open} {head} {sep} json_{at} {}\njson_{at}: {}\n",
                    closed("json"),
                    json_of(parameters)
                )
            };
            rules.push_str(&arguments(at, parameters, &marks).unwrap_or_else(whole));
        }
        rules.push_str("NUMBER: /[1-9][0-9]{0,3}/\n");
    }
    Ok(format!("start: {thoughts} ({}) {end}\nFREE: /(?s:.*)/\n{rules}", alternatives.join(" | ")))
}
