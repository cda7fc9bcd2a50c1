//! Logits of every variant against the float64 oracle.

use crate::{
    fixture::{Model, full},
    host_walker::Mode,
    variants,
};
use serde_json::Value;
use tokenspeed_models::kimi::GraphOptions;

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
}

/// Largest difference from the oracle over the kept logits; every argmax must agree.
fn check(name: &str) -> f64 {
    let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/kimi/golden.json")).expect("JSON");
    let (_, config) = variants::all().into_iter().find(|(n, _)| *n == name).expect("a variant");
    let expected = &golden["variants"][name];
    assert_eq!(expected["latent_eps"].as_f64(), Some(config.mla.latent_eps), "{name}");
    let ids: Vec<i32> = numbers(&golden["ids"]).into_iter().map(|id| id as i32).collect();
    let model = Model::new(name, &config, GraphOptions::EXACT);
    let logits = full(&mut model.host(Mode::Exact), &model, &ids);
    let argmax = numbers(&expected["argmax"]);
    let mut worst = 0f64;
    assert!(logits.len() == ids.len() && argmax.len() == ids.len());
    for (t, row) in logits.iter().enumerate() {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary");
        assert_eq!(best as f64, argmax[t], "{name}: argmax of token {t}");
        for (j, wanted) in numbers(&expected["logits"][t]).into_iter().enumerate() {
            worst = worst.max((f64::from(row[(37 * t + 61 * j) % row.len()]) - wanted).abs());
        }
    }
    println!("{name}: max |Δ| {worst:e}");
    worst
}

macro_rules! variants {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let worst = check(stringify!($name));
            assert!(worst <= 2e-5, "{worst:e}");
        }
    )*};
}
variants! { k3 latent_eps groups softplus_low_rank direct_queries silu plain_residuals block_3 plain_experts kimi_linear }
