"""Sampling: mask, biases and penalties, temperature, top-k, top-p, min-p, the draw, log-probabilities.

Four launches, so that wide vocabularies are read by many work-groups. `scan` looks at chunks of 1024 ids: is everything a number,
what is the largest logit, where is it. That settles a greedy row. `weigh` puts the ids of each chunk into 64 bins, a quarter of the
temperature wide and counted from the largest logit down, and says how many ids and how much weight lie in each. `pick`, a
work-group per row, draws: sums over bins say in which bin a limit is reached, and only that bin's ids are looked at. `choose` does
the rest. Rows without a temperature pass the two in the middle by.

What others find by sorting is found by halving the range of keys (integers that order as logits do). The number, or the
weight, of ids at or above a key only grows as the key falls, so 16 passes of two bits each find the key where it reaches what
is wanted, and one pass the id among equal ones. A bin of at most 1024 ids is one tile, gathered from the chunks that have some of them.
A row so flat that a limit lies in a larger bin is left to `choose`, which passes over all of it each time, on one compute unit. Sums are f64 in an
order that the row alone decides. Rejected: sorting, which needs memory of several rows; sums in f32, which choose other ids than the
host once in some thousand draws; a launch per pass, which every greedy step would wait for too.
"""

import triton
import triton.language as tl

import exact
import step as st
from router import CLOSED, key_of, value_of

N_SAMPLES = tl.constexpr(5)
SAMPLES_OFFSET = tl.constexpr(12)
RECORD_WORDS = tl.constexpr(16)
# Words per row of `chosen`, values per row of `logprobs`, words per chunk.
CHOSEN = tl.constexpr(24)
LOGPROBS = tl.constexpr(21)
STATS = tl.constexpr(8)
PICKED = tl.constexpr(5)
NOBODY = tl.constexpr(0x7FFFFFFF)
# Ranges of logits, and how many make one temperature; the last has all that is far below.
BINS = tl.constexpr(64)
PER_TEMPERATURE = tl.constexpr(4.0)
# What came of a row.
TOKEN = tl.constexpr(1)
NOT_FINITE = tl.constexpr(2)
NOTHING_LEFT = tl.constexpr(3)
BAD_RECORD = tl.constexpr(4)


@triton.jit
def record_of(step, l):
    """The record of row l and its slot, 0 if it has none."""
    has = l < tl.load(step + N_SAMPLES)
    record = step + tl.load(step + SAMPLES_OFFSET) // 4 + l * RECORD_WORDS
    return record, tl.load(record + 15, mask=has, other=0)


@triton.jit
def number(record, word):
    return tl.load(record + word).to(tl.float32, bitcast=True)


@triton.jit
def known(record, slot, SLOTS, RC, RB, RM):
    """The slot, the handles and the number of alternatives exist. Unsigned, so that no handle is below 0."""
    counts = tl.load(record + 12).to(tl.uint32, bitcast=True)
    bias = tl.load(record + 13).to(tl.uint32, bitcast=True)
    mask = tl.load(record + 14).to(tl.uint32, bitcast=True)
    top = tl.load(record + 7).to(tl.uint32, bitcast=True)
    fits = (slot.to(tl.uint32, bitcast=True) < SLOTS.to(tl.uint32)) & (top <= 21)
    return fits & (counts < RC.to(tl.uint32)) & (bias < RB.to(tl.uint32)) & (mask < RM.to(tl.uint32))


