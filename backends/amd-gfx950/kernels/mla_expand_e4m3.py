"""Latent attention in expanded form with e4m3 factors, its preparation: keys and values per head in MXFP8, a scale for every 32.

As `mla_expand.expand`, with its product of bf16 factors, but what it makes is rounded to e4m3 for `mla_prefill_e4m3`: keys in groups of 32 of
their values, values in groups of 32 positions, since scaled matrix instructions want scales along what they sum over.

Scratch holds units of 128 positions of a head: two blocks of keys (rows: positions, 64 values each), two of values, transposed
(rows: their 128 columns, 64 positions each), and the scales of each block; for all heads together a block of the values behind the
latent ones with its scales. Blocks are 128 rows of 64 bytes as they go to LDS: row i's four pieces of 16 bytes are at places
j xor (i / 8 mod 4), so that the rows that LDS serves together lie in different banks. A block's 256 scales lie as lanes take them:
those of rows i, i + 32, i + 64, i + 96 in a word, 32 words for the first group of the rows and 32 for the second.

The 32 of a group are stored in the order in which the matrix unit leaves results, 8 a + 4 b + c at place 16 b + 4 a + c: lane b of a pair has
16 neighbours. So what is rounded here is stored where it is, and scores become factors of values where they are; queries are loaded in
that order. Rejected: plain order, for which lanes of a pair exchange halves, sixteen instructions a step and wave in attention. Values are made
transposed: with positions across lanes, the greatest of a group took 400 instructions.
"""

import triton
import triton.language as tl

from fp8 import GROUP, inverse_of, scale_of
from mla_expand import ALIGN, product, rows_from

# Bytes of a block, and of its scales.
BLOCK = tl.constexpr(8192)
SCALES = tl.constexpr(256)
# Bytes of a unit of a head, and of all heads'.
UNIT = tl.constexpr(4 * 8192 + 4 * 256)
ROPES = tl.constexpr(8192 + 256)


@triton.jit
def within(i, j):
    """Where row i's piece j of sixteen bytes lies in its block."""
    return i * 64 + (j ^ (i // 8 % 4)) * 16


@triton.jit
def scale_within(i, g):
    """Where the scale of row i's group g lies among its block's."""
    return g * 128 + i % 32 * 4 + i // 32


@triton.jit
def put(to, scales, x, I: tl.constexpr, J: tl.constexpr):
    """Stores x [I, J] in e4m3 as J / 64 blocks, groups of 32 of a row sharing a scale, and the scales."""
    parts = tl.reshape(x, (I, J // GROUP, GROUP))
    scale = scale_of(tl.max(tl.abs(parts), 2))
    y = (parts * inverse_of(scale)[:, :, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    y = tl.permute(tl.reshape(y, (I, J // GROUP, 4, 2, 4)), (0, 1, 3, 2, 4))
    i = tl.arange(0, I)
    j = tl.arange(0, J // 16)
    offset = (j // 4)[None, :] * BLOCK + within(i[:, None], j[None, :] % 4)
    tl.store(to + offset[:, :, None] + tl.arange(0, 16)[None, None, :], tl.reshape(y, (I, J // 16, 16)))
    g = tl.arange(0, J // GROUP)
    tl.store(scales + (g // 2)[None, :] * SCALES + scale_within(i[:, None], g[None, :] % 2), scale.to(tl.uint8))


@triton.jit
def expand(listed, cache, table, w, blocks, ropes, start, size, width, block_tokens, per_head, ldc, ldw, N: tl.constexpr,
           R: tl.constexpr, P: tl.constexpr, BK: tl.constexpr, B: tl.constexpr):
    """As `mla_expand.expand`; `blocks` has a unit for ALIGN positions of a head, `ropes` one of all heads."""
    at = start + tl.program_id(0) * ALIGN
    if at < tl.load(listed + 2):
        h = tl.program_id(1)
        half = tl.program_id(2)
        base = rows_from(listed, table, at, width, block_tokens, ldc, R + P, B)
        c = tl.arange(0, N)
        k = tl.arange(0, BK)
        pw = w + (h * per_head + half * N + c).to(tl.int64)[:, None] * ldw + k[None, :]
        px = cache + base[:, None] + k[None, :]
        to = blocks + (h.to(tl.int64) * (size // ALIGN) + tl.program_id(0)) * UNIT
        scales = to + 4 * BLOCK
        if half == 0:
            put(to, scales, product(px, pw, N, R, BK), ALIGN, N)
            if h == 0:
                rope = tl.load(cache + base[:, None] + (R + tl.arange(0, P))[None, :]).to(tl.float32)
                tr = ropes + tl.program_id(0).to(tl.int64) * ROPES
                put(tr, tr + BLOCK, rope, ALIGN, P)
        else:
            # Made transposed: a group is a lane's and its neighbour's in either case.
            acc = tl.zeros((N, ALIGN), tl.float32)
            for _ in range(0, R, BK):
                acc = tl.dot(tl.load(pw), tl.load(px).to(tl.bfloat16).T, acc)
                px += BK
                pw += BK
            put(to + 2 * BLOCK, scales + 2 * SCALES, acc, N, ALIGN)
