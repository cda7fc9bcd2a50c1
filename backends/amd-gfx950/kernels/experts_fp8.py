"""The MLPs of the chosen experts for MXFP4 weights and e4m3 rows (`fp8`): what `experts_mxfp4` does with bf16 factors.

The scaled matrix instruction takes e4m3 on one side, MXFP4 as it lies in a checkpoint on the other, and the scales of both: no
weight is converted, and one instruction of 32 cycles does a step of 128 that four of 16 cycles do for bf16. Waves, steps, rings
and masks are those of `experts_mxfp4`. Rows' scales come straight from memory in every tile, one byte per lane; a tile of 16 reads
its rows so too, taller ones share them between the waves through two LDS buffers of a step.

`up` leaves its activations as e4m3 with scales, groups of 32 columns lying in two waves. Every tile adds up in the same order, so
bits depend on no neighbour.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint

from experts import activate
from experts_mxfp4 import BEYOND, STEP, fetch, routes_of, slot_of, tile_count, tile_of
from fp8 import GROUP, inverse_of, scale_of


@gluon.constexpr_function
def mfma_of(warps):
    """Results of 16 x 16 per wave, four columns to a lane."""
    return gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 128], transposed=True, warps_per_cta=[1, warps])


@gluon.constexpr_function
def coming(BM, warps):
    """How rows come from memory: as the matrix instruction takes them, or in whole rows on their way to LDS."""
    if BM == 16:
        return gl.DotOperandLayout(0, mfma_of(warps), 16)
    return gl.BlockedLayout([1, 16], [8, 8], [warps, 1], [1, 0])


@gluon.constexpr_function
def scales_of(index, rows, warps):
    """Scales of a step of an operand: a byte per lane and 16 rows."""
    return cdna4.get_mfma_scale_layout(gl.DotOperandLayout(index, mfma_of(warps), 16), [rows, STEP.value // GROUP.value])


@gluon.jit
def stack_of(tiles, ids, slots, p, k, ldi, SORTED: gl.constexpr):
    """`slot_of` in a scalar register: left to itself, the compiler may carry addresses of stacks in vector registers, and wraps
    every load from them in a loop over lanes that might differ."""
    slot = slot_of(tiles, ids, slots, p, k, ldi, SORTED).to(gl.int32)
    slot = gl.inline_asm_elementwise("v_readfirstlane_b32 $0, $1", "=s,v", [slot], dtype=gl.int32, is_pure=True, pack=1)
    return slot.to(gl.int64)


@gluon.jit
def places(BN: gl.constexpr, first, KB, KS):
    """Offsets of a work-group's weights and scales in a matrix of rows of KB bytes and KS scales, from row `first` on."""
    packed: gl.constexpr = gl.DotOperandLayout(1, mfma_of(gl.num_warps()), 16)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, packed))
    ow = n[None, :] * KB + gl.arange(0, STEP // 2, layout=gl.SliceLayout(1, packed))[:, None]
    scale: gl.constexpr = scales_of(1, BN, gl.num_warps())
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(1, scale))
    os = n[:, None] * KS + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, scale))[None, :]
    return ow, os


