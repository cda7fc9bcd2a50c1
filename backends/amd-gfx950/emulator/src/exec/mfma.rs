//! Matrix instructions: D = A·B + C over the whole wave, whatever EXEC says.
//!
//! One routine for every shape, driven by four numbers: rows R (= columns), depth K, element format, elements per lane.
//! Lane maps (manual 7.1.4, 7.1.5; shown by the compiler's own kernels):
//! * A and B, g = lane / R: element j of a lane is row (column) lane % R, depth g·n + j with n elements per lane; 8-bit
//!   formats of f8f6f4 instead lie in two halves: depth (j / 16)·K/2 + 16·g + j % 16.
//! * C and D: register r of a lane is column lane % R, and row 4·(lane / 16) + r for R = 16, or
//!   8·(r / 4) + 4·(lane / 32) + r % 4 for R = 32.
//!
//! Decision: products and sums in f64, rounded once. The order in which hardware adds is not documented; a sum without
//! intermediate rounding is the centre of all of them, and tests compare with tolerances. Rejected: some fixed f32 order,
//! which would look like knowledge.

use super::{def, formats};
use crate::{
    isa::{Def, File, Inst, L, Operand, Sem},
    lanes,
    machine::Cx,
};

/// Element formats.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    F32,
    F16,
    Bf16,
    /// By its code in f8f6f4 instructions: e4m3, e5m2, e2m3, e3m2, e2m1.
    Small(u8),
    /// The same for instructions whose lanes hold 8 contiguous bytes.
    Bytes(u8),
    I8,
}

/// Cycles between issues on one SIMD (manual, table of passes; a pass is four cycles): 16 for results of 16 rows, 32 for 32, whatever
/// the depth of older forms; twice that for f32 and for f8f6f4 with an 8-bit operand.
fn issue_cycles(rows: usize, a: Format, b: Format) -> u64 {
    let slow = |f: Format| matches!(f, Format::F32 | Format::Small(0 | 1));
    rows as u64 * if slow(a) || slow(b) { 2 } else { 1 }
}

/// Shape of an instruction.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    depth: usize,
}

/// Largest operand: 32 x 64, or 16 x 128.
const LARGEST: usize = 2048;

type Matrix = [f32; LARGEST];

/// Reads an operand into `out[k][row]`; returns per lane whether all its registers are initialised.
fn read(cx: &Cx, o: &Operand, format: Format, shape: Shape, out: &mut Matrix) {
    let Shape { rows, depth } = shape;
    let registers = &cx.w.v[o.at()..o.at() + o.width as usize];
    let per_lane = rows * depth / 64;
    match format {
        Format::F32 => {
            for lane in 0..64 {
                out[lane / rows * rows + lane % rows] = f32::from_bits(registers[0][lane]);
            }
        }
        Format::Bf16 => read_bf16(registers, rows, per_lane, out),
        Format::F16 => {
            for j in 0..per_lane {
                for lane in 0..64 {
                    let bits = (registers[j / 2][lane] >> (16 * (j % 2))) as u16;
                    out[(lane / rows * per_lane + j) * rows + lane % rows] = formats::f16_to_f32(bits);
                }
            }
        }
        Format::I8 => {
            for j in 0..per_lane {
                for lane in 0..64 {
                    let byte = (registers[j / 4][lane] >> (8 * (j % 4))) as i8;
                    out[(lane / rows * per_lane + j) * rows + lane % rows] = f32::from(byte);
                }
            }
        }
        Format::Bytes(code) => {
            let table = &formats::tables().value[code as usize];
            for j in 0..per_lane {
                for lane in 0..64 {
                    let byte = (registers[j / 4][lane] >> (8 * (j % 4))) as u8;
                    out[(lane / rows * per_lane + j) * rows + lane % rows] = table[byte as usize];
                }
            }
        }
        Format::Small(code @ 0..=1) => {
            let table = &formats::tables().value[code as usize];
            for j in 0..per_lane {
                for lane in 0..64 {
                    let byte = (registers[j / 4][lane] >> (8 * (j % 4))) as u8;
                    let k = j / 16 * (depth / 2) + lane / rows * 16 + j % 16;
                    out[k * rows + lane % rows] = table[byte as usize];
                }
            }
        }
        Format::Small(code) => {
            let (table, bits) = (&formats::tables().value[code as usize], if code == 4 { 4 } else { 6 });
            for j in 0..per_lane {
                let (word, shift) = (j * bits / 32, j * bits % 32);
                for lane in 0..64 {
                    let mut value = registers[word][lane] >> shift;
                    if shift + bits > 32 {
                        value |= registers[word + 1][lane] << (32 - shift);
                    }
                    let k = lane / rows * per_lane + j;
                    out[k * rows + lane % rows] = table[(value & ((1 << bits) - 1)) as usize];
                }
            }
        }
    }
}

