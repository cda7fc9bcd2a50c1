"""The MLPs of the chosen experts for MXFP4 weights: what `experts` does, faster, for K and N of whole steps.

One walk over K for two forms of rows. bf16 (`FP8` off): the hardware's conversion makes bf16 factors of the weights where they are,
which is what the matrix instruction takes. e4m3 with a scale per 32 values (`FP8`, see `fp8`): the scaled matrix instruction takes
them on one side, MXFP4 as it lies in a checkpoint on the other, and the scales of both: no weight is converted, and one instruction
of 32 cycles does a step of 128 that four of 16 cycles do for bf16.

A wave owns 16 outputs of each matrix and walks K in steps of 128: 16 bytes of weights and one scale per lane and matrix, straight
from memory into registers, RING steps ahead, as the checkpoint has them (lane l: row l % 16, values 32 (l / 16) to 32 (l / 16) +
31 of the step): no shuffle, no LDS. A bf16 matrix instruction so takes eight values of each of four groups of a step: an order of K
of its own, the same for every tile, so that bits depend on no neighbour.

A tile of 16 rows reads them like the weights; taller tiles share them between the waves, through two LDS buffers of a step each, whose
chunks of 16 bytes are permuted within a row so that a read meets no bank twice. Scales of rows come straight from memory in every
tile, one byte per lane.

Rows of a tile without a route, and steps behind the last, are masked: nothing is fetched, and the hardware returns zeros.
Products of routes leave `down` as bf16, so that what lies between it and the weighted sum is half as much.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint
from triton.experimental.gluon.language.amd._ops import get_scaled_upcast_fp4_scale_layout

from experts import activate
from fp8 import GROUP, inverse_of, scale_at, scale_of

# Values of K per step.
STEP = gl.constexpr(128)
# With any offset below 2^31 added, no address of a buffer, for which the hardware returns zero and fetches nothing.
BEYOND = gl.constexpr(-2147483648)
# Dies, each with an L2 of its own; work-groups go round them.
DIES = gl.constexpr(8)


@gluon.constexpr_function
def results(FP8, warps):
    """Results of 16 x 16 per wave, four columns to a lane."""
    return gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 128 if FP8 else 32], transposed=True, warps_per_cta=[1, warps])


@gluon.constexpr_function
def rows_in(FP8, warps):
    """Rows as the matrix instruction takes them."""
    return gl.DotOperandLayout(0, results(FP8, warps), 16 if FP8 else 32)


@gluon.constexpr_function
def coming(FP8, BM, warps):
    """How rows come from memory: as the matrix instruction takes them, or in whole rows on their way to LDS."""
    if BM == 16:
        return rows_in(FP8, warps)
    return gl.BlockedLayout([1, 16], [8, 8], [warps, 1], [1, 0]) if FP8 else gl.BlockedLayout([1, 8], [4, 16], [warps, 1], [1, 0])


@gluon.constexpr_function
def shared(FP8, BM):
    """How a step of rows lies in LDS."""
    if FP8:
        # Rows of 8 chunks, two of them across all banks: every other row permutes them.
        return gl.SwizzledSharedLayout(16, 2, 8, [1, 0])
    # Rows of 16 chunks; the bits of a row's number within 16 move its chunks by 1, 2, 0 and 12.
    rows = [[1, 8], [2, 16], [4, 0], [8, 96], [16, 0], [32, 0], [64, 0]]
    return gl.SharedLinearLayout([[0, 1 << i] for i in range(7)] + rows[:BM.bit_length() - 1])


@gluon.constexpr_function
def scales_in(index, rows, warps):
    """Scales of a step of an operand of the scaled instruction: a byte per lane and 16 rows."""
    return cdna4.get_mfma_scale_layout(gl.DotOperandLayout(index, results(True, warps), 16), [rows, STEP.value // GROUP.value])


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
def stack_of(tiles, ids, slots, p, k, ldi, SORTED: gl.constexpr):
    """Place in the stacks of tile p's expert, in a scalar register: left to itself, the compiler may carry addresses of stacks in vector
    registers, and wraps every load from them in a loop over lanes that might differ."""
    if SORTED:
        e = gl.load(tiles + 4 * p + 4)
    else:
        e = gl.load(ids + (p // k).to(gl.int64) * ldi + p % k)
    slot = gl.load(slots + e).to(gl.int32)
    slot = gl.inline_asm_elementwise("v_readfirstlane_b32 $0, $1", "=s,v", [slot], dtype=gl.int32, is_pure=True, pack=1)
    return slot.to(gl.int64)


@gluon.jit
def tile_count(step, count_word, count_fixed, tiles, k, SORTED: gl.constexpr):
    """Tiles of this step."""
    if SORTED:
        n = gl.load(tiles)
    else:
        n = gl.where(count_word == 0, count_fixed, gl.load(step + count_word)) * k
    return n


@gluon.jit
def share_of(n, blocks, SORTED: gl.constexpr):
    """Tile, below n, and block of columns, below `blocks`, of this work-group of a grid (blocks, n or more). Groups go round the
    dies; one die takes all blocks of a tile, one behind the other, and of its neighbours, which may share an expert: its cache then
    has the rows and the weights."""
    i = gl.program_id(1) * blocks + gl.program_id(0)
    if SORTED:
        die, extra = i % DIES, n * blocks % DIES
        i = die * (n * blocks // DIES) + gl.minimum(die, extra) + i // DIES
    return i // blocks, i % blocks


@gluon.jit
def factors(weights, scales, BN: gl.constexpr, layout: gl.constexpr):
    """A step of weights as bf16, in the registers where they are."""
    wide = gl.reshape(scales, [STEP // GROUP, 1, BN]).broadcast_to(STEP // GROUP, GROUP, BN)
    wide = gl.convert_layout(gl.reshape(wide, [STEP, BN]), layout, assert_trivial=True)
    return cdna4.scaled_upcast(weights, wide, gl.bfloat16, axis=0)


@gluon.jit
def places(first, KB, KS, FP8: gl.constexpr, BN: gl.constexpr):
    """Offsets of a work-group's weights and scales in a matrix of rows of KB bytes and KS scales, from row `first` on."""
    packed: gl.constexpr = gl.DotOperandLayout(1, results(FP8, gl.num_warps()), 16)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, packed))
    ow = n[None, :] * KB + gl.arange(0, STEP // 2, layout=gl.SliceLayout(1, packed))[:, None]
    if FP8:
        scale: gl.constexpr = scales_in(1, BN, gl.num_warps())
        n = first + gl.arange(0, BN, layout=gl.SliceLayout(1, scale))
        os = n[:, None] * KS + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, scale))[None, :]
    else:
        scale: gl.constexpr = get_scaled_upcast_fp4_scale_layout(ow.to(gl.uint8), 32, gl.bfloat16, 0)
        n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, scale))
        os = n[None, :] * KS + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(1, scale))[:, None]
    return ow, os


