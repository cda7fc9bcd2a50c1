"""The scan of chunks for heads of 128 x 128 and bf16 factors: one wave per 16 values, nothing through LDS between chunks.

Operands come from the scratch straight into the lanes of the matrix instructions, because `prepare` laid them out along the
summed dimension; each is loaded for the next chunk as soon as this one has used it, so only the state's chain is serial: to bf16,
two products, to bf16, two products. Outputs leave four values a lane. Tokens around whole chunks take the token
routine, in the layout of `kda_decode`: `scan` has their inputs behind convolution, norms and gates, as `kda_chunk` gets them;
`mix` makes them from the layer's inputs, 16 values side by side, as decoding in one launch would. Rejected: four waves along keys, which exchange the state and V' at barriers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4

import step as st
from elementwise import LOG2_E, sigmoid
from kda import log_decay
from kda_decode import pairs

D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
# Values of a head per wave.
PV = gl.constexpr(16)
# [value, key] and [value, token] with four neighbouring columns a lane; outputs with four neighbouring values a lane.
ACROSS = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, 1]))
DOWN = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=False, warps_per_cta=[1, 1]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, ACROSS, 8))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, ACROSS, 8))
LEFT_DOWN = gl.constexpr(gl.DotOperandLayout(0, DOWN, 8))
RIGHT_DOWN = gl.constexpr(gl.DotOperandLayout(1, DOWN, 8))
# The state for single tokens.
STATE = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [1, 1], [1, 0]))
KEYS = gl.constexpr(gl.SliceLayout(0, STATE))
VALUES = gl.constexpr(gl.SliceLayout(1, STATE))
# q and k [stream, channel], half a wave each, with their taps; a vector of keys, two a lane; the panel's values, one a lane.
STREAM = gl.constexpr(gl.SliceLayout(1, STATE))
TAPS = gl.constexpr(gl.DistributedLinearLayout([[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0]],
                                               [[0, 4, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0], [0, 64, 0], [1, 0, 0]], [], [], [2, 128, 4]))
WAVE = gl.constexpr(gl.BlockedLayout([2], [64], [1], [0]))
PANEL = gl.constexpr(gl.BlockedLayout([1], [64], [1], [0]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def along(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    """Offsets of a [rows, columns] operand whose rows lie innermost, as they are summed over."""
    r = gl.arange(0, rows, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, columns, layout=gl.SliceLayout(0, layout))
    return c[None, :] * rows + r[:, None]


@gluon.jit
def tokens(s, q, k, v, g, beta, o, first, n, head, cv, ldq, ldk, ldv, ldg, ldb, ldo):
    """Tokens first .. first + n of PV values, in the arithmetic and order of `kda.token`."""
    ck = head * D + gl.arange(0, D, layout=KEYS)
    for t in range(first, first + n):
        row = t.to(gl.int64)
        x_k = gl.load(k + row * ldk + ck)
        x_g = gl.load(g + row * ldg + ck)
        x_q = gl.load(q + row * ldq + ck)
        x_v = gl.load(v + row * ldv + cv)
        b = gl.load(beta + row * ldb + head)
        s = s * gl.exp2(x_g * LOG2_E)[None, :]
        u = b * (x_v - gl.convert_layout(pairs(s * x_k[None, :]), VALUES))
        left, right = gl.broadcast(u[:, None], x_k[None, :])
        s = gl.fma(left, right, s)
        gl.store(o + row * ldo + cv, gl.convert_layout(pairs(s * x_q[None, :]), VALUES))
    return s


@gluon.jit
def chunks(s, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, o, ldo, here, many, head, panel, H):
    """The state behind `many` chunks from token `here` on; `o` is at the first one's first token and the panel's first value."""
    acc = gl.convert_layout(s, ACROSS)
    of_w = along(D, CHUNK, RIGHT)
    of_q = along(D, CHUNK, RIGHT_DOWN)
    of_a = along(CHUNK, CHUNK, RIGHT_DOWN)
    of_k = along(CHUNK, D, RIGHT)
    value = gl.arange(0, PV, layout=gl.SliceLayout(1, ACROSS))[:, None]
    of_u = value * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, ACROSS))[None, :]
    of_d = gl.arange(0, D, layout=gl.SliceLayout(0, ACROSS))
    down_v = gl.arange(0, PV, layout=gl.SliceLayout(1, DOWN))[:, None]
    of_o = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, DOWN))[None, :] * ldo + down_v
    slot = ((here // CHUNK) * H + head).to(gl.int64)
    # In the order of use, here as in the loop: loads come back in order, and a wait must hold for both.
    decay = cdna4.buffer_load(ws_decay + slot * D, of_d)
    gl.amd.hint.sched_barrier()
    w = cdna4.buffer_load(ws_w + slot * CHUNK * D, of_w)
    gl.amd.hint.sched_barrier()
    u = cdna4.buffer_load(ws_u + (slot * D + panel) * CHUNK, of_u)
    gl.amd.hint.sched_barrier()
    x_q = cdna4.buffer_load(ws_q + slot * CHUNK * D, of_q)
    gl.amd.hint.sched_barrier()
    a = cdna4.buffer_load(ws_a + slot * CHUNK * CHUNK, of_a)
    gl.amd.hint.sched_barrier()
    x_k = cdna4.buffer_load(ws_k + slot * CHUNK * D, of_k)
    gl.amd.hint.sched_barrier()
    for i in range(many):
        # Behind the last chunk the last one is loaded again, and not used.
        slot = ((here // CHUNK + gl.minimum(i + 1, many - 1)) * H + head).to(gl.int64)
        factor = gl.convert_layout(acc.to(gl.bfloat16), LEFT)
        down = gl.convert_layout(factor, LEFT_DOWN)
        kept = acc * decay[None, :]
        decay = cdna4.buffer_load(ws_decay + slot * D, of_d)
        known = cdna4.mfma(factor, w, gl.zeros([PV, CHUNK], gl.float32, ACROSS))
        w = cdna4.buffer_load(ws_w + slot * CHUNK * D, of_w)
        fresh = u.to(gl.float32) - known
        u = cdna4.buffer_load(ws_u + (slot * D + panel) * CHUNK, of_u)
        out = cdna4.mfma(down, x_q, gl.zeros([PV, CHUNK], gl.float32, DOWN))
        x_q = cdna4.buffer_load(ws_q + slot * CHUNK * D, of_q)
        change = gl.convert_layout(fresh.to(gl.bfloat16), LEFT)
        out = cdna4.mfma(gl.convert_layout(change, LEFT_DOWN), a, out)
        a = cdna4.buffer_load(ws_a + slot * CHUNK * CHUNK, of_a)
        acc = cdna4.mfma(change, x_k, kept)
        x_k = cdna4.buffer_load(ws_k + slot * CHUNK * D, of_k)
        gl.store(o + (i * CHUNK).to(gl.int64) * ldo + of_o, out.to(o.dtype.element_ty))
    return gl.convert_layout(acc, STATE)


@gluon.jit
def scan(step, q, k, v, g, beta, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, state, o, H, ldq, ldk, ldv, ldg, ldb, lds, ldo):
    """A request's tokens over PV values of a head; grid (requests, H, D / PV)."""
    r = gl.program_id(0)
    if r < gl.load(step + st.N_ROWS):
        row = step + gl.load(step + st.ROWS_OFFSET) // 4 + r * st.ROW_WORDS
        head = gl.program_id(1)
        panel = gl.program_id(2) * PV
        computed = gl.load(row + 1)
        here = gl.load(row + 2)
        end = here + gl.load(row + 3)
        cv = head * D + panel + gl.arange(0, PV, layout=VALUES)
        at = cv[:, None] * D + gl.arange(0, D, layout=KEYS)[None, :]
        s = gl.zeros([PV, D], gl.float32, STATE)
        if computed != 0:
            s = gl.load(state + gl.load(row + 4).to(gl.int64) * lds + at)
        before = gl.minimum((CHUNK - computed % CHUNK) % CHUNK, end - here)
        s = tokens(s, q, k, v, g, beta, o, here, before, head, cv, ldq, ldk, ldv, ldg, ldb, ldo)
        here += before
        many = (end - here) // CHUNK
        if many > 0:
            to = o + here.to(gl.int64) * ldo + head * D + panel
            s = chunks(s, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, to, ldo, here, many, head, panel, H)
            here += many * CHUNK
        s = tokens(s, q, k, v, g, beta, o, here, end - here, head, cv, ldq, ldk, ldv, ldg, ldb, ldo)
        slot = gl.load(row + 5)
        if slot != 0:
            gl.store(state + slot.to(gl.int64) * lds + at, s)


