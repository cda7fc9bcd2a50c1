//! What a checkpoint must hold, and how it is refused.

use crate::{fixture::Folder, variants};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, path::Path};
use tokenspeed_backend_api::graph::{WeightBytes, WeightSource};
use tokenspeed_models::{
    config,
    kimi::{
        GraphOptions, Graphs, KimiConfig, KimiWeights,
        tensors::{self, CheckpointSize},
        tiny,
    },
    weights::Checkpoint,
};

/// The sizes follow from the configuration alone; the published index says 1,560,860,324,864 bytes in 497,220 tensors.
#[test]
fn published_size() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kimi/kimi-k3-config.json");
    let size = CheckpointSize::of(&config::from_kimi(&file, None).expect("the published configuration"));
    assert_eq!((size.total().tensors, size.total().bytes), (497_220, 1_560_860_324_864));
    assert_eq!((size.vision.tensors, size.vision.bytes), (168, 894_717_952));
    assert_eq!(size.experts.bytes, 92 * 896 * 17_547_264);
}

/// The list of published tensors and the graph agree: each is read, but for the pair that layer 0 never uses.
#[test]
fn every_tensor_is_used() {
    for (name, config) in variants::all() {
        let mut stored = BTreeMap::new();
        tensors::text(&config, &mut |t| drop(stored.insert(t.name.clone(), t)));
        let size = CheckpointSize::of(&config).total();
        assert_eq!(size.tensors, stored.len() as u64, "{name}: a name twice");
        for spec in Graphs::new(&config, GraphOptions::EXACT).forward.weights {
            if let Some((layer, rest)) = spec.name.split_once(".experts.").filter(|(_, rest)| *rest != "slots") {
                (0..config.moe.experts)
                    .for_each(|e| assert!(stored.remove(&format!("{layer}.experts.{e}.{rest}")).is_some()));
            } else if !spec.name.ends_with(".slots") {
                assert!(stored.remove(&spec.name).is_some(), "{name}: {} is not stored", spec.name);
            }
        }
        let unused: Vec<_> = stored.keys().map(String::as_str).collect();
        let first = ["model.layers.0.self_attention_res_norm.weight", "model.layers.0.self_attention_res_proj.weight"];
        assert_eq!(unused, if config.attn_res_block.is_some() { &first[..] } else { &[] }, "{name}");
    }
}

/// Two layers, to be rewritten quickly.
fn small() -> KimiConfig {
    KimiConfig { layers: tiny::kinds(2, &[2]), ..tiny::k3() }
}

/// Rewrite a checkpoint's tensors: (name, dtype, shape, bytes).
fn edit(folder: &Path, change: impl Fn(&mut Vec<(String, String, Vec<u64>, Vec<u8>)>)) -> Checkpoint {
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let mut list: Vec<_> = header
        .into_iter()
        .map(|(name, v)| {
            let at = |i: usize| 8 + length + v["data_offsets"][i].as_u64().expect("offset") as usize;
            let shape = v["shape"].as_array().expect("list").iter().map(|d| d.as_u64().expect("size")).collect();
            (name, v["dtype"].as_str().expect("string").to_owned(), shape, bytes[at(0)..at(1)].to_vec())
        })
        .collect();
    change(&mut list);
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in list {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(&file, all).expect("rewritten");
    Checkpoint::open(&file).expect("still sound")
}

fn refusal(name: &str, change: impl Fn(&mut Vec<(String, String, Vec<u64>, Vec<u8>)>)) -> String {
    let folder = Folder::new(name);
    tiny::write(&folder.0, &small(), 1).expect("written");
    let message = KimiWeights::open(edit(&folder.0, change), &small()).expect_err("refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn a_missing_tensor_is_named() {
    let gone = "language_model.model.layers.1.block_sparse_moe.experts.7.w3.weight_scale";
    let message = refusal("missing", |list| list.retain(|t| t.0 != gone));
    assert!(message.contains(gone) && message.contains("missing"), "{message}");
}

#[test]
fn a_wrong_shape_is_named() {
    let message = refusal("shape", |list| {
        let t = list.iter_mut().find(|t| t.0.ends_with("layers.0.self_attn.b_proj.weight")).expect("there");
        t.2.swap(0, 1);
    });
    assert!(message.contains("b_proj.weight") && message.contains("bf16 [128, 4]"), "{message}");
}

#[test]
fn other_quantisations_are_named() {
    for (suffix, dtype, scheme) in
        [("weight_scale_2", "F32", "NVFP4"), ("weight_scale_inv", "F32", "FP8"), ("weight_scale", "F32", "FP8")]
    {
        let message = refusal(&format!("{scheme}-{suffix}"), |list| {
            let name = format!("language_model.model.layers.0.self_attn.q_proj.{suffix}");
            list.push((name, dtype.to_owned(), vec![1], vec![0; 4]));
        });
        assert!(message.contains(scheme) && message.contains(suffix), "{message}");
    }
}

/// Vision tensors are skipped, others are reported, and a checkpoint without the prefix is as good.
#[test]
fn vision_is_skipped_and_the_prefix_is_optional() {
    let folder = Folder::new("vision");
    tiny::write(&folder.0, &small(), 1).expect("written");
    let checkpoint = edit(&folder.0, |list| {
        list.iter_mut().for_each(|t| t.0 = t.0.trim_start_matches("language_model.").to_owned());
        for name in ["vision_tower.x", "mm_projector.y", "model.layers.2.enorm.weight"] {
            list.push((name.to_owned(), "BF16".to_owned(), vec![1], vec![0; 2]));
        }
    });
    let weights = KimiWeights::open(checkpoint, &small()).expect("complete");
    assert_eq!((weights.skipped(), weights.unknown()), (2, &["model.layers.2.enorm.weight".to_owned()][..]));
}

/// `A_log` has one value per head; what the file pads it with is not read.
#[test]
fn padding_of_a_log_is_cut() {
    let folder = Folder::new("a-log");
    tiny::write(&folder.0, &small(), 1).expect("written");
    let weights = KimiWeights::open(edit(&folder.0, |_| {}), &small()).expect("complete");
    let graph = Graphs::new(&small(), GraphOptions::EXACT).forward;
    let spec = graph.weights.iter().find(|w| w.name.ends_with("A_log")).expect("a KDA layer");
    assert_eq!(spec.dims, [4]);
    let WeightBytes::Mapped { bytes, .. } = weights.weight(spec).expect("there") else { panic!("used in place") };
    assert_eq!(bytes, 16);
}
