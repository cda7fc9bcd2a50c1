//! Sizes of tiny models: presets for kernels and for benchmarks, and changes to any of them, checked.
//!
//! A change is refused here, by the name of its option, before a byte is written. Rejected: leaving it to the reader of
//! `config.json`, which speaks of the file's fields and sees them only after the weights are on disk.

use super::{
    super::{
        config::{ExpertFormat, KimiConfig, LayerKind},
        tensors::CheckpointSize,
    },
    kinds,
};
use tokenspeed_backend_api::quant::mxfp4;

/// Special tokens at the end of a vocabulary of the published layout.
const SPECIAL_TOKENS: u64 = 256;
/// Smallest vocabulary: one token per byte, and the special ones.
const VOCAB_MIN: u64 = 256 + SPECIAL_TOKENS;
const LAYERS_MAX: u64 = 1024;
const SIZE_MAX: u64 = 1 << 20;
/// A tiny model above this is a mistyped one.
const BYTES_MAX: u64 = 1 << 40;

/// Sizes to change; `None` leaves a model's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Layers: every fourth and the last are MLA, as published.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Entries of the vocabulary.
    pub vocab: Option<u64>,
    /// Heads of both kinds of attention.
    pub heads: Option<u64>,
    /// Routed experts.
    pub experts: Option<u64>,
    /// Experts of a token.
    pub top_k: Option<u64>,
    /// Width of an expert.
    pub expert_width: Option<u64>,
    /// Width of the space the experts work in.
    pub latent: Option<u64>,
    /// Width of the dense MLP.
    pub dense_width: Option<u64>,
    /// Layers of a block of Attention Residuals.
    pub block: Option<u64>,
    /// Longest sequence, in tokens.
    pub context: Option<u64>,
}

/// Sizes that make no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Outside what is possible.
    #[error("{size} {value} is not between {min} and {max}")]
    Range {
        /// Which size.
        size: &'static str,
        /// As given.
        value: u64,
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// Rows of MXFP4 matrices are whole groups.
    #[error("{size} {value} is no multiple of 32: MXFP4 shares a scale among 32 values")]
    Group {
        /// Which size.
        size: &'static str,
        /// As given.
        value: u64,
    },
    /// A token cannot use more experts than there are.
    #[error("{top_k} experts per token, but only {experts} experts")]
    Experts {
        /// Experts per token.
        top_k: u64,
        /// Experts.
        experts: u64,
    },
    /// The family does without this part.
    #[error("{size} does not apply: {family} has none")]
    Absent {
        /// Which size.
        size: &'static str,
        /// Name of the family.
        family: &'static str,
    },
    /// Too large to be meant.
    #[error("the model would take {bytes} bytes, more than a tiny model's 2^40")]
    Large {
        /// Size of its weights.
        bytes: u64,
    },
}

impl Sizes {
    /// `config` with these sizes, its first and last tokens placed as in the published vocabulary.
    pub fn apply(&self, config: KimiConfig) -> Result<KimiConfig, SizeError> {
        let mut c = config;
        let range = |size, value: Option<u64>, min, max| match value {
            Some(value) if value < min || value > max => Err(SizeError::Range { size, value, min, max }),
            _ => Ok(()),
        };
        range("--layers", self.layers, 2, LAYERS_MAX)?;
        range("--vocab", self.vocab, VOCAB_MIN, SIZE_MAX)?;
        range("--heads", self.heads, 1, 4096)?;
        range("--experts", self.experts, 1, 65_536)?;
        range("--experts-per-token", self.top_k, 1, 65_536)?;
        range("--block", self.block, 1, LAYERS_MAX)?;
        for (size, value) in [
            ("--hidden", self.hidden),
            ("--expert-width", self.expert_width),
            ("--latent", self.latent),
            ("--dense-width", self.dense_width),
            ("--context", self.context),
        ] {
            range(size, value, 1, SIZE_MAX)?;
        }
        let family = if c.attn_res_block.is_some() { "Kimi K3" } else { "Kimi Linear" };
        for (size, asked, has) in
            [("--latent", self.latent, c.moe.latent.is_some()), ("--block", self.block, c.attn_res_block.is_some())]
        {
            if asked.is_some() && !has {
                return Err(SizeError::Absent { size, family });
            }
        }
        let set = |place: &mut u64, value: Option<u64>| *place = value.unwrap_or(*place);
        set(&mut c.hidden_size, self.hidden);
        set(&mut c.vocab_size, self.vocab);
        set(&mut c.kda.heads, self.heads);
        set(&mut c.mla.heads, self.heads);
        set(&mut c.moe.experts, self.experts);
        set(&mut c.moe.top_k, self.top_k);
        set(&mut c.moe.intermediate_size, self.expert_width);
        set(&mut c.intermediate_size, self.dense_width);
        set(&mut c.context_tokens_max, self.context);
        c.moe.latent = self.latent.or(c.moe.latent);
        c.attn_res_block = self.block.or(c.attn_res_block);
        if let Some(layers) = self.layers {
            c.layers = published_kinds(layers as usize);
        }
        let first_special = (c.vocab_size - SPECIAL_TOKENS) as u32;
        // [BOS] and <|end_of_msg|>.
        (c.bos_id, c.eos_ids) = (Some(first_special), vec![first_special + 2]);
        check(&c)?;
        Ok(c)
    }
}

