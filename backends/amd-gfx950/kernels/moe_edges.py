"""The way into and out of a latent mixture of experts, a launch each: `moe_input` and `moe_output` of the catalogue.

Into: router logits, latent row and the shared experts' gated product are columns of one wide product; a work-group makes columns
of one of the four matrices, which stay where they are. Rows of gate and up alternate in a tile, so that both sides of a
value meet in one lane. K is walked as for every product (`gemm.multiply`), so logits have the bits they would have alone.

Out: two products into one accumulator. The norm's weight goes into the factors and its scale, one number per row, onto
the sums; squares are summed by the work-group that needs them, in an order that no tile changes.
"""

import triton
import triton.language as tl

import gemm
import step as st
import tree
from elementwise import situ


@triton.jit
def into(step, count_word, count_fixed, x, router, down, gate, up, logits, z, h, q, E, L, S, K, ldx, ldr, ldd, ldg, ldu, ldl, ldz, ldh,
         beta, linear, rounds, EXACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """logits[M, E] = x . router^T, z[M, L] = x . down^T, h[M, S] = situ(x . gate^T, x . up^T);
    grid (ceil(rows / BM), ceil(E / BN) + ceil(L / BN) + ceil(2 S / BN)). Rows and columns outside are masked, never read.
    Where `rounds` is 1, which f32 factors never ask for, q[M, L] is z in bf16.
    """
    M = st.rows_of(step, count_word, count_fixed)
    if tl.program_id(0) * BM < M:
        tile = tl.program_id(1)
        routers = (E + BN - 1) // BN
        latents = routers + (L + BN - 1) // BN
        routes = tile < routers
        gated = tile >= latents
        j = tl.arange(0, BN)
        plain = tl.where(routes, tile, tile - routers) * BN + j
        rn = tl.where(gated, (tile - latents) * (BN // 2) + j // 2, plain)
        N = tl.where(routes, E, tl.where(gated, S, L))
        even = tl.where(routes, router, tl.where(gated, gate, down))
        odd = tl.where(gated, up, even)
        ld_even = tl.where(routes, ldr, tl.where(gated, ldg, ldd))
        ld_odd = tl.where(gated, ldu, ld_even)
        side = j % 2 == 0
        # Chosen pointers lose what is known of them: without the promise, weights come two bytes at a time.
        rows = tl.multiple_of(tl.where(side, even, odd) + rn.to(tl.int64) * tl.where(side, ld_even, ld_odd), 16)
        rm = tl.program_id(0) * BM + tl.arange(0, BM)
        rk = tl.arange(0, BK)
        px = x + rm[:, None].to(tl.int64) * ldx + rk[None, :]
        pw = rows[None, :] + rk[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
        acc = gemm.multiply(acc, px, pw, rm < M, rn < N, K, EXACT, BK)
        if gated:
            sides = tl.reshape(acc, (BM, BN // 2, 2))
            gates, ups = tl.split(sides)
            c = (tile - latents) * (BN // 2) + tl.arange(0, BN // 2)
            ph = h + rm[:, None].to(tl.int64) * ldh + c[None, :]
            tl.store(ph, situ(gates, ups, beta, linear), mask=(rm[:, None] < M) & (c[None, :] < S))
        else:
            po = tl.where(routes, logits, z) + rm[:, None].to(tl.int64) * tl.where(routes, ldl, ldz) + plain[None, :]
            tl.store(po, acc, mask=(rm[:, None] < M) & (plain[None, :] < N))
            if not EXACT:
                if (rounds == 1) & (tile >= routers):
                    pq = q + rm[:, None].to(tl.int64) * L + plain[None, :]
                    tl.store(pq, acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (plain[None, :] < L))


@triton.jit
def out(step, count_word, count_fixed, r, norm, up, h, down, residual, y, N, L, S, ldr, ldu, ldh, ldd, lde, ldy, add, eps,
        EXACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y[M, N] = rmsnorm(r[M, L]; norm) . up^T + h[M, S] . down^T, and plus the residual where `add` is 1, else it is not read;
    grid (ceil(rows / BM), ceil(N / BN)). Rows and columns outside are masked, never read.
    """
    M = st.rows_of(step, count_word, count_fixed)
    if tl.program_id(0) * BM < M:
        rm = tl.program_id(0) * BM + tl.arange(0, BM)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        px = r + rm[:, None].to(tl.int64) * ldr + rk[None, :]
        pw = up + rn[None, :].to(tl.int64) * ldu + rk[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
        squares = tl.zeros((BM, BK), tl.float32)
        for k in range(0, L, BK):
            inside = k + rk < L
            a = tl.load(px, mask=(rm[:, None] < M) & inside[None, :], other=0.0)
            b = tl.load(pw, mask=inside[:, None] & (rn[None, :] < N), other=0.0)
            weight = tl.load(norm + k + rk, mask=inside, other=0.0)
            squares = tl.fma(a, a, squares)
            a = a * weight[None, :]
            if EXACT:
                acc = tl.dot(a, b.to(tl.float32), acc, input_precision="ieee")
            else:
                acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
            px += BK
            pw += BK
        # The order of this sum is the same for every tile, unlike that of `tl.sum`.
        scale = 1.0 / tl.sqrt_rn(tree.rows(squares) / L + eps)
        acc = acc * scale[:, None]
        px = h + rm[:, None].to(tl.int64) * ldh + rk[None, :]
        pw = down + rn[None, :].to(tl.int64) * ldd + rk[:, None]
        acc = gemm.multiply(acc, px, pw, rm < M, rn < N, S, EXACT, BK)
        inner = (rm[:, None] < M) & (rn[None, :] < N)
        before = tl.load(residual + rm[:, None].to(tl.int64) * lde + rn[None, :], mask=inner & (add == 1), other=0.0)
        po = y + rm[:, None].to(tl.int64) * ldy + rn[None, :]
        tl.store(po, before + acc, mask=inner)
