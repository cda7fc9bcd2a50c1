"""Dense products of e4m3 factors: weights quantised at load, a scale per row of theirs; rows as they come, a scale for every 32 values.

A weight lies as the matrix instruction takes it: tiles of 16 rows by 128 columns, 2 KiB each, of which a wave's two loads take one
KiB each as it lies (lane l: row l % 16, columns 16 (l / 16) .. + 15 of either half), so no work-group shares a line of weights
with another and nothing goes through LDS. Its rows and columns are padded with zeros to whole tiles; scales are f32, applied to
the sums.

Rows are rounded as `fp8.quantise` does it. `few`, a tile of 16 rows and 16 columns to a wave, may do so in the registers in which the
instruction wants them, which pays for few and short rows. Others are rounded by whoever makes them (`inputs.py`), or by a
launch before it: every tile of columns would fetch 4 bytes a value and round them again. `many` takes these only, and shares them between its waves through two LDS buffers
of a step. All walk K in the same steps by the same instruction, so a row's bits are the same.

Rows, columns and steps outside are masked: nothing is fetched, and the hardware returns zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint

import gemm_few
from experts_mxfp4 import BEYOND, STEP
from fp8 import GROUP, inverse_of, scale_of
from parts import of, place

# Rows of a tile of weights, and bytes of one.
ROWS = gl.constexpr(16)
TILE = gl.constexpr(2048)
# Scales of a step of so many rows of activations, which lie together (`fp8.scale_at`).
SCALES = gl.constexpr(64)


@gluon.constexpr_function
def mfma_of(warps):
    """Results of 16 x 16 per wave, four columns to a lane."""
    return gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 128], transposed=True, warps_per_cta=[1, warps])


@gluon.constexpr_function
def scales_of(rows, warps):
    """Scales of a step of rows: a byte per lane and 16 rows."""
    return cdna4.get_mfma_scale_layout(gl.DotOperandLayout(0, mfma_of(warps), 16), [rows, STEP.value // GROUP.value])


@gluon.jit
def weights_at(first, KP, BN: gl.constexpr):
    """Offsets of BN rows of a weight from row `first` on, of the first step of K; KP is K padded."""
    right: gl.constexpr = gl.DotOperandLayout(1, mfma_of(gl.num_warps()), 16)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, right))
    k = gl.arange(0, STEP, layout=gl.SliceLayout(1, right))
    inner = k // 64 * (TILE // 2) + k % 64 // 16 * (16 * ROWS) + k % 16
    outer = n // ROWS * (KP * ROWS) + n % ROWS * 16
    return gl.max_contiguous(gl.multiple_of(inner[:, None] + outer[None, :], [16, 16]), [16, 1])


@gluon.jit
def scaled(acc, w, first, N, KP, BN: gl.constexpr):
    """Sums times the scales of their columns, which lie behind the weight's values."""
    scales = (w + ((N + ROWS - 1) // ROWS * ROWS).to(gl.int64) * KP).to(gl.pointer_type(gl.float32))
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, acc.type.layout))
    return acc * gl.load(scales + n, mask=n < N, other=0.0)[None, :]


@gluon.jit
def rounded(v):
    """Rows [16, STEP] in e4m3 and their scales, in the registers where they are."""
    left: gl.constexpr = gl.DotOperandLayout(0, mfma_of(1), 16)
    groups: gl.constexpr = STEP // GROUP
    scale = scale_of(gl.max(gl.reshape(gl.abs(v), [ROWS, groups, GROUP]), 2))
    wide = gl.reshape(gl.expand_dims(scale, 2).broadcast_to(ROWS, groups, GROUP), [ROWS, STEP])
    y = (v * inverse_of(gl.convert_layout(wide, left, assert_trivial=True))).to(gl.float8e4nv)
    return y, gl.convert_layout(scale.to(gl.uint8), scales_of(ROWS, 1))