@triton.jit
def edited(x, c, inside, record, counts, bias, mask, ldc, ldb, ldm, TABLES: tl.constexpr):
    """Logits x of ids c behind mask, bias and penalties, in this order and in f32, nothing contracted."""
    if TABLES:
        of_counts, of_bias, of_mask = tl.load(record + 12), tl.load(record + 13), tl.load(record + 14)
        words = tl.load(mask + of_mask.to(tl.int64) * ldm + (c >> 5), mask=inside & (of_mask != 0), other=-1)
        x = tl.where(((words >> (c & 31)) & 1) == 0, float("-inf"), x)
        added = tl.load(bias + of_bias.to(tl.int64) * ldb + c, mask=inside & (of_bias != 0), other=0.0)
        x = tl.where(of_bias != 0, x + added, x)
        n = tl.load(counts + of_counts.to(tl.int64) * ldc + c, mask=inside & (of_counts != 0), other=0)
        repetition = number(record, 3)
        y = tl.where(x > 0.0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        generated = n & 0x7FFFFFFF
        less = (y - number(record, 4) * generated.to(tl.float32)) - number(record, 5)
        x = tl.where(n != 0, tl.where(generated > 0, less, y), x)
    return x


@triton.jit
def scan(step, logits, counts, bias, mask, stats, V, CHUNKS, SLOTS, RC, RB, RM, ldl, ldc, ldb, ldm, TABLES: tl.constexpr,
         B: tl.constexpr):
    """Of a chunk of B ids: the first raw logit that is no number, the largest; the same of edited ones, and the first id that has
    the largest. Grid (logit rows, CHUNKS)."""
    l = tl.program_id(0)
    if l < tl.load(step + st.N_LOGIT_ROWS):
        record, slot = record_of(step, l)
        if slot != 0:
            if known(record, slot, SLOTS, RC, RB, RM):
                chunk = tl.program_id(1)
                c = chunk * B + tl.arange(0, B)
                inside = c < V
                x = tl.load(logits + l.to(tl.int64) * ldl + c, mask=inside, other=float("-inf"))
                y = edited(x, c, inside, record, counts, bias, mask, ldc, ldb, ldm, TABLES)
                y = tl.where(inside, y, float("-inf"))
                at = stats + (l.to(tl.int64) * CHUNKS + chunk) * STATS
                tl.store(at, tl.min(tl.where(x < float("inf"), NOBODY, c), 0))
                tl.store(at + 1, tl.max(key_of(x), 0))
                tl.store(at + 2, tl.min(tl.where(y < float("inf"), NOBODY, c), 0))
                keys = key_of(tl.where(y == 0.0, 0.0, y))
                largest = tl.max(keys, 0)
                tl.store(at + 3, largest)
                tl.store(at + 4, tl.min(tl.where(keys == largest, c, NOBODY), 0))


@triton.jit
def tile_of(row, at, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES: tl.constexpr, B: tl.constexpr):
    """Ids at .. at + B, their edited logits, and their keys; ids that cannot be chosen have the lowest key."""
    c = at + tl.arange(0, B)
    inside = c < V
    x = tl.load(row + c, mask=inside, other=float("-inf"))
    x = edited(x, c, inside, record, counts, bias, mask, ldc, ldb, ldm, TABLES)
    x = tl.where(x == 0.0, 0.0, x)
    open = inside & (x > float("-inf"))
    return c, x, tl.where(open, key_of(x), CLOSED)


@triton.jit
def weight(x, largest, rate):
    """e^((x - largest) / temperature), rate = 1 / temperature, all f64."""
    return exact.exp((x.to(tl.float64) - largest) * rate)


@triton.jit
def bin_of(x, largest, rate):
    """The bin of logits x, all in f32: no order of logits is reversed by it."""
    steps = tl.minimum(rate.to(tl.float32) * PER_TEMPERATURE, 1e30)
    return tl.minimum((largest - x) * steps, BINS - 1.0).to(tl.int32)


@triton.jit
def largest_of(stats, l, CHUNKS, CH: tl.constexpr):
    """The largest edited logit of row l."""
    chunk = tl.arange(0, CH)
    at = stats + (l.to(tl.int64) * CHUNKS + chunk) * STATS
    return value_of(tl.max(tl.load(at + 3, mask=chunk < CHUNKS, other=CLOSED), 0))


@triton.jit
def weigh(step, logits, counts, bias, mask, stats, bins, weights, V, CHUNKS, SLOTS, RC, RB, RM, ldl, ldc, ldb, ldm,
          TABLES: tl.constexpr, CH: tl.constexpr, B: tl.constexpr):
    """Of a chunk of B ids and each bin: how many may be chosen, their weight, and the weight of those that min-p leaves (not written
    without min-p). Grid (logit rows, CHUNKS); rows without a temperature are left alone."""
    l = tl.program_id(0)
    if l < tl.load(step + st.N_LOGIT_ROWS):
        record, slot = record_of(step, l)
        if slot != 0:
            if known(record, slot, SLOTS, RC, RB, RM):
                if number(record, 0) != 0.0:
                    largest = largest_of(stats, l, CHUNKS, CH)
                    if (largest > float("-inf")) & (largest < float("inf")):
                        chunk = tl.program_id(1)
                        rate = exact.reciprocal(number(record, 0))
                        least = number(record, 2).to(tl.float64)
                        row = logits + l.to(tl.int64) * ldl
                        c, x, keys = tile_of(row, chunk * B, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES, B)
                        open = keys != CLOSED
                        w = tl.where(open, weight(x, largest.to(tl.float64), rate), 0.0)
                        left = tl.where(w >= least, w, 0.0)
                        mine = tl.where(open, bin_of(x, largest, rate), BINS)
                        at = (l.to(tl.int64) * CHUNKS + chunk) * BINS
                        for group in range(0, BINS, 8):
                            b = group + tl.arange(0, 8)
                            hit = mine[None, :] == b[:, None]
                            tl.store(bins + at + b, tl.sum(hit.to(tl.int32), 1))
                            tl.store(weights + 2 * at + b, tl.sum(tl.where(hit, w[None, :], 0.0), 1))
                            if least > 0.0:
                                tl.store(weights + 2 * at + BINS + b, tl.sum(tl.where(hit, left[None, :], 0.0), 1))


@triton.jit
def measured(c, x, keys, cut, cut_id, largest, rate, least, COUNT: tl.constexpr):
    """What each id counts for: 1, or its weight if that is not below `least`; 0 behind the cut."""
    kept = (keys != CLOSED) & ((keys > cut) | ((keys == cut) & (c <= cut_id)))
    if COUNT:
        return tl.where(kept, tl.full(x.shape, 1.0, tl.float64), 0.0)
    else:
        w = weight(x, largest, rate)
        return tl.where(kept & (w >= least), w, 0.0)


@triton.jit
def above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, least, key, TABLES: tl.constexpr,
          COUNT: tl.constexpr, B: tl.constexpr):
    """The measure of kept ids above a key, and how many have that key."""
    total = tl.zeros((B,), tl.float64)
    same = tl.zeros((B,), tl.int32)
    for at in range(0, V, B):
        c, x, keys = tile_of(row, at, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES, B)
        m = measured(c, x, keys, cut, cut_id, largest, rate, least, COUNT)
        total += tl.where(keys > key, m, 0.0)
        same += ((keys == key) & (m > 0.0)).to(tl.int32)
    return tl.sum(total, 0), tl.sum(same, 0)


