"""Routes sorted by expert on the device, so that a tile of rows shares one expert's weights.

A route is a (token, place) pair, numbered token * k + place. `order` lists routes by expert; `tiles` starts with the number of
tiles, and from word 4 on has four words per tile: expert, first place in `order`, number of routes, 0. A tile holds at most
`each` routes of one expert. The order within an expert varies from run to run, and no result depends on it: rows of a matrix
product do not meet.

Up to 1024 routes one work-group does it all. More take four launches, because what one work-group wrote is read by another:
`clear`, `count`, `cut`, `place`.
"""

import triton
import triton.language as tl

import step as st


@triton.jit
def tile_at(tiles, order, p, SORTED: tl.constexpr, BM: tl.constexpr):
    """Routes of tile p and which of BM they are, the last one repeated; without SORTED route p alone."""
    i = tl.arange(0, BM)
    if SORTED:
        first = tl.load(tiles + 4 * p + 5)
        many = tl.load(tiles + 4 * p + 6)
        mine = i < many
        route = tl.load(order + first + tl.minimum(i, many - 1))
    else:
        mine = i < 1
        route = p + tl.zeros((BM,), tl.int32)
    return route, mine


@triton.jit
def expert_of(tiles, ids, p, k, ldi, SORTED: tl.constexpr):
    """Expert of tile p, or of route p."""
    if SORTED:
        e = tl.load(tiles + 4 * p + 4)
    else:
        e = tl.load(ids + (p // k).to(tl.int64) * ldi + p % k)
    return e


@triton.jit
def tile_count(rows, tiles, k, SORTED: tl.constexpr):
    """Tiles of this step."""
    n = rows * k
    if SORTED:
        n = tl.load(tiles)
    return n


@triton.jit
def write_tiles(tiles, base, counts, first, experts, each):
    """Descriptors of the tiles of some experts; `base` is each one's first tile."""
    many = (counts + each - 1) // each
    for q in range(0, tl.max(many, 0)):
        at = tiles + 4 * (base + q) + 4
        mine = q < many
        tl.store(at, experts, mask=mine)
        tl.store(at + 1, first + q * each, mask=mine)
        tl.store(at + 2, tl.minimum(counts - q * each, each), mask=mine)


@triton.jit
def sort(step, count_word, count_fixed, ids, order, tiles, k, ldi, each, B: tl.constexpr):
    """All of it for at most B routes and B experts; grid (1,)."""
    n = st.rows_of(step, count_word, count_fixed) * k
    i = tl.arange(0, B)
    e = tl.load(ids + (i // k).to(tl.int64) * ldi + i % k, mask=i < n, other=0)
    keys = tl.sort(tl.where(i < n, e * B + i, 0x7FFFFFFF))
    tl.store(order + i, keys % B, mask=i < n)
    counts = tl.histogram(e, B, mask=i < n)
    many = (counts + each - 1) // each
    ends = tl.cumsum(many, 0)
    write_tiles(tiles, ends - many, counts, tl.cumsum(counts, 0) - counts, i, each)
    tl.store(tiles, tl.sum(many, 0))


@triton.jit
def clear(counts, E, B: tl.constexpr):
    """No routes yet; grid (ceil(E / B),)."""
    e = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(counts + e, 0, mask=e < E)


@triton.jit
def count(step, count_word, count_fixed, ids, counts, rank, k, ldi, B: tl.constexpr):
    """Counts routes by expert; each draws its rank within its expert; grid (ceil(routes / B),)."""
    n = st.rows_of(step, count_word, count_fixed) * k
    i = tl.program_id(0) * B + tl.arange(0, B)
    e = tl.load(ids + (i // k).to(tl.int64) * ldi + i % k, mask=i < n, other=0)
    drawn = tl.atomic_add(counts + e, 1, mask=i < n, sem="relaxed", scope="gpu")
    tl.store(rank + i, drawn, mask=i < n)


@triton.jit
def cut(counts, starts, tiles, E, each, B: tl.constexpr):
    """Where each expert's routes start in `order`, and the tiles; grid (1,)."""
    routes = 0
    total = 0
    for at in range(0, E, B):
        e = at + tl.arange(0, B)
        n = tl.load(counts + e, mask=e < E, other=0)
        many = (n + each - 1) // each
        first = routes + tl.cumsum(n, 0) - n
        tl.store(starts + e, first, mask=e < E)
        write_tiles(tiles, total + tl.cumsum(many, 0) - many, n, first, e, each)
        routes += tl.sum(n, 0)
        total += tl.sum(many, 0)
    tl.store(tiles, total)


@triton.jit
def place(step, count_word, count_fixed, ids, starts, rank, order, k, ldi, B: tl.constexpr):
    """Puts each route where its expert's start and its rank say; grid (ceil(routes / B),)."""
    n = st.rows_of(step, count_word, count_fixed) * k
    i = tl.program_id(0) * B + tl.arange(0, B)
    e = tl.load(ids + (i // k).to(tl.int64) * ldi + i % k, mask=i < n, other=0)
    at = tl.load(starts + e, mask=i < n, other=0) + tl.load(rank + i, mask=i < n, other=0)
    tl.store(order + at, i, mask=i < n)
