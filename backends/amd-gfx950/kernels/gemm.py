"""Portable matrix product: out[M, N] = x[M, K] . w[N, K]^T, accumulated in f32.

Weights lie as in a checkpoint, [outputs, inputs], so both operands run along K. M, N and K are run-time values and any of
them may be ragged: rows and columns outside are masked, never read. Plain Triton on purpose: the lane layout of every matrix
instruction here is the compiler's, which makes this kernel the second source that specialised ones are compared with.
"""

import triton
import triton.language as tl


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
