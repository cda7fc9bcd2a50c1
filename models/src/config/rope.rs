//! Rotary embedding: which frequencies, and how far apart the two halves of a pair lie.
//!
//! Frequencies are computed in f64 and rounded once to f32, so they do not depend on a library's power function in
//! single precision. Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), and for `llama3` the Llama 3.1
//! reference; field names as in Hugging Face configs.

use std::f64::consts::{PI, TAU};

/// How pairs are laid out in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (d, d + half): Hugging Face checkpoints, and GGUF for Qwen.
    Halves,
    /// (2d, 2d + 1): GGUF for Llama, whose q and k rows were permuted for it.
    Pairs,
}

/// How the context was stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All positions divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Stretch.
        factor: f64,
        /// Wavelengths above `original / low` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original / high` are kept.
        high_freq_factor: f64,
        /// Context the model was first trained for, in tokens.
        original_tokens: f64,
    },
    /// YaRN: as llama3, by rotations over the original context, plus a factor on cos and sin.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Context the model was first trained for, in tokens.
        original_tokens: f64,
        /// Dimensions with more rotations than this are kept.
        beta_fast: f64,
        /// Dimensions with fewer rotations than this are stretched fully.
        beta_slow: f64,
        /// Factor on cos and sin.
        attention_factor: f64,
        /// Round the ramp's ends outwards to whole dimensions.
        truncate: bool,
    },
}

/// A model's rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pair layout.
    pub style: RopeStyle,
    /// Base of the frequencies.
    pub theta: f64,
    /// How many leading dimensions of a head are rotated; even.
    pub rotary_dims: u64,
    /// Context stretching.
    pub scaling: RopeScaling,
}

/// YaRN's factor on cos and sin for a stretch: `0.1 · scale · ln(stretch) + 1`.
pub(super) fn yarn_magnitude(stretch: f64, scale: f64) -> f64 {
    if stretch <= 1.0 { 1.0 } else { 0.1 * scale * stretch.ln() + 1.0 }
}

impl Rope {
    /// Factor on cos and sin.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// The `rotary_dims / 2` angular frequencies, in radians per token. `divisors` (GGUF's `rope_freqs.weight`, which
    /// is how llama3 scaling is stored there) divide the unscaled ones.
    ///
    /// # Panics
    /// If `divisors` has another length; the loader checks its shape.
    pub fn inverse_frequencies(&self, divisors: Option<&[f32]>) -> Vec<f32> {
        let n = (self.rotary_dims / 2) as usize;
        assert!(divisors.is_none_or(|d| d.len() == n), "one divisor per frequency");
        (0..n)
            .map(|i| {
                let plain = self.theta.powf(-(2.0 * i as f64) / self.rotary_dims as f64);
                let plain = plain / divisors.map_or(1.0, |d| f64::from(d[i]));
                self.scaled(plain, i as f64) as f32
            })
            .collect()
    }

    fn scaled(&self, plain: f64, i: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_tokens } => {
                let wavelength = TAU / plain;
                if wavelength < original_tokens / high_freq_factor {
                    plain
                } else if wavelength > original_tokens / low_freq_factor {
                    plain / factor
                } else {
                    let keep = (original_tokens / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - keep) * plain / factor + keep * plain
                }
            }
            RopeScaling::Yarn { factor, original_tokens, beta_fast, beta_slow, truncate, .. } => {
                // The dimension that makes `rotations` turns over the original context.
                let dims = self.rotary_dims as f64;
                let dim_of =
                    |rotations: f64| dims * (original_tokens / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (mut low, mut high) = (dim_of(beta_fast), dim_of(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(dims - 1.0));
                let stretch = ((i - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain / factor * stretch + plain * (1.0 - stretch)
            }
        }
    }

    /// The context after stretching. `tokens` is what the config states as its maximum: for `llama3` that already
    /// includes the stretch, for `linear` it does not, and for YaRN it may or may not.
    pub(super) fn context_tokens(&self, tokens: u64) -> u64 {
        match self.scaling {
            RopeScaling::None | RopeScaling::Llama3 { .. } => tokens,
            RopeScaling::Linear { factor } => (tokens as f64 * factor) as u64,
            RopeScaling::Yarn { factor, original_tokens, .. } => tokens.max((original_tokens * factor) as u64),
        }
    }
}
