//! Dense products of e4m3 factors, with `precision=fp8`: half the weight bytes of a decoding step, twice the matrix rate of a prompt.
//!
//! A weight is quantised once, at load, with an f32 scale per row, and laid out as `kernels/gemm_fp8.py` reads it. Rejected: a scale
//! for every 32 values. e4m3 keeps its three bits over 2^14 below the greatest value of a row, so the error is no smaller (both 2.65%
//! of a normal weight; 2.5 and 2.7% of Student's t with 3 degrees of freedom) and every wave would load 3% more. Rows of activations have the
//! scales of `experts_fp8`, which need no look at the whole row first.
//!
//! What stays in the factors of `precision=bf16`: products whose results a choice depends on (`attrs.i[1]`) or that make logits, where a
//! rounding changes ids; matrices of at most [`NARROW`] rows or columns, which hold the gates of recurrences and have no bytes worth
//! saving. What `moe_input` and `moe_output` multiply is in `moe_edges_fp8`.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    graph::Vary,
    op::Attrs,
    quant,
    sdk::{Fault, OpView, Pack, Support, Tensor},
    support::Rounding,
};

use super::{
    BoundOp, Operand, PANEL,
    ahead::{self, Form},
    gemm_few, int, panels,
};
use crate::{
    kernel::{Argument, Extent, Plan},
    settings::{Precision, Settings},
};

/// Layout of a weight in e4m3: tiles of 16 rows by 128 columns, then a scale per row.
pub(super) const AS_FP8: u32 = 3;
/// Rows or columns that are too few.
const NARROW: usize = 128;
/// Values of K per step, and of a row that share a scale.
const STEP: usize = 128;
const GROUP: usize = 32;
/// Rows of a tile of weights.
const ROWS: usize = 16;
/// The largest e4m3.
const LARGEST: f32 = 448.0;
/// Scratch areas start at multiples of this.
const ALIGN: u64 = 256;

/// A weight of `n` rows and `k` columns that is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    n: usize,
    k: usize,
}

impl Shape {
    /// `None` if the product keeps its factors.
    fn new(attrs: &Attrs, rows: Vary, n: usize, k: usize, settings: &Settings) -> Option<Self> {
        let wanted = settings.precision == Precision::Fp8 && settings.specialised();
        let decides = attrs.i[1] == 1 || rows == Vary::LogitRows;
        let shape = Self { n, k };
        let fits = n > NARROW && k > NARROW && k.is_multiple_of(GROUP) && shape.bytes() < 1 << 31;
        (wanted && !decides && fits).then_some(shape)
    }

    /// Of a matrix whose product with `rows` decides nothing.
    pub(super) fn of_matrix(n: u64, k: usize, rows: Vary, settings: &Settings) -> Option<Self> {
        Self::new(&Attrs::default(), rows, n as usize, k, settings)
    }

    /// Of a descriptor; rows of `x` touch.
    pub(super) fn of(op: &OpDesc, settings: &Settings) -> Option<Self> {
        let (x, w) = (&op.operands[0], &op.operands[1]);
        let dense = x.stride() == x.row_len() * 4;
        Self::new(&op.attrs, x.vary, w.dims[0] as usize, w.row_len(), settings).filter(|_| dense)
    }

    /// Of an op whose weight is packed.
    pub(super) fn packed(op: &OpView<'_>, settings: &Settings) -> Result<Option<Self>, Fault> {
        let (x, w) = (op.operand(0)?, op.operand(1)?);
        Ok(Self::new(op.attrs(), x.vary, w.dims[0], w.row_len(), settings).filter(|_| x.is_dense()))
    }

    fn padded(&self) -> usize {
        padded(self.k)
    }

    /// N in whole tiles.
    fn rows(&self) -> usize {
        self.n.next_multiple_of(ROWS)
    }

    /// Bytes of the values; scales follow.
    fn bytes(&self) -> usize {
        self.rows() * self.padded()
    }