fn check(c: &KimiConfig) -> Result<(), SizeError> {
    if c.moe.top_k > c.moe.experts {
        return Err(SizeError::Experts { top_k: c.moe.top_k, experts: c.moe.experts });
    }
    if c.expert_format == ExpertFormat::Mxfp4 {
        let inner = if c.moe.latent.is_some() { "--latent" } else { "--hidden" };
        for (size, value) in [(inner, c.moe.width(c.hidden_size)), ("--expert-width", c.moe.intermediate_size)] {
            if !value.is_multiple_of(mxfp4::GROUP as u64) {
                return Err(SizeError::Group { size, value });
            }
        }
    }
    // A bound from experts alone comes first: a list of billions of tensors would take minutes to add up.
    let one = 3 * c.moe.width(c.hidden_size) * c.moe.intermediate_size / 2;
    let experts = c.moe.experts * c.layers.len() as u64;
    let bytes = experts.saturating_mul(one.max(1 << 10));
    let bytes = if bytes > BYTES_MAX { bytes } else { CheckpointSize::of(c).total().bytes };
    if bytes > BYTES_MAX { Err(SizeError::Large { bytes }) } else { Ok(()) }
}

/// Every fourth layer and the last are MLA.
fn published_kinds(n: usize) -> Vec<LayerKind> {
    let mla: Vec<usize> = (1..=n).filter(|l| l.is_multiple_of(4) || *l == n).collect();
    kinds(n, &mla)
}

/// `config` with heads as wide as the published ones and widths that are whole tiles of a matrix unit: KDA 128, MLA
/// 512 + 64, latent width 256, 384 columns of an expert as on one of eight ranks. Six layers, MLA fourth and last; the second block of Attention Residuals is
/// cut short. For kernels that are made for the published shapes.
pub fn real_heads(config: KimiConfig) -> KimiConfig {
    let mut c = config;
    c.hidden_size = 512;
    c.layers = published_kinds(6);
    c.kda.head_dim = 128;
    (c.mla.kv_rank, c.mla.nope_dim, c.mla.rope_dim, c.mla.v_dim) = (512, 128, 64, 128);
    c.mla.q_rank = c.mla.q_rank.map(|_| 256);
    c.intermediate_size = 1024;
    c.moe.latent = c.moe.latent.map(|_| 256);
    c.moe.intermediate_size = 384;
    c
}

/// `config` at about 1.5 GB, in proportions near the published ones: for benchmarks. The vocabulary is the published
/// one, because converters of other engines know no other; its two tables take 671 MB.
pub fn mid(config: KimiConfig) -> KimiConfig {
    let mut c = real_heads(config);
    c.vocab_size = 163_840;
    c.hidden_size = 1024;
    c.layers = published_kinds(13);
    (c.kda.heads, c.mla.heads) = (12, 12);
    c.intermediate_size = 4096;
    c.moe.latent = c.moe.latent.map(|_| 512);
    c.moe.intermediate_size = 512;
    (c.moe.experts, c.moe.top_k) = (96, 8);
    // Snapshots at layers 0, 5 and 10, all KDA, and three layers after the last, as published.
    c.attn_res_block = c.attn_res_block.map(|_| 5);
    c.context_tokens_max = 65_536;
    if c.expert_format == ExpertFormat::Plain {
        // They take nearly four times the room.
        (c.moe.experts, c.moe.intermediate_size) = (32, 256);
    }
    c
}

