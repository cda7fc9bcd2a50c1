"""Latent attention for a latent part of 512 and 64 values behind it, cache read once for all heads and query rows of a tile.

A tile is up to TQ consecutive tokens of a request times H heads: ROWS rows of scores. Keys are cut into splits of fixed length,
whatever the batch; a work-group takes one (tile, split), walks its keys in steps of KEYS, and leaves a partial sum to `merge`,
or, where a token sees one split alone, its result. Key and value are the same bytes: a step's rows go to LDS by direct loads
(a ring of STAGES, so that loads are STAGES - 1 steps ahead), are read along the row for scores, and transposed for the sum.

Waves own 16 rows each in the scores, so that softmax stays inside a wave and queries stay in registers, and 512 / waves latent
columns each in the sum; weights pass through LDS in between. Keys behind the last one wanted read the last one again and weigh
nothing; rows behind the last pair repeat it and are not stored. A step behind the end reads one line, for nobody.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4
from triton.experimental.gluon.language.amd.cdna4 import async_copy

import step as st

# Values of a cache row: latent ones, those behind, all.
R = gl.constexpr(512)
P = gl.constexpr(64)
W = gl.constexpr(576)
LOOK = gl.constexpr(64)


@gluon.jit
def items_of(step, item, TQ, split_bits):
    """Of work item `item`: its row of the step, the tile's place in it, the split; and how many items there are.

    Items are ordered by row, tile, split. LOOK rows are looked through at a time, the same in every wave.
    """
    lanes: gl.constexpr = gl.BlockedLayout([1], [64], [gl.num_warps()], [0])
    n_rows = gl.load(step + st.N_ROWS)
    rows = step + gl.load(step + st.ROWS_OFFSET) // 4
    before, row, rest, splits = 0, 0, 0, 0
    for at in range(0, n_rows, LOOK):
        i = at + gl.arange(0, LOOK, layout=lanes)
        length = gl.load(rows + i * st.ROW_WORDS + 3, mask=i < n_rows, other=0)
        computed = gl.load(rows + i * st.ROW_WORDS + 1, mask=i < n_rows, other=0)
        each = (computed + length + (1 << split_bits) - 1) >> split_bits
        count = (length + TQ - 1) // TQ * each
        ends = before + gl.cumsum(count, 0)
        mine = (item >= ends - count) & (item < ends)
        row += gl.sum(gl.where(mine, i, 0), 0)
        rest += gl.sum(gl.where(mine, item - (ends - count), 0), 0)
        splits += gl.sum(gl.where(mine, each, 0), 0)
        before += gl.sum(count, 0)
    splits = gl.maximum(splits, 1)
    return row, rest // splits, rest % splits, before


@gluon.jit
def fetch(latent, rope, cache, at, end, limit, computed, branch, pages, last_page, page_bits, ldc, V: gl.constexpr,
          KEYS: gl.constexpr):
    """Starts the loads of the rows of positions at..at + KEYS into two LDS tiles, a page lookup per step.

    A step's rows lie in one page before `computed`, in at most two from there on: KEYS divides a page.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, V], [64 * V // R, R // V], [gl.num_warps(), 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, V], [64 * V // P, P // V], [gl.num_warps(), 1], [1, 0])
    mask = (1 << page_bits) - 1
    first = gl.minimum(at, limit - 1)
    first = gl.where(first < computed, first, first + branch) >> page_bits
    second = gl.minimum(gl.maximum(at, computed) + branch, limit - 1 + branch) >> page_bits
    second = gl.where(at + KEYS <= computed, first, gl.minimum(second, last_page))
    third = gl.minimum(second + 1, last_page)
    a = gl.load(pages + first).to(gl.int64) * ldc
    b = gl.load(pages + second).to(gl.int64) * ldc
    c = gl.load(pages + third).to(gl.int64) * ldc

    p = gl.minimum(at + gl.arange(0, KEYS, layout=gl.SliceLayout(1, wide)), limit - 1)
    r = gl.where(p < computed, p, p + branch)
    page = r >> page_bits
    base = gl.where(page == first, a, gl.where(page == second, b, c)) + (r & mask) * W
    pointer = cache + base[:, None] + gl.arange(0, R, layout=gl.SliceLayout(0, wide))[None, :]
    async_copy.global_load_to_shared(latent, pointer)
    p = gl.minimum(at + gl.arange(0, KEYS, layout=gl.SliceLayout(1, narrow)), limit - 1)
    r = gl.where(p < computed, p, p + branch)
    page = r >> page_bits
    base = gl.where(page == first, a, gl.where(page == second, b, c)) + (r & mask) * W
    pointer = cache + base[:, None] + (R + gl.arange(0, P, layout=gl.SliceLayout(0, narrow)))[None, :]
    async_copy.global_load_to_shared(rope, pointer)
    async_copy.commit_group()


