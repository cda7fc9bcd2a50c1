//! Tool results in the order of the calls they answer, each with its tool's name.
//!
//! The model learned results in call order; clients send them in the order they came. Results that follow one another
//! are sorted if every one of them names a call of the last assistant turn by its id; else they stay as they came, and a
//! result takes its name from its own `name` field, or from the call at its place.

use serde_json::Value;

/// A message, and for a tool result its tool and its number among the results of its turn (from 1).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed<'a> {
    /// Where the message stands in the request.
    pub(crate) index: usize,
    pub(crate) message: &'a Value,
    /// Tool results only; the name is `None` when nothing tells it.
    pub(crate) result: Option<(Option<&'a str>, usize)>,
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn call_name(call: &Value) -> Option<&str> {
    text(call.get("function").unwrap_or(call), "name")
}

/// Put results in order; other messages keep their places.
pub(crate) fn place(messages: &[Value]) -> Vec<Placed<'_>> {
    let mut placed: Vec<Placed<'_>> = Vec::with_capacity(messages.len());
    let mut calls: &[Value] = &[];
    let mut number = 0;
    let mut at = 0;
    while at < messages.len() {
        let message = &messages[at];
        let role = text(message, "role");
        if role != Some("tool") {
            if role == Some("assistant") {
                calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice);
                number = 0;
            }
            placed.push(Placed { index: at, message, result: None });
            at += 1;
            continue;
        }
        let end = messages[at..].iter().position(|message| text(message, "role") != Some("tool"));
        let end = end.map_or(messages.len(), |length| at + length);
        let call_of = |message: &Value| {
            let id = text(message, "tool_call_id").or_else(|| text(message, "id"))?;
            calls.iter().position(|call| text(call, "id") == Some(id))
        };
        let found: Option<Vec<usize>> = messages[at..end].iter().map(call_of).collect();
        let mut run: Vec<usize> = (at..end).collect();
        if let Some(found) = &found {
            run.sort_by_key(|index| found[index - at]); // stable: two results of one call keep their order
        }
        for index in run {
            number += 1;
            let message = &messages[index];
            let by_id = found.as_ref().and_then(|found| call_name(&calls[found[index - at]]));
            let name = by_id
                .or_else(|| text(message, "tool").or_else(|| text(message, "name")))
                .or_else(|| calls.get(number - 1).and_then(call_name));
            placed.push(Placed { index, message, result: Some((name, number)) });
        }
        at = end;
    }
    placed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn order(messages: Value) -> Vec<(usize, Option<String>, usize)> {
        let messages = messages.as_array().unwrap().clone();
        let results = place(&messages).into_iter().filter_map(|placed| {
            let (name, number) = placed.result?;
            Some((placed.index, name.map(str::to_owned), number))
        });
        results.collect()
    }

    fn calls() -> Value {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name}});
        json!({"role": "assistant", "tool_calls": [call("a", "first"), call("b", "second"), call("c", "third")]})
    }

    #[test]
    fn results_are_sorted_by_call_when_every_id_is_known() {
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "name": "other", "content": ""});
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(
            order(json!([calls(), result("c"), result("a"), result("b")])),
            [(2, name("first"), 1), (3, name("second"), 2), (1, name("third"), 3)]
        );
        // One unknown id: nothing moves, and names are the results' own.
        assert_eq!(order(json!([calls(), result("c"), result("x")])), [(1, name("other"), 1), (2, name("other"), 2)]);
    }

    #[test]
    fn results_without_a_name_take_that_of_the_call_at_their_place() {
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": ""});
        let name = |name: &str| Some(name.to_owned());
        let user = json!({"role": "user", "content": ""});
        assert_eq!(
            order(json!([calls(), result("x"), user, result("y"), calls(), result("b"), result("b")])),
            [(1, name("first"), 1), (3, name("second"), 2), (5, name("second"), 1), (6, name("second"), 2)]
        );
        assert_eq!(order(json!([result("x")])), [(0, None, 1)]);
    }
}