@gluon.jit
def scale_places(tiles, order, p, over, KS, SORTED: gl.constexpr, FP8: gl.constexpr, BM: gl.constexpr):
    """Of each piece of a tile's rows: offsets of its scales, which of them there are. Rows are routes / `over`."""
    PM: gl.constexpr = min(BM, 32)
    all = ()
    if FP8:
        layout: gl.constexpr = scales_in(0, PM, gl.num_warps())
        for i in gl.static_range(BM // PM):
            route, mine = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, layout))
            row = route // over
            own = row // 16 * (16 * KS) + row % 16
            at = own[:, None] + 16 * gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(0, layout))[None, :]
            all = all + (at, mine[:, None])
    return all


@gluon.jit
def held_at(x, xs, ox, mine, oxs, w, s, ow, os, at, steps, FP8: gl.constexpr, BM: gl.constexpr, MATRICES: gl.constexpr):
    """What the step `at` takes straight from memory: weights and scales of each matrix, scales of rows, of a tile of 16 the rows.
    Zeros behind the last step: there the offset is beyond what a buffer can reach."""
    held = ()
    for m in gl.static_range(MATRICES):
        held = held + (cdna4.buffer_load(w[m], ow + gl.where(at < steps, at * (STEP // 2), BEYOND), cache=".cg"),
                       cdna4.buffer_load(s[m], os + gl.where(at < steps, at * (STEP // GROUP), BEYOND), cache=".cg"))
    if FP8:
        for i in gl.static_range(BM // min(BM, 32)):
            held = held + (cdna4.buffer_load(xs, oxs[2 * i] + at * (16 * STEP // GROUP), mask=oxs[2 * i + 1] & (at < steps)),)
    if BM == 16:
        held = held + (cdna4.buffer_load(x, ox + at * STEP, mask=mine & (at < steps)),)
    return held


@gluon.jit
def walk(x, xs, ox, mine, oxs, w, s, ow, os, steps, FP8: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr,
         MATRICES: gl.constexpr):
    """Products of one tile with one or two matrices, as tuples of pieces of 32 (or 16) rows: x rows at offsets `ox`."""
    PM: gl.constexpr = min(BM, 32)
    left: gl.constexpr = rows_in(FP8, gl.num_warps())
    right: gl.constexpr = gl.DotOperandLayout(1, results(FP8, gl.num_warps()), 32)
    accs = ()
    for i in gl.static_range(MATRICES * (BM // PM)):
        accs = accs + (gl.zeros([PM, BN], gl.float32, results(FP8, gl.num_warps())),)
    ring = ()
    for j in gl.static_range(RING):
        ring = ring + (held_at(x, xs, ox, mine, oxs, w, s, ow, os, j, steps, FP8, BM, MATRICES),)
        hint.sched_barrier()
    if BM > 16:
        buffers = gl.allocate_shared_memory(x.dtype.element_ty, [2, BM, STEP], shared(FP8, BM))
        buffers.index(0).store(cdna4.buffer_load(x, ox, mask=mine))
    for start in range(0, steps, RING):
        fresh = ()
        for j in gl.static_range(RING):
            at = start + j
            held = ring[j]
            if BM > 16:
                next = cdna4.buffer_load(x, ox + (at + 1) * STEP, mask=mine & (at + 1 < steps))
            b = ()
            if not FP8:
                for m in gl.static_range(MATRICES):
                    b = b + (factors(held[2 * m], held[2 * m + 1], BN, right),)
            done = ()
            for i in gl.static_range(BM // PM):
                if BM == 16:
                    a = held[2 * MATRICES + FP8]
                else:
                    a = buffers.index(at & 1).slice(i * PM, PM, 0).load(left)
                for m in gl.static_range(MATRICES):
                    if FP8:
                        done = done + (cdna4.mfma_scaled(a, held[2 * MATRICES + i], "e4m3", held[2 * m], held[2 * m + 1], "e2m1",
                                                         accs[i * MATRICES + m]),)
                    else:
                        done = done + (cdna4.mfma(a, b[m], accs[i * MATRICES + m]),)
            accs = done
            # Behind the last use of what was held, so that the new values may come into the same registers.
            hint.sched_barrier()
            fresh = fresh + (held_at(x, xs, ox, mine, oxs, w, s, ow, os, at + RING, steps, FP8, BM, MATRICES),)
            if BM > 16:
                buffers.index((at + 1) & 1).store(next)
            hint.sched_barrier()
        ring = fresh
    return accs


@gluon.jit
def inputs(tiles, order, p, each, K, SORTED: gl.constexpr, FP8: gl.constexpr, BM: gl.constexpr):
    """Where the first step of a tile's rows of K values lies, which of them are there, and where their scales lie; a row is the input of
    `each` routes."""
    come: gl.constexpr = coming(FP8, BM, gl.num_warps())
    route, mine = routes_of(tiles, order, p, 0, SORTED, BM, gl.SliceLayout(1, come))
    ox = (route // each)[:, None] * K + gl.arange(0, STEP, layout=gl.SliceLayout(0, come))[None, :]
    return ox, mine[:, None], scale_places(tiles, order, p, each, K // GROUP, SORTED, FP8, BM)


@gluon.jit
def up(step, count_word, count_fixed, x, xs, ids, slots, w1, w3, s1, s3, tiles, order, h, hs, k, N, K, KB, ldi, pitch1, pitch3, spitch1,
       spitch3, act, beta, linear, SORTED: gl.constexpr, FP8: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """h[route, n] = act(w1 x, w3 x) of rows x [tokens, K]; grid (N / BN, tiles or more), BN = 16 per wave. K = 2 KB is a multiple of
    128, N of BN; a matrix is smaller than 2 GiB. With FP8, rows and what comes out have scales xs, hs, one per 32 values, and BN is a
    multiple of 32: a group is the work of two waves. Without, neither is touched."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(1) < n:
        p, block = share_of(n, N // BN, SORTED)
        mfma: gl.constexpr = results(FP8, gl.num_warps())
        slot = stack_of(tiles, ids, slots, p, k, ldi, SORTED)
        first = block * BN
        ow, os = places(first, KB, K // GROUP, FP8, BN)
        ox, mine, oxs = inputs(tiles, order, p, k, K, SORTED, FP8, BM)
        accs = walk(x, xs, ox, mine, oxs, (w1 + slot * pitch1, w3 + slot * pitch3),
                    (s1 + slot * spitch1, s3 + slot * spitch3), ow, os, K // STEP, FP8, BM, BN, RING, 2)
        PM: gl.constexpr = min(BM, 32)
        flat: gl.constexpr = gl.BlockedLayout([1, 1], [64, 1], [gl.num_warps(), 1], [1, 0])
        columns = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // PM):
            value = activate(accs[2 * i], accs[2 * i + 1], beta, linear, act)
            if FP8:
                scale = scale_of(gl.max(gl.reshape(gl.abs(value), [PM, BN // GROUP, GROUP]), 2))
                wide = gl.reshape(gl.expand_dims(scale, 2).broadcast_to(PM, BN // GROUP, GROUP), [PM, BN])
                value = value * inverse_of(gl.convert_layout(wide, mfma))
                groups = first // GROUP + gl.arange(0, BN // GROUP, layout=gl.SliceLayout(0, flat))
                route, there = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, flat))
                gl.store(hs + scale_at(route[:, None], groups[None, :], N), gl.convert_layout(scale, flat).to(gl.uint8), mask=there[:, None])
            route, there = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(h + route.to(gl.int64)[:, None] * N + columns[None, :], value.to(h.dtype.element_ty), mask=there[:, None])


@gluon.jit
def down(step, count_word, count_fixed, h, hs, ids, slots, w2, s2, tiles, order, o, k, N, NB, K, first, width, ldi, pitch, spitch,
         SORTED: gl.constexpr, FP8: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """o[route, c] = w2[first + c] h[route] as bf16, c < width, of rows h, with FP8 of scales hs; grid (width / BN, tiles or more).
    N = 2 NB is a multiple of 128, width of BN; h has fewer than 2^30 values."""
    n = tile_count(step, count_word, count_fixed, tiles, k, SORTED)
    if gl.program_id(1) < n:
        p, block = share_of(n, width // BN, SORTED)
        mfma: gl.constexpr = results(FP8, gl.num_warps())
        slot = stack_of(tiles, ids, slots, p, k, ldi, SORTED)
        c = block * BN
        ow, os = places(first + c, NB, N // GROUP, FP8, BN)
        ox, mine, oxs = inputs(tiles, order, p, 1, N, SORTED, FP8, BM)
        accs = walk(h, hs, ox, mine, oxs, (w2 + slot * pitch,), (s2 + slot * spitch,), ow, os, N // STEP, FP8, BM, BN, RING, 1)
        PM: gl.constexpr = min(BM, 32)
        columns = c + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // PM):
            route, there = routes_of(tiles, order, p, i * PM, SORTED, PM, gl.SliceLayout(1, mfma))
            gl.store(o + route.to(gl.int64)[:, None] * width + columns[None, :], accs[i].to(gl.bfloat16), mask=there[:, None])
