//! Building files byte by byte, independently of any writer.
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};
use tokenspeed_models::weights::Checkpoint;

/// A folder that goes away again.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tokenspeed-weights-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary folder");
        Self(path)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("temporary file");
        path
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The error of opening `bytes` as a file called `name`, which must be one line that begins with the file's path.
pub fn refusal(name: &str, bytes: impl AsRef<[u8]>) -> String {
    let folder = Folder::new();
    refusal_of(&folder.write(name, bytes))
}

pub fn refusal_of(path: &Path) -> String {
    let message = Checkpoint::open(path).expect_err("must be refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    let rest = message.strip_prefix(&format!("{}: ", path.display()));
    rest.unwrap_or_else(|| panic!("does not begin with its file: {message}")).to_owned()
}

/// A safetensors file with this header text.
pub fn st_raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A safetensors file of `(name, dtype, shape, begin, end)` and `data` zeros.
pub fn st(tensors: &[(&str, &str, &[u64], u64, u64)], data: usize) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    for (name, dtype, shape, begin, end) in tensors {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        header.insert((*name).to_owned(), entry);
    }
    st_raw(&Value::Object(header).to_string(), &vec![0; data])
}

/// `GGUF`, version 3, the counts.
pub fn gguf_head(tensors: u64, keys: u64) -> Vec<u8> {
    [b"GGUF".as_slice(), &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
}

pub fn gguf_string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A key with a value of this type number.
pub fn gguf_key(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [gguf_string(key).as_slice(), &kind.to_le_bytes(), value].concat()
}

/// A tensor info; dimensions innermost first, as in the file.
pub fn gguf_tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let rank = dims.len() as u32;
    [gguf_string(name).as_slice(), &rank.to_le_bytes(), &dims_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()]
        .concat()
}

/// Pad the header to the default alignment and add `data` zeros.
pub fn gguf_with_data(mut file: Vec<u8>, data: usize) -> Vec<u8> {
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}