@triton.jit
def crossing(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, least, wanted, strict,
             TABLES: tl.constexpr, COUNT: tl.constexpr, B: tl.constexpr):
    """The highest key at which the measure of kept ids at or above it reaches `wanted` (or exceeds it, if `strict`); CLOSED if
    none does."""
    key = CLOSED + tl.zeros((), tl.int32)
    for level in range(0, 16):
        unit = tl.full((), 1, tl.int32) << (30 - 2 * level)
        k1 = key + unit
        k2 = k1 + unit
        k3 = k2 + unit
        a1 = tl.zeros((B,), tl.float64)
        a2 = tl.zeros((B,), tl.float64)
        a3 = tl.zeros((B,), tl.float64)
        for at in range(0, V, B):
            c, x, keys = tile_of(row, at, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES, B)
            m = measured(c, x, keys, cut, cut_id, largest, rate, least, COUNT)
            a1 += tl.where(keys >= k1, m, 0.0)
            a2 += tl.where(keys >= k2, m, 0.0)
            a3 += tl.where(keys >= k3, m, 0.0)
        s1, s2, s3 = tl.sum(a1, 0), tl.sum(a2, 0), tl.sum(a3, 0)
        r1 = tl.where(strict == 1, s1 > wanted, s1 >= wanted)
        r2 = tl.where(strict == 1, s2 > wanted, s2 >= wanted)
        r3 = tl.where(strict == 1, s3 > wanted, s3 >= wanted)
        key = tl.where(r3, k3, tl.where(r2, k2, tl.where(r1, k1, key)))
    return key


