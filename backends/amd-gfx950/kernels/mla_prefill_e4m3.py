"""Latent attention in expanded form with e4m3 factors: what `mla_prefill` does, by scaled matrix instructions of twice the rate.

Queries, keys and values are MXFP8: e4m3 with a scale for every 32 values that are summed over, queries rounded where they are loaded, keys and
values by `mla_expand_e4m3`. Weights are at most 1 and are multiplied by 2^8, which e4m3 holds, before they are rounded: all down to 2^-14
keep three bits, and since sums of weights have the factor too, their quotient has none. Scores, weights' sums and sums of values are f32.

Half of the matrix cycles leave no room for as much vector work beside them: a step is 128 positions, not 64, so that rescaling sums, the
exchange of greatest scores and what a step costs in any case come half as often. A wave's step is 20 matrix instructions of 64 cycles and
1,296 cycles of vector ones, which are as good as even. Everything else is as there: who does what, the carried sums, the two stages and why
there are rings of three and four. Rejected: rescaling sums only where greatest scores grow much, a branch of a wave's own that the
language does not have; one scale for all keys or values of a head, by which one large column would take bits from all others.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint
from triton.experimental.gluon.language.amd.cdna4 import async_copy

from fp8 import GROUP, inverse_of, scale_of
from mla_expand import TILE, WORDS
from mla_expand_e4m3 import BLOCK, ROPES, SCALES, UNIT
from mla_prefill import C, LOG2_E, N, P, RING, VALUES, job_of, places, seen

# Positions of a step: a unit of scratch.
KEYS = gl.constexpr(128)
# Positions whose scores are one tensor.
HALF = gl.constexpr(64)
# Bytes of LDS for scales of a step.
ROW = gl.constexpr(2048)
# The power of two by which weights are multiplied.
RAISED = gl.constexpr(8.0)


@gluon.jit
def fetch(to, source):
    """Starts the load of a block: 16 bytes a lane, one instruction a wave."""
    layout: gl.constexpr = gl.BlockedLayout([16], [64], [8], [0])
    async_copy.global_load_to_shared(to, source + gl.arange(0, BLOCK, layout=layout))


@gluon.jit
def fetch_keys(keys, slot, blocks, ropes, i):
    """Starts the loads of step i's keys."""
    fetch(keys.index(slot * 3), blocks + i * UNIT)
    fetch(keys.index(slot * 3 + 1), blocks + i * UNIT + BLOCK)
    fetch(keys.index(slot * 3 + 2), ropes + i * ROPES)


@gluon.jit
def fetch_values(values, slot, blocks, i):
    """Starts the loads of step i's values."""
    fetch(values.index(slot * 2), blocks + i * UNIT + 2 * BLOCK)
    fetch(values.index(slot * 2 + 1), blocks + i * UNIT + 3 * BLOCK)


