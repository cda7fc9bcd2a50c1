"""Attention Residuals: a token's mixture of layer snapshots and the sum so far, whole or in its parts.

A work-group owns a token and reads every candidate once: the row stays in registers (one tile of B columns holds it) while
scores, softmax and the weighted sum are formed; waves exchange sums of two candidates at a time, since all of them at once
would want more registers than sixteen waves have. More candidates than a launch has pointers for are a chain of launches that
hand on a softmax in progress: largest score, sum of weights, weighted sum of rows. Sums run in an order that depends on the
row's length alone.
"""

import triton
import triton.language as tl

import step as st
from elementwise import LOG2_E


@triton.jit
def sums(terms):
    """Sums of 2 or 4 tiles of one dimension, by one reduction of them side by side: waves exchange once for all."""
    level = terms
    for depth in tl.static_range(2):
        if len(level) > 1:
            joined = ()
            for i in tl.static_range(len(level) // 2):
                joined = joined + (tl.join(level[2 * i], level[2 * i + 1]),)
            level = joined
    totals = (tl.sum(level[0], 0),)
    for depth in tl.static_range(2):
        if len(totals) < len(terms):
            parts = ()
            for i in tl.static_range(len(totals)):
                left, right = tl.split(totals[i])
                parts = parts + (left, right)
            totals = parts
    return totals


@triton.jit
def mix(step, count_word, count_fixed, norm, proj, v0, v1, v2, v3, v4, v5, v6, v7, v8, ld0, ld1, ld2, ld3, ld4, ld5, ld6,
        ld7, ld8, n, acc, stats, y, out_stats, D, lda, lds, ldy, ldo, eps, fresh, finish, N: tl.constexpr,
        CHAIN: tl.constexpr, B: tl.constexpr):
    """y = sum_i softmax(s)_i v_i with s_i = sum_d norm proj v_i / sqrt(mean(v_i^2) + eps), i < n <= N; grid (rows,), D <= B.

    With CHAIN the softmax goes on from acc [D] and stats (largest, sum of weights) unless `fresh`, and ends only if `finish`:
    otherwise y is the weighted sum so far, and out_stats what belongs to it. y may be acc; out_stats is not stats, which other waves
    may not have read yet. Without
    CHAIN neither is touched. Candidates from n on are not read.
    """
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        row = t.to(tl.int64)
        c = tl.arange(0, B)
        inside = c < D
        pointers = (v0, v1, v2, v3, v4, v5, v6, v7, v8)
        strides = (ld0, ld1, ld2, ld3, ld4, ld5, ld6, ld7, ld8)
        values = ()
        for i in tl.static_range(N):
            values = values + (tl.load(pointers[i] + row * strides[i] + c, mask=inside & (i < n), other=0.0),)
        u = tl.load(norm + c, mask=inside, other=0.0) * tl.load(proj + c, mask=inside, other=0.0)
        totals = ()
        for group in tl.static_range(0, N, 2):
            terms = ()
            for i in tl.static_range(group, min(group + 2, N)):
                terms = terms + (u * values[i], values[i] * values[i])
            totals = totals + sums(terms)
        largest = float("-inf")
        scores = ()
        for i in tl.static_range(N):
            score = tl.where(i < n, totals[2 * i] / tl.sqrt_rn(totals[2 * i + 1] / D + eps), float("-inf"))
            scores = scores + (score,)
            largest = tl.maximum(largest, score)
        total = 0.0
        out = tl.zeros((B,), tl.float32)
        if CHAIN:
            known = fresh == 0
            before = tl.load(stats + row * lds, mask=known, other=float("-inf"))
            largest = tl.maximum(largest, before)
            kept = tl.exp2((before - largest) * LOG2_E)
            total = kept * tl.load(stats + row * lds + 1, mask=known, other=0.0)
            out = kept * tl.load(acc + row * lda + c, mask=inside & known, other=0.0)
        for i in tl.static_range(N):
            weight = tl.exp2((scores[i] - largest) * LOG2_E)
            total += weight
            out += weight * values[i]
        if CHAIN:
            tl.store(out_stats + row * ldo, largest, mask=finish == 0)
            tl.store(out_stats + row * ldo + 1, total, mask=finish == 0)
            total = tl.where(finish == 0, 1.0, total)
        tl.store(y + row * ldy + c, out * (1.0 / total), mask=inside)


@triton.jit
def scores(step, count_word, count_fixed, x, y, n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15, p0, p1,
           p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, n, D, ldx, ldy, eps, each, B: tl.constexpr):
    """y[t, i] = sum_d norm_i proj_i x[t] / sqrt(mean(x[t]^2) + eps), i < n <= 16; grid (ceil(rows / each), ceil(n / 4)), D <= B.

    A work-group keeps four weight rows in registers and walks `each` tokens. Weight rows from n on are the caller's to point
    at something readable; nothing of them is stored.
    """
    rows = st.rows_of(step, count_word, count_fixed)
    first = tl.program_id(1) * 4
    start = tl.program_id(0) * each
    if (start < rows) & (first < n):
        c = tl.arange(0, B)
        inside = c < D
        norms = (n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15)
        projs = (p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15)
        folded = ()
        for i in tl.static_range(4):
            norm, proj = norms[i], projs[i]
            for group in tl.static_range(1, 4):
                norm = tl.where(first == 4 * group, norms[4 * group + i], norm)
                proj = tl.where(first == 4 * group, projs[4 * group + i], proj)
            folded = folded + (tl.load(norm + c, mask=inside, other=0.0) * tl.load(proj + c, mask=inside, other=0.0),)
        for t in range(start, tl.minimum(start + each, rows)):
            v = tl.load(x + t.to(tl.int64) * ldx + c, mask=inside, other=0.0)
            totals = sums((folded[0] * v, folded[1] * v, folded[2] * v, folded[3] * v))
            scale = tl.sqrt_rn(tl.sum(v * v) / D + eps)
            for i in tl.static_range(4):
                tl.store(y + t.to(tl.int64) * ldy + first + i, totals[i] / scale, mask=first + i < n)


@triton.jit
def partial(step, count_word, count_fixed, v0, v1, v2, v3, v4, v5, v6, v7, s0, s1, s2, s3, s4, s5, s6, s7, ld0, ld1, ld2, ld3,
            ld4, ld5, ld6, ld7, ls0, ls1, ls2, ls3, ls4, ls5, ls6, ls7, n, stats, acc, out_stats, D, lda, ldo, fresh,
            B: tl.constexpr):
    """acc = sum_i e^(s_i - m) v_i, out_stats = (m, sum_i e^(s_i - m)), m the largest of s_i, i < n <= 8; grid (rows, ceil(D / B)).

    Unless `fresh` it goes on from acc and `stats`, a pair per row; out_stats is other memory, since all work-groups
    of a row read the one and the first writes the other.
    """
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        row = t.to(tl.int64)
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < D
        rows = (v0, v1, v2, v3, v4, v5, v6, v7)
        given = (s0, s1, s2, s3, s4, s5, s6, s7)
        strides = (ld0, ld1, ld2, ld3, ld4, ld5, ld6, ld7)
        apart = (ls0, ls1, ls2, ls3, ls4, ls5, ls6, ls7)
        known = fresh == 0
        before = tl.load(stats + row * 2, mask=known, other=float("-inf"))
        largest = before
        found = ()
        for i in tl.static_range(8):
            score = tl.load(given[i] + row * apart[i], mask=i < n, other=float("-inf"))
            found = found + (score,)
            largest = tl.maximum(largest, score)
        kept = tl.exp2((before - largest) * LOG2_E)
        total = kept * tl.load(stats + row * 2 + 1, mask=known, other=0.0)
        out = kept * tl.load(acc + row * lda + c, mask=inside & known, other=0.0)
        for i in tl.static_range(8):
            weight = tl.exp2((found[i] - largest) * LOG2_E)
            total += weight
            out += weight * tl.load(rows[i] + row * strides[i] + c, mask=inside & (i < n), other=0.0)
        tl.store(acc + row * lda + c, out, mask=inside)
        if tl.program_id(1) == 0:
            tl.store(out_stats + row * ldo, largest)
            tl.store(out_stats + row * ldo + 1, total)
