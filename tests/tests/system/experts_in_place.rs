//! *Experts used where the file has them*: in place, gathered into memory, or under a budget, a tiny Kimi K3 gives the
//! same log-probabilities to the last bit.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{
    batch_invariance::ids,
    support::{self, Answer, finish_all, greedy, models},
};

/// Put a few bytes between the experts of each layer, so that they lie at no constant pitch.
fn spread(folder: &Path) {
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let (mut out, mut data): (Map<String, Value>, Vec<u8>) = Default::default();
    for (name, mut entry) in header {
        if name.contains(".experts.1.w1.weight_packed") {
            let at = data.len();
            data.extend([0; 2]);
            out.insert(format!("stray.{at}"), json!({"dtype": "U8", "shape": [2], "data_offsets": [at, at + 2]}));
        }
        let at = |i: usize| 8 + length + entry["data_offsets"][i].as_u64().expect("an offset") as usize;
        let (from, to) = (at(0), at(1));
        entry["data_offsets"] = json!([data.len(), data.len() + to - from]);
        data.extend(&bytes[from..to]);
        out.insert(name, entry);
    }
    let mut header = Value::Object(out).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(&file, all).expect("rewritten");
    // The index does not know the strays; the one file is the whole checkpoint.
    std::fs::remove_file(folder.join("model.safetensors.index.json")).expect("removed");
}

#[test]
fn in_place_gathered_and_under_a_budget_are_the_same_bits() {
    let (whole, apart) = (models::kimi(), models::kimi());
    spread(apart.path());
    for mode in ["exact", "fast"] {
        let answer = |folder: &models::Folder, words: &str| -> Vec<Answer> {
            let words = format!("--mode {mode} --max-model-len 512 --max-num-seqs 4 {words}");
            let engine = support::load(&folder.model(), &words).engine;
            finish_all(&*engine, [90, 7, 1].map(|n| greedy(&ids(n as u32, n), 4)))
        };
        let same = |a: &[Answer], b: &[Answer]| a.iter().zip(b).all(|(a, b)| a.numbers() == b.numbers());
        let in_place = answer(&whole, "");
        assert!(same(&answer(&apart, ""), &in_place), "{mode}: gathered");
        if mode == "fast" {
            // Room for a few experts of the file's 8 MB, in windows of 2 MB.
            let budget = answer(&whole, "--backend-option expert_cache_bytes=8388608");
            assert!(same(&budget, &in_place), "under a budget");
        }
    }
}
