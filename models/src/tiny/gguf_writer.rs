//! A minimal GGUF v3 writer.

use crate::weights::gguf::{DEFAULT_ALIGNMENT, MAGIC, type_number};
use tokenspeed_backend_api::dtype::DType;

#[derive(Default)]
pub(super) struct GgufWriter {
    n_keys: u64,
    keys: Vec<u8>,
    n_tensors: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
}

impl GgufWriter {
    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4, &value.to_le_bytes());
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6, &value.to_le_bytes());
    }

    pub fn str(&mut self, key: &str, value: &str) {
        self.key(key, 8, &string(value));
    }

    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.n_keys += 1;
        self.keys.extend(string(key));
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
    }

    /// `dims` outermost first; the file wants them innermost first.
    pub fn tensor(&mut self, name: &str, dims: &[u64], dtype: DType, bytes: Vec<u8>) {
        self.n_tensors += 1;
        self.infos.extend(string(name));
        self.infos.extend((dims.len() as u32).to_le_bytes());
        self.infos.extend(dims.iter().rev().flat_map(|d| d.to_le_bytes()));
        self.infos.extend(type_number(dtype).expect("every quantisable format but FP8 is a GGUF type").to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        pad(&mut self.data);
    }

    pub fn finish(self) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.n_tensors.to_le_bytes());
        file.extend(self.n_keys.to_le_bytes());
        file.extend(self.keys);
        file.extend(self.infos);
        pad(&mut file);
        file.extend(self.data);
        file
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
}
