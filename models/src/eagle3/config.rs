//! What an EAGLE3 draft is, independent of the file it was read from.

use super::Eagle3Error;
use crate::{
    config::Rope,
    kimi::{KimiConfig, Taps},
};
use tokenspeed_backend_api::dtype::DType;

/// A one-layer draft model with latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Eagle3Config {
    /// Rows of the embedding table: the target's vocabulary.
    pub vocab_size: u64,
    /// Rows of the output head: all of the vocabulary, or the part a table in the checkpoint maps to it.
    pub draft_vocab_size: u64,
    /// Width of the residual stream, which is also the target's.
    pub hidden_size: u64,
    /// Query heads.
    pub heads: u64,
    /// Width of the query latent.
    pub q_rank: u64,
    /// Width of the key/value latent; even.
    pub kv_rank: u64,
    /// Part of a query or key that goes through the latent; even.
    pub nope_dim: u64,
    /// Rotated part of a query, and of the one key all heads share; even.
    pub rope_dim: u64,
    /// Width of a value.
    pub v_dim: u64,
    /// Rotation of the `rope_dim` part, in pairs; its factor on cos and sin is 1.
    pub rope: Rope,
    /// Factor on attention scores: head width^-½, times YaRN's magnitude squared.
    pub softmax_scale: f64,
    /// Width of the MLP.
    pub intermediate_size: u64,
    /// Epsilon of every RMS normalisation, the latent ones included.
    pub rms_norm_eps: f64,
    /// Target layers whose hidden states are read, as completed layers; `None` = [`default_taps`].
    pub taps: Option<Taps>,
    /// What a pass hands to the next: its hidden state after the final normalisation (EAGLE 3.1), or before (3).
    pub norm_output: bool,
    /// Format of the matrices.
    pub stored: DType,
    /// Longest sequence the draft is made for.
    pub context_tokens_max: u64,
    /// Fields that were not understood and cannot matter as far as we know; to be shown once.
    pub ignored_fields: Vec<String>,
}

/// Taps of a target of `layers` layers when the draft names none: near the start, the middle and the end.
pub fn default_taps(layers: u64) -> Option<Taps> {
    Taps::new(&[2, layers / 2, layers.checked_sub(3)?])
}

impl Eagle3Config {
    /// Width of a cache row: latent and rotated key.
    pub fn row(&self) -> u64 {
        self.kv_rank + self.rope_dim
    }

    /// The layers of `target` to tap, if the two models fit together.
    pub fn taps_of(&self, target: &KimiConfig) -> Result<Taps, Eagle3Error> {
        let differ = |what, draft, target| Err(Eagle3Error::Target { what, draft, target });
        if self.hidden_size != target.hidden_size {
            return differ("hidden_size", self.hidden_size, target.hidden_size);
        }
        if self.vocab_size != target.vocab_size {
            return differ("vocab_size", self.vocab_size, target.vocab_size);
        }
        let layers = target.layers.len() as u64;
        let taps = self.taps.or_else(|| default_taps(layers)).ok_or(Eagle3Error::Layers { tap: 2, layers })?;
        match taps.layers().find(|tap| *tap as u64 > layers) {
            Some(tap) => Err(Eagle3Error::Layers { tap: tap as u64, layers }),
            None => Ok(taps),
        }
    }

    /// Taps it reads; three unless it says otherwise.
    pub fn tap_count(&self) -> u64 {
        self.taps.map_or(3, |t| t.layers().count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_taps_follow_from_the_layer_count() {
        assert_eq!(default_taps(93), Taps::new(&[2, 46, 90]));
        assert_eq!(default_taps(15), Taps::new(&[2, 7, 12]));
        assert_eq!(default_taps(2), None);
    }
}
