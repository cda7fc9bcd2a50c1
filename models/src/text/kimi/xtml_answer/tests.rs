//! Answers as models write them, cut in every way.

use super::*;
use crate::text::output::{Message, ToolCall};

const THINKING: XtmlOptions = XtmlOptions { starts_thinking: true, split_reasoning: true };
const ANSWERING: XtmlOptions = XtmlOptions { starts_thinking: false, split_reasoning: true };

/// `<tag a="b">`, `</tag>` for the long markers.
fn long(text: &str) -> String {
    text.replace("</", "<|close|>").replace("<#", "<|open|>").replace('>', "<|sep|>").replace("|<|sep|>", "|>")
}

fn read(options: XtmlOptions, tools: bool, pieces: &[&str]) -> (Message, Vec<Delta>) {
    let mut reader = XtmlAnswer::new(options, tools.then(|| "id".into()));
    let mut deltas = Vec::new();
    for piece in pieces {
        reader.push(piece, &mut deltas);
    }
    reader.finish(&mut deltas);
    let mut message = Message::default();
    deltas.iter().for_each(|delta| message.absorb(delta));
    assert_eq!(reader.calls() as usize, message.tool_calls.len());
    (message, deltas)
}

fn whole(options: XtmlOptions, tools: bool, text: &str) -> Message {
    read(options, tools, &[&long(text)]).0
}

fn said(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Message {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| ToolCall {
        id: format!("id{index}"),
        name: (*name).into(),
        arguments: (*arguments).into(),
    };
    let tool_calls = calls.iter().enumerate().map(call).collect();
    Message { content: content.into(), reasoning: reasoning.into(), tool_calls }
}

/// (text, read tools, what it says), all starting inside `think`.
fn answers() -> Vec<(&'static str, bool, Message)> {
    let call = "<#call tool=\"f\" index=\"1\"><#argument key=\"a\" type=\"number\">1</argument></call>";
    let calls: &'static str =
        Box::leak(format!("t</think><#response>r</response><#tools>{call}</tools></message>").into());
    let raw: &'static str = Box::leak(long(&format!("<#tools>{call}</tools>")).into());
    vec![
        ("why</think><#response>Because.</response></message>", true, said("why", "Because.", &[])),
        ("", true, said("", "", &[])),
        ("never closed", true, said("never closed", "", &[])),
        // The opening repeated, think never closed, response never opened or closed.
        ("<#think>why</think><#response>x", true, said("why", "x", &[])),
        ("why<#response>x</response>", true, said("why", "x", &[])),
        ("why<#tools><#call tool=\"f\"></call></tools>", true, said("why", "", &[("f", "{}")])),
        ("why</think> \n x</response>", true, said("why", "x", &[])),
        ("</think><#response></response></message>", true, said("", "", &[])),
        ("<#response>x</response>", true, said("", "x", &[])),
        ("why</message>", true, said("why", "", &[])),
        // Calls.
        (calls, true, said("t", "r", &[("f", "{\"a\":1}")])),
        (calls, false, said("t", &format!("r{raw}"), &[])),
        (
            "</think><#response></response><#tools><#call tool=\"a&quot;&amp;\" index=\"1\"><#argument key=\"k &quot;\" type=\"string\">x \"y\"\n{</argument>\
             <#argument key=\"o\" type=\"object\">{\"é\": [1, null]}</argument><#argument key=\"b\" type=\"boolean\">false</argument></call> \n\
             <#call tool=\"g\" index=\"2\"></call><#call tool=\"h\" index=\"3\"><#json type=\"object\">{\"x\": 1}</json></call></tools>",
            true,
            said(
                "",
                "",
                &[
                    ("a\"&", "{\"k \\\"\":\"x \\\"y\\\"\\n{\",\"o\":{\"é\": [1, null]},\"b\":false}"),
                    ("g", "{}"),
                    ("h", "{\"x\": 1}"),
                ],
            ),
        ),
        // Calls that end too early, or not as they should.
        ("<#tools><#call tool=\"f\"><#argument key=\"a\" type=\"string\">half", true, said("", "", &[])),
        (
            "<#tools><#call tool=\"f\"><#argument key=\"a\" type=\"string\">x</call></tools>",
            true,
            said("", "", &[("f", "{\"a\":\"x\"}")]),
        ),
        ("<#tools><#call tool=\"f\"><#call tool=\"g\"></call></tools>", true, said("", "", &[("g", "{}")])),
        ("<#tools><#call tool=\"f\"><#argument key=\"a\">x</tools></message>", true, said("", "", &[])),
        (
            "<#tools>stray<#call index=\"1\"><#call tool=\"g\"></call></tools>",
            true,
            said("", "stray<|open|>call index=\"1\"<|sep|>", &[("g", "{}")]),
        ),
        // Tags of no meaning are text; so are the others where they cannot stand.
        (
            "a <b> <#b> </response></think><#response>x<#think>y</think></tools>z</response>",
            true,
            said(
                "a <b<|sep|> <|open|>b<|sep|> <|close|>response<|sep|>",
                "x<|open|>think<|sep|>y<|close|>think<|sep|><|close|>tools<|sep|>z",
                &[],
            ),
        ),
        // Cut inside a tag: nothing of it is shown. Cut before one could have begun: it was text.
        ("why<|close|>", true, said("why", "", &[])),
        ("why<|close|>thin", true, said("why", "", &[])),
        ("why</think><#response>x<|close|>response<|se", true, said("why", "x", &[])),
        ("why <|clos", true, said("why <|clos", "", &[])),
        ("why</think><#response>a <", true, said("why", "a <", &[])),
        ("<", true, said("<", "", &[])),
    ]
}

#[test]
fn channels_and_calls_are_told_apart() {
    for (text, tools, want) in answers() {
        assert_eq!(whole(THINKING, tools, text), want, "{text}");
    }
    assert_eq!(whole(ANSWERING, true, "x</response></message>"), said("", "x", &[]));
    assert_eq!(whole(ANSWERING, true, "<#response>x"), said("", "x", &[]));
    assert_eq!(whole(ANSWERING, true, "<#think>w</think><#response>x"), said("w", "x", &[]));
    // After the end of the message everything is shown as it is: nothing but a request that ignores it goes on there.
    assert_eq!(whole(ANSWERING, true, "x</response></message>\n<#think>"), said("", "x\n<|open|>think<|sep|>", &[]));
}

#[test]
fn reasoning_that_is_not_wanted_apart_is_answer_text() {
    let options = XtmlOptions { split_reasoning: false, ..THINKING };
    let got = whole(options, true, "why</think><#response>x</response><#tools><#call tool=\"f\"></call>");
    assert_eq!(got, said("", "why<|close|>think<|sep|>x", &[("f", "{}")]));
}

#[test]
fn every_cut_of_the_stream_gives_the_same_answer() {
    for (text, tools, want) in answers() {
        let text = long(text);
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let check = |pieces: &[&str]| assert_eq!(read(THINKING, tools, pieces).0, want, "{pieces:?}");
        let each: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        check(&each);
        for (index, &a) in places.iter().enumerate() {
            check(&[&text[..a], &text[a..]]);
            // Three-way cuts of everything take long; every seventh second cut still meets every tag.
            for &b in places[index..].iter().step_by(7) {
                check(&[&text[..a], &text[a..b], &text[b..]]);
            }
        }
    }
}

#[test]
fn random_tag_soup_is_read_the_same_however_it_is_cut() {
    let mut state = 11u64;
    let mut below = move |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let tags = [
        "<#think>",
        "</think>",
        "<#response>",
        "</response>",
        "<#tools>",
        "</tools>",
        "<#call tool=\"f\">",
        "<#call>",
        "</call>",
        "<#argument key=\"k\" type=\"number\">",
        "</argument>",
        "<#json>",
        "</json>",
        "</message>",
        "<#message role=\"x\">",
        "<|open|>",
        "<|close|>",
        "|sep|",
        "x",
        " ",
        "1",
        "é",
        "<",
        "|",
        "\n",
    ];
    for _ in 0..4000 {
        let text = long(&(0..below(14)).map(|_| tags[below(tags.len())]).collect::<String>());
        let options = XtmlOptions { starts_thinking: below(2) == 0, split_reasoning: below(4) > 0 };
        let tools = below(3) > 0;
        let want = read(options, tools, &[&text]).0;
        for _ in 0..6 {
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let mut end = (1 + below(12)).min(rest.len());
                while !rest.is_char_boundary(end) {
                    end += 1;
                }
                pieces.push(&rest[..end]);
                rest = &rest[end..];
            }
            assert_eq!(read(options, tools, &pieces).0, want, "{options:?} {tools} {pieces:?}");
        }
    }
}

