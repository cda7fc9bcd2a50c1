//! What a decode step must read, from a model's sizes alone: the floor of its time on a machine whose bandwidth is known.

use tokenspeed_models::{config::ModelConfig, loader::Model};

/// Bytes that decoding one token of one request must read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeReads {
    /// Weights that every token uses, the output head included.
    pub dense: u64,
    /// Weights of the experts that one token chooses.
    pub experts: u64,
    /// Cache rows of one token of context, all layers.
    pub cached_token: u64,
    /// Recurrent state: the same at any context. It is also written.
    pub state: u64,
}

impl DecodeReads {
    /// Of an opened model, in the formats its file stores.
    pub(super) fn of(model: &Model) -> Self {
        let sizes = model.sizes();
        let (chosen, experts) = match &model.config {
            ModelConfig::Kimi(c) if c.moe.experts > 0 => (c.moe.top_k, c.moe.experts),
            _ => (0, 1),
        };
        // A tied head reads the whole table; else a token reads its row.
        let table = if sizes.head_bytes == 0 {
            sizes.embedding_bytes
        } else {
            sizes.embedding_bytes / model.config.vocab_size().max(1)
        };
        Self {
            dense: sizes.weight_bytes - sizes.embedding_bytes - sizes.expert_bytes + table,
            experts: (u128::from(sizes.expert_bytes) * u128::from(chosen) / u128::from(experts)) as u64,
            cached_token: sizes.cache_bytes_per_token,
            state: sizes.state_bytes_per_sequence,
        }
    }

    /// All of it, behind `context` tokens.
    pub fn at(&self, context: u64) -> u64 {
        self.dense + self.experts + self.state + self.cached_token * context
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_models::{
        kimi::tiny::{self, Sizes},
        loader::LoadOptions,
    };

    /// By hand, from the shapes of the published layout.
    #[test]
    fn tiny_kimi_k3() {
        let folder = std::env::temp_dir().join(format!("tokenspeed-reads-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let config = Sizes { layers: Some(2), ..Sizes::default() }.apply(tiny::k3()).expect("sound");
        tiny::write(&folder, &config, 1).expect("written");
        let model = Model::open(&folder, &LoadOptions::default()).expect("opens");
        let reads = DecodeReads::of(&model);
        drop(model);
        std::fs::remove_dir_all(&folder).expect("cleaned up");
        // Four experts of three matrices of 96 x 64, half a byte a value and a scale per 32, and each one's place in memory.
        assert_eq!(reads.experts, 4 * (3 * (96 * 64 / 2 + 96 * 64 / 32) + 4));
        // One MLA layer: 64 + 16 values in f32. One KDA layer: 4 heads of 32 x 32, and 3 raw inputs of 3 x 128 channels.
        assert_eq!(reads.cached_token, (64 + 16) * 4);
        assert_eq!(reads.state, 4 * 32 * 32 * 4 + 3 * 3 * 128 * 4);
        // The head in bf16 is most of what remains; the embedding table must not be in it.
        let head = 512 * 128 * 2;
        assert!((head..8 * head).contains(&reads.dense), "{}", reads.dense);
        assert_eq!(reads.at(10) - reads.at(0), 10 * reads.cached_token);
    }
}
