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
        n = tl.load(row + 3)
        i = t - first
        stream = tl.program_id(2)
        if stream == 0:
            x, w, y, ldx, ldy = q, wq, yq, ldq, ldyq
        elif stream == 1:
            x, w, y, ldx, ldy = k, wk, yk, ldk, ldyk
        else:
            x, w, y, ldx, ldy = v, wv, yv, ldv, ldyv
        c = tl.program_id(1) * B + tl.arange(0, B)
        inside = c < C
        read = window + tl.load(row + 4).to(tl.int64) * ldw + stream * C
        x += first.to(tl.int64) * ldx
        y += first.to(tl.int64) * ldy
        if i >= W - 1:
            out = convolve(read, x, w, i, started, W, 3 * C, ldx, c, inside)
            tl.store(y + i.to(tl.int64) * ldy + c, out, mask=inside)
        if i == 0:
            for early in range(tl.minimum(n, W - 1)):
                out = convolve(read, x, w, early, started, W, 3 * C, ldx, c, inside)
                tl.store(y + early * ldy + c, out, mask=inside)
            slot = tl.load(row + 5)
            if not FROZEN:
                if slot != 0:
                    write = window + slot.to(tl.int64) * ldw + stream * C
                    keep(read, write, x, n, started, W, 3 * C, ldx, c, inside)
