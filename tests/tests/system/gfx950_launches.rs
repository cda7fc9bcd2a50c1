//! How many launches a layer of the published Kimi K3, and of SmolLM2, takes on an MI355X: what its README says. Planned, not run.

use std::{collections::BTreeMap, path::Path};

use tokenspeed_amd_gfx950::{
    Settings, hip,
    kernel::{Library, Manifest, Plan},
    ops::{self, BoundOp, Operand},
};
use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, ts_tensor},
    catalogue::OpDesc,
    dtype::DType,
    graph::Graph,
    record::OpRecord,
    sdk::{Bucket, Fault, OpView, Tensor},
    support::Support,
};
use tokenspeed_core::lower::{Capacity, Lowered, lower};
use tokenspeed_models::{
    config, graph,
    kimi::{GraphOptions, Graphs, KimiConfig, LayerKind},
};

/// Where bindings and weights are said to lie, far from each other; nobody looks.
const BINDING: u64 = 1 << 48;
const WEIGHTS: u64 = 1 << 56;
const WEIGHT: u64 = 1 << 38;

fn refused(desc: &OpDesc) -> Support {
    Support::no(format!("no {} here", desc.kind))
}

/// The published forward pass of Kimi K3.
fn kimi() -> (Graph, KimiConfig) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/kimi/kimi-k3-config.json");
    let config = config::from_kimi(&file, None).expect("a configuration");
    let graph = Graphs::new(&config, GraphOptions { latent: DType::BF16, ..GraphOptions::EXACT }).forward;
    (graph, config)
}

/// A Llama of the sizes of SmolLM2-135M, from its published configuration.
fn smollm2() -> Graph {
    let fields = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
        "max_position_embeddings": 8192, "tie_word_embeddings": true, "hidden_act": "silu", "model_type": "llama",
    });
    let config = config::from_hf_map(Path::new("config.json"), fields.as_object().expect("a map"));
    graph::build(&config.expect("a configuration"), DType::BF16, |_| DType::BF16)
}

/// A graph lowered for programs of at most so many tokens.
fn lowered(graph: &Graph, tokens: u32, settings: &Settings) -> Lowered {
    let capacity = Capacity {
        tokens,
        rows: tokens,
        logit_rows: tokens,
        table_rows: tokens,
        blocks_per_row: 1024,
        block_tokens: 64,
        blocks: 4096,
        states: tokens + 1,
    };
    let mut support =
        |desc: &OpDesc, _: &str| ops::entry(desc.kind).map_or_else(|| refused(desc), |e| (e.support)(desc, settings));
    lower(graph, capacity, 256, &mut support).expect("every op is there")
}

/// Launches by layer of a program of so many tokens, in memory for the second number of them.
fn launches(graph: &Graph, [tokens, most]: [u32; 2], library: &Library, settings: &Settings) -> BTreeMap<usize, usize> {
    let lowered = lowered(graph, most, settings);
    let bucket = Bucket { max_tokens: tokens, max_rows: tokens, max_logit_rows: tokens };
    let mut layers = BTreeMap::new();
    let mut records = Vec::new();
    let mut operands = Vec::new();
    for op in &lowered.ops {
        let tensors = op.desc.operands.iter().map(|t| t.to_abi()).collect();
        let mut record = OpRecord::new(op.desc.kind, tensors, op.desc.attrs, &*op.label);
        (record.workspace_offset, record.workspace_bytes) = op.workspace;
        let place = |(i, t): (usize, &ts_tensor)| Operand {
            tensor: Tensor::new(t, i).expect("checked"),
            address: match op.weights.iter().find(|(operand, _)| *operand == i) {
                Some((_, used)) => WEIGHTS + WEIGHT * *used as u64,
                None => BINDING * (1 + u64::from(t.binding)) + t.offset,
            },
        };
        operands.push(record.operands.iter().enumerate().map(place).collect::<Vec<_>>());
        records.push(record);
    }
    let views: Vec<OpView<'_>> = records.iter().map(|r| OpView::from_record(r).expect("checked")).collect();
    let bound: Vec<BoundOp<'_>> = views
        .iter()
        .zip(&operands)
        .map(|(op, operands)| {
            let workspace = BINDING * (1 + u64::from(TS_BIND_ACTIVATIONS)) + op.workspace_offset();
            BoundOp { op, operands, step: BINDING, workspace, bucket, settings }
        })
        .collect();
    // As the backend's program does it.
    let mut plan = Plan::new(library);
    let mut index = 0;
    while let Some(op) = bound.get(index) {
        let fail = |e: Fault| format!("{}: {}", op.op.label(), e.message);
        let before = plan.launches.len();
        let mut planned = ops::together(&bound[index..], &mut plan).map_err(fail).expect("planned");
        if planned == 0 {
            (ops::entry(op.op.kind()).expect("supported").plan)(op, &mut plan).map_err(fail).expect("planned");
            planned = 1;
        }
        let label = op.op.label().strip_prefix("model.").unwrap_or(op.op.label());
        let layer = label.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        if let Some(layer) = layer {
            *layers.entry(layer).or_default() += plan.launches.len() - before;
        }
        index += planned;
    }
    layers
}