@gluon.jit
def past_input(x, ld, past, pitch, first, begun, started, back: gl.constexpr, used):
    """Inputs of the token `back` tokens ahead of `first`, of which `begun` tokens of the request lie ahead in the step; `past` is at the
    window's oldest row."""
    new = gl.load(x + (first - back).to(gl.int64) * ld, mask=used & (begun >= back), other=0.0)
    old = gl.load(past + (3 - back + begun) * pitch, mask=used & (begun < back) & started, other=0.0).to(gl.float32)
    return gl.where(begun < back, old, new)


@gluon.jit
def taps_of(w):
    """Four taps of [.., 4]."""
    even, odd = gl.split(gl.reshape(w, [w.shape[0], w.shape[1], 2, 2]))
    w0, w2 = gl.split(even)
    w1, w3 = gl.split(odd)
    return gl.convert_layout(w0, STATE), gl.convert_layout(w1, STATE), gl.convert_layout(w2, STATE), gl.convert_layout(w3, STATE)


@gluon.jit
def filtered(x0, x1, x2, x3, w0, w1, w2, w3):
    """silu of the convolution, in the order of `short_conv`."""
    u = gl.fma(x3, w3, gl.fma(x2, w2, gl.fma(x1, w1, gl.fma(x0, w0, gl.zeros_like(x0)))))
    return u * sigmoid(u)


