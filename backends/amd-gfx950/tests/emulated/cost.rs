//! What programs say their steps will take, asked as the engine asks: through the C table. Numbers of the model itself are tested where
//! it stands (`src/cost.rs`).

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS},
    backend::{ArenaKind, Bindings, Bucket, Device, Load, Program},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    record::OpRecord,
    tensor::Tensor,
};

use crate::support::backend_device;

const PAGE: u64 = 16;
const PAGES: u64 = 64;

/// Attention over pages and the product behind it, for steps up to `tokens`.
fn program(device: &Device, tokens: u32) -> Program {
    let t = u64::from(tokens);
    let (heads, dim) = (4, 64);
    let width = heads * dim;
    let mut used = [0u64; 6];
    let mut place = |binding: u32, dtype, vary, dims: &[u64]| {
        let mut tensor = Tensor::new(dtype, vary, dims);
        (tensor.binding, tensor.offset) = (binding, used[binding as usize]);
        used[binding as usize] = (tensor.offset + tensor.bytes()).next_multiple_of(256);
        tensor
    };
    let q = place(TS_BIND_ACTIVATIONS, DType::F32, Vary::Tokens, &[t, heads, dim]);
    let caches = [(); 2].map(|()| place(TS_BIND_CACHE, DType::BF16, Vary::Fixed, &[PAGES, PAGE, heads, dim]));
    let table = place(TS_BIND_TABLES, DType::U32, Vary::Fixed, &[8, PAGES]);
    let [o, y] = [(); 2].map(|()| place(TS_BIND_ACTIVATIONS, DType::F32, Vary::Tokens, &[t, heads, dim]));
    let w = place(TS_BIND_WEIGHTS, DType::BF16, Vary::Fixed, &[width, width]);
    let mut attention = Attrs::default();
    attention.f[0] = 0.125;
    let mut ops: Vec<OpRecord> = [
        (OpKind::PagedAttention, vec![q, caches[0], caches[1], table, o], attention),
        (OpKind::Gemm, vec![o, w, y], Attrs::default()),
    ]
    .into_iter()
    .map(|(kind, operands, attrs)| {
        OpRecord::new(kind, operands.into_iter().map(Tensor::to_abi).collect(), attrs, kind.name())
    })
    .collect();
    for op in &mut ops {
        let support = device.op_support(op).unwrap();
        assert!(support.is_supported(), "{}", support.reason);
        (op.workspace_offset, op.workspace_bytes) = (used[TS_BIND_ACTIVATIONS as usize], support.workspace_bytes);
        used[TS_BIND_ACTIVATIONS as usize] += support.workspace_bytes.next_multiple_of(256);
        for pack in &support.packs {
            let operand = &mut op.operands[pack.operand as usize];
            (operand.offset, operand.layout) = (used[TS_BIND_WEIGHTS as usize], pack.layout);
            used[TS_BIND_WEIGHTS as usize] += pack.bytes.next_multiple_of(256);
        }
    }
    let mut bindings = Bindings::new();
    for (slot, kind, bytes) in [
        (TS_BIND_STEP, ArenaKind::Step, 1 << 16),
        (TS_BIND_TABLES, ArenaKind::Tables, used[TS_BIND_TABLES as usize]),
        (TS_BIND_CACHE, ArenaKind::Cache, used[TS_BIND_CACHE as usize]),
        (TS_BIND_ACTIVATIONS, ArenaKind::Activations, used[TS_BIND_ACTIVATIONS as usize]),
        (TS_BIND_WEIGHTS, ArenaKind::Weights, used[TS_BIND_WEIGHTS as usize]),
    ] {
        bindings.bind_all(slot, &device.arena_alloc(kind, bytes).unwrap());
    }
    let bucket = Bucket { max_tokens: tokens, max_rows: tokens.min(8), max_logit_rows: tokens };
    device.program_prepare(&ops, &bindings, bucket).unwrap()
}

#[test]
fn more_tokens_and_longer_contexts_are_never_forecast_to_be_cheaper() {
    for options in [&[][..], &[("precision", "fp8")], &[("graphs", "off"), ("kernels", "portable")]] {
        let Some((_backend, device)) = backend_device(options) else { return };
        // Captured, unless that is off, and launched one by one.
        for capacity in [16, 512] {
            let program = program(&device, capacity);
            let ask = |n_tokens: u32, context: u64| {
                let load = Load {
                    n_tokens,
                    n_rows: n_tokens.min(8),
                    n_logit_rows: n_tokens,
                    attention_pairs: u64::from(n_tokens) * context,
                };
                device.program_cost(&program, &load).unwrap().expect("this backend has a model")
            };
            let contexts = [1, 64, 1024, 1 << 17];
            for context in contexts {
                let costs: Vec<u64> = (1..=capacity).map(|n| ask(n, context)).collect();
                assert!(costs.is_sorted(), "{options:?}, {capacity}, context {context}: {costs:?}");
                assert!(costs[0] >= 4_000, "two ops are two launches at least: {} ns", costs[0]);
            }
            for n in [1, 7, capacity] {
                let costs = contexts.map(|context| ask(n, context));
                assert!(costs.is_sorted() && costs[3] > 2 * costs[0], "{options:?}, {n} of {capacity}: {costs:?}");
            }
            assert!(ask(capacity, 1024) > ask(1, 1024), "{capacity} tokens are more work than one");
        }
    }
}
