//! The slicing table on its own: it covers every weight once, its cuts are a partition, and what cannot be cut is refused.

use crate::{fixture::Folder, variants};
use std::{path::Path, sync::Arc};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{ComponentKind, WeightBytes, WeightSource, WeightSpec},
};
use tokenspeed_models::{
    config,
    kimi::{
        GraphOptions, Graphs, Kda, KimiConfig, KimiWeights, Mla, Moe,
        slicing::{Cut, ExpertSplit, RULES, RankGraphs, RankWeights, Rule, Split, SplitError},
        tensors, tiny,
    },
    weights::Checkpoint,
};

fn published(name: &str) -> KimiConfig {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kimi").join(name);
    config::from_kimi(&file, None).expect("supported")
}

/// Each tensor of the family has exactly one rule, and each rule a tensor.
#[test]
fn the_rules_are_complete_and_none_is_dead() {
    let mut used = std::collections::HashSet::new();
    let models = variants::all().into_iter().map(|(_, c)| c);
    for config in models.chain([published("kimi-k3-config.json"), published("kimi-linear-config.json")]) {
        tensors::text(&config, &mut |t| {
            let rule = Rule::of(&config, &t.name).expect("ruled");
            used.insert((rule.name, format!("{:?}", rule.scope)));
        });
        for spec in Graphs::new(&config, GraphOptions::EXACT).forward.weights {
            let rule = Rule::of(&config, &spec.name).expect("ruled");
            used.insert((rule.name, format!("{:?}", rule.scope)));
        }
    }
    for rule in &RULES {
        assert!(used.contains(&(rule.name, format!("{:?}", rule.scope))), "{rule:?}");
    }
    assert_eq!(used.len(), RULES.len(), "a name twice");
    assert!(Rule::of(&tiny::k3(), "model.layers.0.self_attn.rotary").is_err());
    assert!(Rule::of(&tiny::k3(), "model.layers.99.input_layernorm.weight").is_err());
}

/// Cuts of all ranks lie end to end and cover the axis; both for tensors as stored and for stacks of experts.
#[test]
fn cuts_are_a_partition() {
    let k3 = published("kimi-k3-config.json");
    for (ranks, experts) in
        [(1, ExpertSplit::Width), (2, ExpertSplit::Width), (8, ExpertSplit::Width), (8, ExpertSplit::Id)]
    {
        let cut = |rank, spec: &WeightSpec| {
            let split = Split::new(&k3, rank, ranks, experts).expect("it divides");
            split.cut(Rule::of(&k3, &spec.name).expect("ruled"), &spec.name, &spec.dims)
        };
        for spec in Graphs::new(&k3, GraphOptions::EXACT).forward.weights.iter().take(120) {
            let cuts: Vec<Option<Cut>> = (0..ranks).map(|rank| cut(rank, spec)).collect();
            let Some(Cut { axis, len, .. }) = cuts[0] else {
                assert!(cuts.iter().all(Option::is_none), "{}", spec.name);
                continue;
            };
            let starts: Vec<u64> = cuts.iter().map(|c| c.expect("like rank 0").start).collect();
            assert_eq!(starts, (0..ranks).map(|r| r * len).collect::<Vec<_>>(), "{}", spec.name);
            assert_eq!(len * ranks, spec.dims[axis], "{}", spec.name);
            if spec.dtype == DType::Mxfp4 {
                assert!(axis == 0 || len.is_multiple_of(32), "{}", spec.name);
            }
        }
    }
}

/// A rank of eight holds an eighth of states and records' head parts, and all of the latent rows (published sizes).
#[test]
fn caches_of_a_rank_of_eight() {
    let k3 = published("kimi-k3-config.json");
    let options = GraphOptions { latent: DType::BF16, window: DType::BF16, candidates: 4, ..GraphOptions::EXACT };
    let split = Split::new(&k3, 3, 8, ExpertSplit::Width).expect("it divides");
    let graphs = RankGraphs::new(&k3, options, split).expect("it divides");
    for graph in [&graphs.forward.graph, &graphs.verify.expect("asked").graph, &graphs.replay.expect("asked").graph] {
        let [mla, kda] = &graph.components[..] else { panic!("two components") };
        let ComponentKind::Paged { tensors } = &mla.kind else { panic!("paged") };
        assert_eq!((tensors.len(), &tensors[0].inner[..]), (24, &[1, 576][..]));
        let ComponentKind::State { tensors } = &kda.kind else { panic!("state") };
        let shapes: Vec<_> = tensors[..3].iter().map(|t| (t.dtype, &t.inner[..])).collect();
        let expected: [(DType, &[u64]); 3] =
            [(DType::F32, &[12, 128, 128]), (DType::BF16, &[3, 4608]), (DType::BF16, &[4, 4608 + 128 + 12])];
        assert_eq!((tensors.len(), shapes), (3 * 69, expected.to_vec()));
    }
    // Attention 93, dense MLP 1, experts 2 x 92, logits 1.
    assert_eq!(graphs.forward.exchanges.len(), 279);
}

