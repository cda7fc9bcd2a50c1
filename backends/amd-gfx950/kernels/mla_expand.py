"""Latent attention in expanded form, its preparation: which requests take it, and their keys and values per head.

A request with many tokens in a step meets each row of its context with so many queries that making the row's keys and values first
costs less than multiplying latent rows: 128 + 64 and 128 columns per head instead of 576 and 512. `survey` decides which requests
these are and lists their tiles of tokens; contexts lie one behind the other, each from a multiple of ALIGN on. `expand` makes keys and
values of as many of those positions as scratch holds; `mla_prefill` multiplies them. Rejected: expansion inside attention, which every
tile of tokens would repeat (2.6 times the work of a tile of 256), and scratch for whole contexts, which has no bound.

Scratch holds blocks of 64 x 64 bf16 values that go to LDS as they are: row i's eight-value pieces are at places j xor (i / 2 mod 8), so
that the rows that LDS serves together lie in different banks. Per head and 64 positions: two blocks of keys (rows: positions, columns:
64 of 128 values), two of values, transposed (rows: 64 of 128 values, columns: positions); for all heads together one of the values
behind the latent ones.
"""

import triton
import triton.language as tl

import cache as pages
import step as st

# Words of the list: requests, tiles, positions, tokens that the first one has computed; then from HEAD on requests of WORDS. Tiles have as many words.
HEAD = tl.constexpr(16)
WORDS = tl.constexpr(8)
# A context begins at a multiple of this.
ALIGN = tl.constexpr(128)
# Tokens of a tile.
TILE = tl.constexpr(256)


