//! Mixture of experts that work in a narrower latent space, beside shared experts on the full width.

use super::{
    attn_res::Residual,
    builder::{Builder, attrs, floats},
    config::{Activation, ExpertFormat, Moe},
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{Ref, Vary},
    op::OpKind,
};

/// Suffix of the weight that says where in the stacks an expert lies.
pub(super) const SLOTS: &str = "experts.slots";

/// Whether a graph's weight says where in the stacks an expert lies, rather than being part of a checkpoint.
pub fn is_slots(name: &str) -> bool {
    name.ends_with(SLOTS)
}

/// The layer's experts, added to the residual stream.
pub(super) fn experts(b: &mut Builder<'_>, x: Ref, name: &str, residual: &mut Residual, sum: &str) {
    let moe = b.config.moe.clone();
    match (b.config.activation, moe.latent) {
        (Activation::Situ { beta, linear }, Some(latent)) if moe.latent_norm && moe.shared > 0 => {
            let y = in_two_ops(b, x, name, (&moe, latent, &[beta, linear]), residual.base(), sum);
            residual.replace(y);
        }
        _ => {
            let y = in_parts(b, x, name, &moe);
            residual.add(b, y, sum);
        }
    }
}

/// As Kimi K3 has them: one op makes everything of the input, one brings everything back and adds it to `base`.
fn in_two_ops(
    b: &mut Builder<'_>,
    x: Ref,
    name: &str,
    (moe, latent, betas): (&Moe, u64, &[f64]),
    base: Option<Ref>,
    sum: &str,
) -> Ref {
    let (hidden, width) = (b.config.hidden_size, moe.shared * moe.intermediate_size);
    let matrix =
        |b: &mut Builder<'_>, part: &str, rows, columns| b.matrix(&format!("{name}.{part}.weight"), rows, columns);
    let matrices = [
        matrix(b, "gate", moe.experts, hidden),
        matrix(b, "routed_expert_down_proj", latent, hidden),
        matrix(b, "shared_experts.gate_proj", width, hidden),
        matrix(b, "shared_experts.up_proj", width, hidden),
    ];
    let [logits, z, h] = [("gate", moe.experts), ("routed_expert_down_proj", latent), ("shared_experts.act", width)]
        .map(|(part, n)| b.value(&format!("{name}.{part}"), &[n]));
    let operands = [&[x], &matrices[..], &[logits, z, h]].concat();
    b.graph.push(OpKind::MoeInput, floats(betas), &operands, format!("{name}.input"));

    let (ids, weights) = route(b, logits, name, moe);
    // The sum over experts: whoever splits experts over ranks must reduce before its norm.
    let r = routed(b, z, ids, weights, name, moe);

    let norm = b.small(&format!("{name}.routed_expert_norm.weight"), &[latent]);
    let up = matrix(b, "routed_expert_up_proj", hidden, latent);
    let down = matrix(b, "shared_experts.down_proj", hidden, width);
    let y = b.value(sum, &[hidden]);
    let operands = [&[r, norm, up, h, down], base.as_slice(), &[y]].concat();
    let output = attrs(&[base.is_some().into()], &[b.config.rms_norm_eps]);
    b.graph.push(OpKind::MoeOutput, output, &operands, format!("{name}.output"));
    y
}

/// Every other kind, op by op; returns what is to be added.
fn in_parts(b: &mut Builder<'_>, x: Ref, name: &str, moe: &Moe) -> Ref {
    let hidden = b.config.hidden_size;
    let logits = b.value(&format!("{name}.gate"), &[moe.experts]);
    let router = b.matrix(&format!("{name}.gate.weight"), moe.experts, hidden);
    b.graph.push(OpKind::Gemm, attrs(&[0, 1], &[]), &[x, router, logits], format!("{name}.gate"));
    let (ids, weights) = route(b, logits, name, moe);
    let z = match moe.latent {
        None => x,
        Some(latent) => b.linear(x, &format!("{name}.routed_expert_down_proj"), &[latent], hidden),
    };
    let mut y = routed(b, z, ids, weights, name, moe);
    if let Some(latent) = moe.latent {
        if moe.latent_norm {
            y = b.norm(y, &format!("{name}.routed_expert_norm"), latent, b.config.rms_norm_eps);
        }
        y = b.linear(y, &format!("{name}.routed_expert_up_proj"), &[hidden], latent);
    }
    if moe.shared > 0 {
        let shared = b.mlp(x, &format!("{name}.shared_experts"), moe.shared * moe.intermediate_size);
        y = b.binary(OpKind::Add, Default::default(), y, shared, &format!("{name}.out"), &[hidden]);
    }
    y
}

/// Ids and weights of each token's experts.
fn route(b: &mut Builder<'_>, logits: Ref, name: &str, moe: &Moe) -> (Ref, Ref) {
    let bias = b.small(&format!("{name}.gate.e_score_correction_bias"), &[moe.experts]);
    let ids = b.graph.value(format!("{name}.ids"), Vary::Tokens, &[moe.top_k], DType::U32);
    let weights = b.value(&format!("{name}.weights"), &[moe.top_k]);
    let router = attrs(&[moe.groups as i64, moe.groups_used as i64, moe.renormalise.into()], &[moe.scale]);
    b.graph.push(OpKind::RouterTopk, router, &[logits, bias, ids, weights], format!("{name}.router"));
    (ids, weights)
}

fn routed(b: &mut Builder<'_>, z: Ref, ids: Ref, weights: Ref, name: &str, moe: &Moe) -> Ref {
    let (n, width) = (moe.intermediate_size, moe.width(b.config.hidden_size));
    let shapes = [("w1", [n, width]), ("w3", [n, width]), ("w2", [width, n])];
    let mut operands = vec![z, ids, weights, b.graph.weight(format!("{name}.{SLOTS}"), &[moe.experts], DType::U32)];
    let (suffix, dtype) = match b.config.expert_format {
        ExpertFormat::Plain => ("weight", b.config.stored),
        ExpertFormat::Mxfp4 => ("weight_packed", DType::Mxfp4),
    };
    for (matrix, [rows, columns]) in shapes {
        operands.push(b.graph.weight(
            format!("{name}.experts.{matrix}.{suffix}"),
            &[moe.experts, rows, columns],
            dtype,
        ));
    }
    if b.config.expert_format == ExpertFormat::Mxfp4 {
        for (matrix, [rows, columns]) in shapes {
            let scales = [moe.experts, rows, columns / 32];
            operands.push(b.graph.weight(format!("{name}.experts.{matrix}.weight_scale"), &scales, DType::U8));
        }
    }
    let y = b.value(&format!("{name}.experts"), &[width]);
    operands.push(y);
    let act = match b.config.activation {
        Activation::Silu => attrs(&[0], &[]),
        Activation::Situ { beta, linear } => attrs(&[1], &[beta, linear]),
    };
    b.graph.push(OpKind::Experts, act, &operands, format!("{name}.experts"));
    y
}
