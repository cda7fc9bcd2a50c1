//! The few moves every part of the model makes on a graph.

use super::{
    config::{Activation, KimiConfig},
    stack::{GraphOptions, Pass},
};
use tokenspeed_backend_api::{
    dtype::DType,
    graph::{Graph, Ref, Vary},
    op::{Attrs, OpKind},
};

/// Index of the latent cache among the graph's components.
pub(super) const MLA: usize = 0;
/// Index of the recurrent state.
pub(super) const KDA: usize = 1;
/// Index of what a draft model reads, if there is one.
pub(super) const TAPS: usize = 2;

/// A graph under construction.
pub(super) struct Builder<'a> {
    pub graph: Graph,
    pub config: &'a KimiConfig,
    pub options: GraphOptions,
    pub pass: Pass,
}

impl Builder<'_> {
    /// An f32 value per token.
    pub fn value(&mut self, name: &str, inner: &[u64]) -> Ref {
        self.graph.value(name, Vary::Tokens, inner, DType::F32)
    }

    /// A dense matrix, in the checkpoint's format.
    pub fn matrix(&mut self, name: &str, rows: u64, columns: u64) -> Ref {
        self.graph.weight(name, &[rows, columns], self.config.stored)
    }

    /// A vector or another small weight, as f32 whatever the checkpoint stores.
    pub fn small(&mut self, name: &str, dims: &[u64]) -> Ref {
        self.graph.weight(name, dims, DType::F32)
    }

    /// `x · wᵀ` with the weight `{name}.weight`; the result has shape `out`.
    pub fn linear(&mut self, x: Ref, name: &str, out: &[u64], columns: u64) -> Ref {
        let w = self.matrix(&format!("{name}.weight"), out.iter().product(), columns);
        let y = self.value(name, out);
        self.graph.push(OpKind::Gemm, Attrs::default(), &[x, w, y], name);
        y
    }

    /// RMS normalisation with the weight `{name}.weight` of `n` values.
    pub fn norm(&mut self, x: Ref, name: &str, n: u64, eps: f64) -> Ref {
        let w = self.small(&format!("{name}.weight"), &[n]);
        let y = self.value(name, &[n]);
        self.graph.push(OpKind::RmsNorm, floats(&[eps]), &[x, w, y], name);
        y
    }

    /// An elementwise op of two values.
    pub fn binary(&mut self, kind: OpKind, attrs: Attrs, a: Ref, b: Ref, name: &str, inner: &[u64]) -> Ref {
        let y = self.value(name, inner);
        self.graph.push(kind, attrs, &[a, b, y], name);
        y
    }

    /// The MLP's gate: `act(gate, up)`.
    pub fn activation(&mut self, gate: Ref, up: Ref, name: &str, width: u64) -> Ref {
        let (kind, attrs) = match self.config.activation {
            Activation::Silu => (OpKind::SiluMul, Attrs::default()),
            Activation::Situ { beta, linear } => (OpKind::SituMul, floats(&[beta, linear])),
        };
        self.binary(kind, attrs, gate, up, name, &[width])
    }

    /// A dense MLP with `{name}.gate_proj`, `up_proj`, `down_proj`.
    pub fn mlp(&mut self, x: Ref, name: &str, width: u64) -> Ref {
        let hidden = self.config.hidden_size;
        let gate = self.linear(x, &format!("{name}.gate_proj"), &[width], hidden);
        let up = self.linear(x, &format!("{name}.up_proj"), &[width], hidden);
        let inner = self.activation(gate, up, &format!("{name}.act"), width);
        self.linear(inner, &format!("{name}.down_proj"), &[hidden], width)
    }
}

/// Attributes with these floats.
pub(super) fn floats(f: &[f64]) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.f[..f.len()].copy_from_slice(f);
    attrs
}

/// Attributes with these integers and floats.
pub(super) fn attrs(i: &[i64], f: &[f64]) -> Attrs {
    let mut attrs = floats(f);
    attrs.i[..i.len()].copy_from_slice(i);
    attrs
}
