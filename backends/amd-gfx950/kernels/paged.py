"""Caches in pages, of keys and values per head.

A token at position p lies in row r = `cache_row(p)` of its request's cache: page `table[table_row, r / PB]`, slot r mod PB. Key
tiles begin at multiples of BN from position 0, and what a query does not see changes none of its sums: its bits depend
neither on the chunk it came in nor on other queries of its tile.
"""

import triton
import triton.language as tl

import step as st
from elementwise import rounded

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def kv_write(step, x, cache, table, W, PB, WIDTH, ldx, B: tl.constexpr):
    """Rows of W values into the pages, in the cache's format; grid (tokens, ceil(W / B)). WIDTH: entries per table row."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        token = st.tokens_at(step) + t * st.TOKEN_WORDS
        request = st.requests_at(step) + tl.load(token + 2) * st.ROW_WORDS
        r = st.cache_row(tl.load(token + 1), tl.load(request + 1), tl.load(request + 7))
        page = tl.load(table + tl.load(request).to(tl.int64) * WIDTH + r // PB)
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=c < W, other=0.0)
        row = page.to(tl.int64) * PB + r % PB
        tl.store(cache + row * W + c, rounded(v, cache.dtype.element_ty), mask=c < W)


@triton.jit
def paged_attention(step, q, k, v, table, y, G, GP, HKV, D, DV, PB, WIDTH, ldq, ldy, scale, window, EXACT: tl.constexpr,
                    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    """Causal attention of a tile of queries of one request to one head of keys and values; grid (query tiles, HKV).

    A tile's BM rows are BM / GP tokens times GP heads, of which G (query heads per key head) are real. BD covers D and DV.
    Factors are rounded to bf16, or with EXACT taken as f32; softmax and sums are f32. `window` 0 sees everything.
    """
    kvh = tl.program_id(1)
    row, first, n = st.query_tile(step, tl.program_id(0), BM // GP, R)
    if n > 0:
        request = st.requests_at(step) + row * st.ROW_WORDS
        pages = table + tl.load(request).to(tl.int64) * WIDTH
        computed = tl.load(request + 1)
        branch = tl.load(request + 7)
        i = tl.arange(0, BM)
        g = i % GP
        real = (i // GP < n) & (g < G)
        t = (first + i // GP).to(tl.int64)
        position = tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 1, mask=real, other=0)
        d = tl.arange(0, BD)
        head = kvh * G + g
        rows = tl.load(q + t[:, None] * ldq + head[:, None] * D + d[None, :], mask=real[:, None] & (d[None, :] < D), other=0.0)
        if not EXACT:
            rows = rows.to(tl.bfloat16)
        last = tl.max(position)
        start = 0
        if window > 0:
            oldest = tl.min(tl.where(real, position, last)) - window + 1
            start = tl.maximum(oldest, 0) // BN * BN
        peak = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BD), tl.float32)
        for at in range(start, last + 1, BN):
            p = at + tl.arange(0, BN)
            inside = p <= last
            r = st.cache_row(p, computed, branch)
            page = tl.load(pages + r // PB, mask=inside, other=0)
            base = (page.to(tl.int64) * PB + r % PB) * HKV + kvh
            keys = tl.load(k + base[None, :] * D + d[:, None], mask=inside[None, :] & (d[:, None] < D), other=0.0)
            values = tl.load(v + base[:, None] * DV + d[None, :], mask=inside[:, None] & (d[None, :] < DV), other=0.0)
            if EXACT:
                s = tl.dot(rows, keys.to(tl.float32), input_precision="ieee")
            else:
                s = tl.dot(rows, keys.to(tl.bfloat16))
            seen = real[:, None] & (p[None, :] <= position[:, None])
            seen = seen & ((window == 0) | (p[None, :] > position[:, None] - window))
            s = tl.where(seen, s * (scale * LOG2_E), float("-inf"))
            higher = tl.maximum(peak, tl.max(s, axis=1))
            # A row that has seen nothing yet has no peak.
            level = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(s - level[:, None])
            fade = tl.exp2(peak - level)
            total = total * fade + tl.sum(weights, axis=1)
            acc = acc * fade[:, None]
            if EXACT:
                acc = tl.dot(weights, values.to(tl.float32), acc, input_precision="ieee")
            else:
                acc = tl.dot(weights.to(tl.bfloat16), values.to(tl.bfloat16), acc)
            peak = higher
        out = acc / tl.where(real, total, 1.0)[:, None]
        tl.store(y + t[:, None] * ldy + head[:, None] * DV + d[None, :], out, mask=real[:, None] & (d[None, :] < DV))