@gluon.jit
def fetch(px, ps, ox, os, mine, scaled_rows, k, w, ow, at, steps, K, ROUNDED: gl.constexpr):
    """Rows, their scales and weights of the step `at`, nothing behind the last; rows that are not rounded yet have no scales."""
    rows = cdna4.buffer_load(px, ox + at * STEP, mask=mine & (k + at * STEP < K)[None, :])
    weights = cdna4.buffer_load(w, ow + gl.where(at < steps, at * TILE, BEYOND), cache=".cg")
    if ROUNDED:
        scale: gl.constexpr = scales_of(ROWS, 1)
        g = at * (STEP // GROUP) + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, scale))
        there = scaled_rows[:, None] & (g < K // GROUP)[None, :]
        return rows, weights, cdna4.buffer_load(ps, os + at * SCALES, mask=there)
    else:
        return rows, weights, 0


@gluon.jit
def product(x, xs, w, rows, first, M, N, K, KP, ldx, ROUNDED: gl.constexpr, RING: gl.constexpr):
    """Sums of 16 rows from `rows` on and 16 columns from `first` on: of f32 rows, or of e4m3 ones with scales xs, which touch."""
    left: gl.constexpr = gl.DotOperandLayout(0, mfma_of(1), 16)
    ow = weights_at(first, KP, ROWS)
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, left))
    k = gl.arange(0, STEP, layout=gl.SliceLayout(0, left))
    px = x + rows.to(gl.int64) * ldx
    ox = r[:, None] * ldx + k[None, :]
    mine = (rows + r < M)[:, None]
    scale: gl.constexpr = scales_of(ROWS, 1)
    rs = gl.arange(0, ROWS, layout=gl.SliceLayout(1, scale))
    steps = KP // STEP
    ps = xs + (rows // ROWS).to(gl.int64) * (steps * SCALES)
    os = rs[:, None] + ROWS * gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, scale))[None, :]
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + fetch(px, ps, ox, os, mine, rows + rs < M, k, w, ow, j, steps, K, ROUNDED)
        hint.sched_barrier()
    acc = gl.zeros([ROWS, ROWS], gl.float32, mfma_of(1))
    for start in range(0, steps, RING):
        fresh = ()
        for j in gl.static_range(RING):
            if ROUNDED:
                a, s = ring[3 * j], ring[3 * j + 2]
            else:
                a, s = rounded(ring[3 * j])
            acc = cdna4.mfma_scaled(a, s, "e4m3", ring[3 * j + 1], None, "e4m3", acc)
            hint.sched_barrier()
            fresh = fresh + fetch(px, ps, ox, os, mine, rows + rs < M, k, w, ow, start + j + RING, steps, K, ROUNDED)
            hint.sched_barrier()
        ring = fresh
    return scaled(acc, w, first, N, KP, ROWS)


@gluon.jit
def few(step, count_word, count_fixed, x, xs, w, bias, before, total, y, N, K, KP, ldx, ldb, ldt, ldy, biased, add, keep,
        ROUNDED: gl.constexpr, RING: gl.constexpr):
    """y[M, N] = x[M, K] . w[N, K]^T (+ bias), and total = before + y as in `gemm_few.linear`; grid (ceil(rows / 16), ceil(N / 16)),
    a wave each. K is a multiple of 32, KP of 128; a weight is smaller than 2 GiB. Scales xs are of rows that are e4m3 already."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * ROWS
    if rows < M:
        first = gl.program_id(1) * ROWS
        acc = product(x, xs, w, rows, first, M, N, K, KP, ldx, ROUNDED, RING)
        gemm_few.finish(acc, bias, before, total, y, rows, first, M, N, ldb, ldt, ldy, biased, add, keep)


@gluon.jit
def several(step, count_word, count_fixed, x, xs, w0, w1, w2, w3, w4, w5, y0, y1, y2, y3, y4, y5, n0, n1, n2, n3, n4, n5, ly0, ly1,
            ly2, ly3, ly4, ly5, K, KP, ldx, ROUNDED: gl.constexpr, RING: gl.constexpr):
    """`gemm_few.several` of such weights."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * ROWS
    if rows < M:
        tile = gl.program_id(1)
        e0, e1, e2, e3, e4, start = place(tile, n0, n1, n2, n3, n4, ROWS)
        N = of(tile, e0, e1, e2, e3, e4, n0, n1, n2, n3, n4, n5)
        w = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, w0, w1, w2, w3, w4, w5), 16)
        y = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, y0, y1, y2, y3, y4, y5), 16)
        ldy = of(tile, e0, e1, e2, e3, e4, ly0, ly1, ly2, ly3, ly4, ly5)
        first = (tile - start) * ROWS
        acc = product(x, xs, w, rows, first, M, N, K, KP, ldx, ROUNDED, RING)
        gemm_few.finish(acc, y, y, y, y, rows, first, M, N, ldy, ldy, ldy, 0, 0, 1)


