//! Random damage: readers refuse or accept, but never panic, and what they accept lies inside the file.
use crate::files::*;
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    config::from_gguf,
    tiny::Tiny,
    weights::{Tensor, gguf, safetensors as reader},
};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Change a few bytes, or a whole word, or cut or extend the file.
fn damage(good: &[u8], random: &mut Random) -> Vec<u8> {
    let mut file = good.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(file.len());
        match random.below(6) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.next() as u8,
            2 => file.truncate(at.max(1)),
            3 => file.insert(at, b"0:,{}[]\"\xff"[random.below(9)]),
            4 => {
                let word = [0, 1, 3, u64::MAX, 1 << 63, 1 << 32, file.len() as u64][random.below(7)];
                let end = (at + 8).min(file.len());
                file[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
            }
            _ => file.resize(file.len() + random.below(64), 0),
        }
    }
    file
}

fn inside(tensors: &[Tensor], file: &[u8]) {
    for tensor in tensors {
        assert!(tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= file.len() as u64), "{tensor:?}");
    }
}

#[test]
fn damaged_gguf() {
    let good = gguf_with_data(
        [
            gguf_head(2, 3),
            gguf_key("general.alignment", 4, &32u32.to_le_bytes()),
            gguf_key("words", 9, &[&8u32.to_le_bytes(), 1u64.to_le_bytes().as_slice(), &gguf_string("a")].concat()),
            gguf_key("general.name", 8, &gguf_string("n")),
            gguf_tensor("x", &[32, 2], 8, 32),
            gguf_tensor("n", &[2], 0, 0),
        ]
        .concat(),
        32 + 68,
    );
    assert!(gguf::parse(&good, Path::new("f")).is_ok());
    for cut in 0..good.len() {
        assert!(gguf::parse(&good[..cut], Path::new("f")).is_err(), "cut to {cut}");
    }
    let mut random = Random(1);
    let mut accepted = 0;
    for _ in 0..100_000 {
        let file = damage(&good, &mut random);
        if let Ok(parsed) = gguf::parse(&file, Path::new("f")) {
            inside(&parsed.tensors, &file);
            accepted += 1;
        }
    }
    assert!(accepted > 1000, "damage is too coarse to reach the deep checks: {accepted}");
}

/// A config of damaged metadata is refused or consistent, and computing its frequencies is always possible.
#[test]
fn damaged_gguf_config() {
    let folder = Folder::new();
    let path = folder.path().join("tiny.gguf");
    Tiny::llama().write_gguf(&path, DType::F32).expect("written");
    let good = std::fs::read(&path).expect("readable");
    let keys_end = good.windows(17).position(|w| w == b"token_embd.weight").expect("the first tensor's name");
    let mut random = Random(3);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut file = good.clone();
        file.splice(..keys_end, damage(&good[..keys_end], &mut random));
        let Ok(parsed) = gguf::parse(&file, Path::new("f")) else { continue };
        if let Ok(config) = from_gguf(&parsed.metadata, |_| false) {
            assert_eq!(config.windows.len() as u64, config.n_layers);
            assert_eq!(config.rope.inverse_frequencies(None).len() as u64, config.rope.rotary_dims / 2);
            accepted += 1;
        }
    }
    assert!(accepted > 500, "damage is too coarse to reach the deep checks: {accepted}");
}

/// The reference library is the second opinion: we accept nothing it refuses, and refuse what it accepts only where we
/// are deliberately stricter (repeated names, unknown fields).
#[test]
fn damaged_safetensors() {
    let good = st(&[("a", "F32", &[2, 2], 0, 16), ("b", "F16", &[3], 16, 22), ("c", "I64", &[0], 22, 22)], 22);
    assert!(reader::parse(&good, 0).is_ok());
    for cut in 0..good.len() {
        assert!(reader::parse(&good[..cut], 0).is_err(), "cut to {cut}");
    }
    let mut random = Random(2);
    let mut accepted = 0;
    for _ in 0..100_000 {
        let file = damage(&good, &mut random);
        let ours = reader::parse(&file, 0);
        let theirs = safetensors::SafeTensors::deserialize(&file);
        match (&ours, &theirs) {
            (Ok(tensors), Ok(reference)) => {
                inside(tensors, &file);
                assert_eq!(tensors.len(), reference.len());
                accepted += 1;
            }
            (Ok(_), Err(e)) => {
                panic!("accepted what the reference refuses ({e}): {:?}", file.escape_ascii().to_string())
            }
            (Err(e), Ok(_)) => {
                let message = e.to_string();
                let stricter = message.contains("duplicate") || message.contains("unknown field");
                assert!(stricter, "refused what the reference accepts ({e}): {:?}", file.escape_ascii().to_string());
            }
            (Err(_), Err(_)) => {}
        }
    }
    assert!(accepted > 1000, "damage is too coarse to reach the deep checks: {accepted}");
}
