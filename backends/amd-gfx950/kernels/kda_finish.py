"""The end of a Kimi Delta Attention layer whose chunks were scanned: outputs of chunks, gated norms, and the window of past inputs
moves.

Outputs of a chunk follow from its first state and V', which the scan left: two products of bf16 factors with nothing to wait for, and a
work-group has all values of a head, so its norm needs no way through memory.

Moving windows is the work of the launch behind all that read them. The work-group with a request's last token moves that head's part
of the request's window, each lane its own channels: it has read them before it writes, so a window may be moved in place.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4

import step as st
from elementwise import LOG2_E, sigmoid
from kda_decode import pairs
from kda_prepare import reciprocal

D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
NOWHERE = gl.constexpr(2147483647)
# Tokens, one a lane, all in every wave.
LANES = gl.constexpr(gl.BlockedLayout([1], [64], [4], [0]))
# [token, channel]: half a wave has a head of a token.
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [4, 1], [1, 0]))
TOKEN = gl.constexpr(gl.SliceLayout(1, TILE))
CHANNEL = gl.constexpr(gl.SliceLayout(0, TILE))
# Outputs of a chunk [token, value], values dealt to the waves, four neighbours a lane.
OUT = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, 4]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, OUT, 8))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, OUT, 8))


@gluon.jit
def moved(x, ld, window, ldw, pitch, t, request, mine, m: gl.constexpr):
    """Row m of the window behind the step, for the requests of tokens t: an input of the step, an older row, or nothing."""
    length = gl.load(request + 3, mask=mine, other=0)
    p = length - 3 + m
    started = gl.load(request + 1, mask=mine, other=0) != 0
    source = gl.load(request + 4, mask=mine, other=0).to(gl.int64)
    new = gl.load(x + (t - 2 + m).to(gl.int64) * ld, mask=mine & (p >= 0), other=0.0)
    old = gl.load(window + source * ldw + (3 + p) * pitch, mask=mine & (p < 0) & started, other=0.0).to(gl.float32)
    return gl.where(p < 0, old, new)


@gluon.jit
def move(x, ld, window, ldw, pitch, t, request, mine):
    x0 = moved(x, ld, window, ldw, pitch, t, request, mine, 0)
    x1 = moved(x, ld, window, ldw, pitch, t, request, mine, 1)
    x2 = moved(x, ld, window, ldw, pitch, t, request, mine, 2)
    to = window + gl.load(request + 5, mask=mine, other=0).to(gl.int64) * ldw
    gl.store(to, x0.to(window.dtype.element_ty), mask=mine)
    gl.store(to + pitch, x1.to(window.dtype.element_ty), mask=mine)
    gl.store(to + 2 * pitch, x2.to(window.dtype.element_ty), mask=mine)


@gluon.jit
def rows(count: gl.constexpr, ld, columns: gl.constexpr, layout: gl.constexpr):
    """Offsets of the left factor [count, columns] whose rows are `ld` apart."""
    r = gl.arange(0, count, layout=gl.SliceLayout(1, layout))
    return r[:, None] * ld + gl.arange(0, columns, layout=gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def outputs(ws_q, ws_u, ws_a, states):
    """Of a chunk: q S + A V' [token, value], factors at these addresses, the state's values two a row of `states`."""
    value = gl.arange(0, D, layout=gl.SliceLayout(0, RIGHT))[None, :]
    key = gl.arange(0, D, layout=gl.SliceLayout(1, RIGHT))[:, None]
    near = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, RIGHT))[:, None]
    x_q = cdna4.buffer_load(ws_q, rows(CHUNK, D, D, LEFT))
    s = cdna4.buffer_load(states[0], value // 2 * states[1] + value % 2 * D + key)
    a = cdna4.buffer_load(ws_a, rows(CHUNK, CHUNK, CHUNK, LEFT))
    change = cdna4.buffer_load(ws_u, value * CHUNK + near)
    out = cdna4.mfma(x_q, s, gl.zeros([CHUNK, D], gl.float32, OUT))
    return cdna4.mfma(a, change, out)


@gluon.jit
def finish(step, q, k, v, gate, norm, window, ws_q, ws_u, ws_a, y, H, ldq, ldk, ldv, ldg, ldw, ldy, first, norm_eps, EACH: gl.constexpr):
    """y = gated norm of what `kda_scan.mix` left of a slab; grid (pairs of a block and a head in the slab, 64 / EACH), the pairs being those of
    the step, by block, from `first` on.

    A work-group has a tile's single tokens, whose outputs are in y; if a chunk begins in the tile, all 64 tokens of it, whose first state is
    in y: every wave has read it when their sums of squares meet, before any writes; and the windows of requests that end there.
    """
    pair = first + gl.program_id(0)
    head = pair % H
    n_tokens = gl.load(step + st.N_TOKENS)
    begin = pair // H * CHUNK + gl.program_id(1) * EACH
    if begin < n_tokens:
        t = begin + gl.arange(0, EACH, layout=LANES)
        known = t < n_tokens
        tokens = step + gl.load(step + st.TOKENS_OFFSET) // 4 + t * st.TOKEN_WORDS
        rows_at = step + gl.load(step + st.ROWS_OFFSET) // 4
        request = gl.load(tokens + 2, mask=known, other=0) * st.ROW_WORDS
        computed = gl.load(rows_at + request + 1, mask=known, other=0)
        length = gl.load(rows_at + request + 3, mask=known, other=0)
        ends = gl.load(rows_at + request + 2, mask=known, other=0) + length - 1
        position = gl.load(tokens + 1, mask=known, other=0)
        edge = position - position % CHUNK
        whole = (edge >= computed) & (edge + CHUNK <= computed + length)
        c = gl.arange(0, D, layout=CHANNEL)
        of_c = (head * D + c)[None, :]
        near = gl.arange(0, EACH, layout=TOKEN)

        single = (known & (whole == 0)).to(gl.int32)
        if gl.max(single, axis=0) != 0:
            # Offsets from the tile's first token.
            at = begin.to(gl.int64)
            mask = (gl.convert_layout(single, TOKEN) != 0)[:, None]
            x = cdna4.buffer_load(y + at * ldy, near[:, None] * ldy + of_c, mask=mask)
            x_g = cdna4.buffer_load(gate + at * ldg, near[:, None] * ldg + of_c, mask=mask)
            mean = gl.convert_layout(pairs(x * x), TOKEN) / D
            out = x * (1.0 / gl.sqrt_rn(mean + norm_eps))[:, None] * cdna4.buffer_load(norm, c)[None, :] * sigmoid(x_g)
            cdna4.buffer_store(out, y + at * ldy, near[:, None] * ldy + of_c, mask=mask)

        chunk = gl.min(gl.where(known & whole & (position == edge), t, NOWHERE), axis=0)
        if chunk != NOWHERE:
            slot = gl.program_id(0).to(gl.int64)
            at = chunk.to(gl.int64)
            to = y + at * ldy + head * D
            states = (to.cast(gl.pointer_type(gl.bfloat16), bitcast=True), 2 * ldy)
            x = outputs(ws_q + slot * CHUNK * D, ws_u + slot * CHUNK * D, ws_a + slot * CHUNK * CHUNK, states)
            x_g = cdna4.buffer_load(gate + at * ldg + head * D, rows(CHUNK, ldg, D, OUT))
            weight = cdna4.buffer_load(norm, gl.arange(0, D, layout=gl.SliceLayout(0, OUT)))
            # No single token has these bits, so quotients may be short ones.
            x = x * gl.rsqrt(gl.sum(x * x, axis=1) / D + norm_eps)[:, None] * weight[None, :]
            cdna4.buffer_store(x * reciprocal(1.0 + gl.exp2(x_g * -LOG2_E)), to, rows(CHUNK, ldy, D, OUT))

        last = (known & (t == ends) & (gl.load(rows_at + request + 5, mask=known, other=0) != 0)).to(gl.int32)
        if gl.max(last, axis=0) != 0:
            pitch = 3 * H * D
            mine = (gl.convert_layout(last, TOKEN) != 0)[:, None] & (c >= 0)[None, :]
            token, row = (begin + near)[:, None], rows_at + gl.convert_layout(request, TOKEN)[:, None]
            move(q + of_c, ldq, window + of_c, ldw, pitch, token, row, mine)
            move(k + of_c, ldk, window + H * D + of_c, ldw, pitch, token, row, mine)
            move(v + of_c, ldv, window + 2 * H * D + of_c, ldw, pitch, token, row, mine)