@gluon.jit
def step_of(xs, oxs, there, K, w, ow, inside, at, steps, BM: gl.constexpr):
    """What a step takes straight from memory: weights, and scales of rows."""
    held = (cdna4.buffer_load(w, ow + gl.where(at < steps, at * TILE, BEYOND), mask=inside),)
    group: gl.constexpr = STEP // GROUP
    for i in gl.static_range(BM // 32):
        g = at * group + gl.arange(0, group, layout=gl.SliceLayout(0, scales_of(32, gl.num_warps())))
        held = held + (cdna4.buffer_load(xs, oxs[i] + at * SCALES, mask=there[i] & (g < K // GROUP)[None, :]),)
    return held


@gluon.jit
def buffers(BM: gl.constexpr):
    """Two LDS buffers of a step of BM rows of e4m3. Rows of 8 chunks of 16 bytes, two of them across all banks: every other row permutes
    them, so that a read meets no bank twice."""
    shared: gl.constexpr = gl.SwizzledSharedLayout(16, 2, 8, [1, 0])
    return gl.allocate_shared_memory(gl.float8e4nv, [2, BM, STEP], shared)


@gluon.jit
def sums(x, xs, w, lds, rows, first, M, N, K, KP, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """Sums of BM rows from `rows` on and BN columns from `first` on, a tensor for every 32 rows; rows x [M, K] in e4m3 with scales
    xs come through `lds`, of `buffers`."""
    mfma: gl.constexpr = mfma_of(gl.num_warps())
    left: gl.constexpr = gl.DotOperandLayout(0, mfma, 16)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma, 16)
    come: gl.constexpr = gl.BlockedLayout([1, 16], [8, 8], [gl.num_warps(), 1], [1, 0])
    ow = weights_at(first, KP, BN)
    # Rows of the last tile of 16 are there, padded; tiles behind it are not.
    inside = (first + gl.arange(0, BN, layout=gl.SliceLayout(0, right)) < (N + ROWS - 1) // ROWS * ROWS)[None, :]
    r = gl.arange(0, BM, layout=gl.SliceLayout(1, come))
    k = gl.arange(0, STEP, layout=gl.SliceLayout(0, come))
    px = x + rows.to(gl.int64) * K
    ox = r[:, None] * K + k[None, :]
    mine = (rows + r < M)[:, None]
    steps = KP // STEP
    ps = xs + (rows // ROWS).to(gl.int64) * (steps * SCALES)
    oxs = ()
    there = ()
    accs = ()
    scale: gl.constexpr = scales_of(32, gl.num_warps())
    for i in gl.static_range(BM // 32):
        m = i * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, scale))
        own = m // ROWS * (steps * SCALES) + m % ROWS
        oxs = oxs + (own[:, None] + ROWS * gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, scale))[None, :],)
        there = there + ((rows + m < M)[:, None],)
        accs = accs + (gl.zeros([32, BN], gl.float32, mfma),)
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + (step_of(ps, oxs, there, K, w, ow, inside, j, steps, BM),)
        hint.sched_barrier()
    lds.index(0).store(cdna4.buffer_load(px, ox, mask=mine & (k < K)[None, :]))
    for start in range(0, steps, RING):
        fresh = ()
        for j in gl.static_range(RING):
            at = start + j
            held = ring[j]
            next = cdna4.buffer_load(px, ox + (at + 1) * STEP, mask=mine & (k + (at + 1) * STEP < K)[None, :])
            done = ()
            for i in gl.static_range(BM // 32):
                a = lds.index(at & 1).slice(i * 32, 32, 0).load(left)
                done = done + (cdna4.mfma_scaled(a, held[1 + i], "e4m3", held[0], None, "e4m3", accs[i]),)
            accs = done
            # Behind the last use of what was held, so that the new values may come into the same registers.
            hint.sched_barrier()
            fresh = fresh + (step_of(ps, oxs, there, K, w, ow, inside, at + RING, steps, BM),)
            lds.index((at + 1) & 1).store(next)
            hint.sched_barrier()
        ring = fresh
    return accs


@gluon.jit
def many(step, count_word, count_fixed, x, xs, w, bias, y, N, K, KP, ldy, biased, BM: gl.constexpr, BN: gl.constexpr,
         RING: gl.constexpr):
    """The same of rows x [M, K] in e4m3 with scales xs; grid (ceil(rows / BM), ceil(N / BN)), BM a multiple of 32, BN
    of 16 per wave."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * BM
    if rows < M:
        first = gl.program_id(1) * BN
        accs = sums(x, xs, w, buffers(BM), rows, first, M, N, K, KP, BM, BN, RING)
        store(accs, w, bias, y, rows, first, M, N, KP, ldy, biased, BM, BN)


@gluon.jit
def store(accs, w, bias, y, rows, first, M, N, KP, ldy, biased, BM: gl.constexpr, BN: gl.constexpr):
    """Stores what `sums` made, scaled, and plus bias where `biased` is 1."""
    mfma: gl.constexpr = mfma_of(gl.num_warps())
    for i in gl.static_range(BM // 32):
        acc = scaled(accs[i], w, first, N, KP, BN)
        n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        m = rows + i * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, mfma))
        if biased == 1:
            acc = acc + gl.load(bias + n, mask=n < N, other=0.0)[None, :]
        gl.store(y + m.to(gl.int64)[:, None] * ldy + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


@gluon.jit
def several_many(step, count_word, count_fixed, x, xs, w0, w1, w2, w3, w4, w5, y0, y1, y2, y3, y4, y5, n0, n1, n2, n3, n4, n5, ly0, ly1,
                 ly2, ly3, ly4, ly5, K, KP, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """`several` in the tiles of `many`; grid (ceil(rows / BM), sum of ceil(ni / BN))."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * BM
    if rows < M:
        tile = gl.program_id(1)
        e0, e1, e2, e3, e4, start = place(tile, n0, n1, n2, n3, n4, BN)
        N = of(tile, e0, e1, e2, e3, e4, n0, n1, n2, n3, n4, n5)
        w = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, w0, w1, w2, w3, w4, w5), 16)
        y = gl.multiple_of(of(tile, e0, e1, e2, e3, e4, y0, y1, y2, y3, y4, y5), 16)
        ldy = of(tile, e0, e1, e2, e3, e4, ly0, ly1, ly2, ly3, ly4, ly5)
        first = (tile - start) * BN
        accs = sums(x, xs, w, buffers(BM), rows, first, M, N, K, KP, BM, BN, RING)
        store(accs, w, y, y, rows, first, M, N, KP, ldy, 0, BM, BN)
