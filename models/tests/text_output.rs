//! Generated ids to answers. Each test is named after the kind of fault it keeps away.

mod text_support;

use std::{collections::HashMap, sync::Arc};

use text_support::{CONTROLS, Random, byte_level};
use tokenspeed_models::text::{Delta, Message, OutputOptions, OutputStream, ReasoningFormat, SpecialText, Tokenizer};

/// 🙂, 🦜 and a combining accent, cut inside characters; a stop string over three tokens; `think text `, ` answer`.
const PIECES: &[&[u8]] = &[
    b"ok ",
    b"\xF0\x9F",
    b"\x99\x82",
    b" \xF0",
    b"\x9F\xA6",
    b"\x9C e\xCC",
    b"\x81 fin",
    b"alpha b",
    b"eta ga",
    b"mma delta",
    b"think text ",
    b" answer",
];
const EMOJI: [u32; 7] = [261, 262, 263, 264, 265, 266, 267];
const GREEK: [u32; 3] = [268, 269, 270];
const THOUGHT: [u32; 3] = [271, 260, 272];
const END: u32 = 258;

const ONE_CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par\\\"is\"}}\n</tool_call>";
const TWO_CALLS: &str = "<tool_call>\n{\"name\": \"f_one\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                         <tool_call>\n{\"name\": \"f_two\", \"arguments\": {}}\n</tool_call>";

fn tokenizer() -> Arc<Tokenizer> {
    byte_level(PIECES)
}

fn run(tokenizer: &Arc<Tokenizer>, ids: &[u32], options: &OutputOptions) -> (Vec<Delta>, Option<usize>) {
    let mut stream = OutputStream::new(tokenizer.clone(), &[120], options.clone()).unwrap();
    let (mut deltas, mut settled, mut stopped) = (Vec::new(), Vec::new(), None);
    for &id in ids {
        let output = stream.push(id).unwrap();
        deltas.extend(output.deltas);
        settled.extend(output.tokens);
        if output.stopped_by.is_some() {
            stopped = output.stopped_by;
            break;
        }
    }
    let output = stream.finish();
    deltas.extend(output.deltas);
    settled.extend(output.tokens);
    let pushed = settled.len();
    assert!(
        settled.iter().map(|token| token.id).eq(ids[..pushed].iter().copied()),
        "every token settles once, in order"
    );
    assert!(pushed == ids.len() || stopped.is_some());
    (deltas, stopped)
}

fn message(deltas: &[Delta]) -> Message {
    let mut message = Message::default();
    deltas.iter().for_each(|delta| message.absorb(delta));
    message
}

fn contents(deltas: &[Delta]) -> Vec<&str> {
    deltas
        .iter()
        .filter_map(|delta| if let Delta::Content(text) = delta { Some(text.as_str()) } else { None })
        .collect()
}

fn stop(stops: &[&str]) -> OutputOptions {
    OutputOptions { stop: stops.iter().map(|stop| stop.to_string()).collect(), ..Default::default() }
}

fn tools() -> OutputOptions {
    OutputOptions { tool_call_ids: Some("call_x".into()), ..Default::default() }
}

/// A tokenizer that has every part of `text` as one token.
struct Cutter<'a> {
    text: &'a str,
    tokenizer: Arc<Tokenizer>,
    ids: HashMap<&'a [u8], u32>,
}

