//! A checkpoint: one or several mapped files and the tensors in them, whatever the format.
#![forbid(unsafe_code)]

use super::{
    error::{Fault, TensorFault, WeightsError},
    gguf,
    mapped::MappedFile,
    safetensors, shards,
    tensor::Tensor,
};
use std::{collections::HashMap, path::Path, sync::Arc};

/// An opened checkpoint. Cheap: only headers were read.
#[derive(Debug)]
pub struct Checkpoint {
    /// What the user would call it: the file, or the index of a sharded one.
    path: std::path::PathBuf,
    files: Vec<MappedFile>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    unlisted: Vec<(String, String)>,
    metadata: Option<Arc<gguf::Metadata>>,
}

impl Checkpoint {
    /// Open by content: a GGUF file, a safetensors file, or an index of safetensors shards (`*.json`).
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        if path.extension().is_some_and(|e| e == "json") {
            let parts = shards::open(path)?;
            return Self::new(path, parts.files, parts.tensors, parts.unlisted, None);
        }
        let file = MappedFile::open(path)?;
        if file.bytes().starts_with(gguf::MAGIC) || path.extension().is_some_and(|e| e == "gguf") {
            let parts = gguf::parse(file.bytes(), path).map_err(|fault| fault.of(path))?;
            return Self::new(path, vec![file], parts.tensors, Vec::new(), Some(Arc::new(parts.metadata)));
        }
        let tensors = safetensors::parse(file.bytes(), 0).map_err(|fault| fault.of(path))?;
        Self::new(path, vec![file], tensors, Vec::new(), None)
    }

    fn new(
        path: &Path,
        files: Vec<MappedFile>,
        tensors: Vec<Tensor>,
        unlisted: Vec<(String, String)>,
        metadata: Option<Arc<gguf::Metadata>>,
    ) -> Result<Self, WeightsError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), i).is_some() {
                return Err(Fault::tensor(&tensor.name, TensorFault::Duplicate).of(path));
            }
            let region = files[tensor.region].bytes().len() as u64;
            assert!(tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= region), "a reader let it pass");
        }
        Ok(Self { path: path.to_owned(), files, tensors, by_name, unlisted, metadata })
    }

    /// The file, or the index of a sharded checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    /// The bytes of one of [`Self::tensors`].
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        let from = tensor.offset as usize;
        &self.files[tensor.region].bytes()[from..from + tensor.bytes as usize]
    }

    /// The file a tensor is in.
    pub fn file_of(&self, tensor: &Tensor) -> &Path {
        self.files[tensor.region].path()
    }

    /// The mapped files, which [`Tensor::region`] counts.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// The shard that holds a tensor the index does not list: such a tensor is not part of the checkpoint.
    pub fn unlisted(&self) -> &[(String, String)] {
        &self.unlisted
    }

    /// GGUF metadata, if it is a GGUF file.
    pub fn metadata(&self) -> Option<&Arc<gguf::Metadata>> {
        self.metadata.as_ref()
    }
}
