"""Choosing experts: the k largest biased sigmoid scores of a row, lower ids first among equals.

One wave owns a row (four of the longest), with all its scores in registers. A choice is the largest key, then the lowest
column that has it; keys are integers in the total order of floats, so that equal means equal bits, and NaN is the worst.
"""

import triton
import triton.language as tl

import step as st
from elementwise import sigmoid

# Below the key of every float.
CLOSED = tl.constexpr(-2147483648)


@triton.jit
def key_of(v):
    """An integer that orders as v does, NaN as -inf."""
    v = tl.where(v == v, v, float("-inf"))
    bits = v.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """The float of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def best(keys, columns):
    """The largest key and the lowest column that has it."""
    largest = tl.max(keys, 0)
    return largest, tl.min(tl.where(keys == largest, columns, 0x7FFFFFFF), 0)


@triton.jit
def topk(step, count_word, count_fixed, logits, bias, ids, weights, E, G, chosen, k, ldl, ldi, ldw, scale, renormalise,
         GROUPED: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr, B: tl.constexpr):
    """ids and weights of the k best of E experts; grid (rows,). E <= B, k <= BK; with GROUPED, G <= BG groups of which the
    `chosen` best (by the sum of their two best) take part."""
    t = tl.program_id(0)
    if t < st.rows_of(step, count_word, count_fixed):
        c = tl.arange(0, B)
        row = logits + t.to(tl.int64) * ldl
        s = sigmoid(tl.load(row + c, mask=c < E, other=0.0))
        keys = tl.where(c < E, key_of(s + tl.load(bias + c, mask=c < E, other=0.0)), CLOSED)
        if GROUPED:
            g = tl.arange(0, BG)
            group = c // (E // G)
            groups = tl.full((BG,), CLOSED, tl.int32)
            for i in range(0, G):
                members = tl.where(group == i, keys, CLOSED)
                first, at = best(members, c)
                second = tl.max(tl.where(c == at, CLOSED, members), 0)
                groups = tl.where(g == i, key_of(value_of(first) + value_of(second)), groups)
            open_keys = tl.full((B,), CLOSED, tl.int32)
            for i in range(0, chosen):
                _, at = best(groups, g)
                groups = tl.where(g == at, CLOSED, groups)
                open_keys = tl.where(group == at, keys, open_keys)
            keys = open_keys
        place = tl.arange(0, BK)
        found = tl.zeros((BK,), tl.int32)
        for i in range(0, k):
            _, at = best(keys, c)
            keys = tl.where(c == at, CLOSED, keys)
            found = tl.where(place == i, at, found)
        taken = place < k
        # The same function of the same logit: the bits that were compared.
        share = sigmoid(tl.load(row + found, mask=taken, other=0.0))
        total = tl.sum(tl.where(taken, share, 0.0), 0) + 1e-20
        share *= scale / tl.where(renormalise == 0, 1.0, total)
        tl.store(ids + t.to(tl.int64) * ldi + place, found, mask=taken)
        tl.store(weights + t.to(tl.int64) * ldw + place, share, mask=taken)
