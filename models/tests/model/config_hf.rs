//! `config.json` in its variants, and refusals by field and value.
use crate::files::Folder;
use serde_json::{Value, json};
use tokenspeed_models::config::{Architecture, LlamaConfig, RopeScaling, RopeStyle, from_hf};

/// A small valid Llama config with `changes` laid over it (`null` removes nothing; it is written as null).
pub fn config(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    });
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

fn parse(config: &Value) -> Result<LlamaConfig, String> {
    let folder = Folder::new();
    let path = folder.write("config.json", config.to_string());
    from_hf(&path).map_err(|e| {
        let message = e.to_string();
        assert!(!message.contains('\n'), "{message}");
        message.strip_prefix(&format!("{}: ", path.display())).expect("begins with its file").to_owned()
    })
}

fn good(changes: Value) -> LlamaConfig {
    parse(&config(changes)).expect("a good config")
}

fn refused(changes: Value) -> String {
    parse(&config(changes)).expect_err("must be refused")
}

#[test]
fn llama() {
    let c = good(json!({"bos_token_id": 1, "eos_token_id": [7, 3, 7], "torch_dtype": "bfloat16"}));
    assert_eq!((c.architecture, c.head_dim, c.n_kv_heads, c.context_tokens_max), (Architecture::Llama, 16, 2, 128));
    assert_eq!((c.bos_id, c.eos_ids.as_slice()), (Some(1), [3, 7].as_slice()));
    assert!(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.tied_embeddings);
    assert_eq!((c.rope.style, c.rope.rotary_dims, c.windows.as_slice()), (RopeStyle::Halves, 16, [0, 0].as_slice()));
    assert!(c.ignored_fields.is_empty());
    let biased =
        good(json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "eos_token_id": 5}));
    assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias && biased.tied_embeddings);
    assert_eq!(biased.eos_ids, [5]);
}

#[test]
fn families() {
    let qwen2 = good(json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": false}));
    assert!(qwen2.qkv_bias && !qwen2.o_bias && qwen2.windows == [0, 0]);
    let windowed =
        good(json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": true,
        "max_window_layers": 1}));
    assert_eq!(windowed.windows, [0, 64]);
    let qwen3 = good(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 32}));
    assert!(qwen3.qk_norm && !qwen3.qkv_bias && qwen3.head_dim == 32);
    assert_eq!(good(json!({"architectures": ["Qwen3ForCausalLM"]})).head_dim, 128);
    let mistral = good(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 32}));
    assert_eq!(mistral.windows, [32, 32]);
    assert_eq!(good(json!({"architectures": ["MistralForCausalLM"], "sliding_window": null})).windows, [0, 0]);
    assert_eq!(good(json!({"architectures": ["MistralForCausalLM"]})).windows, [4096, 4096]);
    let typed = good(json!({"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": true, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"]}));
    assert_eq!(typed.windows, [8, 0]);
    assert_eq!(good(json!({"architectures": null})).architecture, Architecture::Llama);
}

#[test]
fn unsupported_values_are_named() {
    for (changes, want) in [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "field `architectures` = [\"GPT2LMHeadModel\"] is not supported",
        ),
        (json!({"hidden_act": "gelu"}), "field `hidden_act` = `gelu` is not supported; supported: silu"),
        (json!({"quantization_config": {"quant_method": "gptq"}}), "field `quantization_config` = \"gptq\""),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "field `rope_scaling.type` = `dynamic`"),
        (json!({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), "`rope_scaling.rope_type` = `longrope`"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0, "short_factor": [1]}}),
            "`rope_scaling.short_factor`",
        ),
        (json!({"partial_rotary_factor": 0.5}), "field `partial_rotary_factor` = 0.5"),
        (json!({"torch_dtype": "float64"}), "field `torch_dtype` = `float64`"),
        (json!({"sliding_window": 64}), "field `sliding_window` = 64"),
        (json!({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": true}), "field `mlp_bias` = true"),
    ] {
        let message = refused(changes.clone());
        assert!(message.contains(want), "{changes}: {message}");
    }
}

#[test]
fn impossible_values_are_named() {
    for (changes, want) in [
        (json!({"hidden_size": null}), "field `hidden_size` is missing"),
        (json!({"hidden_size": "64"}), "field `hidden_size` is \"64\", but a whole number is needed"),
        (json!({"hidden_size": 64.5}), "field `hidden_size` is 64.5"),
        (json!({"hidden_size": -64}), "field `hidden_size` is -64"),
        (json!({"hidden_size": 66}), "field `hidden_size` is 66: it must be a multiple"),
        (json!({"vocab_size": 0}), "field `vocab_size` is 0"),
        (json!({"num_hidden_layers": 1_000_000}), "field `num_hidden_layers` is 1000000"),
        (json!({"num_attention_heads": 0}), "field `hidden_size`"),
        (json!({"num_key_value_heads": 3}), "field `num_key_value_heads` is 3: it must divide"),
        (json!({"head_dim": 15}), "field `head_dim` is 15"),
        (json!({"head_dim": 1u64 << 62}), "field `head_dim` is 4611686018427387904"),
        (json!({"rms_norm_eps": -1.0}), "field `rms_norm_eps` is -1"),
        (json!({"eos_token_id": ["a"]}), "field `eos_token_id` is"),
        (json!({"eos_token_id": -1}), "field `eos_token_id` is -1"),
        (json!({"tie_word_embeddings": "yes"}), "field `tie_word_embeddings` is"),
        (json!({"rope_theta": 0.0}), "field `rope_theta` is 0"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "field `rope_scaling.factor` is 0"),
        (json!({"rope_scaling": {"type": "linear"}}), "field `rope_scaling.factor` is missing"),
        (json!({"rope_scaling": {"factor": 2.0}}), "field `rope_scaling.rope_type` is missing"),
        (json!({"rope_scaling": "yarn"}), "field `rope_scaling` is"),
        (json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}}), "beside"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 64}}),
            "field `rope_scaling.high_freq_factor` is 1",
        ),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": null}),
            "`num_key_value_heads` is missing",
        ),
        (json!({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]}), "field `layer_types`"),
    ] {
        let message = refused(changes.clone());
        assert!(message.contains(want), "{changes}: {message}");
    }
}

