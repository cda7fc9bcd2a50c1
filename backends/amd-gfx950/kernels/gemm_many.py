"""Products of more than 16 rows with bf16 weights, gate and up with their activation, and the way into and out of experts with such: the bits of
`gemm.linear`, `elementwise` and `moe_edges`.

As in `gemm_few`, a wave takes its columns of weights from memory in the registers in which the matrix instruction wants them, RING
steps ahead. Rows, which all waves of a work-group want, come as far ahead, in whole lines, and are rounded on their way into one of two LDS
buffers of a step, whose chunks are permuted so that neither reads nor writes meet a bank twice. Steps of K, their order and the
instruction are those of `gemm.multiply`.

L1 delivers 64 bytes a cycle, and for every value of K a tile takes four of each row and two of each column: of tiles of 2,048 results
32 x 64 has the least, 256 bytes, beside 320 of 64 x 32 or 16 x 128. Rejected: rows rounded by a launch before, which costs more than it
saves. Weights are fetched once for every tile of rows. Those that share them run side by side on one die, whose L2 has them from
memory once: they are as many work-groups apart as there are dies.

Prompts take tiles of 128 x 256, for which L1 needs as many cycles as matrix units: 1,024 a step. With twice the rows it would need three
quarters of them, but 8,192 rows of 6,288 columns are 3.1 such tiles for each compute unit, 6.3 of the others, and the last round counts
whole. Rows rounded by a launch before would take a third off L1, which is not what is short then, for 46 us on top of 289. The
work-groups that a die runs at a time are 8 tiles of rows by 4 of columns, 6 KiB for a value of K; a column of 32 tiles would be 17.

Rows, columns and steps outside are masked: nothing is fetched, and the hardware returns zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint, slice

import tree
from elementwise import situ
from experts_mxfp4 import DIES
from gemm_few import STEP, activate, alternate, finish, mfma_of
from parts import of, place

# Rows of tiles that go round in bands.
TALL = gl.constexpr(128)
# Tiles of rows of a band.
BAND = gl.constexpr(8)
# Rows that a tall tile stores at a time.
PIECE = gl.constexpr(32)


@gluon.jit
def tile_of(M, BM: gl.constexpr):
    """Tile of rows and tile of columns of a work-group, rows beyond M for those that have none. The grid of low tiles has columns in
    whole rounds of dies."""
    i = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    if BM < TALL:
        rows = gl.num_programs(0)
        return i % (rows * DIES) // DIES, i // (rows * DIES) * DIES + i % DIES
    else:
        rows = (M + BM - 1) // BM
        columns = gl.num_programs(1)
        n = rows * columns
        extra = n % DIES
        own = i % DIES * (n // DIES) + gl.minimum(i % DIES, extra) + i // DIES
        band = own // (BAND * columns)
        height = gl.maximum(gl.minimum(rows - band * BAND, BAND), 1)
        left = own - band * BAND * columns
        return gl.where(i < n, band * BAND + left % height, rows), left // height


@gluon.constexpr_function
def come_of(warps):
    """How rows come: a step of one in 16 lanes, whole lines."""
    return gl.BlockedLayout([1, 4], [4, 16], [warps, 1], [1, 0])


@gluon.jit
def buffers(BM: gl.constexpr):
    """Two LDS buffers of a step of BM rows. A row has half of the banks, in 8 chunks, which every other row permutes."""
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 8, [1, 0])
    return (gl.allocate_shared_memory(gl.bfloat16, [BM, STEP], shared), gl.allocate_shared_memory(gl.bfloat16, [BM, STEP], shared))


@gluon.jit
def fetch(px, ox, mine, norm, w, ow, there, v, ov, those, at, K, PAIR: gl.constexpr, NORM: gl.constexpr):
    """What a step takes from memory; nothing behind the last."""
    warps: gl.constexpr = gl.num_warps()
    k = at * STEP + gl.arange(0, STEP, layout=gl.SliceLayout(0, come_of(warps)))
    kw = at * STEP + gl.arange(0, STEP, layout=gl.SliceLayout(1, gl.DotOperandLayout(1, mfma_of(warps), 8)))
    held = (cdna4.buffer_load(px, ox + at * STEP, mask=mine & (k < K)[None, :]), )
    if NORM:
        held = held + (cdna4.buffer_load(norm, k, mask=k < K), )
    held = held + (cdna4.buffer_load(w, ow + at * STEP, mask=there & (kw < K)[:, None]), )
    if PAIR:
        held = held + (cdna4.buffer_load(v, ov + at * STEP, mask=those & (kw < K)[:, None]), )
    return held


@gluon.jit
def ready(held, squares, NORM: gl.constexpr):
    """Factors of a step, and sums of squares with those of its rows."""
    rows = held[0]
    if NORM:
        squares = gl.fma(rows, rows, squares)
        rows = rows * held[1][None, :]
    return rows.to(gl.bfloat16), squares


@gluon.jit
def weights(held, PAIR: gl.constexpr, NORM: gl.constexpr):
    """Weights of a step; of a pair, each has zeros where the other one has columns."""
    if PAIR:
        return (held[1].to(gl.int16, bitcast=True) | held[2].to(gl.int16, bitcast=True)).to(gl.bfloat16, bitcast=True)
    else:
        return held[1 + NORM]


@gluon.jit
def sums(acc, lds, x, norm, w, ow, there, v, ov, those, rows, M, K, ldx, PAIR: gl.constexpr, NORM: gl.constexpr, RING: gl.constexpr):
    """`acc` with sums over K of rows from `rows` on, times `norm` with NORM, and columns `there` of weights w at offsets `ow`, with PAIR
    also `those` of v; behind it squares of rows, by value of a step, with NORM. RING is even."""
    warps: gl.constexpr = gl.num_warps()
    BM: gl.constexpr = acc.shape[0]
    come: gl.constexpr = come_of(warps)
    left: gl.constexpr = gl.DotOperandLayout(0, mfma_of(warps), 8)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma_of(warps), 8)
    r = gl.arange(0, BM, layout=gl.SliceLayout(1, come))
    ox = r[:, None] * ldx + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
    px = x + rows.to(gl.int64) * ldx
    mine = (rows + r < M)[:, None]
    kw = gl.arange(0, STEP, layout=gl.SliceLayout(1, right))[:, None]
    ow = ow[None, :] + kw
    ov = ov[None, :] + kw
    there = there[None, :]
    those = those[None, :]
    squares = gl.zeros([BM, STEP], gl.float32, come)
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + (fetch(px, ox, mine, norm, w, ow, there, v, ov, those, j, K, PAIR, NORM), )
        hint.sched_barrier()
    factors, squares = ready(ring[0], squares, NORM)
    lds[0].store(factors)
    for start in range(0, (K + STEP - 1) // STEP, RING):
        fresh = ()
        for j in gl.static_range(RING):
            acc = cdna4.mfma(lds[j % 2].load(left), weights(ring[j], PAIR, NORM), acc)
            # Behind the last use of what was held, so that the new values may come into the same registers.
            hint.sched_barrier()
            fresh = fresh + (fetch(px, ox, mine, norm, w, ow, there, v, ov, those, start + j + RING, K, PAIR, NORM), )
            hint.sched_barrier()
            if j + 1 < RING:
                factors, squares = ready(ring[j + 1], squares, NORM)
            else:
                factors, squares = ready(fresh[0], squares, NORM)
            lds[(j + 1) % 2].store(factors)
            hint.sched_barrier()
        ring = fresh
    return acc, squares


@gluon.jit
def product(x, w, rows, first, M, N, K, ldx, ldw, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """Sums of BM rows from `rows` on and BN columns from `first` on."""
    mfma: gl.constexpr = mfma_of(gl.num_warps())
    n = gl.arange(0, BN, layout=gl.SliceLayout(0, gl.DotOperandLayout(1, mfma, 8)))
    there = first + n < N
    w = w + first.to(gl.int64) * ldw
    acc = gl.zeros([BM, BN], gl.float32, mfma)
    acc, _ = sums(acc, buffers(BM), x, x, w, n * ldw, there, w, n, there, rows, M, K, ldx, False, False, RING)
    return acc


@gluon.jit
def leave(acc, bias, before, total, y, rows, first, M, N, ldb, ldt, ldy, biased, add, keep, q=None, rounds=0):
    """`finish`, and where `rounds` is 1 the sums in bf16 in q, whose rows touch. Tall tiles go PIECE rows at a time, a row of lanes at a
    stretch of memory however columns divide; what is masked has no address, where a branch a value would take more scalar registers
    than there are."""
    BM: gl.constexpr = acc.shape[0]
    if BM < TALL:
        finish(acc, bias, before, total, y, rows, first, M, N, ldb, ldt, ldy, biased, add, keep)
        if q is not None:
            if rounds == 1:
                finish(acc.to(gl.bfloat16), q, q, q, q, rows, first, M, N, N, N, N, 0, 0, 1)
    else:
        flat: gl.constexpr = gl.BlockedLayout([1, 1], [1, 64], [gl.num_warps(), 1], [1, 0])
        n = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, flat))
        there = first + n < N
        at = rows.to(gl.int64)
        py, pb, pt = y + at * ldy + first, before + at * ldb + first, total + at * ldt + first
        for i in gl.static_range(BM // PIECE):
            part = gl.convert_layout(slice(acc, [PIECE, acc.shape[1]], [i * PIECE, 0]), flat)
            m = i * PIECE + gl.arange(0, PIECE, layout=gl.SliceLayout(1, flat))
            inside = (rows + m < M)[:, None] & there[None, :]
            if biased == 1:
                part = part + cdna4.buffer_load(bias + first, n, mask=there)[None, :]
            if keep == 1:
                cdna4.buffer_store(part, py, m[:, None] * ldy + n[None, :], mask=inside)
            if q is not None:
                if rounds == 1:
                    cdna4.buffer_store(part.to(gl.bfloat16), q + at * N + first, m[:, None] * N + n[None, :], mask=inside)
            if add == 1:
                old = cdna4.buffer_load(pb, m[:, None] * ldb + n[None, :], mask=inside)
                cdna4.buffer_store(old + part, pt, m[:, None] * ldt + n[None, :], mask=inside)
            hint.sched_barrier()


@gluon.jit
def linear(step, count_word, count_fixed, x, w, bias, before, total, y, N, K, ldx, ldw, ldb, ldt, ldy, biased, add, keep,
           BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`gemm_few.linear` in tiles of BM rows and BN columns, 16 or 32 per wave; grid (ceil(rows / BM), ceil(N / BN)), of low tiles in whole
    eights of columns. K and leading dimensions are multiples of 16; BM rows of x and results and BN of w are smaller than 2 GiB."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    tm, tn = tile_of(M, BM)
    if (tm * BM < M) & (tn * BN < N):
        acc = product(x, w, tm * BM, tn * BN, M, N, K, ldx, ldw, BM, BN, RING)
        leave(acc, bias, before, total, y, tm * BM, tn * BN, M, N, ldb, ldt, ldy, biased, add, keep)


@gluon.jit
def several(step, count_word, count_fixed, x, w0, w1, w2, w3, w4, w5, y0, y1, y2, y3, y4, y5, n0, n1, n2, n3, n4, n5, lw0, lw1, lw2,
            lw3, lw4, lw5, ly0, ly1, ly2, ly3, ly4, ly5, K, ldx, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`gemm_few.several` in such tiles; grid (ceil(rows / BM), sum of ceil(ni / BN))."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    tm, tile = tile_of(M, BM)
    e0, e1, e2, e3, e4, start = place(tile, n0, n1, n2, n3, n4, BN)
    N = of(tile, e0, e1, e2, e3, e4, n0, n1, n2, n3, n4, n5)
    first = (tile - start) * BN
    if (tm * BM < M) & (first < N):
        # What is chosen loses what is known of it: without the promises, weights come two bytes at a time.
        w = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, w0, w1, w2, w3, w4, w5), 16)
        y = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, y0, y1, y2, y3, y4, y5), 16)
        ldw = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, lw0, lw1, lw2, lw3, lw4, lw5), 16)
        ldy = of(tile, e0, e1, e2, e3, e4, ly0, ly1, ly2, ly3, ly4, ly5)
        acc = product(x, w, tm * BM, first, M, N, K, ldx, ldw, BM, BN, RING)
        leave(acc, y, y, y, y, tm * BM, first, M, N, ldy, ldy, ldy, 0, 0, 1)


@gluon.jit
def gate_up(step, count_word, count_fixed, x, gate, up, gates, ups, h, N, K, ldx, ldg, ldu, lda, ldb, ldh, beta, linear, silu, keep_gates,
            keep_ups, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`gemm_few.gate_up` in such tiles; grid (ceil(rows / BM), ceil(2 N / BN) in whole eights)."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    tm, tn = tile_of(M, BM)
    rows, first = tm * BM, tn * (BN // 2)
    if (rows < M) & (first < N):
        w, ow, there, v, ov, those = alternate(gate, up, first, N, ldg, ldu, BN)
        acc = gl.zeros([BM, BN], gl.float32, mfma_of(gl.num_warps()))
        acc, _ = sums(acc, buffers(BM), x, x, w, ow, there, v, ov, those, rows, M, K, ldx, True, False, RING)
        activate(acc, gates, ups, h, rows, first, M, N, lda, ldb, ldh, beta, linear, silu, keep_gates, keep_ups)


@gluon.jit
def into(step, count_word, count_fixed, x, router, down, gate, up, logits, z, h, q, E, L, S, K, ldx, ldr, ldd, ldg, ldu, ldl, ldz, ldh,
         beta, linear, rounds, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`moe_edges.into` in such tiles; grid (ceil(rows / BM), ceil(E / BN) + ceil(L / BN) + ceil(2 S / BN))."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    tm, tile = tile_of(M, BM)
    routers = (E + BN - 1) // BN
    latents = routers + (L + BN - 1) // BN
    rows = tm * BM
    if (rows < M) & (tile < latents + (2 * S + BN - 1) // BN):
        routes = tile < routers
        gated = tile >= latents
        mfma: gl.constexpr = mfma_of(gl.num_warps())
        # Rows of gate and up alternate in a tile, so that both sides of a value meet in one lane.
        j = gl.arange(0, BN, layout=gl.SliceLayout(0, gl.DotOperandLayout(1, mfma, 8)))
        n = gl.where(gated, j // 2, j)
        odd = gated & (j % 2 == 1)
        first = gl.where(gated, (tile - latents) * (BN // 2), gl.where(routes, tile, tile - routers) * BN)
        N = gl.where(routes, E, gl.where(gated, S, L))
        inside = first + n < N
        # What is chosen loses what is known of it.
        w = gl.multiple_of(gl.where(routes, router, gl.where(gated, gate, down)), 16)
        ldw = gl.multiple_of(gl.where(routes, ldr, gl.where(gated, ldg, ldd)), 16)
        w += first.to(gl.int64) * ldw
        v = up + first.to(gl.int64) * ldu
        acc = gl.zeros([BM, BN], gl.float32, mfma)
        acc, _ = sums(acc, buffers(BM), x, x, w, n * ldw, inside & (odd == 0), v, n * ldu, inside & odd, rows, M, K, ldx, True, False, RING)
        if gated:
            gates, ups = gl.split(gl.reshape(acc, [BM, BN // 2, 2]))
            leave(situ(gates, ups, beta, linear), h, h, h, h, rows, first, M, S, ldh, ldh, ldh, 0, 0, 1)
        else:
            y = gl.multiple_of(gl.where(routes, logits, z), 16)
            ldy = gl.where(routes, ldl, ldz)
            leave(acc, y, y, y, y, rows, first, M, N, ldy, ldy, ldy, 0, 0, 1, q, gl.where(routes, 0, rounds))


@gluon.jit
def out(step, count_word, count_fixed, r, norm, up, h, down, residual, y, N, L, S, ldr, ldu, ldh, ldd, lde, ldy, add, eps,
        BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`moe_edges.out` in such tiles; grid (ceil(rows / BM), ceil(N / BN))."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    tm, tn = tile_of(M, BM)
    rows, first = tm * BM, tn * BN
    if (rows < M) & (first < N):
        mfma: gl.constexpr = mfma_of(gl.num_warps())
        n = gl.arange(0, BN, layout=gl.SliceLayout(0, gl.DotOperandLayout(1, mfma, 8)))
        there = first + n < N
        wu = up + first.to(gl.int64) * ldu
        wd = down + first.to(gl.int64) * ldd
        lds = buffers(BM)
        acc = gl.zeros([BM, BN], gl.float32, mfma)
        acc, squares = sums(acc, lds, r, norm, wu, n * ldu, there, wu, n, there, rows, M, L, ldr, False, True, RING)
        scale = 1.0 / gl.sqrt_rn(tree.rows(squares) / L + eps)
        acc = acc * gl.convert_layout(scale, gl.SliceLayout(1, mfma))[:, None]
        acc, _ = sums(acc, lds, h, h, wd, n * ldd, there, wd, n, there, rows, M, S, ldh, False, False, RING)
        if BM < TALL:
            c = (first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma)))[None, :]
            m = (rows + gl.arange(0, BM, layout=gl.SliceLayout(1, mfma))).to(gl.int64)[:, None]
            inside = (m < M) & (c < N)
            before = gl.load(residual + m * lde + c, mask=inside & (add == 1), other=0.0)
            gl.store(y + m * ldy + c, before + acc, mask=inside)
        else:
            leave(acc, y, residual, y, y, rows, first, M, N, lde, ldy, ldy, 0, add, 1 - add)