    /// The answer of the op.
    pub(super) fn support(&self, op: &OpDesc) -> Support {
        let mut support = Support::yes("linear_fp8");
        support.rounding = Rounding::Fp8;
        support.packs.push(self.packing(1));
        let tokens = op.operands[0].dims[0];
        if !gemm_few::rounds(tokens as usize, self.k) {
            support.workspace_bytes = room(tokens, self.k);
        }
        support
    }

    /// The weight as operand `operand` in that form.
    pub(super) fn packing(&self, operand: u32) -> Pack {
        Pack { operand, layout: AS_FP8, bytes: (self.bytes() + 4 * self.rows()) as u64 }
    }

    /// Where a value of a weight lies.
    fn at(&self, row: usize, column: usize) -> usize {
        let tile = row / ROWS * (self.padded() / STEP) + column / STEP;
        let (row, column) = (row % ROWS, column % STEP);
        tile * ROWS * STEP + column / 64 * 1024 + column % 64 / 16 * 256 + row * 16 + column % 16
    }

    /// A weight in that form, from its stored bytes.
    pub(super) fn pack(&self, w: &Tensor, source: &[u8]) -> Vec<u8> {
        let mut packed = vec![0; self.bytes()];
        let mut scales = vec![1f32; self.rows()];
        let mut values = vec![0f32; self.k];
        for (row, bytes) in source.chunks(source.len() / self.n).enumerate() {
            quant::dequantize_row(w.dtype, bytes, &mut values);
            let peak = values.iter().fold(0f32, |peak, v| peak.max(v.abs()));
            if peak > 0.0 {
                scales[row] = peak / LARGEST;
            }
            for (column, chunk) in values.chunks(16).enumerate() {
                let at = self.at(row, column * 16);
                let to = packed[at..].iter_mut();
                to.zip(chunk).for_each(|(code, v)| *code = quant::e4m3_from_f32(v / scales[row]));
            }
        }
        packed.extend(scales.iter().flat_map(|s| s.to_le_bytes()));
        packed
    }
}

/// K in whole steps.
pub(super) fn padded(k: usize) -> usize {
    k.next_multiple_of(STEP)
}

/// Where the scales of that many rounded rows begin in the workspace.
fn scales_at(tokens: u64, k: usize) -> u64 {
    (tokens * k as u64).next_multiple_of(ALIGN)
}

/// Bytes of the scales of that many rounded rows: steps of whole tiles of rows (`scale_at` in `kernels/fp8.py`).
pub(super) fn scale_bytes(tokens: u64, k: usize) -> u64 {
    tokens.next_multiple_of(ROWS as u64) * (padded(k) / GROUP) as u64
}

/// Bytes of that many rounded rows and their scales.
pub(super) fn room(tokens: u64, k: usize) -> u64 {
    scales_at(tokens, k) + scale_bytes(tokens, k).next_multiple_of(ALIGN)
}

/// Rounded rows of `x` and their scales, in the op's scratch.
pub(super) fn rounded(op: &BoundOp<'_>, x: &Operand) -> (Argument, Argument) {
    rounded_at(op.workspace, x)
}

/// The same in scratch of [`room`] from an address on.
pub(super) fn rounded_at(address: u64, x: &Operand) -> (Argument, Argument) {
    let scales = address + scales_at(x.tensor.dims[0] as u64, x.tensor.row_len());
    (Argument::Pointer(address), Argument::Pointer(scales))
}

/// What puts them there: the launch that makes them, or one more.
pub(super) fn plan_rounding(op: &BoundOp<'_>, plan: &mut Plan<'_>, x: &Operand) -> Result<(), Fault> {
    let [word, fixed] = x.count();
    let ((y, s), k) = (rounded(op, x), x.tensor.row_len());
    if let (Argument::Pointer(rows), Argument::Pointer(scales)) = (y, s)
        && ahead::take(op, plan, x, Form::E4m3, [rows, scales])
    {
        return Ok(());
    }
    let arguments =
        [op.step(), word, fixed, ("x", x.pointer()), ("y", y), ("s", s), ("D", int(k)), ("ldx", x.stride())];
    Ok(plan.launch("fp8_quantise", [x.rows(1), panels(k, PANEL), Extent::ONE], &arguments)?)
}