@triton.jit
def survey(step, flags, listed, tiles, least, most, B: tl.constexpr):
    """Which requests are expanded: those of at least `least` tokens, in order, while their contexts sum to at most `most`.

    flags[r]: whether request r is. `listed`: their number, that of tiles, positions in all, tokens that the first one has computed; for each request where its context
    begins, how long it is, table row, tokens computed, branch offset. `tiles`: first token, tokens, keys that the last of them sees,
    where the context begins; a request's longest first. Grid (rows).
    """
    r = tl.program_id(0)
    n_rows = tl.load(step + st.N_ROWS)
    if (r == 0) & (n_rows == 0):
        tl.store(listed, 0)
        tl.store(listed + 1, 0)
        tl.store(listed + 2, 0)
    if r < n_rows:
        rows = st.requests_at(step)
        behind, base, number, before, mine = 0, 0, 0, 0, 0
        for at in range(0, r + 1, B):
            i = at + tl.arange(0, B)
            length = tl.load(rows + i * st.ROW_WORDS + 3, mask=i <= r, other=0)
            seen = tl.load(rows + i * st.ROW_WORDS + 1, mask=i <= r, other=0) + length
            span = tl.where(length >= least, (seen + ALIGN - 1) // ALIGN * ALIGN, 0)
            # Whoever follows one that did not fit does not fit either.
            fits = (span > 0) & (behind + tl.cumsum(span, 0) <= most)
            earlier = fits & (i < r)
            base += tl.sum(tl.where(earlier, span, 0))
            number += tl.sum(earlier.to(tl.int32))
            before += tl.sum(tl.where(earlier, (length + TILE - 1) // TILE, 0))
            mine += tl.sum((fits & (i == r)).to(tl.int32))
            behind += tl.sum(span)
        tl.store(flags + r, mine)
        request = rows + r * st.ROW_WORDS
        table_row, computed, first = tl.load(request), tl.load(request + 1), tl.load(request + 2)
        length, branch = tl.load(request + 3), tl.load(request + 7)
        count = tl.where(mine > 0, (length + TILE - 1) // TILE, 0)
        if mine > 0:
            entry = listed + HEAD + number * WORDS
            tl.store(entry, base)
            tl.store(entry + 1, computed + length)
            tl.store(entry + 2, table_row)
            tl.store(entry + 3, computed)
            tl.store(entry + 4, branch)
            if number == 0:
                tl.store(listed + 3, computed)
        for at in range(0, count, B):
            i = at + tl.arange(0, B)
            start = (count - 1 - i) * TILE
            n = tl.minimum(length - start, TILE)
            item = tiles + (before + i) * WORDS
            inside = i < count
            tl.store(item, first + start, mask=inside)
            tl.store(item + 1, n, mask=inside)
            tl.store(item + 2, computed + start + n, mask=inside)
            tl.store(item + 3, base, mask=inside)
        if r == n_rows - 1:
            span = (computed + length + ALIGN - 1) // ALIGN * ALIGN
            tl.store(listed, number + mine)
            tl.store(listed + 1, before + count)
            tl.store(listed + 2, base + tl.where(mine > 0, span, 0))


@triton.jit
def rows_from(listed, table, at, width, block_tokens, ldc, W: tl.constexpr, B: tl.constexpr):
    """Offsets of the cache rows of ALIGN positions from `at` on, the last row of a context repeated behind its end."""
    n = tl.load(listed)
    index = -1
    for a in range(0, n, B):
        i = a + tl.arange(0, B)
        begins = tl.load(listed + HEAD + i * WORDS, mask=i < n, other=0x7FFFFFFF)
        index += tl.sum((begins <= at).to(tl.int32))
    entry = listed + HEAD + index * WORDS
    position = tl.minimum(at - tl.load(entry) + tl.arange(0, ALIGN), tl.load(entry + 1) - 1)
    row = st.cache_row(position, tl.load(entry + 3), tl.load(entry + 4))
    base = pages.row_at(table, tl.load(entry + 2), width, row, True, block_tokens, W, ldc)
    return tl.multiple_of(base, 16)


@triton.jit
def product(px, pw, N: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):
    """ALIGN rows of R latent values times N rows of w, px and pw being where the first BK of each lie."""
    acc = tl.zeros((ALIGN, N), tl.float32)
    for _ in range(0, R, BK):
        acc = tl.dot(tl.load(px).to(tl.bfloat16), tl.load(pw).T, acc)
        px += BK
        pw += BK
    return acc


@triton.jit
def within(i, j):
    """Where row i's piece j of eight lies in its block."""
    return (i % 64) * 64 + ((j % 8) ^ (i // 2 % 8)) * 8


@triton.jit
def expand(listed, cache, table, w, blocks, ropes, start, size, width, block_tokens, per_head, ldc, ldw, N: tl.constexpr,
           R: tl.constexpr, P: tl.constexpr, BK: tl.constexpr, B: tl.constexpr):
    """Keys (program 2 = 0) or values (1) of head program 1, for ALIGN positions from start + program 0 * ALIGN on, into scratch.

    A head's `per_head` = 2 N rows of w are those that make keys, then those that make values. Behind the end of a context its last
    row is repeated, so that everything in scratch is a number. Scratch holds `size` positions. The first head's program for
    keys copies the P values behind the latent ones. Grid (ceil(positions / ALIGN), H, 2).
    """
    at = start + tl.program_id(0) * ALIGN
    if at < tl.load(listed + 2):
        h = tl.program_id(1)
        half = tl.program_id(2)
        base = rows_from(listed, table, at, width, block_tokens, ldc, R + P, B)
        i = tl.arange(0, ALIGN)
        c = tl.arange(0, N)
        k = tl.arange(0, BK)
        pw = w + (h * per_head + half * N + c).to(tl.int64)[:, None] * ldw + k[None, :]
        acc = product(cache + base[:, None] + k[None, :], pw, N, R, BK)
        to = blocks + (h.to(tl.int64) * (size // 64) + tl.program_id(0) * (ALIGN // 64)) * (4 * 64 * 64)
        j = tl.arange(0, N // 8)
        e = tl.arange(0, 8)
        if half == 0:
            block = (i // 64 * 4)[:, None] + (j // 8)[None, :]
            offset = block * 4096 + within(i[:, None], j[None, :])
            tl.store(to + offset[:, :, None] + e[None, None, :], tl.reshape(acc.to(tl.bfloat16), (ALIGN, N // 8, 8)))
            if h == 0:
                g = tl.arange(0, P // 8)
                rope = tl.load(cache + base[:, None] + (R + tl.arange(0, P))[None, :]).to(tl.bfloat16)
                place = (i // 64)[:, None] * 4096 + within(i[:, None], g[None, :])
                tr = ropes + tl.program_id(0) * (ALIGN // 64) * 4096
                tl.store(tr + place[:, :, None] + e[None, None, :], tl.reshape(rope, (ALIGN, P // 8, 8)))
        else:
            # Transposed: rows are the values' columns.
            q = tl.arange(0, ALIGN // 8)
            block = (q // 8 * 4)[None, :] + 2 + (c // 64)[:, None]
            offset = block * 4096 + within(c[:, None], q[None, :])
            turned = tl.trans(acc.to(tl.bfloat16))
            tl.store(to + offset[:, :, None] + e[None, None, :], tl.reshape(turned, (N, ALIGN // 8, 8)))
