//! Gate and up products and the activation of both in one launch (`gate_up` of `kernels/gemm_few.py` and `kernels/gemm_many.py`), in
//! programs of up to 64 tokens with bf16 factors.
//!
//! Found over a program's addresses, as all that [`gemm_few`] joins is: two products of the same rows without bias, of as many rows of
//! weights, and right behind them `silu_mul` or `situ_mul` of both. The launches in parts stay
//!
//! * where a memory plan puts the activation over rows that the products still read, or over a part of gate or up: tiles have no order. The
//!   engine's plans do not (`last_uses` of the graph), other hosts' may. Only rows that the program has count, places being those of the
//!   largest program;
//! * where one of the weights is quantised: the activation then leaves rows rounded for the product behind it, which a tile of this launch
//!   cannot, because a scale is for 32 columns and a wave makes 8;
//! * in programs of more tokens, of whose time a launch is little. Up to 64, two tiles of 32 rows do: however many columns there are, what L1
//!   serves for them takes 0.8 of the time that memory takes for the weights. More rows would want the higher tiles compiled as well;
//! * where sizes are no multiples of 16.
//!
//! Gate and up are stored as well, because who else reads them is not known here, but for one whose place the activation takes.

use tokenspeed_backend_api::{op::OpKind, sdk::Fault};

use super::{
    BoundOp, Operand, ahead, float,
    gemm_few::{self, Product, TILE, same},
    gemm_many, int,
};
use crate::kernel::Plan;

/// Most tokens of a program.
const MOST: u32 = 64;

/// Whether the activation may be made while others of its program's rows still are.
fn orderly(op: &BoundOp<'_>, x: &Operand, sides: [&Operand; 2], h: &Operand) -> bool {
    let apart = |o: &Operand| ahead::apart(&ahead::used(op, h), &ahead::used(op, o));
    apart(x) && sides.iter().all(|side| apart(side) || same(h, side))
}

/// Plans the launch for two products and the activation of both: whether it did.
pub(super) fn plan(
    op: &BoundOp<'_>,
    plan: &mut Plan<'_>,
    products: &[Product],
    next: Option<&BoundOp<'_>>,
) -> Result<bool, Fault> {
    let (&[first, second], Some(next)) = (products, next) else { return Ok(false) };
    let silu = match next.op.kind() {
        OpKind::SiluMul => true,
        OpKind::SituMul => false,
        _ => return Ok(false),
    };
    let [a, b, h] = next.operands else { return Ok(false) };
    let (gate, up) = match () {
        () if same(a, &first.y) && same(b, &second.y) => (first, second),
        () if same(a, &second.y) && same(b, &first.y) => (second, first),
        () => return Ok(false),
    };
    let tokens = op.capacity(&gate.x);
    let kept = gate.rows() == up.rows() && h.tensor.vary == gate.y.tensor.vary && !gate.fp8 && !up.fp8;
    if tokens > MOST || !kept || !orderly(op, &gate.x, [&gate.y, &up.y], h) {
        return Ok(false);
    }
    let [beta, linear] = [0, 1].map(|at| float(next.op.attrs().f[at]));
    let mut arguments = gate.input(op);
    arguments.extend([
        ("gate", gate.w.pointer()),
        ("up", up.w.pointer()),
        ("gates", gate.y.pointer()),
        ("ups", up.y.pointer()),
        ("h", h.pointer()),
        ("N", int(gate.rows())),
        ("ldg", int(gate.ldw())),
        ("ldu", int(up.ldw())),
        ("lda", gate.y.stride()),
        ("ldb", up.y.stride()),
        ("ldh", h.stride()),
        ("beta", beta),
        ("linear", linear),
        ("silu", int(usize::from(silu))),
        ("keep_gates", int(usize::from(!same(h, &gate.y)))),
        ("keep_ups", int(usize::from(!same(h, &up.y)))),
    ]);
    let columns = 2 * gate.rows();
    let (kernel, rows, tiles) = if gate.few(op) {
        ("gate_up_few".to_owned(), TILE as u32, columns.div_ceil(TILE))
    } else {
        let (rows, wide) = gemm_many::low_tile(tokens, columns);
        (format!("gate_up_{rows}x{wide}"), rows, gemm_many::columns(rows, columns.div_ceil(wide as usize)))
    };
    gemm_few::launch(op, plan, &kernel, (&gate, rows, tiles), &arguments)
}
