//! Malformed GGUF files: "zero dimension, product overflow, wrong-typed keys".
use crate::files::*;
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::weights::{
    Checkpoint, Format,
    gguf::{self, Array, Value},
};

const NAME: &str = "model.gguf";

fn one_tensor(dims: &[u64], kind: u32, offset: u64, data: usize) -> Vec<u8> {
    gguf_with_data([gguf_head(1, 0), gguf_tensor("t", dims, kind, offset)].concat(), data)
}

#[test]
fn a_good_file_opens() {
    let folder = Folder::new();
    let file = [
        gguf_head(2, 1),
        gguf_key("general.architecture", 8, &gguf_string("llama")),
        gguf_tensor("x", &[32, 3], 8, 32),
        gguf_tensor("n", &[2], 0, 0),
    ];
    let checkpoint = Checkpoint::open(&folder.write(NAME, gguf_with_data(file.concat(), 32 + 102))).expect("good file");
    let x = checkpoint.get("x").expect("listed");
    assert_eq!((x.format, x.shape.as_slice(), x.bytes), (Format::Known(DType::Q8_0), [3, 32].as_slice(), 102));
    assert_eq!(checkpoint.get("n").expect("listed").offset + 32, x.offset);
    let metadata = checkpoint.metadata().expect("has metadata");
    assert_eq!(metadata.str("general.architecture").expect("a string"), Some("llama"));
}

#[test]
fn zero_dimension() {
    assert_eq!(refusal(NAME, one_tensor(&[4, 0], 0, 0, 64)), "tensor `t` has a zero dimension: [0, 4]");
}

#[test]
fn product_overflows() {
    let message = refusal(NAME, one_tensor(&[4_194_305, 4_194_305, 211_106_198_978_564], 0, 0, 64));
    assert!(message.starts_with("tensor `t` has shape [211106198978564,") && message.ends_with("overflows"));
    let message = refusal(NAME, one_tensor(&[1 << 62], 0, 0, 64));
    assert!(message.ends_with("whose size overflows"), "{message}");
}

#[test]
fn a_million_dimensions() {
    let file = [gguf_head(1, 0), gguf_string("t"), 1_000_000u32.to_le_bytes().to_vec()].concat();
    assert_eq!(refusal(NAME, gguf_with_data(file, 64)), "tensor `t` has 1000000 dimensions; 1 to 4 are possible");
    assert_eq!(refusal(NAME, one_tensor(&[], 0, 0, 64)), "tensor `t` has 0 dimensions; 1 to 4 are possible");
}

#[test]
fn string_longer_than_the_file() {
    let file = [gguf_head(0, 1), (1u64 << 60).to_le_bytes().to_vec(), b"xxxxxxxxxxxxx".to_vec()].concat();
    assert!(refusal(NAME, file).starts_with("is truncated: metadata key 0 ends at byte"));
}

#[test]
fn alignment_of_the_wrong_type() {
    let file = [gguf_head(0, 1), gguf_key("general.alignment", 7, &[1])].concat();
    assert_eq!(refusal(NAME, file), "key `general.alignment` is a bool, but an unsigned integer is needed");
}

#[test]
fn alignment_not_a_power_of_two() {
    for alignment in [0u32, 3, 1 << 31] {
        let file = [gguf_head(0, 1), gguf_key("general.alignment", 4, &alignment.to_le_bytes())].concat();
        let message = refusal(NAME, file);
        assert!(message.starts_with(&format!("key `general.alignment` is {alignment}; a power of two")), "{message}");
    }
}

#[test]
fn bad_magic_and_versions() {
    assert!(refusal(NAME, [b"FUGG".as_slice(), &[0; 32]].concat()).contains("starts with `FUGG`"));
    for (version, want) in [(1u32, "version 1;"), (4, "version 4;"), (3u32.swap_bytes(), "big-endian")] {
        let mut file = gguf_head(0, 0);
        file[4..8].copy_from_slice(&version.to_le_bytes());
        assert!(refusal(NAME, file).contains(want));
    }
    assert!(refusal(NAME, b"GGUF").contains("is truncated: the version"));
}

#[test]
fn counts_no_file_could_hold() {
    assert_eq!(
        refusal(NAME, gguf_head(1 << 63, 0)),
        "claims 9223372036854775808 tensors, more than its 0 remaining bytes can hold"
    );
    assert!(refusal(NAME, gguf_head(0, u64::MAX)).contains("metadata keys"));
    for kind in [0u32, 8, 9] {
        let array = [kind.to_le_bytes().as_slice(), &(1u64 << 61).to_le_bytes()].concat();
        let file = [gguf_head(0, 1), gguf_key("k", 9, &array), vec![0; 64]].concat();
        assert!(refusal(NAME, file).contains("elements in `k`"), "element type {kind}");
    }
}

#[test]
fn duplicate_tensors_and_keys() {
    let file = [gguf_head(2, 0), gguf_tensor("t", &[8], 0, 0), gguf_tensor("t", &[8], 0, 32)].concat();
    assert_eq!(refusal(NAME, gguf_with_data(file, 64)), "tensor `t` is listed twice (duplicate name)");
    let file = [gguf_head(0, 2), gguf_key("k", 0, &[1]), gguf_key("k", 0, &[1])].concat();
    assert_eq!(refusal(NAME, file), "key `k` is listed twice (duplicate key)");
}

