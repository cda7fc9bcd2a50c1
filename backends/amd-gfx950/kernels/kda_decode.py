"""A token of a Kimi Delta Attention layer between its input and output projections, in one kernel.

Convolution, SiLU, unit lengths, decay gate with its second projection, recurrence and gated norm of one head: the arithmetic of the
single ops, in their order, so the bits are theirs. A work-group of four waves owns a head of 128 x 128: the whole state is 64 registers a lane, so several candidates
cost no more state traffic than one token. Three waves filter q, k and v side by side, while the state is on its way; the tile
goes round once through LDS. Keys lie along lanes, four to a lane, so sums over keys stay in a wave.

The projection is a product of 16 tokens at a time, by the instruction and in the order of `gemm.linear`, 32 channels a wave. Its 32 KB of
weights come before the state and are the head's own: only requests share them, from L2. Where f is projected already, rows of it take
the same way through LDS. Decays of all 16 tokens are made at once and wait there.

Gluon, because Triton exchanges the state itself through LDS to suit the small vectors.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4

import step as st
from elementwise import LOG2_E, sigmoid
from kda import log_decay

D = gl.constexpr(128)
# The state [value, key]: a wave holds two rows of four-key lanes at a time.
STATE = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [4, 1], [1, 0]))
KEYS = gl.constexpr(gl.SliceLayout(0, STATE))
VALUES = gl.constexpr(gl.SliceLayout(1, STATE))
# q, k, v and an idle fourth [stream, channel]: a wave each.
STREAMS = gl.constexpr(gl.BlockedLayout([1, 2], [1, 64], [4, 1], [1, 0]))
STREAM = gl.constexpr(gl.SliceLayout(1, STREAMS))
CHANNEL = gl.constexpr(gl.SliceLayout(0, STREAMS))
# A vector that every wave holds whole.
WAVE = gl.constexpr(gl.BlockedLayout([2], [64], [4], [0]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# Tokens of a block [token, channel]: as they are fetched, as the product takes them a step of channels at a time and as it leaves its
# sums, and in LDS, where rows lie shifted against each other.
TOKENS = gl.constexpr(16)
STEP = gl.constexpr(32)
BLOCK = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [4, 1], [1, 0]))
SUMS = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, 4]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS, 8))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS, 8))
SHIFTED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[128, 4]], [16, 128], [1, 0]))


@gluon.jit
def pairs(x):
    """Sums of rows in the order of `tree.rows`."""
    A: gl.constexpr = x.shape[0]
    if x.shape[1] > 1:
        return pairs(gl.sum(gl.reshape(x, [A, x.shape[1] // 2, 2]), axis=2))
    else:
        return gl.reshape(x, [A])


@gluon.jit
def total(x):
    return pairs(gl.reshape(x, [1, D]))


@gluon.jit
def fetch(f, wf, dt_bias, first, end, head, ldf, ldwf, projects):
    """What decays of up to 16 tokens from `first` on are made of: rows of f, and with a projection its weights in steps of channels.
    Nothing behind `end`."""
    # Nothing is added, which the compiler does not know: it would keep products with strides in registers through all tokens.
    ldf = gl.multiple_of(ldf + (first >> 31) * 16, 16)
    ldwf = gl.multiple_of(ldwf + (first >> 31) * 16, 16)
    m = gl.arange(0, TOKENS, layout=gl.SliceLayout(1, BLOCK))
    n = gl.arange(0, D, layout=gl.SliceLayout(0, BLOCK))
    mine = (first + m < end)[:, None] & (n >= 0)[None, :]
    base = f + first.to(gl.int64) * ldf + gl.where(projects == 1, 0, head * D)
    rows = cdna4.buffer_load(base, m[:, None] * ldf + n[None, :], mask=mine)
    n = gl.arange(0, D, layout=gl.SliceLayout(0, RIGHT))
    k = gl.arange(0, STEP, layout=gl.SliceLayout(1, RIGHT))
    wanted = ((n >= 0) & (projects == 1) & (first < end))[None, :] & (k >= 0)[:, None]
    base = wf + (head * D).to(gl.int64) * ldwf
    offsets = n[None, :] * ldwf + k[:, None]
    weights = ()
    for i in gl.static_range(D // STEP):
        weights = weights + (cdna4.buffer_load(base, offsets + i * STEP, mask=wanted), )
    bias = cdna4.buffer_load(dt_bias + head * D, gl.arange(0, D, layout=gl.SliceLayout(0, SUMS)))
    return rows, weights, bias


@gluon.jit
def decays_of(rows, weights, bias, lds, a, bounded, bound, projects):
    """Leaves decays of a block of tokens in LDS."""
    lds.store(rows)
    acc = gl.zeros([TOKENS, D], gl.float32, SUMS)
    if projects == 1:
        for i in gl.static_range(D // STEP):
            acc = cdna4.mfma(lds.slice(i * STEP, STEP, 1).load(LEFT).to(gl.bfloat16), weights[i], acc)
    else:
        acc = lds.load(SUMS)
    lds.store(gl.exp2(log_decay(acc, a, bias[None, :], bounded, bound) * LOG2_E))


@gluon.jit
def decode(step, q, k, v, f, b, gate, wq, wk, wv, a_log, dt_bias, norm, window, state, wf, y, H, ldq, ldk, ldv, ldf, ldb, ldg, ldw, lds,
           ldwf, ldy, bounded, projects, bound, l2_eps, scale, norm_eps, KEEP: gl.constexpr):
    """A request's tokens through a head of D x D behind a convolution of four taps; grid (requests, H).

    q, k, v before the convolution, b before the sigmoid, gate before the sigmoid; f the gate's projection, or where `projects` is 1
    the D values that wf [H D, D] projects, else not read. With KEEP, window and state are left in the slot `state_write`; programs own
    disjoint parts of a slot. Without, neither is written.
    """
    r = gl.program_id(0)
    if r < gl.load(step + st.N_ROWS):
        row = step + gl.load(step + st.ROWS_OFFSET) // 4 + r * st.ROW_WORDS
        head = gl.program_id(1)
        started = gl.load(row + 1) != 0
        first = gl.load(row + 2)
        end = first + gl.load(row + 3)
        source = gl.load(row + 4).to(gl.int64)
        # The small inputs first, then the window, then the state: loads come back in order.
        kind = gl.arange(0, 4, layout=STREAM)[:, None]
        tile = (head * D + gl.arange(0, D, layout=CHANNEL))[None, :]
        used = (kind < 3) & (tile >= 0)
        x = gl.where(kind == 0, q, gl.where(kind == 1, k, v)) + tile
        ldx = gl.where(kind == 0, ldq, gl.where(kind == 1, ldk, ldv))
        taps = gl.where(kind == 0, wq, gl.where(kind == 1, wk, wv)) + tile * 4
        past = window + source * ldw + kind * (H * D) + tile
        x3 = gl.load(x + first * ldx, mask=used, other=0.0)
        w0 = gl.load(taps, mask=used, other=0.0)
        w1 = gl.load(taps + 1, mask=used, other=0.0)
        w2 = gl.load(taps + 2, mask=used, other=0.0)
        w3 = gl.load(taps + 3, mask=used, other=0.0)
        c = head * D + gl.arange(0, D, layout=WAVE)
        a = gl.load(a_log + head)
        weight = gl.load(norm + gl.arange(0, D, layout=WAVE))
        x_g = gl.load(gate + first * ldg + c)
        x_b = gl.load(b + first * ldb + head)
        rows, weights, bias = fetch(f, wf, dt_bias, first, end, head, ldf, ldwf, projects)
        at = head * D * D + gl.arange(0, D, layout=VALUES)[:, None] * D + gl.arange(0, D, layout=KEYS)[None, :]
        x0 = gl.zeros_like(x3)
        x1 = x0
        x2 = x0
        s = gl.zeros([D, D], gl.float32, STATE)
        if started:
            x0 = gl.load(past, mask=used, other=0.0).to(gl.float32)
            x1 = gl.load(past + 3 * H * D, mask=used, other=0.0).to(gl.float32)
            x2 = gl.load(past + 6 * H * D, mask=used, other=0.0).to(gl.float32)
            s = gl.load(state + source * lds + at)
        vectors = gl.allocate_shared_memory(gl.float32, [4 * D], SHARED)
        decays = gl.allocate_shared_memory(gl.float32, [TOKENS, D], SHIFTED)
        outputs = gl.allocate_shared_memory(gl.float32, [D], SHARED)
        unit = gl.where(gl.arange(0, 4, layout=STREAM) == 0, scale, 1.0)
        decays_of(rows, weights, bias, decays, a, bounded, bound, projects)
        for t in range(first, end):
            u = gl.fma(x3, w3, gl.fma(x2, w2, gl.fma(x1, w1, gl.fma(x0, w0, gl.zeros_like(x0)))))
            u = u * sigmoid(u)
            factor = unit / gl.sqrt_rn(gl.convert_layout(pairs(u * u), STREAM) + l2_eps)
            vectors.store(gl.reshape(gl.where(kind == 2, u, u * factor[:, None]), [4 * D]))
            beta = sigmoid(x_b)
            gates = sigmoid(x_g)
            x0, x1, x2 = x1, x2, x3
            # What the next token needs; nothing behind the last.
            more = t + 1 < end
            x3 = gl.load(x + (t + 1) * ldx, mask=used & more, other=0.0)
            x_g = gl.load(gate + (t + 1) * ldg + c, mask=more, other=0.0)
            x_b = gl.load(b + (t + 1) * ldb + head, mask=more, other=0.0)
            u_q = vectors.slice(0 * D, D).load(KEYS)
            u_k = vectors.slice(1 * D, D).load(KEYS)
            u_v = vectors.slice(2 * D, D).load(VALUES)
            s = s * decays.gather(gl.full([1, D], (t - first) % TOKENS, gl.int32, STATE), 0)
            change = beta * (u_v - gl.convert_layout(pairs(s * u_k[None, :]), VALUES))
            changes, keys = gl.broadcast(change[:, None], u_k[None, :])
            s = gl.fma(changes, keys, s)
            outputs.store(gl.convert_layout(pairs(s * u_q[None, :]), VALUES))
            o = outputs.load(WAVE)
            mean = gl.sum(gl.convert_layout(total(o * o), gl.SliceLayout(1, STREAMS)), axis=0) / D
            gl.store(y + t * ldy + c, o * (1.0 / gl.sqrt_rn(mean + norm_eps)) * weight * gates)
            if more & ((t + 1 - first) % TOKENS == 0):
                rows, weights, bias = fetch(f, wf, dt_bias, t + 1, end, head, ldf, ldwf, projects)
                decays_of(rows, weights, bias, decays, a, bounded, bound, projects)
        if KEEP:
            slot = gl.load(row + 5).to(gl.int64)
            if slot != 0:
                gl.store(state + slot * lds + at, s)
                # All waves have their window; now it may be overwritten.
                gl.barrier()
                past = window + slot * ldw + kind * (H * D) + tile
                gl.store(past, x0.to(window.dtype.element_ty), mask=used)
                gl.store(past + 3 * H * D, x1.to(window.dtype.element_ty), mask=used)
                gl.store(past + 6 * H * D, x2.to(window.dtype.element_ty), mask=used)
