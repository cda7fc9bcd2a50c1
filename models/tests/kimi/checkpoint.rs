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

/// A tensor of a file: name, dtype, shape, bytes.
type Stored = (String, String, Vec<u64>, Vec<u8>);

/// Rewrite a checkpoint's tensors.
fn edit(folder: &Path, change: impl Fn(&mut Vec<Stored>)) -> Checkpoint {
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

fn refusal(name: &str, change: impl Fn(&mut Vec<Stored>)) -> String {
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

/// Stacks of experts wherever they are: dense bytes by the graph's own name, and whether they are used in place.
fn stacks(weights: &KimiWeights) -> (Vec<(String, Vec<u8>)>, usize) {
    let graph = Graphs::new(&small(), GraphOptions::EXACT).forward;
    let regions = weights.regions();
    let mut in_place = 0;
    let list = graph.weights.iter().filter(|w| tensors::is_expert(&w.name)).map(|spec| {
        let found = weights.weight(spec).expect("there");
        in_place += usize::from(matches!(found, WeightBytes::Pitched { .. }));
        (spec.name.clone(), found.contents(&regions).into_owned())
    });
    (list.collect(), in_place)
}

/// Experts in order of their id, by the places that the checkpoint gives them.
fn by_id(stacks: &[(String, Vec<u8>)]) -> BTreeMap<String, Vec<Vec<u8>>> {
    let experts = small().moe.experts as usize;
    let layer = |name: &str| name.split_once(".experts.").expect("a stack").0.to_owned();
    let slots: BTreeMap<String, Vec<u32>> = stacks
        .iter()
        .filter(|(name, _)| name.ends_with(".slots"))
        .map(|(name, bytes)| (layer(name), bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()))
        .collect();
    let matrices = stacks.iter().filter(|(name, _)| !name.ends_with(".slots"));
    matrices
        .map(|(name, bytes)| {
            let each = bytes.len() / experts;
            let expert = |slot: &u32| bytes[*slot as usize * each..][..each].to_vec();
            (name.clone(), slots[&layer(name)].iter().map(expert).collect())
        })
        .collect()
}

/// In whatever order a file has the experts, the graph finds the same ones, in place if their pitch is constant.
#[test]
fn experts_are_found_in_any_order_and_used_in_place_where_they_can_be() {
    let folder = Folder::new("places");
    tiny::write(&folder.0, &small(), 1).expect("written");
    let open = |change: &dyn Fn(&mut Vec<Stored>)| {
        let source = Folder::new("places-edited");
        std::fs::copy(folder.0.join("model.safetensors"), source.0.join("model.safetensors")).expect("copied");
        let weights = KimiWeights::open(edit(&source.0, change), &small()).expect("complete");
        let (list, in_place) = stacks(&weights);
        let slots = list.iter().find(|(name, _)| name.ends_with(".slots")).expect("a MoE layer").1.clone();
        (by_id(&list), in_place, weights.copied_expert_bytes(), slots)
    };
    let size = CheckpointSize::of(&small()).experts.bytes;
    // As written: by name, so 0, 1, 10, 11, … with all six tensors of an expert together.
    let (written, in_place, copied, slots) = open(&|_| {});
    assert_eq!((in_place, copied), (6, 0));
    assert_eq!(slots[..16], [0u32, 1, 8, 9].map(u32::to_le_bytes).concat());

    let (name, key) = ("language_model.model.layers.1.block_sparse_moe.experts.", |t: &str| {
        t.split('.').nth(6).and_then(|e| e.parse::<u64>().ok())
    });
    let shuffle = |list: &mut Vec<Stored>| {
        list.sort_by_key(|t| if t.0.starts_with(name) { key(&t.0).map(|e| 1 + e * 7 % 16) } else { None });
    };
    let (shuffled, in_place, copied, slots) = open(&shuffle);
    assert_eq!((in_place, copied), (6, 0));
    assert_eq!(slots[..16], [0u32, 7, 14, 5].map(u32::to_le_bytes).concat());
    assert!(shuffled == written, "the same experts");

    // Something between two experts: no pitch.
    let (apart, in_place, copied, _) = open(&|list| {
        let at = list.iter().position(|t| t.0.contains(".experts.5.w1.weight_packed")).expect("there");
        list.insert(at, ("stray".to_owned(), "U8".to_owned(), vec![3], vec![0; 3]));
    });
    assert_eq!((in_place, copied), (0, size));
    assert!(apart == written, "the same experts");

    // One matrix in an order of its own is copied, in the order of the others.
    let (other, in_place, copied, _) = open(&|list| {
        let odd = |t: &Stored| t.0.ends_with(".w2.weight_packed") && t.0.starts_with(name);
        let mut moved: Vec<_> = list.iter().filter(|t| odd(t)).cloned().collect();
        list.retain(|t| !odd(t));
        moved.reverse();
        list.extend(moved);
    });
    assert_eq!((in_place, copied), (5, 16 * 64 * 48));
    assert!(other == written, "the same experts");
}

/// A layer whose experts lie in two shards is copied.
#[test]
fn experts_split_over_two_shards_are_copied() {
    let folder = Folder::new("shards");
    tiny::write(&folder.0, &small(), 1).expect("written");
    let whole = KimiWeights::open(edit(&folder.0, |_| {}), &small()).expect("complete");
    let want = by_id(&stacks(&whole).0);
    let second = |name: &str| name.contains(".experts.3.") || name.contains(".experts.12.");
    let mut map = Map::new();
    for (file, keep) in [("a.safetensors", false), ("b.safetensors", true)] {
        let part = Folder::new("shards-part");
        std::fs::copy(folder.0.join("model.safetensors"), part.0.join("model.safetensors")).expect("copied");
        for tensor in edit(&part.0, |list| list.retain(|t| second(&t.0) == keep)).tensors() {
            map.insert(tensor.name.clone(), json!(file));
        }
        std::fs::copy(part.0.join("model.safetensors"), folder.0.join(file)).expect("copied");
    }
    let index = folder.0.join("split.safetensors.index.json");
    std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).expect("written");
    let split = KimiWeights::open(Checkpoint::open(&index).expect("sound"), &small()).expect("complete");
    let (list, in_place) = stacks(&split);
    assert_eq!((in_place, split.copied_expert_bytes()), (0, CheckpointSize::of(&small()).experts.bytes));
    assert!(by_id(&list) == want, "the same experts");
}
