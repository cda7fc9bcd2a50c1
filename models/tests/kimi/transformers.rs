//! The tiny Kimi Linear against Hugging Face transformers, which reads the published layout with its own name mapping:
//! an independent reading of names, shapes and orders. `transformers_golden.py` recorded it, in float32.

use crate::{
    fixture::{Model, full, prompt},
    host_walker::Mode,
};
use serde_json::Value;
use tokenspeed_models::kimi::{GraphOptions, tiny};

#[test]
fn kimi_linear_agrees_with_transformers() {
    let golden: Value = serde_json::from_str(include_str!("transformers.json")).expect("JSON");
    let list = |name: &str| -> Vec<f64> {
        golden[name].as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
    };
    let ids = prompt(90);
    assert!(ids.iter().map(|id| f64::from(*id)).eq(list("ids")));
    let config = tiny::kimi_linear();
    let model = Model::new("transformers", &config, GraphOptions::EXACT);
    for mode in [Mode::Exact, Mode::Fused] {
        let logits = full(&mut model.host(mode), &model, &ids);
        let argmax: Vec<f64> = logits
            .iter()
            .map(|row| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary") as f64)
            .collect();
        assert_eq!(argmax, list("argmax"), "{mode:?}");
        for (name, row) in [("early", &logits[2]), ("last", &logits[89])] {
            let wanted = list(name);
            assert_eq!((row.len(), wanted.len()), (512, 512));
            let worst = row.iter().zip(wanted).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - b).abs()));
            println!("{mode:?} {name}: max |Δ| {worst:e}");
            assert!(worst <= 1e-4, "{mode:?} {name}: {worst:e}");
        }
    }
}
