//! Reading `config.json` of a draft.

use crate::{fixture::Folder, variants};
use serde_json::{Value, json};
use tokenspeed_models::{
    config::{RopeScaling, from_eagle3},
    eagle3::{Eagle3Config, Eagle3Error, tensors, tiny},
    kimi::{self, KimiConfig, Taps},
};

fn read(name: &str, json: &Value) -> Result<Eagle3Config, String> {
    let folder = Folder::new(&format!("config-{name}"));
    let file = folder.0.join("config.json");
    std::fs::write(&file, json.to_string()).expect("written");
    from_eagle3(&file).map_err(|e| e.to_string())
}

/// The Kimi K3 draft's sizes.
fn published() -> Value {
    json!({
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "vocab_size": 163840, "draft_vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 1,
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 1048576,
        "rope_scaling": {
            "type": "yarn", "factor": 32.0, "original_max_position_embeddings": 32768, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 46, 90]},
    })
}

/// 20 tensors; the published file of 6,031,253,592 bytes is their data and a safetensors header.
#[test]
fn published_size() {
    let config = read("published", &published()).expect("supported");
    assert_eq!(tensors::size(&config), (20, 6_031_251_456));
    let mut names: Vec<String> = Vec::new();
    tensors::all(&config, &mut |t| names.push(format!("\"{}\":{{\"dtype\":\"BF16\",\"shape\":{:?}", t.name, t.dims)));
    let (header, least) = (6_031_253_592u64 - 6_031_251_456 - 8, names.iter().map(String::len).sum::<usize>() as u64);
    assert!(header == 2128 && header.is_multiple_of(8) && (least..3 * least).contains(&header), "{least}");
}

#[test]
fn published_values() {
    let c = read("values", &published()).expect("supported");
    assert_eq!((c.row(), c.tap_count(), c.norm_output, c.taps), (576, 3, false, Taps::new(&[2, 46, 90])));
    let magnitude = 0.1 * 32f64.ln() + 1.0;
    assert!((c.softmax_scale - magnitude * magnitude / 192f64.sqrt()).abs() < 1e-15);
    assert!(c.ignored_fields.is_empty() && c.rope.magnitude() == 1.0 && c.rope.rotary_dims == 64);
    let RopeScaling::Yarn { factor, original_tokens, .. } = c.rope.scaling else { panic!("YaRN") };
    assert_eq!((factor, original_tokens, c.context_tokens_max), (32.0, 32768.0, 1 << 20));
}

/// The fields about drafting may stand at the top.
#[test]
fn fields_at_the_top() {
    let mut json = published();
    json["eagle_config"] = Value::Null;
    json["eagle_aux_hidden_state_layer_ids"] = json!([3, 50]);
    (json["norm_output"], json["something_new"]) = (json!(true), json!(1));
    let c = read("top", &json).expect("supported");
    assert_eq!((c.taps, c.tap_count(), c.norm_output), (Taps::new(&[3, 50]), 2, true));
    assert_eq!(c.ignored_fields, ["something_new"]);
}

/// What the tiny writer writes reads back as the same draft.
#[test]
fn every_variant_reads_back() {
    for (name, config, _) in variants::all(&kimi::tiny::k3()) {
        assert_eq!(read(name, &tiny::config_json(&config)).expect("supported"), config, "{name}");
    }
}

#[test]
fn refusals_name_field_and_value() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &[&str]); 12] = [
        (
            "dspark",
            |c| c["architectures"] = json!(["DSparkKimiForCausalLM"]),
            &["DSparkKimiForCausalLM", "a DSpark draft"],
        ),
        ("mtp", |c| c["architectures"] = json!(["KimiK3MTPModel"]), &["KimiK3MTPModel", "an MTP draft"]),
        ("nextn", |c| c["architectures"] = json!(["DeepseekV3ForCausalLMNextN"]), &["NextN", "an MTP draft"]),
        ("layers", |c| c["num_nextn_predict_layers"] = json!(1), &["num_nextn_predict_layers", "MTP"]),
        (
            "llama",
            |c| c["architectures"] = json!(["LlamaForCausalLMEagle3"]),
            &["LlamaForCausalLMEagle3", "Eagle3Deepseek"],
        ),
        ("deep", |c| c["num_hidden_layers"] = json!(2), &["num_hidden_layers", "2"]),
        (
            "taps",
            |c| c["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": [46, 2]}),
            &["[46,2]", "ascending"],
        ),
        ("mscale", |c| c["rope_scaling"]["mscale"] = json!(0.5), &["rope_scaling", "mscale = mscale_all_dim"]),
        ("halves", |c| c["rope_interleave"] = json!(false), &["rope_interleave", "false"]),
        ("odd", |c| c["qk_rope_head_dim"] = json!(63), &["qk_rope_head_dim", "63", "even"]),
        ("vocab", |c| c["draft_vocab_size"] = json!(200_000), &["draft_vocab_size", "200000"]),
        ("fp8", |c| c["quantization_config"] = json!({"quant_method": "fp8"}), &["quantization_config", "fp8"]),
    ];
    for (name, change, parts) in cases {
        let mut json = published();
        change(&mut json);
        let message = read(name, &json).expect_err(name);
        assert!(parts.iter().all(|p| message.contains(p)) && !message.contains('\n'), "{name}: {message}");
    }
}

#[test]
fn a_draft_for_another_target_is_refused() {
    let target = kimi::tiny::k3();
    let draft = tiny::config(&target);
    assert_eq!(draft.taps_of(&target).expect("made for it"), Taps::new(&[2, 7, 12]).expect("ascending"));
    let wide = draft.taps_of(&KimiConfig { hidden_size: 256, ..target.clone() });
    assert!(matches!(wide, Err(Eagle3Error::Target { what: "hidden_size", draft: 128, target: 256 })), "{wide:?}");
    let words = draft.taps_of(&KimiConfig { vocab_size: 600, ..target.clone() });
    assert!(matches!(words, Err(Eagle3Error::Target { what: "vocab_size", .. })), "{words:?}");
    let short = draft.taps_of(&KimiConfig { layers: kimi::tiny::kinds(8, &[4]), ..target.clone() });
    assert!(matches!(short, Err(Eagle3Error::Layers { tap: 12, layers: 8 })), "{short:?}");
    let unnamed = Eagle3Config { taps: None, ..draft };
    assert_eq!(unnamed.taps_of(&target).expect("the usual ones"), Taps::new(&[2, 7, 12]).expect("ascending"));
}
