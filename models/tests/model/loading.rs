//! Whole models that do not fit together: missing shards, tied embeddings, wrong shapes, options.
use crate::{
    files::{Folder, st},
    interpreter::dtype,
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::path::Path;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{WeightBytes, WeightSource},
};
use tokenspeed_models::{
    config::ModelConfig,
    loader::{LoadOptions, Model, TextSource},
    tiny::Tiny,
};

const WEIGHTS: &str = "model.safetensors";

fn try_open(path: &Path) -> Result<Model, String> {
    Model::open(path, &LoadOptions::default()).map_err(|e| {
        let message = e.to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    })
}

fn written(tiny: &Tiny) -> Folder {
    let folder = Folder::new();
    tiny.write_folder(folder.path(), DType::F32).expect("written");
    folder
}

/// Rewrite the weight file through the reference library: `edit` sees (name, shape, bytes) of every tensor.
fn edit(folder: &Folder, mut edit: impl FnMut(&mut Vec<(String, Vec<usize>, Vec<u8>)>)) {
    let path = folder.path().join(WEIGHTS);
    let bytes = std::fs::read(&path).expect("readable");
    let file = SafeTensors::deserialize(&bytes).expect("good file");
    let mut tensors: Vec<_> =
        file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec(), view.data().to_vec())).collect();
    tensors.sort();
    edit(&mut tensors);
    let views = tensors.iter().map(|(name, shape, data)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), data).expect("consistent view"))
    });
    std::fs::write(&path, safetensors::serialize(views, None).expect("serialises")).expect("written");
}

fn remove(folder: &Folder, name: &str) {
    edit(folder, |tensors| tensors.retain(|t| t.0 != name));
}

fn set_config(folder: &Folder, tiny: &Tiny, field: &str, value: Option<Value>) {
    let mut config = tiny.config.clone();
    match value {
        Some(value) => config.insert(field.to_owned(), value),
        None => config.remove(field),
    };
    folder.write("config.json", Value::Object(config).to_string());
}

