"""Recording candidate tokens of Kimi Delta Attention, and advancing the state over the accepted ones.

What is recorded are the inputs of the recurrence before convolution and gates; a replay runs the routines of the ordinary ops
over them, so its state has the bits of as many decode steps.
"""

import triton
import triton.language as tl

import step as st
from elementwise import sigmoid
from headnorm import unit
from kda import log_decay, token
from short_conv import convolve, keep


@triton.jit
def copy_part(x, target, n, B: tl.constexpr):
    for at in range(0, n, B):
        c = at + tl.arange(0, B)
        v = tl.load(x + c, mask=c < n, other=0.0)
        tl.store(target + c, v.to(target.dtype.element_ty), mask=c < n)


@triton.jit
def record(step, q, k, v, f, b, record, C, F, H, ldq, ldk, ldv, ldf, ldb, ldr, B: tl.constexpr):
    """record[state_write][branch_offset + i] = [q | k | v | f | b] of a request's token i; grid (tokens,). `ldr` is a slot's
    stride; rows of requests that keep nothing are not written."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        row = st.requests_at(step) + tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS + 2) * st.ROW_WORDS
        slot = tl.load(row + 5)
        if slot != 0:
            i = tl.load(row + 7) + t - tl.load(row + 2)
            target = record + slot.to(tl.int64) * ldr + i * (3 * C + F + H)
            at = t.to(tl.int64)
            copy_part(q + at * ldq, target, C, B)
            copy_part(k + at * ldk, target + C, C, B)
            copy_part(v + at * ldv, target + 2 * C, C, B)
            copy_part(f + at * ldf, target + 3 * C, F, B)
            copy_part(b + at * ldb, target + 3 * C + F, H, B)


@triton.jit
def projected(f, wf, first, n, F, ldr, ldf, cm, cd, D, EXACT: tl.constexpr, BF: tl.constexpr):
    """f . wf^T of tokens first + cm over channels cd of a head: the factors and the order of `gemm.linear`.

    What lies outside is not masked but read from the last row or column: a mask per element is a pair of scalar registers,
    and there are not so many. Only factors of f beyond F have to be zeros; rows beyond n and columns beyond D are not used.
    """
    acc = tl.zeros((cm.shape[0], cd.shape[0]), tl.float32)
    i = tl.minimum(first + cm, n - 1)
    pw = wf + tl.minimum(cd, D - 1)[None, :] * ldf
    for at in range(0, F, BF):
        c = at + tl.arange(0, BF)
        a = tl.load(f + i[:, None] * ldr + c[None, :], mask=c[None, :] < F, other=0.0).to(tl.float32)
        b = tl.load(pw + tl.minimum(c, F - 1)[:, None])
        if EXACT:
            acc = tl.dot(a, b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return acc


@triton.jit
def replay(step, record, wk, wv, wf, a_log, dt_bias, window, state, H, D, F, W, ldr, ldf, ldw, lds, bounded, bound, eps,
           EXACT: tl.constexpr, BM: tl.constexpr, BF: tl.constexpr, B: tl.constexpr, BV: tl.constexpr):
    """Advances BV values of the state of a head of D <= B over a request's recorded tokens; grid (requests, H, ceil(D / BV)).

    Tokens beyond the accepted ones are not read. The window is read here and moved by the launch behind this one. `ldr`, `ldw`,
    `lds` are strides of slots, `ldf` of the gate projection's rows.
    """
    r = tl.program_id(0)
    if r < tl.load(step + st.N_ROWS):
        row = st.requests_at(step) + r * st.ROW_WORDS
        slot = tl.load(row + 5)
        if slot != 0:
            head = tl.program_id(1)
            C = H * D
            width = 3 * C + F + H
            started = tl.load(row + 1) != 0
            n = tl.load(row + 3)
            source = tl.load(row + 4).to(tl.int64)
            inputs = record + slot.to(tl.int64) * ldr + tl.load(row + 7) * width
            ck = tl.arange(0, B)
            cv = tl.program_id(2) * BV + tl.arange(0, BV)
            # Values outside the head repeat its last ones: keys are zeros there, and nothing of it is stored.
            near = (head * D + tl.minimum(cv, D - 1)[:, None]) * D + tl.minimum(ck, D - 1)[None, :]
            s = tl.load(state + source * lds + near, mask=started, other=0.0)
            read = window + source * ldw
            a = tl.load(a_log + head)
            bias = tl.load(dt_bias + head * D + ck, mask=ck < D, other=0.0)
            cm = tl.arange(0, BM)
            for first in range(0, n, BM):
                f = projected(inputs + 3 * C, wf + head * D * ldf, first, n, F, width, ldf, cm, ck, D, EXACT, BF)
                for i in range(first, tl.minimum(first + BM, n)):
                    g = log_decay(tl.sum(tl.where(cm[:, None] == i - first, f, 0.0), axis=0), a, bias, bounded, bound)
                    k = convolve(read + C, inputs + C, wk, i, started, W, 3 * C, width, head * D + ck, ck < D)
                    v = convolve(read + 2 * C, inputs + 2 * C, wv, i, started, W, 3 * C, width, head * D + cv, cv < D)
                    beta = sigmoid(tl.load(inputs + i * width + 3 * C + F + head).to(tl.float32))
                    k = unit(k, eps, 1.0)
                    s, _ = token(s, k, k, v, g, beta)
            at = (head * D + cv[:, None]) * D + ck[None, :]
            tl.store(state + slot.to(tl.int64) * lds + at, s, mask=(cv[:, None] < D) & (ck[None, :] < D))


@triton.jit
def replay_window(step, record, window, C, width, W, ldr, ldw, B: tl.constexpr):
    """Moves the windows of q, k and v over a request's recorded tokens; grid (requests, ceil(3 C / B)), one wave each."""
    r = tl.program_id(0)
    if r < tl.load(step + st.N_ROWS):
        row = st.requests_at(step) + r * st.ROW_WORDS
        slot = tl.load(row + 5).to(tl.int64)
        if slot != 0:
            c = tl.program_id(1) * B + tl.arange(0, B)
            inputs = record + slot * ldr + tl.load(row + 7) * width
            source = window + tl.load(row + 4).to(tl.int64) * ldw
            keep(source, window + slot * ldw, inputs, tl.load(row + 3), tl.load(row + 1) != 0, W, 3 * C, width, c, c < 3 * C)
