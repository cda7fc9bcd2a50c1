"""Ops on values one by one, and functions for others: one program per row and panel of B columns; f32 throughout."""

import triton
import triton.language as tl

import step as st

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), finite for every x."""
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit
def tanh(x):
    """Within 3e-7 of itself everywhere: an odd polynomial up to 0.55, exponentials beyond, finite for every x."""
    z = x * x
    small = x + x * z * (-0.3333333134651184 + z * (0.13333123922348022 + z * (-0.05391136556863785 + z * (
        0.021320803090929985 + z * -0.006631044205278158))))
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    large = (1.0 - e) / (1.0 + e)
    return tl.where(z < 0.3, small, tl.where(x < 0.0, -large, large))


@triton.jit
def situ(gate, up, beta, linear):
    """beta tanh(gate / beta) sigmoid(gate) times linear tanh(up / linear), or times up if linear is 0."""
    capped = linear * tanh(up / tl.where(linear == 0.0, 1.0, linear))
    return beta * tanh(gate / beta) * sigmoid(gate) * tl.where(linear == 0.0, up, capped)


@triton.jit
def apply(a, b, OP: tl.constexpr):
    if OP == "add":
        return a + b
    elif OP == "mul":
        return a * b
    elif OP == "silu":
        return a * sigmoid(a)
    elif OP == "sigmoid":
        return sigmoid(a)
    else:
        tl.static_assert(OP == "sigmoid_mul")
        return sigmoid(a) * b


@triton.jit
def unary(step, count_word, count_fixed, x, y, D, ldx, ldy, OP: tl.constexpr, B: tl.constexpr):
    """y = f(x); grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + c, apply(v, v, OP), mask=c < D)


@triton.jit
def binary(step, count_word, count_fixed, a, b, y, D, lda, ldb, ldy, OP: tl.constexpr, B: tl.constexpr):
    """y = f(a, b); grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        u = tl.load(a + t.to(tl.int64) * lda + c, mask=c < D, other=0.0)
        v = tl.load(b + t.to(tl.int64) * ldb + c, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + c, apply(u, v, OP), mask=c < D)


@triton.jit
def convert(step, count_word, count_fixed, x, y, D, ldx, ldy, B: tl.constexpr):
    """y = x in y's format, to nearest even; e4m3 saturates; grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + c, rounded(v, y.dtype.element_ty), mask=c < D)


@triton.jit
def rounded(v, kind: tl.constexpr):
    """v in another format; e4m3 saturates at its largest number, a NaN stays one."""
    v = v.to(tl.float32)
    if kind == tl.float8e4nv:
        v = tl.where(v == v, tl.minimum(tl.maximum(v, -448.0), 448.0), v)
    return v.to(kind)
