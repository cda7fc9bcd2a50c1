"""Which of six products of one input a tile of a launch belongs to: a number of columns each, 0 for those that are not there."""

import triton
import triton.language as tl


@triton.jit
def of(tile, e0, e1, e2, e3, e4, a0, a1, a2, a3, a4, a5):
    """The one of six whose tiles, which end at e0 to e4, hold `tile`."""
    late = tl.where(tile < e3, a3, tl.where(tile < e4, a4, a5))
    return tl.where(tile < e0, a0, tl.where(tile < e1, a1, tl.where(tile < e2, a2, late)))


@triton.jit
def place(tile, n0, n1, n2, n3, n4, each: tl.constexpr):
    """Where the tiles of `each` columns of the first five of six end, and where those begin that `tile` is one of."""
    e0 = (n0 + each - 1) // each
    e1 = e0 + (n1 + each - 1) // each
    e2 = e1 + (n2 + each - 1) // each
    e3 = e2 + (n3 + each - 1) // each
    e4 = e3 + (n4 + each - 1) // each
    return e0, e1, e2, e3, e4, of(tile, e0, e1, e2, e3, e4, e0 * 0, e0, e1, e2, e3, e4)