#[test]
fn a_folder_opens() {
    let folder = written(&Tiny::llama());
    let model = try_open(folder.path()).expect("good");
    assert!(model.notices.is_empty(), "{:?}", model.notices);
    assert_eq!(model.generation.eos_ids, [2]);
    assert!(matches!(&model.text, TextSource::Folder(path) if path == folder.path()));
    // The weight file itself is as good as its folder.
    assert_eq!(try_open(&folder.path().join(WEIGHTS)).expect("good").name, model.name);
    folder.write("generation_config.json", r#"{"eos_token_id": [3], "temperature": 0.5}"#);
    let generation = try_open(folder.path()).expect("good").generation;
    assert_eq!((generation.eos_ids.as_slice(), generation.temperature), ([2, 3].as_slice(), Some(0.5)));
}

/// Every weight of the graph is there, with exactly its size; matrices in place, in the file.
#[test]
fn every_weight_has_its_bytes() {
    let folder = written(&Tiny::qwen2());
    let model = try_open(folder.path()).expect("good");
    for spec in &model.graph.weights {
        let want = spec.dtype.bytes(spec.dims.iter().product()).expect("whole blocks");
        match model.weights.weight(spec).expect("exists") {
            WeightBytes::Mapped { region, offset, bytes } => {
                assert_eq!((region, bytes), (0, want), "{}", spec.name);
                assert!(offset + bytes <= model.weights.regions()[0].len() as u64);
            }
            WeightBytes::Owned(bytes) => assert_eq!((spec.name.as_str(), bytes.len() as u64), ("rope.inv_freq", want)),
        }
    }
    let mut other = model.graph.weights[0].clone();
    other.dims[0] += 1;
    assert!(model.weights.weight(&other).is_err());
    other.name = "nonsense".to_owned();
    assert!(model.weights.weight(&other).is_err());
}

#[test]
fn tied_with_an_equal_head() {
    let folder = written(&Tiny::llama().with("tie_word_embeddings", json!(true)));
    edit(&folder, |tensors| {
        let table = tensors.iter().find(|t| t.0 == "model.embed_tokens.weight").expect("the table").clone();
        tensors.push(("lm_head.weight".to_owned(), table.1, table.2));
    });
    let model = try_open(folder.path()).expect("good");
    let [notice] = &model.notices[..] else { panic!("{:?}", model.notices) };
    assert!(!notice.is_warning && notice.text.contains("repeats the embedding table"), "{notice:?}");
}

#[test]
fn tied_with_another_head() {
    let tiny = Tiny::llama();
    let folder = written(&tiny);
    set_config(&folder, &tiny, "tie_word_embeddings", Some(json!(true)));
    let model = try_open(folder.path()).expect("the config wins");
    let [notice] = &model.notices[..] else { panic!("{:?}", model.notices) };
    assert!(notice.is_warning && notice.text.contains("lm_head.weight` DIFFERS"), "{notice:?}");
    assert!(model.graph.weights.iter().all(|w| w.name != "lm_head"));
}

/// Said to be untied, or left to the architecture's default, which for these families is untied.
#[test]
fn untied_without_a_head() {
    let tiny = Tiny::llama();
    let folder = written(&tiny);
    remove(&folder, "lm_head.weight");
    for value in [Some(json!(false)), None] {
        set_config(&folder, &tiny, "tie_word_embeddings", value);
        let message = try_open(folder.path()).expect_err("must be refused");
        assert!(message.contains("tensor `lm_head.weight` is missing; tie_word_embeddings is false"), "{message}");
    }
}

#[test]
fn missing_tensors() {
    let folder = written(&Tiny::llama());
    remove(&folder, "model.layers.1.mlp.up_proj.weight");
    remove(&folder, "model.norm.weight");
    let message = try_open(folder.path()).expect_err("must be refused");
    let want = format!(
        "{}: tensor `model.layers.1.mlp.up_proj.weight` is missing (and 1 more)",
        folder.path().join(WEIGHTS).display()
    );
    assert_eq!(message, want);
}

#[test]
fn wrong_shapes() {
    let tiny = Tiny::llama();
    let folder = written(&tiny);
    edit(&folder, |tensors| {
        let q = tensors.iter_mut().find(|t| t.0.ends_with("layers.0.self_attn.k_proj.weight")).expect("k_proj");
        q.1 = vec![64, 32];
    });
    let message = try_open(folder.path()).expect_err("must be refused");
    let want = "tensor `model.layers.0.self_attn.k_proj.weight` has shape [64, 32], but the config needs [32, 64]";
    assert!(message.ends_with(want), "{message}");
    set_config(&folder, &tiny, "vocab_size", Some(json!(41)));
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(
        message.contains("`model.embed_tokens.weight` has shape [40, 64], but the config needs [41, 64]"),
        "{message}"
    );
}

/// A bias nobody would add, or a layer nobody would run, must not be dropped in silence; a saved buffer may.
#[test]
fn surplus_tensors() {
    let folder = written(&Tiny::llama());
    edit(&folder, |tensors| {
        tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![8], vec![0; 32]));
    });
    let model = try_open(folder.path()).expect("good");
    assert!(model.notices.iter().any(|n| !n.is_warning && n.text.contains("rotary_emb.inv_freq")));
    edit(&folder, |tensors| {
        tensors.push(("model.layers.0.self_attn.q_proj.bias".to_owned(), vec![64], vec![0; 256]));
    });
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("tensor `model.layers.0.self_attn.q_proj.bias` is not part of the model"), "{message}");
    let tiny = Tiny::llama();
    let folder = written(&tiny);
    set_config(&folder, &tiny, "num_hidden_layers", Some(json!(1)));
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("tensor `model.layers.1.") && message.contains("(nor are 8 more)"), "{message}");
}