/// Rows and columns of a tile for programs of more tokens than `gemm_few` takes.
pub(super) fn tile(tokens: usize) -> (u32, u32) {
    if tokens <= 256 { (64, 32) } else { (128, 128) }
}

/// The launches for more tokens than `gemm_few` takes. `w` has the layout [`AS_FP8`].
pub(super) fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let (x, w, y) = (&op.operands[0], &op.operands[1], op.operands.last().expect("checked"));
    let bias = (op.op.attrs().i[0] == 1).then(|| op.operands[2]);
    let shape = Shape { n: w.tensor.dims[0], k: w.tensor.row_len() };
    let tokens = op.capacity(x) as usize;
    let [word, fixed] = x.count();
    let step = [op.step(), word, fixed];
    let common = [
        ("w", w.pointer()),
        ("bias", bias.unwrap_or(*x).pointer()),
        ("y", y.pointer()),
        ("N", int(shape.n)),
        ("K", int(shape.k)),
        ("KP", int(shape.padded())),
        ("ldy", y.stride()),
        ("biased", int(usize::from(bias.is_some()))),
    ];
    let common = [&step[..], &common].concat();
    if tokens <= gemm_few::TILE {
        return Err(Fault::internal("rows of a quantised product are not whole vectors"));
    }
    plan_rounding(op, plan, x)?;
    let (rows, scales) = rounded(op, x);
    let (bm, bn) = tile(tokens);
    let arguments = [&common[..], &[("x", rows), ("xs", scales)]].concat();
    let columns = Extent::Fixed(shape.n.div_ceil(bn as usize) as u32);
    Ok(plan.launch(&format!("linear_fp8_{bm}x{bn}"), [x.rows(bm), columns, Extent::ONE], &arguments)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_backend_api::dtype::DType;

    #[test]
    fn what_choices_and_gates_depend_on_keeps_its_factors() {
        let settings = |options: &[(&str, &str)]| Settings::parse(options).unwrap();
        let fp8 = settings(&[("precision", "fp8")]);
        let of = |hint, rows, n, k, settings: &Settings| {
            let mut attrs = Attrs::default();
            attrs.i[1] = hint;
            Shape::new(&attrs, rows, n, k, settings).is_some()
        };
        assert!(of(0, Vary::Tokens, 1536, 7168, &fp8));
        assert!(!of(1, Vary::Tokens, 1536, 7168, &fp8));
        assert!(!of(0, Vary::LogitRows, 1536, 7168, &fp8));
        assert!(!of(0, Vary::Tokens, 128, 7168, &fp8) && !of(0, Vary::Tokens, 12_288, 128, &fp8));
        assert!(!of(0, Vary::Tokens, 1536, 7168, &settings(&[])));
        assert!(!of(0, Vary::Tokens, 1536, 7168, &settings(&[("precision", "fp8"), ("kernels", "portable")])));
    }

    #[test]
    fn every_value_has_a_place_and_is_near() {
        let shape = Shape { n: 18, k: 160 };
        let mut places: Vec<usize> =
            (0..32).flat_map(|row| (0..256).map(move |column| shape.at(row, column))).collect();
        places.sort_unstable();
        assert_eq!(places, (0..shape.bytes()).collect::<Vec<_>>());

        let values: Vec<f32> = (0..18 * 160).map(|i| ((i * 7919 % 613) as f32 - 306.0) * 0.01).collect();
        let source: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let w =
            Tensor::new(&tokenspeed_backend_api::tensor::Tensor::new(DType::F32, Vary::Fixed, &[18, 160]).to_abi(), 1);
        let packed = shape.pack(&w.unwrap(), &source);
        let (codes, scales) = packed.split_at(shape.bytes());
        for (i, v) in values.iter().enumerate() {
            let (row, column) = (i / 160, i % 160);
            let scale = f32::from_le_bytes(scales[4 * row..][..4].try_into().unwrap());
            let found = quant::e4m3_to_f32(codes[shape.at(row, column)]) * scale;
            assert!((found - v).abs() <= v.abs() / 16.0 + scale / 512.0, "{row}, {column}: {found} for {v}");
        }
        assert_eq!(scales.len(), 4 * 32);
    }
}
