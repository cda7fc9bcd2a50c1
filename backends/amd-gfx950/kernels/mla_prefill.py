"""Latent attention in expanded form: queries of 128 + 64 values against keys and values per head, which `mla_expand` put into scratch.

A work-group owns a tile of up to 256 tokens of a request and a head, 32 tokens a wave, so that softmax stays inside a wave and
queries, weights and sums stay in registers. It walks the positions that scratch holds 64 at a time. What is behind scratch's
end comes with the next launch: sums, greatest scores and weights' sums are carried in f32, and since steps of 64 begin at multiples of
64 of the request's positions, where one launch ends and the next begins changes no bit.

Two groups of four waves, one on each SIMD, work in turns (ping-pong): while one multiplies (weights with values, then queries with
the next keys), the other one takes the softmax of its scores and asks for the keys and values of two steps later. Barriers keep them
one stage apart. Bytes are asked for by both groups, half each, and each waits for its half at the end of its stage that multiplies. The
other group may be a stage behind, so the keys of step i + 1, first used where step i is multiplied, are there since i - 1, and a ring
of three holds them. The first values of step i are used a stage earlier, where its softmax is taken, and meanwhile the other group still
multiplies step i - 1: a ring of four. Inside the stage that multiplies, each block is read while the one before it is multiplied.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint
from triton.experimental.gluon.language.amd.cdna4 import async_copy

from mla_expand import TILE, WORDS

# Query values that meet a head's own keys, those that meet all heads' keys, columns of a block.
N = gl.constexpr(128)
P = gl.constexpr(64)
C = gl.constexpr(64)
# Positions of a step.
KEYS = gl.constexpr(64)
# Values of a block.
BLOCK = gl.constexpr(4096)
# Steps whose keys and whose values LDS holds.
RING = gl.constexpr(3)
VALUES = gl.constexpr(4)
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def fetch(to, source):
    """Starts the load of a block: 16 bytes a lane, one instruction a wave."""
    layout: gl.constexpr = gl.BlockedLayout([8], [64], [8], [0])
    async_copy.global_load_to_shared(to, source + gl.arange(0, BLOCK, layout=layout))


@gluon.jit
def fetch_keys(keys, slot, blocks, ropes, i):
    """Starts the loads of step i's keys."""
    fetch(keys.index(slot * 3), blocks + i * (4 * BLOCK))
    fetch(keys.index(slot * 3 + 1), blocks + i * (4 * BLOCK) + BLOCK)
    fetch(keys.index(slot * 3 + 2), ropes + i * BLOCK)


@gluon.jit
def fetch_values(values, slot, blocks, i):
    """Starts the loads of step i's values."""
    fetch(values.index(slot * 2), blocks + i * (4 * BLOCK) + 2 * BLOCK)
    fetch(values.index(slot * 2 + 1), blocks + i * (4 * BLOCK) + 3 * BLOCK)


@gluon.jit
def block(ring, index, layout: gl.constexpr):
    """A block's transpose as a right factor: inner dimension first."""
    turned: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 8, [1, 0])
    return ring.index(index).reinterpret(gl.bfloat16, [C, C], turned).permute([1, 0]).load(layout)


@gluon.jit
def query(pq, J: gl.constexpr, scale, layout: gl.constexpr):
    """Columns J..J + 64 of the tile's queries times scale, as bf16."""
    column = J + gl.arange(0, C, layout=gl.SliceLayout(0, layout))
    return (gl.load(pq[:, None] + column[None, :]) * scale).to(gl.bfloat16)


@gluon.jit
def scored(q0, q1, q2, keys, slot, by_row: gl.constexpr, k_in: gl.constexpr):
    s = gl.zeros([TILE, KEYS], gl.float32, by_row)
    s = cdna4.mfma(q0, block(keys, slot * 3, k_in), s)
    s = cdna4.mfma(q1, block(keys, slot * 3 + 1, k_in), s)
    return cdna4.mfma(q2, block(keys, slot * 3 + 2, k_in), s)