@triton.jit
def nth(row, V, record, counts, bias, mask, ldc, ldb, ldm, key, n, TABLES: tl.constexpr, B: tl.constexpr):
    """The n-th id, from 1, of those with a key, lower ids first."""
    before = 0
    found = 0
    for at in range(0, V, B):
        c, x, keys = tile_of(row, at, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES, B)
        same = (keys == key).to(tl.int32)
        ranks = before + tl.cumsum(same, 0)
        found += tl.sum(tl.where((same == 1) & (ranks == n), c, 0), 0)
        before += tl.sum(same, 0)
    return found


@triton.jit
def share(missing, w, strict):
    """The least n >= 1 with n w >= missing, or n w > missing; w is in (0, 1]."""
    estimate = (missing * exact.reciprocal(w.to(tl.float32))).to(tl.float32)
    n = tl.maximum(tl.floor(estimate).to(tl.int32) - 2, 1)
    for _ in tl.static_range(4):
        reached = n.to(tl.float64) * w
        n = tl.where(tl.where(strict == 1, reached > missing, reached >= missing), n, n + 1)
    return n


@triton.jit
def draw(row, V, record, counts, bias, mask, ldc, ldb, ldm, largest, TABLES: tl.constexpr, B: tl.constexpr):
    """The id of a row with a temperature; `largest` as f64."""
    rate = exact.reciprocal(number(record, 0))
    top_k, top_p, min_p = tl.load(record + 6).to(tl.uint32, bitcast=True), number(record, 1), number(record, 2)
    none = tl.zeros((), tl.float64)
    everything = CLOSED + tl.zeros((), tl.int32)
    cut, cut_id = everything, NOBODY + tl.zeros((), tl.int32)
    if (top_k > 0) & (top_k < V.to(tl.uint32)):
        wanted = top_k.to(tl.float64)
        key = crossing(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, none, wanted, 0, TABLES, True, B)
        if key != CLOSED:
            over, same = above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, none, key, TABLES, True, B)
            cut_id = nth(row, V, record, counts, bias, mask, ldc, ldb, ldm, key, (wanted - over).to(tl.int32), TABLES, B)
            cut = key
    if top_p < 1.0:
        total, same = above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, none, everything, TABLES, False, B)
        # Above 0, so that the most likely id always stays.
        wanted = top_p.to(tl.float64) * total
        wanted = tl.where(wanted > 1e-300, wanted, 1e-300)
        key = crossing(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, none, wanted, 0, TABLES, False, B)
        if key != CLOSED:
            over, same = above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, none, key, TABLES, False, B)
            n = tl.minimum(share(wanted - over, weight(value_of(key), largest, rate), 0), same)
            cut_id = nth(row, V, record, counts, bias, mask, ldc, ldb, ldm, key, n, TABLES, B)
            cut = key
    least = min_p.to(tl.float64)
    total, same = above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, least, everything, TABLES, False, B)
    u = exact.uniform(tl.load(record + 8), tl.load(record + 9), tl.load(record + 10), tl.load(record + 11))
    # Below the sum, which the same passes form in the same order: some key exceeds it.
    target = u * total
    target = tl.where(target < total, target, total * 0.9999999999999998)
    key = crossing(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, least, target, 1, TABLES, False, B)
    over, same = above(row, V, record, counts, bias, mask, ldc, ldb, ldm, cut, cut_id, largest, rate, least, key, TABLES, False, B)
    n = tl.minimum(share(target - over, weight(value_of(key), largest, rate), 1), same)
    return nth(row, V, record, counts, bias, mask, ldc, ldb, ldm, key, n, TABLES, B)