lanes::twice! {
    fn read_bf16(registers: &[L], rows: usize, per_lane: usize, out: &mut Matrix) {
        for j in (0..per_lane).step_by(2) {
            let register = &registers[j / 2];
            for group in 0..64 / rows {
                let k = group * per_lane + j;
                let (low, high) = out[k * rows..(k + 2) * rows].split_at_mut(rows);
                for l in 0..rows {
                    let x = register[group * rows + l];
                    low[l] = f32::from_bits(x << 16);
                    high[l] = f32::from_bits(x & 0xffff_0000);
                }
            }
        }
    }
}

/// `sum[row][column] += Σ_k a[k][row]·b[k][column]`.
macro_rules! product {
    ($name:ident, $n:literal) => {
        lanes::twice! {
            fn $name(a: &Matrix, b: &Matrix, depth: usize, sum: &mut [[f64; $n]; $n]) {
                for row in 0..$n {
                    let acc = &mut sum[row];
                    for part in (0..$n).step_by(16) {
                        let mut r = [0f64; 16];
                        r.copy_from_slice(&acc[part..part + 16]);
                        for k in 0..depth {
                            let x = f64::from(a[k * $n + row]);
                            let b = &b[k * $n + part..k * $n + part + 16];
                            for c in 0..16 {
                                // Products of two f32 with at most 24 bits each are exact in f64.
                                r[c] += x * f64::from(b[c]);
                            }
                        }
                        acc[part..part + 16].copy_from_slice(&r);
                    }
                }
            }
        }
    };
}
product!(product16, 16);
product!(product32, 32);

/// Row of the result that register `r` of a lane holds.
const fn row(rows: usize, lane: usize, r: usize) -> usize {
    if rows == 16 { 4 * (lane / 16) + r } else { 8 * (r / 4) + 4 * (lane / 32) + r % 4 }
}

fn run<const N: usize>(
    cx: &mut Cx,
    inst: &Inst,
    depth: usize,
    a: &Matrix,
    b: &Matrix,
    product: fn(&Matrix, &Matrix, usize, &mut [[f64; N]; N]),
    integer: bool,
) {
    let mut sum = [[0f64; N]; N];
    let c = &inst.s[2];
    let registers = N * N / 64;
    for r in 0..registers {
        let values: L = match c.file {
            File::Vector => cx.w.v[c.at() + r],
            _ => [c.value; 64],
        };
        for lane in 0..64 {
            let value = if integer { f64::from(values[lane] as i32) } else { f64::from(f32::from_bits(values[lane])) };
            sum[row(N, lane, r)][lane % N] = value;
        }
    }
    product(a, b, depth, &mut sum);
    for r in 0..registers {
        let out = &mut cx.w.v[inst.d.at() + r];
        for lane in 0..64 {
            let value = sum[row(N, lane, r)][lane % N];
            // A sum of 64 products of bytes and a 32-bit integer is exact in f64; the result wraps.
            out[lane] = if integer { value as i64 as u32 } else { (value as f32).to_bits() };
        }
    }
}

