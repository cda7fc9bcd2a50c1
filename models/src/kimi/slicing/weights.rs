//! A rank's slices of a checkpoint.
//!
//! What lies in one piece is used in place, in the mapped file; what does not is copied, experts one at a time, so that
//! a load never holds more than the slice it is making.

use super::table::{Cut, ExpertSplit, Rule, Split};
use crate::kimi::is_slots;
use crate::kimi::{config::KimiConfig, source::KimiWeights, tensors::is_expert};
use std::{borrow::Cow, sync::Arc};
use tokenspeed_backend_api::graph::{WeightBytes, WeightSource, WeightSpec};

/// The weights of [`super::RankGraph`].
#[derive(Clone, Debug)]
pub struct RankWeights {
    source: Arc<KimiWeights>,
    config: KimiConfig,
    split: Split,
}

impl RankWeights {
    /// A view of `source`, which ranks share.
    pub fn new(source: Arc<KimiWeights>, config: KimiConfig, split: Split) -> Self {
        Self { source, config, split }
    }

    /// The whole weight that `spec` is a slice of, and where it lies in it.
    fn whole(&self, spec: &WeightSpec) -> Result<(WeightSpec, Option<Cut>), String> {
        let rule = Rule::of(&self.config, &spec.name).map_err(|e| e.to_string())?;
        let mut whole = spec.clone();
        // The axis depends on the rank of the shape alone; with it, the whole shape is known, and then the cut.
        if let Some(cut) = self.split.cut(rule, &spec.name, &spec.dims) {
            whole.dims[cut.axis] *= self.split.ranks;
        }
        let cut = self.split.cut(rule, &spec.name, &whole.dims);
        Ok((whole, cut))
    }

    fn experts(&self, spec: &WeightSpec, whole: &WeightSpec, cut: Option<Cut>) -> Result<WeightBytes<'_>, String> {
        let experts = match (self.split.experts, cut) {
            (ExpertSplit::Id, Some(cut)) => cut.start..cut.start + cut.len,
            _ => 0..whole.dims[0],
        };
        let inner = cut.filter(|_| self.split.experts == ExpertSplit::Width);
        let inner = inner.map(|cut| Cut { axis: cut.axis - 1, ..cut });
        let mut stack = Vec::new();
        for expert in experts {
            let bytes = self.source.expert(&spec.name, expert)?;
            match inner {
                None => stack.extend_from_slice(bytes),
                Some(cut) => Pieces::new(spec, &whole.dims[1..], cut)?.append(bytes, &mut stack)?,
            }
        }
        Ok(WeightBytes::Owned(Cow::Owned(stack)))
    }
}

impl WeightSource for RankWeights {
    fn regions(&self) -> Vec<&[u8]> {
        self.source.regions()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        let (whole, cut) = self.whole(spec)?;
        if is_expert(&spec.name) && spec.dims.len() == 3 {
            return self.experts(spec, &whole, cut);
        }
        if is_slots(&spec.name) {
            // A rank's stacks are made by `experts`, in ascending order, wherever the file has the whole ones.
            let order = (0..spec.dims[0] as u32).flat_map(u32::to_le_bytes).collect();
            return Ok(WeightBytes::Owned(Cow::Owned(order)));
        }
        let Some(cut) = cut else { return self.source.weight(spec) };
        let pieces = Pieces::new(spec, &whole.dims, cut)?;
        match self.source.weight(&whole)? {
            WeightBytes::Mapped { region, offset, bytes } => {
                pieces.check(bytes)?;
                if pieces.count == 1 {
                    return Ok(WeightBytes::Mapped { region, offset: offset + pieces.start, bytes: pieces.len });
                }
                let mut out = Vec::new();
                pieces.append(&self.regions()[region][offset as usize..][..bytes as usize], &mut out)?;
                Ok(WeightBytes::Owned(Cow::Owned(out)))
            }
            whole => {
                let mut out = Vec::new();
                pieces.append(&whole.contents(&self.regions()), &mut out)?;
                Ok(WeightBytes::Owned(Cow::Owned(out)))
            }
        }
    }
}

/// A cut in bytes: `count` times, `len` bytes from `start` of every `pitch`.
struct Pieces<'a> {
    name: &'a str,
    count: u64,
    pitch: u64,
    start: u64,
    len: u64,
}

impl<'a> Pieces<'a> {
    fn new(spec: &'a WeightSpec, whole: &[u64], cut: Cut) -> Result<Self, String> {
        let inner: u64 = whole[cut.axis + 1..].iter().product();
        let bytes =
            |n: u64| spec.dtype.bytes(n * inner).ok_or_else(|| format!("`{}`: the slice cuts a block", spec.name));
        Ok(Self {
            name: &spec.name,
            count: whole[..cut.axis].iter().product(),
            pitch: bytes(whole[cut.axis])?,
            start: bytes(cut.start)?,
            len: bytes(cut.len)?,
        })
    }

    fn check(&self, bytes: u64) -> Result<(), String> {
        let needed = self.count * self.pitch;
        if bytes == needed {
            Ok(())
        } else {
            Err(format!("`{}` has {bytes} bytes, but {needed} are needed", self.name))
        }
    }

    fn append(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.check(bytes.len() as u64)?;
        for piece in bytes.chunks_exact(self.pitch as usize) {
            out.extend_from_slice(&piece[self.start as usize..][..self.len as usize]);
        }
        Ok(())
    }
}