#[cfg(test)]
mod tests {
    use super::{
        super::{k3, kimi_linear},
        *,
    };

    fn refused(sizes: Sizes) -> String {
        sizes.apply(k3()).expect_err("refused").to_string()
    }

    #[test]
    fn refusals_name_the_option() {
        let none = Sizes::default();
        assert!(refused(Sizes { layers: Some(1), ..none }).starts_with("--layers 1 is not between 2 and"));
        assert!(refused(Sizes { vocab: Some(511), ..none }).starts_with("--vocab 511"));
        assert!(refused(Sizes { heads: Some(0), ..none }).starts_with("--heads 0"));
        assert!(refused(Sizes { expert_width: Some(100), ..none }).starts_with("--expert-width 100 is no multiple"));
        assert!(refused(Sizes { latent: Some(48), ..none }).starts_with("--latent 48 is no multiple"));
        assert_eq!(refused(Sizes { top_k: Some(17), ..none }), "17 experts per token, but only 16 experts");
        let large = Sizes { experts: Some(65_536), expert_width: Some(1 << 20), ..none };
        assert!(refused(large).contains("2^40"));
        let large = Sizes { hidden: Some(1 << 20), vocab: Some(1 << 20), ..none };
        assert!(refused(large).contains("2^40"));
        for sizes in [Sizes { latent: Some(64), ..none }, Sizes { block: Some(4), ..none }] {
            assert!(sizes.apply(kimi_linear()).expect_err("refused").to_string().ends_with("Kimi Linear has none"));
        }
    }

    #[test]
    fn changes_land_where_they_belong() {
        let sizes = Sizes { layers: Some(9), heads: Some(8), experts: Some(8), vocab: Some(1024), ..Sizes::default() };
        let c = sizes.apply(k3()).expect("fine");
        let mla: Vec<usize> = c.layers_of(LayerKind::Mla).collect();
        assert_eq!((mla, c.kda.heads, c.mla.heads, c.moe.experts), (vec![3, 7, 8], 8, 8, 8));
        assert_eq!((c.bos_id, c.eos_ids), (Some(768), vec![770]));
        assert_eq!(c.hidden_size, k3().hidden_size);
    }

    #[test]
    fn kinds_follow_the_published_lists() {
        let mla = |n| kinds_of(&published_kinds(n));
        assert_eq!(mla(93), (1..=23).map(|i| 4 * i).chain([93]).collect::<Vec<_>>());
        assert_eq!(mla(27), [4, 8, 12, 16, 20, 24, 27]);
    }

    fn kinds_of(layers: &[LayerKind]) -> Vec<usize> {
        (1..=layers.len()).filter(|l| layers[l - 1] == LayerKind::Mla).collect()
    }

    #[test]
    fn presets_have_the_sizes_they_are_for() {
        for base in [k3(), kimi_linear()] {
            let c = Sizes::default().apply(real_heads(base.clone())).expect("fine");
            assert_eq!((c.kda.head_dim, c.mla.row(), c.mla.nope_dim, c.mla.v_dim), (128, 576, 128, 128));
            assert!(c.moe.width(c.hidden_size).is_multiple_of(256) && c.moe.intermediate_size.is_multiple_of(128));
            assert!(c.attn_res_block.is_none_or(|b| !(c.layers.len() as u64).is_multiple_of(b)));
            assert!(CheckpointSize::of(&c).total().bytes < 128 << 20);
            let c = Sizes::default().apply(mid(base)).expect("fine");
            let bytes = CheckpointSize::of(&c).total().bytes;
            assert!((1_200_000_000..1_700_000_000).contains(&bytes), "{bytes}");
            assert_eq!((c.vocab_size, c.bos_id, &c.eos_ids[..]), (163_840, Some(163_584), &[163_586][..]));
            let snapshots: Vec<usize> = c.layers_of(LayerKind::Mla).filter(|l| c.begins_block(*l)).collect();
            assert_eq!(snapshots, [0; 0], "snapshots fall on KDA layers, as published");
        }
    }
}