fn mfma(cx: &mut Cx, inst: &Inst, shape: Shape, fa: Format, fb: Format) {
    let f = &inst.f;
    let formats_in_fields = inst.def.name.contains("f8f6f4");
    if !formats_in_fields && (f.cbsz != 0 || f.blgp != 0 || f.abid != 0) {
        cx.w.fail("broadcast controls of a matrix instruction are not modelled", None);
        return;
    }
    if cx.env.check && !validity(cx, inst, shape) {
        return;
    }
    cx.count.matrix_cycles += issue_cycles(shape.rows, fa, fb);
    cx.count.matrix_macs += (shape.rows * shape.rows * shape.depth) as u64;
    if !cx.env.products {
        return;
    }
    let (mut a, mut b) = ([0f32; LARGEST], [0f32; LARGEST]);
    read(cx, &inst.s[0], fa, shape, &mut a);
    read(cx, &inst.s[1], fb, shape, &mut b);
    if inst.def.op & 0x100 != 0 {
        let scaled = [(&mut a, 3, f.scale_sel & 3), (&mut b, 4, f.scale_sel >> 2 & 3)];
        for (matrix, source, select) in scaled {
            let scales = cx.lanes(&inst.s[source]);
            scale(matrix, &scales, select, shape);
        }
    }
    let integer = fa == Format::I8;
    match shape.rows {
        16 => run::<16>(cx, inst, shape.depth, &a, &b, product16, integer),
        _ => run::<32>(cx, inst, shape.depth, &a, &b, product32, integer),
    }
}

/// One scale per row and 32 values of depth: lane l holds that of row l % R, block l / R.
fn scale(matrix: &mut Matrix, scales: &L, select: u8, shape: Shape) {
    let rows = shape.rows;
    for lane in 0..64 {
        let by = formats::e8m0((scales[lane] >> (8 * select)) as u8);
        let first = lane / rows * 32;
        for k in first..(first + 32).min(shape.depth) {
            let x = &mut matrix[k * rows + lane % rows];
            // Exact: a small float times a power of two, unless the result leaves f32, which is then a huge or no value.
            *x = (f64::from(*x) * by) as f32;
        }
    }
}

/// A result element is initialised if its row of A, its column of B and its C are.
fn validity(cx: &mut Cx, inst: &Inst, shape: Shape) -> bool {
    let rows = shape.rows;
    let folded = |mut lanes: u64| {
        let mut step = 32;
        while step >= rows {
            lanes &= lanes >> step;
            step /= 2;
        }
        lanes & ((1 << rows) - 1)
    };
    let mut sides = [folded(cx.valid(&inst.s[0])), folded(cx.valid(&inst.s[1]))];
    if inst.def.op & 0x100 != 0 {
        sides[0] &= folded(cx.valid(&inst.s[3]));
        sides[1] &= folded(cx.valid(&inst.s[4]));
    }
    let c = &inst.s[2];
    let all = (1u64 << rows) - 1;
    for r in 0..rows * rows / 64 {
        let from_c = if c.file == File::Vector { cx.w.valid_v[c.at() + r] } else { u64::MAX };
        let fresh = if sides == [all, all] {
            u64::MAX
        } else {
            lanes::mask(|l| sides[0] >> row(rows, l, r) & 1 != 0 && sides[1] >> (l % rows) & 1 != 0)
        };
        cx.w.valid_v[inst.d.at() + r] = from_c & fresh;
    }
    true
}

/// Formats of an f8f6f4 instruction come from its fields.
fn f8f6f4(cx: &mut Cx, inst: &Inst, rows: usize, depth: usize) {
    let (a, b) = (Format::Small(inst.f.cbsz), Format::Small(inst.f.blgp));
    mfma(cx, inst, Shape { rows, depth }, a, b);
}

macro_rules! m {
    ($op:literal $name:literal $sig:literal $rows:literal x $depth:literal $a:expr, $b:expr) => {
        def!($op, $name, $sig, Matrix, Sem::X(|cx, inst| mfma(cx, inst, Shape { rows: $rows, depth: $depth }, $a, $b)))
    };
}

fn copy(cx: &mut Cx, inst: &Inst) {
    let value = cx.lanes(&inst.s[0]);
    cx.spread_valid(inst);
    cx.write(inst.d.at(), &value);
}

