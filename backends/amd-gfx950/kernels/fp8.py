"""Rows as e4m3 with one E8M0 scale per 32 values, the form that scaled matrix instructions take.

A scale is the smallest power of two that brings the group's greatest magnitude to at most 448, e4m3's largest number: nothing
saturates, and a value within 2^14 of the greatest keeps three bits behind its first. Rejected: the scale that the OCP text
suggests (the power of two of the greatest value over that of 448), by which every fourth or so greatest value saturates and is up
to an eighth off. It depends on the group alone, so a row's bits depend on no other row.

Scales lie as the lanes of the matrix instruction take them (`scale_at`): a step of 16 rows is 64 bytes in a row, half of a line. Rejected:
row by row, 4 bytes of each of 16 lines, which is what bound products of 64 rows; and from there through LDS, which would
want rows of whole vectors.
"""

import triton
import triton.language as tl

import step as st

# Values per scale.
GROUP = tl.constexpr(32)


@triton.jit
def scale_of(peak):
    """The E8M0 byte for a group of that greatest magnitude, as i32."""
    bits = peak.to(tl.int32, bitcast=True)
    # 448 is 1.75 x 2^8: a greater mantissa takes one power more. At least 2^-126, whose inverse is a number.
    return tl.maximum((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32), 1)


@triton.jit
def inverse_of(scale):
    """1 / 2^(scale - 127)."""
    return ((254 - scale) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_at(t, g, D):
    """Where the scale of group g of row t of D values lies: of 16 rows four groups, as many as a step of the instruction has, are 64
    bytes, rows side by side; then come the next four groups, and behind the last, which may be fewer, the next 16 rows."""
    steps = (D + 4 * GROUP - 1) // (4 * GROUP)
    return (t // 16).to(tl.int64) * (64 * steps) + (g // 4 * 64 + g % 4 * 16 + t % 16)


@triton.jit
def put(v, y, s, t, g, c, D, inside):
    """Stores values v of row t in groups g and columns c, `inside` telling which groups are there, and their scales."""
    scale = scale_of(tl.max(tl.abs(v), 1))
    tl.store(s + scale_at(t, g, D), scale.to(tl.uint8), mask=inside)
    tl.store(y + t.to(tl.int64) * D + c, (v * inverse_of(scale)[:, None]).to(tl.float8e4nv), mask=inside[:, None])


@triton.jit
def panel(v, y, s, t, first, D):
    """`put` of a panel v of row t, which begins at column `first`, a multiple of GROUP, and has zeros behind column D."""
    groups: tl.constexpr = v.shape[0] // GROUP
    g = first // GROUP + tl.arange(0, groups)
    c = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    put(tl.reshape(v, (groups, GROUP)), y, s, t, g, c, D, g < D // GROUP)


@triton.jit
def quantise(step, count_word, count_fixed, x, y, s, D, ldx, B: tl.constexpr):
    """y[t] = x[t] / its groups' scales in e4m3, s[t] the scales; D a multiple of 32; grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        g = tl.program_id(1) * (B // GROUP) + tl.arange(0, B // GROUP)
        c = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = g < D // GROUP
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=inside[:, None], other=0.0)
        put(v, y, s, t, g, c, D, inside)
