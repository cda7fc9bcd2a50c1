"""The MLPs of the chosen experts, portable form: `up` (gate, up, activation), `down`, `combine`.

Rows of a tile are routes of one expert (see `routes`): sorted tiles of BM routes, or one route that is walked to directly.
Whatever the tile, a route's sums run over K in the same order by the same instruction, and a token's routes are added in their
own order, so that a token's bits depend neither on its neighbours nor on how many there are.

MXFP4 weights are used as they lie in a checkpoint: two values per byte, the first in the low nibble, and one E8M0 byte per 32
values of a row. Such a value is exact in bf16. With EXACT an f32 factor is multiplied as the sum of three bf16 numbers, which
hold all its 24 bits. Products of routes lie between `down` and `combine` in the format of factors: bf16, with EXACT f32.

Rows of a tile beyond its routes repeat a route that is there; with SPARE they are zeros instead, and nothing is fetched for
them. That takes masks along both axes, for which variants that load single elements have too few registers.
"""

import triton
import triton.language as tl

import routes
import step as st
from elementwise import sigmoid, situ


@triton.jit
def product(a, w, scales, rn, at, N, K, acc, MX: tl.constexpr, EXACT: tl.constexpr, BK: tl.constexpr):
    """acc + a . w[rn, at : at + BK]^T; columns from K on are zeros and are not read. Rows from N on repeat row N - 1: what they
    give is not stored, and a bound on one axis alone keeps masks few."""
    wide = tl.minimum(rn, N - 1).to(tl.int64)
    if MX:
        half, group = tl.arange(0, BK // 2), tl.arange(0, BK // 32)
        KB, KS = K // 2, K // 32
        b = tl.load(w + wide[None, :] * KB + (at // 2 + half)[:, None], mask=(at // 2 + half < KB)[:, None], other=0)
        e = tl.load(scales + wide[:, None] * KS + (at // 32 + group)[None, :], mask=(at // 32 + group < KS)[None, :], other=127)
        high = a.to(tl.bfloat16)
        acc = tl.dot_scaled(high, None, "bf16", b, e, "e2m1", acc)
        if EXACT:
            rest = a - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            acc = tl.dot_scaled(middle, None, "bf16", b, e, "e2m1", acc)
            acc = tl.dot_scaled((rest - middle.to(tl.float32)).to(tl.bfloat16), None, "bf16", b, e, "e2m1", acc)
    else:
        rk = at + tl.arange(0, BK)
        b = tl.load(w + wide[None, :] * K + rk[:, None], mask=(rk < K)[:, None], other=0.0)
        if EXACT:
            acc = tl.dot(a, b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return acc


@triton.jit
def activate(gate, up, beta, linear, act):
    """silu(gate) up, or situ where `act` is 1."""
    return tl.where(act == 1, situ(gate, up, beta, linear), gate * sigmoid(gate) * up)


@triton.jit
def up(step, count_word, count_fixed, x, ids, slots, w1, w3, s1, s3, tiles, order, h, k, N, K, ldx, ldi, pitch1, pitch3,
       spitch1, spitch3, act, beta, linear, SORTED: tl.constexpr, SPARE: tl.constexpr, MX: tl.constexpr, EXACT: tl.constexpr,
       BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """h[route, n] = act(w1 x, w3 x); grid (tiles or more, ceil(N / BN)). Pitches in elements per expert."""
    rows = st.rows_of(step, count_word, count_fixed)
    p = tl.program_id(0)
    if p < routes.tile_count(rows, tiles, k, SORTED):
        route, mine = routes.tile_at(tiles, order, p, SORTED, BM)
        wanted = mine if SPARE else tl.full((BM,), True, tl.int1)
        slot = tl.load(slots + routes.expert_of(tiles, ids, p, k, ldi, SORTED)).to(tl.int64)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        px = x + (route // k).to(tl.int64)[:, None] * ldx + rk[None, :]
        gate = tl.zeros((BM, BN), tl.float32)
        other = tl.zeros((BM, BN), tl.float32)
        for at in range(0, K, BK):
            a = tl.load(px + at, mask=wanted[:, None] & (at + rk < K)[None, :], other=0.0)
            gate = product(a, w1 + slot * pitch1, s1 + slot * spitch1, rn, at, N, K, gate, MX, EXACT, BK)
            other = product(a, w3 + slot * pitch3, s3 + slot * spitch3, rn, at, N, K, other, MX, EXACT, BK)
        value = activate(gate, other, beta, linear, act)
        tl.store(h + route.to(tl.int64)[:, None] * N + rn[None, :], value.to(h.dtype.element_ty),
                 mask=mine[:, None] & (rn < N)[None, :])


@triton.jit
def down(step, count_word, count_fixed, h, ids, slots, w2, s2, tiles, order, o, k, N, K, first, width, ldi, pitch, spitch,
         SORTED: tl.constexpr, SPARE: tl.constexpr, MX: tl.constexpr, EXACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
         BK: tl.constexpr):
    """o[route, c] = w2[first + c] h[route], c < width; grid (tiles or more, ceil(width / BN))."""
    rows = st.rows_of(step, count_word, count_fixed)
    p = tl.program_id(0)
    if p < routes.tile_count(rows, tiles, k, SORTED):
        route, mine = routes.tile_at(tiles, order, p, SORTED, BM)
        wanted = mine if SPARE else tl.full((BM,), True, tl.int1)
        slot = tl.load(slots + routes.expert_of(tiles, ids, p, k, ldi, SORTED)).to(tl.int64)
        c = tl.program_id(1) * BN + tl.arange(0, BN)
        end = tl.minimum(K, first + width)
        rk = tl.arange(0, BK)
        ph = h + route.to(tl.int64)[:, None] * N + rk[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for at in range(0, N, BK):
            a = tl.load(ph + at, mask=wanted[:, None] & (at + rk < N)[None, :], other=0.0)
            acc = product(a, w2 + slot * pitch, s2 + slot * spitch, first + c, at, end, N, acc, MX, EXACT, BK)
        tl.store(o + route.to(tl.int64)[:, None] * width + c[None, :], acc.to(o.dtype.element_ty),
                 mask=mine[:, None] & (first + c < end)[None, :])


@triton.jit
def combine(step, count_word, count_fixed, o, weights, y, k, first, width, ldw, ldy, B: tl.constexpr):
    """y[t, first + c] = sum_i weights[t, i] o[t k + i, c], i in order, c < width; grid (rows, ceil(width / B)). Columns of a slab
    are columns of y."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < width
        total = tl.zeros((B,), tl.float32)
        # Loads of several routes at a time, since each comes from afar.
        for i in tl.range(0, k, loop_unroll_factor=8):
            weight = tl.load(weights + t.to(tl.int64) * ldw + i)
            route = (t * k + i).to(tl.int64)
            product = tl.load(o + route * width + c, mask=inside, other=0.0).to(tl.float32)
            total = tl.fma(weight + tl.zeros((B,), tl.float32), product, total)
        tl.store(y + t.to(tl.int64) * ldy + first + c, total, mask=inside)
