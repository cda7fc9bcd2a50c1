//! The drafts that golden files exist for.

use tokenspeed_models::{
    eagle3::{Eagle3Config, tiny},
    kimi::{KimiConfig, Taps},
};

/// Seed of the target; the drafts have the next one.
pub const SEED: u64 = 20_260_801;

/// Name, configuration, and whether the draft has its own embedding table.
pub fn all(target: &KimiConfig) -> Vec<(&'static str, Eagle3Config, bool)> {
    let config = tiny::config(target);
    let taps = Taps::new(&[1, 4, 8, 15]);
    assert!(taps.is_some(), "ascending");
    vec![
        ("eagle31", config.clone(), false),
        ("eagle3", Eagle3Config { norm_output: false, ..config.clone() }, true),
        ("part_of_the_vocabulary", Eagle3Config { draft_vocab_size: 200, ..config.clone() }, false),
        ("four_taps", Eagle3Config { taps, ..config }, false),
    ]
}
