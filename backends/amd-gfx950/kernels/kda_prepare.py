"""What the chunks of 64 tokens of a Kimi Delta Attention layer need no state for, from the layer's inputs, in one launch.

It stands for convolution, SiLU, unit lengths, gates and `kda_chunk.prepare`, for heads of 128 x 128 and bf16 factors: nothing of
[tokens, channels] in f32 goes through memory in between. A work-group owns a chunk of a head, a wave a tile of 16 tokens. A lane
has eight tokens of four channels, so that the rows of a filter slide through its registers and running sums of the gate stay in it.
Only finished bf16 factors go through LDS, on their way to the matrix units. What is stored has the dimension that it is summed over
innermost, in `kda_scan.place`.

With c the sum of log decays since a tile's start and t that of a whole tile, a ratio e^(G_i - G_j) across tiles is
e^(c_i) . e^(t_j - c_j) . e^(t of the tiles between), all of them at most 1. Inside a tile it is e^(c_i) . e^(-c_j), which grows
with the tile's decay; where that would pass 2^115 the tile is formed element by element.

The solve is T = (I + diag(beta) K)^-1 diag(beta) with K_ij = k_i . k_j e^(G_i - G_j) below the diagonal, W = T . K e^G and
U = T . V. Tiles on the diagonal are inverted by iterating X <- I - diag(beta) K X, whose row i is right behind i steps; the other
tiles follow from right to left, each wave for its own rows. These products have f32 factors; T, and V where it meets T, are sums of
two bf16 numbers.

Nothing here has to have the bits of single tokens, so quotients are products with `v_rcp_f32`, and roots `v_rsq_f32`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna4
from triton.experimental.gluon.language.extra import libdevice

import step as st
from elementwise import LOG2_E
from kda import log_decay
from kda_scan import place

D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
TILE = gl.constexpr(16)
# Sums of log decays of a tile, to base 2, from which on factors of its ratios do not fit: see above.
WEAKEST = gl.constexpr(-115.0)
NOWHERE = gl.constexpr(2147483647)

# Tokens of a block, whole in every wave.
LANES = gl.constexpr(gl.BlockedLayout([1], [64], [4], [0]))
# One token out of every eight [eighth of the chunk, channel].
ROW = gl.constexpr(gl.BlockedLayout([1, 4], [2, 32], [4, 1], [1, 0]))
# All of them [tile, token, channel]; what is said of rows and of columns.
TILES = gl.constexpr(gl.BlockedLayout([1, 8, 4], [1, 2, 32], [4, 1, 1], [2, 1, 0]))
TOKENS = gl.constexpr(gl.SliceLayout(2, TILES))
COLUMNS = gl.constexpr(gl.SliceLayout(1, TILES))
CHANNELS = gl.constexpr(gl.SliceLayout(0, COLUMNS))
# The same lanes, neighbouring tokens first.
BESIDE = gl.constexpr(gl.DistributedLinearLayout([[0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2]],
                                                 [[0, 0, 4], [0, 0, 8], [0, 0, 16], [0, 0, 32], [0, 0, 64], [0, 8, 0]],
                                                 [[1, 0, 0], [2, 0, 0]], [], [4, 16, 128]))
# The taps of a lane's channels, four neighbours each.
TAPS = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [1, 0], [2, 0]], [[4, 0], [8, 0], [16, 0], [32, 0], [64, 0], [0, 0]],
                                               [[0, 0], [0, 0]], [], [128, 4]))
# Products [token, token], a tile of rows per wave: with four neighbouring rows a lane, with four columns, and those of f32.
DOWN = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=False, warps_per_cta=[4, 1]))
ACROSS = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[4, 1]))
SOLVED = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 4], transposed=True, warps_per_cta=[4, 1]))
DIAGONAL = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 4], transposed=False, warps_per_cta=[4, 1, 1]))
# Products [token, channel], columns dealt to the waves.
KEYS = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[1, 4]))
VALUES = gl.constexpr(gl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=False, warps_per_cta=[1, 4]))
# LDS: factors [token, channel] with channels or tokens innermost, products [token, token] likewise, and plain rows.
BY_CHANNEL = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 16, [1, 0]))
BY_TOKEN = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [0, 1]))
SQUARE = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 16, [0, 1]))
THIN = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 4, [0, 1]))
FACTOR = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
TURNED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def reciprocal(x):
    return libdevice.fast_dividef(gl.full_like(x, 1.0), x)


@gluon.jit
def chunk_in(step, block):
    """The token at which the chunk that begins in a block of 64 tokens of the step does so; NOWHERE if none begins there."""
    n_tokens = gl.load(step + st.N_TOKENS)
    tokens = step + gl.load(step + st.TOKENS_OFFSET) // 4
    rows = step + gl.load(step + st.ROWS_OFFSET) // 4
    i = block * CHUNK + gl.arange(0, CHUNK, layout=LANES)
    known = i < n_tokens
    row = rows + gl.load(tokens + i * st.TOKEN_WORDS + 2, mask=known, other=0) * st.ROW_WORDS
    left = gl.load(row + 2, mask=known, other=0) + gl.load(row + 3, mask=known, other=0) - i
    begins = known & (gl.load(tokens + i * st.TOKEN_WORDS + 1, mask=known, other=1) % CHUNK == 0) & (left >= CHUNK)
    return gl.min(gl.where(begins, i, NOWHERE), axis=0)


@gluon.jit
def stacked(y):
    """[4, 16, D] of eight tokens [8, D] in order."""
    even = gl.join(gl.join(y[0], y[4]), gl.join(y[2], y[6]))
    odd = gl.join(gl.join(y[1], y[5]), gl.join(y[3], y[7]))
    every = gl.permute(gl.join(even, odd), (0, 2, 3, 4, 1))
    return gl.convert_layout(gl.reshape(every, [4, TILE, D]), TILES)


@gluon.jit
def filtered(x, ld, w, past, pitch, before, started):
    """silu of the convolution of a chunk's tokens, [4, 16, D]. `x` is at the chunk's first token, of which `before` tokens of the
    request lie ahead in the step, `past` at the window's oldest row, `pitch` from row to row."""
    e = gl.arange(0, 8, layout=gl.SliceLayout(1, ROW))[:, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, ROW))[None, :]
    at = e * (8 * ld) + c
    channel = gl.arange(0, D, layout=gl.SliceLayout(1, TAPS))[:, None]
    taps = cdna4.buffer_load(w, channel * 4 + gl.arange(0, 4, layout=gl.SliceLayout(0, TAPS))[None, :])
    even, odd = gl.split(gl.reshape(taps, [D, 2, 2]))
    w0, w2 = gl.split(even)
    w1, w3 = gl.split(odd)
    w0 = gl.convert_layout(w0, gl.SliceLayout(0, ROW))[None, :]
    w1 = gl.convert_layout(w1, gl.SliceLayout(0, ROW))[None, :]
    w2 = gl.convert_layout(w2, gl.SliceLayout(0, ROW))[None, :]
    w3 = gl.convert_layout(w3, gl.SliceLayout(0, ROW))[None, :]
    x0 = cdna4.buffer_load(x - 3 * ld, at, mask=(e > 0) | (before >= 3))
    x1 = cdna4.buffer_load(x - 2 * ld, at, mask=(e > 0) | (before >= 2))
    x2 = cdna4.buffer_load(x - ld, at, mask=(e > 0) | (before >= 1))
    if before < 3:
        # The first tokens see the window, or nothing.
        old = e * 0 + c
        x0 = gl.where((e > 0) | (before >= 3), x0, 0.0)
        x1 = gl.where((e > 0) | (before >= 2), x1, 0.0)
        x2 = gl.where((e > 0) | (before >= 1), x2, 0.0)
        if started:
            leads = (e == 0) & (c >= 0)
            x0 += gl.load(past + before * pitch + old, mask=leads & (before < 3), other=0.0).to(gl.float32)
            x1 += gl.load(past + (before + 1) * pitch + old, mask=leads & (before < 2), other=0.0).to(gl.float32)
            x2 += gl.load(past + (before + 2) * pitch + old, mask=leads & (before < 1), other=0.0).to(gl.float32)
    y = ()
    for r in gl.static_range(8):
        x3 = cdna4.buffer_load(x + r * ld, at)
        u = gl.fma(x3, w3, gl.fma(x2, w2, gl.fma(x1, w1, x0 * w0)))
        y = y + (u * reciprocal(1.0 + gl.exp2(u * -LOG2_E)),)
        x0, x1, x2 = x1, x2, x3
    return stacked(y)