#[test]
fn offsets() {
    assert_eq!(
        refusal(NAME, one_tensor(&[4], 0, 33, 128)),
        "tensor `t` starts at offset 33, which is not a multiple of the alignment 32"
    );
    assert!(refusal(NAME, one_tensor(&[4], 0, 32, 128)).contains("leaving a hole after byte 0"));
    assert!(refusal(NAME, one_tensor(&[4], 0, 1 << 63, 128)).contains("is truncated: tensor `t`"));
    assert!(refusal(NAME, one_tensor(&[4], 0, 0, 15)).contains("is truncated: tensor `t`"));
    let file = [gguf_head(2, 0), gguf_tensor("t", &[16], 0, 0), gguf_tensor("u", &[8], 0, 32)].concat();
    assert_eq!(refusal(NAME, gguf_with_data(file, 64)), "tensor `u` overlaps tensor `t`");
}

#[test]
fn rows_of_partial_blocks() {
    let message = refusal(NAME, one_tensor(&[33, 32], 8, 0, 4096));
    assert_eq!(message, "tensor `t` has rows of 33 values, not a multiple of the 32 values in a block of q8_0");
}

#[test]
fn unknown_types() {
    assert_eq!(refusal(NAME, one_tensor(&[4], 999, 0, 64)), "tensor `t` has unknown element type 999");
    assert!(refusal(NAME, [gguf_head(0, 1), gguf_key("k", 13, &[1])].concat()).contains("unknown value type 13"));
}

#[test]
fn split_files_are_named() {
    let file = [gguf_head(0, 1), gguf_key("split.count", 2, &3u16.to_le_bytes())].concat();
    assert!(refusal(NAME, file).contains("one of 3 split files"));
}

#[test]
fn arrays_do_not_nest_for_ever() {
    let level = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat();
    let file = [gguf_head(0, 1), gguf_key("k", 9, &level.repeat(10_000))].concat();
    assert!(refusal(NAME, file).contains("nests arrays"));
}

#[test]
fn git_lfs_pointer() {
    assert!(refusal(NAME, "version https://git-lfs.github.com/spec/v1\n").starts_with("is a Git LFS pointer"));
}

/// One key of every type, read back through the getters.
#[test]
fn every_value_type() {
    let array = |kind: u32, n: u64, data: &[u8]| [kind.to_le_bytes().as_slice(), &n.to_le_bytes(), data].concat();
    let keys = [
        gguf_key("u8", 0, &[200]),
        gguf_key("i8", 1, &[0xff]),
        gguf_key("u16", 2, &500u16.to_le_bytes()),
        gguf_key("i16", 3, &(-500i16).to_le_bytes()),
        gguf_key("u32", 4, &70_000u32.to_le_bytes()),
        gguf_key("i32", 5, &70_000i32.to_le_bytes()),
        gguf_key("f32", 6, &0.5f32.to_le_bytes()),
        gguf_key("bool", 7, &[1]),
        gguf_key("str", 8, &gguf_string("é")),
        gguf_key("strs", 9, &array(8, 2, &[gguf_string("a"), gguf_string("")].concat())),
        gguf_key("u64", 10, &u64::MAX.to_le_bytes()),
        gguf_key("i64", 11, &i64::MIN.to_le_bytes()),
        gguf_key("f64", 12, &0.1f64.to_le_bytes()),
        gguf_key("floats", 9, &array(6, 2, &[1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat())),
        gguf_key("bytes", 9, &array(0, 2, &[1, 2])),
        gguf_key("nested", 9, &array(9, 1, &array(3, 1, &7i16.to_le_bytes()))),
    ];
    let file = [gguf_head(0, keys.len() as u64), keys.concat()].concat();
    let m = gguf::parse(&file, Path::new("f.gguf")).expect("good file").metadata;
    assert_eq!(m.uint("u8").expect("uint"), Some(200));
    assert_eq!(m.uint("u16").expect("uint"), Some(500));
    assert_eq!(m.uint("u64").expect("uint"), Some(u64::MAX));
    assert_eq!(m.uint("i32").expect("not negative"), Some(70_000));
    assert_eq!(m.get("i16"), Some(&Value::Int(-500)));
    assert_eq!(m.get("i64"), Some(&Value::Int(i64::MIN)));
    assert_eq!(m.float("f32").expect("float"), Some(0.5));
    assert_eq!(m.float("f64").expect("float"), Some(0.1));
    assert_eq!(m.float("u32").expect("integer as float"), Some(70_000.0));
    assert_eq!(m.bool("bool").expect("bool"), Some(true));
    assert_eq!(m.str("str").expect("string"), Some("é"));
    assert_eq!(m.strings("strs").expect("strings"), Some(["a".to_owned(), String::new()].as_slice()));
    assert_eq!(m.floats("floats").expect("floats"), Some([1.0, -2.0].as_slice()));
    assert_eq!(m.ints("bytes").expect("ints"), Some(vec![1, 2]));
    assert_eq!(m.get("nested"), Some(&Value::Array(Array::Array(vec![Array::Int(vec![7])]))));
    assert_eq!(m.str("absent").expect("absent is fine"), None);

    // Scores declared as bytes were once read out of bounds elsewhere.
    let error = m.floats("bytes").expect_err("not floats").to_string();
    assert_eq!(error, "f.gguf: key `bytes` is an array of unsigned integers, but an array of floats is needed");
    let error = m.uint("i8").expect_err("negative").to_string();
    assert_eq!(error, "f.gguf: key `i8` is the integer -1, but an unsigned integer is needed");
}
