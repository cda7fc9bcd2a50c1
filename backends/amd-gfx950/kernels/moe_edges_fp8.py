"""The way into and out of a latent mixture of experts with e4m3 factors: `moe_edges` for weights that `gemm_fp8` describes.

The router keeps its bf16 factors: which experts a token gets depends on differences of logits that e4m3 is too coarse for. Its tiles
have 16 rows wherever it is in one launch with the others, and the bits of `gemm.linear`, which makes them for large programs.

Into: rows are rounded by a launch before it (`fp8.quantise`). A work-group makes columns of one of three matrices; that of gate
makes those of up too, one product behind the other, so that both sides of a value meet in one lane. It has the most to fetch
beside the router's, so these come first.

Out: `ready` makes factors of both inputs, norm included, since a norm needs whole rows; then two products, whose weights have
scales of their own, and the residual. Every tile walks K alike, so a row's bits are the same in all of them.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import fp8
import gemm_few
import gemm_fp8
import step as st
import tree
from elementwise import situ
from gemm_fp8 import ROWS


@gluon.jit
def into(step, count_word, count_fixed, x, xq, xs, router, down, gate, up, logits, z, h, E, L, S, K, KP, ldx, ldr, ldl, ldz, ldh, beta,
         linear, RING: gl.constexpr):
    """logits[M, E] = x . router^T, z[M, L] = x . down^T, h[M, S] = situ(x . gate^T, x . up^T), xq and xs being x in e4m3; grid
    (ceil(rows / 16), ceil(S / 16) + ceil(E / 16) + ceil(L / 16)), a wave each. K is a multiple of 32, KP of 128; weights are smaller
    than 2 GiB. Rows outside are masked, never read."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * ROWS
    if rows < M:
        tile = gl.program_id(1)
        gates = (S + ROWS - 1) // ROWS
        routers = gates + (E + ROWS - 1) // ROWS
        if (tile >= gates) & (tile < routers):
            e = (tile - gates) * ROWS
            scores = gemm_few.product(x, router, rows, e, M, E, K, ldx, ldr, RING)
            gemm_few.finish(scores, logits, logits, logits, logits, rows, e, M, E, ldl, ldl, ldl, 0, 0, 1)
        else:
            gated = tile < gates
            first = gl.where(gated, tile, tile - routers) * ROWS
            N = gl.where(gated, S, L)
            # What is chosen loses what is known of it.
            w = gl.multiple_of(gl.where(gated, gate, down), 16)
            acc = gemm_fp8.product(xq, xs, w, rows, first, M, N, K, KP, K, True, RING)
            if gated:
                ups = gemm_fp8.product(xq, xs, up, rows, first, M, N, K, KP, K, True, RING)
                acc = situ(acc, ups, beta, linear)
            y = gl.multiple_of(gl.where(gated, h, z), 16)
            ldy = gl.where(gated, ldh, ldz)
            gemm_few.finish(acc, y, y, y, y, rows, first, M, N, ldy, ldy, ldy, 0, 0, 1)


