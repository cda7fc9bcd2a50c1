//! What a draft checkpoint must hold, and how it is refused.

use crate::fixture::{Folder, Pair};
use serde_json::{Map, Value, json};
use tokenspeed_backend_api::graph::{WeightBytes, WeightSource};
use tokenspeed_models::{
    eagle3::{Eagle3Config, Eagle3Weights, PREFIX, tensors, tiny},
    kimi,
    weights::Checkpoint,
};

/// Name, dtype, shape, bytes.
type Entry = (String, String, Vec<u64>, Vec<u8>);

/// Write a draft, change its tensors, open it.
fn open(name: &str, config: &Eagle3Config, change: impl Fn(&mut Vec<Entry>)) -> Result<Eagle3Weights, String> {
    let folder = Folder::new(&format!("checkpoint-{name}"));
    tiny::write(&folder.draft(), config, 1, true).expect("written");
    let file = folder.draft().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let mut list: Vec<Entry> = header
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
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat())
        .expect("rewritten");
    Eagle3Weights::open(Checkpoint::open(&file).expect("still sound"), config).map_err(|e| e.to_string())
}

fn config() -> Eagle3Config {
    tiny::config(&kimi::tiny::k3())
}

fn entry<'a>(list: &'a mut [Entry], name: &str) -> &'a mut Entry {
    list.iter_mut().find(|t| t.0 == name).expect(name)
}

#[test]
fn every_missing_or_misshapen_tensor_is_named() {
    let mut names = Vec::new();
    tensors::all(&config(), &mut |t| names.push(t.name));
    assert_eq!(names.len(), 20);
    for name in names {
        let message = match open("missing", &config(), |list| list.retain(|t| t.0 != name)) {
            Ok(weights) => {
                assert!(name == tensors::EMBEDDING && !weights.has_embedding(), "{name}");
                continue;
            }
            Err(message) => message,
        };
        assert!(message.contains(&name) && message.contains("missing") && !message.contains('\n'), "{message}");
        let message = open("shape", &config(), |list| entry(list, &name).2.insert(0, 1)).expect_err("refused");
        assert!(message.contains(&name) && message.contains("is needed") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn other_drafts_are_named() {
    for (name, kind) in [
        ("model.layers.61.eh_proj.weight", "an MTP layer"),
        ("model.layers.61.enorm.weight", "an MTP layer"),
        ("dspark.fc.weight", "a DSpark draft"),
    ] {
        let message = open("other", &config(), |list| list.push((name.into(), "BF16".into(), vec![1], vec![0; 2])));
        let message = message.expect_err("refused");
        assert!(message.contains(name) && message.contains(kind) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn what_nobody_asks_for_is_reported() {
    let weights = open("unknown", &config(), |list| list.push(("rotary.x".into(), "BF16".into(), vec![1], vec![0; 2])));
    assert_eq!(weights.expect("complete").unknown(), ["rotary.x"]);
}

#[test]
fn a_smaller_head_needs_a_table() {
    let small = Eagle3Config { draft_vocab_size: 200, ..config() };
    let weights = open("table", &small, |_| {}).expect("complete");
    let ids = weights.token_ids().expect("a table");
    assert!(ids.len() == 200 && ids[0] == 0 && ids[199] == 199 * 512 / 200);
    assert_eq!(open("full", &config(), |_| {}).expect("complete").token_ids(), None);

    type Change = fn(&mut Vec<Entry>);
    let cases: [(Change, &[&str]); 5] = [
        (|list| list.retain(|t| t.0 != "d2t"), &["d2t", "missing"]),
        (|list| entry(list, "d2t").3[8..16].copy_from_slice(&600i64.to_le_bytes()), &["d2t", "row 1", "512 tokens"]),
        (|list| entry(list, "d2t").3[..8].copy_from_slice(&(-1i64).to_le_bytes()), &["d2t", "row 0"]),
        (|list| entry(list, "d2t").3[8..16].copy_from_slice(&(-1i64).to_le_bytes()), &["d2t", "two rows", "token 0"]),
        (|list| entry(list, "t2d").3[1] = 1, &["t2d", "token 1"]),
    ];
    for (change, parts) in cases {
        let message = open("bad-table", &small, change).expect_err("refused");
        assert!(parts.iter().all(|p| message.contains(p)) && !message.contains('\n'), "{message}");
    }
}

/// The graphs ask for every tensor and no other; without a table of its own, the draft uses the target's.
#[test]
fn every_tensor_is_used() {
    let folder = Folder::new("used");
    for embedding in [true, false] {
        let pair = Pair::random(&folder, &config(), embedding);
        let source = pair.source();
        let mut names: Vec<&str> = Vec::new();
        for spec in pair.draft.first.weights.iter().chain(&pair.draft.next.weights) {
            source.weight(spec).expect("there");
            names.extend(spec.name.strip_prefix(PREFIX).filter(|n| !n.starts_with("rope.")));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 19 + usize::from(embedding));
        let table = pair.draft.first.weights.iter().find(|w| w.name.ends_with("embed_tokens.weight")).expect("a table");
        let WeightBytes::Mapped { region, .. } = source.weight(table).expect("there") else { panic!("used in place") };
        assert_eq!(region, usize::from(embedding), "{}", table.name);
    }
}
