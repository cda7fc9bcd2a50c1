"""The MLPs of the chosen experts for MXFP4 weights and bf16 factors: what `experts` does, faster, for K and N of whole steps.

A wave owns 16 outputs of each matrix and walks K in steps of 128: 16 bytes of weights and one scale per lane and matrix, straight
from memory into registers, RING steps ahead, as the checkpoint has them (lane l: row l % 16, values 32 (l / 16) to 32 (l / 16) +
31 of the step). The hardware's conversion makes bf16 factors of them where they are, which is what the matrix instruction takes:
no shuffle, no LDS. Each matrix instruction so takes eight values of each of four groups of a step: an order of K of its own, the
same for every tile.

Activations are bf16 rows. A tile of 16 reads them like the weights; taller tiles share them between the waves, through two LDS
buffers of a step each, whose chunks of 16 bytes are permuted within a row so that a read meets no bank twice.

Rows of a tile without a route, and steps behind the last, are masked: nothing is fetched, and the hardware returns zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint
from triton.experimental.gluon.language.amd._ops import get_scaled_upcast_fp4_scale_layout

from experts import activate

# Values of K per step.
STEP = gl.constexpr(128)
# With any offset below 2^31 added, no address of a buffer, for which the hardware returns zero and fetches nothing.
BEYOND = gl.constexpr(-2147483648)


@gluon.jit
def routes_of(tiles, order, p, offset, SORTED: gl.constexpr, BM: gl.constexpr, layout: gl.constexpr):
    """Routes of BM rows of tile p from `offset` on, and which of them there are, the last one repeated; without SORTED route p
    alone."""
    i = offset + gl.arange(0, BM, layout=layout)
    if SORTED:
        first = gl.load(tiles + 4 * p + 5)
        many = gl.load(tiles + 4 * p + 6)
        mine = i < many
        route = gl.load(order + first + gl.minimum(i, many - 1))
    else:
        mine = i < 1
        route = i * 0 + p
    return route, mine


@gluon.jit
def slot_of(tiles, ids, slots, p, k, ldi, SORTED: gl.constexpr):
    """Place in the stacks of tile p's expert."""
    if SORTED:
        e = gl.load(tiles + 4 * p + 4)
    else:
        e = gl.load(ids + (p // k).to(gl.int64) * ldi + p % k)
    return gl.load(slots + e).to(gl.int64)


@gluon.jit
def tile_count(step, count_word, count_fixed, tiles, k, SORTED: gl.constexpr):
    """Tiles of this step."""
    if SORTED:
        n = gl.load(tiles)
    else:
        n = gl.where(count_word == 0, count_fixed, gl.load(step + count_word)) * k
    return n


@gluon.jit
def tile_of(group, n, SORTED: gl.constexpr):
    """Which of n tiles the work-group of that number takes. Groups go round the 8 dies; neighbouring tiles, which may share an
    expert, go to one die, whose cache then has the weights."""
    if SORTED:
        die, extra = group % 8, n % 8
        group = die * (n // 8) + gl.minimum(die, extra) + group // 8
    return group


@gluon.jit
def factors(weights, scales, BN: gl.constexpr, layout: gl.constexpr):
    """A step of weights as bf16, in the registers where they are."""
    groups: gl.constexpr = STEP // 32
    wide = gl.reshape(scales, [groups, 1, BN]).broadcast_to(groups, 32, BN)
    wide = gl.convert_layout(gl.reshape(wide, [STEP, BN]), layout, assert_trivial=True)
    return cdna4.scaled_upcast(weights, wide, gl.bfloat16, axis=0)


@gluon.jit
def fetch(w, s, at, steps, ow, os):
    """Weights and scales of the step `at`, zeros behind the last: there the offset is beyond what a buffer can reach."""
    return (cdna4.buffer_load(w, ow + gl.where(at < steps, at * (STEP // 2), BEYOND), cache=".cg"),
            cdna4.buffer_load(s, os + gl.where(at < steps, at * (STEP // 32), BEYOND), cache=".cg"))


@gluon.jit
def walk(x, ox, mine, w, s, ow, os, steps, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr, MATRICES: gl.constexpr):
    """Products of one tile with one or two matrices, as tuples of pieces of 32 (or 16) rows: x rows at element offsets `ox`."""
    PM: gl.constexpr = min(BM, 32)
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True,
                                              warps_per_cta=[1, gl.num_warps()])
    left: gl.constexpr = gl.DotOperandLayout(0, mfma, 32)
    right: gl.constexpr = gl.DotOperandLayout(1, mfma, 32)
    accs = ()
    for i in gl.static_range(MATRICES * (BM // PM)):
        accs = accs + (gl.zeros([PM, BN], gl.float32, mfma),)
    ring = ()
    for j in gl.static_range(RING):
        held = ()
        for m in gl.static_range(MATRICES):
            held = held + fetch(w[m], s[m], j, steps, ow, os)
        if BM == 16:
            held = held + (cdna4.buffer_load(x, ox + j * STEP, mask=mine & (j < steps)),)
        ring = ring + (held,)
        hint.sched_barrier()
    if BM > 16:
        # Rows of 16 chunks; the bits of a row's number within 16 move its chunks by 1, 2, 0 and 12.
        rows: gl.constexpr = [[1, 8], [2, 16], [4, 0], [8, 96], [16, 0], [32, 0], [64, 0]]
        shared: gl.constexpr = gl.SharedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [0, 64]] + rows[:5 if BM == 32 else 6 if BM == 64 else 7])
        buffers = gl.allocate_shared_memory(gl.bfloat16, [2, BM, STEP], shared)
        buffers.index(0).store(cdna4.buffer_load(x, ox, mask=mine))
    for start in range(0, steps, RING):
        fresh = ()
        for j in gl.static_range(RING):
            at = start + j
            held = ring[j]
            if BM > 16:
                coming = cdna4.buffer_load(x, ox + (at + 1) * STEP, mask=mine & (at + 1 < steps))
            b = ()
            for m in gl.static_range(MATRICES):
                b = b + (factors(held[2 * m], held[2 * m + 1], BN, right),)
            done = ()
            for i in gl.static_range(BM // PM):
                if BM == 16:
                    a = held[2 * MATRICES]
                else:
                    a = buffers.index(at & 1).slice(i * PM, PM, 0).load(left)
                for m in gl.static_range(MATRICES):
                    done = done + (cdna4.mfma(a, b[m], accs[i * MATRICES + m]),)
            accs = done
            # Behind the last use of what was held, so that the new values may come into the same registers.
            hint.sched_barrier()
            next = ()
            for m in gl.static_range(MATRICES):
                next = next + fetch(w[m], s[m], at + RING, steps, ow, os)
            if BM == 16:
                next = next + (cdna4.buffer_load(x, ox + (at + RING) * STEP, mask=mine & (at + RING < steps)),)
            fresh = fresh + (next,)
            if BM > 16:
                buffers.index((at + 1) & 1).store(coming)
            hint.sched_barrier()
        ring = fresh
    return accs


@gluon.jit
def places(BM: gl.constexpr, BN: gl.constexpr, first, KB, KS):
    """Offsets of a wave's weights and scales in a matrix of rows of KB bytes and KS scales, from row `first` on."""
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True,
                                              warps_per_cta=[1, gl.num_warps()])
    packed: gl.constexpr = gl.DotOperandLayout(1, mfma, 16)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, packed))
    ow = n[None, :] * KB + gl.arange(0, STEP // 2, layout=gl.SliceLayout(1, packed))[:, None]
    scale: gl.constexpr = get_scaled_upcast_fp4_scale_layout(ow.to(gl.uint8), 32, gl.bfloat16, 0)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, scale))
    os = n[None, :] * KS + gl.arange(0, STEP // 32, layout=gl.SliceLayout(1, scale))[:, None]
    return ow, os


@gluon.jit
def up(step, count_word, count_fixed, x, ids, slots, w1, w3, s1, s3, tiles, order, h, k, N, K, KB, ldi, pitch1, pitch3, spitch1,
       spitch3, act, beta, linear, SORTED: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """h[route, n] = act(w1 x, w3 x) of bf16 rows x [tokens, K]; grid (tiles or more, N / BN), BN = 16 per wave. K = 2 KB is a
    multiple of 128, N of BN; a matrix is smaller than 2 GiB."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(0) < n:
        p = tile_of(gl.program_id(0), n, SORTED)
        mfma: gl.constexpr = gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True,
                                                  warps_per_cta=[1, gl.num_warps()])
        come: gl.constexpr = (gl.DotOperandLayout(0, mfma, 32) if BM == 16 else
                              gl.BlockedLayout([1, 8], [4, 16], [gl.num_warps(), 1], [1, 0]))
        slot = slot_of(tiles, ids, slots, p, k, ldi, SORTED)
        first = gl.program_id(1) * BN
        ow, os = places(BM, BN, first, KB, K // 32)
        route, mine = routes_of(tiles, order, p, 0, SORTED, BM, gl.SliceLayout(1, come))
        ox = (route // k)[:, None] * K + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
        accs = walk(x, ox, mine[:, None], (w1 + slot * pitch1, w3 + slot * pitch3), (s1 + slot * spitch1, s3 + slot * spitch3),
                    ow, os, K // STEP, BM, BN, RING, 2)
        PM: gl.constexpr = min(BM, 32)
        columns = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // PM):
            value = activate(accs[2 * i], accs[2 * i + 1], beta, linear, act).to(gl.bfloat16)
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(h + route.to(gl.int64)[:, None] * N + columns[None, :], value, mask=mine[:, None])


@gluon.jit
def down(step, count_word, count_fixed, h, ids, slots, w2, s2, tiles, order, o, k, N, NB, K, first, width, ldi, pitch, spitch,
         SORTED: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """o[route, c] = w2[first + c] h[route], c < width; grid (tiles or more, width / BN). N = 2 NB is a multiple of 128, width
    of BN; h has fewer than 2^30 values."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(0) < n:
        p = tile_of(gl.program_id(0), n, SORTED)
        mfma: gl.constexpr = gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True,
                                                  warps_per_cta=[1, gl.num_warps()])
        come: gl.constexpr = (gl.DotOperandLayout(0, mfma, 32) if BM == 16 else
                              gl.BlockedLayout([1, 8], [4, 16], [gl.num_warps(), 1], [1, 0]))
        slot = slot_of(tiles, ids, slots, p, k, ldi, SORTED)
        c = gl.program_id(1) * BN
        ow, os = places(BM, BN, first + c, NB, N // 32)
        route, mine = routes_of(tiles, order, p, 0, SORTED, BM, gl.SliceLayout(1, come))
        ox = route[:, None] * N + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
        accs = walk(h, ox, mine[:, None], (w2 + slot * pitch,), (s2 + slot * spitch,), ow, os, N // STEP, BM, BN, RING, 1)
        PM: gl.constexpr = min(BM, 32)
        columns = c + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // PM):
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(o + route.to(gl.int64)[:, None] * width + columns[None, :], accs[i], mask=mine[:, None])
