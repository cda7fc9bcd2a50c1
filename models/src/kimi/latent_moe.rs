//! Mixture of experts that work in a narrower latent space, beside shared experts on the full width.

use super::{
    builder::{Builder, attrs},
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

/// The layer's experts.
pub(super) fn experts(b: &mut Builder<'_>, x: Ref, name: &str) -> Ref {
    let moe = b.config.moe.clone();
    let hidden = b.config.hidden_size;
    let width = moe.width(hidden);

    let logits = b.linear(x, &format!("{name}.gate"), &[moe.experts], hidden);
    let bias = b.small(&format!("{name}.gate.e_score_correction_bias"), &[moe.experts]);
    let ids = b.graph.value(format!("{name}.ids"), Vary::Tokens, &[moe.top_k], DType::U32);
    let weights = b.value(&format!("{name}.weights"), &[moe.top_k]);
    let router = attrs(&[moe.groups as i64, moe.groups_used as i64, moe.renormalise.into()], &[moe.scale]);
    b.graph.push(OpKind::RouterTopk, router, &[logits, bias, ids, weights], format!("{name}.router"));

    let z = match moe.latent {
        None => x,
        Some(latent) => b.linear(x, &format!("{name}.routed_expert_down_proj"), &[latent], hidden),
    };
    let mut y = routed(b, z, ids, weights, name, &moe);
    if let Some(latent) = moe.latent {
        if moe.latent_norm {
            // On the sum over experts: whoever splits experts over ranks must reduce before this.
            y = b.norm(y, &format!("{name}.routed_expert_norm"), width, b.config.rms_norm_eps);
        }
        y = b.linear(y, &format!("{name}.routed_expert_up_proj"), &[hidden], latent);
    }
    if moe.shared > 0 {
        let shared = b.mlp(x, &format!("{name}.shared_experts"), moe.shared * moe.intermediate_size);
        y = b.binary(OpKind::Add, Default::default(), y, shared, &format!("{name}.out"), &[hidden]);
    }
    y
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
