"""Parts of split latent attention in memory: the means of a split's values in 12 bits each, a quarter less than bf16.

Four neighbouring columns share a step, the power of two that makes the greatest of them 256 to 511 steps, and each is a whole
number of steps, rounded to nearest even: off by at most 2^-9 of the greatest of the four, as bf16 is of itself; of normally
distributed values by 0.13% rms, where bf16 is by 0.17%. 48 bits: three times ten and two of the fourth in a word, its other eight
and the step's exponent in a half. A part of 512 columns has its 128 words and behind them its 128 halves, six lines of memory. A
value that is not finite makes its four no numbers.

A lane of the matrix instructions' results has four neighbouring columns of a row, so packing needs no exchange. Rejected: longer
splits, which move as few bytes and leave one request fewer work-groups; bytes with a step for four columns, whose error is four
times as large; twelve bits with a step for a whole row, which one large column would take from all others.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import hint

# Columns that share a step, and words of a part.
FOUR = tl.constexpr(4)
PART = tl.constexpr(192)
# 1.5 * 2^23: added to a number below 2^22, it leaves the nearest integer in the low bits.
ROUNDER = tl.constexpr(12582912.0)
ALL = tl.constexpr(tl.PropagateNan.ALL)


@gluon.jit
def larger(a, b):
    return gl.maximum(a, b, propagate_nan=ALL)


@gluon.jit
def field_of(x):
    """The exponent field of the step of each four in x [.., 4]: 1 or more, since a denormal has no inverse; 255 is no number."""
    peak = gl.reduce(gl.abs(x), 2, larger).to(gl.uint32, bitcast=True)
    # What would be rounded to 512 steps takes the next power of two.
    field = ((peak + 0x4000) >> 23).to(gl.int32) - 8
    # 247 is an exponent field of 255: no comparison, for its mask would take scalar registers.
    return gl.maximum(gl.minimum(field + ((field + 9) >> 8 << 3), 255), 1)


@gluon.jit
def counted(x, field):
    """x as numbers of steps, in the low bits behind those of ROUNDER."""
    return gl.fma(x, ((254 - field) << 23).to(gl.float32, bitcast=True)[:, :, None], ROUNDER)


@gluon.jit
def rounded(x, N: gl.constexpr):
    """x [N, 512] as `load` gives it back once it was stored: the same steps, with fewer instructions since no byte is made of them."""
    layout: gl.constexpr = x.type.layout
    fours = x.reshape([N, 128, 4])
    peak = gl.reduce(gl.abs(fours), 2, larger).to(gl.int32, bitcast=True)
    # 2^8 steps; the inverse of a step has the exponent field 262 less that of these.
    power = gl.maximum(gl.minimum(peak, 0x7F800000) + 0x4000 & 0x7F800000, 9 << 23)
    # Else constants of the multiplications come earlier, where scalar registers are scarce.
    hint.sched_barrier()
    counts = gl.fma(fours, (-0x7D000000 - power).to(gl.float32, bitcast=True)[:, :, None], ROUNDER)
    step = power.to(gl.float32, bitcast=True) * 0.00390625
    fours = (counts - ROUNDER) * step[:, :, None]
    return gl.convert_layout(fours.reshape([N, 512]), layout, assert_trivial=True)


@gluon.jit
def packed(x, N: gl.constexpr):
    """Words and halves of x [N, 512], [N, 128] each."""
    fours = x.reshape([N, 128, 4])
    field = field_of(fours)
    even, odd = gl.split(counted(fours, field).to(gl.int32, bitcast=True).reshape([N, 128, 2, 2]))
    a, c = gl.split(even)
    b, d = gl.split(odd)
    field = gl.convert_layout(field, a.type.layout, assert_trivial=True)
    words = (a & 1023) | ((b & 1023) << 10) | ((c & 1023) << 20) | (d << 30)
    return words, (((d >> 2) & 255) | (field << 8)).to(gl.int16)


@gluon.jit
def store(partial, place, words, halves, kept):
    """Stores parts where kept; place [N]."""
    j = gl.arange(0, 128, layout=gl.SliceLayout(0, words.type.layout))[None, :]
    to = partial + (place * PART)[:, None]
    gl.store(to + j, words, mask=kept[:, None])
    gl.store((to + 128).to(gl.pointer_type(gl.int16), bitcast=True) + j, halves, mask=kept[:, None])


@triton.jit
def load(partial, place, c, N: tl.constexpr):
    """Columns c of the part at `place`, N of them: c and what follows in its four. A tuple."""
    at = partial + place * PART
    word = tl.load(at + c // FOUR).to(tl.uint32, bitcast=True).to(tl.int64)
    half = tl.load((at + 128).to(tl.pointer_type(tl.uint16), bitcast=True) + c // FOUR)
    counts = ((half.to(tl.int64) << 32 | word) >> (c % FOUR * 10)).to(tl.int32)
    step = ((half & 0xFF00).to(tl.int32) << 15).to(tl.float32, bitcast=True)
    values = ()
    for i in tl.static_range(N):
        values = values + ((counts << (22 - 10 * i) >> 22).to(tl.float32) * step, )
    return values