@triton.jit
def gathered(row, bin, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, rate, of_row, list, TABLES: tl.constexpr,
             CH: tl.constexpr, B: tl.constexpr):
    """Ids and keys of a bin of at most B ids, in the order of ids; NOBODY and CLOSED behind the last. `list` is room for them."""
    chunk = tl.arange(0, CH)
    has = tl.load(of_row + chunk * BINS + bin, mask=chunk < CHUNKS, other=0) > 0
    # Nobody reads what an earlier bin left there any more.
    tl.debug_barrier()
    n = 0
    at = tl.min(tl.where(has, chunk, CH), 0)
    while at < CHUNKS:
        c, x, keys = tile_of(row, at * B, V, record, counts, bias, mask, ldc, ldb, ldm, TABLES, B)
        mine = (keys != CLOSED) & (bin_of(x, largest, rate) == bin)
        place = n + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(list + 2 * place, c, mask=mine)
        tl.store(list + 2 * place + 1, keys, mask=mine)
        n += tl.sum(mine.to(tl.int32), 0)
        at = tl.min(tl.where(has & (chunk > at), chunk, CH), 0)
    tl.debug_barrier()
    i = tl.arange(0, B)
    return tl.load(list + 2 * i, mask=i < n, other=NOBODY), tl.load(list + 2 * i + 1, mask=i < n, other=CLOSED)


@triton.jit
def within(keys, m, wanted, strict):
    """`crossing` in one tile of measures m; where rounding keeps them all short of what is wanted, the lowest key that counts."""
    key = CLOSED + tl.zeros((), tl.int32)
    for level in range(0, 16):
        unit = tl.full((), 1, tl.int32) << (30 - 2 * level)
        k1 = key + unit
        k2 = k1 + unit
        k3 = k2 + unit
        s1 = tl.sum(tl.where(keys >= k1, m, 0.0), 0)
        s2 = tl.sum(tl.where(keys >= k2, m, 0.0), 0)
        s3 = tl.sum(tl.where(keys >= k3, m, 0.0), 0)
        r1 = tl.where(strict == 1, s1 > wanted, s1 >= wanted)
        r2 = tl.where(strict == 1, s2 > wanted, s2 >= wanted)
        r3 = tl.where(strict == 1, s3 > wanted, s3 >= wanted)
        key = tl.where(r3, k3, tl.where(r2, k2, tl.where(r1, k1, key)))
    lowest = tl.min(tl.where(m > 0.0, keys, 0x7FFFFFFF), 0)
    return tl.where(key == CLOSED, lowest, key)


@triton.jit
def reached(sums, wanted, strict):
    """The first bin at which sums reach what is wanted (BINS if none does), and the sum before it."""
    b = tl.arange(0, BINS)
    done = tl.where(strict == 1, sums > wanted, sums >= wanted)
    bin = tl.min(tl.where(done, b, BINS), 0)
    return bin, tl.sum(tl.where(b == bin - 1, sums, 0.0), 0)


@triton.jit
def nth_of(ids, keys, key, n):
    """The n-th id of a tile, from 1, of those with a key."""
    same = (keys == key).to(tl.int32)
    return tl.sum(tl.where((same == 1) & (tl.cumsum(same, 0) == n), ids, 0), 0)


