//! Weights of the draft graphs from a checkpoint in the published layout, and of both models together.
//!
//! In graphs the draft's weights are called [`PREFIX`]`…`, because both models have a `lm_head.weight`. A draft without
//! an embedding table uses the target's under the target's name, so it is in memory once.

use super::{
    Eagle3Config, Eagle3Error,
    tensors::{self, EMBEDDING, FLOATS, TO_DRAFT, TO_TARGET},
};
use crate::{
    kimi::tensors::Stored,
    weights::{Checkpoint, Format, Tensor, quoted},
};
use std::borrow::Cow;
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{WeightBytes, WeightSource, WeightSpec},
    quant,
};

/// Before every name of a draft weight in a graph.
pub const PREFIX: &str = "draft.";
/// Frequencies of a whole query head, and of a whole cache row: zero where nothing is rotated.
pub(super) const QUERY_FREQUENCIES: &str = "draft.rope.query";
pub(super) const ROW_FREQUENCIES: &str = "draft.rope.row";

/// Tensors of other drafts, by a part of their names.
const OTHERS: [(&str, &str); 4] =
    [("eh_proj", "an MTP layer"), (".enorm", "an MTP layer"), (".hnorm", "an MTP layer"), ("dspark", "a DSpark draft")];

/// A draft checkpoint.
#[derive(Debug)]
pub struct Eagle3Weights {
    checkpoint: Checkpoint,
    query_frequencies: Vec<u8>,
    row_frequencies: Vec<u8>,
    token_ids: Option<Vec<u32>>,
    unknown: Vec<String>,
}

