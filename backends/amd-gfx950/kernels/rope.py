"""Rotary position embedding, accurate at any position without tables.

The angle in turns is position * inv_freq / 2 pi, as a sum of two floats (position is exact, products are split by fused
multiply-adds), reduced to its fraction, then to an eighth of a turn; sine and cosine are polynomials there. The error is about
1e-7 at every position below 2^24.
"""

import triton
import triton.language as tl

import step as st

# 1 / 2 pi = HI + LO in f32.
TURN_HI = tl.constexpr(0.15915493667125702)
TURN_LO = tl.constexpr(6.4206382432985265e-09)


@triton.jit
def sin_cos(position, inv_freq):
    """Sine and cosine of position * inv_freq."""
    p = position.to(tl.float32)
    hi = inv_freq * TURN_HI
    lo = tl.fma(inv_freq, TURN_HI, -hi) + inv_freq * TURN_LO
    turns = p * hi
    rest = tl.fma(p, hi, -turns) + p * lo
    # turns - floor is exact; quarter turns are whole numbers q, what is left is within an eighth.
    turns = turns - tl.floor(turns) + rest
    q = tl.floor(turns * 4.0 + 0.5)
    x = (turns - q * 0.25) * 6.283185307179586
    z = x * x
    s = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 + z * -1.9515295891e-4))
    c = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    odd = (q.to(tl.int32) & 1) == 1
    q = q.to(tl.int32) & 3
    sine = tl.where(odd, c, s)
    cosine = tl.where(odd, s, c)
    return tl.where(q >= 2, -sine, sine), tl.where((q == 1) | (q == 2), -cosine, cosine)


@triton.jit
def rope(step, x, inv_freq, y, H, D, R2, ldx, ldy, factor, PAIRS: tl.constexpr, B: tl.constexpr):
    """Rotates the first 2 R2 of D values of each head; grid (tokens, H). y may be x: a program reads all before it writes."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        position = tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 1)
        h = tl.program_id(1)
        px = x + t.to(tl.int64) * ldx + h * D
        py = y + t.to(tl.int64) * ldy + h * D
        for at in range(0, R2, B):
            i = at + tl.arange(0, B)
            inside = i < R2
            if PAIRS:
                first, second = 2 * i, 2 * i + 1
            else:
                first, second = i, i + R2
            f = tl.load(inv_freq + i, mask=inside, other=0.0)
            sine, cosine = sin_cos(position, f)
            sine, cosine = sine * factor, cosine * factor
            a = tl.load(px + first, mask=inside, other=0.0)
            b = tl.load(px + second, mask=inside, other=0.0)
            tl.store(py + first, a * cosine - b * sine, mask=inside)
            tl.store(py + second, a * sine + b * cosine, mask=inside)
        for at in range(2 * R2, D, B):
            i = at + tl.arange(0, B)
            tl.store(py + i, tl.load(px + i, mask=i < D, other=0.0), mask=i < D)