@triton.jit
def draw_in_bins(row, l, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, bins, weights, lists, TABLES: tl.constexpr,
                 CH: tl.constexpr, B: tl.constexpr):
    """`draw`, looking at bins where limits lie alone; -1 if one of them has more than B ids. `largest` as f32."""
    rate = exact.reciprocal(number(record, 0))
    top_k, top_p = tl.load(record + 6).to(tl.uint32, bitcast=True), number(record, 1)
    least = number(record, 2).to(tl.float64)
    high = largest.to(tl.float64)
    of_row = bins + l.to(tl.int64) * CHUNKS * BINS
    list = lists + l.to(tl.int64) * 2 * B
    b = tl.arange(0, BINS)
    some = tl.arange(0, 16)
    many2 = tl.zeros((16, BINS), tl.int32)
    whole2 = tl.zeros((16, BINS), tl.float64)
    kept2 = tl.zeros((16, BINS), tl.float64)
    for first in range(0, CHUNKS, 16):
        # Not all chunks at once: a mask for every value would not fit into scalar registers.
        there = (first + some < CHUNKS)[:, None] & (b >= 0)[None, :]
        at = (l.to(tl.int64) * CHUNKS + first + some)[:, None] * BINS
        many2 += tl.load(bins + at + b[None, :], mask=there, other=0)
        whole2 += tl.load(weights + 2 * at + b[None, :], mask=there, other=0.0)
        kept2 += tl.load(weights + 2 * at + BINS + b[None, :], mask=there & (least > 0.0), other=0.0)
    many, whole, kept = tl.sum(many2, 0), tl.sum(whole2, 0), tl.sum(kept2, 0)
    kept = tl.where(least > 0.0, kept, whole)
    cut, cut_id = CLOSED + tl.zeros((), tl.int32), NOBODY + tl.zeros((), tl.int32)
    ok = 1
    if (top_k > 0) & (top_k < V.to(tl.uint32)):
        wanted = top_k.to(tl.float64)
        bin, before = reached(tl.cumsum(many, 0).to(tl.float64), wanted, 0)
        # With no more ids than that, nothing is cut.
        if bin < BINS:
            if tl.sum(tl.where(b == bin, many, 0), 0) > B:
                ok = 0
            else:
                ids, keys = gathered(row, bin, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, rate, of_row, list, TABLES, CH, B)
                cut = within(keys, tl.where(keys != CLOSED, tl.full(keys.shape, 1.0, tl.float64), 0.0), wanted - before, 0)
                over = tl.sum(tl.where(keys > cut, 1, 0), 0)
                cut_id = nth_of(ids, keys, cut, (wanted - before).to(tl.int32) - over)
                w = weight(value_of(keys), high, rate)
                stays = (keys != CLOSED) & ((keys > cut) | ((keys == cut) & (ids <= cut_id)))
                part = tl.sum(tl.where(stays, w, 0.0), 0)
                part_kept = tl.sum(tl.where(stays & (w >= least), w, 0.0), 0)
                whole = tl.where(b < bin, whole, tl.where(b == bin, part, 0.0))
                kept = tl.where(b < bin, kept, tl.where(b == bin, part_kept, 0.0))
    if (ok == 1) & (top_p < 1.0):
        sums = tl.cumsum(whole, 0)
        # Above 0, so that the most likely id always stays.
        wanted = top_p.to(tl.float64) * tl.sum(tl.where(b == BINS - 1, sums, 0.0), 0)
        wanted = tl.where(wanted > 1e-300, wanted, 1e-300)
        bin, before = reached(sums, wanted, 0)
        if bin < BINS:
            if tl.sum(tl.where(b == bin, many, 0), 0) > B:
                ok = 0
            else:
                ids, keys = gathered(row, bin, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, rate, of_row, list, TABLES, CH, B)
                w = weight(value_of(keys), high, rate)
                stays = (keys != CLOSED) & ((keys > cut) | ((keys == cut) & (ids <= cut_id)))
                m = tl.where(stays, w, 0.0)
                cut = within(keys, m, wanted - before, 0)
                over = before + tl.sum(tl.where(keys > cut, m, 0.0), 0)
                same = tl.sum(((keys == cut) & (m > 0.0)).to(tl.int32), 0)
                cut_id = nth_of(ids, keys, cut, tl.minimum(share(wanted - over, weight(value_of(cut), high, rate), 0), same))
                stays = stays & ((keys > cut) | ((keys == cut) & (ids <= cut_id)))
                part_kept = tl.sum(tl.where(stays & (w >= least), w, 0.0), 0)
                kept = tl.where(b < bin, kept, tl.where(b == bin, part_kept, 0.0))
    id = -1
    if ok == 1:
        sums = tl.cumsum(kept, 0)
        total = tl.sum(tl.where(b == BINS - 1, sums, 0.0), 0)
        u = exact.uniform(tl.load(record + 8), tl.load(record + 9), tl.load(record + 10), tl.load(record + 11))
        # Below the sum: some bin exceeds it.
        target = u * total
        target = tl.where(target < total, target, total * 0.9999999999999998)
        bin, before = reached(sums, target, 1)
        if tl.sum(tl.where(b == bin, many, 0), 0) <= B:
            ids, keys = gathered(row, bin, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, rate, of_row, list, TABLES, CH, B)
            w = weight(value_of(keys), high, rate)
            stays = (keys != CLOSED) & ((keys > cut) | ((keys == cut) & (ids <= cut_id))) & (w >= least)
            m = tl.where(stays, w, 0.0)
            key = within(keys, m, target - before, 1)
            over = before + tl.sum(tl.where(keys > key, m, 0.0), 0)
            same = tl.sum(((keys == key) & (m > 0.0)).to(tl.int32), 0)
            id = nth_of(ids, keys, key, tl.minimum(share(target - over, weight(value_of(key), high, rate), 1), same))
    return id