@gluon.jit
def mixed(s, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, past, y, first, n, begun, started, head, panel, H, ldq, ldk, ldv, ldf, ldb, ldy,
          bounded, bound, l2_eps, scale):
    """`tokens` from the layer's own inputs: the arithmetic of the single ops, in their order. `past` is the request's window."""
    if n > 0:
        kind = gl.arange(0, 2, layout=STREAM)[:, None]
        tile = (head * D + gl.arange(0, D, layout=KEYS))[None, :]
        used = tile >= 0
        x = gl.where(kind == 0, q, k) + tile
        ldx = gl.where(kind == 0, ldq, ldk)
        stream = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, TAPS)))[:, None][:, :, None]
        channel = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(2, TAPS)))[None, :][:, :, None]
        tap = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, TAPS)))[None, :][:, None, :]
        w0, w1, w2, w3 = taps_of(gl.load(gl.where(stream == 0, wq, wk) + (head * D + channel) * 4 + tap))
        pitch = 3 * H * D
        window = past + kind * (H * D) + tile
        x0 = past_input(x, ldx, window, pitch, first, begun, started, 3, used)
        x1 = past_input(x, ldx, window, pitch, first, begun, started, 2, used)
        x2 = past_input(x, ldx, window, pitch, first, begun, started, 1, used)
        cv = head * D + panel + gl.arange(0, PV, layout=PANEL)
        z0 = past_input(v + cv, ldv, past + 2 * H * D + cv, pitch, first, begun, started, 3, cv >= 0)
        z1 = past_input(v + cv, ldv, past + 2 * H * D + cv, pitch, first, begun, started, 2, cv >= 0)
        z2 = past_input(v + cv, ldv, past + 2 * H * D + cv, pitch, first, begun, started, 1, cv >= 0)
        r0 = gl.load(wv + cv * 4)
        r1 = gl.load(wv + cv * 4 + 1)
        r2 = gl.load(wv + cv * 4 + 2)
        r3 = gl.load(wv + cv * 4 + 3)
        c = head * D + gl.arange(0, D, layout=WAVE)
        a = gl.load(a_log + head)
        bias = gl.load(dt_bias + c)
        unit = gl.where(gl.arange(0, 2, layout=STREAM) == 0, scale, 1.0)
        vectors = gl.allocate_shared_memory(gl.float32, [2 * D], SHARED)
        decays = gl.allocate_shared_memory(gl.float32, [D], SHARED)
        for t in range(first, first + n):
            row = t.to(gl.int64)
            x3 = gl.load(x + row * ldx)
            z3 = gl.load(v + row * ldv + cv)
            x_f = gl.load(f + row * ldf + c)
            beta = sigmoid(gl.load(b + row * ldb + head))
            u = filtered(x0, x1, x2, x3, w0, w1, w2, w3)
            factor = unit / gl.sqrt_rn(gl.convert_layout(pairs(u * u), STREAM) + l2_eps)
            vectors.store(gl.reshape(u * factor[:, None], [2 * D]))
            decays.store(gl.exp2(log_decay(x_f, a, bias, bounded, bound) * LOG2_E))
            u_v = gl.convert_layout(filtered(z0, z1, z2, z3, r0, r1, r2, r3), VALUES)
            u_q = vectors.slice(0, D).load(KEYS)
            u_k = vectors.slice(D, D).load(KEYS)
            s = s * decays.load(KEYS)[None, :]
            change = beta * (u_v - gl.convert_layout(pairs(s * u_k[None, :]), VALUES))
            left, right = gl.broadcast(change[:, None], u_k[None, :])
            s = gl.fma(left, right, s)
            to = y + row * ldy + head * D + panel + gl.arange(0, PV, layout=VALUES)
            gl.store(to, gl.convert_layout(pairs(s * u_q[None, :]), VALUES))
            x0, x1, x2 = x1, x2, x3
            z0, z1, z2 = z1, z2, z3
    return s


