"""Products of at most 16 rows with bf16 weights: the bits of `gemm.linear`, with less around them and in fewer launches.

A wave makes 16 columns: weights and rows come from memory in the registers in which the matrix instruction takes them, RING steps
ahead, and nothing goes through LDS, so nothing waits for a neighbour. Steps of K, their order and the instruction are those
of `gemm.multiply`. Where a product is narrow (fewer tiles than compute units) the instructions of a wave would decide, no longer the
bytes: with these few, bytes do.

`several` makes the products of one input with up to six weights, which stay where they are: a tile belongs to one of them. Each alone
would have too few tiles to draw on all of the memory. `linear` adds a bias, or brings the residual stream forward.

Rows, columns and steps outside are masked: nothing is fetched, and the hardware returns zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint

from parts import of, place

# Values of K per step.
STEP = gl.constexpr(64)
# Rows and columns of a tile.
TILE = gl.constexpr(16)


@gluon.constexpr_function
def mfma_of(warps):
    return gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, warps])


@gluon.jit
def fetch(x, w, ox, ow, mine, there, kx, kw, at, K):
    """Rows and weights of the step `at`; nothing behind the last."""
    return (cdna4.buffer_load(x, ox + at * STEP, mask=mine & (kx + at * STEP < K)[None, :]),
            cdna4.buffer_load(w, ow + at * STEP, mask=there & (kw + at * STEP < K)[:, None], cache=".cg"))


@gluon.jit
def product(x, w, rows, first, M, N, K, ldx, ldw, RING: gl.constexpr):
    """Sums of 16 rows from `rows` on and 16 columns a wave from `first` on."""
    mfma: gl.constexpr = mfma_of(gl.num_warps())
    left: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    r = gl.arange(0, TILE, layout=gl.SliceLayout(1, left))
    columns: gl.constexpr = TILE * gl.num_warps()
    n = gl.arange(0, columns, layout=gl.SliceLayout(0, right))
    kx = gl.arange(0, STEP, layout=gl.SliceLayout(0, left))
    kw = gl.arange(0, STEP, layout=gl.SliceLayout(1, right))
    px = x + rows.to(gl.int64) * ldx
    pw = w + first.to(gl.int64) * ldw
    ox = r[:, None] * ldx + kx[None, :]
    ow = n[None, :] * ldw + kw[:, None]
    mine = (rows + r < M)[:, None]
    there = (first + n < N)[None, :]
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + fetch(px, pw, ox, ow, mine, there, kx, kw, j, K)
        hint.sched_barrier()
    acc = gl.zeros([TILE, columns], gl.float32, mfma)
    for start in range(0, K, RING * STEP):
        fresh = ()
        for j in gl.static_range(RING):
            acc = cdna4.mfma(ring[2 * j].to(gl.bfloat16), ring[2 * j + 1], acc)
            hint.sched_barrier()
            fresh = fresh + fetch(px, pw, ox, ow, mine, there, kx, kw, start // STEP + j + RING, K)
            hint.sched_barrier()
        ring = fresh
    return acc


@gluon.jit
def finish(acc, bias, before, total, y, rows, first, M, N, ldb, ldt, ldy, biased, add, keep):
    """Stores sums where `keep` is 1, plus bias where `biased` is; where `add` is, also `before` plus them in `total`."""
    layout: gl.constexpr = acc.type.layout
    n = first + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    m = rows + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, layout))
    inside = (m < M)[:, None] & (n < N)[None, :]
    if biased == 1:
        acc = acc + gl.load(bias + n, mask=n < N, other=0.0)[None, :]
    wide = m.to(gl.int64)[:, None]
    if keep == 1:
        gl.store(y + wide * ldy + n[None, :], acc, mask=inside)
    if add == 1:
        old = gl.load(before + wide * ldb + n[None, :], mask=inside, other=0.0)
        gl.store(total + wide * ldt + n[None, :], old + acc, mask=inside)


@gluon.jit
def linear(step, count_word, count_fixed, x, w, bias, before, total, y, N, K, ldx, ldw, ldb, ldt, ldy, biased, add, keep,
           RING: gl.constexpr):
    """y[M, N] = x[M, K] . w[N, K]^T (+ bias), factors rounded to bf16, and total = before + y, as `finish` is told; grid (ceil(rows / 16),
    ceil(N / 16)), a wave each. K and leading dimensions are multiples of 16; 16 rows of either are smaller than 2 GiB. Pointers that
    are not asked for are not read."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * TILE
    if rows < M:
        first = gl.program_id(1) * TILE
        acc = product(x, w, rows, first, M, N, K, ldx, ldw, RING)
        finish(acc, bias, before, total, y, rows, first, M, N, ldb, ldt, ldy, biased, add, keep)


@gluon.jit
def several(step, count_word, count_fixed, x, w0, w1, w2, w3, w4, w5, y0, y1, y2, y3, y4, y5, n0, n1, n2, n3, n4, n5, lw0, lw1, lw2,
            lw3, lw4, lw5, ly0, ly1, ly2, ly3, ly4, ly5, K, ldx, RING: gl.constexpr):
    """yi[M, ni] = x[M, K] . wi[ni, K]^T; grid (ceil(rows / 16), sum of ceil(ni / 16)), ni being 0 for those that are not there."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * TILE
    if rows < M:
        tile = gl.program_id(1)
        e0, e1, e2, e3, e4, start = place(tile, n0, n1, n2, n3, n4, TILE)
        N = of(tile, e0, e1, e2, e3, e4, n0, n1, n2, n3, n4, n5)
        # What is chosen loses what is known of it: without the promises, weights come two bytes at a time.
        w = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, w0, w1, w2, w3, w4, w5), 16)
        y = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, y0, y1, y2, y3, y4, y5), 16)
        ldw = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, lw0, lw1, lw2, lw3, lw4, lw5), 16)
        ldy = of(tile, e0, e1, e2, e3, e4, ly0, ly1, ly2, ly3, ly4, ly5)
        first = (tile - start) * TILE
        acc = product(x, w, rows, first, M, N, K, ldx, ldw, RING)
        finish(acc, y, y, y, y, rows, first, M, N, ldy, ldy, ldy, 0, 0, 1)
