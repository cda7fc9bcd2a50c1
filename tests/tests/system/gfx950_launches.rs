//! How many launches a layer of the published Kimi K3 takes on an MI355X: what its README says. Planned, not run.

use std::{collections::BTreeMap, path::Path};

use tokenspeed_amd_gfx950::{
    Settings, hip,
    kernel::{Library, Manifest, Plan},
    ops::{self, BoundOp, Operand},
};
use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    record::OpRecord,
    sdk::{Bucket, OpView, Tensor},
    support::Support,
};
use tokenspeed_core::lower::{Capacity, Lowered, lower};
use tokenspeed_models::{
    config,
    kimi::{GraphOptions, Graphs, KimiConfig, LayerKind},
};

/// Where operands are said to lie; nobody looks.
const SOMEWHERE: u64 = 1 << 40;

fn refused(desc: &OpDesc) -> Support {
    Support::no(format!("no {} here", desc.kind))
}

/// The published forward pass, lowered for programs of so many tokens.
fn lowered(tokens: u32, settings: &Settings) -> (Lowered, KimiConfig) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/kimi/kimi-k3-config.json");
    let config = config::from_kimi(&file, None).expect("a configuration");
    let graph = Graphs::new(&config, GraphOptions { latent: DType::BF16, ..GraphOptions::EXACT }).forward;
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
    (lower(&graph, capacity, 256, &mut support).expect("every op is there"), config)
}

/// Launches by layer.
fn launches(tokens: u32, library: &Library, settings: &Settings) -> (BTreeMap<usize, usize>, KimiConfig) {
    let (lowered, config) = lowered(tokens, settings);
    let bucket = Bucket { max_tokens: tokens, max_rows: tokens, max_logit_rows: tokens };
    let mut layers = BTreeMap::new();
    for op in &lowered.ops {
        let mut record = OpRecord::new(
            op.desc.kind,
            op.desc.operands.iter().map(|t| t.to_abi()).collect(),
            op.desc.attrs,
            &*op.label,
        );
        (record.workspace_offset, record.workspace_bytes) = op.workspace;
        let view = OpView::from_record(&record).unwrap_or_else(|e| panic!("{}: {}", op.label, e.message));
        let operand = |(i, t)| Operand { tensor: Tensor::new(t, i).expect("checked"), address: SOMEWHERE };
        let operands: Vec<Operand> = view.descriptors().iter().enumerate().map(operand).collect();
        let mut plan = Plan::new(library);
        let bound = BoundOp { op: &view, operands: &operands, step: SOMEWHERE, workspace: SOMEWHERE, bucket, settings };
        let entry = ops::entry(op.desc.kind).expect("supported");
        (entry.plan)(&bound, &mut plan).unwrap_or_else(|e| panic!("{}: {}", op.label, e.message));
        let layer = op.label.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        if let Some(layer) = layer {
            *layers.entry(layer).or_default() += plan.launches.len();
        }
    }
    (layers, config)
}

/// The figures of `backends/amd-gfx950/README.md`, "Launches per K3 layer": with every fused op.
#[test]
fn launches_per_layer_of_a_decode_program() {
    let plugin = tokenspeed_tests::plugin("amd-gfx950");
    let folder = plugin.parent().expect("a folder");
    let kernels = std::env::var_os("TOKENSPEED_KERNELS").map_or_else(|| folder.with_file_name("kernels"), Into::into);
    let kernels = kernels.join("amd-gfx950");
    if !kernels.join("manifest.json").is_file() {
        eprintln!("not run: no kernels in {}; `cargo xtask kernels` makes them", kernels.display());
        return;
    }
    let hip = hip::load_from(&[folder.join("libamdhip64.so")]).unwrap_or_else(|e| panic!("{e}"));
    let device = hip::Device::open(hip, 0).expect("an emulated device");
    let library = Library::new(&device, Manifest::read(&kernels).expect("a manifest"));
    let best = Settings::parse(&[]).expect("defaults");
    for tokens in [1, 16] {
        let (layers, config) = launches(tokens, &library, &best);
        let block = config.attn_res_block.expect("published") as usize;
        // The first layer has a dense MLP. Where a block of residuals begins, attention has nothing to be added to.
        for (layer, kind) in config.layers.iter().enumerate().skip(1) {
            let whole = if *kind == LayerKind::Kda { 21 } else { 23 };
            let want = whole - usize::from(layer.is_multiple_of(block));
            assert_eq!(layers[&layer], want, "layer {layer}, {kind:?}, {tokens} tokens");
        }
    }
}
