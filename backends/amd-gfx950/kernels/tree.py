"""Sums in one order, whatever the lanes that hold the values: neighbours in pairs, then pairs of pairs, and so on.

The order of `tl.sum` follows the layout that the compiler chose, which may differ from kernel to kernel. A sum of two is the
same in either order, so a tree of them has the same bits everywhere, with any number of zeros behind: a fused kernel, its parts,
and a replay then agree bit for bit. Kernels whose bits are to agree are compiled without contraction (`enable_fp_fusion`) and say
`tl.fma` where they mean it. Rejected: one layout for all, which only Gluon can promise.
"""

import triton
import triton.language as tl


@triton.jit
def rows(x):
    """Sums of each row of x [A, N], N a power of two: [A]."""
    A: tl.constexpr = x.shape[0]
    if x.shape[1] > 1:
        return rows(tl.sum(tl.reshape(x, [A, x.shape[1] // 2, 2]), axis=2))
    else:
        return tl.reshape(x, [A])


@triton.jit
def total(x):
    """Sum of x [N], N a power of two."""
    if x.shape[0] > 2:
        return total(tl.sum(tl.reshape(x, [x.shape[0] // 2, 2]), axis=1))
    else:
        return tl.sum(x, axis=0)
