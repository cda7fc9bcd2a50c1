//! Attention Residuals: instead of one running sum, each sublayer reads a softmax mixture of the sums that ended earlier
//! blocks and the current one. Tokens do not see each other here.
//!
//! In the split form, a snapshot's scores for all later mixtures are made when it is taken, a mixture's part over the
//! snapshots comes from those, and only the current sum is left to fold in.

use super::{
    builder::{Builder, attrs, floats},
    config::KimiConfig,
};
use tokenspeed_backend_api::{graph::Ref, op::OpKind};

/// The residual stream.
pub(super) struct Residual {
    /// Sum of the current block, or of everything without Attention Residuals.
    sum: Ref,
    /// Sums that ended earlier blocks; the first is the embedding.
    bank: Vec<Ref>,
    /// In the split form, per snapshot: its scores for the mixtures after it.
    scores: Vec<Ref>,
    /// Mixtures still to come; known from the first snapshot on.
    left: usize,
    /// The next addition starts the sum anew.
    consumed: bool,
}

impl Residual {
    pub fn new(embedding: Ref) -> Self {
        Self { sum: embedding, bank: Vec::new(), scores: Vec::new(), left: 0, consumed: false }
    }

    /// The running sum.
    pub fn sum(&self) -> Ref {
        self.sum
    }

    /// What the next sublayer reads; `name` has the weights `{name}_norm` and `{name}_proj`.
    pub fn read(&mut self, b: &mut Builder<'_>, name: &str) -> Ref {
        if self.bank.is_empty() {
            return self.sum;
        }
        let (hidden, eps) = (b.config.hidden_size, b.config.rms_norm_eps);
        let [norm, proj] = weights(b, name);
        let y = b.value(name, &[hidden]);
        let snapshots = self.bank.len() as i64;
        if b.options.split_residuals {
            let acc = b.value(&format!("{name}.acc"), &[hidden]);
            let stats = b.value(&format!("{name}.stats"), &[2]);
            let operands = [&self.bank[..], &self.scores, &[acc, stats]].concat();
            let left = attrs(&[snapshots, self.left as i64], &[]);
            b.graph.push(OpKind::AttnResPartial, left, &operands, format!("{name}.partial"));
            let operands = [norm, proj, acc, stats, self.sum, y];
            b.graph.push(OpKind::AttnResCombine, floats(&[eps]), &operands, name);
        } else {
            let operands = [&[norm, proj], &self.bank[..], &[self.sum, y]].concat();
            b.graph.push(OpKind::AttnResMix, attrs(&[snapshots], &[eps]), &operands, name);
        }
        self.left -= 1;
        y
    }

    /// A block ends before the attention of `layer`: its sum goes to the bank, the next addition begins another.
    pub fn snapshot(&mut self, b: &mut Builder<'_>, layer: usize) {
        let later = later(b.config, layer);
        assert!(self.bank.is_empty() || self.left == later.len(), "mixtures before layer {layer} miscounted");
        self.left = later.len();
        if b.options.split_residuals {
            let name = format!("model.layers.{layer}.snapshot_scores");
            let (norms, projs): (Vec<Ref>, Vec<Ref>) = later.iter().map(|name| weights(b, name).into()).unzip();
            let y = b.value(&name, &[later.len() as u64]);
            let operands = [&[self.sum], &norms[..], &projs, &[y]].concat();
            let attrs = attrs(&[later.len() as i64], &[b.config.rms_norm_eps]);
            b.graph.push(OpKind::AttnResScores, attrs, &operands, name);
            self.scores.push(y);
        }
        self.bank.push(self.sum);
        self.consumed = true;
    }

    /// What a sublayer's output is added to, for one that adds itself; `None` where the sum starts anew.
    pub fn base(&self) -> Option<Ref> {
        (!self.consumed).then_some(self.sum)
    }

    /// A sublayer has added itself to [`Self::base`].
    pub fn replace(&mut self, sum: Ref) {
        self.consumed = false;
        self.sum = sum;
    }

    /// Add a sublayer's output.
    pub fn add(&mut self, b: &mut Builder<'_>, y: Ref, name: &str) {
        let sum = match self.base() {
            None => y,
            Some(base) => b.binary(OpKind::Add, Default::default(), base, y, name, &[b.config.hidden_size]),
        };
        self.replace(sum);
    }
}

/// What scores the candidates of a mixture.
fn weights(b: &mut Builder<'_>, name: &str) -> [Ref; 2] {
    let hidden = [b.config.hidden_size];
    ["norm", "proj"].map(|part| b.small(&format!("{name}_{part}.weight"), &hidden))
}

/// Mixtures after a snapshot before the attention of `layer`, in order.
fn later(config: &KimiConfig, layer: usize) -> Vec<String> {
    let mut names = vec![format!("model.layers.{layer}.mlp_res")];
    for layer in layer + 1..config.layers.len() {
        names.extend(["self_attention_res", "mlp_res"].map(|part| format!("model.layers.{layer}.{part}")));
    }
    names.push("model.output_attn_res".into());
    names
}
