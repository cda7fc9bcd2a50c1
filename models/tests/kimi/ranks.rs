//! A divided model computes what the whole one does, and every rule of the table is needed for it.

use crate::{
    fixture::{Folder, Request, distance, prompt, step},
    host_walker::{Host, Mode},
    rank_walker::Group,
    variants,
};
use std::sync::Arc;
use tokenspeed_backend_api::{
    graph::{Graph, WeightBytes, WeightSource, WeightSpec},
    op::OpKind,
};
use tokenspeed_models::{
    kimi::{
        GraphOptions, Graphs, Kda, KimiConfig, KimiWeights, LayerKind, Mla, Moe,
        slicing::{ExchangeKind, ExpertSplit, How, RankGraph, RankGraphs, RankWeights, Rule, Split},
        tiny,
    },
    weights::Checkpoint,
};

/// With 8 heads of each kind and experts of width 256: eight groups of 32.
fn eight_heads(of: KimiConfig) -> KimiConfig {
    KimiConfig {
        kda: Kda { heads: 8, ..of.kda },
        mla: Mla { heads: 8, ..of.mla },
        moe: Moe { intermediate_size: 256, ..of.moe },
        ..of
    }
}

/// A checkpoint of it.
fn write(name: &str, config: &KimiConfig) -> (Arc<KimiWeights>, Folder) {
    let folder = Folder::new(name);
    tiny::write(&folder.0, config, variants::SEED).expect("a tiny checkpoint");
    let checkpoint = Checkpoint::open(&folder.0.join("model.safetensors.index.json")).expect("it opens");
    (Arc::new(KimiWeights::open(checkpoint, config).expect("it is complete")), folder)
}

fn divide(config: &KimiConfig, weights: &Arc<KimiWeights>, ranks: u64) -> (Vec<RankGraph>, Vec<RankWeights>) {
    let splits = (0..ranks).map(|rank| Split::new(config, rank, ranks, ExpertSplit::Width).expect("it divides"));
    let divided = splits.map(|split| {
        let graphs = RankGraphs::new(config, GraphOptions::EXACT, split).expect("it divides");
        (graphs.forward, RankWeights::new(weights.clone(), config.clone(), split))
    });
    divided.unzip()
}

const REQUEST: Request = Request { row: 1, computed: 0, read: 0, write: 2 };

/// 100 tokens of prompt, then 16 greedy ones: the tokens and all logits.
fn answer(mut run: impl FnMut(Request, &[i32]) -> Vec<Vec<f32>>) -> (Vec<i32>, Vec<Vec<f32>>) {
    let mut logits = run(REQUEST, &prompt(100));
    let mut tokens = Vec::new();
    for i in 0..16 {
        let last = logits.last().expect("a row");
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).expect("a token") as i32;
        tokens.push(best);
        logits.extend(run(Request { computed: 100 + i, read: 2, ..REQUEST }, &[best]));
    }
    (tokens, logits)
}

fn check(name: &str, config: &KimiConfig) {
    let (weights, _folder) = write(name, config);
    let whole = Graphs::new(config, GraphOptions::EXACT).forward;
    let mut host = Host::new(&whole, &*weights, Mode::Exact);
    let (tokens, logits) = answer(|request, ids| host.run(&whole, &step(&[(request, ids)])));
    for ranks in [1, 2, 4, 8] {
        let (graphs, sources) = divide(config, &weights, ranks);
        let sources: Vec<&dyn WeightSource> = sources.iter().map(|s| s as &dyn WeightSource).collect();
        let mut group = Group::new(graphs, &sources);
        let divided = answer(|request, ids| group.run(&step(&[(request, ids)])));
        let difference = distance(&logits, &divided.1);
        println!("{name} on {ranks} ranks: max |Δ| {difference:e}");
        assert_eq!(tokens, divided.0, "{name} on {ranks} ranks");
        assert!(difference <= 1e-5, "{name} on {ranks} ranks: {difference:e}");
        assert_eq!(difference > 0.0, ranks > 1, "{name}: one rank is the whole model, several round more often");
    }
}

#[test]
fn k3_divided() {
    check("k3-ranks", &eight_heads(tiny::k3()));
}

/// Low-rank output gates, no latent space, direct queries, plain experts and residuals.
#[test]
fn kimi_linear_divided() {
    check("linear-ranks", &eight_heads(tiny::kimi_linear()));
}

/// Three layers with every kind of weight: KDA with a dense MLP, KDA and MLA with experts.
fn small(of: KimiConfig) -> KimiConfig {
    KimiConfig { layers: tiny::kinds(3, &[3]), ..eight_heads(of) }
}

/// Bytes for a weight instead of the right ones.
type Fault<'a> = &'a (dyn Fn(&WeightSpec) -> Option<Vec<u8>> + Sync);

/// A rank's weights with one of them wrong.
struct Wrong<'a> {
    right: &'a RankWeights,
    wrong: Fault<'a>,
}

