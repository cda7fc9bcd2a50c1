"""Latent attention for a latent part of 512 and 64 values behind it, cache read once for all heads and query rows of a tile.

A tile is a few consecutive tokens of a request times H heads: at most ROWS rows of scores. Keys are cut into splits of fixed
length, whatever the batch (`mla_split`); a work-group takes one (tile, split), walks its keys in steps of KEYS, and leaves a part
to `merge`, or, where a token sees one split alone, its result. With FOLD it walks all splits of a tile and does the adding up.

Key and value are the same bytes: a step's rows go to LDS by direct loads (a ring of STAGES, so that loads are STAGES - 1 steps
ahead), are read along the row for scores, and transposed for the sum. Waves own 16 or 32 rows each in the scores, so that
softmax stays inside a wave and queries stay in registers, and 512 / waves latent columns each in the sum; weights pass through
LDS in between. Keys behind the last one wanted read the last one again and weigh nothing, also in the steps that are loaded
ahead at the end; rows behind the last pair repeat it and are not stored.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4, hint
from triton.experimental.gluon.language.amd.cdna4 import async_copy

import mla_parts as parts
from mla_split import HEAD, WORDS

# Values of a cache row: latent ones, those behind, all.
R = gl.constexpr(512)
P = gl.constexpr(64)
W = gl.constexpr(576)


@gluon.constexpr_function
def powers(low, high, column):
    """Bases of a layout: rows or columns low, 2 low, ... below high."""
    steps = [low << i for i in range((high // low).bit_length() - 1)]
    return [[0, step] if column else [step, 0] for step in steps]


@gluon.constexpr_function
def in_memory(V, keys, latent):
    """Where a tile's values lie in LDS: the 16 rows that are read together are in as many banks as they have bytes.

    A wave's load fills 1 KiB without gaps; the padding behind it moves the next one to other banks. Rows that share a KiB are
    far from each other, so that they are not read together, or begin in different banks.
    """
    row = 512 if latent else 64
    if latent:
        # One row of bf16 to a KiB, two of e4m3.
        order = powers(1, keys, False) if V == 8 else powers(16, 32, False) + powers(1, 16, False) + powers(32, keys, False)
    else:
        # Eight rows to a KiB, or sixteen: every fourth one.
        order = powers(4, keys, False) + powers(1, 4, False)
    return gl.PaddedSharedLayout([[64 * V, 16]], powers(1, row, True) + order, [], [keys, row])


@gluon.constexpr_function
def in_lanes(V, keys, latent):
    """Which lane loads what, so that a wave's load is contiguous in LDS: four waves."""
    bases = in_memory(V, keys, latent).offset_bases
    n = V.bit_length() - 1
    return gl.DistributedLinearLayout(bases[:n] + bases[n + 8:], bases[n:n + 6], bases[n + 6:n + 8], [], [keys, 512 if latent else 64])


@gluon.jit
def locate(pages, at, end, computed, branch, page_bits, KEYS: gl.constexpr):
    """Pages of the rows of positions at..at + KEYS: (the first row's index of a page, that of the first row behind `computed`,
    and the numbers of these two pages and of the one behind).

    Rows lie in one page before `computed`, KEYS being a divisor of a page, and in at most two from there on.
    """
    last = end - 1
    last_page = gl.where(last < computed, last, last + branch) >> page_bits
    first = gl.minimum(at, last)
    first = gl.where(first < computed, first, first + branch) >> page_bits
    second = gl.minimum((gl.minimum(gl.maximum(at, computed), last) + branch) >> page_bits, last_page)
    second = gl.where(at + KEYS <= computed, first, second)
    third = gl.minimum(second + 1, last_page)
    return first, second, gl.load(pages + first), gl.load(pages + second), gl.load(pages + third)


