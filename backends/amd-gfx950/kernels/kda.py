"""Kimi Delta Attention token by token: the decay gate and the recurrence, whose one routine every form of it runs.

The state is V-major, S[v][k], so both dot products of a token run along contiguous keys; sums are trees (see `tree`), so the bits
do not depend on how a head's values are cut into tiles. Nothing is contracted by the compiler: what replays a token gives the
bits of what decoded it.
"""

import triton
import triton.language as tl

import step as st
import tree
from elementwise import LOG2_E, sigmoid


@triton.jit
def softplus(z):
    """log(1 + e^z), accurate in both tails; the correction factor makes up for what 1 + t lost."""
    t = tl.exp2(-tl.abs(z) * LOG2_E)
    u = 1.0 + t
    return tl.maximum(z, 0.0) + tl.where(u == 1.0, t, tl.log2(u) / LOG2_E * (t / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def log_decay(f, a_log, dt_bias, bounded, bound):
    """The gate's log decay: bound * sigmoid(a z), or -a softplus(z)."""
    z = f + dt_bias
    a = tl.exp2(a_log * LOG2_E)
    return tl.where(bounded == 1, bound * sigmoid(a * z), -a * softplus(z))


@triton.jit
def token(s, q, k, v, g, beta):
    """One token of one head: s [V, K], q, k, g [K], v [V]; returns the new state and o [V]."""
    s = s * tl.exp2(g * LOG2_E)[None, :]
    u = beta * (v - tree.rows(s * k[None, :]))
    s = tl.fma(tl.broadcast_to(u[:, None], s.shape), tl.broadcast_to(k[None, :], s.shape), s)
    return s, tree.rows(s * q[None, :])


@triton.jit
def gate(step, count_word, count_fixed, f, a_log, dt_bias, g, C, K, ldf, ldg, bounded, bound, B: tl.constexpr):
    """g = log_decay(f) for C = H K channels; grid (rows, ceil(C / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < C
        x = tl.load(f + t.to(tl.int64) * ldf + c, mask=inside, other=0.0)
        a = tl.load(a_log + c // K, mask=inside, other=0.0)
        bias = tl.load(dt_bias + c, mask=inside, other=0.0)
        tl.store(g + t.to(tl.int64) * ldg + c, log_decay(x, a, bias, bounded, bound), mask=inside)


@triton.jit
def tokens(s, q, k, v, g, beta, o, first, n, head, ck, cv, K, V, ldq, ldk, ldv, ldg, ldb, ldo):
    """Tokens first .. first + n of a head, one after the other; returns the state behind the last."""
    in_k, in_v = ck < K, cv < V
    for t in range(first, first + n):
        row = t.to(tl.int64)
        at_k, at_v = head * K + ck, head * V + cv
        x_k = tl.load(k + row * ldk + at_k, mask=in_k, other=0.0)
        x_g = tl.load(g + row * ldg + at_k, mask=in_k, other=0.0)
        x_q = tl.load(q + row * ldq + at_k, mask=in_k, other=0.0)
        x_v = tl.load(v + row * ldv + at_v, mask=in_v, other=0.0)
        x_b = tl.load(beta + row * ldb + head)
        s, out = token(s, x_q, x_k, x_v, x_g, x_b)
        tl.store(o + row * ldo + at_v, out, mask=in_v)
    return s


@triton.jit
def recurrence(step, q, k, v, g, beta, state, o, K, V, ldq, ldk, ldv, ldg, ldb, lds, ldo, KEEP: tl.constexpr, BK: tl.constexpr,
               BV: tl.constexpr):
    """A request's tokens over BV values of a head, K <= BK; grid (requests, H, ceil(V / BV)).

    The state is read from one slot and, with KEEP, left in another or the same: programs own disjoint parts of a slot. Without
    KEEP it is never written, and o has the same bits. `lds` is a slot's stride.
    """
    r = tl.program_id(0)
    if r < tl.load(step + st.N_ROWS):
        row = st.requests_at(step) + r * st.ROW_WORDS
        head = tl.program_id(1)
        ck = tl.arange(0, BK)
        cv = tl.program_id(2) * BV + tl.arange(0, BV)
        inside = (cv[:, None] < V) & (ck[None, :] < K)
        at = (head * V + cv[:, None]) * K + ck[None, :]
        read = state + tl.load(row + 4).to(tl.int64) * lds
        s = tl.load(read + at, mask=inside & (tl.load(row + 1) != 0), other=0.0)
        s = tokens(s, q, k, v, g, beta, o, tl.load(row + 2), tl.load(row + 3), head, ck, cv, K, V, ldq, ldk, ldv, ldg, ldb, ldo)
        if KEEP:
            slot = tl.load(row + 5)
            if slot != 0:
                tl.store(state + slot.to(tl.int64) * lds + at, s, mask=inside)