impl WeightSource for Wrong<'_> {
    fn regions(&self) -> Vec<&[u8]> {
        self.right.regions()
    }

    fn weight(&self, spec: &WeightSpec) -> Result<WeightBytes<'_>, String> {
        match (self.wrong)(spec) {
            Some(bytes) => Ok(WeightBytes::Owned(bytes.into())),
            None => self.right.weight(spec),
        }
    }
}

fn bytes(source: &dyn WeightSource, spec: &WeightSpec) -> Vec<u8> {
    source.weight(spec).expect("there").contents(&source.regions()).into_owned()
}

/// Logits of a short prompt on two ranks, with weights of rank 0 replaced and an exchange left out.
struct Seeded {
    config: KimiConfig,
    weights: Arc<KimiWeights>,
    expected: Vec<Vec<f32>>,
    _folder: Folder,
}

impl Seeded {
    fn new(name: &str, config: KimiConfig) -> Self {
        let (weights, folder) = write(name, &config);
        let whole = Graphs::new(&config, GraphOptions::EXACT).forward;
        let mut host = Host::new(&whole, &*weights, Mode::Exact);
        let expected = host.run(&whole, &step(&[(REQUEST, &prompt(12))]));
        Self { config, weights, expected, _folder: folder }
    }

    fn distance(&self, wrong: Fault<'_>, skipped: Option<usize>) -> f32 {
        let (graphs, sources) = divide(&self.config, &self.weights, 2);
        let first = Wrong { right: &sources[0], wrong };
        let mut group = Group::new(graphs, &[&first, &sources[1]]);
        group.skipped = skipped;
        distance(&self.expected, &group.run(&step(&[(REQUEST, &prompt(12))])))
    }
}

/// If rank 0 takes rank 1's slice of a single weight, the comparison sees it: for every weight that is divided.
#[test]
fn a_wrong_slice_is_seen() {
    let mut seen = std::collections::HashSet::new();
    for (name, config) in [("k3-wrong", tiny::k3()), ("linear-wrong", tiny::kimi_linear())] {
        let seeded = Seeded::new(name, small(config));
        assert!(seeded.distance(&|_| None, None) <= 1e-5, "{name}: no fault, no difference");
        let (graphs, sources) = divide(&seeded.config, &seeded.weights, 2);
        for spec in &graphs[0].graph.weights {
            let rule = Rule::of(&seeded.config, &spec.name).expect("ruled");
            if matches!(rule.how, How::Whole | How::ExpertIds) || !seen.insert(spec.name.clone()) {
                continue;
            }
            let wrong = |other: &WeightSpec| (other.name == spec.name).then(|| bytes(&sources[1], other));
            let difference = seeded.distance(&wrong, None);
            assert!(difference > 1e-4, "{name}: {} moves logits by {difference:e} only", spec.name);
        }
    }
    let kinds = |how| seen.iter().filter(|n| Rule::of(&small(tiny::k3()), n).is_ok_and(|r| r.how == how)).count();
    for how in [
        How::HeadRows,
        How::HeadColumns,
        How::WidthRows,
        How::WidthColumns,
        How::VocabularyRows,
        How::LatentColumns,
        How::ExpertRows,
        How::ExpertColumns,
    ] {
        assert!(kinds(how) > 0, "no weight of rule {how:?} was tried");
    }
}