@gluon.jit
def unit(x, eps, scale):
    return x * (gl.rsqrt(gl.sum(x * x, axis=2) + eps) * scale)[:, :, None]


@gluon.jit
def decays(f, ldf, dt_bias, a_log, bounded, bound):
    """Log decays to base 2 of a chunk's tokens, [4, 16, D]."""
    tile = gl.arange(0, 4, layout=gl.SliceLayout(1, TOKENS))[:, None]
    token = tile * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, TOKENS))[None, :]
    c = gl.arange(0, D, layout=CHANNELS)
    x = cdna4.buffer_load(f, token[:, :, None] * ldf + c[None, :][:, None, :])
    bias = cdna4.buffer_load(dt_bias, c)[None, :][:, None, :]
    if bounded == 1:
        slope = -gl.exp2(a_log * LOG2_E) * LOG2_E
        g = (bound * LOG2_E) * reciprocal(1.0 + gl.exp2(gl.fma(x, gl.zeros_like(x) + slope, gl.zeros_like(x) + bias * slope)))
    else:
        g = log_decay(x, a_log, bias, 0, bound) * LOG2_E
    return g


@gluon.jit
def element_by_element(k, q, c, m, a):
    """k_i . k_j and q_i . k_j with decay ratios inside each tile, exact wherever i >= j, into LDS [16 (j), 64 (i)]."""
    own = gl.arange(0, TILE, layout=gl.SliceLayout(0, TOKENS))[None, :]
    for j in range(TILE):
        chosen = (own == j)[:, :, None]
        c_j = gl.sum(gl.where(chosen, c, 0.0), axis=1)[:, None, :]
        k_j = gl.sum(gl.where(chosen, k, 0.0), axis=1)[:, None, :]
        ratio = k_j * gl.exp2(gl.minimum(c - c_j, 0.0))
        m.index(j).store(gl.reshape(gl.sum(k * ratio, axis=2), [CHUNK]))
        a.index(j).store(gl.reshape(gl.sum(q * ratio, axis=2), [CHUNK]))


