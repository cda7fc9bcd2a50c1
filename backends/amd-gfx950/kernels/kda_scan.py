"""The scan of `kda_chunk` for heads of 128 x 128 and bf16 factors: one wave per 16 values, nothing through LDS between chunks.

Operands come from the scratch straight into the lanes of the matrix instructions, because `prepare` laid them out along the
summed dimension; each is loaded for the next chunk as soon as this one has used it, so only the state's chain is serial: to bf16,
two products, to bf16, two products. Outputs leave four values a lane. Tokens around whole chunks take the token
routine, in the layout of `kda_decode`. Rejected: four waves along keys, which exchange the state and V' at barriers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4

import step as st
from elementwise import LOG2_E
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
        chunks = (end - here) // CHUNK
        if chunks > 0:
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
            for i in range(chunks):
                # Behind the last chunk the last one is loaded again, and not used.
                slot = ((here // CHUNK + gl.minimum(i + 1, chunks - 1)) * H + head).to(gl.int64)
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
                gl.store(o + (here + i * CHUNK).to(gl.int64) * ldo + head * D + panel + of_o, out)
            s = gl.convert_layout(acc, STATE)
            here += chunks * CHUNK
        s = tokens(s, q, k, v, g, beta, o, here, end - here, head, cv, ldq, ldk, ldv, ldg, ldb, ldo)
        slot = gl.load(row + 5)
        if slot != 0:
            gl.store(state + slot.to(gl.int64) * lds + at, s)
