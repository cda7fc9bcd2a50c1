"""Norms of one head: unit length, and root mean square behind a gate."""

import triton
import triton.language as tl

import step as st
import tree
from elementwise import sigmoid


@triton.jit
def unit(x, eps, scale):
    """x [N] times scale / sqrt(sum of squares + eps)."""
    return x * (scale / tl.sqrt_rn(tree.total(x * x) + eps))


@triton.jit
def gated(x, gate, w, D, eps):
    """rmsnorm of the D values of x, zeros behind them, times sigmoid(gate)."""
    return x * (1.0 / tl.sqrt_rn(tree.total(x * x) / D + eps)) * w * sigmoid(gate)


@triton.jit
def l2norm(step, count_word, count_fixed, x, y, H, D, ldx, ldy, eps, scale, B: tl.constexpr):
    """y = unit(x) per head of D <= B values; grid (rows, H). y may be x: a program reads its head before it writes."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.arange(0, B)
        at = tl.program_id(1) * D + c
        v = tl.load(x + t.to(tl.int64) * ldx + at, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + at, unit(v, eps, scale), mask=c < D)


@triton.jit
def gated_rmsnorm(step, count_word, count_fixed, x, gate, w, y, H, D, ldx, ldg, ldy, eps, B: tl.constexpr):
    """y = gated(x) per head of D <= B values; grid (rows, H)."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.arange(0, B)
        at = tl.program_id(1) * D + c
        v = tl.load(x + t.to(tl.int64) * ldx + at, mask=c < D, other=0.0)
        z = tl.load(gate + t.to(tl.int64) * ldg + at, mask=c < D, other=0.0)
        weight = tl.load(w + c, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + at, gated(v, z, weight, D, eps), mask=c < D)
