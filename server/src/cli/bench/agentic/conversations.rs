//! Recorded conversations: one JSON object per line with `messages` as in the chat API and, if they had any, `tools`.
//!
//! Each assistant message is a turn: the messages before it are the prompt, and the recorded answer, not the one just
//! generated, is part of the next. So a file always gives the same prompts, whatever the model says. A last message that
//! is not the assistant's is a turn too. Only the shape is checked here; the target says what it thinks of the messages.

use std::path::Path;

use serde_json::Value;

use crate::error::CliError;

/// One conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// All of it.
    pub messages: Vec<Value>,
    /// Tool definitions.
    pub tools: Vec<Value>,
    /// For each turn, how many messages are its prompt.
    pub turns: Vec<usize>,
}

/// Read a file. Errors name the line.
pub fn read(path: &Path) -> Result<Vec<Conversation>, CliError> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::usage(format!("cannot read the conversations: {error}"), place.clone(), ""))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(at, line)| {
        parse(line).map_err(|why| {
            let hint = "each line is an object like {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, …]}";
            CliError::usage(format!("line {}: {why}", at + 1), place.clone(), hint)
        })
    });
    let conversations = read.collect::<Result<Vec<_>, _>>()?;
    if conversations.is_empty() {
        return Err(CliError::usage("the file holds no conversation", place, ""));
    }
    Ok(conversations)
}

fn parse(line: &str) -> Result<Conversation, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(mut fields) = value else { return Err("not an object".into()) };
    let Some(Value::Array(messages)) = fields.remove("messages") else {
        return Err("'messages' is missing or no list".into());
    };
    let tools = match fields.remove("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err("'tools' is no list".into()),
    };
    if let Some(unknown) = fields.keys().next() {
        return Err(format!("unknown field '{unknown}'; only 'messages' and 'tools' are read"));
    }
    let mut turns = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let Some(role) = message["role"].as_str() else {
            return Err(format!("messages[{at}] has no role"));
        };
        if role == "assistant" && at > 0 {
            turns.push(at);
        }
    }
    if messages.last().is_some_and(|last| last["role"] != "assistant") {
        turns.push(messages.len());
    }
    if turns.is_empty() {
        return Err("nobody says anything to the assistant".into());
    }
    Ok(Conversation { messages, tools, turns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_a_turn() {
        let line = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},
            {"role":"assistant","content":"b"},{"role":"tool","content":"c"},{"role":"assistant","content":"d"},
            {"role":"user","content":"e"}],"tools":[{"type":"function"}]}"#;
        let conversation = parse(line).expect("well formed");
        assert_eq!((conversation.turns, conversation.tools.len()), (vec![2, 4, 6], 1));
    }

    #[test]
    fn errors_name_the_line() {
        let path = std::env::temp_dir().join(format!("tokenspeed-conversations-{}.jsonl", std::process::id()));
        let good = r#"{"messages":[{"role":"user","content":"a"}]}"#;
        for (bad, why) in [
            ("{", "not JSON"),
            ("[]", "not an object"),
            ("{}", "'messages' is missing"),
            (r#"{"messages":[]}"#, "nobody says anything"),
            (r#"{"messages":[{"content":"a"}]}"#, "messages[0] has no role"),
            (r#"{"messages":[{"role":"user"}],"tools":1}"#, "'tools' is no list"),
            (r#"{"messages":[{"role":"user"}],"model":"x"}"#, "unknown field 'model'"),
        ] {
            std::fs::write(&path, format!("{good}\n\n{bad}\n")).expect("written");
            let error = read(&path).expect_err(bad);
            assert!(error.what.starts_with("line 3: ") && error.what.contains(why), "{error:?}");
            assert!(!error.render().trim_end().trim_matches('\n').contains("\n\n"), "{error:?}");
        }
        std::fs::write(&path, "\n").expect("written");
        assert!(read(&path).expect_err("empty").what.contains("no conversation"));
        std::fs::write(&path, good).expect("written");
        assert_eq!(read(&path).expect("one").len(), 1);
        std::fs::remove_file(&path).expect("removed");
        assert!(read(&path).expect_err("gone").what.contains("cannot read"));
    }
}
