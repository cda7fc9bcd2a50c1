"""Rows that products read: norms and gated activations, one program per row and panel of B columns; f32 throughout.

Sums of squares run over the whole row in one order that depends on the row's length alone, so a row's bits never depend on
its neighbours.

Where a launch would round the rows for a product of e4m3 factors, they are left in that form as well: q and s are what `fp8.quantise` would
make of y. They are written where `rounds` is 1, else not looked at.
"""

import triton
import triton.language as tl

import fp8
import step as st
from elementwise import sigmoid, situ


@triton.jit
def keep(v, y, q, s, t, first, D, ldy, rounds):
    """Stores a panel of row t from column `first` on, zeros behind column D, in y, and where `rounds` is 1 in q and s too."""
    c = first + tl.arange(0, v.shape[0])
    tl.store(y + t.to(tl.int64) * ldy + c, v, mask=c < D)
    if rounds == 1:
        fp8.panel(v, q, s, t, first, D)


@triton.jit
def gated(step, count_word, count_fixed, a, b, y, q, s, D, lda, ldb, ldy, beta, linear, rounds, OP: tl.constexpr, B: tl.constexpr):
    """y = silu(a) b or situ(a, b), both zero where a and b are; grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        first = tl.program_id(1) * B
        c = first + tl.arange(0, B)
        u = tl.load(a + t.to(tl.int64) * lda + c, mask=c < D, other=0.0)
        v = tl.load(b + t.to(tl.int64) * ldb + c, mask=c < D, other=0.0)
        if OP == "silu_mul":
            made = u * sigmoid(u) * v
        else:
            tl.static_assert(OP == "situ_mul")
            made = situ(u, v, beta, linear)
        keep(made, y, q, s, t, first, D, ldy, rounds)


@triton.jit
def rmsnorm(step, count_word, count_fixed, x, w, y, q, s, H, D, ldx, ldy, eps, rounds, ROUNDS: tl.constexpr, B: tl.constexpr):
    """y = x / sqrt(mean(x^2) + eps) * w per head of D; grid (rows, H). `rounds` is 1 only with ROUNDS and where a head is a row."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        h = tl.program_id(1)
        px = x + t.to(tl.int64) * ldx + h * D
        py = y + h * D
        squares = tl.zeros((B,), tl.float32)
        for at in range(0, D, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < D, other=0.0)
            squares += v * v
        scale = 1.0 / tl.sqrt_rn(tl.sum(squares) / D + eps)
        for at in range(0, D, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < D, other=0.0)
            g = tl.load(w + c, mask=c < D, other=0.0).to(tl.float32)
            keep(v * scale * g, py, q, s, t, at, D, ldy, rounds if ROUNDS else 0)


@triton.jit
def add_rmsnorm(step, count_word, count_fixed, x, residual, w, total, y, q, s, D, ldx, ldr, ldt, ldy, eps, rounds, B: tl.constexpr):
    """total = x + residual, y = rmsnorm(total) * w; grid (rows,). total may be x or residual."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        px = x + t.to(tl.int64) * ldx
        pr = residual + t.to(tl.int64) * ldr
        pt = total + t.to(tl.int64) * ldt
        squares = tl.zeros((B,), tl.float32)
        for at in range(0, D, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < D, other=0.0) + tl.load(pr + c, mask=c < D, other=0.0)
            squares += v * v
        scale = 1.0 / tl.sqrt_rn(tl.sum(squares) / D + eps)
        # The sum is formed again rather than read back: total may lie where x or residual does.
        for at in range(0, D, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < D, other=0.0) + tl.load(pr + c, mask=c < D, other=0.0)
            g = tl.load(w + c, mask=c < D, other=0.0).to(tl.float32)
            tl.store(pt + c, v, mask=c < D)
            keep(v * scale * g, y, q, s, t, at, D, ldy, rounds)