#[test]
fn not_json() {
    let folder = Folder::new();
    for text in ["", "[]", "{", "version https://git-lfs.github.com/spec/v1"] {
        let error = from_hf(&folder.write("config.json", text)).expect_err("not an object").to_string();
        assert!(error.contains("is not a JSON object") && !error.contains('\n'), "{error}");
    }
    let error = from_hf(&folder.path().join("absent.json")).expect_err("absent").to_string();
    assert!(error.contains("absent.json: cannot be read"), "{error}");
}

#[test]
fn unknown_fields_are_reported() {
    assert_eq!(good(json!({"mystery_gate": 3, "use_cache": true})).ignored_fields, ["mystery_gate"]);
}

/// Against a numpy float64 script written from the formulas.
#[test]
fn rope_frequencies() {
    let cases: Value =
        serde_json::from_str(include_str!("../../../tests/vectors/rope_frequencies.json")).expect("committed vectors");
    for case in cases.as_array().expect("a list") {
        let mut changes = case["config"].clone();
        changes["head_dim"] = json!(64);
        let got = good(changes).rope.inverse_frequencies(None);
        let want: Vec<f64> = serde_json::from_value(case["frequencies"].clone()).expect("numbers");
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((f64::from(*got) / want - 1.0).abs() < 1e-7, "{} {i}: {got} {want}", case["name"]);
        }
    }
}

#[test]
fn yarn_magnitude_and_context() {
    let yarn = |more: Value| {
        let mut scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
        for (key, value) in more.as_object().expect("an object") {
            scaling[key] = value.clone();
        }
        good(json!({"rope_scaling": scaling}))
    };
    let plain = yarn(json!({}));
    assert!((plain.rope.magnitude() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(plain.context_tokens_max, 512);
    assert_eq!(yarn(json!({"attention_factor": 1.25})).rope.magnitude(), 1.25);
    let scaled = yarn(json!({"mscale": 2.0, "mscale_all_dim": 0.5})).rope.magnitude();
    assert!((scaled - (0.2 * 4f64.ln() + 1.0) / (0.05 * 4f64.ln() + 1.0)).abs() < 1e-12);
    let linear = good(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}));
    assert_eq!((linear.context_tokens_max, linear.rope.magnitude()), (256, 1.0));
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
}