impl Eagle3Weights {
    /// Check that the checkpoint holds everything `config` asks for, in shapes and formats that can be used.
    pub fn open(checkpoint: Checkpoint, config: &Eagle3Config) -> Result<Self, Eagle3Error> {
        let mut source = Self {
            query_frequencies: frequencies(config, config.nope_dim),
            row_frequencies: frequencies(config, config.kv_rank),
            token_ids: None,
            unknown: Vec::new(),
            checkpoint,
        };
        source.refuse_other_drafts()?;
        let (mut fault, mut known) = (None, vec![TO_TARGET.to_owned(), TO_DRAFT.to_owned()]);
        tensors::all(config, &mut |stored| {
            let absent = stored.name == EMBEDDING && source.checkpoint.get(EMBEDDING).is_none();
            if fault.is_none() && !absent {
                fault = source.check(&stored).err();
            }
            known.push(stored.name);
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        source.token_ids = source.vocabulary(config)?;
        let names = source.checkpoint.tensors().iter().map(|t| &t.name);
        source.unknown = names.filter(|name| !known.contains(name)).cloned().collect();
        Ok(source)
    }

    /// Whether it has its own embedding table.
    pub fn has_embedding(&self) -> bool {
        self.checkpoint.get(EMBEDDING).is_some()
    }

    /// The token id of each row of the head; `None` = the row's own number.
    pub fn token_ids(&self) -> Option<&[u32]> {
        self.token_ids.as_deref()
    }

    /// Tensors that no part of the draft asks for; to be shown once.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }

    fn place(&self) -> String {
        self.checkpoint.path().display().to_string()
    }

    fn refuse_other_drafts(&self) -> Result<(), Eagle3Error> {
        for tensor in self.checkpoint.tensors() {
            let name = tensor.name.to_lowercase();
            if let Some((_, kind)) = OTHERS.iter().find(|(part, _)| name.contains(part)) {
                return Err(Eagle3Error::OtherDraft { checkpoint: self.place(), name: quoted(&tensor.name), kind });
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Tensor, Eagle3Error> {
        let missing = || Eagle3Error::Missing { checkpoint: self.place(), name: quoted(name) };
        self.checkpoint.get(name).ok_or_else(missing)
    }

    fn mismatch(&self, tensor: &Tensor, expected: String) -> Eagle3Error {
        let actual = format!("{} {:?}", tensor.format.name(), tensor.shape);
        Eagle3Error::Mismatch { checkpoint: self.place(), name: quoted(&tensor.name), actual, expected }
    }

    fn check(&self, stored: &Stored) -> Result<(), Eagle3Error> {
        let tensor = self.find(&stored.name)?;
        let dtype = match tensor.format {
            Format::Known(d) => d == stored.dtype || tensors::is_small(&stored.dims) && FLOATS.contains(&d),
            Format::Other(_) => false,
        };
        if dtype && tensor.shape == stored.dims {
            return Ok(());
        }
        Err(self.mismatch(tensor, format!("{} {:?}", stored.dtype, stored.dims)))
    }

    /// Follow `d2t`, and hold `t2d` against it.
    fn vocabulary(&self, config: &Eagle3Config) -> Result<Option<Vec<u32>>, Eagle3Error> {
        let fault = |name, cause| Eagle3Error::Vocabulary { checkpoint: self.place(), name, cause };
        let (rows, vocab) = (config.draft_vocab_size, config.vocab_size);
        if rows == vocab && self.checkpoint.get(TO_TARGET).is_none() {
            return Ok(None);
        }
        let tensor = self.find(TO_TARGET)?;
        if tensor.format.name() != "I64" || tensor.shape != [rows] {
            return Err(self.mismatch(tensor, format!("I64 [{rows}]")));
        }
        let mut ids = Vec::new();
        let mut seen = vec![false; vocab as usize];
        for (row, bytes) in (0..).zip(self.checkpoint.bytes(tensor).as_chunks::<8>().0) {
            let id = i64::from_le_bytes(*bytes).checked_add(row).and_then(|id| u32::try_from(id).ok());
            let Some(id) = id.filter(|id| u64::from(*id) < vocab) else {
                return Err(fault(TO_TARGET, format!("leads row {row} outside the {vocab} tokens")));
            };
            if std::mem::replace(&mut seen[id as usize], true) {
                return Err(fault(TO_TARGET, format!("leads two rows to token {id}")));
            }
            ids.push(id);
        }
        if let Some(tensor) = self.checkpoint.get(TO_DRAFT) {
            if tensor.format.name() != "BOOL" || tensor.shape != [vocab] {
                return Err(self.mismatch(tensor, format!("BOOL [{vocab}]")));
            }
            let has = self.checkpoint.bytes(tensor).iter().map(|b| *b != 0);
            if let Some(id) = has.zip(seen).position(|(a, b)| a != b) {
                return Err(fault(TO_DRAFT, format!("disagrees with d2t about token {id}")));
            }
        }
        Ok(Some(ids))
    }
}

/// Angular frequencies for a vector of `still` unrotated values and the rotated ones after them. Turning by nothing is
/// exact, so one op serves vectors whose rotated part comes last.
pub(super) fn frequencies(config: &Eagle3Config, still: u64) -> Vec<u8> {
    let still = std::iter::repeat_n(0f32, (still / 2) as usize);
    still.chain(config.rope.inverse_frequencies(None)).flat_map(f32::to_le_bytes).collect()
}

impl WeightSource for Eagle3Weights {
    fn regions(&self) -> Vec<&[u8]> {
        self.checkpoint.files().iter().map(|f| f.bytes()).collect()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let made = match &spec.name[..] {
            QUERY_FREQUENCIES => Some(&self.query_frequencies),
            ROW_FREQUENCIES => Some(&self.row_frequencies),
            _ => None,
        };
        let size =
            spec.dtype.bytes(spec.dims.iter().product()).ok_or_else(|| format!("`{}` cuts a block", spec.name))?;
        let name = spec.name.strip_prefix(PREFIX).ok_or_else(|| format!("`{}` is not the draft's", spec.name))?;
        let weight = match made {
            Some(bytes) => WeightBytes::Owned(Cow::Borrowed(bytes)),
            None => {
                let tensor = self.find(name).map_err(|e| e.to_string())?;
                match tensor.format {
                    Format::Known(d) if d == spec.dtype => {
                        WeightBytes::Mapped { region: tensor.region, offset: tensor.offset, bytes: tensor.bytes }
                    }
                    Format::Known(d) if spec.dtype == DType::F32 && quant::can_dequantize(d) => {
                        let mut out = vec![0f32; tensor.shape.iter().product::<u64>() as usize];
                        quant::dequantize_row(d, self.checkpoint.bytes(tensor), &mut out);
                        WeightBytes::Owned(Cow::Owned(out.iter().flat_map(|v| v.to_le_bytes()).collect()))
                    }
                    other => return Err(format!("`{}` is {}, but {} is needed", spec.name, other.name(), spec.dtype)),
                }
            }
        };
        let actual = weight.size();
        if actual != size {
            return Err(format!("`{}` has {actual} bytes, but {size} are needed", spec.name));
        }
        Ok(weight)
    }
}

/// The weights of a target and of its draft as one source; both by reference or boxed.
pub struct Joined<T> {
    /// Weights without [`PREFIX`].
    pub target: T,
    /// Weights with it.
    pub draft: T,
}

impl<T> std::fmt::Debug for Joined<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Joined")
    }
}

impl<T: std::ops::Deref<Target: WeightSource> + Send + Sync> WeightSource for Joined<T> {
    fn regions(&self) -> Vec<&[u8]> {
        [self.target.regions(), self.draft.regions()].concat()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        if !spec.name.starts_with(PREFIX) {
            return self.target.weight(spec);
        }
        let before = self.target.regions().len();
        Ok(match self.draft.weight(spec)? {
            WeightBytes::Mapped { region, offset, bytes } => {
                WeightBytes::Mapped { region: before + region, offset, bytes }
            }
            WeightBytes::Pitched { region, offset, pitch, count, bytes } => {
                WeightBytes::Pitched { region: before + region, offset, pitch, count, bytes }
            }
            owned @ WeightBytes::Owned(_) => owned,
        })
    }
}
