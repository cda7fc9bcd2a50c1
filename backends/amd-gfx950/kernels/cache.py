"""Rows of a paged cache [blocks, tokens per block, D], found through a block table: reading them back and moving them.

A request's row r lies in block `table[table_row][r / tokens per block]`, slot `r mod tokens per block`. Page size, row width and
the tables' width are run-time values.
"""

import triton
import triton.language as tl

import step as st


@triton.jit
def row_at(table, table_row, width, row, known, block_tokens, D, ldc):
    """Elements from the start of the cache to a request's rows; rows not `known` give some row of block 0 and read no table."""
    block = tl.load(table + table_row.to(tl.int64) * width + row // block_tokens, mask=known, other=0)
    return block.to(tl.int64) * ldc + (row % block_tokens).to(tl.int64) * D


@triton.jit
def kv_read(step, cache, table, y, width, block_tokens, D, ldc, ldy, back, B: tl.constexpr):
    """y[t] = the cache row `back` positions before the token's, as f32, zeros before the beginning; grid (tokens, ceil(D / B))."""
    t = tl.program_id(0)
    if t < tl.load(step + st.N_TOKENS):
        token = st.tokens_at(step) + t * st.TOKEN_WORDS
        position = tl.load(token + 1) - back
        request = st.requests_at(step) + tl.load(token + 2) * st.ROW_WORDS
        row = st.cache_row(position, tl.load(request + 1), tl.load(request + 7))
        known = position >= 0
        at = row_at(table, tl.load(request), width, tl.where(known, row, 0), known, block_tokens, D, ldc)
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(cache + at + c, mask=(c < D) & known, other=0.0).to(tl.float32)
        tl.store(y + t.to(tl.int64) * ldy + c, v, mask=c < D)


@triton.jit
def kv_move(step, cache, table, width, block_tokens, D, ldc, B: tl.constexpr):
    """Cache row p + branch_offset goes to row p for each token of a row, in order; grid (rows, ceil(D / B)). Elements are moved as
    integers of their size.

    A later row may be written over an earlier one's source: a column belongs to one lane, which has read it by then.
    """
    r = tl.program_id(0)
    if r < tl.load(step + st.N_ROWS):
        request = st.requests_at(step) + r * st.ROW_WORDS
        table_row, computed, count = tl.load(request), tl.load(request + 1), tl.load(request + 3)
        offset = tl.load(request + 7)
        if offset != 0:
            c = tl.program_id(1) * B + tl.arange(0, B)
            for position in range(computed, computed + count):
                source = row_at(table, table_row, width, position + offset, True, block_tokens, D, ldc)
                target = row_at(table, table_row, width, position, True, block_tokens, D, ldc)
                tl.store(cache + target + c, tl.load(cache + source + c, mask=c < D), mask=c < D)
