//! The presets of the tiny writer are models that open and run.

use crate::{
    fixture::Request,
    fixture::{Folder, prompt, step},
    host_walker::{Host, Mode},
};
use tokenspeed_models::{
    config::from_kimi,
    kimi::{GraphOptions, Graphs, KimiConfig, KimiWeights, tiny},
    weights::Checkpoint,
};

fn opens_and_runs(name: &str, config: KimiConfig) {
    let config = tiny::Sizes::default().apply(tiny::real_heads(config)).expect("sound sizes");
    let folder = Folder::new(name);
    tiny::write_as(&folder.0, &config, 3, tiny::Spread::Even).expect("written");
    let read = from_kimi(&folder.0.join("config.json"), None).expect("a sound config");
    assert_eq!(read, config);
    let checkpoint = Checkpoint::open(&folder.0.join("model.safetensors.index.json")).expect("it opens");
    let weights = KimiWeights::open(checkpoint, &read).expect("it is complete");
    let graphs = Graphs::new(&read, GraphOptions::EXACT);
    let mut host = Host::new(&graphs.forward, &weights, Mode::Exact);
    let request = Request { row: 0, computed: 0, read: 0, write: 1 };
    let logits = host.run(&graphs.forward, &step(&[(request, &prompt(3))]));
    for row in logits {
        let n = row.len() as f32;
        let variance = row.iter().map(|v| v * v).sum::<f32>() / n;
        assert!((0.3..3.0).contains(&variance), "{name}: logits have variance {variance}");
    }
}

#[test]
fn real_heads_k3() {
    opens_and_runs("real-heads-k3", tiny::k3());
}

#[test]
fn real_heads_linear() {
    opens_and_runs("real-heads-linear", tiny::kimi_linear());
}