#[test]
fn only_what_may_be_a_tag_is_held_back() {
    let mut reader = XtmlAnswer::new(THINKING, None);
    let mut say = |text: &str| {
        let mut deltas = Vec::new();
        reader.push(text, &mut deltas);
        deltas
    };
    let thought = |text: &str| vec![Delta::Reasoning(text.into())];
    assert_eq!(say("a <"), thought("a "));
    assert_eq!(say("b <|open|>x"), thought("<b <|open|>x"));
    assert_eq!(say("<|close|>think"), []);
    assert_eq!(say("ing"), thought("<|close|>thinking"));
    assert_eq!(say("<|close|>think<|sep|>"), []);
    assert_eq!(say("<|open|>response<|sep|>c"), [Delta::Content("c".into())]);
}

#[test]
fn a_long_argument_takes_linear_time_and_is_whole() {
    let mut reader = XtmlAnswer::new(THINKING, Some("id".into()));
    let mut deltas = Vec::new();
    reader.push(&long("<#tools><#call tool=\"f\"><#argument key=\"s\" type=\"string\">"), &mut deltas);
    for _ in 0..300_000 {
        reader.push("a<b", &mut deltas);
    }
    reader.push(&long("</argument></call>"), &mut deltas);
    let Some(Delta::ToolArguments { fragment, .. }) = deltas.last() else { panic!("no call: {deltas:?}") };
    assert_eq!(fragment.len(), 900_000 + "{\"s\":\"\"}".len());
}