@gluon.jit
def scale_places(blocks, ropes):
    """Where the scales of the first step lie, a word a lane, those of the ropes in four waves so that each asks for some, and how many
    words there are to those of the next."""
    i = gl.arange(0, ROW // 4, layout=gl.BlockedLayout([1], [64], [8], [0]))
    mine = (blocks + 4 * BLOCK).to(gl.pointer_type(gl.int32), bitcast=True) + i
    shared = (ropes + BLOCK).to(gl.pointer_type(gl.int32), bitcast=True) + i % (SCALES // 4)
    return gl.where(i < SCALES, mine, shared), gl.where(i < SCALES, UNIT // 4, ROPES // 4)


@gluon.jit
def block(ring, index, half: gl.constexpr, layout: gl.constexpr):
    """The transpose of 64 of a block's rows as a right factor: inner dimension first."""
    turned: gl.constexpr = gl.SwizzledSharedLayout(16, 8, 4, [1, 0])
    rows = ring.index(index).reinterpret(gl.float8e4nv, [2 * C, C], turned)
    return rows.slice(half * C, C, 0).permute([1, 0]).load(layout)


@gluon.jit
def scales_of(ring, slot, first: gl.constexpr, blocks: gl.constexpr, by_row: gl.constexpr):
    """Scales of one or two blocks from `first` of a step on, a tensor for each 64 rows of each."""
    k_in: gl.constexpr = gl.DotOperandLayout(1, by_row, 16)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    spread: gl.constexpr = gl.SharedLinearLayout([[32, 0], [64, 0], [1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [0, 1]] +
                                                 ([[128, 0]] if blocks == 2 else []))
    whole: gl.constexpr = cdna4.get_mfma_scale_layout(k_in, [blocks * 2 * C, 2])
    part: gl.constexpr = cdna4.get_mfma_scale_layout(k_in, [C, 2])
    bytes: gl.constexpr = blocks * SCALES
    mine = ring.reinterpret(gl.uint8, [VALUES * ROW // bytes, bytes], flat).index(slot * (ROW // bytes) + first // blocks)
    s = mine.reinterpret(gl.uint8, [blocks * 2 * C, 2], spread).load(whole)
    if blocks == 2:
        all = gl.split(s.reshape([2, 2 * C, 2]).permute([1, 2, 0]))
    else:
        all = (s, )
    out = ()
    for i in gl.static_range(blocks):
        a, b = gl.split(all[i].reshape([2, C, 2]).permute([1, 2, 0]))
        out = out + (gl.convert_layout(a, part, assert_trivial=True), gl.convert_layout(b, part, assert_trivial=True))
    return out


@gluon.jit
def query(pq, J: gl.constexpr, scale, by_row: gl.constexpr):
    """Columns J..J + 64 of the tile's queries times scale, in e4m3, and their scales."""
    q_in: gl.constexpr = gl.DotOperandLayout(0, by_row, 16)
    groups: gl.constexpr = C // GROUP
    c = gl.arange(0, C, layout=gl.SliceLayout(0, q_in))
    # The order of keys' values.
    column = J + c // 32 * 32 + c % 16 // 4 * 8 + c % 32 // 16 * 4 + c % 4
    column = gl.max_contiguous(gl.multiple_of(column, 4), 4)
    v = gl.load(pq[:, None] + column[None, :]) * scale
    e = scale_of(gl.max(gl.reshape(gl.abs(v), [TILE, groups, GROUP]), 2))
    wide = gl.reshape(gl.expand_dims(e, 2).broadcast_to(TILE, groups, GROUP), [TILE, C])
    y = (v * inverse_of(gl.convert_layout(wide, q_in, assert_trivial=True))).to(gl.float8e4nv)
    return y, gl.convert_layout(e.to(gl.uint8), cdna4.get_mfma_scale_layout(q_in, [TILE, groups]))


@gluon.jit
def multiplied(q, qs, k, ks, s):
    return cdna4.mfma_scaled(q, qs, "e4m3", k, ks, "e4m3", s)


@gluon.jit
def factor(w, p_in: gl.constexpr):
    """Weights of 64 positions as a left factor, positions in the order of values: no lane gives any away."""
    parts = w.to(gl.float8e4nv).reshape([TILE, HALF // 32, 4, 2, 4]).permute([0, 1, 3, 2, 4])
    return gl.convert_layout(parts.reshape([TILE, HALF]), p_in, assert_trivial=True)


@gluon.jit
def softened(s0, s1, top, total, at, position, lowest, by_row: gl.constexpr, p_in: gl.constexpr):
    """Weights of a step as left factors, greatest scores, sums of weights, and what earlier sums are worth now."""
    if at + KEYS > lowest:
        s0 = seen(s0, at, position, by_row)
        s1 = seen(s1, at + HALF, position, by_row)
    # Every token sees position 0, so that no greatest score is minus infinity behind the first step.
    peak = gl.maximum(top, gl.max(gl.maximum(s0, s1), 1))
    zero = (peak - RAISED)[:, None]
    w0 = gl.exp2(s0 - zero)
    w1 = gl.exp2(s1 - zero)
    # Behind them: the compiler pairs neighbouring subtractions, and one before them would leave each score in the other half of a pair.
    keep = gl.exp2(top - peak)
    total = total * keep + gl.sum(w0 + w1, 1)
    return factor(w0, p_in), factor(w1, p_in), peak, total, keep


@gluon.jit
def finish(acc, total, y, gate, to, real, done):
    """Sums on their way, or, when all keys were seen, their mean with its gate."""
    if done:
        # Both divisions are one, and that by a square: quotients of IEEE form take ten instructions each, for which nothing hides here.
        root = gl.rsqrt(total[:, None] * (1.0 + gl.exp2(gl.load(gate + to) * -LOG2_E)))
        acc = acc * root * root
    gl.store(y + to, acc, mask=real[:, None])


@gluon.jit
def attend(listed, tiles, q, blocks, ropes, state, gate, y, start, size, wave, each, H, ldq, ldy, scale):
    """As `mla_prefill.attend`; `blocks` and `ropes` as `mla_expand_e4m3.expand` leaves them. Grid (16, jobs / 16)."""
    by_row: gl.constexpr = cdna4.AMDMFMALayout(4, [32, 32, 64], True, [8, 1])
    q_in: gl.constexpr = gl.DotOperandLayout(0, by_row, 16)
    k_in: gl.constexpr = gl.DotOperandLayout(1, by_row, 16)
    row_of: gl.constexpr = gl.SliceLayout(1, by_row)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    job, jobs, halves, second = job_of(listed, start, size, wave, each, H)
    h = job % H
    number = job // H
    if job < jobs:
        tile = tiles + number * WORDS
        first = gl.load(tile)
        n = gl.load(tile + 1)
        limit = gl.load(tile + 2)
        base = gl.load(tile + 3)
        begin = gl.maximum(start - base, 0)
        end = gl.minimum(limit, start + size - base)
        if halves:
            middle = begin + (end - begin) // (2 * KEYS) * KEYS
            begin, end = gl.where(second, middle, begin), gl.where(second, end, middle)
        if begin < end:
            steps = (end - begin + KEYS - 1) // KEYS
            unit = (base + begin - start) // KEYS
            blocks += (h.to(gl.int64) * (size // KEYS) + unit) * UNIT
            ropes += unit.to(gl.int64) * ROPES
            keys = gl.allocate_shared_memory(gl.uint8, [RING * 3, BLOCK], flat)
            values = gl.allocate_shared_memory(gl.uint8, [VALUES * 2, BLOCK], flat)
            scales = gl.allocate_shared_memory(gl.int32, [VALUES, ROW // 4], flat)
            ps, stride = scale_places(blocks, ropes)
            fetch_keys(keys, 0, blocks, ropes, 0)
            fetch_values(values, 0, blocks, 0)
            async_copy.global_load_to_shared(scales.index(0), ps)
            second_step = gl.minimum(1, steps - 1)
            fetch_keys(keys, 1, blocks, ropes, second_step)
            fetch_values(values, 1, blocks, second_step)
            async_copy.global_load_to_shared(scales.index(1), ps + second_step * stride)
            async_copy.commit_group()

            m_in = gl.minimum(gl.arange(0, TILE, layout=gl.SliceLayout(1, q_in)), n - 1)
            pq = q + (first.to(gl.int64) * ldq + h * (N + P)) + m_in * ldq
            # One after the other: values in f32 take four times the registers.
            q0, qs0 = query(pq, 0, scale, by_row)
            hint.sched_barrier()
            q1, qs1 = query(pq, 64, scale, by_row)
            hint.sched_barrier()
            q2, qs2 = query(pq, 128, scale, by_row)
            hint.sched_barrier()
            position = limit - n + gl.minimum(gl.arange(0, TILE, layout=row_of), n - 1)
            lowest = limit - n + 1
            if begin > 0:
                low, high, pair = places(tile, H, h, ldy, by_row)
                acc0 = gl.load(y + low)
                acc1 = gl.load(y + high)
                top = gl.load(state + pair)
                total = gl.load(state + pair + 1)
            else:
                acc0 = gl.zeros([TILE, C], gl.float32, by_row)
                acc1 = gl.zeros([TILE, C], gl.float32, by_row)
                top = gl.full([TILE], float("-inf"), gl.float32, row_of)
                total = gl.zeros([TILE], gl.float32, row_of)
            async_copy.wait_group(0)
            ks = scales_of(scales, 0, 0, 2, by_row)
            rs = scales_of(scales, 0, 4, 1, by_row)
            none = gl.zeros([TILE, HALF], gl.float32, by_row)
            s0 = multiplied(q0, qs0, block(keys, 0, 0, k_in), ks[0], none)
            s0 = multiplied(q1, qs1, block(keys, 1, 0, k_in), ks[2], s0)
            s0 = multiplied(q2, qs2, block(keys, 2, 0, k_in), rs[0], s0)
            s1 = multiplied(q0, qs0, block(keys, 0, 1, k_in), ks[1], none)
            s1 = multiplied(q1, qs1, block(keys, 1, 1, k_in), ks[3], s1)
            s1 = multiplied(q2, qs2, block(keys, 2, 1, k_in), rs[1], s1)
            for i in range(0, steps - 1):
                with gl.amd.warp_pipeline_stage("soften", priority=1):
                    ahead = gl.minimum(i + 2, steps - 1)
                    fetch_keys(keys, (i + 2) % RING, blocks, ropes, ahead)
                    fetch_values(values, (i + 2) % VALUES, blocks, ahead)
                    async_copy.global_load_to_shared(scales.index((i + 2) % VALUES), ps + ahead * stride)
                    async_copy.commit_group()
                    p0, p1, top, total, keep = softened(s0, s1, top, total, begin + i * KEYS, position, lowest, by_row, q_in)
                    acc0 = acc0 * keep[:, None]
                    acc1 = acc1 * keep[:, None]
                    vs = scales_of(scales, i % VALUES, 2, 2, by_row)
                    v00 = block(values, i % VALUES * 2, 0, k_in)
                with gl.amd.warp_pipeline_stage("multiply", priority=0):
                    slot = (i + 1) % RING
                    now = i % VALUES * 2
                    ks = scales_of(scales, (i + 1) % VALUES, 0, 2, by_row)
                    rs = scales_of(scales, (i + 1) % VALUES, 4, 1, by_row)
                    v01 = block(values, now, 1, k_in)
                    hint.sched_barrier()
                    acc0 = multiplied(p0, None, v00, vs[0], acc0)
                    hint.sched_barrier()
                    v10 = block(values, now + 1, 0, k_in)
                    hint.sched_barrier()
                    acc1 = multiplied(p0, None, v01, vs[1], acc1)
                    hint.sched_barrier()
                    v11 = block(values, now + 1, 1, k_in)
                    hint.sched_barrier()
                    acc0 = multiplied(p1, None, v10, vs[2], acc0)
                    hint.sched_barrier()
                    k00 = block(keys, slot * 3, 0, k_in)
                    hint.sched_barrier()
                    acc1 = multiplied(p1, None, v11, vs[3], acc1)
                    hint.sched_barrier()
                    k10 = block(keys, slot * 3 + 1, 0, k_in)
                    hint.sched_barrier()
                    s0 = multiplied(q0, qs0, k00, ks[0], gl.zeros([TILE, HALF], gl.float32, by_row))
                    hint.sched_barrier()
                    k20 = block(keys, slot * 3 + 2, 0, k_in)
                    hint.sched_barrier()
                    s0 = multiplied(q1, qs1, k10, ks[2], s0)
                    hint.sched_barrier()
                    k01 = block(keys, slot * 3, 1, k_in)
                    hint.sched_barrier()
                    s0 = multiplied(q2, qs2, k20, rs[0], s0)
                    hint.sched_barrier()
                    k11 = block(keys, slot * 3 + 1, 1, k_in)
                    hint.sched_barrier()
                    s1 = multiplied(q0, qs0, k01, ks[1], gl.zeros([TILE, HALF], gl.float32, by_row))
                    hint.sched_barrier()
                    k21 = block(keys, slot * 3 + 2, 1, k_in)
                    hint.sched_barrier()
                    s1 = multiplied(q1, qs1, k11, ks[3], s1)
                    s1 = multiplied(q2, qs2, k21, rs[1], s1)
                async_copy.wait_group(0)
            p0, p1, top, total, keep = softened(s0, s1, top, total, begin + (steps - 1) * KEYS, position, lowest, by_row, q_in)
            slot = (steps - 1) % VALUES
            vs = scales_of(scales, slot, 2, 2, by_row)
            acc0 = multiplied(p0, None, block(values, slot * 2, 0, k_in), vs[0], acc0 * keep[:, None])
            acc1 = multiplied(p0, None, block(values, slot * 2, 1, k_in), vs[1], acc1 * keep[:, None])
            acc0 = multiplied(p1, None, block(values, slot * 2 + 1, 0, k_in), vs[2], acc0)
            acc1 = multiplied(p1, None, block(values, slot * 2 + 1, 1, k_in), vs[3], acc1)
            done = end == limit
            real = gl.arange(0, TILE, layout=row_of) < gl.load(tile + 1)
            low, high, pair = places(tile, H, h, ldy, by_row)
            finish(acc0, total, y, gate, low, real, done)
            finish(acc1, total, y, gate, high, real, done)
            if end < limit:
                gl.store(state + pair, top, mask=real)
                gl.store(state + pair + 1, total, mask=real)
