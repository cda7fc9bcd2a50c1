//! Memory of the published EAGLE3 draft: one layer of latent attention with positions and a dense MLP.
//!
//! It is divided like the model: heads, width of the MLP, rows of the vocabulary. Held whole by every rank it would take
//! 3.7 GB and read them three times per token; divided, a draft step costs three more exchanges of some kilobytes. The
//! product that joins the taps (`fc`) and the low-rank inputs stay whole: they are read once per verified step, or small.
//! The embedding table is byte for byte the model's own, so it is not loaded twice.

use super::PlanError;
use crate::kimi::{config::KimiConfig, slicing::SplitError};

/// Shape of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft {
    /// For people.
    pub name: &'static str,
    /// Width of the stream, the model's.
    pub hidden_size: u64,
    /// Rows of embedding and head, the model's.
    pub vocab_size: u64,
    /// Hidden states of the model it reads per token.
    pub taps: u64,
    /// Heads.
    pub heads: u64,
    /// Width of the query latent.
    pub q_rank: u64,
    /// Width of the key/value latent.
    pub kv_rank: u64,
    /// Part of a key that goes through the latent.
    pub nope_dim: u64,
    /// Part of a key that all heads share.
    pub rope_dim: u64,
    /// Width of a value.
    pub v_dim: u64,
    /// Width of the MLP.
    pub intermediate_size: u64,
}

/// How a tensor of the draft is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Whole,
    Divided,
    /// The model has it.
    Shared,
}

impl Draft {
    /// The published draft of Kimi K3.
    pub const EAGLE3: Draft = Draft {
        name: "EAGLE3",
        hidden_size: 7168,
        vocab_size: 163_840,
        taps: 3,
        heads: 64,
        q_rank: 1536,
        kv_rank: 512,
        nope_dim: 128,
        rope_dim: 64,
        v_dim: 128,
        intermediate_size: 18_432,
    };

    /// Whether it was made for a model of this shape.
    pub fn belongs_to(&self, config: &KimiConfig) -> bool {
        (self.hidden_size, self.vocab_size) == (config.hidden_size, config.vocab_size)
    }

    /// Bytes of its tensors as stored, in bf16.
    pub fn stored_bytes(&self) -> u64 {
        self.tensors().iter().map(|(dims, _)| 2 * dims.iter().product::<u64>()).sum()
    }

    /// Bytes on one rank: matrices in bf16, vectors in f32.
    pub fn rank_bytes(&self, ranks: u64) -> Result<u64, PlanError> {
        let divided = [
            ("heads of the draft", self.heads),
            ("channels of the draft's MLP", self.intermediate_size),
            ("rows of the draft's vocabulary", self.vocab_size),
        ];
        if let Some((what, count)) = divided.into_iter().find(|(_, n)| !n.is_multiple_of(ranks)) {
            let possible = "fewer ranks, or no draft".to_owned();
            return Err(SplitError::Indivisible { what: what.to_owned(), count, ranks, possible }.into());
        }
        let bytes = |(dims, held): (Vec<u64>, Held)| {
            let size = if dims.len() == 1 { 4 } else { 2 } * dims.iter().product::<u64>();
            match held {
                Held::Whole => size,
                Held::Divided => size / ranks,
                Held::Shared => 0,
            }
        };
        Ok(self.tensors().into_iter().map(bytes).sum())
    }

    /// Bytes of its cache row per token, in bf16 whatever the model's is, on every rank.
    pub fn row_bytes(&self) -> u64 {
        2 * (self.kv_rank + self.rope_dim)
    }

    fn tensors(&self) -> Vec<(Vec<u64>, Held)> {
        let Draft { hidden_size: h, heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, intermediate_size: n, .. } =
            *self;
        let mut list = vec![
            (vec![self.vocab_size, h], Held::Shared),                     // embed_tokens
            (vec![self.vocab_size, h], Held::Divided),                    // lm_head
            (vec![h, self.taps * h], Held::Whole),                        // fc
            (vec![q_rank, 2 * h], Held::Whole),                           // q_a_proj
            (vec![q_rank], Held::Whole),                                  // q_a_layernorm
            (vec![heads * (nope_dim + rope_dim), q_rank], Held::Divided), // q_b_proj
            (vec![kv_rank + rope_dim, 2 * h], Held::Whole),               // kv_a_proj_with_mqa
            (vec![kv_rank], Held::Whole),                                 // kv_a_layernorm
            (vec![heads * (nope_dim + v_dim), kv_rank], Held::Divided),   // kv_b_proj
            (vec![h, heads * v_dim], Held::Divided),                      // o_proj
            (vec![n, h], Held::Divided),                                  // gate_proj
            (vec![n, h], Held::Divided),                                  // up_proj
            (vec![h, n], Held::Divided),                                  // down_proj
        ];
        // fc_norm per tap; hidden_norm, input_layernorm, post_attention_layernorm, norm.
        list.extend((0..self.taps + 4).map(|_| (vec![h], Held::Whole)));
        list
    }
}
