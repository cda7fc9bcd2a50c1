//! What a chat looks like in XTML, and what cannot be forged.

use serde_json::json;

use super::*;
use crate::text::{Controls, SpecialText, kimi::tiny_tokenizer};

/// Made-up texts in the layout of the checkpoint's file.
fn texts() -> PromptTexts {
    PromptTexts::of_source(
        "made-up",
        "a = f'E `thinking_effort={e}`.'\nb = f'T:\\n```json\\n{t}\\n```'\nc = f'More T:\\n```json\\n{t}\\n```'\n\
         d = f'`tool_choice={x}`'\ne = '`response_format=json_object`'\n\
         f = f'`response_format=json_schema`\\n```json\\n{s}\\n```'\n",
    )
}

fn chat(messages: &[Value]) -> XtmlChat<'_> {
    XtmlChat {
        messages,
        tools: &[],
        tool_use: ToolUse::Free,
        answer_form: AnswerForm::Text,
        thinking: true,
        effort: None,
        add_generation_prompt: true,
    }
}

fn shown(chat: &XtmlChat<'_>) -> String {
    segments(&texts(), chat).unwrap().shown()
}

fn refused(chat: &XtmlChat<'_>) -> String {
    segments(&texts(), chat).unwrap_err().to_string()
}

/// Short marks instead of the long markers: `<tag a="b">`, `</tag>`, and `|` at the end of a message.
fn short(text: &str) -> String {
    let open = text.replace("<|open|>", "<").replace("<|close|>", "</").replace("<|end_of_msg|>", "|");
    open.replace("<|sep|>", ">")
}

#[test]
fn settings_stand_before_and_after_the_conversation() {
    let messages = [json!({"role": "user", "content": "hi", "name": "A\"&"})];
    let tools = [
        json!({"type": "function", "function": {"name": "f", "description": "é 中", "parameters": {"b": 1.0, "a": {}}}}),
    ];
    let schema = json!({"z": [1, true], "a": null});
    let all = XtmlChat {
        tools: &tools,
        tool_use: ToolUse::Required,
        answer_form: AnswerForm::Schema(&schema),
        effort: Some(Effort::Low),
        ..chat(&messages)
    };
    assert_eq!(
        short(&shown(&all)),
        "<message role=\"system\" type=\"tool-declare\">T:\n```json\n\
         [{\"function\":{\"description\":\"é 中\",\"name\":\"f\",\"parameters\":{\"a\":{},\"b\":1.0}},\"type\":\"function\"}]\n```</message>|\
         <message role=\"system\" type=\"thinking-effort\">E `thinking_effort=low`.</message>|\
         <message role=\"user\" name=\"A&quot;&amp;\">hi</message>|\
         <message role=\"system\" type=\"tool-choice\">`tool_choice=required`</message>|\
         <message role=\"system\" type=\"response-format\">`response_format=json_schema`\n```json\n{\"a\":null,\"z\":[1,true]}\n```</message>|\
         <message role=\"assistant\"><think>"
    );
    let none = XtmlChat {
        tool_use: ToolUse::Forbidden,
        answer_form: AnswerForm::Json,
        thinking: false,
        effort: Some(Effort::Max),
        ..chat(&messages)
    };
    let text = short(&shown(&none));
    let settings = "<message role=\"system\" type=\"tool-choice\">`tool_choice=none`</message>|\
                    <message role=\"system\" type=\"response-format\">`response_format=json_object`</message>|";
    assert!(text.contains(settings), "{text}");
    assert!(text.ends_with("|<message role=\"assistant\"><response>") && !text.contains("thinking"), "{text}");
    let bare = XtmlChat { add_generation_prompt: false, ..chat(&messages) };
    assert_eq!(short(&shown(&bare)), "<message role=\"user\" name=\"A&quot;&amp;\">hi</message>|");
}