@triton.jit
def pick(step, logits, counts, bias, mask, stats, bins, weights, lists, V, CHUNKS, SLOTS, RC, RB, RM, ldl, ldc, ldb, ldm,
         TABLES: tl.constexpr, CH: tl.constexpr, B: tl.constexpr):
    """What `draw_in_bins` says of a row with a temperature; grid (logit rows). CHUNKS <= CH."""
    l = tl.program_id(0)
    if l < tl.load(step + st.N_LOGIT_ROWS):
        record, slot = record_of(step, l)
        if slot != 0:
            if known(record, slot, SLOTS, RC, RB, RM):
                if number(record, 0) != 0.0:
                    largest = largest_of(stats, l, CHUNKS, CH)
                    if (largest > float("-inf")) & (largest < float("inf")):
                        row = logits + l.to(tl.int64) * ldl
                        id = draw_in_bins(row, l, V, CHUNKS, record, counts, bias, mask, ldc, ldb, ldm, largest, bins, weights, lists,
                                          TABLES, CH, B)
                        # In a word of the first chunk that `scan` leaves alone.
                        tl.store(stats + l.to(tl.int64) * CHUNKS * STATS + PICKED, id)


@triton.jit
def packed(x, c, inside):
    """One integer per id that orders as (logit, lower id first); the lowest of all for ids that are none."""
    key = key_of(tl.where(x == 0.0, 0.0, x)).to(tl.int64)
    both = (key << 32) | (0x7FFFFFFF - c).to(tl.int64)
    return tl.where(inside & (x > float("-inf")), both, -0x7FFFFFFFFFFFFFFF)