@gluon.jit
def seen(s, at, position, by_row: gl.constexpr):
    """Scores of keys at..at + 64, those behind a token's position being minus infinity.

    A lane has one token's keys 8 i + 4 j + k, j by lane: so written, i and k are constants, which cost no registers.
    """
    parts = s.reshape([TILE, 8, 2, 4])
    layout: gl.constexpr = parts.type.layout
    i = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout))))
    j = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, layout))))
    k = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout))))
    last = gl.convert_layout(position - at, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout))), assert_trivial=True)
    last = last[:, None, None, None] - 4 * j[None, None, :, None]
    parts = gl.where(8 * i[None, :, None, None] + k[None, None, None, :] <= last, parts, float("-inf"))
    return gl.convert_layout(parts.reshape([TILE, KEYS]), by_row, assert_trivial=True)


@gluon.jit
def softened(s, top, total, at, position, lowest, by_row: gl.constexpr, p_in: gl.constexpr):
    """Weights of a step as a left factor, greatest scores, sums of weights, and what earlier sums are worth now."""
    if at + KEYS > lowest:
        s = seen(s, at, position, by_row)
    # Every token sees position 0, so that no greatest score is minus infinity behind the first step.
    peak = gl.maximum(top, gl.max(s, 1))
    keep = gl.exp2(top - peak)
    w = gl.exp2(s - peak[:, None])
    total = total * keep + gl.sum(w, 1)
    return gl.convert_layout(w.to(gl.bfloat16), p_in), peak, total, keep


@gluon.jit
def places(tile, H, h, ld, layout: gl.constexpr):
    """Offsets of the tile's rows in [T, H, 128], columns 0..64 and 64..128, and in [T, H, 2].

    Everything comes from the list again: addresses that were kept through the loop would cost it registers.
    """
    t = gl.load(tile) + gl.minimum(gl.arange(0, TILE, layout=gl.SliceLayout(1, layout)), gl.load(tile + 1) - 1)
    c = gl.arange(0, C, layout=gl.SliceLayout(0, layout))
    row = (t.to(gl.int64) * ld + h * N)[:, None]
    return row + c[None, :], row + (C + c)[None, :], (t.to(gl.int64) * H + h) * 2


@gluon.jit
def finish(acc, total, y, gate, to, real, done):
    """Sums on their way, or, when all keys were seen, their mean with its gate."""
    if done:
        opening = 1.0 / (1.0 + gl.exp2(gl.load(gate + to) * -LOG2_E))
        acc = acc / total[:, None] * opening
    gl.store(y + to, acc, mask=real[:, None])


@gluon.jit
def job_of(listed, start, size, wave, each, H):
    """This work-group's job of `attend`, how many there are, whether there are two a tile, and whether this is a second one."""
    jobs = gl.load(listed + 1) * H
    halves = (jobs >= each) & (gl.load(listed + 3) >= start + size)
    job = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    # What is behind the launch's jobs has none.
    job = gl.where(halves & (job >= each), 2 * jobs, job) + wave * each
    second = halves & (job >= jobs)
    job = gl.where(second, job - jobs, job)
    return job, jobs, halves, second