/// The kernels, for an emulated device; `None`, with a word about it, without any.
fn library() -> Option<Library> {
    let plugin = tokenspeed_tests::plugin("amd-gfx950");
    let folder = plugin.parent().expect("a folder");
    let kernels = std::env::var_os("TOKENSPEED_KERNELS").map_or_else(|| folder.with_file_name("kernels"), Into::into);
    let kernels = kernels.join("amd-gfx950");
    if !kernels.join("manifest.json").is_file() {
        eprintln!("not run: no kernels in {}; `cargo xtask kernels` makes them", kernels.display());
        return None;
    }
    let hip = hip::load_from(&[folder.join("libamdhip64.so")]).unwrap_or_else(|e| panic!("{e}"));
    let device = hip::Device::open(hip, 0).expect("an emulated device");
    Some(Library::new(&device, Manifest::read(&kernels).expect("a manifest")))
}

/// The figures of `backends/amd-gfx950/README.md`, "Launches per K3 layer": with every fused op.
#[test]
fn launches_per_layer_of_a_decode_program() {
    let Some(library) = library() else { return };
    let (graph, config) = kimi();
    let best = Settings::parse(&[]).expect("defaults");
    let fp8 = Settings::parse(&[("precision", "fp8")]).expect("an option");
    for (settings, tokens, kda, mla) in
        [(&best, 1, 13, 19), (&best, 16, 13, 19), (&best, 64, 17, 20), (&fp8, 1, 20, 25), (&fp8, 16, 20, 26)]
    {
        let layers = launches(&graph, [tokens, tokens], &library, settings);
        // The first layer has a dense MLP.
        for (layer, kind) in config.layers.iter().enumerate().skip(1) {
            let want = if *kind == LayerKind::Kda { kda } else { mla };
            // Of many tokens, and with scratch for rounded rows, the memory plan decides in some layers what can share a launch.
            let is_planned = tokens > 16 || settings.precision == fp8.precision;
            let is_right = if is_planned { layers[&layer] <= want } else { layers[&layer] == want };
            assert!(is_right, "layer {layer}, {kind:?}, {tokens} tokens: {} launches, {want} said", layers[&layer]);
        }
    }
}

/// As the README says of SmolLM2: what ends the products of gate and up is in their launch, in programs of up to 64 tokens.
#[test]
fn launches_per_layer_of_a_llama() {
    let Some(library) = library() else { return };
    let graph = smollm2();
    let best = Settings::parse(&[]).expect("defaults");
    for (tokens, want) in [(1, 11), (16, 11), (64, 11), (128, 12)] {
        let layers = launches(&graph, [tokens, 1024], &library, &best);
        assert_eq!(layers.len(), 30);
        assert!(layers.values().all(|made| *made == want), "{tokens} tokens: {layers:?}, {want} said");
    }
}
