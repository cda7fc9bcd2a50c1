//! Plans of the published configuration against numbers computed from the specification's table of tensors.

use crate::variants;
use std::path::Path;
use tokenspeed_backend_api::dtype::DType;
use tokenspeed_models::{
    config,
    kimi::{
        KimiConfig,
        plan::{Draft, PlanError, PlanRequest, RankPlan},
        slicing::Part,
        tiny,
    },
};

fn published() -> KimiConfig {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kimi/kimi-k3-config.json");
    config::from_kimi(&file, None).expect("supported")
}

/// Eight devices of 288 GB, four tokens verified with the published draft.
fn eight(latent: DType) -> PlanRequest {
    let speculation = PlanRequest { candidates: 4, draft: Some(Draft::EAGLE3), ..PlanRequest::new(8) };
    PlanRequest { device_bytes: Some(288_000_000_000), latent, ..speculation }
}

/// Hidden width, heads times head size, heads, experts, layers with experts.
const H: u64 = 7168;
const P: u64 = 12_288;
const VOCAB: u64 = 163_840;
const MOE_LAYERS: u64 = 92;

/// (part, on one of eight ranks, on a single rank), in bytes. Matrices are bf16 and vectors f32, as the graph asks for
/// them; `c` is divided by eight, `w` is not.
fn expected() -> Vec<(Part, u64, u64)> {
    let both = |part, c: u64, w: u64| (part, c / 8 + w, c + w);
    // 17,547,264 bytes per expert, and its place in the stack.
    let experts = both(Part::Experts, MOE_LAYERS * 896 * 17_547_264, MOE_LAYERS * 896 * 4);
    let shared = both(Part::SharedExperts, MOE_LAYERS * 3 * 6144 * H * 2, 0);
    let latent = both(Part::Latent, MOE_LAYERS * 3584 * H * 2, MOE_LAYERS * (3584 * H * 2 + 3584 * 4));
    let router = both(Part::Router, 0, MOE_LAYERS * (896 * H * 2 + 896 * 4));
    // q, k, v, g, o; f_b; b; three convolutions; A_log; dt_bias. Whole: f_a, o_norm.
    let kda = 5 * P * H * 2 + P * 128 * 2 + 96 * H * 2 + 3 * P * 4 * 4 + 96 * 4 + P * 4;
    let kda = both(Part::Kda, 69 * kda, 69 * (128 * H * 2 + 128 * 4));
    // q_b, kv_b, g, o. Whole: q_a, kv_a and their norms.
    let mla = 18_432 * 1536 * 2 + 24_576 * 512 * 2 + 2 * P * H * 2;
    let mla = both(Part::Mla, 24 * mla, 24 * (1536 * H * 2 + 1536 * 4 + 576 * H * 2 + 512 * 4));
    let dense = both(Part::DenseMlp, 3 * 33_792 * H * 2, 0);
    let embedding = both(Part::Embedding, 0, VOCAB * H * 2);
    let head = both(Part::Head, VOCAB * H * 2, 0);
    // Per layer two norms and two mixes of two vectors, but for layer 0's first mix; at the end a norm and a mix.
    let norms = both(Part::Norms, 0, (93 * 6 - 2 + 3) * H * 4);
    vec![experts, shared, latent, router, kda, mla, dense, embedding, head, norms]
}

#[test]
fn weights_of_a_rank() {
    let plan = RankPlan::new(&published(), eight(DType::BF16)).expect("planned");
    assert_eq!((plan.checkpoint.total().tensors, plan.checkpoint.total().bytes), (497_220, 1_560_860_324_864));
    let parts: Vec<_> = plan.weights.iter().map(|p| (p.part, p.rank_bytes, p.whole_bytes)).collect();
    assert_eq!(parts, expected());
    assert_eq!(plan.weight_bytes(), 202_984_754_928);
    // Stored, a vector is half as long; the pair that layer 0 never reads and the padding of A_log are stored too, the
    // places of experts are not.
    let vectors = (93 * 6 - 2 + 3) * H + 24 * (1536 + 512) + 92 * 3584;
    let stored = plan.weights.iter().map(|p| p.whole_bytes).sum::<u64>() - 2 * vectors + 2 * H * 2 + 69 * 32 * 4
        - MOE_LAYERS * 896 * 4;
    assert_eq!(stored + plan.checkpoint.vision.bytes, 1_560_860_324_864);
}

