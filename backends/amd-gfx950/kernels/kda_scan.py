"""The scan of chunks of a whole layer, for heads of 128 x 128 and bf16 factors: one wave per 16 values, nothing through LDS between
chunks.

A chunk takes two products of the state's chain, V' = U - W S and S = diag(e^G) S + K V'. What follows from a chunk's first state and
its V' needs no chain: the scan leaves both, as the bf16 factors they are in any case, and `kda_finish` makes outputs of all chunks side
by side. That halves what a compute unit has to fetch and to multiply behind one another.

Operands come from the scratch straight into the lanes of the matrix instructions, because `prepare` laid them out along the
summed dimension, and along it in `place`: the order in which a lane that holds a product has it as a factor, so that nothing has to be
exchanged between lanes. Each is loaded for the next chunk as soon as this one has used it, so only the state's chain is serial: to
bf16, a product, to bf16, a product. Tokens around whole chunks are made from the layer's inputs, in the layout and order of `kda_decode`, 16
values side by side, as decoding in one launch would. Rejected: four waves along keys, which exchange the state and V' at barriers.
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
# [value, key] and [value, token] with four neighbouring columns a lane, and eight as factors.
ACROSS = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, 1]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, ACROSS, 8))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, ACROSS, 8))
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
def place(i):
    """Where the scratch has key or token i of a chunk. Of 32, a lane's four neighbours of both products [.., 16] that they are lie together:
    it has eight places of a factor."""
    return i // 32 * 32 + i // 4 % 4 * 8 + i // 16 % 2 * 4 + i % 4


@gluon.jit
def factor(x, count: gl.constexpr):
    """A product [PV, count] as the left factor of the next, its columns in `place`."""
    tiles = gl.permute(gl.reshape(x.to(gl.bfloat16), [PV, count // 32, 2, 4, 4]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.reshape(tiles, [PV, count]), LEFT, assert_trivial=True)


@gluon.jit
def chunks(s, ws_w, ws_k, ws_u, ws_decay, states, ldy, slot, many, panel, H):
    """The state behind `many` chunks, the first of which has this slot of the scratch. V' takes the place of U; each chunk's first state
    goes to `states`, which is at the first chunk's first token of the head, whose rows are `ldy` apart: two values a token."""
    acc = gl.convert_layout(s, ACROSS)
    of_w = along(D, CHUNK, RIGHT)
    of_k = along(CHUNK, D, RIGHT)
    of_d = gl.arange(0, D, layout=gl.SliceLayout(0, ACROSS))
    row = gl.arange(0, PV, layout=gl.SliceLayout(1, LEFT))[:, None]
    of_s = ((panel + row) // 2) * ldy + row % 2 * D + gl.arange(0, D, layout=gl.SliceLayout(0, LEFT))[None, :]
    of_v = row * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, LEFT))[None, :]
    at = slot.to(gl.int64)
    # In the order of use, here as in the loop: loads come back in order, and a wait must hold for both.
    decay = cdna4.buffer_load(ws_decay + at * D, of_d)
    gl.amd.hint.sched_barrier()
    w = cdna4.buffer_load(ws_w + at * CHUNK * D, of_w)
    gl.amd.hint.sched_barrier()
    u = cdna4.buffer_load(ws_u + (at * D + panel) * CHUNK, of_v)
    gl.amd.hint.sched_barrier()
    x_k = cdna4.buffer_load(ws_k + at * CHUNK * D, of_k)
    gl.amd.hint.sched_barrier()
    for i in range(many):
        # Behind the last chunk the last one is loaded again, and not used.
        now = at
        at = (slot + gl.minimum(i + 1, many - 1) * H).to(gl.int64)
        before = factor(acc, D)
        kept = acc * decay[None, :]
        decay = cdna4.buffer_load(ws_decay + at * D, of_d)
        known = cdna4.mfma(before, w, gl.zeros([PV, CHUNK], gl.float32, ACROSS))
        w = cdna4.buffer_load(ws_w + at * CHUNK * D, of_w)
        gl.store(states + (i * CHUNK).to(gl.int64) * ldy + of_s, before)
        tiles = gl.permute(gl.reshape(u, [PV, CHUNK // 32, 4, 2, 4]), (0, 1, 3, 2, 4))
        fresh = gl.convert_layout(gl.reshape(tiles, [PV, CHUNK]), ACROSS, assert_trivial=True).to(gl.float32) - known
        u = cdna4.buffer_load(ws_u + (at * D + panel) * CHUNK, of_v)
        change = factor(fresh, CHUNK)
        acc = cdna4.mfma(change, x_k, kept)
        x_k = cdna4.buffer_load(ws_k + at * CHUNK * D, of_k)
        gl.store(ws_u + (now * D + panel) * CHUNK + of_v, change)
    return gl.convert_layout(acc, STATE)


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
    """The state behind tokens first .. first + n of PV values, from the layer's inputs: the arithmetic of the single ops, in their order.
    `past` is the request's window, `begun` of its tokens are ahead of `first` in the step."""
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
def tokens_of(row, begin, end):
    """Of a request: tokens computed; of the step: its first token, how many are ahead of its whole chunks, and how many chunks there are;
    how many are ahead of the slab begin .. end, and ahead of its end; the token at which the last single token or chunk begins."""
    computed = gl.load(row + 1)
    start = gl.load(row + 2)
    length = gl.load(row + 3)
    before = gl.minimum((CHUNK - computed % CHUNK) % CHUNK, length)
    many = (length - before) // CHUNK
    low = gl.minimum(gl.maximum(begin - start, 0), length)
    high = gl.minimum(end - start, length)
    last = start + length - gl.where((before + many * CHUNK == length) & (many > 0), CHUNK, 1)
    return computed, start, before, many, low, high, last


@gluon.jit
def mix(step, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, window, ws_w, ws_k, ws_u, ws_decay, state, y, H, ldq, ldk, ldv, ldf,
        ldb, ldw, lds, ldy, first, size, carry, bounded, bound, l2_eps, scale):
    """A request's tokens over PV values of a head, before the gated norm; grid (requests, heads of the slab, D / PV). The window is
    read and not moved.

    A launch does what begins in a slab: of all pairs of a block of 64 tokens of the step and a head, by block, `size` from `first` on. They
    are single tokens, and chunks that may reach beyond it. The one request that began ahead of it finds its state in one half of `carry`,
    and the one that goes on behind it leaves its own in the other: both may happen in one launch.

    Outputs of single tokens go to y in f32. A chunk's first state is in bf16 where its outputs will be, 32 KiB either way, and V' where U
    was: `kda_finish` turns them into y.
    """
    r = gl.program_id(0)
    if r < gl.load(step + st.N_ROWS):
        row = step + gl.load(step + st.ROWS_OFFSET) // 4 + r * st.ROW_WORDS
        head = (first + gl.program_id(1)) % H
        begin = (first - head + H - 1) // H * CHUNK
        end = (first + size - head + H - 1) // H * CHUNK
        computed, start, before, many, low, high, last = tokens_of(row, begin, end)
        if (start < end) & (last >= begin):
            panel = gl.program_id(2) * PV
            past = window + gl.load(row + 4).to(gl.int64) * ldw
            at = (head * D + panel + gl.arange(0, PV, layout=VALUES))[:, None] * D + gl.arange(0, D, layout=KEYS)[None, :]
            s = gl.zeros([PV, D], gl.float32, STATE)
            if start < begin:
                s = gl.load(carry + (first // size + 1) % 2 * (H * D * D) + at)
            elif computed != 0:
                s = gl.load(state + gl.load(row + 4).to(gl.int64) * lds + at)
            # Single tokens ahead of the chunks, then those behind them, by one piece of code, and the request is read again: scalar
            # registers are few.
            for phase in range(2):
                computed, start, before, many, low, high, last = tokens_of(row, begin, end)
                begun = gl.where(phase == 0, low, gl.maximum(before + many * CHUNK, low))
                single = gl.where(phase == 0, gl.minimum(before, high), high) - begun
                s = mixed(s, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, past, y, start + begun, single, begun, computed != 0, head, panel, H,
                          ldq, ldk, ldv, ldf, ldb, ldy, bounded, bound, l2_eps, scale)
                ahead = (gl.maximum(low - before, 0) + CHUNK - 1) // CHUNK
                chosen = gl.minimum((gl.maximum(high - before, 0) + CHUNK - 1) // CHUNK, many) - ahead
                if (phase == 0) & (chosen > 0):
                    here = start + before + ahead * CHUNK
                    to = y + here.to(gl.int64) * ldy + head * D
                    to = to.cast(gl.pointer_type(gl.bfloat16), bitcast=True)
                    s = chunks(s, ws_w, ws_k, ws_u, ws_decay, to, 2 * ldy, here // CHUNK * H + head - first, chosen, panel, H)
            slot = gl.load(row + 5)
            if last >= end:
                gl.store(carry + first // size % 2 * (H * D * D) + at, s)
            elif slot != 0:
                gl.store(state + slot.to(gl.int64) * lds + at, s)
