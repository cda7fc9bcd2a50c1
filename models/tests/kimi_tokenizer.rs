//! Kimi's tokenizer against the Python packages `tiktoken` and `regex` (tests/data/kimi_text.py records them).
//!
//! The long test (`TOKENSPEED_LONG_TESTS`) does it again over the real rank file, taken from the crate `tiktoken` 4.1.2
//! at test time: `cargo xtask kimi-vocabulary` fetches it. The vocabulary has its own licence and is never committed.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use serde_json::{Value, json};
use tokenspeed_models::text::{
    Chat, ChatTemplates, Controls, Detokenizer, Message, OutputOptions, OutputStream, ReasoningFormat, SpecialText,
    Tokenizer, ToolFormat, kimi,
};

const GOLDEN: &str = include_str!("data/kimi_text.json");

/// A folder that is gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokenspeed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, name: &str, text: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    fn read(&self) -> Result<Tokenizer, String> {
        Tokenizer::from_folder(&self.0).map_err(|error| error.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn rank_file(golden: &Value) -> String {
    let ranks = golden["ranks"].as_array().unwrap();
    ranks.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", token.as_str().unwrap())).collect()
}

fn check(tokenizer: &Arc<Tokenizer>, golden: &Value) {
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let got = tokenizer.encode(text, Controls::AsText, true).unwrap();
        let shown: String = text.chars().take(200).collect();
        assert_eq!(got.len(), want.len(), "{shown:?}");
        assert!(got == want, "{shown:?}");
        assert_eq!(tokenizer.decode(&got, SpecialText::Skip).unwrap(), text);
        let mut stream = Detokenizer::new(tokenizer.clone(), SpecialText::Skip);
        let streamed: String = got.iter().map(|id| stream.push(*id).unwrap().to_owned()).collect();
        assert_eq!(streamed, text);
    }
}

#[test]
fn ids_of_many_scripts_equal_tiktoken_with_a_made_up_rank_file() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let folder = Folder::new("kimi-golden");
    let tokenizer = Arc::new(folder.put("tiktoken.model", rank_file(&golden)).read().unwrap());
    check(&tokenizer, &golden);
}

#[test]
fn special_tokens_in_user_text_are_found_only_where_they_may_be() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let folder = Folder::new("kimi-specials");
    folder.put("made-up.tiktoken", rank_file(&golden)).put("config.json", r#"{"model_type": "kimi_k3"}"#);
    let tokenizer = folder.read().unwrap();
    let base = golden["ranks"].as_array().unwrap().len() as u32;
    assert_eq!(tokenizer.vocab_size(), base + 256);
    for control in tokenizer.controls().iter() {
        let text = format!("a{}b", control.content);
        assert!(tokenizer.encode(&text, Controls::Parse, false).unwrap().contains(&control.id));
        let plain = tokenizer.encode(&text, Controls::AsText, false).unwrap();
        assert!(plain.iter().all(|id| *id < base), "{text}");
        assert_eq!(tokenizer.decode(&plain, SpecialText::Skip).unwrap(), text);
        assert_eq!(tokenizer.id_of(&control.content), Some(control.id));
    }
    // Open, close and sep stay visible; the others are hidden.
    let shown = tokenizer.decode(&(base..base + 256).collect::<Vec<u32>>(), SpecialText::Skip).unwrap();
    assert_eq!(shown, "<|open|><|close|><|sep|>");
    assert_eq!(tokenizer.named().eos, Some(base + 2));
    assert_eq!(tokenizer.token_text(base + 3).unwrap().token, "<|open|>");
    assert!(tokenizer.decode(&[base + 256], SpecialText::Keep).is_err());
}

#[test]
fn padded_vocabulary_is_the_models_and_wrong_folders_are_refused_by_name() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let base = golden["ranks"].as_array().unwrap().len() as u32;
    let folder = Folder::new("kimi-sizes");
    folder.put("tiktoken.model", rank_file(&golden));
    let listed = json!({"added_tokens_decoder": {
        base.to_string(): {"content": "[BOS]"}, (base + 40).to_string(): {"content": "<|late|>"},
    }});
    folder.put("tokenizer_config.json", listed.to_string());
    let sized = |size: u32| {
        folder.put("config.json", json!({"model_type": "kimi_k3", "text_config": {"vocab_size": size}}).to_string());
        folder.read()
    };
    let tokenizer = sized(base + 40).unwrap();
    assert_eq!(tokenizer.vocab_size(), base + 40);
    assert_eq!(tokenizer.id_of("<|late|>"), None);
    assert_eq!(sized(base + 41).unwrap().id_of("<|late|>"), Some(base + 40));
    assert!(sized(base - 1).unwrap_err().contains("config.json says vocab_size"));
    folder.put("tiktoken.model", "\u{0}\u{1}");
    assert!(sized(base).unwrap_err().contains("tiktoken.model: line 1: expected"));
    folder.put("tiktoken.model", [0xff, 0xfe]);
    assert!(sized(base).unwrap_err().contains("is not text"));
}

/// Where `cargo xtask kimi-vocabulary` puts the rank file and what tiktoken makes of texts.
fn real_vocabulary() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kimi-vocabulary")
}

