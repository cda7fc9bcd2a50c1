//! Graphs against golden logits from a numpy float64 script (`tests/vectors/llama_forward.py`).
use crate::{
    files::Folder,
    interpreter::{dtype, logits},
};
use serde_json::json;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    loader::{LoadOptions, Model},
    tiny::Tiny,
};

#[derive(serde::Deserialize)]
struct Golden {
    name: String,
    /// Of model.safetensors: the golden logits belong to exactly these bytes.
    weights_fnv1a: String,
    ids: Vec<u32>,
    logits: Vec<Vec<f64>>,
}

fn golden() -> Vec<(Golden, Tiny)> {
    let list: Vec<Golden> =
        serde_json::from_str(include_str!("../../../tests/vectors/llama_forward.json")).expect("committed vectors");
    let mut tiny = Tiny::golden();
    let mut take = |name: &str| tiny.remove(tiny.iter().position(|(n, _)| *n == name).expect("a tiny model")).1;
    let pairs = list.into_iter().map(|g| (take(&g.name), g)).map(|(t, g)| (g, t)).collect();
    assert!(tiny.is_empty(), "tiny models without golden logits");
    pairs
}

fn open(path: &std::path::Path) -> Model {
    Model::open(path, &LoadOptions::default()).expect("a good model")
}

/// Frequencies (and in GGUF epsilon) are f32, everything else in the comparison is f64.
fn close(got: &[Vec<f64>], want: &[Vec<f64>], what: &str) {
    assert_eq!((got.len(), got[0].len()), (want.len(), want[0].len()));
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        for (id, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() < 2e-5, "{what}: row {row}, id {id}: {got} is not {want}");
        }
    }
}

#[test]
fn golden_logits_from_safetensors() {
    for (g, tiny) in golden() {
        let folder = Folder::new();
        tiny.write_folder(folder.path(), DType::F32).expect("written");
        let bytes = std::fs::read(folder.path().join("model.safetensors")).expect("readable");
        let hash =
            bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        assert_eq!(format!("{hash:016x}"), g.weights_fnv1a, "{}: other weights; recompute the vectors", g.name);
        let model = open(folder.path());
        let all: Vec<usize> = (0..g.ids.len()).collect();
        close(&logits(&model, &g.ids, &all), &g.logits, &g.name);
        // Only wanted rows, in the order wanted.
        close(&logits(&model, &g.ids, &[11, 3]), &[g.logits[11].clone(), g.logits[3].clone()], &g.name);
    }
}

/// Paired rotation of permuted rows, scaling as divisors, other key and tensor names: same logits.
#[test]
fn golden_logits_from_gguf() {
    for (g, tiny) in golden() {
        let folder = Folder::new();
        let path = folder.path().join("tiny.gguf");
        tiny.write_gguf(&path, DType::F32).expect("written");
        let all: Vec<usize> = (0..g.ids.len()).collect();
        close(&logits(&open(&path), &g.ids, &all), &g.logits, &g.name);
    }
}

#[test]
fn shards_are_the_same_model() {
    let (g, tiny) = golden().remove(0);
    let folder = Folder::new();
    tiny.write_sharded(folder.path(), 3).expect("written");
    let all: Vec<usize> = (0..g.ids.len()).collect();
    close(&logits(&open(folder.path()), &g.ids, &all), &g.logits, "sharded");
}

/// `--dtype f32` is what the stored format means, to the bit; and quantising changes the model.
#[test]
fn dequantised_is_the_same_model() {
    let (g, tiny) = golden().remove(0);
    let rows = [g.ids.len() - 1];
    for stored in [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1] {
        let folder = Folder::new();
        let path = folder.path().join("tiny.gguf");
        tiny.write_gguf(&path, stored).expect("written");
        let in_place = open(&path);
        assert_eq!(dtype(&in_place, "layers.1.down_proj"), stored);
        let options = LoadOptions { dequantize: Some(DType::F32), ..LoadOptions::default() };
        let converted = Model::open(&path, &options).expect("a good model");
        assert_eq!(dtype(&converted, "layers.1.down_proj"), DType::F32);
        let (a, b) = (logits(&in_place, &g.ids, &rows), logits(&converted, &g.ids, &rows));
        assert_eq!(a, b, "{stored}");
        assert_ne!(a[0], g.logits[rows[0]], "{stored}");
    }
}

/// Long context at work: an early token moves the last logits, outside a window it does not.
#[test]
fn early_tokens_matter_unless_outside_the_window() {
    let folder = Folder::new();
    let change = |tiny: Tiny| {
        tiny.write_folder(folder.path(), DType::F32).expect("written");
        let model = open(folder.path());
        let ids: Vec<u32> = (0..20).map(|i| i * 7 % 40).collect();
        let mut other = ids.clone();
        other[3] += 1;
        let (a, b) = (logits(&model, &ids, &[19]), logits(&model, &other, &[19]));
        a[0].iter().zip(&b[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    assert!(change(Tiny::llama()) > 1e-3);
    // Two layers of window 4 see 7 tokens back.
    assert_eq!(change(Tiny::mistral()), 0.0);
    assert!(change(Tiny::mistral().with("sliding_window", json!(9))) > 1e-6);
}