@gluon.jit
def columns(left_k, left_q, right, tile: gl.constexpr):
    """All rows of k and q times a tile of tokens of `right` [64, D], [64, 16] each."""
    b = right.slice(tile * TILE, TILE).permute((1, 0)).load(gl.DotOperandLayout(1, DOWN, 8))
    m = cdna4.mfma(left_k, b, gl.zeros([CHUNK, TILE], gl.float32, DOWN))
    b = gl.convert_layout(b, gl.DotOperandLayout(1, ACROSS, 8), assert_trivial=True)
    return m, cdna4.mfma(left_q, b, gl.zeros([CHUNK, TILE], gl.float32, ACROSS))


@gluon.jit
def chosen(m, others, row, tile: gl.constexpr):
    """m = (m, a), but `others` in the tile's rows."""
    return gl.where(row[0] == tile, others[0], m[0]), gl.where(row[1] == tile, others[1], m[1])


@gluon.jit
def inverse(m):
    """(I + m)^-1 of strictly lower tiles m [4, 16, 16]."""
    i = gl.arange(0, TILE, layout=gl.SliceLayout(0, gl.SliceLayout(2, DIAGONAL)))[None, :][:, :, None]
    j = gl.arange(0, TILE, layout=gl.SliceLayout(0, gl.SliceLayout(1, DIAGONAL)))[None, :][:, None, :]
    one = gl.where(i == j, 1.0, gl.zeros([4, TILE, TILE], gl.float32, DIAGONAL))
    minus = gl.convert_layout(-m, gl.DotOperandLayout(0, DIAGONAL, 4))
    x = one - m
    for _ in gl.static_range(TILE - 2):
        x = cdna4.mfma(minus, gl.convert_layout(x, gl.DotOperandLayout(1, DIAGONAL, 4), assert_trivial=True), one)
    return x


@gluon.jit
def column(solved, square, diagonal, tile: gl.constexpr):
    """A column of tiles of T, from those on its right, `solved` from right to left."""
    s = gl.zeros([CHUNK, TILE], gl.float32, SOLVED)
    for n in gl.static_range(len(solved)):
        m = square.slice((3 - n) * TILE, TILE).slice(tile * TILE, TILE, dim=1)
        left = gl.convert_layout(solved[n], gl.DotOperandLayout(0, SOLVED, 4), assert_trivial=True)
        s = cdna4.mfma(left, m.load(gl.DotOperandLayout(1, SOLVED, 4)), s)
    i = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, SOLVED))[:, None]
    j = gl.arange(0, TILE, layout=gl.SliceLayout(0, SOLVED))[None, :] + tile * TILE
    s = gl.convert_layout(gl.where(i == j, 1.0, 0.0) - s, gl.DotOperandLayout(0, SOLVED, 4), assert_trivial=True)
    d = diagonal.slice(tile * TILE, TILE).load(gl.DotOperandLayout(1, SOLVED, 4))
    return cdna4.mfma(s, d, gl.zeros([CHUNK, TILE], gl.float32, SOLVED))


