//! Reading `config.json` of the family.

use crate::{fixture::Folder, variants};
use serde_json::{Value, json};
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    config::from_kimi,
    kimi::{Activation, ExpertFormat, KdaGate, LayerKind, tiny},
};

fn read(name: &str, json: &Value, latent_eps: Option<f64>) -> Result<tokenspeed_models::kimi::KimiConfig, String> {
    let folder = Folder::new(name);
    let file = folder.0.join("config.json");
    std::fs::write(&file, json.to_string()).expect("written");
    from_kimi(&file, latent_eps).map_err(|e| e.to_string())
}

#[test]
fn published_k3() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kimi/kimi-k3-config.json");
    let c = from_kimi(&file, None).expect("supported");
    let mla: Vec<usize> = c.layers_of(LayerKind::Mla).collect();
    assert_eq!((c.layers.len(), mla.len(), mla[0], mla[22], mla[23]), (93, 24, 3, 91, 92));
    assert_eq!((c.kda.gate, c.kda.full_rank_output_gate, c.mla.row()), (KdaGate::Bounded(-5.0), true, 576));
    assert_eq!(c.activation, Activation::Situ { beta: 4.0, linear: 25.0 });
    assert_eq!((c.moe.latent, c.moe.groups, c.moe.scale, c.attn_res_block), (Some(3584), 1, 1.0, Some(12)));
    assert_eq!((c.expert_format, c.stored, c.mla.latent_eps), (ExpertFormat::Mxfp4, DType::BF16, 1e-6));
    assert_eq!((c.context_tokens_max, &c.eos_ids[..]), (1_048_576, &[163_586][..]));
    assert!(!c.has_experts(0) && c.has_experts(1) && c.begins_block(84) && c.ignored_fields.is_empty());
}

#[test]
fn published_kimi_linear() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kimi/kimi-linear-config.json");
    let c = from_kimi(&file, None).expect("supported");
    assert_eq!((c.kda.gate, c.kda.full_rank_output_gate, c.mla.q_rank), (KdaGate::Softplus, false, None));
    assert_eq!((c.moe.latent, c.moe.scale, c.attn_res_block, c.mla.output_gate), (None, 2.446, None, false));
    assert_eq!((c.expert_format, c.context_tokens_max, &c.vision), (ExpertFormat::Plain, 1_048_576, &None));
    assert_eq!(tokenspeed_models::kimi::tensors::CheckpointSize::of(&c).total().tensors, 20_493);
}

/// What the tiny writer writes reads back as the same model.
#[test]
fn every_variant_reads_back() {
    for (name, config) in variants::all() {
        let read = read(name, &tiny::config_json(&config), Some(config.mla.latent_eps)).expect("supported");
        assert_eq!(read, config, "{name}");
    }
}

#[test]
fn refusals_name_field_and_value() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &[&str]); 9] = [
        (
            "nvfp4",
            |c| c["text_config"]["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            &["text_config.quantization_config.quant_method", "modelopt (NVFP4)", "mxfp4-pack-quantized"],
        ),
        (
            "fp8",
            |c| {
                c["text_config"]["quantization_config"] = Value::Null;
                c["quantization_config"] = json!({"quant_method": "fp8"});
            },
            &["quantization_config.quant_method", "fp8"],
        ),
        ("rope", |c| c["text_config"]["mla_use_nope"] = json!(false), &["mla_use_nope", "false"]),
        ("mtp", |c| c["text_config"]["num_nextn_predict_layers"] = json!(1), &["num_nextn_predict_layers"]),
        ("router", |c| c["text_config"]["moe_router_activation_func"] = json!("softmax"), &["softmax", "sigmoid"]),
        ("act", |c| c["text_config"]["hidden_act"] = json!("gelu"), &["hidden_act", "gelu"]),
        (
            "twice",
            |c| c["text_config"]["linear_attn_config"]["kda_layers"] = json!([1, 2, 2]),
            &["kda_layers", "twice"],
        ),
        ("gap", |c| c["text_config"]["linear_attn_config"]["kda_layers"] = json!([1]), &["neither list"]),
        (
            "missing",
            |c| drop(c["text_config"].as_object_mut().map(|o| o.remove("kv_lora_rank"))),
            &["kv_lora_rank", "missing"],
        ),
    ];
    for (name, change, parts) in cases {
        let mut json = tiny::config_json(&tiny::k3());
        change(&mut json);
        let message = read(name, &json, None).expect_err(name);
        assert!(parts.iter().all(|p| message.contains(p)) && !message.contains('\n'), "{name}: {message}");
    }
}
