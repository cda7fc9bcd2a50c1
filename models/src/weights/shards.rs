//! `model.safetensors.index.json`: which shard holds which tensor.
//!
//! The index must be exactly true: every named shard exists, every tensor is where the index puts it and nowhere else.
//! Loading whatever files lie around instead would serve a half-downloaded checkpoint as if complete.
#![forbid(unsafe_code)]

use super::{
    error::{Fault, TensorFault, WeightsError, quoted},
    mapped::MappedFile,
    safetensors,
    tensor::Tensor,
};
use serde::de::{Deserializer, MapAccess, Visitor};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

#[derive(serde::Deserialize)]
struct Index {
    #[serde(deserialize_with = "pairs")]
    weight_map: Vec<(String, String)>,
}

/// A JSON map as a list, so that duplicates can be seen.
fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a map from tensor to file name")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut out = Vec::new();
            while let Some(pair) = map.next_entry()? {
                out.push(pair);
            }
            Ok(out)
        }
    }
    deserializer.deserialize_map(Pairs)
}

/// What a sharded checkpoint holds.
pub(super) struct Sharded {
    pub files: Vec<MappedFile>,
    /// Those the index lists.
    pub tensors: Vec<Tensor>,
    /// In a shard but not in the index: `(tensor, shard)`.
    pub unlisted: Vec<(String, String)>,
}

/// Open the index and all its shards, which lie beside it.
pub(super) fn open(path: &Path) -> Result<Sharded, WeightsError> {
    let index_fault = |cause: String| Fault::Index(cause).of(path);
    let file = MappedFile::open(path)?;
    let index: Index = serde_json::from_slice(file.bytes()).map_err(|e| index_fault(quoted(&e.to_string())))?;
    if index.weight_map.is_empty() {
        return Err(index_fault("its weight_map is empty".to_owned()));
    }
    let mut shard_of = HashMap::new();
    let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        if shard_of.insert(tensor.as_str(), shard.as_str()).is_some() {
            return Err(Fault::tensor(tensor, TensorFault::Duplicate).of(path));
        }
        shards.entry(shard).or_insert(tensor);
    }

    let folder = path.parent().unwrap_or(Path::new("."));
    let mut files: Vec<MappedFile> = Vec::new();
    let mut found: HashMap<String, Tensor> = HashMap::new();
    let names: Vec<&str> = shards.keys().copied().collect();
    for (region, (shard, tensor)) in shards.iter().enumerate() {
        // Only plain names: an index must not reach out of its folder.
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(index_fault(format!("shard `{}` is not a plain file name", quoted(shard))));
        }
        let place = folder.join(shard);
        if !place.exists() {
            return Err(Fault::MissingShard { shard: quoted(shard), tensor: quoted(tensor) }.of(path));
        }
        let file = MappedFile::open(&place)?;
        for tensor in safetensors::parse(file.bytes(), region).map_err(|fault| fault.of(&place))? {
            if let Some(other) = found.get(&tensor.name) {
                let cause = TensorFault::TwoShards(quoted(names[other.region]), quoted(shard));
                return Err(Fault::tensor(&tensor.name, cause).of(path));
            }
            found.insert(tensor.name.clone(), tensor);
        }
        files.push(file);
    }

    let mut tensors = Vec::new();
    for (name, shard) in &index.weight_map {
        match found.remove(name) {
            Some(tensor) if names[tensor.region] == shard => tensors.push(tensor),
            other => {
                let hint = match other {
                    Some(tensor) => format!("; it is in `{}`", quoted(names[tensor.region])),
                    None => "; no shard has it".to_owned(),
                };
                let cause = TensorFault::WrongShard { shard: quoted(shard), hint };
                return Err(Fault::tensor(name, cause).of(path));
            }
        }
    }
    let mut unlisted: Vec<_> =
        found.into_values().map(|tensor| (tensor.name, names[tensor.region].to_owned())).collect();
    unlisted.sort();
    Ok(Sharded { files, tensors, unlisted })
}