#[test]
fn caches_of_a_rank() {
    let plan = RankPlan::new(&published(), eight(DType::BF16)).expect("planned");
    assert_eq!(plan.latent_token_bytes, 24 * 576 * 2);
    assert_eq!(plan.latent_token_bytes_in(DType::F8E4M3), 24 * 576);
    assert_eq!(plan.page_bytes, 64 * (24 * 576 * 2 + 576 * 2));
    // 768 KiB of states and 27 KiB of windows per layer; 449.4 MB over eight ranks.
    assert_eq!((plan.slot.state, plan.slot.window), (69 * 768 * 1024, 69 * 27 * 1024));
    assert_eq!(8 * (plan.slot.state + plan.slot.window), 449_372_160);
    // Per token q, k and v of 12 heads, the decay's low-rank input whole, 12 betas.
    assert_eq!(plan.slot.record, 69 * 4 * (3 * 1536 + 128 + 12) * 2);
    let e4m3 = RankPlan::new(&published(), eight(DType::F8E4M3)).expect("planned");
    assert_eq!(e4m3.page_bytes, 64 * (24 * 576 + 576 * 2), "the draft's rows stay bf16");
    assert_eq!(e4m3.slot, plan.slot);
}

/// Guesses without a draft need records, and nothing else.
#[test]
fn guesses_without_a_draft() {
    let request = PlanRequest { candidates: 6, draft: None, ..eight(DType::BF16) };
    let plan = RankPlan::new(&published(), request).expect("planned");
    assert_eq!((plan.draft, plan.step.taps, plan.page_bytes), (None, 0, 64 * 24 * 576 * 2));
    assert_eq!((plan.slot.record, plan.step.logit_rows), (69 * 6 * (3 * 1536 + 128 + 12) * 2, 64 * 6));
}

/// The published file has 2,136 bytes of header before its 20 tensors.
#[test]
fn the_draft() {
    let draft = RankPlan::new(&published(), eight(DType::BF16)).expect("planned").draft.expect("asked");
    assert_eq!(draft.stored_bytes + 2136, 6_031_253_592);
    let divided = VOCAB * H + 64 * 192 * 1536 + 64 * 256 * 512 + H * 64 * 128 + 3 * 18_432 * H;
    let whole = H * 3 * H + 1536 * 2 * H + 576 * 2 * H;
    let vectors = 7 * H + 1536 + 512;
    assert_eq!(draft.rank_bytes, divided * 2 / 8 + whole * 2 + vectors * 4);
    assert_eq!(draft.token_bytes, 1152);
}

#[test]
fn a_step_and_what_fits() {
    let config = published();
    let plan = RankPlan::new(&config, eight(DType::BF16)).expect("planned");
    let step = plan.step;
    assert_eq!((step.tokens, step.logit_rows), (8192 + 64, 256));
    assert_eq!(step.taps, 3 * H * 8256 * 4);
    assert_eq!(step.logits, 256 * VOCAB * 4);
    assert_eq!(step.tables, 3 * 64 * 16_384 * 4);
    assert_eq!(step.exchange, 2 * 8256 * H * 4);
    // Late in the model, nine candidates of the residual mix are alive with what a layer computes, at least.
    let stream = H * 8256 * 4;
    assert!((11 * stream..14 * stream).contains(&step.values), "{}", step.values);

    let device = plan.device.expect("asked");
    assert_eq!((device.device, device.budget), (288_000_000_000, 259_200_000_000));
    let padding = plan.page_bytes + plan.slot.total();
    let left = device.budget - plan.weight_bytes() - 783_233_024 - step.total() - padding;
    assert_eq!(device.left, Ok(left));
    assert_eq!(plan.fits.len(), 18);
    for fit in &plan.fits {
        // One state, or with a prefix cache two and what is kept.
        let slots = [1, 3, 4, 6, 10, 18][[0, 1, 2, 4, 8, 16].iter().position(|n| *n == fit.snapshots).expect("asked")];
        let bytes = fit.tokens.div_ceil(64) * 64 * 28_800 + slots * (56_171_520 + 2_620_896);
        assert_eq!((fit.bytes, fit.conversations), (bytes, left / bytes), "{fit:?}");
    }
    // A longer conversation or a larger budget never fits more often.
    let count = |tokens, snapshots| {
        let fit = plan.fits.iter().find(|f| (f.tokens, f.snapshots) == (tokens, snapshots));
        fit.expect("asked").conversations
    };
    assert!(count(50_000, 0) > count(50_000, 16) && count(50_000, 0) > count(200_000, 0));
    assert!(count(1_000_000, 0) >= 1);
}

