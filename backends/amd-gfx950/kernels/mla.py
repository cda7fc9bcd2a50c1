"""Latent attention, portable: projections per head, the cache row's norm and write, causal attention over latent rows.

Every width is a run-time value, every format of the cache is read. Reductions run in an order that depends on positions and
widths alone, so a token's bits depend neither on its neighbours nor on how many there are.
"""

import triton
import triton.language as tl

import cache as pages
import elementwise
import step as st


@triton.jit
def project(step, count_word, count_fixed, x, w, gate, flags, y, N, K, rope, first, per_head, ldw, xh, yh, ldx, ldy,
            ABSORB: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, FULL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Per head h: y[t, h, :N] = x[t, h, :K] . w_h, where w_h starts `first` rows into the head's `per_head` rows of w.

    GATED: times sigmoid(gate), which lies as y does; else the pointer is not read. With `flags`, tokens of requests whose flag is
    set are left out (`mla_expand`). ABSORB: w_h is [K, N] as it lies, and `rope` values behind x's K follow y's N unchanged; else w_h is [N, K]. Grid
    (ceil(rows / BM), H, ceil(N / BN) + (1 if ABSORB else 0)): the last panel copies. xh, yh: values per head of x and y. FULL: N
    and K are multiples of BN and BK. Rows and columns outside repeat one that is inside and are not stored; of inner positions
    outside, x's factor is zero.
    """
    M = st.rows_of(step, count_word, count_fixed)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    wanted = rm < M
    if flags is not None:
        owner = tl.load(st.tokens_at(step) + tl.minimum(rm, M - 1) * st.TOKEN_WORDS + 2)
        wanted &= tl.load(flags + owner) == 0
        some = tl.max(wanted.to(tl.int32)) > 0
    else:
        some = tl.program_id(0) * BM < M
    if some:
        h = tl.program_id(1)
        panel = tl.program_id(2)
        px = x + tl.minimum(rm, M - 1)[:, None].to(tl.int64) * ldx + h * xh
        py = y + rm[:, None].to(tl.int64) * ldy + h * yh
        if ABSORB and panel * BN >= N:
            for at in range(0, rope, 16):
                c = at + tl.arange(0, 16)
                mask = wanted[:, None] & (c[None, :] < rope)
                tl.store(py + (N + c)[None, :], tl.load(px + (K + c)[None, :], mask=mask), mask=mask)
        else:
            rn = panel * BN + tl.arange(0, BN)
            column = rn if FULL else tl.where(rn < N, rn, 0)
            rk = tl.arange(0, BK)
            pw = w + (h * per_head + first).to(tl.int64) * ldw
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(0, K, BK):
                inner = k + rk
                if not FULL:
                    inner = tl.where(inner < K, inner, 0)
                a = tl.load(px + inner[None, :])
                if not FULL:
                    a = tl.where((k + rk)[None, :] < K, a, 0.0)
                if ABSORB:
                    b = tl.load(pw + inner[:, None].to(tl.int64) * ldw + column[None, :])
                else:
                    b = tl.load(pw + column[None, :].to(tl.int64) * ldw + inner[:, None])
                if EXACT:
                    acc = tl.dot(a, b.to(tl.float32), acc, input_precision="ieee")
                else:
                    acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
            mask = wanted[:, None]
            if not FULL:
                mask &= rn[None, :] < N
            if GATED:
                pg = gate + rm[:, None].to(tl.int64) * ldy + h * yh
                acc *= elementwise.sigmoid(tl.load(pg + rn[None, :], mask=mask, other=0.0))
            tl.store(py + rn[None, :], acc, mask=mask)


@triton.jit
def write(step, x, w, cache, table, width, block_tokens, R, W, ldx, ldc, eps, B: tl.constexpr):
    """Token t's cache row = [rmsnorm(x[t, :R]) w | x[t, R:W]] in the cache's format; grid (tokens)."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        token = st.tokens_at(step) + t * st.TOKEN_WORDS
        request = st.requests_at(step) + tl.load(token + 2) * st.ROW_WORDS
        row = st.cache_row(tl.load(token + 1), tl.load(request + 1), tl.load(request + 7))
        to = cache + pages.row_at(table, tl.load(request), width, row, True, block_tokens, W, ldc)
        px = x + t.to(tl.int64) * ldx
        squares = tl.zeros((B,), tl.float32)
        for at in range(0, R, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < R, other=0.0)
            squares += v * v
        scale = 1.0 / tl.sqrt_rn(tl.sum(squares) / R + eps)
        for at in range(0, W, B):
            c = at + tl.arange(0, B)
            v = tl.load(px + c, mask=c < W, other=0.0)
            g = tl.load(w + c, mask=c < R, other=0.0)
            v = tl.where(c < R, v * scale * g, v)
            tl.store(to + c, elementwise.rounded(v, cache.dtype.element_ty), mask=c < W)


@triton.jit
def attention(step, q, cache, table, y, H, R, W, width, block_tokens, ldq, ldc, ldy, scale, EXACT: tl.constexpr,
              FULL: tl.constexpr, RB: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y[t, h] = softmax(scale q[t, h] . row) . row[:R] over the cache rows of positions 0..p of the token's request.

    A program owns BM of the T * H (token, head) pairs in order; grid (ceil(T * H / BM)). Where they belong to several requests,
    it walks each one's rows and masks the pairs of the others, which changes nothing for them. `scale` is in bits (times
    log2 e). R <= RB; FULL: R = RB and W a multiple of BK. Nothing outside is read: positions past the last one wanted read
    position 0 and weigh nothing, columns past the widths read column 0 and meet a zero or are not stored.
    """
    T = tl.load(step + st.N_TOKENS)
    start = tl.program_id(0) * BM
    if start < T * H:
        pair = start + tl.arange(0, BM)
        inside = pair < T * H
        t = tl.where(inside, pair // H, T - 1)
        h = tl.where(inside, pair % H, 0)
        tokens = st.tokens_at(step)
        position = tl.load(tokens + t * st.TOKEN_WORDS + 1)
        owner = tl.load(tokens + t * st.TOKEN_WORDS + 2)
        pq = q + t.to(tl.int64) * ldq + h * W
        lowest = tl.load(tokens + start // H * st.TOKEN_WORDS + 2)
        last = tl.minimum(start + BM, T * H) - 1
        highest = tl.load(tokens + last // H * st.TOKEN_WORDS + 2)
        c_value = tl.arange(0, RB)
        value = c_value
        if not FULL:
            value = tl.where(c_value < R, c_value, 0)
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, RB), tl.float32)
        for r in range(lowest, highest + 1):
            request = st.requests_at(step) + r * st.ROW_WORDS
            table_row, computed, offset = tl.load(request), tl.load(request + 1), tl.load(request + 7)
            mine = inside & (owner == r)
            limit = tl.max(tl.where(mine, position, -1), 0) + 1
            for at in range(0, limit, BN):
                p = at + tl.arange(0, BN)
                row = st.cache_row(tl.where(p < limit, p, 0), computed, offset)
                base = pages.row_at(table, table_row, width, row, True, block_tokens, W, ldc)
                scores = tl.zeros((BM, BN), tl.float32)
                for k in range(0, W, BK):
                    c = k + tl.arange(0, BK)
                    if FULL:
                        a = tl.load(pq[:, None] + c[None, :])
                        b = tl.load(cache + base[None, :] + c[:, None])
                    else:
                        column = tl.where(c < W, c, 0)
                        a = tl.where(c[None, :] < W, tl.load(pq[:, None] + column[None, :]), 0.0)
                        b = tl.load(cache + base[None, :] + column[:, None])
                    if EXACT:
                        scores = tl.dot(a, b.to(tl.float32), scores, input_precision="ieee")
                    else:
                        scores = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), scores)
                wanted = mine[:, None] & (p[None, :] <= position[:, None])
                scores = tl.where(wanted, scores * scale, float("-inf"))
                peak = tl.maximum(top, tl.max(scores, 1))
                # A pair of another request may have seen nothing yet: minus infinity less itself is no number.
                shift = tl.where(peak == float("-inf"), 0.0, peak)
                keep = tl.exp2(top - shift)
                weights = tl.exp2(scores - shift[:, None])
                total = total * keep + tl.sum(weights, 1)
                v = tl.load(cache + base[:, None] + value[None, :])
                acc = acc * keep[:, None]
                if EXACT:
                    acc = tl.dot(weights, v.to(tl.float32), acc, input_precision="ieee")
                else:
                    acc = tl.dot(weights.to(tl.bfloat16), v.to(tl.bfloat16), acc)
                top = peak
        py = y + (t.to(tl.int64) * ldy + h * R)[:, None] + c_value[None, :]
        tl.store(py, acc / total[:, None], mask=inside[:, None] & (c_value[None, :] < R))