impl<'a> Cutter<'a> {
    fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut ids: HashMap<&[u8], u32> = CONTROLS.iter().zip(256..).map(|(c, id)| (c.as_bytes(), id)).collect();
        let mut pieces: Vec<&[u8]> = Vec::new();
        for start in 0..bytes.len() {
            ids.insert(&bytes[start..start + 1], bytes[start].into());
            for end in start + 2..=bytes.len() {
                ids.entry(&bytes[start..end]).or_insert_with(|| {
                    pieces.push(&bytes[start..end]);
                    260 + pieces.len() as u32
                });
            }
        }
        Self { text, tokenizer: byte_level(&pieces), ids }
    }

    /// The answer when each part between two cuts is one token. Control tokens are shown, as text would be.
    fn answer(&self, cuts: &[usize], options: &OutputOptions) -> (Vec<Delta>, Option<usize>) {
        let options = OutputOptions { special_text: SpecialText::Keep, ..options.clone() };
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([self.text.len()]);
        let parts = starts.zip(ends).map(|(start, end)| &self.text.as_bytes()[start..end]);
        let ids: Vec<u32> = parts.filter(|part| !part.is_empty()).map(|part| self.ids[part]).collect();
        run(&self.tokenizer, &ids, &options)
    }

    fn byte_by_byte(&self, options: &OutputOptions) -> (Vec<Delta>, Option<usize>) {
        self.answer(&(1..self.text.len()).collect::<Vec<_>>(), options)
    }
}

/// The whole message is the same byte by byte, in one piece, and for every cut into two and three pieces.
fn same_for_every_cut(text: &str, options: &OutputOptions) -> Message {
    let cutter = Cutter::new(text);
    let expected = message(&cutter.byte_by_byte(options).0);
    assert_eq!(message(&cutter.answer(&[], options).0), expected, "in one piece");
    for a in 1..text.len() {
        assert_eq!(message(&cutter.answer(&[a], options).0), expected, "cut at {a}");
        for b in a + 1..text.len() {
            assert_eq!(message(&cutter.answer(&[a, b], options).0), expected, "cut at {a} and {b}");
        }
    }
    expected
}

#[test]
fn utf8_split_across_sse_chunks_is_held_back_until_whole() {
    let (deltas, _) = run(&tokenizer(), &EMOJI, &OutputOptions::default());
    assert_eq!(contents(&deltas), ["ok ", "🙂", " ", "🦜 e", "\u{301} fin"]);
    // Ended by length inside a character: the incomplete tail is no text.
    let (deltas, _) = run(&tokenizer(), &EMOJI[..2], &OutputOptions::default());
    assert_eq!(contents(&deltas), ["ok "]);
}

#[test]
fn stop_string_spanning_tokens_is_found_and_nothing_of_it_is_sent() {
    for (stops, expected) in [
        (vec!["beta gamma"], "alpha "),
        (vec!["mma"], "alpha beta ga"),
        (vec!["zzz", "eta g"], "alpha b"),
        (vec!["alpha beta gamma delta"], ""),
    ] {
        let (deltas, stopped) = run(&tokenizer(), &GREEK, &stop(&stops));
        assert_eq!(contents(&deltas).concat(), expected);
        assert!(stopped.is_some());
    }
    let include = OutputOptions { include_stop: true, ..stop(&["beta gamma"]) };
    assert_eq!(contents(&run(&tokenizer(), &GREEK, &include).0).concat(), "alpha beta gamma");
    let late = OutputOptions { min_tokens: 3, ..stop(&["a b", "mma"]) };
    assert_eq!(contents(&run(&tokenizer(), &GREEK, &late).0).concat(), "alpha beta ga");
}

#[test]
fn empty_stop_string_is_refused_by_name() {
    let error = OutputStream::new(tokenizer(), &[], stop(&["gamma", ""])).unwrap_err();
    assert!(error.to_string().starts_with("stop:"), "{error}");
    assert_eq!(contents(&run(&tokenizer(), &GREEK, &stop(&[])).0).concat(), "alpha beta gamma delta");
}

#[test]
fn stop_string_leaking_the_flush_goes_through_the_parsers() {
    let options = OutputOptions {
        stop: vec!["a stop string of forty-odd characters ......".into()],
        reasoning: Some(ReasoningFormat::think(false)),
        ..tools()
    };
    let (deltas, stopped) = Cutter::new(ONE_CALL).byte_by_byte(&options);
    assert_eq!((contents(&deltas), stopped), (vec![], None));
    assert_eq!(message(&deltas).tool_calls.len(), 1);
    // Text that ends in the beginning of a stop string and of a marker comes out at the end, through the same path.
    let answer = "because a stop <tool_ca";
    assert_eq!(message(&Cutter::new(answer).byte_by_byte(&options).0).content, answer);
}