#[test]
fn refusals_name_numbers_and_what_to_do() {
    let k3 = tiny::k3();
    let wide = KimiConfig {
        kda: Kda { heads: 12, ..k3.kda.clone() },
        mla: Mla { heads: 12, ..k3.mla.clone() },
        intermediate_size: 12 * 32,
        ..k3.clone()
    };
    let refusal = |config: &KimiConfig, rank, ranks, experts| {
        let message = Split::new(config, rank, ranks, experts).expect_err("refused").to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    let width = ExpertSplit::Width;
    let heads = refusal(&k3, 0, 8, width);
    assert_eq!(heads, "4 KDA heads cannot be divided over 8 ranks; use 1 rank");
    let groups = refusal(&wide, 0, 2, width);
    assert_eq!(groups, "3 groups of 32 in the expert width of 96 cannot be divided over 2 ranks; use 1 rank");
    // By id, the width of an expert does not matter, but the shared experts' does.
    assert!(refusal(&k3, 0, 64, ExpertSplit::Id).starts_with("4 KDA heads"));
    assert!(Split::new(&k3, 0, 4, ExpertSplit::Id).is_ok());
    let vocabulary = KimiConfig { vocab_size: 511, ..wide.clone() };
    assert!(refusal(&vocabulary, 0, 2, width).starts_with("511 rows of the vocabulary"));
    let latent = KimiConfig { moe: Moe { latent: Some(33), intermediate_size: 64, ..k3.moe.clone() }, ..k3.clone() };
    assert!(refusal(&latent, 0, 2, width).starts_with("33 channels of the latent space"));
    let published = published("kimi-k3-config.json");
    assert_eq!(
        refusal(&published, 0, 12, width),
        "163840 rows of the vocabulary cannot be divided over 12 ranks; use 1, 2, 4, 8, 16 or 32 ranks"
    );
    assert_eq!(Split::new(&k3, 0, 0, width), Err(SplitError::NoRanks));
    assert_eq!(Split::new(&k3, 2, 2, width), Err(SplitError::NoSuchRank { rank: 2, ranks: 2 }));
    let by_id = Split::new(&k3, 0, 2, ExpertSplit::Id).expect("it divides");
    assert_eq!(RankGraphs::new(&k3, GraphOptions::EXACT, by_id).expect_err("no graph"), SplitError::ExpertsById);
}

/// Slices in one piece are used in place, others are copies; experts by id are the rank's own, and their places too.
#[test]
fn slices_of_a_checkpoint() {
    let config = KimiConfig { layers: tiny::kinds(2, &[2]), ..tiny::k3() };
    let folder = Folder::new("slices");
    tiny::write(&folder.0, &config, 1).expect("written");
    let weights = KimiWeights::open(Checkpoint::open(&folder.0.join("model.safetensors")).expect("opens"), &config);
    let weights = Arc::new(weights.expect("complete"));
    let split = Split::new(&config, 1, 2, ExpertSplit::Id).expect("it divides");
    let rank = RankWeights::new(weights.clone(), config.clone(), split);
    let whole = Graphs::new(&config, GraphOptions::EXACT).forward.weights;
    let spec = |name: &str, axis: usize| {
        let mut spec = whole.iter().find(|w| w.name == format!("model.layers.{name}")).expect("there").clone();
        let full = spec.clone();
        spec.dims[axis] /= 2;
        (spec, full)
    };
    let all = |spec: &WeightSpec| weights.weight(spec).expect("there").contents(&weights.regions()).into_owned();

    let (rows, full) = spec("0.self_attn.q_proj.weight", 0);
    let WeightBytes::Mapped { region, offset, bytes } = rank.weight(&rows).expect("there") else { panic!("in place") };
    assert!(rank.regions()[region][offset as usize..][..bytes as usize] == all(&full)[bytes as usize..]);

    let (columns, full) = spec("0.self_attn.o_proj.weight", 1);
    let WeightBytes::Owned(bytes) = rank.weight(&columns).expect("there") else { panic!("a copy") };
    let row = 2 * full.dims[1] as usize;
    assert!(bytes.chunks_exact(row / 2).eq(all(&full).chunks_exact(row).map(|row| &row[row.len() / 2..])));

    let (stack, full) = spec("1.block_sparse_moe.experts.w2.weight_packed", 0);
    let WeightBytes::Owned(bytes) = rank.weight(&stack).expect("there") else { panic!("a copy") };
    let whole = (8..16).flat_map(|expert| weights.expert(&full.name, expert).expect("there").iter().copied());
    assert!(bytes.iter().copied().eq(whole));
    let (slots, _) = spec("1.block_sparse_moe.experts.slots", 0);
    let WeightBytes::Owned(bytes) = rank.weight(&slots).expect("there") else { panic!("made") };
    assert_eq!(bytes[..], (0..8u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
}