@triton.jit
def choose(step, logits, relay, counts, bias, mask, chosen, logprobs, stats, V, CHUNKS, SLOTS, RC, RB, RM, ldl, ldc, ldb, ldm,
           ldo, ldp, TABLES: tl.constexpr, CH: tl.constexpr, B: tl.constexpr):
    """What came of a row, from the row and what `scan` and `pick` left of it; grid (logit rows). CHUNKS <= CH."""
    l = tl.program_id(0)
    if l < tl.load(step + st.N_LOGIT_ROWS):
        record, slot = record_of(step, l)
        place = tl.arange(0, 32)
        status, id, rank, n = 0, 0, 0, 0
        ids = tl.zeros((32,), tl.int32)
        values = tl.zeros((32,), tl.float32)
        if slot != 0:
            status = BAD_RECORD
            if known(record, slot, SLOTS, RC, RB, RM):
                row = logits + l.to(tl.int64) * ldl
                chunk = tl.arange(0, CH)
                at = stats + (l.to(tl.int64) * CHUNKS + chunk) * STATS
                there = chunk < CHUNKS
                raw_bad = tl.min(tl.load(at, mask=there, other=NOBODY), 0)
                raw_key = tl.max(tl.load(at + 1, mask=there, other=CLOSED), 0)
                bad = tl.min(tl.load(at + 2, mask=there, other=NOBODY), 0)
                keys = tl.load(at + 3, mask=there, other=CLOSED)
                key = tl.max(keys, 0)
                first = tl.min(tl.where(keys == key, tl.load(at + 4, mask=there, other=NOBODY), NOBODY), 0)
                bad = tl.where(raw_bad != NOBODY, raw_bad, bad)
                largest = value_of(key)
                status = tl.where(bad != NOBODY, NOT_FINITE, tl.where(largest > float("-inf"), TOKEN, NOTHING_LEFT))
                id = tl.where(status == NOT_FINITE, bad, tl.where(status == TOKEN, first, 0))
                # -1 where `pick` left the row.
                warm = (status == TOKEN) & (number(record, 0) != 0.0)
                id = tl.load(stats + l.to(tl.int64) * CHUNKS * STATS + PICKED, mask=warm, other=id)
                if id < 0:
                    id = draw(row, V, record, counts, bias, mask, ldc, ldb, ldm, largest.to(tl.float64), TABLES, B)
                if (status == TOKEN) & (tl.load(record + 7) != 0):
                    # Of the row as it came.
                    own = tl.load(row + id)
                    own_packed = packed(own, id, True)
                    top = value_of(raw_key).to(tl.float64)
                    total = tl.zeros((B,), tl.float64)
                    better = tl.zeros((B,), tl.int32)
                    for start in range(0, V, B):
                        c = start + tl.arange(0, B)
                        x = tl.load(row + c, mask=c < V, other=float("-inf"))
                        total += tl.where(x > float("-inf"), exact.exp(x.to(tl.float64) - top), 0.0)
                        better += (packed(x, c, c < V) > own_packed).to(tl.int32)
                    log_sum = top + exact.ln(tl.sum(total, 0))
                    rank = 1 + tl.sum(better, 0)
                    values = tl.where(place == 0, (own.to(tl.float64) - log_sum).to(tl.float32), 0.0)
                    last = tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64)
                    for i in range(0, tl.load(record + 7) - 1):
                        best = tl.full((B,), -0x7FFFFFFFFFFFFFFF, tl.int64)
                        for start in range(0, V, B):
                            c = start + tl.arange(0, B)
                            x = tl.load(row + c, mask=c < V, other=float("-inf"))
                            p = packed(x, c, c < V)
                            best = tl.where((p < last) & (p > best), p, best)
                        last = tl.max(best, 0)
                        if last != -0x7FFFFFFFFFFFFFFF:
                            n += 1
                            ids = tl.where(place == i, 0x7FFFFFFF - (last & 0xFFFFFFFF).to(tl.int32), ids)
                            logprob = value_of((last >> 32).to(tl.int32)).to(tl.float64) - log_sum
                            values = tl.where(place == i + 1, logprob.to(tl.float32), values)
                if TABLES:
                    of_counts = tl.load(record + 12)
                    if (status == TOKEN) & (of_counts != 0):
                        mine = counts + of_counts.to(tl.int64) * ldc + id
                        count = tl.load(mine)
                        tl.store(mine, (count & -0x80000000) | ((count + 1) & 0x7FFFFFFF))
            if slot.to(tl.uint32, bitcast=True) < SLOTS.to(tl.uint32):
                tl.store(relay + slot, tl.where(status == TOKEN, id, -1))
        to = chosen + l.to(tl.int64) * ldo
        tl.store(to, status)
        tl.store(to + 1, id)
        tl.store(to + 2, rank)
        tl.store(to + 3, n)
        tl.store(to + 4 + place, ids, mask=place < CHOSEN - 4)
        tl.store(logprobs + l.to(tl.int64) * ldp + place, values, mask=place < LOGPROBS)