@gluon.jit
def store_a(to, a, q0, q1, q2):
    """A of a chunk, its columns in `place`: tiles on the diagonal, columns of tiles below it, and zeros above."""
    row = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, ACROSS))[:, None]
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, ACROSS))[None, :]
    tile = row // TILE
    at = row * CHUNK
    a = gl.where(row % TILE >= column, a, 0.0)
    cdna4.buffer_store(gl.where(tile == 0, a, q0).to(gl.bfloat16), to, at + place(column))
    cdna4.buffer_store(gl.where(tile == 1, a, gl.where(tile > 1, q1, 0.0)).to(gl.bfloat16), to, at + place(column + TILE))
    cdna4.buffer_store(gl.where(tile == 2, a, gl.where(tile > 2, q2, 0.0)).to(gl.bfloat16), to, at + place(column + 2 * TILE))
    cdna4.buffer_store(gl.where(tile == 3, a, 0.0).to(gl.bfloat16), to, at + place(column + 3 * TILE))


@gluon.jit
def solve(m, m0, m1, m2, pb, ldb):
    """T as a left factor, in two bf16 parts: from K's tiles on the diagonal, its columns of tiles below, and b at `pb`."""
    # Inverted tiles on the diagonal, times beta.
    square = gl.allocate_shared_memory(gl.float32, [CHUNK, CHUNK], SQUARE)
    square.slice(0 * TILE, TILE, dim=1).store(m0)
    square.slice(1 * TILE, TILE, dim=1).store(m1)
    square.slice(2 * TILE, TILE, dim=1).store(m2)
    m = gl.convert_layout(gl.reshape(m, [4, TILE, TILE]), DIAGONAL)
    batch = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, DIAGONAL)))[:, None]
    i = gl.arange(0, TILE, layout=gl.SliceLayout(0, gl.SliceLayout(2, DIAGONAL)))[None, :]
    batch_j = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(1, DIAGONAL)))[:, None]
    j = gl.arange(0, TILE, layout=gl.SliceLayout(0, gl.SliceLayout(1, DIAGONAL)))[None, :]
    beta_i = reciprocal(1.0 + gl.exp2(cdna4.buffer_load(pb, (batch * TILE + i) * ldb) * -LOG2_E))
    beta_j = reciprocal(1.0 + gl.exp2(cdna4.buffer_load(pb, (batch_j * TILE + j) * ldb) * -LOG2_E))
    m = gl.where(i[:, :, None] > j[:, None, :], beta_i[:, :, None] * m, 0.0)
    diagonal = gl.allocate_shared_memory(gl.float32, [CHUNK, TILE], THIN)
    diagonal.store(gl.reshape(inverse(m) * beta_j[:, None, :], [CHUNK, TILE]))

    # The other tiles of T, by columns from right to left; rows of T stay in their wave.
    solved = ()
    for n in gl.static_range(4):
        solved = solved + (column(solved, square, diagonal, 3 - n),)
    high = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, CHUNK], FACTOR)
    low = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, CHUNK], FACTOR)
    for n in gl.static_range(4):
        upper = solved[n].to(gl.bfloat16)
        high.slice((3 - n) * TILE, TILE, dim=1).store(upper)
        low.slice((3 - n) * TILE, TILE, dim=1).store((solved[n] - upper.to(gl.float32)).to(gl.bfloat16))
    t_high = high.load(gl.DotOperandLayout(0, KEYS, 8))
    return t_high, low.load(gl.DotOperandLayout(0, KEYS, 8))