@gluon.jit
def fetch(latent, rope, cache, at, end, computed, branch, first, second, a, b, c, page_bits, ldc, V: gl.constexpr,
          KEYS: gl.constexpr, TIGHT: gl.constexpr):
    """Starts the loads of the rows of positions at..at + KEYS, located, into two LDS tiles. TIGHT: few registers are left."""
    PART: gl.constexpr = 8 if V == 8 else 32
    wide: gl.constexpr = in_lanes(V, PART, True)
    narrow: gl.constexpr = in_lanes(V, KEYS, False)
    mask = (1 << page_bits) - 1
    column = gl.arange(0, R, layout=gl.SliceLayout(0, wide))[None, :]
    behind = (R + gl.arange(0, P, layout=gl.SliceLayout(0, narrow)))[None, :]
    if TIGHT:
        straight = False
    else:
        straight = (at + KEYS <= end) & ((branch == 0) | (at + KEYS <= computed))
    if straight:
        # All rows are wanted and follow each other in a page: addresses are one scalar and what stays the same.
        source = cache + (a.to(gl.int64) * ldc + (at & mask) * W)
        for part in gl.static_range(KEYS // PART):
            row = part * PART + gl.arange(0, PART, layout=gl.SliceLayout(1, wide))
            async_copy.global_load_to_shared(latent.slice(part * PART, PART), source + ((row * W)[:, None] + column))
        row = gl.arange(0, KEYS, layout=gl.SliceLayout(1, narrow))
        async_copy.global_load_to_shared(rope, source + ((row * W)[:, None] + behind))
    else:
        from_a = a.to(gl.int64) * ldc
        from_b = b.to(gl.int64) * ldc
        from_c = c.to(gl.int64) * ldc
        # A few rows at a time, so that their addresses fit into scalar registers.
        for part in gl.static_range(KEYS // PART):
            p = gl.minimum(at + part * PART + gl.arange(0, PART, layout=gl.SliceLayout(1, wide)), end - 1)
            r = gl.where(p < computed, p, p + branch)
            page = r >> page_bits
            base = gl.where(page == first, from_a, gl.where(page == second, from_b, from_c)) + (r & mask) * W
            pointer = cache + gl.multiple_of(base, 16)[:, None] + column
            async_copy.global_load_to_shared(latent.slice(part * PART, PART), pointer)
            hint.sched_barrier()
        p = gl.minimum(at + gl.arange(0, KEYS, layout=gl.SliceLayout(1, narrow)), end - 1)
        r = gl.where(p < computed, p, p + branch)
        page = r >> page_bits
        base = gl.where(page == first, from_a, gl.where(page == second, from_b, from_c)) + (r & mask) * W
        async_copy.global_load_to_shared(rope, cache + gl.multiple_of(base, 16)[:, None] + behind)
    async_copy.commit_group()


@gluon.jit
def query(q, first, m, H, ldq, C: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
    """Columns C..C + N of the queries of pairs m, as bf16."""
    pq = q + (first + m // H).to(gl.int64) * ldq + m % H * W
    return gl.load(pq[:, None] + (C + gl.arange(0, N, layout=gl.SliceLayout(0, layout)))[None, :]).to(gl.bfloat16)


@gluon.jit
def pairs_of(first, pairs, H, position, at, N: gl.constexpr, layout: gl.constexpr):
    """Of rows at..at + N of a tile: real or a repetition, token, head, position."""
    m = at + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    real = m < pairs
    m = gl.minimum(m, pairs - 1)
    return real, (first + m // H).to(gl.int64), m % H, position + m // H


@gluon.jit
def finish(out, y, partial, item, H, split, split_bits, NS, ldy, FOLD: gl.constexpr, AT: gl.constexpr, N: gl.constexpr,
           TIGHT: gl.constexpr, layout: gl.constexpr):
    """Stores means of a split: results where the pair's token sees one split alone, else, without FOLD, parts for `merge`.

    What it needs of the item comes from the list again: kept through the loop, it would cost registers. With TIGHT rows begin at a
    zero from there, else addresses that need nothing of the item were kept, and few rows are packed at a time.
    """
    EACH: gl.constexpr = 16 if TIGHT else N
    start = AT
    if TIGHT:
        zero = gl.load(item + 7)
        start += zero
        partial += zero
        y += zero
    first = gl.load(item + 3)
    n = gl.load(item + 4)
    begin = gl.load(item + 5) - n
    if split == 0:
        real, t, h, position = pairs_of(first, n * H, H, begin, start, N, layout)
        c = gl.arange(0, R, layout=gl.SliceLayout(0, layout))[None, :]
        gl.store(y + (t * ldy + h * R)[:, None] + c, out, mask=(real & (position >> split_bits == 0))[:, None])
    if not FOLD:
        for i in gl.static_range(N // EACH):
            words, halves = parts.packed(gl.amd.slice(out, [EACH, R], [i * EACH, 0]), EACH)
            real, t, h, position = pairs_of(first, n * H, H, begin, start + i * EACH, EACH, words.type.layout)
            kept = real & (position >> split_bits >= gl.maximum(split, 1))
            parts.store(partial, (t * H + h) * NS + split, words, halves, kept)
            if EACH < N:
                hint.sched_barrier()


@gluon.jit
def folded(whole, out, keep, weight, N: gl.constexpr):
    """A split's means, rounded as for `merge`, on top of the sums of those before it."""
    return gl.fma(parts.rounded(out, N), weight[:, None], whole * keep[:, None])


@gluon.jit
def settle(whole, sum, y, first, pairs, H, position, split_bits, ldy, AT: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
    """Stores the results of the pairs whose tokens see several splits."""
    real, t, h, position = pairs_of(first, pairs, H, position, AT, N, layout)
    c = gl.arange(0, R, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(y + (t * ldy + h * R)[:, None] + c, whole / sum[:, None], mask=(real & (position >> split_bits > 0))[:, None])


@gluon.jit
def decode(plan, q, cache, table, y, partial, sums, H, width, page_bits, split_bits, NS, ldq, ldc, ldy, scale,
           ROWS: gl.constexpr, RA: gl.constexpr, RB: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, FOLD: gl.constexpr):
    """y[t, h] = softmax(scale q[t, h] . row) . row[:512], or its parts; any grid (groups): items of the list `plan` (`deal`)
    are taken in turn.

    Tiles have at most RA + RB rows, which are summed; ROWS are scored. partial [T, H, NS, 192] (`mla_parts`) and
    sums [T, H, NS, 2] (greatest score in bits, sum of weights) are for `merge`. `scale` is in bits. Pages are of 2^page_bits
    tokens, a multiple of KEYS, splits of 2^split_bits.
    """
    NW: gl.constexpr = gl.num_warps()
    # Rows for two waves' worth of registers: loads are kept where they are needed, and looked up late.
    TIGHT: gl.constexpr = ROWS > 16 * NW
    C: gl.constexpr = 32 if TIGHT else 64
    V: gl.constexpr = 128 // cache.dtype.element_ty.primitive_bitwidth
    by_row: gl.constexpr = cdna4.AMDMFMALayout(4, [16, 16, 32], True, [NW, 1])
    by_column: gl.constexpr = cdna4.AMDMFMALayout(4, [16, 16, 32], True, [1, NW])
    q_in: gl.constexpr = gl.DotOperandLayout(0, by_row, 8)
    k_in: gl.constexpr = gl.DotOperandLayout(1, by_row, 8)
    # bf16 is transposed four keys at a time: 4 to a lane lets reads be of eight consecutive rows, not of two fours.
    KW: gl.constexpr = 4 if V == 8 else 8
    p_in: gl.constexpr = gl.DotOperandLayout(0, by_column, KW)
    v_in: gl.constexpr = gl.DotOperandLayout(1, by_column, KW)
    row_of: gl.constexpr = gl.SliceLayout(1, by_row)
    sum_of: gl.constexpr = gl.SliceLayout(1, by_column)
    wide: gl.constexpr = in_memory(V, KEYS, True)
    narrow: gl.constexpr = in_memory(V, KEYS, False)
    latents = gl.allocate_shared_memory(cache.dtype.element_ty, [STAGES, KEYS, R], wide)
    ropes = gl.allocate_shared_memory(cache.dtype.element_ty, [STAGES, KEYS, P], narrow)
    weights = gl.allocate_shared_memory(gl.bfloat16, [ROWS, KEYS], gl.SwizzledSharedLayout(8, 128 // KEYS, KEYS // 8, [1, 0]))
    factors = gl.allocate_shared_memory(gl.float32, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    for number in range(gl.program_id(0), gl.load(plan), gl.num_programs(0)):
        item = plan + HEAD + number * WORDS
        n = gl.load(item + 4)
        if n > 0:
            pages = table + gl.load(item).to(gl.int64) * width
            computed = gl.load(item + 1)
            branch = gl.load(item + 2)
            first = gl.load(item + 3)
            limit = gl.load(item + 5)
            pairs = n * H
            splits = 1
            if FOLD:
                splits = ((limit - 1) >> split_bits) + 1
            start = 0
            if TIGHT:
                start = gl.load(item + 7)
            m_in = gl.minimum(start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, q_in)), pairs - 1)
            queries = ()
            for j in gl.static_range(W // C):
                queries = queries + (query(q, first, m_in, H, ldq, j * C, C, q_in), )
                if TIGHT:
                    hint.sched_barrier()
            m = gl.minimum(start + gl.arange(0, ROWS, layout=row_of), pairs - 1)
            position = limit - n + m // H
            if FOLD:
                whole_top = gl.full([ROWS], float("-inf"), gl.float32, row_of)
                whole_total = gl.zeros([ROWS], gl.float32, row_of)
                whole_acc = gl.zeros([RA, R], gl.float32, by_column)
                if RB > 0:
                    whole_more = gl.zeros([RB, R], gl.float32, by_column)
            # The list names one split, or with FOLD split 0, from where all are taken in turn.
            for split in range(gl.load(item + 6), gl.load(item + 6) + splits):
                begin = split << split_bits
                end = gl.minimum(begin + (1 << split_bits), limit)
                steps = (end - begin + KEYS - 1) // KEYS
                for j in gl.static_range(STAGES - 1):
                    f, g, a, b, c = locate(pages, begin + j * KEYS, end, computed, branch, page_bits, KEYS)
                    fetch(latents.index(j), ropes.index(j), cache, begin + j * KEYS, end, computed, branch, f, g, a, b, c,
                          page_bits, ldc, V, KEYS, TIGHT)
                f, g, a, b, c = locate(pages, begin + (STAGES - 1) * KEYS, end, computed, branch, page_bits, KEYS)
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
                    if TIGHT:
                        f, g, a, b, c = locate(pages, at + (STAGES - 1) * KEYS, end, computed, branch, page_bits, KEYS)
                    else:
                        # The next step's pages first: whoever waits for them does not wait for the rows behind.
                        next_f, next_g, next_a, next_b, next_c = locate(pages, at + STAGES * KEYS, end, computed, branch,
                                                                        page_bits, KEYS)
                    fetch(latents.index(ahead), ropes.index(ahead), cache, at + (STAGES - 1) * KEYS, end, computed, branch, f, g,
                          a, b, c, page_bits, ldc, V, KEYS, TIGHT)
                    if not TIGHT:
                        f, g, a, b, c = next_f, next_g, next_a, next_b, next_c
                    s = gl.zeros([ROWS, KEYS], gl.float32, by_row)
                    for j in gl.static_range(R // C):
                        k = latent.slice(j * C, C, 1).permute([1, 0]).load(k_in).to(gl.bfloat16)
                        s = cdna4.mfma(queries[j], k, s)
                        if TIGHT:
                            hint.sched_barrier()
                    for j in gl.static_range(P // C):
                        k = rope.slice(j * C, C, 1).permute([1, 0]).load(k_in).to(gl.bfloat16)
                        s = cdna4.mfma(queries[R // C + j], k, s)
                        if TIGHT:
                            hint.sched_barrier()
                    s = s * scale
                    if at + KEYS > gl.minimum(limit - n + 1, end):
                        key = at + gl.arange(0, KEYS, layout=gl.SliceLayout(0, by_row))
                        s = gl.where(key[None, :] <= gl.minimum(position, end - 1)[:, None], s, float("-inf"))
                    peak = gl.maximum(top, gl.max(s, 1))
                    # A row may see nothing of a split: minus infinity less itself is no number.
                    shift = gl.where(peak == float("-inf"), 0.0, peak)
                    keep = gl.exp2(top - shift)
                    w = gl.exp2(s - shift[:, None])
                    total = total * keep + gl.sum(w, 1)
                    top = peak
                    weights.store(w.to(gl.bfloat16))
                    factors.store(keep)
                    if TIGHT:
                        hint.sched_barrier()
                    acc = acc * factors.slice(0, RA).load(sum_of)[:, None]
                    if RB > 0:
                        more = more * factors.slice(RA, RB).load(sum_of)[:, None]
                    if TIGHT:
                        hint.sched_barrier()
                    for j in gl.static_range(KEYS // 32):
                        v = latent.slice(j * 32, 32).load(v_in).to(gl.bfloat16)
                        acc = cdna4.mfma(weights.slice(0, RA).slice(j * 32, 32, 1).load(p_in), v, acc)
                        if RB > 0:
                            more = cdna4.mfma(weights.slice(RA, RB).slice(j * 32, 32, 1).load(p_in), v, more)
                        if TIGHT:
                            hint.sched_barrier()
                    slot = gl.where(slot == STAGES - 1, 0, slot + 1)
                async_copy.wait_group(0)
                mean = 1.0 / gl.where(total > 0.0, total, 1.0)
                factors.store(mean)
                acc = acc * factors.slice(0, RA).load(sum_of)[:, None]
                finish(acc, y, partial, item, H, split, split_bits, NS, ldy, FOLD, 0, RA, TIGHT, by_column)
                if RB > 0:
                    more = more * factors.slice(RA, RB).load(sum_of)[:, None]
                    finish(more, y, partial, item, H, split, split_bits, NS, ldy, FOLD, RA, RB, TIGHT, by_column)
                if FOLD:
                    # What `merge` does, in its order, rounding alike. A row that sees nothing of a split adds nothing.
                    peak = gl.maximum(whole_top, top)
                    keep = gl.exp2(whole_top - peak)
                    weight = gl.exp2(top - peak) * total
                    whole_total = gl.fma(whole_total, keep, weight)
                    whole_top = peak
                    factors.store(keep)
                    keep_a = factors.slice(0, RA).load(sum_of)
                    if RB > 0:
                        keep_b = factors.slice(RA, RB).load(sum_of)
                    factors.store(weight)
                    whole_acc = folded(whole_acc, acc, keep_a, factors.slice(0, RA).load(sum_of), RA)
                    if RB > 0:
                        whole_more = folded(whole_more, more, keep_b, factors.slice(RA, RB).load(sum_of), RB)
                else:
                    start = 0
                    if TIGHT:
                        start, first, limit = gl.load(item + 7), gl.load(item + 3), gl.load(item + 5)
                    real, t, h, seen = pairs_of(first, pairs, H, limit - n, start, ROWS, by_row)
                    place = ((t * H + h) * NS + split) * 2
                    kept = real & (seen >> split_bits >= gl.maximum(split, 1))
                    gl.store(sums + place, top, mask=kept)
                    gl.store(sums + place + 1, total, mask=kept)
            if FOLD:
                factors.store(whole_total)
                settle(whole_acc, factors.slice(0, RA).load(sum_of), y, first, pairs, H, limit - n, split_bits, ldy, 0, RA,
                       by_column)
                if RB > 0:
                    settle(whole_more, factors.slice(RA, RB).load(sum_of), y, first, pairs, H, limit - n, split_bits, ldy, RA, RB,
                           by_column)
