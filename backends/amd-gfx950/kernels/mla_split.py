"""Splits of latent attention: which work there is, and putting the parts together.

A token's keys are cut into splits of 2^split_bits positions, whatever the batch. `deal` lists the (tile of tokens, split) pairs
of a step for `mla_decode`, whose work-groups take them in turn; `merge` adds a token's parts up, split after split, and `settle`
does so for a tile of tokens, projects the sums to values, and gates these.
"""

import triton
import triton.language as tl

import mla_parts as parts
import step as st
from elementwise import sigmoid

# Words of a list: the count, then from HEAD on items of WORDS.
HEAD = tl.constexpr(16)
WORDS = tl.constexpr(8)


@triton.jit
def deal(step, flags, plan, TQ, split_bits, B: tl.constexpr):
    """Writes the list; grid (rows). An item: table row, tokens computed, branch offset, first token, tokens, keys that the last
    of them sees, split, 0. A tile has at most TQ tokens. Tokens 0: the tile sees nothing of the split. With `flags`, requests whose flag is set
    are left out (`mla_expand`)."""
    r = tl.program_id(0)
    n_rows = tl.load(step + st.N_ROWS)
    if (r == 0) & (n_rows == 0):
        tl.store(plan, 0)
    if r < n_rows:
        rows = st.requests_at(step)
        before = 0
        for at in range(0, r + 1, B):
            i = at + tl.arange(0, B)
            length = tl.load(rows + i * st.ROW_WORDS + 3, mask=i <= r, other=0)
            keys = tl.load(rows + i * st.ROW_WORDS + 1, mask=i <= r, other=0) + length
            if flags is not None:
                length = tl.where(tl.load(flags + i, mask=i <= r, other=0) == 0, length, 0)
            count = (length + TQ - 1) // TQ * ((keys + (1 << split_bits) - 1) >> split_bits)
            before += tl.sum(tl.where(i < r, count, 0))
        request = rows + r * st.ROW_WORDS
        table_row, computed, branch = tl.load(request), tl.load(request + 1), tl.load(request + 7)
        first, length = tl.load(request + 2), tl.load(request + 3)
        tokens = length
        if flags is not None:
            tokens = tl.where(tl.load(flags + r) == 0, length, 0)
        splits = (computed + length + (1 << split_bits) - 1) >> split_bits
        count = (tokens + TQ - 1) // TQ * splits
        for at in range(0, count, B):
            i = at + tl.arange(0, B)
            inside = i < count
            start = i // splits * TQ
            split = i % splits
            n = tl.minimum(length - start, TQ)
            limit = computed + start + n
            n = tl.where(split << split_bits < limit, n, 0)
            item = plan + HEAD + (before + i) * WORDS
            tl.store(item, table_row, mask=inside)
            tl.store(item + 1, computed, mask=inside)
            tl.store(item + 2, branch, mask=inside)
            tl.store(item + 3, first + start, mask=inside)
            tl.store(item + 4, n, mask=inside)
            tl.store(item + 5, limit, mask=inside)
            tl.store(item + 6, split, mask=inside)
            tl.store(item + 7, 0, mask=inside)
        if r == n_rows - 1:
            tl.store(plan, before + count)


@triton.jit
def added(partial, sums, place, n, c, N: tl.constexpr, AHEAD: tl.constexpr):
    """What n parts from `place` on add up to, in order, AHEAD of them loaded at a time: columns c, and with N = 2 those behind them."""
    top, total = float("-inf"), 0.0
    first = tl.zeros(c.shape, tl.float32)
    second = tl.zeros(c.shape, tl.float32)
    for at in range(0, n, AHEAD):
        for i in tl.static_range(AHEAD):
            # Parts behind the last one repeat it with no weight.
            part = place + tl.minimum(at + i, n - 1)
            mean = parts.load(partial, part, c, N)
            score = tl.load(sums + part * 2)
            weight = tl.where(at + i < n, tl.load(sums + part * 2 + 1), 0.0)
            peak = tl.maximum(top, score)
            keep = tl.exp2(top - peak)
            weight = tl.exp2(score - peak) * weight
            total = tl.fma(total, keep, weight)
            first = tl.fma(mean[0], weight, first * keep)
            if N == 2:
                second = tl.fma(mean[1], weight, second * keep)
            top = peak
    return first / total, second / total


@triton.jit
def merge(step, partial, sums, y, H, NS, split_bits, ldy, R: tl.constexpr, B: tl.constexpr, AHEAD: tl.constexpr):
    """y[t, h] of the tokens that see several splits, from their parts (`mla_decode.decode`); grid (tokens, H, R / B).

    Each part is a mean of its rows (`mla_parts`) with the greatest score and the weights' sum in f32.
    """
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        n = (tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 1) >> split_bits) + 1
        if n > 1:
            h = tl.program_id(1)
            c = tl.program_id(2) * B + tl.arange(0, B)
            acc, _ = added(partial, sums, (t.to(tl.int64) * H + h) * NS, n, c, 1, AHEAD)
            tl.store(y + t.to(tl.int64) * ldy + h * R + c, acc)


@triton.jit
def settle(step, partial, sums, mixed, w, gate, y, H, V, NS, split_bits, first, per_head, ldw, R: tl.constexpr, BN: tl.constexpr,
           AHEAD: tl.constexpr):
    """y[t, h] = sigmoid(gate[t, h]) W_h x, x being the token's sums over all its keys; grid (tokens, H, V / BN).

    x comes from `mixed` [T, H, R] for a token that sees one split alone, else from its parts, as in `merge`. W_h are V rows of w
    from `first` on among the head's `per_head`. Every work-group puts the parts together for itself: they come from the cache, and
    a head's weights are what takes long. With two columns to a lane, 16 parts are on their way at a time. The matrix instruction has
    16 equal rows; its bits are those of `mla.project`, which longer steps use.
    """
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        n = (tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 1) >> split_bits) + 1
        h = tl.program_id(1)
        row = t.to(tl.int64) * H + h
        c = tl.arange(0, R)
        v = tl.program_id(2) * BN + tl.arange(0, BN)
        # First what waits for nothing.
        weights = tl.load(w + (h * per_head + first + v).to(tl.int64)[None, :] * ldw + c[:, None])
        opening = sigmoid(tl.load(gate + row * V + v))
        if n > 1:
            even, odd = added(partial, sums, row * NS, n, tl.arange(0, R // 2) * 2, 2, AHEAD)
            x = tl.join(even, odd).reshape(R)
        else:
            x = tl.load(mixed + row * R + c)
        x = x.to(tl.bfloat16)[None, :].broadcast_to(16, R)
        value = tl.max(tl.dot(x, weights), 0)
        tl.store(y + row * V + v, value * opening)