#[test]
fn an_assistant_turn_has_its_channels_and_typed_arguments() {
    let arguments = r#"{"s": "a \"b\" & c", "n": 1.50, "t": true, "z": null, "o": {"b": [1, 2], "a": "é"}, "l": []}"#;
    let call = |id: &str, arguments: Value| json!({"id": id, "function": {"name": "f", "arguments": arguments}});
    let messages = [
        json!({"role": "assistant", "content": null, "reasoning_content": "why", "tool_calls": [
            call("a", arguments.into()), call("b", "{oops".into()), call("c", "".into()), call("d", json!({"k": 1})),
        ]}),
        json!({"role": "assistant", "content": [{"type": "text", "text": "x "}, {"type": "text", "text": "y"}], "reasoning_content": " \n"}),
    ];
    let with = XtmlChat { add_generation_prompt: false, ..chat(&messages) };
    assert_eq!(
        short(&shown(&with)),
        "<message role=\"assistant\"><think>why</think><response></response><tools>\
         <call tool=\"f\" index=\"1\"><argument key=\"s\" type=\"string\">a \"b\" & c</argument>\
         <argument key=\"n\" type=\"number\">1.5</argument><argument key=\"t\" type=\"boolean\">true</argument>\
         <argument key=\"z\" type=\"null\">null</argument>\
         <argument key=\"o\" type=\"object\">{\"b\": [1, 2], \"a\": \"é\"}</argument>\
         <argument key=\"l\" type=\"array\">[]</argument></call>\
         <call tool=\"f\" index=\"2\"><json type=\"object\">{oops</json></call><call tool=\"f\" index=\"3\"></call>\
         <call tool=\"f\" index=\"4\"><argument key=\"k\" type=\"number\">1</argument></call></tools></message>|\
         <message role=\"assistant\"><think></think><response>x y</response></message>|"
    );
    let without = XtmlChat { thinking: false, ..with };
    assert!(!shown(&without).contains("think"), "{}", shown(&without));
}

#[test]
fn tool_results_follow_the_calls_and_later_tools_are_declared() {
    let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": "{}"}});
    let messages = [
        json!({"role": "assistant", "content": "", "tool_calls": [call("1", "f"), call("2", "g")]}),
        json!({"role": "tool", "tool_call_id": "2", "content": "two"}),
        json!({"role": "tool", "tool_call_id": "1", "content": "one"}),
        json!({"role": "developer", "content": "", "tools": [{"b": 1, "a": 2}]}),
        json!({"role": "developer", "content": "more"}),
    ];
    let text = short(&shown(&chat(&messages)));
    assert!(text.contains(
        "<message role=\"tool\" tool=\"f\" index=\"1\">one</message>|<message role=\"tool\" tool=\"g\" index=\"2\">two</message>|\
         <message role=\"system\" type=\"tool-declare\">More T:\n```json\n[{\"a\":2,\"b\":1}]\n```</message>|\
         <message role=\"system\">more</message>|"
    ), "{text}");
}

