"""Reading the parameter block, which starts with `ts_step` (see `backend-api/include/tokenspeed_backend.h`), as 32-bit words.

Everything that changes from step to step is read here and nowhere else, so that captured launches replay unchanged.
"""

import triton
import triton.language as tl

# Words of the header.
N_TOKENS = tl.constexpr(1)
N_ROWS = tl.constexpr(2)
N_LOGIT_ROWS = tl.constexpr(3)
N_DELTAS = tl.constexpr(4)
ROWS_OFFSET = tl.constexpr(8)
TOKENS_OFFSET = tl.constexpr(9)
LOGIT_ROWS_OFFSET = tl.constexpr(10)
DELTAS_OFFSET = tl.constexpr(11)
# Words per record.
ROW_WORDS = tl.constexpr(8)
TOKEN_WORDS = tl.constexpr(4)


@triton.jit
def rows_of(step, count_word, count_fixed):
    """Entries of an operand's first dimension: a count of the step, or fixed where `count_word` is 0."""
    return tl.where(count_word == 0, count_fixed, tl.load(step + count_word))


@triton.jit
def tokens_at(step):
    """Tokens: (id, position, row, 0) each."""
    return step + tl.load(step + TOKENS_OFFSET) // 4


@triton.jit
def requests_at(step):
    """Rows: (table_row, computed, query_start, query_len, state_read, state_write, state_tokens, branch_offset) each."""
    return step + tl.load(step + ROWS_OFFSET) // 4


@triton.jit
def logit_rows_at(step):
    """Token indices whose logits are wanted."""
    return step + tl.load(step + LOGIT_ROWS_OFFSET) // 4


@triton.jit
def deltas_at(step):
    """Table changes: (component, table_row, index, block) each."""
    return step + tl.load(step + DELTAS_OFFSET) // 4


@triton.jit
def cache_row(position, computed, branch_offset):
    """Row of a request's cache that holds the token at `position`."""
    return tl.where(position < computed, position, position + branch_offset)


@triton.jit
def query_tile(step, tile, TQ, R: tl.constexpr):
    """The tile-th group of at most TQ consecutive tokens of one request: (row, first token, tokens), 0 tokens behind the last.

    Rows are looked through R at a time, so that finding a tile among hundreds of requests costs a few loads.
    """
    n_rows = tl.load(step + N_ROWS)
    rows = requests_at(step)
    before, row, index, found = 0, 0, 0, 0
    for at in range(0, n_rows, R):
        i = at + tl.arange(0, R)
        length = tl.load(rows + i * ROW_WORDS + 3, mask=i < n_rows, other=0)
        tiles = (length + TQ - 1) // TQ
        ends = before + tl.cumsum(tiles, 0)
        mine = (tile >= ends - tiles) & (tile < ends)
        row += tl.sum(tl.where(mine, i, 0))
        index += tl.sum(tl.where(mine, tile - (ends - tiles), 0))
        found += tl.sum(mine.to(tl.int32))
        before += tl.sum(tiles)
    record = rows + row * ROW_WORDS
    first = tl.load(record + 2) + index * TQ
    left = tl.load(record + 3) - index * TQ
    return row, first, tl.where(found > 0, tl.minimum(left, TQ), 0)