#[test]
fn special_tokens_stripped_too_early_the_parser_sees_the_end_of_thinking() {
    for special_text in [SpecialText::Skip, SpecialText::Keep] {
        let reasoning = Some(ReasoningFormat::think(true));
        let options = OutputOptions { reasoning, special_text, end_ids: vec![END], ..Default::default() };
        let ids = [&THOUGHT[..], &[END]].concat();
        let message = message(&run(&tokenizer(), &ids, &options).0);
        assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("think text ", " answer"));
    }
    // Without a parser the marker is hidden like any control token.
    assert_eq!(contents(&run(&tokenizer(), &THOUGHT, &OutputOptions::default()).0).concat(), "think text  answer");
    let keep = OutputOptions { special_text: SpecialText::Keep, ..Default::default() };
    assert_eq!(contents(&run(&tokenizer(), &[257, 97, END], &keep).0).concat(), "<|im_start|>a<|im_end|>");
}

#[test]
fn reasoning_is_the_same_for_every_cut() {
    let format =
        |starts_inside| OutputOptions { reasoning: Some(ReasoningFormat::think(starts_inside)), ..Default::default() };
    for (inside, text, reasoning, content) in [
        (true, "think text </think> answer", "think text ", " answer"),
        (true, "<think>why</think>Because", "why", "Because"),
        (true, "never ends </thin", "never ends </thin", ""),
        (true, "", "", ""),
        (false, "\n<think>\nwhy</thi</think>\n\nSo <think> é", "\nwhy</thi", "\n\nSo <think> é"),
        (false, "no thought </think> é", "", "no thought </think> é"),
        (false, " <thi", "", " <thi"),
        (false, "<think></think>a", "", "a"),
    ] {
        let message = same_for_every_cut(text, &format(inside));
        assert_eq!((message.reasoning.as_str(), message.content.as_str()), (reasoning, content), "{text:?}");
    }
}

#[test]
fn reasoning_may_be_opened_by_the_prompt() {
    let inside = |prompt| ReasoningFormat::think(false).opened_by(prompt).starts_inside;
    assert!(inside("<|im_start|>assistant\n<think>\n"));
    assert!(!inside("<|im_start|>assistant\n<think>\n\n</think>\n\n") && !inside(""));
}

