//! Hidden states that a draft model reads: the running sum after some layers, as rows of the component `taps`.
//!
//! The sum is taken after the layer's MLP was added, before the next layer replaces it; it is not the mixture that
//! Attention Residuals make of it. Rows lie in pages like keys and values, at the token's own position, so the next
//! graph finds them whatever the batch was, and a rejected candidate's row is overwritten by the token that takes its
//! place. Only rows that the draft has not consumed yet are ever read: pages behind it may be given back or reused.
//!
//! Rejected: extra outputs beside the logits. They would leave the device and come back, at tens of kilobytes per token.
//! Rejected: one row per candidate in the state slot. It cannot hold a long chunk.

use super::{
    builder::{Builder, TAPS, attrs},
    config::KimiConfig,
    stack::GraphOptions,
};
use tokenspeed_backend_api::{
    graph::{CacheTensor, ComponentKind, ComponentSpec, Ref},
    op::OpKind,
};

/// Layers to tap, counted as completed layers: 1 = after the first one. At most [`Taps::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taps {
    layers: [u16; Taps::MAX],
}

impl Taps {
    /// Most taps there can be.
    pub const MAX: usize = 4;
    /// No draft model.
    pub const NONE: Taps = Taps { layers: [0; Taps::MAX] };

    /// These layers, ascending; `None` if they are not, or are too many, or none.
    pub fn new(layers: &[u64]) -> Option<Self> {
        let ascending = layers.first().is_some_and(|l| *l > 0) && layers.is_sorted_by(|a, b| a < b);
        if !ascending || layers.len() > Self::MAX {
            return None;
        }
        let mut taps = Self::NONE;
        for (place, layer) in taps.layers.iter_mut().zip(layers) {
            *place = u16::try_from(*layer).ok()?;
        }
        Some(taps)
    }

    /// The layers.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.layers.into_iter().take_while(|l| *l > 0).map(usize::from)
    }
}

/// The component: one row of the stream's width per token and tap.
pub(super) fn component(config: &KimiConfig, options: GraphOptions) -> Option<ComponentSpec> {
    let tensors: Vec<_> = options
        .taps
        .layers()
        .map(|layer| {
            assert!(layer <= config.layers.len(), "a tap after layer {layer} of {}", config.layers.len());
            CacheTensor { name: format!("layers.{layer}"), dtype: options.window, inner: vec![1, config.hidden_size] }
        })
        .collect();
    (!tensors.is_empty()).then(|| ComponentSpec { name: "taps".into(), kind: ComponentKind::Paged { tensors } })
}

/// Keep the sum if a draft wants it after this many layers.
pub(super) fn keep(b: &mut Builder<'_>, completed: usize, sum: Ref) {
    let taps = b.options.taps;
    if let Some(tensor) = taps.layers().position(|l| l == completed) {
        let operands = [sum, Ref::Cache { component: TAPS, tensor }, Ref::Table { component: TAPS }];
        b.graph.push(OpKind::KvWrite, attrs(&[TAPS as i64], &[]), &operands, format!("taps.{completed}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_ascend_from_one() {
        assert_eq!(Taps::new(&[2, 46, 90]).expect("sound").layers().collect::<Vec<_>>(), [2, 46, 90]);
        for bad in [&[][..], &[0, 1], &[3, 3], &[5, 4], &[1, 2, 3, 4, 5], &[70_000]] {
            assert_eq!(Taps::new(bad), None, "{bad:?}");
        }
        assert_eq!(Taps::NONE.layers().count(), 0);
    }
}
