//! Malformed and odd safetensors files: "header malformed", "truncated shard", "duplicate tensors".
use crate::files::*;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::weights::{Checkpoint, Format};

const NAME: &str = "model.safetensors";
const OK: (&str, &str, &[u64], u64, u64) = ("a", "F32", &[2, 2], 0, 16);

#[test]
fn a_good_file_opens() {
    let folder = Folder::new();
    let mut file = st(&[OK], 0);
    let data_start = file.len() as u64;
    file.extend((0..16).collect::<Vec<u8>>());
    let checkpoint = Checkpoint::open(&folder.write(NAME, file)).expect("good file");
    let tensor = checkpoint.get("a").expect("listed");
    assert_eq!(tensor.format, Format::Known(DType::F32));
    assert_eq!((tensor.shape.as_slice(), tensor.offset, tensor.bytes), ([2, 2].as_slice(), data_start, 16));
    assert_eq!(checkpoint.bytes(tensor), (0..16).collect::<Vec<u8>>());
}

#[test]
fn zero_size_tensors_and_scalars_open() {
    let folder = Folder::new();
    let file = st(&[("a", "F32", &[0, 4], 0, 0), ("b", "F32", &[], 0, 4)], 4);
    let checkpoint = Checkpoint::open(&folder.write(NAME, file)).expect("good file");
    assert_eq!(checkpoint.get("a").expect("listed").bytes, 0);
    assert_eq!(checkpoint.get("b").expect("listed").shape, [0u64; 0]);
}

#[test]
fn metadata_is_allowed() {
    let folder = Folder::new();
    let file =
        st_raw(r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}   "#, &[0; 4]);
    assert_eq!(Checkpoint::open(&folder.write(NAME, file)).expect("good file").tensors().len(), 1);
}

#[test]
fn empty_file() {
    assert_eq!(refusal(NAME, []), "is empty (0 bytes); download it again");
}

#[test]
fn shorter_than_the_header_length() {
    assert!(refusal(NAME, [1, 2, 3]).contains("the header length ends at byte 8, but the file has 3 bytes"));
}

#[test]
fn header_length_huge() {
    let mut file = st(&[OK], 16);
    file[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    assert!(refusal(NAME, file).contains("claims a header of 9223372036854775808 bytes"));
}

#[test]
fn header_past_the_end() {
    let mut file = st(&[OK], 16);
    let actual = file.len();
    file[..8].copy_from_slice(&100_000u64.to_le_bytes());
    let want = format!("is truncated: the header ends at byte 100008, but the file has {actual} bytes");
    assert!(refusal(NAME, file).starts_with(&want));
}

#[test]
fn cut_inside_the_header() {
    let file = st(&[OK], 16);
    assert!(refusal(NAME, &file[..20]).contains("is truncated: the header ends"));
}

#[test]
fn data_one_byte_short() {
    let file = st(&[OK], 16);
    let (full, short) = (file.len(), file.len() - 1);
    let want =
        format!("is truncated: tensor data, cut from `a` on, ends at byte {full}, but the file has {short} bytes");
    assert!(refusal(NAME, &file[..short]).starts_with(&want));
}

#[test]
fn trailing_bytes() {
    assert!(refusal(NAME, st(&[OK], 20)).starts_with("has 4 bytes after its last tensor"));
}

#[test]
fn overlap() {
    let message = refusal(NAME, st(&[("a", "F32", &[4], 0, 16), ("b", "F32", &[4], 0, 16)], 16));
    assert_eq!(message, "tensor `b` overlaps tensor `a`");
}

#[test]
fn hole() {
    let message = refusal(NAME, st(&[("a", "F32", &[1], 0, 4), ("b", "F32", &[1], 8, 12)], 12));
    assert_eq!(message, "tensor `b` starts at byte 8 of the data, leaving a hole after byte 4");
}

#[test]
fn same_name_twice() {
    let entry = |at| format!(r#""a":{{"dtype":"F32","shape":[4],"data_offsets":[{at},{}]}}"#, at + 16);
    let message = refusal(NAME, st_raw(&format!("{{{},{}}}", entry(0), entry(16)), &[0; 32]));
    assert_eq!(message, "tensor `a` is listed twice (duplicate name)");
}

#[test]
fn same_field_twice() {
    let header = r#"{"a":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}"#;
    assert!(refusal(NAME, st_raw(header, &[0; 16])).contains("tensor `a`: duplicate field `dtype`"));
}

#[test]
fn shape_overflows() {
    let message = refusal(NAME, st(&[("a", "F32", &[1 << 62, 4], 0, 16)], 16));
    assert_eq!(message, "tensor `a` has shape [4611686018427387904, 4], whose size overflows");
}

#[test]
fn shape_disagrees_with_the_range() {
    let message = refusal(NAME, st(&[("a", "F32", &[1000, 1000], 0, 16)], 16));
    assert_eq!(message, "tensor `a` has shape [1000, 1000] of f32, which needs 4000000 bytes, but its range holds 16");
}

#[test]
fn range_reversed() {
    let message = refusal(NAME, st(&[("a", "F32", &[4], 16, 0)], 16));
    assert_eq!(message, "tensor `a` has byte range 16..0, which runs backwards");
}

#[test]
fn header_not_json() {
    assert!(refusal(NAME, st_raw("{nope", &[])).starts_with("has a malformed header: "));
    assert!(refusal(NAME, st_raw("[]", &[])).starts_with("has a malformed header: "));
}

#[test]
fn unknown_element_type() {
    assert_eq!(refusal(NAME, st(&[("a", "F99", &[4], 0, 16)], 16)), "tensor `a` has unknown element type `F99`");
}

#[test]
fn negative_and_fractional_numbers() {
    for number in ["-1", "1.5", "1e30"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{number}],"data_offsets":[0,16]}}}}"#);
        assert!(refusal(NAME, st_raw(&header, &[0; 16])).contains("tensor `a`"), "{number}");
    }
}

#[test]
fn git_lfs_pointer() {
    let text = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 123\n", "0".repeat(64));
    assert!(refusal(NAME, text).starts_with("is a Git LFS pointer"));
}

#[test]
fn missing_file_and_folder() {
    let folder = Folder::new();
    assert!(refusal_of(&folder.path().join("absent.safetensors")).starts_with("cannot be read: "));
    assert_eq!(refusal_of(folder.path()), "is not a regular file");
}

/// A name with line breaks must not forge a second log line, nor fill the screen.
#[test]
fn hostile_names_stay_on_one_line() {
    let name = format!("x\nERROR all is well{}", "y".repeat(1000));
    let message = refusal(NAME, st(&[(&name, "F99", &[4], 0, 16)], 16));
    assert!(message.contains(r"x\nERROR") && message.len() < 400, "{message}");
}

/// What the reference library writes, we read.
#[test]
fn reads_what_the_reference_library_writes() {
    use safetensors::tensor::{Dtype, TensorView};
    let data: Vec<u8> = (0..24).collect();
    let view = TensorView::new(Dtype::F16, vec![3, 4], &data).expect("consistent view");
    let bytes = safetensors::serialize([("w", view)], None).expect("serialises");
    let folder = Folder::new();
    let checkpoint = Checkpoint::open(&folder.write(NAME, bytes)).expect("good file");
    let tensor = checkpoint.get("w").expect("listed");
    assert_eq!((tensor.format, tensor.shape.as_slice()), (Format::Known(DType::F16), [3, 4].as_slice()));
    assert_eq!(checkpoint.bytes(tensor), data);
}