@gluon.jit
def attend(listed, tiles, q, blocks, ropes, state, gate, y, start, size, wave, each, H, ldq, ldy, scale):
    """y[t, h] = sigmoid(gate[t, h]) softmax(scale q[t, h] . keys) . values over positions 0..p of the tokens in `tiles`.

    This launch adds the positions that scratch holds, `start`..start + `size` of the contexts one behind the other; until a token
    has seen all of its own, y holds sums and `state` [T, H, 2] greatest scores and sums of weights. `scale` is in bits. Heads of a
    tile are neighbours, so that a head's keys are in few L2s, and the longest tiles come first: jobs are tiles * H. Grid (16, jobs / 16).

    Where all of these positions come before the first request's tokens, its tiles take equally long, and a number of them that is no
    multiple of the compute units leaves many idle. There are two jobs a tile then, one for each half of the positions, in
    launches of `each`: the second halves follow the first ones, so that both halves of a tile are in different launches, `wave` being the
    launch's number. Rows behind a tile's last token repeat it and are not stored; steps behind the last one
    that are asked for ahead are the last one again.
    """
    by_row: gl.constexpr = cdna4.AMDMFMALayout(4, [32, 32, 16], True, [8, 1])
    q_in: gl.constexpr = gl.DotOperandLayout(0, by_row, 8)
    k_in: gl.constexpr = gl.DotOperandLayout(1, by_row, 8)
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
            at_block = (base + begin - start) // KEYS
            blocks += (h.to(gl.int64) * (size // KEYS) + at_block) * (4 * BLOCK)
            ropes += at_block.to(gl.int64) * BLOCK
            keys = gl.allocate_shared_memory(gl.bfloat16, [RING * 3, BLOCK], flat)
            values = gl.allocate_shared_memory(gl.bfloat16, [VALUES * 2, BLOCK], flat)
            fetch_keys(keys, 0, blocks, ropes, 0)
            fetch_values(values, 0, blocks, 0)
            fetch_keys(keys, 1, blocks, ropes, gl.minimum(1, steps - 1))
            fetch_values(values, 1, blocks, gl.minimum(1, steps - 1))
            async_copy.commit_group()

            m_in = gl.minimum(gl.arange(0, TILE, layout=gl.SliceLayout(1, q_in)), n - 1)
            pq = q + (first.to(gl.int64) * ldq + h * (N + P)) + m_in * ldq
            # One after the other: values in f32 take twice the registers.
            q0 = query(pq, 0, scale, q_in)
            hint.sched_barrier()
            q1 = query(pq, 64, scale, q_in)
            hint.sched_barrier()
            q2 = query(pq, 128, scale, q_in)
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
            s = scored(q0, q1, q2, keys, 0, by_row, k_in)
            for i in range(0, steps - 1):
                with gl.amd.warp_pipeline_stage("soften", priority=1):
                    ahead = gl.minimum(i + 2, steps - 1)
                    fetch_keys(keys, (i + 2) % RING, blocks, ropes, ahead)
                    fetch_values(values, (i + 2) % VALUES, blocks, ahead)
                    async_copy.commit_group()
                    p, top, total, keep = softened(s, top, total, begin + i * KEYS, position, lowest, by_row, q_in)
                    acc0 = acc0 * keep[:, None]
                    acc1 = acc1 * keep[:, None]
                    v0 = block(values, i % VALUES * 2, k_in)
                with gl.amd.warp_pipeline_stage("multiply", priority=0):
                    slot = (i + 1) % RING * 3
                    v1 = block(values, i % VALUES * 2 + 1, k_in)
                    hint.sched_barrier()
                    acc0 = cdna4.mfma(p, v0, acc0)
                    hint.sched_barrier()
                    k0 = block(keys, slot, k_in)
                    hint.sched_barrier()
                    acc1 = cdna4.mfma(p, v1, acc1)
                    hint.sched_barrier()
                    k1 = block(keys, slot + 1, k_in)
                    hint.sched_barrier()
                    s = cdna4.mfma(q0, k0, gl.zeros([TILE, KEYS], gl.float32, by_row))
                    hint.sched_barrier()
                    k2 = block(keys, slot + 2, k_in)
                    hint.sched_barrier()
                    s = cdna4.mfma(q1, k1, s)
                    s = cdna4.mfma(q2, k2, s)
                async_copy.wait_group(0)
            p, top, total, keep = softened(s, top, total, begin + (steps - 1) * KEYS, position, lowest, by_row, q_in)
            slot = (steps - 1) % VALUES
            acc0 = cdna4.mfma(p, block(values, slot * 2, k_in), acc0 * keep[:, None])
            acc1 = cdna4.mfma(p, block(values, slot * 2 + 1, k_in), acc1 * keep[:, None])
            done = end == limit
            real = gl.arange(0, TILE, layout=row_of) < gl.load(tile + 1)
            low, high, pair = places(tile, H, h, ldy, by_row)
            finish(acc0, total, y, gate, low, real, done)
            finish(acc1, total, y, gate, high, real, done)
            if end < limit:
                gl.store(state + pair, top, mask=real)
                gl.store(state + pair + 1, total, mask=real)
