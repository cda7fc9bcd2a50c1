//! `generation_config.json`: "only one of several EOS ids stops generation", "file defaults".
use crate::{config_hf::config, files::Folder};
use serde_json::{Value, json};
use tokenspeed_models::config::{GenerationDefaults, ModelConfig};

fn read(text: &Value) -> Result<GenerationDefaults, String> {
    let folder = Folder::new();
    let file = folder.write("config.json", config(json!({"eos_token_id": 4})).to_string());
    let model = ModelConfig::read(&file, None).expect("good");
    let path = folder.write("generation_config.json", text.to_string());
    GenerationDefaults::read(&path, &model).map_err(|e| e.to_string())
}

#[test]
fn end_tokens_are_the_union_of_both_files() {
    assert_eq!(read(&json!({"eos_token_id": [9, 4, 2]})).expect("good").eos_ids, [2, 4, 9]);
    assert_eq!(read(&json!({"eos_token_id": 7})).expect("good").eos_ids, [4, 7]);
    assert_eq!(read(&json!({})).expect("good").eos_ids, [4]);
}

#[test]
fn sampling_defaults() {
    let g = read(&json!({"temperature": 0.01, "top_k": 1, "top_p": 0.8, "repetition_penalty": 5.0, "do_sample": true,
        "transformers_version": "4", "num_beams": 4}))
    .expect("good");
    assert_eq!((g.temperature, g.top_k, g.top_p, g.min_p), (Some(0.01), Some(1), Some(0.8), None));
    assert_eq!((g.repetition_penalty, g.do_sample), (Some(5.0), Some(true)));
    assert_eq!(g.ignored_fields, ["num_beams = 4"]);
}

#[test]
fn impossible_defaults_are_named() {
    for (text, want) in [
        (json!({"temperature": -1}), "field `temperature` is -1"),
        (json!({"top_p": 0}), "field `top_p` is 0"),
        (json!({"top_k": -5}), "field `top_k` is -5"),
        (json!({"repetition_penalty": 0}), "field `repetition_penalty` is 0"),
        (json!({"do_sample": 1}), "field `do_sample` is 1"),
        (json!([]), "is not a JSON object"),
    ] {
        let message = read(&text).expect_err("must be refused");
        assert!(message.contains("generation_config.json: ") && message.contains(want), "{text}: {message}");
    }
}
