//! An op with its operands, of which only the few that decide addresses have contents, and the least it must move.

use tokenspeed_backend_api::{
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    step::StepData,
    tensor::Tensor,
};

/// One operand.
pub struct Operand {
    /// Shape.
    pub tensor: Tensor,
    /// Contents; zeros if there are none.
    pub bytes: Option<Vec<u8>>,
    /// Operands of one name are the same memory in the ops of a program; those without are their own.
    pub name: &'static str,
}

/// One op.
pub struct Op {
    /// Kind.
    pub kind: OpKind,
    /// Attributes.
    pub attrs: Attrs,
    /// Operands in catalogue order.
    pub operands: Vec<Operand>,
    /// The step it runs in.
    pub step: StepData,
    /// Bytes that the op must read and write: each of its inputs and outputs once, as they are stored.
    pub floor_bytes: f64,
    /// Other work runs between this op and the next, so its results have to be stored whoever makes them.
    pub apart: bool,
    /// Ops behind it in one program; without any, it is launched by itself.
    pub behind: Vec<Op>,
}

impl Op {
    /// An op without operands, over requests (tokens computed, tokens of the step).
    pub fn new(kind: OpKind, requests: &[(u32, usize)]) -> Self {
        let ids: Vec<Vec<i32>> = requests.iter().map(|r| vec![0; r.1]).collect();
        let spans: Vec<(u32, u32, &[i32])> =
            requests.iter().zip(&ids).enumerate().map(|(i, (r, ids))| (i as u32, r.0, &ids[..])).collect();
        let mut step = StepData::from_spans(&spans);
        for (i, row) in step.rows.iter_mut().enumerate() {
            // A state slot each, slot 0 being nobody's; in place.
            (row.state_read, row.state_write, row.state_tokens) = (i as u32 + 1, i as u32 + 1, row.computed);
        }
        Self {
            kind,
            attrs: Attrs::default(),
            operands: Vec::new(),
            step,
            floor_bytes: 0.0,
            apart: false,
            behind: Vec::new(),
        }
    }

    /// Tokens of the step.
    pub fn tokens(&self) -> u64 {
        self.step.tokens.len() as u64
    }

    fn add(&mut self, dtype: DType, vary: Vary, dims: &[u64], bytes: Option<Vec<u8>>) -> f64 {
        let tensor = Tensor::new(dtype, vary, dims);
        self.operands.push(Operand { tensor, bytes, name: "" });
        tensor.bytes() as f64
    }

    /// An f32 value per token, read or written once.
    pub fn value(mut self, inner: &[u64]) -> Self {
        let dims: Vec<u64> = [self.tokens()].iter().chain(inner).copied().collect();
        self.floor_bytes += self.add(DType::F32, Vary::Tokens, &dims, None);
        self
    }

    /// A weight, read once.
    pub fn weight(mut self, dtype: DType, dims: &[u64]) -> Self {
        self.floor_bytes += self.add(dtype, Vary::Fixed, dims, None);
        self
    }

    /// An operand of which only `bytes` must be moved.
    pub fn part(mut self, dtype: DType, dims: &[u64], bytes: f64) -> Self {
        self.add(dtype, Vary::Fixed, dims, None);
        self.floor_bytes += bytes;
        self
    }

    /// Numbers that decide addresses, read once.
    pub fn numbers(mut self, vary: Vary, dims: &[u64], numbers: &[u32]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.floor_bytes += self.add(DType::U32, vary, dims, Some(bytes));
        self
    }

    /// Other work runs behind it.
    pub fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// Gives the last operand a name.
    pub fn named(mut self, name: &'static str) -> Self {
        self.operands.last_mut().expect("an operand").name = name;
        self
    }

    /// A program of it and `next`, in which what is named alike is moved once.
    pub fn then(mut self, next: Op) -> Self {
        let held =
            |o: &&Operand| !o.name.is_empty() && self.all().any(|op| op.operands.iter().any(|p| p.name == o.name));
        let again: u64 = next.operands.iter().filter(held).map(|o| o.tensor.bytes()).sum();
        self.floor_bytes += next.floor_bytes - again as f64;
        self.behind.push(next);
        self
    }

    /// All ops of its program, in order.
    pub fn all(&self) -> impl Iterator<Item = &Op> {
        std::iter::once(self).chain(&self.behind)
    }

    /// Sets attributes.
    pub fn attrs(mut self, i: &[i64], f: &[f64]) -> Self {
        self.attrs.i[..i.len()].copy_from_slice(i);
        self.attrs.f[..f.len()].copy_from_slice(f);
        self
    }
}