/// Matrix instructions and moves to and from accumulation registers. Scaled forms are numbered 256 and up.
pub static MAI: &[Def] = &[
    def!(45, "v_mfma_f32_16x16x128_f8f6f4", "D4A8B8C4", Matrix, Sem::X(|cx, inst| f8f6f4(cx, inst, 16, 128))),
    def!(46, "v_mfma_f32_32x32x64_f8f6f4", "DgA8B8Cg", Matrix, Sem::X(|cx, inst| f8f6f4(cx, inst, 32, 64))),
    def!(
        301,
        "v_mfma_scale_f32_16x16x128_f8f6f4",
        "D4A8B8C4X1Y1",
        Matrix,
        Sem::X(|cx, inst| f8f6f4(cx, inst, 16, 128))
    ),
    def!(302, "v_mfma_scale_f32_32x32x64_f8f6f4", "DgA8B8CgX1Y1", Matrix, Sem::X(|cx, inst| f8f6f4(cx, inst, 32, 64))),
    m!(53 "v_mfma_f32_16x16x32_bf16" "D4A4B4C4" 16 x 32 Format::Bf16, Format::Bf16),
    m!(54 "v_mfma_i32_16x16x64_i8" "D4A4B4C4" 16 x 64 Format::I8, Format::I8),
    m!(55 "v_mfma_f32_32x32x16_bf16" "DgA4B4Cg" 32 x 16 Format::Bf16, Format::Bf16),
    m!(56 "v_mfma_i32_32x32x32_i8" "DgA4B4Cg" 32 x 32 Format::I8, Format::I8),
    m!(68 "v_mfma_f32_32x32x2_f32" "DgA1B1Cg" 32 x 2 Format::F32, Format::F32),
    m!(69 "v_mfma_f32_16x16x4_f32" "D4A1B1C4" 16 x 4 Format::F32, Format::F32),
    m!(76 "v_mfma_f32_32x32x8_f16" "DgA2B2Cg" 32 x 8 Format::F16, Format::F16),
    m!(77 "v_mfma_f32_16x16x16_f16" "D4A2B2C4" 16 x 16 Format::F16, Format::F16),
    m!(84 "v_mfma_f32_16x16x32_f16" "D4A4B4C4" 16 x 32 Format::F16, Format::F16),
    m!(85 "v_mfma_f32_32x32x16_f16" "DgA4B4Cg" 32 x 16 Format::F16, Format::F16),
    def!(88, "v_accvgpr_read_b32", "D1A1", Vector, Sem::X(copy)),
    def!(89, "v_accvgpr_write_b32", "D1A1", Vector, Sem::X(copy)),
    m!(96 "v_mfma_f32_32x32x8_bf16" "DgA2B2Cg" 32 x 8 Format::Bf16, Format::Bf16),
    m!(97 "v_mfma_f32_16x16x16_bf16" "D4A2B2C4" 16 x 16 Format::Bf16, Format::Bf16),
    m!(112 "v_mfma_f32_16x16x32_bf8_bf8" "D4A2B2C4" 16 x 32 Format::Bytes(1), Format::Bytes(1)),
    m!(113 "v_mfma_f32_16x16x32_bf8_fp8" "D4A2B2C4" 16 x 32 Format::Bytes(1), Format::Bytes(0)),
    m!(114 "v_mfma_f32_16x16x32_fp8_bf8" "D4A2B2C4" 16 x 32 Format::Bytes(0), Format::Bytes(1)),
    m!(115 "v_mfma_f32_16x16x32_fp8_fp8" "D4A2B2C4" 16 x 32 Format::Bytes(0), Format::Bytes(0)),
    m!(116 "v_mfma_f32_32x32x16_bf8_bf8" "DgA2B2Cg" 32 x 16 Format::Bytes(1), Format::Bytes(1)),
    m!(117 "v_mfma_f32_32x32x16_bf8_fp8" "DgA2B2Cg" 32 x 16 Format::Bytes(1), Format::Bytes(0)),
    m!(118 "v_mfma_f32_32x32x16_fp8_bf8" "DgA2B2Cg" 32 x 16 Format::Bytes(0), Format::Bytes(1)),
    m!(119 "v_mfma_f32_32x32x16_fp8_fp8" "DgA2B2Cg" 32 x 16 Format::Bytes(0), Format::Bytes(0)),
];
