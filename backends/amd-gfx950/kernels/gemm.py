"""Matrix products with weights as they lie in a checkpoint, [outputs, inputs], so that both operands run along K.

`linear` is what programs launch: f32 rows in and out. M is the step's count, N and K are run-time values, and any of them may
be ragged: rows and columns outside are masked, never read. K is walked in the same order by the same instruction whatever the
tile, so a row's bits depend neither on its neighbours nor on how many there are. `gemm` has bf16 rows and no step: plain
Triton on purpose, it is the second source of the emulator's tests. The lane layout of every matrix instruction is the compiler's.
"""

import triton
import triton.language as tl

import step as st


@triton.jit
def gemm(x, w, out, M, N, K, ldx, ldw, ldo, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One BM x BN tile of the output per program; grid (ceil(M / BM), ceil(N / BN)). Leading dimensions in elements."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    # 64-bit row offsets: a weight of 163,840 x 7,168 elements passes 2^30, its bytes 2^31.
    px = x + rm[:, None].to(tl.int64) * ldx + rk[None, :]
    pw = w + rn[None, :].to(tl.int64) * ldw + rk[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = k + rk < K
        a = tl.load(px, mask=(rm[:, None] < M) & inside[None, :], other=0.0)
        b = tl.load(pw, mask=inside[:, None] & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        px += BK
        pw += BK
    po = out + rm[:, None].to(tl.int64) * ldo + rn[None, :]
    tl.store(po, acc.to(out.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def multiply(acc, px, pw, rows, columns, K, EXACT: tl.constexpr, BK: tl.constexpr):
    """acc + x . w^T over K; px [BM, BK] and pw [BK, BN] point to the first step, `rows` [BM] and `columns` [BN] are those inside.

    The one order of K that every tile of every product walks, so that a row's bits are the same in all of them.
    """
    rk = tl.arange(0, BK)
    for k in range(0, K, BK):
        inside = k + rk < K
        a = tl.load(px, mask=rows[:, None] & inside[None, :], other=0.0)
        b = tl.load(pw, mask=inside[:, None] & columns[None, :], other=0.0)
        if EXACT:
            acc = tl.dot(a, b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
        px += BK
        pw += BK
    return acc


@triton.jit
def linear(step, count_word, count_fixed, x, w, bias, y, N, K, ldx, ldw, ldy, biased, EXACT: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr):
    """y[M, N] = x[M, K] . w[N, K]^T, and plus bias where `biased` is 1, else it is not read; grid (ceil(rows / BM), ceil(N / BN)).

    Factors are rounded to bf16, or with EXACT taken as f32; sums are f32.
    """
    M = st.rows_of(step, count_word, count_fixed)
    if tl.program_id(0) * BM < M:
        rm = tl.program_id(0) * BM + tl.arange(0, BM)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        px = x + rm[:, None].to(tl.int64) * ldx + rk[None, :]
        pw = w + rn[None, :].to(tl.int64) * ldw + rk[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
        acc = multiply(acc, px, pw, rm < M, rn < N, K, EXACT, BK)
        if biased == 1:
            acc += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
        po = y + rm[:, None].to(tl.int64) * ldy + rn[None, :]
        tl.store(po, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))