#[test]
fn malformed_messages_are_refused_by_place() {
    let of = |message: Value| refused(&chat(&[json!({"role": "user", "content": ""}), message]));
    assert_eq!(of(json!({"content": ""})), "messages[1] has no role");
    assert!(of(json!({"role": "owner", "content": ""})).contains("has role \"owner\""));
    assert!(of(json!({"role": "user", "content": 1})).contains("content is neither"));
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
    assert!(of(image).contains("content[0] is of type Some(\"image_url\"); this model reads text only"));
    assert!(of(json!({"role": "tool", "content": ""})).contains("has no tool name"));
    assert!(of(json!({"role": "user", "content": "", "tools": [1]})).contains("only a system message"));
    assert!(of(json!({"role": "system", "content": "x", "tools": [1]})).contains("tools and content"));
    assert!(of(json!({"role": "system", "content": "", "tools": {}})).contains("no list"));
    let calls = |call: Value| of(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    assert!(calls(json!({"function": {}})).contains("tool_calls[0].function has no name"));
    assert!(calls(json!({"function": {"name": "f", "arguments": "[1]"}})).contains("is not a JSON object"));
    assert!(calls(json!({"function": {"name": "f", "arguments": 1}})).contains("neither a JSON string nor an object"));
}

/// Every place of a request that holds a caller's text.
fn request_saying(text: &str) -> (Vec<Value>, Vec<Value>) {
    let messages = vec![
        json!({"role": "system", "content": text, "name": text}),
        json!({"role": "user", "content": [{"type": "text", "text": text}], "name": text}),
        json!({"role": "assistant", "content": text, "reasoning_content": text, "name": text, "tool_calls": [
            {"id": text, "function": {"name": text, "arguments": json!({text: text, "o": {text: text}}).to_string()}},
            {"id": "b", "function": {"name": text, "arguments": format!("{{oops{text}")}},
        ]}),
        json!({"role": "tool", "tool_call_id": text, "content": text, "name": text}),
        json!({"role": "system", "content": "", "tools": [{text: text}]}),
    ];
    (messages, vec![json!({"type": "function", "function": {"name": text, "description": text}})])
}

fn tokenizer(name: &str) -> Tokenizer {
    let folder = std::env::temp_dir().join(format!("tokenspeed-xtml-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    tiny_tokenizer(&folder, 512, 1).unwrap();
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    tokenizer
}

/// What comes before the conversation is told apart, and any other conversation begins with it, id by id.
#[test]
fn the_shared_beginning_is_tools_settings_and_leading_system_messages() {
    let tokenizer = tokenizer("shared");
    let texts = tokenizer.xtml().unwrap();
    let system = |role: &str, text: &str| json!({"role": role, "content": text});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    for (n_system, tools, effort) in
        [(0, &tools[..0], None), (0, &tools[..], None), (1, &[], Some(Effort::Low)), (2, &tools, Some(Effort::Max))]
    {
        let leading = [system("system", "Be brief."), system("developer", "Be kind.")];
        let prompt = |rest: &[Value]| {
            let messages = [&leading[..n_system], rest].concat();
            encode_chat(&tokenizer, texts, &XtmlChat { tools, effort, ..chat(&messages) }).unwrap()
        };
        let alone = prompt(&[]);
        let later = [system("user", "hi"), system("system", "Be brief."), system("user", "Be kind.")];
        for n in 0..later.len() {
            let talk = prompt(&later[..=n]);
            assert_eq!(talk.ids[..talk.shared], alone.ids[..alone.shared]);
            let text = short(&tokenizer.decode(&talk.ids[..talk.shared], SpecialText::Keep).unwrap());
            let count = |what: &str| text.matches(what).count();
            let n_settings = n_system + usize::from(!tools.is_empty()) + usize::from(effort.is_some());
            assert_eq!((count("</message>|"), count("role=\"user\"")), (n_settings, 0), "{text}");
            assert!(text.is_empty() || text.ends_with('|'), "{text}");
        }
    }
}

#[test]
fn special_tokens_in_user_text_never_become_markers_wherever_they_stand() {
    let tokenizer = tokenizer("forgery");
    let controls: Vec<String> = tokenizer.controls().iter().map(|control| control.content.clone()).collect();
    let texts = tokenizer.xtml().unwrap();
    let encode = |text: &str| {
        let (messages, tools) = request_saying(text);
        let schema = json!({ text: text });
        let chat = XtmlChat { tools: &tools, answer_form: AnswerForm::Schema(&schema), ..chat(&messages) };
        let ids = encode_chat(&tokenizer, texts, &chat).unwrap().ids;
        let special: Vec<u32> = ids.iter().copied().filter(|id| tokenizer.vocabulary().is_added(*id)).collect();
        (special, tokenizer.decode(&ids, SpecialText::Keep).unwrap())
    };
    // The markers of a request are the same whatever its texts say.
    let (markers, _) = encode("harmless");
    assert!(markers.len() > 60);
    // All reserved names have one form; two of them stand for the rest.
    let (reserved, named): (Vec<&String>, Vec<&String>) = controls.iter().partition(|c| c.starts_with("<|reserved"));
    for control in named.into_iter().chain(reserved.into_iter().take(2)) {
        let (forged, shown) = encode(control);
        assert_eq!(forged, markers, "{control}");
        assert!(shown.contains(control));
        // Also when the text completes what stands before or after it, or is cut in two parts.
        for at in 1..control.len() {
            assert_eq!(encode(&control[at..]).0, markers);
            assert_eq!(encode(&control[..at]).0, markers);
            let (first, second) = control.split_at(at);
            let parts = [json!({"role": "user", "content": [
                {"type": "text", "text": first}, {"type": "text", "text": second},
            ]})];
            let ids = encode_chat(&tokenizer, texts, &chat(&parts)).unwrap().ids;
            let plain = encode_chat(&tokenizer, texts, &chat(&[json!({"role": "user", "content": "x"})])).unwrap().ids;
            let count = |ids: &[u32]| ids.iter().filter(|id| tokenizer.vocabulary().is_added(**id)).count();
            assert_eq!(count(&ids), count(&plain));
        }
    }
    // The other way round: the markers themselves are control tokens.
    let parsed = tokenizer.encode("<|open|>think<|sep|>", Controls::Parse, false).unwrap();
    assert_eq!(parsed.first().copied(), tokenizer.id_of("<|open|>"));
}
