"""Arithmetic in f64 for sampling, and random numbers by counter: the host sampler's formulas, so that a token does not depend
on who drew it. No f64 division, square root or logarithm of a library: a reciprocal is Newton's, from an f32 estimate."""

import triton
import triton.language as tl

# 1.5 * 2^52: added to a small number, it leaves the nearest integer in the low bits.
ROUNDER = tl.constexpr(6755399441055744.0)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LN_2_HIGH = tl.constexpr(6.931471803691238e-1)
LN_2_LOW = tl.constexpr(1.9082149292705877e-10)
FLOOR = tl.constexpr(-708.0)


@triton.jit
def exp(x):
    """e^x of f64 x <= 0, 0 below -708: a Taylor series of 14 terms around the nearest power of 2."""
    c = tl.where(x < FLOOR, FLOOR, x)
    rounded = c * LOG2_E + ROUNDER
    k = rounded - ROUNDER
    r = (c - k * LN_2_HIGH) - k * LN_2_LOW
    s = r * (1.0 / 6227020800.0) + (1.0 / 479001600.0)
    s = s * r + (1.0 / 39916800.0)
    s = s * r + (1.0 / 3628800.0)
    s = s * r + (1.0 / 362880.0)
    s = s * r + (1.0 / 40320.0)
    s = s * r + (1.0 / 5040.0)
    s = s * r + (1.0 / 720.0)
    s = s * r + (1.0 / 120.0)
    s = s * r + (1.0 / 24.0)
    s = s * r + (1.0 / 6.0)
    s = s * r + 0.5
    s = s * r + 1.0
    s = s * r + 1.0
    scale = ((rounded.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(x < FLOOR, 0.0, s * scale)


@triton.jit
def reciprocal(t):
    """1 / t of an f32 t > 0, as f64; a denormal t counts as the smallest normal number."""
    t = tl.maximum(t, 1.1754943508222875e-38)
    wide = t.to(tl.float64)
    r = (1.0 / t).to(tl.float64)
    for _ in tl.static_range(3):
        r = r + r * (1.0 - wide * r)
    return r


@triton.jit
def ln(s):
    """ln s of f64 s >= 1 below 2^100: Newton on e^-y, from an f32 estimate."""
    y = tl.log2(s.to(tl.float32)).to(tl.float64) * LN_2
    for _ in tl.static_range(2):
        y = tl.where(y > 0.0, y, 0.0)
        y = y + (s * exp(-y) - 1.0)
    return y


@triton.jit
def uniform(seed_low, seed_high, position, sample_index):
    """53 random bits as f64 in [0, 1): Philox4x32-10 with the seed as key and (position, sample_index, 0, 0) as counter."""
    k0, k1 = seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True)
    c0, c1 = position.to(tl.uint32, bitcast=True), sample_index.to(tl.uint32, bitcast=True)
    c2, c3 = c0 ^ c0, c0 ^ c0
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    high = c0.to(tl.float64) * 2097152.0 + (c1 >> 11).to(tl.float64)
    return high * (1.0 / 9007199254740992.0)