@gluon.jit
def prepare_mix(step, q, k, v, f, b, wq, wk, wv, a_log, dt_bias, window, ws_w, ws_q, ws_k, ws_u, ws_a, ws_decay, H, ldq, ldk, ldv,
                ldf, ldb, ldw, first, bounded, bound, l2_eps, scale):
    """The chunk that begins in a block of 64 tokens of the step, if any; grid (pairs of a block and a head in the slab), which are those
    of the step, by block, from `first` on. The scratch holds a slab.

    q, k, v before the convolution of four taps, f the gate's projection, b before the sigmoid. The window is read where fewer than
    three of the request's tokens lie ahead of the chunk in the step, and never moved.
    """
    pair = first + gl.program_id(0)
    head = pair % H
    here = chunk_in(step, pair // H)
    if here != NOWHERE:
        slot = gl.program_id(0).to(gl.int64)
        tokens = step + gl.load(step + st.TOKENS_OFFSET) // 4
        request = step + gl.load(step + st.ROWS_OFFSET) // 4 + gl.load(tokens + here * st.TOKEN_WORDS + 2) * st.ROW_WORDS
        started = gl.load(request + 1) != 0
        before = here - gl.load(request + 2)
        past = window + gl.load(request + 4).to(gl.int64) * ldw + head * D
        pitch = 3 * H * D
        t = here.to(gl.int64)
        at = head * D
        x_k = unit(filtered(k + t * ldk + at, ldk, wk + at * 4, past + H * D, pitch, before, started), l2_eps, 1.0)
        x_q = unit(filtered(q + t * ldq + at, ldq, wq + at * 4, past, pitch, before, started), l2_eps, scale)
        g = decays(f + t * ldf + at, ldf, dt_bias + at, gl.load(a_log + head), bounded, bound)
        c = gl.cumsum(g, axis=1)
        total = gl.sum(g, axis=1)
        # Sums of the other tiles.
        totals = gl.allocate_shared_memory(gl.float32, [4 * D], PLAIN)
        totals.store(gl.reshape(total, [4 * D]))
        t0 = totals.slice(0 * D, D).load(CHANNELS)
        t1 = totals.slice(1 * D, D).load(CHANNELS)
        t2 = totals.slice(2 * D, D).load(CHANNELS)
        t3 = totals.slice(3 * D, D).load(CHANNELS)
        channel = gl.arange(0, D, layout=CHANNELS)
        cdna4.buffer_store(gl.exp2(t0 + t1 + t2 + t3), ws_decay + slot * D, channel)
        strongest = gl.min(gl.minimum(gl.minimum(t0, t1), gl.minimum(t2, t3)), axis=0)
        w = gl.arange(0, 4, layout=gl.SliceLayout(1, COLUMNS))[:, None]
        a0, a1, a2, a3 = t0[None, :], t1[None, :], t2[None, :], t3[None, :]
        begun = gl.where(w > 0, a0, 0.0) + gl.where(w > 1, a1, 0.0) + gl.where(w > 2, a2, 0.0)
        next1 = gl.where(w == 0, a1, gl.where(w == 1, a2, gl.where(w == 2, a3, 0.0)))
        next2 = gl.where(w == 0, a2, gl.where(w == 1, a3, 0.0))
        next3 = gl.where(w == 0, a3, 0.0)

        grown = gl.exp2(c)
        lefts = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
        lefts.store(gl.reshape((x_k * grown).to(gl.bfloat16), [CHUNK, D]))
        queries = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
        queries.store(gl.reshape((x_q * grown).to(gl.bfloat16), [CHUNK, D]))
        row_m = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, DOWN))[:, None] // TILE
        row_a = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, ACROSS))[:, None] // TILE
        row = (row_m, row_a)

        # Tiles on the diagonal.
        if strongest > WEAKEST:
            rights = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
            rights.store(gl.reshape((x_k * gl.exp2(-c)).to(gl.bfloat16), [CHUNK, D]))
            left_k = lefts.load(gl.DotOperandLayout(0, DOWN, 8))
            left_q = queries.load(gl.DotOperandLayout(0, ACROSS, 8))
            both = columns(left_k, left_q, rights, 0)
            both = chosen(both, columns(left_k, left_q, rights, 1), row, 1)
            both = chosen(both, columns(left_k, left_q, rights, 2), row, 2)
            m, a = chosen(both, columns(left_k, left_q, rights, 3), row, 3)
        else:
            of_m = gl.allocate_shared_memory(gl.float32, [TILE, CHUNK], PLAIN)
            of_a = gl.allocate_shared_memory(gl.float32, [TILE, CHUNK], PLAIN)
            element_by_element(x_k, x_q, c, of_m, of_a)
            m = of_m.reinterpret(gl.float32, [CHUNK, TILE], TURNED).load(DOWN)
            a = of_a.reinterpret(gl.float32, [CHUNK, TILE], TURNED).load(ACROSS)

        # What the scan multiplies by, and factors of W and U.
        tile = gl.arange(0, 4, layout=gl.SliceLayout(1, TOKENS))[:, None]
        token = (tile * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, TOKENS))[None, :])[:, :, None]
        key = channel[None, :][:, None, :]
        grown = gl.exp2(c + begun[:, None, :])
        cdna4.buffer_store((x_q * grown).to(gl.bfloat16), ws_q + slot * CHUNK * D, token * D + place(key))
        keys = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_TOKEN)
        keys.store(gl.reshape((x_k * grown).to(gl.bfloat16), [CHUNK, D]))

        # Tiles below it: factors on the right decay on their way to the tile that multiplies them.
        right = x_k * gl.exp2(total[:, None, :] - c)
        rights0 = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
        rights0.store(gl.reshape(right.to(gl.bfloat16), [CHUNK, D]))
        left_k = lefts.load(gl.DotOperandLayout(0, DOWN, 8))
        left_q = queries.load(gl.DotOperandLayout(0, ACROSS, 8))
        m0, q0 = columns(left_k, left_q, rights0, 0)
        m1, q1 = columns(left_k, left_q, rights0, 1)
        m2, q2 = columns(left_k, left_q, rights0, 2)
        right = right * gl.exp2(next1)[:, None, :]
        rights1 = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
        rights1.store(gl.reshape(right.to(gl.bfloat16), [CHUNK, D]))
        m0, q0 = chosen((m0, q0), columns(left_k, left_q, rights1, 0), row, 2)
        m1, q1 = chosen((m1, q1), columns(left_k, left_q, rights1, 1), row, 3)
        right = right * gl.exp2(next2)[:, None, :]
        rights2 = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_CHANNEL)
        rights2.store(gl.reshape(right.to(gl.bfloat16), [CHUNK, D]))
        m0, q0 = chosen((m0, q0), columns(left_k, left_q, rights2, 0), row, 3)
        right = right * gl.exp2(next3)[:, None, :]
        kept = gl.convert_layout(right.to(gl.bfloat16), BESIDE, assert_trivial=True)
        cdna4.buffer_store(kept, ws_k + slot * CHUNK * D, gl.convert_layout(key * CHUNK + place(token), BESIDE, assert_trivial=True))

        store_a(ws_a + slot * CHUNK * CHUNK, a, q0, q1, q2)

        # v is wanted to more than eight bits: U has its size, and errors of U are those of the outputs.
        x_v = filtered(v + t * ldv + at, ldv, wv + at * 4, past + 2 * H * D, pitch, before, started)
        rounded = x_v.to(gl.bfloat16)
        values = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_TOKEN)
        values.store(gl.reshape(rounded, [CHUNK, D]))
        rests = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], BY_TOKEN)
        rests.store(gl.reshape((x_v - rounded.to(gl.float32)).to(gl.bfloat16), [CHUNK, D]))

        t_high, t_low = solve(m, m0, m1, m2, b + t * ldb + head, ldb)
        factor = keys.load(gl.DotOperandLayout(1, KEYS, 8))
        out = cdna4.mfma(t_low, factor, gl.zeros([CHUNK, D], gl.float32, KEYS))
        out = cdna4.mfma(t_high, factor, out)
        to = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, KEYS))[:, None] * D + place(gl.arange(0, D, layout=gl.SliceLayout(0, KEYS)))[None, :]
        cdna4.buffer_store(out.to(gl.bfloat16), ws_w + slot * CHUNK * D, to)
        t_high = gl.convert_layout(t_high, gl.DotOperandLayout(0, VALUES, 8), assert_trivial=True)
        t_low = gl.convert_layout(t_low, gl.DotOperandLayout(0, VALUES, 8), assert_trivial=True)
        factor = values.load(gl.DotOperandLayout(1, VALUES, 8))
        out = cdna4.mfma(t_low, factor, gl.zeros([CHUNK, D], gl.float32, VALUES))
        out = cdna4.mfma(t_high, rests.load(gl.DotOperandLayout(1, VALUES, 8)), out)
        out = cdna4.mfma(t_high, factor, out)
        to = place(gl.arange(0, CHUNK, layout=gl.SliceLayout(1, VALUES)))[:, None] + gl.arange(0, D, layout=gl.SliceLayout(0, VALUES))[None, :] * CHUNK
        cdna4.buffer_store(out.to(gl.bfloat16), ws_u + slot * CHUNK * D, to)
