"""Products of at most 16 rows with bf16 weights: the bits of `gemm.linear`, with less around them and in fewer launches.

A wave makes 16 columns: weights and rows come from memory in the registers in which the matrix instruction takes them, RING steps
ahead, and nothing goes through LDS, so nothing waits for a neighbour. Steps of K, their order and the instruction are those
of `gemm.multiply`. Where a product is narrow (fewer tiles than compute units) the instructions of a wave would decide, no longer the
bytes: with these few, bytes do.

`several` makes the products of one input with up to six weights, which stay where they are: a tile belongs to one of them. Each alone
would have too few tiles to draw on all of the memory. `linear` adds a bias, or brings the residual stream forward. `gate_up` makes two
products and what a gated activation makes of them: rows of both weights alternate in a tile, so that both sides of a value meet
in one lane, and there are as many tiles as of two products side by side.

Rows, columns and steps outside are masked: nothing is fetched, and the hardware returns zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint

from elementwise import sigmoid, situ
from parts import of, place

# Values of K per step.
STEP = gl.constexpr(64)
# Rows and columns of a tile.
TILE = gl.constexpr(16)


@gluon.constexpr_function
def mfma_of(warps):
    return gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, warps])


@gluon.jit
def fetch(x, w, v, ox, ow, ov, mine, there, those, kx, kw, at, K, PAIR: gl.constexpr):
    """Rows and weights of the step `at`; nothing behind the last."""
    inside = (kw + at * STEP < K)[:, None]
    rows = cdna4.buffer_load(x, ox + at * STEP, mask=mine & (kx + at * STEP < K)[None, :])
    held = (rows, cdna4.buffer_load(w, ow + at * STEP, mask=there & inside, cache=".cg"))
    if PAIR:
        held = held + (cdna4.buffer_load(v, ov + at * STEP, mask=those & inside, cache=".cg"), )
    return held


@gluon.jit
def weights(held, PAIR: gl.constexpr):
    """Weights of a step; of a pair, each has zeros where the other one has columns."""
    if PAIR:
        return (held[1].to(gl.int16, bitcast=True) | held[2].to(gl.int16, bitcast=True)).to(gl.bfloat16, bitcast=True)
    else:
        return held[1]


@gluon.jit
def sums(x, w, ow, there, v, ov, those, rows, M, K, ldx, PAIR: gl.constexpr, RING: gl.constexpr):
    """Sums of 16 rows from `rows` on and 16 columns a wave, those that are `there` of weights w at offsets `ow`, with PAIR also
    `those` of v."""
    mfma: gl.constexpr = mfma_of(gl.num_warps())
    left: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    r = gl.arange(0, TILE, layout=gl.SliceLayout(1, left))
    kx = gl.arange(0, STEP, layout=gl.SliceLayout(0, left))
    kw = gl.arange(0, STEP, layout=gl.SliceLayout(1, right))
    px = x + rows.to(gl.int64) * ldx
    ox = r[:, None] * ldx + kx[None, :]
    ow = ow[None, :] + kw[:, None]
    ov = ov[None, :] + kw[:, None]
    mine = (rows + r < M)[:, None]
    there = there[None, :]
    those = those[None, :]
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + (fetch(px, w, v, ox, ow, ov, mine, there, those, kx, kw, j, K, PAIR), )
        hint.sched_barrier()
    acc = gl.zeros([TILE, TILE * gl.num_warps()], gl.float32, mfma)
    for start in range(0, K, RING * STEP):
        fresh = ()
        for j in gl.static_range(RING):
            acc = cdna4.mfma(ring[j][0].to(gl.bfloat16), weights(ring[j], PAIR), acc)
            hint.sched_barrier()
            fresh = fresh + (fetch(px, w, v, ox, ow, ov, mine, there, those, kx, kw, start // STEP + j + RING, K, PAIR), )
            hint.sched_barrier()
        ring = fresh
    return acc


@gluon.jit
def product(x, w, rows, first, M, N, K, ldx, ldw, RING: gl.constexpr):
    """Sums of 16 rows from `rows` on and 16 columns a wave from `first` on."""
    right: gl.constexpr = gl.DotOperandLayout(1, mfma_of(gl.num_warps()), 8)
    n = gl.arange(0, TILE * gl.num_warps(), layout=gl.SliceLayout(0, right))
    there = first + n < N
    w = w + first.to(gl.int64) * ldw
    return sums(x, w, n * ldw, there, w, n, there, rows, M, K, ldx, False, RING)


@gluon.jit
def alternate(gate, up, first, N, ldg, ldu, COLUMNS: gl.constexpr):
    """For `sums` with PAIR: of each weight the first row, offsets and which columns are its own; columns of a tile are rows of gate and
    up in turn, from `first` on."""
    j = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, gl.DotOperandLayout(1, mfma_of(gl.num_warps()), 8)))
    n = j // 2
    inside = first + n < N
    at = first.to(gl.int64)
    return gate + at * ldg, n * ldg, inside & (j % 2 == 0), up + at * ldu, n * ldu, inside & (j % 2 == 1)


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


@gluon.jit
def activate(acc, gates, ups, h, rows, first, M, N, lda, ldb, ldh, beta, linear, silu, keep_gates, keep_ups):
    """Stores what silu(gate) up, where `silu` is 1, or else situ(gate, up) makes of sums whose columns are gate and up in turn; and
    sums themselves where they are to be kept."""
    a, b = gl.split(gl.reshape(acc, [acc.shape[0], acc.shape[1] // 2, 2]))
    finish(a, gates, gates, gates, gates, rows, first, M, N, lda, lda, lda, 0, 0, keep_gates)
    finish(b, ups, ups, ups, ups, rows, first, M, N, ldb, ldb, ldb, 0, 0, keep_ups)
    if silu == 1:
        finish(a * sigmoid(a) * b, h, h, h, h, rows, first, M, N, ldh, ldh, ldh, 0, 0, 1)
    else:
        finish(situ(a, b, beta, linear), h, h, h, h, rows, first, M, N, ldh, ldh, ldh, 0, 0, 1)


@gluon.jit
def gate_up(step, count_word, count_fixed, x, gate, up, gates, ups, h, N, K, ldx, ldg, ldu, lda, ldb, ldh, beta, linear, silu, keep_gates,
            keep_ups, RING: gl.constexpr):
    """gates[M, N] = x[M, K] . gate[N, K]^T, ups = x . up^T and h of both, as `activate` is told; grid (ceil(rows / 16), ceil(2 N / 16)),
    a wave each. The rest is as for `linear`."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * TILE
    if rows < M:
        first = gl.program_id(1) * (TILE // 2)
        w, ow, there, v, ov, those = alternate(gate, up, first, N, ldg, ldu, TILE)
        acc = sums(x, w, ow, there, v, ov, those, rows, M, K, ldx, True, RING)
        activate(acc, gates, ups, h, rows, first, M, N, lda, ldb, ldh, beta, linear, silu, keep_gates, keep_ups)