#[test]
fn shards_are_missing_or_unlisted() {
    let folder = Folder::new();
    Tiny::llama().write_sharded(folder.path(), 3).expect("written");
    let index = folder.path().join("model.safetensors.index.json");
    let mut map: Value = serde_json::from_slice(&std::fs::read(&index).expect("readable")).expect("JSON");
    map["weight_map"].as_object_mut().expect("a map").remove("model.norm.weight");
    let good = std::fs::read(&index).expect("readable");
    std::fs::write(&index, map.to_string()).expect("written");
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("`model.norm.weight` is missing; shard `model-0000"), "{message}");
    assert!(message.contains("the index does not list it"), "{message}");

    std::fs::write(&index, good).expect("written");
    std::fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).expect("removed");
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("names shard `model-00002-of-00003.safetensors`"), "{message}");

    std::fs::remove_file(&index).expect("removed");
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("has 2 safetensors files but no model.safetensors.index.json"), "{message}");
}

#[test]
fn truncated_weights() {
    let folder = written(&Tiny::llama());
    let bytes = std::fs::read(folder.path().join(WEIGHTS)).expect("readable");
    folder.write(WEIGHTS, &bytes[..bytes.len() - 4096]);
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains(&format!("the file has {} bytes", bytes.len() - 4096)), "{message}");
    assert!(message.contains(&format!("ends at byte {}", bytes.len())), "{message}");
}

#[test]
fn nothing_to_open() {
    let folder = Folder::new();
    assert!(try_open(&folder.path().join("absent")).expect_err("absent").contains("no such file or folder"));
    assert!(try_open(Path::new("dummy:absent.json")).expect_err("absent").contains("absent.json: no such file"));
    assert!(try_open(folder.path()).expect_err("empty").contains("has no weights"));
    folder.write("pytorch_model.bin", "x");
    assert!(try_open(folder.path()).expect_err("pickle").contains("convert them to safetensors"));
    folder.write(WEIGHTS, st(&[("a", "F32", &[4], 0, 16)], 16));
    assert!(try_open(folder.path()).expect_err("no config").contains("no config.json"));
}

#[test]
fn unusable_element_types() {
    let tiny = Tiny::llama();
    let folder = written(&tiny);
    let path = folder.path().join(WEIGHTS);
    let text = std::fs::read(&path).expect("readable");
    let header_end = 8 + u64::from_le_bytes(text[..8].try_into().expect("8 bytes")) as usize;
    let header = String::from_utf8(text[8..header_end].to_vec()).expect("UTF-8").replace("\"F32\"", "\"I32\"");
    folder.write(WEIGHTS, [&text[..8], header.as_bytes(), &text[header_end..]].concat());
    let message = try_open(folder.path()).expect_err("must be refused");
    assert!(message.contains("is stored as i32, which this engine cannot compute with"), "{message}");
}

#[test]
fn options_are_checked() {
    let folder = written(&Tiny::llama().with("hidden_size", json!(72)).with("head_dim", json!(16)));
    let open = |options: LoadOptions| Model::open(folder.path(), &options).map_err(|e| e.to_string());
    let bad = LoadOptions { kv_dtype: DType::Q8_0, ..LoadOptions::default() };
    assert!(open(bad).expect_err("refused").starts_with("--kv-cache-dtype q8_0 is not supported"));
    let bad = LoadOptions { dequantize: Some(DType::Q6K), ..LoadOptions::default() };
    assert!(open(bad).expect_err("refused").starts_with("--dtype q6_k is not supported"));
    let bad = LoadOptions { dequantize: Some(DType::F8E4M3), ..LoadOptions::default() };
    assert!(open(bad).expect_err("refused").starts_with("--dtype fp8_e4m3 is not supported"));
    let bad = LoadOptions { dequantize: Some(DType::Q8_0), ..LoadOptions::default() };
    assert!(open(bad).expect_err("refused").contains("has rows of 72 values, which cannot be converted to q8_0"));
    let half = LoadOptions { kv_dtype: DType::F16, dequantize: Some(DType::BF16), ..LoadOptions::default() };
    let model = open(half).expect("good");
    assert_eq!(dtype(&model, "layers.0.q_proj"), DType::BF16);
    assert_eq!(dtype(&model, "layers.0.input_norm"), DType::F32);
    // 2 layers x (k, v) x 2 heads x 16 x 2 bytes.
    assert_eq!(model.sizes().cache_bytes_per_token, 256);
}

