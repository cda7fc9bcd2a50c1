//! Attention Residuals: instead of one running sum, each sublayer reads a softmax mixture of the sums that ended earlier
//! blocks and the current one. Tokens do not see each other here.

use super::builder::{Builder, attrs};
use tokenspeed_backend_api::{graph::Ref, op::OpKind};

/// The residual stream.
pub(super) struct Residual {
    /// Sum of the current block, or of everything without Attention Residuals.
    sum: Ref,
    /// Sums that ended earlier blocks; the first is the embedding.
    bank: Vec<Ref>,
    /// The next addition starts the sum anew.
    consumed: bool,
}

impl Residual {
    pub fn new(embedding: Ref) -> Self {
        Self { sum: embedding, bank: Vec::new(), consumed: false }
    }

    /// The running sum.
    pub fn sum(&self) -> Ref {
        self.sum
    }

    /// What the next sublayer reads; `name` has the weights `{name}_norm` and `{name}_proj`.
    pub fn read(&self, b: &mut Builder<'_>, name: &str) -> Ref {
        if self.bank.is_empty() {
            return self.sum;
        }
        let hidden = b.config.hidden_size;
        let norm = b.small(&format!("{name}_norm.weight"), &[hidden]);
        let proj = b.small(&format!("{name}_proj.weight"), &[hidden]);
        let y = b.value(name, &[hidden]);
        let operands = [&[norm, proj], &self.bank[..], &[self.sum, y]].concat();
        let attrs = attrs(&[self.bank.len() as i64], &[b.config.rms_norm_eps]);
        b.graph.push(OpKind::AttnResMix, attrs, &operands, name);
        y
    }

    /// A block ends: its sum goes to the bank, the next addition begins another.
    pub fn snapshot(&mut self) {
        self.bank.push(self.sum);
        self.consumed = true;
    }

    /// Add a sublayer's output.
    pub fn add(&mut self, b: &mut Builder<'_>, y: Ref, name: &str) {
        if std::mem::take(&mut self.consumed) {
            self.sum = y;
        } else {
            let hidden = [b.config.hidden_size];
            self.sum = b.binary(OpKind::Add, Default::default(), self.sum, y, name, &hidden);
        }
    }
}
