//! Generated inputs: one op with its operands' bytes and the step it runs in.

use super::{Call, OpDesc, Part, Role};
use crate::{
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    quant,
    step::{StepData, StepView},
    tensor::{Tensor, View},
};

/// One operand with its bytes before the op runs.
#[derive(Clone, Debug)]
pub struct CaseOperand {
    /// Descriptor.
    pub tensor: Tensor,
    /// How the op uses it.
    pub role: Role,
    /// Contents; outputs are poisoned.
    pub bytes: Vec<u8>,
}

/// One op ready to run anywhere.
#[derive(Clone, Debug)]
pub struct Case {
    /// Shown in reports.
    pub name: String,
    /// Op.
    pub kind: OpKind,
    /// Attributes.
    pub attrs: Attrs,
    /// Operands in catalogue order.
    pub operands: Vec<CaseOperand>,
    /// The step it belongs to.
    pub step: StepData,
}

/// What outputs hold before the op: a NaN that no op produces.
pub const POISON: u8 = 0xff;

impl Case {
    /// An f32 input.
    pub fn push(&mut self, vary: Vary, dims: &[u64], values: Vec<f32>) {
        let bytes = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        self.push_raw(DType::F32, vary, dims, bytes);
    }

    /// An input given as bytes.
    pub fn push_raw(&mut self, dtype: DType, vary: Vary, dims: &[u64], bytes: Vec<u8>) {
        self.add(Role::In, dtype, vary, dims, bytes);
    }

    /// An operand that is written in part.
    pub fn push_inout(&mut self, dtype: DType, vary: Vary, dims: &[u64], bytes: Vec<u8>) {
        self.add(Role::InOut, dtype, vary, dims, bytes);
    }

    /// An f32 output.
    pub fn push_output(&mut self, vary: Vary, dims: &[u64]) {
        self.push_output_as(DType::F32, vary, dims);
    }

    /// An output in some format.
    pub fn push_output_as(&mut self, dtype: DType, vary: Vary, dims: &[u64]) {
        let bytes = Tensor::new(dtype, vary, dims).bytes() as usize;
        self.add(Role::Out, dtype, vary, dims, vec![POISON; bytes]);
    }

    /// A block table, one row per entry.
    pub fn push_table(&mut self, rows: &[Vec<u32>]) {
        let width = rows[0].len();
        let bytes = rows.iter().flatten().flat_map(|v| v.to_ne_bytes()).collect();
        self.push_raw(DType::U32, Vary::Fixed, &[rows.len() as u64, width as u64], bytes);
    }

    fn add(&mut self, role: Role, dtype: DType, vary: Vary, dims: &[u64], bytes: Vec<u8>) {
        let tensor = Tensor::new(dtype, vary, dims);
        assert_eq!(tensor.bytes(), bytes.len() as u64, "{}: {dtype} {dims:?}", self.name);
        self.operands.push(CaseOperand { tensor, role, bytes });
    }

    /// The descriptor alone.
    pub fn desc(&self) -> OpDesc {
        OpDesc { kind: self.kind, attrs: self.attrs, operands: self.operands.iter().map(|o| o.tensor).collect() }
    }

    /// Run the reference in `parts` shares; returns every operand's bytes afterwards.
    pub fn run_reference(&self, parts: usize) -> Vec<Vec<u8>> {
        let mut bytes: Vec<Vec<u8>> = self.operands.iter().map(|o| o.bytes.clone()).collect();
        let block = self.step.to_bytes();
        let step = StepView::new(&block).expect("a case's step is sound");
        let views: Vec<View> = self
            .operands
            .iter()
            .zip(&mut bytes)
            .map(|(o, b)| {
                let tensor = o.tensor.cut(&step);
                // SAFETY: each view has its own buffer of the tensor's size, used by this thread alone.
                unsafe { View::new(tensor, b.as_mut_ptr()) }
            })
            .collect();
        let call = Call { attrs: self.attrs, operands: &views, step };
        for index in 0..parts {
            (super::entry(self.kind).reference)(&call, Part { index, of: parts });
        }
        bytes
    }
}

/// Seeded generator of cases (splitmix64).
#[derive(Debug)]
pub struct Gen {
    state: u64,
}

impl Gen {
    /// The same seed gives the same cases.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// Next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Values in [-1, 1).
    pub fn uniform(&mut self, dims: &[u64]) -> Vec<f32> {
        (0..dims.iter().product()).map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }

    /// Bytes of a tensor in any weight or cache format, with values of order one.
    pub fn weight(&mut self, dtype: DType, dims: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; Tensor::new(dtype, Vary::Fixed, dims).bytes() as usize];
        match dtype {
            DType::Q5_0 | DType::Q5_1 | DType::Q4K | DType::Q5K | DType::Q6K => {
                // Random quants; the f16 scales, wherever they sit in a block, small and finite.
                bytes.iter_mut().for_each(|b| *b = self.next() as u8);
                let scales: &[usize] = match dtype {
                    DType::Q5_0 => &[0],
                    DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
                    _ => &[208],
                };
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    for at in scales {
                        let scale = half::f16::from_f32(0.002 + (self.next() >> 40) as f32 * 1e-9);
                        block[*at..*at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
            }
            _ => {
                let values = self.uniform(dims);
                quant::quantize_row(dtype, &values, &mut bytes);
            }
        }
        bytes
    }

    /// A case with one request of `tokens` tokens from position 0.
    pub fn case(&mut self, kind: OpKind, name: String, tokens: usize) -> Case {
        self.case_at(kind, name, tokens, 0)
    }

    /// A case with one request whose first token stands at `position`.
    pub fn case_at(&mut self, kind: OpKind, name: String, tokens: usize, position: u32) -> Case {
        self.paged_case(kind, name, &[(0, position, tokens)])
    }

    /// A case with requests (table row, tokens already computed, tokens in this step).
    pub fn paged_case(&mut self, kind: OpKind, name: String, spans: &[(u32, u32, usize)]) -> Case {
        let ids: Vec<Vec<i32>> = spans.iter().map(|(_, _, n)| vec![0; *n]).collect();
        let spans: Vec<(u32, u32, &[i32])> =
            spans.iter().zip(&ids).map(|((row, computed, _), ids)| (*row, *computed, &ids[..])).collect();
        Case { name, kind, attrs: Attrs::default(), operands: Vec::new(), step: StepData::from_spans(&spans) }
    }

    /// A block table in shuffled order with room for every request of `step`, and the number of blocks. Entries past a
    /// request's end name block 0, the scratch block.
    pub fn table(&mut self, step: &StepData, block_tokens: u64) -> (Vec<Vec<u32>>, u64) {
        let height = step.rows.iter().map(|r| r.table_row).max().unwrap_or(0) + 1;
        let mut needs = vec![0; height as usize];
        for row in &step.rows {
            let need = &mut needs[row.table_row as usize];
            *need = u64::from(row.cache_rows()).div_ceil(block_tokens).max(*need);
        }
        let width = needs.iter().max().unwrap_or(&1) + 1;
        let total: u64 = needs.iter().sum();
        let mut free: Vec<u32> = (1..=total as u32).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, self.below(i as u64 + 1) as usize);
        }
        let mut table = vec![vec![0; width as usize]; height as usize];
        for (row, need) in table.iter_mut().zip(needs) {
            for slot in &mut row[..need as usize] {
                *slot = free.pop().expect("one block per need");
            }
        }
        (table, total + 1)
    }
}
