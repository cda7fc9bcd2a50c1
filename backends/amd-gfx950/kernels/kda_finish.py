"""The end of a Kimi Delta Attention layer whose chunks were scanned: gated norms, and the window of past inputs moves.

Moving it is the work of the launch behind all that read it. A work-group takes a tile of tokens of a head; the one that holds a
request's last token moves that head's part of the request's window, each lane its own channels: it has read them before it
writes, so a window may be moved in place.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4

import step as st
from elementwise import sigmoid
from kda_decode import pairs

D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
# [token, channel]: half a wave has a head of a token.
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [4, 1], [1, 0]))
TOKEN = gl.constexpr(gl.SliceLayout(1, TILE))
CHANNEL = gl.constexpr(gl.SliceLayout(0, TILE))


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
def finish(step, q, k, v, gate, norm, window, y, o, H, ldq, ldk, ldv, ldg, ldw, ldy, norm_eps, EACH: gl.constexpr):
    """y = gated norm of what `kda_scan.mix` left in y and o, which are one; grid (ceil(tokens / EACH), H)."""
    head = gl.program_id(1)
    n_tokens = gl.load(step + st.N_TOKENS)
    first = gl.program_id(0) * EACH
    if first < n_tokens:
        t = first + gl.arange(0, EACH, layout=TOKEN)
        known = t < n_tokens
        tokens = step + gl.load(step + st.TOKENS_OFFSET) // 4 + t * st.TOKEN_WORDS
        rows = step + gl.load(step + st.ROWS_OFFSET) // 4
        request = rows + gl.load(tokens + 2, mask=known, other=0) * st.ROW_WORDS
        computed = gl.load(request + 1, mask=known, other=0)
        length = gl.load(request + 3, mask=known, other=0)
        ends = gl.load(request + 2, mask=known, other=0) + length - 1
        position = gl.load(tokens + 1, mask=known, other=0)
        edge = position - position % CHUNK
        whole = (edge >= computed) & (edge + CHUNK <= computed + length)

        # Offsets from the tile's first token.
        c = gl.arange(0, D, layout=CHANNEL)
        near = gl.arange(0, EACH, layout=TOKEN)[:, None]
        at = first.to(gl.int64)
        of_c = (head * D + c)[None, :]
        single = cdna4.buffer_load(y + at * ldy, near * ldy + of_c, mask=(known & (whole == 0))[:, None])
        of_chunk = cdna4.buffer_load(o + at * (2 * ldy), near * (2 * ldy) + (head * (2 * D) + c)[None, :], mask=(known & whole)[:, None])
        x_g = cdna4.buffer_load(gate + at * ldg, near * ldg + of_c, mask=known[:, None])
        weight = cdna4.buffer_load(norm, c)[None, :]
        x = gl.where(whole[:, None], of_chunk.to(gl.float32), single)
        mean = gl.convert_layout(pairs(x * x), TOKEN) / D
        out = x * (1.0 / gl.sqrt_rn(mean + norm_eps))[:, None] * weight * sigmoid(x_g)
        cdna4.buffer_store(out, y + at * ldy, near * ldy + of_c, mask=known[:, None])

        last = known & (t == ends) & (gl.load(request + 5, mask=known, other=0) != 0)
        if gl.max(last.to(gl.int32), axis=0) != 0:
            pitch = 3 * H * D
            mine = last[:, None] & (c >= 0)[None, :]
            token, row = t[:, None], request[:, None]
            move(q + of_c, ldq, window + of_c, ldw, pitch, token, row, mine)
            move(k + of_c, ldk, window + H * D + of_c, ldw, pitch, token, row, mine)
            move(v + of_c, ldv, window + 2 * H * D + of_c, ldw, pitch, token, row, mine)
