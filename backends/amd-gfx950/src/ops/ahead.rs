//! Rows in the format of factors, made ahead by the launch that makes the values.
//!
//! A product of e4m3 factors, or an expert's of bf16 ones, wants its rows rounded once for all its tiles of columns, in scratch of its own:
//! a launch. Some ops can leave that form of their result beside the f32 one, bit for bit what the launch would make. They *offer* it when
//! they are planned; an op that wants it *takes* it, which sets the earlier launch's arguments and spares the later one.
//!
//! The scratch is the later op's, and the memory plan may have put something else there while the earlier one runs. What lives through both
//! is elsewhere, so the scratch is free if it lies apart from all that the ops from the one that offers to the one that takes
//! touch. Only rows that the program has count: places are those of the largest program, so in small ones, where a launch tells, values that
//! share a place with scratch hardly reach it. Where they do, the launch stays.
//!
//! f32 rows are stored all the same: who else reads them (a router, gates that keep bf16 factors) is not known here. Rejected: rounding in
//! a product's prologue, which every tile of columns would do again; scratch of the earlier op, which is as free, and would be one
//! more area in every memory plan.

use std::ops::Range;

use tokenspeed_backend_api::graph::Vary;

use super::{BoundOp, Operand, gemm_few, gemm_fp8};
use crate::kernel::{Argument, Plan};

/// Formats of rows that a launch can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// bf16.
    Bf16,
    /// e4m3 with a scale for every 32 values.
    E4m3,
}

/// Arguments of a launch that say whether and where it leaves rows: a flag, rows, and for [`Form::E4m3`] scales.
const NAMES: [&str; 3] = ["rounds", "q", "s"];

#[derive(Clone, Debug)]
struct Offer {
    /// Index of the launch.
    launch: usize,
    form: Form,
    y: Operand,
    rows: Range<u64>,
    /// What ops from the one that offers on touch; empty while that one is being planned.
    touched: Vec<Range<u64>>,
}

/// What was offered and not taken yet.
#[derive(Debug, Default)]
pub struct Ahead {
    current: Vec<Range<u64>>,
    offers: Vec<Offer>,
}

/// No byte in common.
pub(super) fn apart(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.end <= b.start || b.end <= a.start
}

/// Bytes of so many rows at a place.
fn area(address: u64, rows: u32, row_bytes: usize) -> Range<u64> {
    address..address + u64::from(rows) * row_bytes as u64
}

/// What a program reads or writes of an operand.
pub(super) fn used(op: &BoundOp<'_>, o: &Operand) -> Range<u64> {
    let all = o.address..o.address + o.tensor.bytes as u64;
    match o.tensor.vary {
        Vary::Fixed => all,
        _ => o.address..all.end.min(area(o.address, op.capacity(o), o.tensor.row_bytes).end),
    }
}

/// An op's arguments for kernels that could leave rows as factors and so far are not told to.
pub(super) fn nowhere(y: &Operand) -> [(&'static str, Argument); 3] {
    [(NAMES[0], Argument::I32(0)), (NAMES[1], y.pointer()), (NAMES[2], y.pointer())]
}

impl Ahead {
    /// Planning goes on with this op.
    pub(super) fn enter(&mut self, op: &BoundOp<'_>) {
        let passed = std::mem::take(&mut self.current);
        self.offers.retain_mut(|offer| {
            // Whoever touches the rows may change them.
            let kept = offer.touched.is_empty() || passed.iter().all(|range| apart(range, &offer.rows));
            offer.touched.extend(passed.iter().cloned());
            kept
        });
        self.current.extend(op.operands.iter().map(|o| used(op, o)));
        self.current.push(op.workspace..op.workspace + op.op.workspace_bytes());
    }
}

/// The last launch can leave the rows of `y` in a format.
pub(super) fn offer(op: &BoundOp<'_>, plan: &mut Plan<'_>, y: &Operand, form: Form) {
    let launch = plan.launches.len() - 1;
    let rows = used(op, y);
    plan.ahead.offers.push(Offer { launch, form, y: *y, rows, touched: Vec::new() });
}

/// Whether an earlier launch leaves the rows of `x` in a format at these addresses of rows and scales.
pub(super) fn take(op: &BoundOp<'_>, plan: &mut Plan<'_>, x: &Operand, form: Form, [rows, scales]: [u64; 2]) -> bool {
    let (n, width) = (op.capacity(x), x.tensor.row_len());
    let places = match form {
        Form::Bf16 => [area(rows, n, 2 * width), scales..scales],
        Form::E4m3 => [area(rows, n, width), scales..scales + gemm_fp8::scale_bytes(n.into(), width)],
    };
    let fits = |offer: &Offer| {
        offer.form == form
            && gemm_few::same(&offer.y, x)
            && offer.touched.iter().all(|range| places.iter().all(|place| apart(range, place)))
    };
    let Some(at) = plan.ahead.offers.iter().rposition(fits) else { return false };
    let Offer { launch, .. } = plan.ahead.offers.remove(at);
    let values = [Argument::I32(1), Argument::Pointer(rows), Argument::Pointer(scales)];
    let count = if form == Form::Bf16 { 2 } else { 3 };
    let told = NAMES.into_iter().zip(values).take(count).collect::<Vec<_>>();
    plan.launches[launch].set(&told)
}
