//! `short_conv`: the depthwise causal convolution in front of a linear-attention head.
//!
//! q, k and v go together because they share one window in the state slot: one launch, one commit.

use super::{Call, Case, ELEMENTWISE, Entry, OpDesc, Part, cases::Gen, elementwise::silu, inout, input, output};
use super::{recurrent, schema::CACHE_DTYPES};
use crate::{dtype::DType, graph::Vary, op::OpKind, tensor::View};

pub(super) const ENTRY: Entry = Entry {
    kind: OpKind::ShortConv,
    version: 1,
    doc: "For each of q, k, v and each channel c: `y_t[c] = silu(Σ_j w[c, j] · x_{t−W+1+j}[c])`, tap W−1 on the token itself, zeros before \
          the sequence. The window holds the last W−1 inputs `[q | k | v]`, oldest first; it is read from slot `state_read` (zeros if the \
          request has nothing computed) and written to `state_write`. `attrs.i[0]` = 1: the window is left as it was.",
    operands: &[
        input("q [T, C]"),
        input("k [T, C]"),
        input("v [T, C]"),
        input("wq [C, W]"),
        input("wk [C, W]"),
        input("wv [C, W]"),
        inout("window [slots, W − 1, 3C]"),
        output("yq [T, C]"),
        output("yk [T, C]"),
        output("yv [T, C]"),
    ],
    check,
    reference,
    decompose: None,
    tolerance: ELEMENTWISE,
    cases,
};

fn check(op: &OpDesc) -> Result<(), String> {
    op.count(10)?;
    op.f32(&[0, 1, 2, 3, 4, 5, 7, 8, 9])?;
    op.dtype(6, &CACHE_DTYPES[..3])?;
    for i in [1, 2, 7, 8, 9] {
        op.same_shape(0, i)?;
    }
    let (x, w, window) = (&op.operands[0], &op.operands[3], &op.operands[6]);
    let (channels, taps) = (x.row_len() as u64, w.dims[1]);
    op.require(op.operands[3..6].iter().all(|w| w.dims() == [channels, taps]) && taps >= 2, || {
        format!("x is {:?}, w is {:?}", x.dims(), w.dims())
    })?;
    op.require(window.rank == 3 && window.dims[1..3] == [taps - 1, 3 * channels], || {
        format!("x is {:?}, w is {:?}, window is {:?}", x.dims(), w.dims(), window.dims())
    })?;
    op.require(matches!(op.attrs.i[0], 0 | 1), || format!("attrs.i[0] = {} is not 0 or 1", op.attrs.i[0]))
}

fn reference(call: &Call<'_>, part: Part) {
    let window = call.operands[6];
    let channels = call.operands[0].row_len();
    let mine = part.of(channels);
    if mine.is_empty() {
        return;
    }
    for stream in 0..3 {
        let (x, w, y) = (call.operands[stream], call.operands[3 + stream], call.operands[7 + stream]);
        let weights = Taps::load(&w, mine.clone());
        let mut conv = Conv::new(weights.taps, mine.len());
        for row in call.step.rows {
            conv.start(&window, row, stream * channels + mine.start);
            let mut out = vec![0f32; mine.len()];
            for t in recurrent::tokens(row) {
                let mut input = vec![0f32; mine.len()];
                recurrent::load_part(&x, t, mine.start, &mut input);
                conv.push(input, &weights, &mut out);
                y.store(t, mine.start, &out);
            }
            if call.attrs.i[0] == 0 {
                conv.keep(&window, row, stream * channels + mine.start);
            }
        }
    }
}

/// Weights of some channels, `[channel][tap]`.
pub(super) struct Taps {
    pub(super) taps: usize,
    values: Vec<f32>,
}

impl Taps {
    pub(super) fn load(w: &View, channels: std::ops::Range<usize>) -> Self {
        let taps = w.row_len();
        let mut values = vec![0f32; taps * channels.len()];
        channels.zip(values.chunks_exact_mut(taps)).for_each(|(c, row)| w.load_row(c, row));
        Self { taps, values }
    }
}

/// The running window of some channels of one request.
pub(super) struct Conv {
    /// Oldest first; W − 1 rows between tokens.
    rows: std::collections::VecDeque<Vec<f32>>,
    taps: usize,
    width: usize,
}

impl Conv {
    pub(super) fn new(taps: usize, width: usize) -> Self {
        Self { rows: Default::default(), taps, width }
    }

    /// Begin a request from its slot, columns `first` on.
    pub(super) fn start(&mut self, window: &View, row: &crate::abi::ts_step_row, first: usize) {
        let stride = window.tensor.dims[2] as usize;
        self.rows.clear();
        for i in 0..self.taps - 1 {
            let mut values = vec![0f32; self.width];
            if let Some(slot) = recurrent::read_slot(row) {
                recurrent::load_part(window, slot, i * stride + first, &mut values);
            }
            self.rows.push_back(values);
        }
    }

    /// Take one token's input; `out` becomes its output, rounded once.
    pub(super) fn push(&mut self, input: Vec<f32>, weights: &Taps, out: &mut [f32]) {
        self.rows.push_back(input);
        for (c, (out, w)) in out.iter_mut().zip(weights.values.chunks_exact(self.taps)).enumerate() {
            let mut sum = 0f64;
            for (row, w) in self.rows.iter().zip(w) {
                sum += f64::from(row[c]) * f64::from(*w);
            }
            *out = silu(sum) as f32;
        }
        self.rows.pop_front();
    }

    /// Leave the window in the request's slot.
    pub(super) fn keep(&self, window: &View, row: &crate::abi::ts_step_row, first: usize) {
        let stride = window.tensor.dims[2] as usize;
        if let Some(slot) = recurrent::write_slot(row) {
            self.rows.iter().enumerate().for_each(|(i, values)| window.store(slot, i * stride + first, values));
        }
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let mut g = Gen::new(seed);
    let mut out = Vec::new();
    for (spans, channels, taps, frozen) in [
        (recurrent::SPANS[0], 1, 2, false),
        (recurrent::SPANS[1], 17, 4, false),
        (recurrent::SPANS[2], 64, 4, true),
        (recurrent::SPANS[3], 5, 4, false),
        (recurrent::SPANS[3], 16, 4, false),
        (recurrent::SPANS[1], 16, 3, false),
        (recurrent::SPANS[1], 17, 4, true),
    ] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let name = format!("{dtype} C={channels} W={taps} frozen={frozen} {spans:?}");
            let (mut c, slots) = recurrent::case(&mut g, OpKind::ShortConv, name, spans);
            let tokens = c.step.tokens.len() as u64;
            c.attrs.i[0] = frozen.into();
            for shape in [[tokens, channels], [channels, taps]] {
                for _ in 0..3 {
                    let x = g.uniform(&shape).into_iter().map(|v| v * 2.0).collect();
                    c.push(if shape[1] == taps { Vary::Fixed } else { Vary::Tokens }, &shape, x);
                }
            }
            let window = g.weight(dtype, &[slots, taps - 1, 3 * channels]);
            c.push_inout(dtype, Vary::Fixed, &[slots, taps - 1, 3 * channels], window);
            (0..3).for_each(|_| c.push_output(Vary::Tokens, &[tokens, channels]));
            out.push(c);
        }
    }
    out
}
