//! Sharded checkpoints whose index and files disagree: "missing shard".
use crate::files::*;
use serde_json::json;
use tokenspeed_models::weights::Checkpoint;

const INDEX: &str = "model.safetensors.index.json";

/// Two shards with tensor `a` and `b`; `index` is the weight map.
fn sharded(index: serde_json::Value) -> Folder {
    let folder = Folder::new();
    folder.write("one.safetensors", st(&[("a", "F32", &[4], 0, 16)], 16));
    folder.write("two.safetensors", st(&[("b", "F32", &[2], 0, 8), ("c", "F32", &[1], 8, 12)], 12));
    folder.write(INDEX, json!({"metadata": {"total_size": 28}, "weight_map": index}).to_string());
    folder
}

fn refused(folder: &Folder) -> String {
    refusal_of(&folder.path().join(INDEX))
}

#[test]
fn a_good_index_opens() {
    let folder = sharded(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    let checkpoint = Checkpoint::open(&folder.path().join(INDEX)).expect("good checkpoint");
    assert_eq!(checkpoint.tensors().len(), 2);
    assert!(checkpoint.file_of(checkpoint.get("b").expect("listed")).ends_with("two.safetensors"));
    assert_eq!(checkpoint.unlisted(), [("c".to_owned(), "two.safetensors".to_owned())]);
}

#[test]
fn a_shard_is_missing() {
    let folder = sharded(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    std::fs::remove_file(folder.path().join("two.safetensors")).expect("removed");
    assert_eq!(
        refused(&folder),
        "names shard `two.safetensors` for tensor `b`, but that file does not exist; download it"
    );
}

#[test]
fn a_shard_is_truncated() {
    let folder = sharded(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    let path = folder.write("two.safetensors", &st(&[("b", "F32", &[2], 0, 8)], 8)[..60]);
    let message = Checkpoint::open(&folder.path().join(INDEX)).expect_err("short shard").to_string();
    assert!(message.starts_with(&format!("{}: is truncated", path.display())), "{message}");
}

#[test]
fn a_tensor_is_in_another_shard() {
    let folder = sharded(json!({"a": "two.safetensors", "b": "two.safetensors", "c": "one.safetensors"}));
    assert_eq!(
        refused(&folder),
        "tensor `a` is not in shard `two.safetensors` where the index puts it; it is in `one.safetensors`"
    );
}

#[test]
fn a_tensor_is_in_no_shard() {
    let folder = sharded(json!({"a": "one.safetensors", "ghost": "two.safetensors"}));
    assert_eq!(
        refused(&folder),
        "tensor `ghost` is not in shard `two.safetensors` where the index puts it; no shard has it"
    );
}

#[test]
fn a_tensor_is_in_two_shards() {
    let folder = sharded(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    folder.write("two.safetensors", st(&[("a", "F32", &[4], 0, 16), ("b", "F32", &[2], 16, 24)], 24));
    assert_eq!(
        refused(&folder),
        "tensor `a` is in two shards, `one.safetensors` and `two.safetensors` (duplicate name)"
    );
}

#[test]
fn the_index_is_unusable() {
    let folder = Folder::new();
    for (text, want) in [
        ("", "is empty"),
        ("{}", "missing field `weight_map`"),
        ("nope", "is not a usable index"),
        (r#"{"weight_map": {}}"#, "its weight_map is empty"),
        (r#"{"weight_map": {"a": 1}}"#, "is not a usable index"),
        (r#"{"weight_map": {"a": "x", "a": "y"}}"#, "tensor `a` is listed twice"),
        (r#"{"weight_map": {"a": "../x.safetensors"}}"#, "not a plain file name"),
        (r#"{"weight_map": {"a": "/x.safetensors"}}"#, "not a plain file name"),
        (r#"{"weight_map": {"a": ""}}"#, "not a plain file name"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ] {
        folder.write(INDEX, text);
        let message = refused(&folder);
        assert!(message.contains(want), "{text}: {message}");
    }
}
