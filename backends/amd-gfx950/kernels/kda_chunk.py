"""Kimi Delta Attention over whole chunks of 64 tokens, as matrix products, in two launches.

`prepare` does what needs no state, all chunks side by side: with G the running sum of g in the chunk, the solve of
(I + M) [U | W] = diag(beta) [V | K e^G], and the operands that the scan multiplies by. `scan` walks a request's chunks with the
state in registers, V-major, and forms outputs in the same pass. Chunks are those 64 tokens of a request that start at multiples of 64 of its positions; the
tokens around them, and with them all decoding, go through the token routine of `kda`, so decoding has one meaning everywhere and
no chunk needs masks along time. Rejected: partial chunks in matrix form, at most 63 tokens per request and step.

Decay ratios e^(G_i - G_j) are products of two factors that are re-based where the later tile of 16 begins. Across tiles both
exponents are at most 0. Inside a tile the second one grows with the tile's decay; where it would pass e^80 (no gate that is
bounded by -5 gets there) the tile is formed element by element instead.

Scratch holds, per chunk slot (first token / 64) and head: W, Q e^G and A as [token][..], U and K e^(G_C - G) with tokens innermost,
as the scan's matrix instructions want them, and e^(G_C).
"""

import triton
import triton.language as tl

import step as st
from elementwise import LOG2_E
from kda import tokens

CHUNK = tl.constexpr(64)
TILE = tl.constexpr(16)