@gluon.jit
def query(q, first, m, H, ldq, C: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
    """Columns C..C + N of the queries of pairs m, as bf16."""
    pq = q + (first + m // H).to(gl.int64) * ldq + m % H * W
    return gl.load(pq[:, None] + (C + gl.arange(0, N, layout=gl.SliceLayout(0, layout)))[None, :]).to(gl.bfloat16)


@gluon.jit
def finish(acc, total, y, partial, sums, first, pairs, H, position, split, split_bits, NS, ldy, AT: gl.constexpr, N: gl.constexpr,
           layout: gl.constexpr):
    """Stores rows AT..AT + N of a split's sums: results where the pair's token sees one split alone, else bf16 for `merge`."""
    m = AT + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, R, layout=gl.SliceLayout(0, layout))[None, :]
    real = m < pairs
    m = gl.minimum(m, pairs - 1)
    t = (first + m // H).to(gl.int64)
    out = acc * (1.0 / total)[:, None]
    alone = position >> split_bits == 0
    gl.store(y + (t * ldy + m % H * R)[:, None] + c, out, mask=(real & alone)[:, None])
    place = (t * H + m % H) * NS + split
    gl.store(partial + (place * R)[:, None] + c, out.to(gl.bfloat16), mask=(real & (position >> split_bits >= gl.maximum(split, 1)))[:, None])


@gluon.jit
def decode(step, q, cache, table, y, partial, sums, H, TQ, width, page_bits, split_bits, NS, ldq, ldc, ldy, scale,
           ROWS: gl.constexpr, RA: gl.constexpr, RB: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr):
    """y[t, h] = softmax(scale q[t, h] . row) . row[:512], or its parts; any grid (groups): work items are dealt out.

    RA + RB rows are summed, of ROWS. partial [T, H, NS, 512] bf16 and sums [T, H, NS, 2] (greatest score in bits, sum of
    weights) are for `merge`. `scale` is in bits. Pages are of 2^page_bits tokens, splits of 2^split_bits.
    """
    NW: gl.constexpr = gl.num_warps()
    V: gl.constexpr = 128 // cache.dtype.element_ty.primitive_bitwidth
    by_row: gl.constexpr = cdna4.AMDMFMALayout(4, [16, 16, 32], True, [NW, 1])
    by_column: gl.constexpr = cdna4.AMDMFMALayout(4, [16, 16, 32], True, [1, NW])
    q_in: gl.constexpr = gl.DotOperandLayout(0, by_row, 8)
    k_in: gl.constexpr = gl.DotOperandLayout(1, by_row, 8)
    p_in: gl.constexpr = gl.DotOperandLayout(0, by_column, 8)
    v_in: gl.constexpr = gl.DotOperandLayout(1, by_column, 8)
    row_of: gl.constexpr = gl.SliceLayout(1, by_row)
    sum_of: gl.constexpr = gl.SliceLayout(1, by_column)
    # A wave's load fills 1 KiB of LDS without gaps; the padding behind it moves the next row to other banks.
    pad: gl.constexpr = [[64 * V, 2 * V]]
    latents = gl.allocate_shared_memory(cache.dtype.element_ty, [STAGES, KEYS, R], gl.PaddedSharedLayout.with_identity_for(pad, [KEYS, R], [1, 0]))
    ropes = gl.allocate_shared_memory(cache.dtype.element_ty, [STAGES, KEYS, P], gl.PaddedSharedLayout.with_identity_for(pad, [KEYS, P], [1, 0]))
    weights = gl.allocate_shared_memory(gl.bfloat16, [ROWS, KEYS], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    factors = gl.allocate_shared_memory(gl.float32, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    places = gl.allocate_shared_memory(gl.int32, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    rows = step + gl.load(step + st.ROWS_OFFSET) // 4
    tokens = step + gl.load(step + st.TOKENS_OFFSET) // 4
    _, _, _, items = items_of(step, 0, TQ, split_bits)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        row, tile, split, _ = items_of(step, item, TQ, split_bits)
        request = rows + row * st.ROW_WORDS
        pages = table + gl.load(request).to(gl.int64) * width
        computed = gl.load(request + 1)
        branch = gl.load(request + 7)
        first = gl.load(request + 2) + tile * TQ
        n = gl.minimum(gl.load(request + 3) - tile * TQ, TQ)
        pairs = n * H
        limit = gl.load(tokens + (first + n - 1) * st.TOKEN_WORDS + 1) + 1
        last_page = gl.where(limit - 1 < computed, limit - 1, limit - 1 + branch) >> page_bits
        begin = split << split_bits
        end = gl.minimum(begin + (1 << split_bits), limit)
        if begin < end:
            steps = (end - begin + KEYS - 1) // KEYS
            for j in gl.static_range(STAGES - 1):
                fetch(latents.index(j), ropes.index(j), cache, begin + j * KEYS, end, limit, computed, branch, pages, last_page,
                      page_bits, ldc, V, KEYS)
            m_in = gl.minimum(gl.arange(0, ROWS, layout=gl.SliceLayout(1, q_in)), pairs - 1)
            q0 = query(q, first, m_in, H, ldq, 0, 128, q_in)
            q1 = query(q, first, m_in, H, ldq, 128, 128, q_in)
            q2 = query(q, first, m_in, H, ldq, 256, 128, q_in)
            q3 = query(q, first, m_in, H, ldq, 384, 128, q_in)
            q4 = query(q, first, m_in, H, ldq, 512, 64, q_in)
            m = gl.minimum(gl.arange(0, ROWS, layout=row_of), pairs - 1)
            position = gl.load(tokens + (first + m // H) * st.TOKEN_WORDS + 1)
            top = gl.full([ROWS], float("-inf"), gl.float32, row_of)
            total = gl.zeros([ROWS], gl.float32, row_of)
            acc = gl.zeros([RA, R], gl.float32, by_column)
            if RB > 0:
                more = gl.zeros([RB, R], gl.float32, by_column)
            slot = 0
            for i in range(steps):
                async_copy.wait_group(STAGES - 2)
                latent = latents.index(slot)
                rope = ropes.index(slot)
                ahead = gl.where(slot == 0, STAGES - 1, slot - 1)
                at = begin + i * KEYS
                fetch(latents.index(ahead), ropes.index(ahead), cache, at + (STAGES - 1) * KEYS, end, limit, computed, branch, pages,
                      last_page, page_bits, ldc, V, KEYS)
                s = gl.zeros([ROWS, KEYS], gl.float32, by_row)
                s = cdna4.mfma(q0, latent.slice(0, 128, 1).permute([1, 0]).load(k_in).to(gl.bfloat16), s)
                s = cdna4.mfma(q1, latent.slice(128, 128, 1).permute([1, 0]).load(k_in).to(gl.bfloat16), s)
                s = cdna4.mfma(q2, latent.slice(256, 128, 1).permute([1, 0]).load(k_in).to(gl.bfloat16), s)
                s = cdna4.mfma(q3, latent.slice(384, 128, 1).permute([1, 0]).load(k_in).to(gl.bfloat16), s)
                s = cdna4.mfma(q4, rope.permute([1, 0]).load(k_in).to(gl.bfloat16), s)
                key = at + gl.arange(0, KEYS, layout=gl.SliceLayout(0, by_row))
                wanted = key[None, :] <= gl.minimum(position, end - 1)[:, None]
                s = gl.where(wanted, s * scale, float("-inf"))
                peak = gl.maximum(top, gl.max(s, 1))
                # A row may see nothing of a split: minus infinity less itself is no number.
                shift = gl.where(peak == float("-inf"), 0.0, peak)
                keep = gl.exp2(top - shift)
                w = gl.exp2(s - shift[:, None])
                total = total * keep + gl.sum(w, 1)
                top = peak
                weights.store(w.to(gl.bfloat16))
                factors.store(keep)
                v = latent.load(v_in).to(gl.bfloat16)
                acc = acc * factors.slice(0, RA).load(sum_of)[:, None]
                acc = cdna4.mfma(weights.slice(0, RA).load(p_in), v, acc)
                if RB > 0:
                    more = more * factors.slice(RA, RB).load(sum_of)[:, None]
                    more = cdna4.mfma(weights.slice(RA, RB).load(p_in), v, more)
                slot = gl.where(slot == STAGES - 1, 0, slot + 1)
            async_copy.wait_group(0)
            m = gl.arange(0, ROWS, layout=row_of)
            place = ((first + m // H).to(gl.int64) * H + m % H) * NS + split
            kept = (m < pairs) & (position >> split_bits >= gl.maximum(split, 1))
            gl.store(sums + place * 2, top, mask=kept)
            gl.store(sums + place * 2 + 1, total, mask=kept)
            factors.store(gl.where(total > 0.0, total, 1.0))
            places.store(position)
            finish(acc, factors.slice(0, RA).load(sum_of), y, partial, sums, first, pairs, H, places.slice(0, RA).load(sum_of), split,
                   split_bits, NS, ldy, 0, RA, by_column)
            if RB > 0:
                finish(more, factors.slice(RA, RB).load(sum_of), y, partial, sums, first, pairs, H, places.slice(RA, RB).load(sum_of), split,
                       split_bits, NS, ldy, RA, RB, by_column)