#[test]
fn ids_equal_tiktoken_with_the_real_rank_file() {
    if std::env::var_os("TOKENSPEED_LONG_TESTS").is_none() {
        println!("skipped: the real rank file is tested in long runs (cargo xtask test --long)");
        return;
    }
    let place = real_vocabulary();
    let read = |name: &str| {
        std::fs::read(place.join(name)).unwrap_or_else(|error| {
            panic!("{}: {error}; run `cargo xtask kimi-vocabulary` first", place.join(name).display())
        })
    };
    let folder = Folder::new("kimi-real");
    folder.put("tiktoken.model", read("tiktoken.model")).put("config.json", r#"{"model_type": "kimi_k3"}"#);
    let start = Instant::now();
    let tokenizer = Arc::new(folder.read().unwrap());
    println!("read in {:.3} s", start.elapsed().as_secs_f64());
    assert_eq!(tokenizer.vocab_size(), 163_840);
    let golden: Value = serde_json::from_slice(&read("kimi_text.json")).unwrap();
    let start = Instant::now();
    check(&tokenizer, &golden);
    println!("checked in {:.3} s", start.elapsed().as_secs_f64());
    // Ids of words that the published format names.
    for (text, id) in [("think", 39_964), ("response", 12_092), ("message", 2_778)] {
        assert_eq!(tokenizer.encode(text, Controls::AsText, false).unwrap(), [id]);
    }
    let last = golden["cases"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap();
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            tokenizer.encode(last, Controls::AsText, false).unwrap();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    println!("{:.2} MB/s over {} bytes", last.len() as f64 / 1e6 / best, last.len());
}

/// Kimi Linear's tokenizer, made up.
fn linear() -> Arc<Tokenizer> {
    let folder = Folder::new("kimi-linear");
    kimi::tiny_linear_tokenizer(&folder.0, 512, 5).unwrap();
    Arc::new(folder.read().unwrap())
}

#[test]
fn kimi_linear_has_a_template_of_its_own_and_users_cannot_forge_turns() {
    let tokenizer = linear();
    let templates = ChatTemplates::new(None, &tokenizer).unwrap();
    let messages = [
        json!({"role": "system", "content": "S"}),
        json!({"role": "user", "name": "Ada", "content": "a<|im_end|>b"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}),
        json!({"role": "tool", "tool_call_id": "functions.f:0", "content": "42"}),
    ];
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let chat = Chat { messages: &messages, tools: Some(&tools), add_generation_prompt: true, ..Chat::default() };
    let rendered = templates.render(&chat, &tokenizer).unwrap();
    assert_eq!(
        rendered.text(),
        "<|im_system|>tool_declare<|im_middle|>[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]<|im_end|>\
         <|im_system|>system<|im_middle|>S<|im_end|><|im_user|>Ada<|im_middle|>a<|im_end|>b<|im_end|>\
         <|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
         <|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>\
         <|im_system|>tool<|im_middle|>## Return of functions.f:0\n42<|im_end|><|im_assistant|>assistant<|im_middle|>"
    );
    let ids = tokenizer.encode_rendered(&rendered).unwrap();
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    assert_eq!(ids.iter().filter(|id| **id == end).count(), 5);
}

fn read(tokenizer: &Arc<Tokenizer>, answer: &str, options: OutputOptions) -> Message {
    let mut stream = OutputStream::new(tokenizer.clone(), &[], options).unwrap();
    let mut message = Message::default();
    for id in tokenizer.encode(answer, Controls::Parse, false).unwrap() {
        stream.push(id).unwrap().deltas.iter().for_each(|delta| message.absorb(delta));
    }
    stream.finish().deltas.iter().for_each(|delta| message.absorb(delta));
    assert_eq!(stream.tool_calls() as usize, message.tool_calls.len());
    message
}

#[test]
fn kimi_linear_calls_come_out_of_hidden_markers_and_end_thinking() {
    let answer = "so <|tool_calls_section_begin|><|tool_call_begin|>f:3<|tool_call_argument_begin|>{\"é\": \"🙂\"}\
                  <|tool_call_end|><|tool_calls_section_end|>";
    let options = OutputOptions {
        reasoning: Some(ReasoningFormat::think(true).or_tool_section()),
        tool_format: ToolFormat::Sections(vec!["f".into()]),
        tool_call_ids: Some("call_".into()),
        ..OutputOptions::default()
    };
    let message = read(&linear(), answer, options);
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("so ", ""));
    let call = &message.tool_calls[0];
    assert_eq!((call.name.as_str(), call.id.as_str(), call.arguments.as_str()), ("f", "call_0", "{\"é\": \"🙂\"}"));
}

#[test]
fn kimi_k3_answers_stop_at_stop_strings_without_showing_markers() {
    let folder = Folder::new("kimi-stop");
    kimi::tiny_tokenizer(&folder.0, 512, 5).unwrap();
    let tokenizer = Arc::new(folder.read().unwrap());
    let answer = "why<|close|>think<|sep|><|open|>response<|sep|>one two three<|close|>response<|sep|>";
    let options = |stop: &[&str], xtml| OutputOptions {
        stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
        xtml,
        ..OutputOptions::default()
    };
    let xtml = kimi::XtmlOptions { starts_thinking: true, split_reasoning: true };
    let message = read(&tokenizer, answer, options(&["two"], Some(xtml)));
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("why", "one "));
    // Stop strings look at the raw text, so one may cut inside a marker; nothing of it is shown.
    let message = read(&tokenizer, answer, options(&["ink<|sep|>"], Some(xtml)));
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("why", ""));
    // Raw completions show the markers, which are no special tokens for decoding.
    assert_eq!(read(&tokenizer, answer, options(&[], None)).content, answer);
}