@triton.jit
def product(a, b, acc, EXACT: tl.constexpr):
    """a . b + acc, factors f32 or rounded to bf16."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)


@triton.jit
def careful(a, b, acc, EXACT: tl.constexpr):
    """a . b + acc of f32 factors, or of the upper 16 bits of each as two bf16 numbers: where terms cancel."""
    if EXACT:
        return tl.dot(a, b, acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision="bf16x3")


@triton.jit
def exp(x):
    return tl.exp2(x * LOG2_E)


@triton.jit
def pick(x, i, rows):
    """Row i of x [16, N]."""
    return tl.sum(tl.where(rows[:, None] == i, x, 0.0), axis=0)


@triton.jit
def inside_tile(k, q, G, base, rows, EXACT: tl.constexpr):
    """k_i . k_j and q_i . k_j with decay ratios, of one tile: exact wherever i >= j, anything but NaN elsewhere."""
    zero = tl.zeros((TILE, TILE), tl.float32)
    if tl.min(G - base[None, :]) > -80.0:
        left = exp(G - base[None, :])
        right = tl.trans(k * exp(base[None, :] - G))
        m = careful(k * left, right, zero, EXACT)
        a = careful(q * left, right, zero, EXACT)
    else:
        m = zero
        a = zero
        for j in range(TILE):
            ratio = exp(tl.minimum(G - pick(G, j, rows)[None, :], 0.0)) * pick(k, j, rows)[None, :]
            m = tl.where(rows[None, :] == j, tl.sum(k * ratio, axis=1)[:, None], m)
            a = tl.where(rows[None, :] == j, tl.sum(q * ratio, axis=1)[:, None], a)
    return m, a


@triton.jit
def inverse(m, rows):
    """(I + m)^-1 of a strictly lower m [16, 16], row by row."""
    out = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for i in range(1, TILE):
        row = -tl.sum(pick(m, i, rows)[:, None] * out, axis=0)
        out += tl.where(rows[:, None] == i, row[None, :], 0.0)
    return out


@triton.jit
def prepare(step, q, k, v, g, beta, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, H, K, V, ldq, ldk, ldv, ldg, ldb,
            EXACT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    """The chunk that begins in a block of 64 tokens of the step, if any; grid (ceil(tokens / 64), H); K <= BK, V <= BV."""
    block = tl.program_id(0)
    n_tokens = tl.load(step + st.N_TOKENS)
    head = tl.program_id(1)
    # The chunk's start: some token of the block at a multiple of 64 of its request's positions, with 64 tokens to go.
    i = block * CHUNK + tl.arange(0, CHUNK)
    known = i < n_tokens
    token = st.tokens_at(step) + i * st.TOKEN_WORDS
    row = st.requests_at(step) + tl.load(token + 2, mask=known, other=0) * st.ROW_WORDS
    left = tl.load(row + 2, mask=known, other=0) + tl.load(row + 3, mask=known, other=0) - i
    begins = known & (tl.load(token + 1, mask=known, other=1) % CHUNK == 0) & (left >= CHUNK)
    first = tl.min(tl.where(begins, i, 2147483647))
    if first < n_tokens:
        slot = (block * H + head).to(tl.int64)
        rows = tl.arange(0, TILE)
        ck = tl.arange(0, BK)
        cv = tl.arange(0, BV)
        in_k = (ck < K)[None, :]
        in_v = (cv < V)[None, :]
        total = tl.zeros((BK,), tl.float32)
        for tile in tl.static_range(CHUNK // TILE):
            t = (first + tile * TILE + rows).to(tl.int64)
            total += tl.sum(tl.load(g + t[:, None] * ldg + (head * K + ck)[None, :], mask=in_k, other=0.0), axis=0)
        tl.store(ws_decay + slot * BK + ck, exp(total))
        base = tl.zeros((BK,), tl.float32)
        ks = ()
        Gs = ()
        ws = ()
        us = ()
        zero = tl.zeros((TILE, TILE), tl.float32)
        for tile in tl.static_range(CHUNK // TILE):
            t = (first + tile * TILE + rows).to(tl.int64)
            x_k = tl.load(k + t[:, None] * ldk + (head * K + ck)[None, :], mask=in_k, other=0.0)
            x_q = tl.load(q + t[:, None] * ldq + (head * K + ck)[None, :], mask=in_k, other=0.0)
            x_g = tl.load(g + t[:, None] * ldg + (head * K + ck)[None, :], mask=in_k, other=0.0)
            x_v = tl.load(v + t[:, None] * ldv + (head * V + cv)[None, :], mask=in_v, other=0.0)
            b = tl.load(beta + t * ldb + head)[:, None]
            G = base[None, :] + tl.cumsum(x_g, axis=0)
            at = tile * TILE + rows
            decayed = exp(G)
            kept = x_k * exp(tl.minimum(total[None, :] - G, 0.0))
            tl.store(ws_q + (slot * CHUNK + at[:, None]) * BK + ck[None, :], (x_q * decayed).to(ws_q.dtype.element_ty))
            tl.store(ws_k + (slot * BK + ck[None, :]) * CHUNK + at[:, None], kept.to(ws_k.dtype.element_ty))
            # [W | U] of the tile: what earlier tiles have of it is taken away, then its own triangle is solved.
            w = b * x_k * decayed
            u = b * x_v
            own = exp(G - base[None, :])
            pa = ws_a + (slot * CHUNK + at[:, None]) * CHUNK
            for before in tl.static_range(tile):
                other = tl.trans(ks[before] * exp(base[None, :] - Gs[before]))
                m = -b * product(x_k * own, other, zero, EXACT)
                a = product(x_q * own, other, zero, EXACT)
                tl.store(pa + (before * TILE + rows)[None, :], a.to(ws_a.dtype.element_ty))
                w = careful(m, ws[before], w, EXACT)
                u = careful(m, us[before], u, EXACT)
            m, a = inside_tile(x_k, x_q, G, base, rows, EXACT)
            a = tl.where(rows[:, None] >= rows[None, :], a, 0.0)
            tl.store(pa + at[None, :], a.to(ws_a.dtype.element_ty))
            for after in tl.static_range(tile + 1, CHUNK // TILE):
                tl.store(pa + (after * TILE + rows)[None, :], zero.to(ws_a.dtype.element_ty))
            solve = inverse(tl.where(rows[:, None] > rows[None, :], b * m, 0.0), rows)
            w = careful(solve, w, tl.zeros((TILE, BK), tl.float32), EXACT)
            u = careful(solve, u, tl.zeros((TILE, BV), tl.float32), EXACT)
            tl.store(ws_w + (slot * CHUNK + at[:, None]) * BK + ck[None, :], w.to(ws_w.dtype.element_ty))
            tl.store(ws_u + (slot * BV + cv[None, :]) * CHUNK + at[:, None], u.to(ws_u.dtype.element_ty))
            ks = ks + (x_k,)
            Gs = Gs + (G,)
            ws = ws + (w,)
            us = us + (u,)
            base = pick(G, TILE - 1, rows)


@triton.jit
def scan(step, q, k, v, g, beta, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, state, o, H, K, V, ldq, ldk, ldv, ldg, ldb, lds, ldo,
         EXACT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PV: tl.constexpr):
    """A request's tokens over PV values of a head; grid (requests, H, ceil(V / PV)). K <= BK, V <= BV, both the scratch's."""
    r = tl.program_id(0)
    if r < tl.load(step + st.N_ROWS):
        row = st.requests_at(step) + r * st.ROW_WORDS
        head = tl.program_id(1)
        ck = tl.arange(0, BK)
        cv = tl.program_id(2) * PV + tl.arange(0, PV)
        ct = tl.arange(0, CHUNK)
        inside = (cv[:, None] < V) & (ck[None, :] < K)
        at = (head * V + cv[:, None]) * K + ck[None, :]
        computed = tl.load(row + 1)
        start = tl.load(row + 2)
        s = tl.load(state + tl.load(row + 4).to(tl.int64) * lds + at, mask=inside & (computed != 0), other=0.0)
        here = start
        end = start + tl.load(row + 3)
        while here < end:
            to_edge = CHUNK - (computed + here - start) % CHUNK
            n = tl.minimum(to_edge, end - here)
            if n == CHUNK:
                slot = ((here // CHUNK) * H + head).to(tl.int64)
                factor = s if EXACT else s.to(tl.bfloat16)
                w = tl.load(ws_w + slot * CHUNK * BK + ct[None, :] * BK + ck[:, None])
                u = tl.load(ws_u + slot * BV * CHUNK + cv[:, None] * CHUNK + ct[None, :]).to(tl.float32)
                x_q = tl.load(ws_q + slot * CHUNK * BK + ct[None, :] * BK + ck[:, None])
                a = tl.load(ws_a + slot * CHUNK * CHUNK + ct[None, :] * CHUNK + ct[:, None])
                x_k = tl.load(ws_k + slot * BK * CHUNK + ck[None, :] * CHUNK + ct[:, None])
                fresh = u - product(factor, w, tl.zeros((PV, CHUNK), tl.float32), EXACT)
                out = product(factor, x_q, tl.zeros((PV, CHUNK), tl.float32), EXACT)
                out = product(fresh, a, out, EXACT)
                s = product(fresh, x_k, s * tl.load(ws_decay + slot * BK + ck)[None, :], EXACT)
                to = o + (here + ct[None, :]).to(tl.int64) * ldo + (head * V + cv)[:, None]
                tl.store(to, out, mask=cv[:, None] < V)
            else:
                s = tokens(s, q, k, v, g, beta, o, here, n, head, ck, cv, K, V, ldq, ldk, ldv, ldg, ldb, ldo)
            here += n
        kept = tl.load(row + 5)
        if kept != 0:
            tl.store(state + kept.to(tl.int64) * lds + at, s, mask=inside)