@gluon.jit
def mix(step, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, window, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, state, y, o, H, ldq, ldk, ldv,
        ldf, ldb, ldw, lds, ldy, bounded, bound, l2_eps, scale):
    """A request's tokens over PV values of a head, before the gated norm; grid (requests, H, D / PV). The window is read and not moved.

    Outputs of single tokens go to y in f32. Those of chunks are in f16 where y is, as `o`, in the first half of a head's 512 bytes:
    `kda_finish` turns them into y. Queries have length `scale`, so 65,504 is out of reach of values below 10^5.
    """
    r = gl.program_id(0)
    if r < gl.load(step + st.N_ROWS):
        row = step + gl.load(step + st.ROWS_OFFSET) // 4 + r * st.ROW_WORDS
        head = gl.program_id(1)
        panel = gl.program_id(2) * PV
        computed = gl.load(row + 1)
        start = gl.load(row + 2)
        length = gl.load(row + 3)
        source = gl.load(row + 4).to(gl.int64)
        past = window + source * ldw
        at = (head * D + panel + gl.arange(0, PV, layout=VALUES))[:, None] * D + gl.arange(0, D, layout=KEYS)[None, :]
        s = gl.zeros([PV, D], gl.float32, STATE)
        if computed != 0:
            s = gl.load(state + source * lds + at)
        before = gl.minimum((CHUNK - computed % CHUNK) % CHUNK, length)
        many = (length - before) // CHUNK
        s = mixed(s, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, past, y, start, before, 0, computed != 0, head, panel, H, ldq, ldk, ldv,
                  ldf, ldb, ldy, bounded, bound, l2_eps, scale)
        here = start + before
        if many > 0:
            to = o + here.to(gl.int64) * (2 * ldy) + head * (2 * D) + panel
            s = chunks(s, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, to, 2 * ldy, here, many, head, panel, H)
        done = before + many * CHUNK
        s = mixed(s, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, past, y, start + done, length - done, done, computed != 0, head, panel, H, ldq,
                  ldk, ldv, ldf, ldb, ldy, bounded, bound, l2_eps, scale)
        slot = gl.load(row + 5)
        if slot != 0:
            gl.store(state + slot.to(gl.int64) * lds + at, s)