@gluon.jit
def into_many(step, count_word, count_fixed, x, xq, xs, router, down, gate, up, logits, z, h, E, L, S, K, KP, ldx, ldr, ldl, ldz, ldh, beta,
              linear, ROUTER: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, RING: gl.constexpr):
    """The same in tiles of BM rows, a multiple of 32, and BN columns, 16 per wave: grid (ceil(rows / BM), ceil(S / BN) + ceil(L / BN)), and
    with ROUTER, whose tiles have 16 rows, BM / 16 ceil(E / BN) more. Without it x, router and logits are not read nor written."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * BM
    if rows < M:
        tile = gl.program_id(1)
        gates = (S + BN - 1) // BN
        routers = gates
        if ROUTER:
            routers = gates + (E + BN - 1) // BN * (BM // ROWS)
        if (tile >= gates) & (tile < routers):
            m = rows + (tile - gates) % (BM // ROWS) * ROWS
            e = (tile - gates) // (BM // ROWS) * BN
            scores = gemm_few.product(x, router, m, e, M, E, K, ldx, ldr, 2 * RING)
            gemm_few.finish(scores, logits, logits, logits, logits, m, e, M, E, ldl, ldl, ldl, 0, 0, 1)
        else:
            columns(xq, xs, down, gate, up, z, h, rows, tile < gates, gl.where(tile < gates, tile, tile - routers) * BN, M, L, S, K, KP,
                    ldz, ldh, beta, linear, BM, BN, RING)


@gluon.jit
def columns(xq, xs, down, gate, up, z, h, rows, gated, first, M, L, S, K, KP, ldz, ldh, beta, linear, BM: gl.constexpr, BN: gl.constexpr,
            RING: gl.constexpr):
    """Columns of h, where `gated`, or of z, from `first` on."""
    lds = gemm_fp8.buffers(BM)
    mfma: gl.constexpr = gemm_fp8.mfma_of(gl.num_warps())
    N = gl.where(gated, S, L)
    w = gl.multiple_of(gl.where(gated, gate, down), 16)
    accs = gemm_fp8.sums(xq, xs, w, lds, rows, first, M, N, K, KP, BM, BN, RING)
    n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
    if gated:
        ups = gemm_fp8.sums(xq, xs, up, lds, rows, first, M, N, K, KP, BM, BN, RING)
        for i in gl.static_range(BM // 32):
            m = rows + i * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, mfma))
            inside = (m < M)[:, None] & (n < N)[None, :]
            u, v = gemm_fp8.scaled(accs[i], w, first, N, KP, BN), gemm_fp8.scaled(ups[i], up, first, N, KP, BN)
            gl.store(h + m.to(gl.int64)[:, None] * ldh + n[None, :], situ(u, v, beta, linear), mask=inside)
    else:
        for i in gl.static_range(BM // 32):
            m = rows + i * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, mfma))
            inside = (m < M)[:, None] & (n < N)[None, :]
            acc = gemm_fp8.scaled(accs[i], w, first, N, KP, BN)
            gl.store(z + m.to(gl.int64)[:, None] * ldz + n[None, :], acc, mask=inside)


@triton.jit
def ready(step, count_word, count_fixed, r, norm, h, rq, rs, hq, hs, L, S, ldr, ldh, eps, B: tl.constexpr):
    """rq, rs = rmsnorm(r; norm) and hq, hs = h in e4m3, as `fp8.quantise` makes them; grid (rows, 1 + ceil(S / B)): the first work-group
    of a row has all of r, the others a panel of h each. L and S are multiples of 32."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        groups = tl.arange(0, B // fp8.GROUP)
        lanes = tl.arange(0, fp8.GROUP)
        if tl.program_id(1) == 0:
            row = r + t.to(tl.int64) * ldr
            squares = tl.zeros((B,), tl.float32)
            for k in range(0, L, B):
                c = k + tl.arange(0, B)
                v = tl.load(row + c, mask=c < L, other=0.0)
                squares = tl.fma(v, v, squares)
            scale = 1.0 / tl.sqrt_rn(tree.total(squares) / L + eps)
            for k in range(0, L, B):
                g = k // fp8.GROUP + groups
                c = g[:, None] * fp8.GROUP + lanes[None, :]
                inside = g < L // fp8.GROUP
                v = tl.load(row + c, mask=inside[:, None], other=0.0) * scale
                v = v * tl.load(norm + c, mask=inside[:, None], other=0.0)
                fp8.put(v, rq, rs, t, g, c, L, inside)
        else:
            g = (tl.program_id(1) - 1) * (B // fp8.GROUP) + groups
            c = g[:, None] * fp8.GROUP + lanes[None, :]
            inside = g < S // fp8.GROUP
            fp8.put(tl.load(h + t.to(tl.int64) * ldh + c, mask=inside[:, None], other=0.0), hq, hs, t, g, c, S, inside)


@gluon.jit
def out(step, count_word, count_fixed, rq, rs, hq, hs, up, down, residual, y, N, L, S, LP, SP, lde, ldy, add, RING: gl.constexpr):
    """y[M, N] = r[M, L] . up^T + h[M, S] . down^T of rows that `ready` made, and plus the residual where `add` is 1, else it is not read;
    grid (ceil(rows / 16), ceil(N / 16)), a wave each. LP and SP are L and S in whole steps."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * ROWS
    if rows < M:
        first = gl.program_id(1) * ROWS
        acc = gemm_fp8.product(rq, rs, up, rows, first, M, N, L, LP, L, True, RING)
        acc += gemm_fp8.product(hq, hs, down, rows, first, M, N, S, SP, S, True, RING)
        layout: gl.constexpr = acc.type.layout
        n = first + gl.arange(0, ROWS, layout=gl.SliceLayout(0, layout))
        m = (rows + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))).to(gl.int64)[:, None]
        inside = (m < M) & (n < N)[None, :]
        before = gl.load(residual + m * lde + n[None, :], mask=inside & (add == 1), other=0.0)
        gl.store(y + m * ldy + n[None, :], before + acc, mask=inside)


@gluon.jit
def out_many(step, count_word, count_fixed, rq, rs, hq, hs, up, down, residual, y, N, L, S, LP, SP, lde, ldy, add, BM: gl.constexpr,
             BN: gl.constexpr, RING: gl.constexpr):
    """The same; grid (ceil(rows / BM), ceil(N / BN)), BM a multiple of 32, BN of 16 per wave."""
    M = gl.where(count_word == 0, count_fixed, gl.load(step + count_word))
    rows = gl.program_id(0) * BM
    if rows < M:
        lds = gemm_fp8.buffers(BM)
        mfma: gl.constexpr = gemm_fp8.mfma_of(gl.num_warps())
        first = gl.program_id(1) * BN
        routed = gemm_fp8.sums(rq, rs, up, lds, rows, first, M, N, L, LP, BM, BN, RING)
        shared = gemm_fp8.sums(hq, hs, down, lds, rows, first, M, N, S, SP, BM, BN, RING)
        n = first + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
        for i in gl.static_range(BM // 32):
            m = (rows + i * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, mfma))).to(gl.int64)[:, None]
            inside = (m < M) & (n < N)[None, :]
            acc = gemm_fp8.scaled(routed[i], up, first, N, LP, BN)
            acc += gemm_fp8.scaled(shared[i], down, first, N, SP, BN)
            before = gl.load(residual + m * lde + n[None, :], mask=inside & (add == 1), other=0.0)
            gl.store(y + m * ldy + n[None, :], before + acc, mask=inside)