/// The mistakes that these formats invite.
#[test]
fn tempting_mistakes_are_seen() {
    let seeded = Seeded::new("k3-mistakes", small(tiny::k3()));
    let whole = Graphs::new(&seeded.config, GraphOptions::EXACT).forward;
    let of = |spec: &WeightSpec| {
        let full = whole.weights.iter().find(|w| w.name == spec.name).expect("the same names");
        bytes(&*seeded.weights, full)
    };
    // Keys and values as two halves of all heads, rather than side by side per head.
    let halves = |spec: &WeightSpec| {
        spec.name.ends_with("kv_b_proj.weight").then(|| {
            let all = of(spec);
            let quarter = all.len() / 4;
            [&all[..quarter], &all[2 * quarter..3 * quarter]].concat()
        })
    };
    // A_log by the padded vector: the second rank's slice would be padding; here the first takes zeros.
    let padding = |spec: &WeightSpec| spec.name.ends_with("A_log").then(|| vec![0; 16]);
    // Columns of a stack cut as if it were rows.
    let flat = |spec: &WeightSpec| {
        spec.name.ends_with("experts.w2.weight_packed").then(|| {
            let all = of(spec);
            all[..all.len() / 2].to_vec()
        })
    };
    let faults: [(&str, Fault<'_>); 3] = [("halves", &halves), ("padding", &padding), ("flat", &flat)];
    for (name, wrong) in faults {
        let difference = seeded.distance(wrong, None);
        assert!(difference > 1e-4, "{name}: {difference:e}");
    }
}

/// A fused op that works by head or by column is a rank's own; the way out of the experts is cut by an exchange.
#[test]
fn fused_ops_of_a_rank() {
    let config = small(tiny::k3());
    let whole = Graphs::new(&config, GraphOptions::EXACT).forward;
    let split = Split::new(&config, 1, 2, ExpertSplit::Width).expect("it divides");
    let rank = RankGraphs::new(&config, GraphOptions::EXACT, split).expect("it divides").forward.graph;
    let fused = [OpKind::KdaMix, OpKind::MoeInput, OpKind::MoeOutput];
    let count = |graph: &Graph| fused.map(|kind| graph.ops.iter().filter(|op| op.kind == kind).count());
    assert_eq!(count(&whole), [2, 2, 2]);
    assert_eq!(count(&rank), [2, 2, 0]);
}

/// Leaving out any exchange is seen: attention, dense MLP, latent sum, MoE output, logits.
#[test]
fn every_exchange_is_needed() {
    let seeded = Seeded::new("k3-exchanges", small(tiny::k3()));
    let (graphs, _) = divide(&seeded.config, &seeded.weights, 2);
    let exchanges = &graphs[0].exchanges;
    let labels: Vec<&str> = exchanges.iter().map(|e| &graphs[0].graph.ops[e.after].label[..]).collect();
    let layer = |n: usize, what: &str| format!("model.layers.{n}.{what}");
    let mut expected = vec![layer(0, "self_attn.o_proj"), layer(0, "mlp.down_proj")];
    for n in 1..3 {
        expected
            .extend(["self_attn.o_proj", "block_sparse_moe.experts", "block_sparse_moe.output"].map(|w| layer(n, w)));
    }
    expected.push("lm_head".to_owned());
    assert_eq!(labels, expected);
    assert!(matches!(exchanges.last().map(|e| e.kind), Some(ExchangeKind::Gather { .. })));
    for (nth, label) in labels.iter().enumerate() {
        let difference = seeded.distance(&|_| None, Some(nth));
        assert!(difference > 1e-4, "{label}: {difference:e}");
    }
}

/// Recurrent states are divided by heads; the latent rows are the same on every rank.
#[test]
fn caches_of_a_rank() {
    let config = small(tiny::k3());
    let (weights, _folder) = write("k3-caches", &config);
    let whole = Graphs::new(&config, GraphOptions::EXACT).forward;
    let mut host = Host::new(&whole, &*weights, Mode::Exact);
    host.run(&whole, &step(&[(REQUEST, &prompt(12))]));
    for ranks in [2, 4, 8] {
        let (graphs, sources) = divide(&config, &weights, ranks);
        let sources: Vec<&dyn WeightSource> = sources.iter().map(|s| s as &dyn WeightSource).collect();
        let mut group = Group::new(graphs, &sources);
        group.run(&step(&[(REQUEST, &prompt(12))]));
        let [mla, kda] = [0, 1];
        for (t, full) in host.caches[kda].iter().enumerate() {
            assert_eq!(group.hosts[0].caches[kda][t].len() * ranks as usize, full.len(), "tensor {t}");
        }
        for rank in &group.hosts {
            assert_eq!(rank.caches[mla].len(), config.layers_of(LayerKind::Mla).count());
            assert_eq!(rank.caches[mla][0].len(), host.caches[mla][0].len());
            assert!(rank.caches[mla] == group.hosts[0].caches[mla], "latent rows are the same bits on every rank");
        }
    }
}

/// Candidates are verified and replayed as on one rank.
#[test]
fn speculation_divided() {
    let config = small(tiny::k3());
    let (weights, _folder) = write("k3-ranks-verify", &config);
    let options = GraphOptions { candidates: 3, ..GraphOptions::EXACT };
    let whole = Graphs::new(&config, options);
    let ids = prompt(16);
    let prefix = step(&[(REQUEST, &ids[..12])]);
    let after = Request { computed: 12, read: 2, ..REQUEST };
    let (candidates, accepted) = (step(&[(after, &ids[12..15])]), step(&[(after, &ids[12..14])]));
    let next = step(&[(Request { computed: 14, ..after }, &ids[14..])]);

    let mut host = Host::new(&whole.forward, &*weights, Mode::Exact);
    host.run(&whole.forward, &prefix);
    let mut expected = host.run(whole.verify.as_ref().expect("asked"), &candidates);
    host.run(whole.replay.as_ref().expect("asked"), &accepted);
    expected.extend(host.run(&whole.forward, &next));

    let splits = (0..4).map(|rank| Split::new(&config, rank, 4, ExpertSplit::Width).expect("it divides"));
    let ranks: Vec<_> = splits
        .map(|split| {
            let graphs = RankGraphs::new(&config, options, split).expect("it divides");
            (graphs, RankWeights::new(weights.clone(), config.clone(), split))
        })
        .collect();
    let sources: Vec<&dyn WeightSource> = ranks.iter().map(|(_, s)| s as &dyn WeightSource).collect();
    let graphs = |of: fn(&RankGraphs) -> &RankGraph| ranks.iter().map(|(g, _)| of(g).clone()).collect();
    let mut group = Group::new(graphs(|g| &g.forward), &sources);
    group.run(&prefix);
    let mut divided = group.run_graphs(&graphs(|g| g.verify.as_ref().expect("asked")), &candidates);
    group.run_graphs(&graphs(|g| g.replay.as_ref().expect("asked")), &accepted);
    divided.extend(group.run(&next));
    let difference = distance(&expected, &divided);
    assert!(difference <= 1e-5, "{difference:e}");
}
