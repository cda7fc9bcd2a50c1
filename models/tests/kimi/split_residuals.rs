//! Attention Residuals in their split form: the same model.

use crate::{
    fixture::{Model, distance, full, prompt},
    host_walker::Mode,
    variants,
};
use tokenspeed_backend_api::op::OpKind;
use tokenspeed_models::kimi::{GraphOptions, Graphs};

#[test]
fn split_mixtures_give_the_same_logits() {
    for (name, config) in variants::all() {
        if !["k3", "block_3"].contains(&name) {
            continue;
        }
        let model = Model::new(&format!("{name}-split"), &config, GraphOptions::EXACT);
        let options = GraphOptions { split_residuals: true, ..GraphOptions::EXACT };
        let split = Graphs::new(&config, options).forward;
        let count = |kind| split.ops.iter().filter(|op| op.kind == kind).count();
        let whole = model.graphs.forward.ops.iter().filter(|op| op.kind == OpKind::AttnResMix).count();
        assert_eq!([OpKind::AttnResMix, OpKind::AttnResPartial, OpKind::AttnResCombine].map(count), [0, whole, whole]);
        assert_eq!(count(OpKind::AttnResScores), (0..config.layers.len()).filter(|l| config.begins_block(*l)).count());

        let ids = prompt(40);
        let expected = full(&mut model.host(Mode::Exact), &model, &ids);
        let mut graphs = model;
        graphs.graphs.forward = split;
        let got = full(&mut graphs.host(Mode::Exact), &graphs, &ids);
        let worst = distance(&got, &expected);
        assert!(worst <= 1e-5, "{name}: {worst:e}");
    }
}