/// Sizes without a device; half the ranks do not fit, and by how much is said.
#[test]
fn without_a_device_and_without_room() {
    let config = published();
    let sizes = RankPlan::new(&config, PlanRequest { device_bytes: None, ..eight(DType::BF16) }).expect("planned");
    assert!(sizes.device.is_none() && sizes.fits.is_empty());
    let four = RankPlan::new(&config, PlanRequest { ranks: 4, ..eight(DType::BF16) }).expect("planned");
    let device = four.device.expect("asked");
    let needed = four.fixed_bytes() + four.page_bytes + four.slot.total();
    assert_eq!(device.left, Err(needed - device.budget));
    assert!(four.fits.is_empty() && needed > 380_000_000_000);
}

/// Every variant of the tiny models can be planned; one rank divides nothing and exchanges nothing.
#[test]
fn every_variant_is_planned() {
    for (name, config) in variants::all() {
        let plan = RankPlan::new(&config, PlanRequest::new(1)).expect("planned");
        assert!(plan.weights.iter().all(|p| p.rank_bytes == p.whole_bytes), "{name}");
        assert_eq!((plan.exchanges, plan.step.exchange, plan.slot.record, plan.step.taps), (0, 0, 0, 0), "{name}");
        let small = PlanRequest { device_bytes: Some(1 << 32), ..PlanRequest::new(1) };
        let small = RankPlan::new(&config, PlanRequest { conversations: vec![100, 4096, 4097], ..small });
        let fits = small.expect("planned").fits;
        assert_eq!(fits.len(), 12, "{name}: the context is 4096 tokens");
    }
}

#[test]
fn refusals_are_one_line_that_says_what_to_do() {
    let refusal = |config: &KimiConfig, request: PlanRequest| {
        let message = RankPlan::new(config, request).expect_err("refused").to_string();
        assert!(!message.contains('\n') && message.len() > 40, "{message}");
        message
    };
    let k3 = published();
    let base = eight(DType::BF16);
    let cases = [
        (PlanRequest { ranks: 7, ..base.clone() }, "96 KDA heads cannot be divided over 7 ranks"),
        (PlanRequest { ranks: 0, ..base.clone() }, "use at least 1"),
        (PlanRequest { latent: DType::Q8_0, ..base.clone() }, "q8_0; use f32, f16, bf16 or fp8_e4m3"),
        (PlanRequest { window: DType::F8E4M3, ..base.clone() }, "fp8_e4m3; use f32, f16 or bf16"),
        (PlanRequest { memory_share: 1.5, ..base.clone() }, "1.5"),
        (PlanRequest { memory_share: f64::NAN, ..base.clone() }, "NaN"),
        (PlanRequest { block_tokens: 0, ..base.clone() }, "page size"),
        (PlanRequest { chunk_tokens: 0, ..base.clone() }, "chunk size"),
        (PlanRequest { max_num_seqs: 0, ..base.clone() }, "running requests"),
        (PlanRequest { max_model_len: Some(1 << 21), ..base.clone() }, "2097152"),
        (PlanRequest { conversations: vec![0], ..base.clone() }, "length of a conversation"),
        (PlanRequest { snapshots: vec![9999], ..base.clone() }, "9999"),
        (PlanRequest { candidates: 0, ..base.clone() }, "0 tokens to verify"),
        (PlanRequest { candidates: 1, draft: None, ..base.clone() }, "verify 2 or more"),
    ];
    for (request, part) in cases {
        let message = refusal(&k3, request);
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    let message = refusal(&tiny::k3(), PlanRequest { ranks: 1, ..base.clone() });
    assert!(message.contains("EAGLE3") && message.contains("width 7168") && message.contains("128"), "{message}");
    let huge = KimiConfig { vocab_size: 1 << 30, ..k3 };
    let range = RankPlan::new(&huge, PlanRequest { draft: None, candidates: 0, ..base });
    assert!(matches!(range, Err(PlanError::Range { what: "vocab_size", .. })), "{range:?}");
}
