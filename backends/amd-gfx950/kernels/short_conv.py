"""The short causal convolution in front of a linear-attention head, and its window of past inputs in a state slot."""

import triton
import triton.language as tl

import step as st
from elementwise import sigmoid


@triton.jit
def input_at(window, inputs, p, started, W, ldw, ldi, c, inside):
    """Input p of a request's step at channels c; p < 0 lies in the window, zeros if the request has not started."""
    old = tl.load(window + (W - 1 + p) * ldw + c, mask=inside & (p < 0) & started, other=0.0).to(tl.float32)
    new = tl.load(inputs + p * ldi.to(tl.int64) + c, mask=inside & (p >= 0), other=0.0).to(tl.float32)
    return tl.where(p < 0, old, new)


@triton.jit
def convolve(window, inputs, weights, i, started, W, ldw, ldi, c, inside):
    """silu of the W taps that end at token i, oldest first. `window`, `inputs` and `weights` [channels, W] start at channel 0."""
    y = tl.zeros(c.shape, tl.float32)
    for j in range(W):
        x = input_at(window, inputs, i - (W - 1) + j, started, W, ldw, ldi, c, inside)
        y = tl.fma(x, tl.load(weights + c * W + j, mask=inside, other=0.0), y)
    return y * sigmoid(y)


@triton.jit
def keep(source, target, inputs, n, started, W, ldw, ldi, c, inside):
    """The window after n tokens. It may be moved in place: row m comes from row n + m or from the step, and all waves have read
    it before any wave writes."""
    for m in range(W - 1):
        x = input_at(source, inputs, n - (W - 1) + m, started, W, ldw, ldi, c, inside)
        tl.debug_barrier()
        tl.store(target + m * ldw + c, x.to(target.dtype.element_ty), mask=inside)


@triton.jit
def start_of(step, row, x, w, y, window, stream, C, W, ldx, ldy, ldw, c, inside, FROZEN: tl.constexpr):
    """A request's first W - 1 tokens, which see its window, and the window behind the step."""
    started = tl.load(row + 1) != 0
    first = tl.load(row + 2).to(tl.int64)
    n = tl.load(row + 3)
    read = window + tl.load(row + 4).to(tl.int64) * ldw + stream * C
    x += first * ldx
    y += first * ldy
    for early in range(tl.minimum(n, W - 1)):
        out = convolve(read, x, w, early, started, W, 3 * C, ldx, c, inside)
        tl.store(y + early * ldy + c, out, mask=inside)
    slot = tl.load(row + 5)
    if not FROZEN:
        if slot != 0:
            write = window + slot.to(tl.int64) * ldw + stream * C
            keep(read, write, x, n, started, W, 3 * C, ldx, c, inside)


@triton.jit
def pick(stream, q, k, v, wq, wk, wv, yq, yk, yv, ldq, ldk, ldv, ldyq, ldyk, ldyv):
    """Inputs, weights, outputs and strides of one of the three streams."""
    if stream == 0:
        x, w, y, ldx, ldy = q, wq, yq, ldq, ldyq
    elif stream == 1:
        x, w, y, ldx, ldy = k, wk, yk, ldk, ldyk
    else:
        x, w, y, ldx, ldy = v, wv, yv, ldv, ldyv
    return x, w, y, ldx, ldy


@triton.jit
def short_conv(step, q, k, v, wq, wk, wv, window, yq, yk, yv, C, W, ldq, ldk, ldv, ldw, ldyq, ldyk, ldyv, FROZEN: tl.constexpr,
               B: tl.constexpr):
    """Grid (tokens, ceil(C / B), 3 streams), one wave each.

    Tokens run side by side. Those that need the window (the first W - 1 of a request) and the window itself are the work of the
    program of the request's first token, so nobody reads a window that another program moves. `ldw` is a slot's stride.
    """
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        row = st.requests_at(step) + tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 2) * st.ROW_WORDS
        started = tl.load(row + 1) != 0
        first = tl.load(row + 2)
        i = t - first
        stream = tl.program_id(2)
        x, w, y, ldx, ldy = pick(stream, q, k, v, wq, wk, wv, yq, yk, yv, ldq, ldk, ldv, ldyq, ldyk, ldyv)
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < C
        if i >= W - 1:
            read = window + tl.load(row + 4).to(tl.int64) * ldw + stream * C
            out = convolve(read, x + first.to(tl.int64) * ldx, w, i, started, W, 3 * C, ldx, c, inside)
            tl.store(y + t.to(tl.int64) * ldy + c, out, mask=inside)
        if i == 0:
            start_of(step, row, x, w, y, window, stream, C, W, ldx, ldy, ldw, c, inside, FROZEN)


@triton.jit
def short_conv_long(step, q, k, v, wq, wk, wv, window, yq, yk, yv, C, ldq, ldk, ldv, ldw, ldyq, ldyk, ldyv, EACH: tl.constexpr,
                    B: tl.constexpr):
    """Grid (ceil(tokens / EACH), ceil(C / B), 3 streams), one wave each: `short_conv` of four taps for long steps, the same bits.

    Taps stay in registers and rows slide through them, so that a row is fetched once and not four times. Rows before a
    request's first token are another request's: tokens that would see them are left to the program of that first token.
    """
    start = tl.program_id(0) * EACH
    tokens = tl.load(step + st.N_TOKENS)
    if start < tokens:
        stream = tl.program_id(2)
        x, w, y, ldx, ldy = pick(stream, q, k, v, wq, wk, wv, yq, yk, yv, ldq, ldk, ldv, ldyq, ldyk, ldyv)
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < C
        w0 = tl.load(w + c * 4, mask=inside, other=0.0)
        w1 = tl.load(w + c * 4 + 1, mask=inside, other=0.0)
        w2 = tl.load(w + c * 4 + 2, mask=inside, other=0.0)
        w3 = tl.load(w + c * 4 + 3, mask=inside, other=0.0)
        x0 = tl.load(x + (start - 3).to(tl.int64) * ldx + c, mask=inside & (start >= 3), other=0.0)
        x1 = tl.load(x + (start - 2).to(tl.int64) * ldx + c, mask=inside & (start >= 2), other=0.0)
        x2 = tl.load(x + (start - 1).to(tl.int64) * ldx + c, mask=inside & (start >= 1), other=0.0)
        for t in range(start, tl.minimum(start + EACH, tokens)):
            x3 = tl.load(x + t.to(tl.int64) * ldx + c, mask=inside, other=0.0)
            row = st.requests_at(step) + tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 2) * st.ROW_WORDS
            first = tl.load(row + 2)
            if t - first >= 3:
                out = tl.fma(x0, w0, tl.zeros(c.shape, tl.float32))
                out = tl.fma(x3, w3, tl.fma(x2, w2, tl.fma(x1, w1, out)))
                tl.store(y + t.to(tl.int64) * ldy + c, out * sigmoid(out), mask=inside)
            if t == first:
                start_of(step, row, x, w, y, window, stream, C, 4, ldx, ldy, ldw, c, inside, False)
            x0, x1, x2 = x1, x2, x3