@gluon.jit
def scale_places(tiles, order, p, over, KS, SORTED: gl.constexpr, BM: gl.constexpr):
    """Of each piece of a tile's rows: offsets of its scales, which of them there are. Rows are routes / `over`."""
    PM: gl.constexpr = min(BM, 32)
    layout: gl.constexpr = scales_of(0, PM, gl.num_warps())
    all = ()
    for i in gl.static_range(BM // PM):
        route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, layout))
        at = (route // over)[:, None] * KS + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, layout))[None, :]
        all = all + (at, mine[:, None])
    return all


@gluon.jit
def step_of(x, xs, ox, mine, oxs, w, s, ow, os, at, steps, BM: gl.constexpr, MATRICES: gl.constexpr):
    """What a step takes straight from memory: weights and scales, scales of rows, of a tile of 16 the rows."""
    held = ()
    for m in gl.static_range(MATRICES):
        held = held + fetch(w[m], s[m], at, steps, ow, os)
    for i in gl.static_range(BM // min(BM, 32)):
        held = held + (cdna4.buffer_load(xs, oxs[2 * i] + at * (STEP // GROUP), mask=oxs[2 * i + 1] & (at < steps)),)
    if BM == 16:
        held = held + (cdna4.buffer_load(x, ox + at * STEP, mask=mine & (at < steps)),)
    return held


@gluon.jit
def walk(x, xs, ox, mine, oxs, w, s, ow, os, steps, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr,
         MATRICES: gl.constexpr):
    """Products of one tile with one or two matrices, as tuples of pieces of 32 (or 16) rows: x rows at offsets `ox`."""
    PM: gl.constexpr = min(BM, 32)
    left: gl.constexpr = gl.DotOperandLayout(0, mfma_of(gl.num_warps()), 16)
    accs = ()
    for i in gl.static_range(MATRICES * (BM // PM)):
        accs = accs + (gl.zeros([PM, BN], gl.float32, mfma_of(gl.num_warps())),)
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + (step_of(x, xs, ox, mine, oxs, w, s, ow, os, j, steps, BM, MATRICES),)
        hint.sched_barrier()
    if BM > 16:
        # Rows of 8 chunks of 16 bytes, two of them across all banks: every other row permutes them, so that a read meets no
        # bank twice.
        shared: gl.constexpr = gl.SwizzledSharedLayout(16, 2, 8, [1, 0])
        buffers = gl.allocate_shared_memory(gl.float8e4nv, [2, BM, STEP], shared)
        buffers.index(0).store(cdna4.buffer_load(x, ox, mask=mine))
    for start in range(0, steps, RING):
        fresh = ()
        for j in gl.static_range(RING):
            at = start + j
            held = ring[j]
            if BM > 16:
                next = cdna4.buffer_load(x, ox + (at + 1) * STEP, mask=mine & (at + 1 < steps))
            done = ()
            for i in gl.static_range(BM // PM):
                if BM == 16:
                    a = held[2 * MATRICES + 1]
                else:
                    a = buffers.index(at & 1).slice(i * PM, PM, 0).load(left)
                for m in gl.static_range(MATRICES):
                    done = done + (cdna4.mfma_scaled(a, held[2 * MATRICES + i], "e4m3", held[2 * m], held[2 * m + 1], "e2m1",
                                                     accs[i * MATRICES + m]),)
            accs = done
            # Behind the last use of what was held, so that the new values may come into the same registers.
            hint.sched_barrier()
            fresh = fresh + (step_of(x, xs, ox, mine, oxs, w, s, ow, os, at + RING, steps, BM, MATRICES),)
            if BM > 16:
                buffers.index((at + 1) & 1).store(next)
            hint.sched_barrier()
        ring = fresh
    return accs


@gluon.jit
def up(step, count_word, count_fixed, x, xs, ids, slots, w1, w3, s1, s3, tiles, order, h, hs, k, N, K, KB, ldi, pitch1, pitch3,
       spitch1, spitch3, act, beta, linear, SORTED: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """h[route, n] / 2^(hs - 127) = act(w1 x, w3 x) of rows x [tokens, K] with scales xs; grid (tiles or more, N / BN), BN = 16
    per wave and a multiple of 32. K = 2 KB is a multiple of 128, N of BN; a matrix is smaller than 2 GiB."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(0) < n:
        p = tile_of(gl.program_id(0), n, SORTED)
        mfma: gl.constexpr = mfma_of(gl.num_warps())
        come: gl.constexpr = coming(BM, gl.num_warps())
        slot = stack_of(tiles, ids, slots, p, k, ldi, SORTED)
        first = gl.program_id(1) * BN
        ow, os = places(BN, first, KB, K // GROUP)
        route, mine = routes_of(tiles, order, p, 0, SORTED, BM, gl.SliceLayout(1, come))
        ox = (route // k)[:, None] * K + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
        oxs = scale_places(tiles, order, p, k, K // GROUP, SORTED, BM)
        accs = walk(x, xs, ox, mine[:, None], oxs, (w1 + slot * pitch1, w3 + slot * pitch3),
                    (s1 + slot * spitch1, s3 + slot * spitch3), ow, os, K // STEP, BM, BN, RING, 2)
        PM: gl.constexpr = min(BM, 32)
        columns = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        flat: gl.constexpr = gl.BlockedLayout([1, 1], [64, 1], [gl.num_warps(), 1], [1, 0])
        groups = first // GROUP + gl.arange(0, BN // GROUP, layout=gl.SliceLayout(0, flat))
        for i in gl.static_range(BM // PM):
            value = activate(accs[2 * i], accs[2 * i + 1], beta, linear, act)
            scale = scale_of(gl.max(gl.reshape(gl.abs(value), [PM, BN // GROUP, GROUP]), 2))
            wide = gl.reshape(gl.expand_dims(scale, 2).broadcast_to(PM, BN // GROUP, GROUP), [PM, BN])
            value = (value * inverse_of(gl.convert_layout(wide, mfma))).to(gl.float8e4nv)
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(h + route.to(gl.int64)[:, None] * N + columns[None, :], value, mask=mine[:, None])
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, flat))
            gl.store(hs + route.to(gl.int64)[:, None] * (N // GROUP) + groups[None, :],
                     gl.convert_layout(scale, flat).to(gl.uint8), mask=mine[:, None])


@gluon.jit
def down(step, count_word, count_fixed, h, hs, ids, slots, w2, s2, tiles, order, o, k, N, NB, K, first, width, ldi, pitch, spitch,
         SORTED: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """o[route, c] = w2[first + c] h[route], c < width, of rows h with scales hs; grid (tiles or more, width / BN). N = 2 NB is a
    multiple of 128, width of BN; h has fewer than 2^30 values."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(0) < n:
        p = tile_of(gl.program_id(0), n, SORTED)
        mfma: gl.constexpr = mfma_of(gl.num_warps())
        come: gl.constexpr = coming(BM, gl.num_warps())
        slot = stack_of(tiles, ids, slots, p, k, ldi, SORTED)
        c = gl.program_id(1) * BN
        ow, os = places(BN, first + c, NB, N // GROUP)
        route, mine = routes_of(tiles, order, p, 0, SORTED, BM, gl.SliceLayout(1, come))
        ox = route[:, None] * N + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
        oxs = scale_places(tiles, order, p, 1, N // GROUP, SORTED, BM)
        accs = walk(h, hs, ox, mine[:, None], oxs, (w2 + slot * pitch,), (s2 + slot * spitch,), ow, os, N // STEP, BM, BN, RING, 1)
        PM: gl.constexpr = min(BM, 32)
        columns = c + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // PM):
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(o + route.to(gl.int64)[:, None] * width + columns[None, :], accs[i], mask=mine[:, None])
