"""Probe kernels: what the matrix instructions compute, shown by kernels whose lane layout is the compiler's.

Each runs one instruction family through `tl.dot` or `tl.dot_scaled` and is compared with numpy-style arithmetic in f64. If
the emulator and a hand-written kernel shared a misreading of a lane map, these would fail, because nothing here names a lane.
"""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, out, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out[BM, BN] = a[BM, K] . b[K, BN], one program; K a multiple of BK. Row-major b: LDS must transpose it."""
    rm, rn, rk = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(tl.load(a + rm[:, None] * K + (k + rk)[None, :]), tl.load(b + (k + rk)[:, None] * BN + rn[None, :]), acc)
    tl.store(out + rm[:, None] * BN + rn[None, :], acc)


@triton.jit
def dot_scaled(a, sa, b, sb, out, K, FA: tl.constexpr, FB: tl.constexpr, PA: tl.constexpr, PB: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """out[BM, BN] = (a[BM, K] x 2^sa) . (b[BN, K] x 2^sb)^T: one E8M0 scale per 32 values of K; P values per element. bf16 has no scales,
    and sa is not read."""
    rm, rn, rs = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK // 32)
    ka, kb = tl.arange(0, BK // PA), tl.arange(0, BK // PB)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        va = tl.load(a + rm[:, None] * (K // PA) + (k // PA + ka)[None, :])
        vb = tl.load(b + rn[None, :] * (K // PB) + (k // PB + kb)[:, None])
        ea = None
        if FA != "bf16":
            ea = tl.load(sa + rm[:, None] * (K // 32) + (k // 32 + rs)[None, :])
        eb = tl.load(sb + rn[:, None] * (K // 32) + (k // 32 + rs)[None, :])
        acc = tl.dot_scaled(va, ea, FA, vb, eb, FB, acc)
    tl.store(out + rm[:, None] * BN + rn[None, :], acc)


@triton.jit
def reduce(x, out, n, B: tl.constexpr):
    """out[0..5] of row r: sum, maximum, sum of exp2(x - maximum), 1/sqrt(mean square), index of the maximum; x f32 [rows, n], n <= B."""
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * n + c, mask=c < n, other=float("-inf"))
    z = tl.where(c < n, v, 0.0)
    top = tl.max(v, 0)
    o = out + r * 5
    tl.store(o, tl.sum(z, 0))
    tl.store(o + 1, top)
    tl.store(o + 2, tl.sum(tl.exp2(v - top), 0))
    tl.store(o + 3, tl.rsqrt(tl.sum(z * z, 0) / n))
    tl.store(o + 4, tl.argmax(v, 0).to(tl.float32))


@triton.jit
def ticket(x, sums, counter, order, n, B: tl.constexpr):
    """Adds x into 64 bins with atomics; each program then draws a ticket: order[ticket] = program."""
    p = tl.program_id(0)
    i = p * B + tl.arange(0, B)
    tl.atomic_add(sums + i % 64, tl.load(x + i, mask=i < n, other=0.0), mask=i < n, sem="relaxed", scope="gpu")
    t = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    tl.store(order + t, p)