#[test]
fn tool_call_json_streamed_with_every_cut_joins_to_valid_json() {
    let message = same_for_every_cut(ONE_CALL, &tools());
    assert_eq!(message.content, "");
    assert_eq!(message.tool_calls[0].arguments, r#"{"city": "Par\"is"}"#);
    let parsed: serde_json::Value = serde_json::from_str(&message.tool_calls[0].arguments).unwrap();
    assert_eq!(parsed, serde_json::json!({"city": "Par\"is"}));
}

#[test]
fn tool_call_arguments_stream_as_they_come() {
    let (deltas, _) = Cutter::new(ONE_CALL).byte_by_byte(&tools());
    assert!(matches!(&deltas[0], Delta::ToolCall { index: 0, name, .. } if name == "get_weather"));
    let fragments = deltas.iter().filter(|delta| matches!(delta, Delta::ToolArguments { .. })).count();
    assert_eq!(fragments, r#"{"city": "Par\"is"}"#.len());
}

#[test]
fn parallel_tool_calls_have_their_own_index_and_id_and_parameterless_ones_have_braces() {
    let message = same_for_every_cut(TWO_CALLS, &tools());
    let calls: Vec<_> =
        message.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str())).collect();
    assert_eq!(calls, [("call_x0", "f_one", r#"{"x": 1}"#), ("call_x1", "f_two", "{}")]);
    assert_eq!(message.content, "");
    let (deltas, _) = Cutter::new(TWO_CALLS).answer(&[10, 50, 90], &tools());
    let starts = deltas.iter().filter(|delta| matches!(delta, Delta::ToolCall { .. })).count();
    assert_eq!(starts, 2);
}

#[test]
fn parameterless_tools_keep_the_other_calls_intact() {
    for arguments in
        [r#", "arguments": {}"#, "", r#", "arguments": null"#, r#", "arguments": """#, r#", "parameters": {}"#]
    {
        let text = format!(
            "<tool_call>{{\"name\": \"f_two\"{arguments}}}</tool_call><tool_call>{{\"arguments\": {{\"x\": [1, \"}}\"]}}, \"name\": \"f_one\"}}</tool_call>"
        );
        let message = same_for_every_cut(&text, &tools());
        let calls: Vec<_> = message.tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, [("f_two", "{}"), ("f_one", r#"{"x": [1, "}"]}"#)], "{arguments}");
    }
}

#[test]
fn tool_arguments_type_is_always_json_text() {
    // A string that holds JSON is unwrapped; the marker may stand inside a string; other keys are skipped.
    for (call, arguments) in [
        (r#"{"name": "f", "arguments": "{\"x\": \"\u00e9\"}"}"#, r#"{"x": "é"}"#),
        (r#"{"name": "f", "arguments": "plain"}"#, r#""plain""#),
        (
            r#"{"id": [1, {"a": "]"}], "name": "f", "arguments": {"x": "</tool_call>"}, "z": null}"#,
            r#"{"x": "</tool_call>"}"#,
        ),
        (r#"{"name": "f", "arguments": 12}"#, "12"),
        (r#"{"name": "f", "arguments": [1.50, "a\\"]}"#, r#"[1.50, "a\\"]"#),
    ] {
        let message = same_for_every_cut(&format!("<tool_call>\n{call}\n</tool_call>"), &tools());
        assert_eq!(message.tool_calls.len(), 1, "{call}");
        assert_eq!(message.tool_calls[0].arguments, arguments, "{call}");
        assert_eq!(message.content, "", "{call}");
    }
}

#[test]
fn text_round_tool_calls_is_content_and_white_space_is_not() {
    let call = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    for (text, content, calls) in [
        (format!("Let me look.\n\n{call}\n"), "Let me look.", 1),
        (format!("\n{call}\n\n{call}\n "), "", 2),
        (format!("a <tool_ {call} b {call}"), "a <tool_ b", 2),
        (format!("{call} then é"), " then é", 1),
        (format!("{}{call}", call.strip_suffix("</tool_call>").unwrap()), "", 2),
        ("  \n".into(), "  \n", 0),
        ("a < b".into(), "a < b", 0),
    ] {
        let message = same_for_every_cut(&text, &tools());
        assert_eq!((message.content.as_str(), message.tool_calls.len()), (content, calls), "{text:?}");
    }
}

#[test]
fn what_is_no_tool_call_goes_back_to_content_whole() {
    for text in [
        "<tool_call>not json</tool_call>",
        "<tool_call>\n{\"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f",
        "<tool_call>{\"name\": \"f\", oops}</tool_call> é",
        "<tool_call>",
    ] {
        let message = same_for_every_cut(text, &tools());
        assert_eq!((message.content.as_str(), message.tool_calls.len()), (text, 0));
    }
}

#[test]
fn a_call_that_breaks_after_it_began_leaks_no_markup() {
    for (text, arguments, content) in [
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1]} <tool</tool_call> after", "{\"x\": 1", " after"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}</tool_call> after", "{\"x\": 1}", " after"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ", "{\"x\": ", ""),
    ] {
        let message = same_for_every_cut(text, &tools());
        assert_eq!(
            (message.tool_calls[0].arguments.as_str(), message.content.as_str()),
            (arguments, content),
            "{text}"
        );
    }
}

#[test]
fn thinking_then_tools_then_a_stop_string_is_the_same_for_every_cut() {
    let options = OutputOptions {
        reasoning: Some(ReasoningFormat::think(false)),
        stop: vec!["STOP".into(), "</tool_call> x".into()],
        ..tools()
    };
    let text = format!("<think>a <tool_call> b</think>\n\nSure é 🙂 {ONE_CALL}\nSTOP never");
    let message = same_for_every_cut(&text, &options);
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("a <tool_call> b", "\n\nSure é 🙂"));
    assert_eq!(message.tool_calls.len(), 1);
}

#[test]
fn no_parser_is_on_unless_asked_for() {
    let text = format!("<think>x</think>{ONE_CALL}");
    assert_eq!(same_for_every_cut(&text, &OutputOptions::default()).content, text);
}

#[test]
fn settled_tokens_travel_with_their_text() {
    let mut stream = OutputStream::new(tokenizer(), &[], stop(&["beta gamma"])).unwrap();
    let first = stream.push(GREEK[0]).unwrap();
    assert_eq!((contents(&first.deltas), first.tokens.len()), (vec!["alpha "], 0)); // "b" may begin the stop string
    let mut stream = OutputStream::new(tokenizer(), &[], stop(&["beta x"])).unwrap();
    let counts: Vec<usize> = GREEK.iter().map(|&id| stream.push(id).unwrap().tokens.len()).collect();
    assert_eq!(counts, [0, 2, 1]);
    let mut stream = OutputStream::new(tokenizer(), &[], OutputOptions::default()).unwrap();
    let settled: Vec<Vec<usize>> = EMOJI
        .iter()
        .map(|&id| stream.push(id).unwrap().tokens.iter().map(|token| token.text_offset).collect())
        .collect();
    // 🙂 is settled by its second token; offsets count characters.
    assert_eq!(settled, [vec![0], vec![], vec![3, 3], vec![], vec![], vec![4, 5], vec![5, 8]]);
}

#[test]
fn log_probability_tokens_show_text_or_their_bytes() {
    let tokenizer = tokenizer();
    let text = |id| tokenizer.token_text(id).unwrap();
    assert_eq!((text(261).token.as_str(), text(261).bytes), ("ok ", b"ok ".to_vec()));
    assert_eq!((text(262).token.as_str(), text(262).bytes), ("bytes:\\xf0\\x9f", vec![0xF0, 0x9F]));
    assert_eq!(text(258).token, "<|im_end|>");
    assert!(tokenizer.token_text(tokenizer.vocab_size()).is_err());
}

#[test]
fn unknown_ids_are_errors_and_harm_nothing() {
    let mut stream = OutputStream::new(tokenizer(), &[], OutputOptions::default()).unwrap();
    assert!(stream.push(99_999).is_err());
    assert_eq!(contents(&stream.push(261).unwrap().deltas), ["ok "]);
}

#[test]
fn random_answers_are_the_same_for_every_random_cut() {
    let mut random = Random(11);
    let parts = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"a\": [1]}",
        "}",
        "\n",
        " ",
        "é",
        "🙂",
        "<",
        "text",
        "STO",
        "STOP",
        "\"",
        "\\",
        ",",
    ];
    for _ in 0..400 {
        let options = OutputOptions {
            reasoning: (random.below(2) == 0).then(|| ReasoningFormat::think(random.below(2) == 0)),
            tool_call_ids: (random.below(4) > 0).then(|| "c".into()),
            stop: if random.below(2) == 0 { vec!["STOP".into(), "\"\\".into()] } else { vec![] },
            ..Default::default()
        };
        let length = 1 + random.below(9);
        let text: String = (0..length).map(|_| random.pick(&parts)).collect();
        let cutter = Cutter::new(&text);
        let (deltas, stopped) = cutter.byte_by_byte(&options);
        for _ in 0..8 {
            let cuts: Vec<usize> = (1..text.len()).filter(|_| random.below(4) == 0).collect();
            let (other, other_stopped) = cutter.answer(&cuts, &options);
            assert_eq!((message(&other), other_stopped), (message(&deltas), stopped), "{text:?} {cuts:?} {options:?}");
        }
    }
}