#[test]
fn sizes_add_up() {
    let folder = written(&Tiny::llama());
    let sizes = try_open(folder.path()).expect("good").sizes();
    let attention = 2 * (64 * 64 * 2 + 32 * 64 * 2);
    let mlp = 2 * 3 * 64 * 96;
    assert_eq!(sizes.parameters, 2 * 40 * 64 + attention + mlp + 5 * 64);
    assert_eq!((sizes.embedding_bytes, sizes.head_bytes), (40 * 64 * 4, 40 * 64 * 4));
    assert_eq!((sizes.attention_bytes, sizes.mlp_bytes), (attention * 4, mlp * 4));
    // Norms and the 8 frequencies, which alone are not in the file.
    assert_eq!((sizes.norm_bytes, sizes.owned_bytes), (5 * 64 * 4 + 32, 32));
    assert_eq!(sizes.weight_bytes, sizes.parameters * 4 + 32);
    assert_eq!(sizes.cache_bytes_per_token, 2 * 2 * 2 * 16 * 4);
    let tied = written(&Tiny::qwen3());
    assert_eq!(try_open(tied.path()).expect("good").sizes().head_bytes, 0);
}

#[test]
fn dummy_models_repeat() {
    let tiny = Tiny::llama().with("torch_dtype", json!("bfloat16"));
    let folder = Folder::new();
    let config = folder.write("config.json", Value::Object(tiny.config).to_string());
    let path = format!("dummy:{}", config.display());
    let bytes = |seed| {
        let options = LoadOptions { seed, ..LoadOptions::default() };
        let model = Model::open(Path::new(&path), &options).expect("good");
        assert!(model.notices[0].text.contains("random weights"));
        let spec = model.graph.weights.iter().find(|w| w.name == "layers.0.q_proj").expect("a weight");
        assert_eq!(spec.dtype, DType::BF16);
        match model.weights.weight(spec).expect("made") {
            WeightBytes::Owned(bytes) => bytes.into_owned(),
            WeightBytes::Mapped { .. } => panic!("there is no file"),
        }
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));

    // A plan needs no weights; a real start does.
    assert!(try_open(folder.path()).expect_err("no weights").contains("has no weights"));
    let planned = Model::open_to_plan(folder.path(), &LoadOptions::default()).expect("good");
    assert!(planned.sizes().weight_bytes > 0);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let mut tiny = Tiny::llama();
    for field in ["vocab_size", "hidden_size", "intermediate_size"] {
        tiny = tiny.with(field, json!(1 << 30));
    }
    let tiny = tiny.with("head_dim", json!(16)).with("num_hidden_layers", json!(8));
    let folder = Folder::new();
    let config = folder.write("config.json", Value::Object(tiny.config).to_string());
    let path = format!("dummy:{}", config.display());
    let model = Model::open(Path::new(&path), &LoadOptions::default()).expect("only sizes");
    assert_eq!(model.sizes().weight_bytes, u64::MAX);
}

#[test]
fn gguf_shapes_and_names() {
    let folder = Folder::new();
    let path = folder.path().join("tiny.gguf");
    Tiny::qwen3().write_gguf(&path, DType::Q8_0).expect("written");
    let model = try_open(&path).expect("good");
    assert!(
        matches!(&model.config, ModelConfig::Llama(c) if c.tied_embeddings)
            && matches!(model.text, TextSource::Gguf(_))
    );
    assert_eq!(model.name, "tiny");
    // A folder with a single GGUF file is as good as the file.
    assert_eq!(try_open(folder.path()).expect("good").config, model.config);

    let mut bytes = std::fs::read(&path).expect("readable");
    let at = bytes.windows(16).position(|w| w == b"blk.0.ffn_up.wei").expect("the name");
    bytes[at + 6] = b'x';
    let broken = folder.write("broken.gguf", &bytes);
    let message = try_open(&broken).expect_err("must be refused");
    assert_eq!(message, format!("{}: tensor `blk.0.ffn_up.weight` is missing", broken.display()));
    assert!(try_open(folder.path()).expect_err("ambiguous").contains("has 2 GGUF files"));
}
