"""Ops that move rows or parts of them: block tables, embeddings, wanted rows, columns."""

import triton
import triton.language as tl

import step as st


@triton.jit
def entries(deltas, i, n, rows, width, component):
    """Table row and index of deltas i, and which of them change an entry of this component."""
    d = deltas + i * 4
    row = tl.load(d + 1, mask=i < n, other=0)
    index = tl.load(d + 2, mask=i < n, other=0)
    mine = (i < n) & (tl.load(d, mask=i < n, other=-1) == component)
    return row, index, mine & (row >= 0) & (row < rows) & (index >= 0) & (index < width)


@triton.jit
def table_update(step, table, rows, width, component, B: tl.constexpr):
    """Applies the deltas of one component in order; a change outside the table is ignored. Grid (1,), one wave, whose stores
    to one address keep their order; of changes of one entry within B the last is kept."""
    n = tl.load(step + st.N_DELTAS)
    deltas = st.deltas_at(step)
    for at in range(0, n, B):
        i = at + tl.arange(0, B)
        row, index, mine = entries(deltas, i, n, rows, width, component)
        j = at + tl.arange(0, B)
        later_row, later_index, later = entries(deltas, j, n, rows, width, component)
        same = (row[:, None] == later_row[None, :]) & (index[:, None] == later_index[None, :]) & later[None, :]
        overwritten = tl.max((same & (j[None, :] > i[:, None])).to(tl.int32), axis=1)
        block = tl.load(deltas + i * 4 + 3, mask=mine, other=0)
        tl.store(table + row.to(tl.int64) * width + index, block, mask=mine & (overwritten == 0))


@triton.jit
def embedding(step, table, relay, y, SLOTS, V, D, ldt, ldy, B: tl.constexpr):
    """y[t] = table[id(t)] as f32, NaN for an id outside; grid (tokens, ceil(D / B)). A negative id is -slot - 1 of one of SLOTS
    places of `relay`, which is not read where there are none."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        token = tl.load(st.tokens_at(step) + t * st.TOKEN_WORDS)
        slot = -token - 1
        relayed = (slot >= 0) & (slot < SLOTS)
        token = tl.load(relay + slot, mask=relayed, other=token)
        known = (token >= 0) & (token < V)
        c = tl.program_id(1) * B + tl.arange(0, B)
        row = tl.where(known, token, 0).to(tl.int64)
        v = tl.load(table + row * ldt + c, mask=c < D, other=0.0).to(tl.float32)
        tl.store(y + t.to(tl.int64) * ldy + c, tl.where(known, v, float("nan")), mask=c < D)


@triton.jit
def row_gather(step, x, y, D, ldx, ldy, B: tl.constexpr):
    """y[l] = x[logit_rows[l]]; grid (logit rows, ceil(D / B))."""
    l = tl.program_id(0)
    if l < tl.load(step + st.N_LOGIT_ROWS):
        t = tl.load(st.logit_rows_at(step) + l)
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=c < D, other=0.0)
        tl.store(y + l.to(tl.int64) * ldy + c, v, mask=c < D)


@triton.jit
def slice(step, count_word, count_fixed, x, y, D, ldx, ldy, B: tl.constexpr):
    """y[t, :D] = x[t, :D], x at the first wanted column; grid (rows, ceil(D / B))."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + t.to(tl.int64) * ldx + c, mask=c < D, other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + c, v, mask=c < D)


@triton.jit
def concat(step, count_word, count_fixed, a, b, y, A, C, lda, ldb, ldy, B: tl.constexpr):
    """y[t] = a[t, :A] then b[t, :C]; grid (rows, ceil((A + C) / B)). Each column is read from one of the two."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.program_id(1) * B + tl.arange(0, B)
        left = tl.load(a + t.to(tl.int64) * lda + c, mask=c < A, other=0.0)
        right = tl.load(b + t.to(tl.int64) * ldb + (c - A), mask=(c >= A) & (c < A + C), other=0.0)
        tl.store(y + t.to(tl.int64) * ldy + c, tl.where(c < A, left, right), mask=c < A + C)
