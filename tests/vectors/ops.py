"""Vectors for every op of the catalogue, computed in float64 from the formulas: python ops.py > ops.json

Written from the definitions in docs/ops.md and independent of the engine's code. Inputs are multiples of 1/64, exact in
float32 with few digits; sums are correctly rounded (math.fsum) and results kept to 12 significant digits, so the file
does not depend on the machine that runs this.

{"cases": [{
  "op", "name",
  "attrs_i", "attrs_f": the op's attributes, trailing zeros left out,
  "step": {"rows": [{"table_row", "computed", "query_start", "query_len", "branch_offset" (0 if left out)}], "tokens": [{"id", "position", "row"}],
           "logit_rows": [token index], "deltas": [{"component", "table_row", "index", "block"}],
           "samples": [fields of ts_sample] (none if left out)},
  "operands": [{"name", "dtype", "dims", "data"}]: the inputs in catalogue order, state before the op,
  "outputs": [{"index", "name", "dtype", "dims", "data"}]: operands after the op, "index" in catalogue order. An index
             below len(operands) is an operand that is read and written (a cache, a table)
}]}

"data" is flat and row-major; values of f16, bf16 and fp8_e4m3 are given as the numbers they stand for.
"""
import json
import math
import sys

import numpy as np

rng = np.random.default_rng(20260801)
cases = []


def values(*dims, top=192):
    """Multiples of 1/64 in [-top/64, top/64]."""
    return rng.integers(-top, top + 1, size=dims) / 64.0


def operand(name, data, dtype="f32"):
    data = np.asarray(data, dtype=np.float64)
    flat = [int(x) for x in data.ravel()] if dtype in ("u32", "i32") else [float(x) for x in data.ravel()]
    if dtype == "f32":
        assert all(x == float(np.float32(x)) for x in flat), f"{name} is not exact in float32"
    return {"name": name, "dtype": dtype, "dims": list(data.shape), "data": flat}


def result(index, name, data, dtype="f32"):
    made = operand(name, np.zeros(0)) | {"dims": list(np.shape(data))}
    flat = np.asarray(data).ravel()
    made["dtype"] = dtype
    made["data"] = [int(x) for x in flat] if dtype in ("u32", "i32") else [float(f"{x:.12g}") for x in flat]
    return {"index": index} | made


def step(rows=(), ids=None, logit_rows=(), deltas=(), n_tokens=None):
    """`rows` are (table_row, computed, query_len); without rows, one row of `n_tokens` new tokens."""
    rows = list(rows) or [(0, 0, n_tokens)]
    made, tokens = [], []
    for index, (table_row, computed, query_len) in enumerate(rows):
        made.append({"table_row": table_row, "computed": computed, "query_start": len(tokens), "query_len": query_len})
        tokens += [{"id": 0, "position": computed + j, "row": index} for j in range(query_len)]
    for token, id_ in zip(tokens, ids if ids is not None else [0] * len(tokens), strict=True):
        token["id"] = int(id_)
    names = ("component", "table_row", "index", "block")
    deltas = [dict(zip(names, map(int, delta), strict=True)) for delta in deltas]
    return {"rows": made, "tokens": tokens, "logit_rows": [int(i) for i in logit_rows], "deltas": deltas}


def case(op, name, step_, operands, outputs, attrs_i=(), attrs_f=()):
    cases.append(
        {
            "op": op,
            "name": name,
            "attrs_i": list(attrs_i),
            "attrs_f": list(attrs_f),
            "step": step_,
            "operands": operands,
            "outputs": outputs,
        }
    )


def dot(a, b):
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


# ---- gemm: y[t, n] = sum_k x[t, k] w[n, k] (+ bias[n]) ----
for t, k, n, bias in [(1, 1, 1, 0), (1, 33, 7, 0), (3, 17, 9, 1), (5, 64, 13, 0), (7, 31, 3, 1), (2, 100, 5, 1)]:
    x, w, b = values(t, k), values(n, k), values(n)
    y = np.array([[dot(x[i], w[j]) + (b[j] if bias else 0.0) for j in range(n)] for i in range(t)])
    operands = [operand("x", x), operand("w", w)] + ([operand("bias", b)] if bias else [])
    name = f"{t}x{k} by {n}x{k}" + (" with bias" if bias else "")
    case("gemm", name, step(n_tokens=t), operands, [result(len(operands), "y", y)], [bias])


# ---- rmsnorm: y = x / sqrt(mean(x^2) + eps) * w, over the last dimension ----
def rmsnorm(x, w, eps):
    out = np.empty_like(x)
    for index in np.ndindex(*x.shape[:-1]):
        scale = math.sqrt(dot(x[index], x[index]) / x.shape[-1] + eps)
        out[index] = [v / scale * g for v, g in zip(x[index], w, strict=True)]
    return out


for dims, eps, note in [
    ((3, 9), 1e-5, ""),
    ((2, 3, 7), 1e-6, " per head"),
    ((1, 65), 1e-5, ""),
    ((4, 5), 0.5, " with a large eps"),
]:
    x, w = values(*dims), values(dims[-1])
    if note == "":
        x[0, :] = 0.0  # a zero row stays zero and gives no NaN
    eps = float(np.float32(eps))
    outputs = [result(2, "y", rmsnorm(x, w, eps))]
    case("rmsnorm", f"{dims}{note}", step(n_tokens=dims[0]), [operand("x", x), operand("w", w)], outputs, [], [eps])


# ---- rope: pairs rotated by position * inv_freq; dimensions from 2 * len(inv_freq) on are copied ----
def rope(x, inv_freq, positions, style, factor):
    y, half = x.copy(), len(inv_freq)
    for t, h, j in np.ndindex(x.shape[0], x.shape[1], half):
        a, b = (j, j + half) if style == 0 else (2 * j, 2 * j + 1)
        angle = positions[t] * inv_freq[j]
        c, s = math.cos(angle) * factor, math.sin(angle) * factor
        y[t, h, a] = x[t, h, a] * c - x[t, h, b] * s
        y[t, h, b] = x[t, h, b] * c + x[t, h, a] * s
    return y


for style, heads, width, rotated, factor, rows in [
    (0, 2, 8, 8, 0.0, [(0, 0, 3)]),
    (1, 2, 8, 8, 0.0, [(0, 0, 3)]),
    (0, 3, 10, 6, 0.0, [(1, 5, 2), (0, 4093, 2)]),
    (1, 1, 10, 6, 1.25, [(0, 7, 1), (2, 0, 2)]),
    (0, 1, 4, 4, 0.75, [(0, 100, 2)]),
]:
    step_ = step(rows)
    positions = [token["position"] for token in step_["tokens"]]
    x = values(len(positions), heads, width)
    inv_freq = np.array([float(np.float32(10000.0 ** (-2 * j / rotated))) for j in range(rotated // 2)])
    y = rope(x, inv_freq, positions, style, factor or 1.0)
    name = f"{['halves', 'pairs'][style]}, {rotated} of {width}, factor {factor}, positions {positions}"
    operands = [operand("x", x), operand("inv_freq", inv_freq)]
    case("rope", name, step_, operands, [result(2, "y", y)], [style], [factor])


# ---- silu, add, mul, silu_mul ----
def sigmoid(v):
    return 1.0 / (1.0 + math.exp(-v)) if v >= 0 else math.exp(v) / (1.0 + math.exp(v))


def silu(x):
    return np.array([v * sigmoid(v) for v in x.ravel()]).reshape(x.shape)


extremes = np.array([[0.0, -0.0, 1.0, -1.0, 20.0, -20.0, 80.0, -80.0, 3.5, -1.25, 0.015625]])
for x in (values(3, 11), extremes):
    case("silu", f"{x.shape}", step(n_tokens=len(x)), [operand("x", x)], [result(1, "y", silu(x))])
for dims in [(1, 1), (3, 7), (2, 3, 5)]:
    a, b = values(*dims), values(*dims)
    operands, step_ = [operand("a", a), operand("b", b)], step(n_tokens=dims[0])
    case("add", f"{dims}", step_, operands, [result(2, "y", a + b)])
    case("mul", f"{dims}", step_, operands, [result(2, "y", a * b)])
for gate in (values(4, 13), extremes):
    up = values(*gate.shape)
    operands = [operand("gate", gate), operand("up", up)]
    case("silu_mul", f"{gate.shape}", step(n_tokens=len(gate)), operands, [result(2, "y", silu(gate) * up)])

# ---- add_rmsnorm: sum = x + residual, y = rmsnorm(sum) ----
for t, d in [(1, 8), (3, 33)]:
    x, residual, w, eps = values(t, d), values(t, d), values(d), float(np.float32(1e-5))
    outputs = [result(3, "sum", x + residual), result(4, "y", rmsnorm(x + residual, w, eps))]
    operands = [operand("x", x), operand("residual", residual), operand("w", w)]
    case("add_rmsnorm", f"{t}x{d}", step(n_tokens=t), operands, outputs, [], [eps])

# ---- embedding: y[t] = table[id of token t] ----
for vocabulary, width, ids in [(5, 3, [4, 0, 4, 2]), (17, 9, [16])]:
    table = values(vocabulary, width)
    step_ = step([(0, 3, len(ids))], ids)
    case("embedding", f"ids {ids}", step_, [operand("table", table)], [result(1, "y", table[ids])])

# ---- row_gather: y[l] = x[token index of logit row l] ----
for t, d, wanted in [(5, 7, [4, 0, 2]), (3, 4, [2]), (2, 3, [0, 1])]:
    x = values(t, d)
    step_ = step(n_tokens=t, logit_rows=wanted)
    case("row_gather", f"rows {wanted} of {t}", step_, [operand("x", x)], [result(1, "y", x[wanted])])

# ---- table_update: table[component][table_row][index] = block, in the order of the deltas ----
tables = [rng.integers(1, 50, size=(3, 4)), rng.integers(1, 50, size=(3, 2))]
for name, count, deltas in [
    ("one component", 1, [(0, 2, 3, 9), (0, 0, 0, 7)]),
    ("two components, the later write wins", 2, [(1, 1, 1, 5), (0, 1, 1, 6), (1, 1, 1, 8), (0, 2, 0, 1)]),
    ("no deltas", 2, []),
]:
    after = [table.copy() for table in tables[:count]]
    for component, row, index, block in deltas:
        after[component][row, index] = block
    operands = [operand(f"table_{c}", tables[c], "u32") for c in range(count)]
    outputs = [result(c, f"table_{c}", after[c], "u32") for c in range(count)]
    case("table_update", name, step([(0, 0, 1), (1, 0, 1)], deltas=deltas), operands, outputs)


# ---- copy: to the nearest representable value, ties to even ----
def nearest(x, mantissa_bits, exponent_min):
    """Rounds to `mantissa_bits` explicit bits; below 2^exponent_min the spacing stays that of the subnormals."""
    if x == 0.0:
        return x
    exponent = max(math.frexp(x)[1] - 1, exponent_min)
    quantum = math.ldexp(1.0, exponent - mantissa_bits)
    return math.copysign(float(np.rint(x / quantum)) * quantum, x)


FORMATS = {"f16": (10, -14), "bf16": (7, -126), "fp8_e4m3": (3, -6)}
SPECIAL = {
    # Ties both ways, the largest finite value and what still rounds to it, subnormals and what vanishes.
    "f16": [1 + 2**-11, 1 + 3 * 2**-11, 65504.0, 65519.0, 2**-24, 2**-25, 3 * 2**-25, 2**-14 - 2**-25, 0.1, 1 / 3],
    "bf16": [1 + 2**-8, 1 + 3 * 2**-8, 3.3895313892515355e38, 1e-40, 0.1, 1 / 3, 2**-126, 257.0, 259.0],
    "fp8_e4m3": [1 + 2**-4, 1 + 3 * 2**-4, 448.0, 456.0, 2**-9, 2**-10, 3 * 2**-10, 2**-6 - 2**-10, 0.1, 1 / 3, 17.0, 19.0],
}
for dtype, (mantissa_bits, exponent_min) in FORMATS.items():
    special = [float(np.float32(v)) for v in SPECIAL[dtype]]
    x = np.array(special + [-v for v in special] + [0.0, -0.0] + list(values(9)))
    y = np.array([nearest(float(v), mantissa_bits, exponent_min) for v in x])
    x, y = x.reshape(1, -1), y.reshape(1, -1)
    case("copy", f"f32 to {dtype}", step(n_tokens=1), [operand("x", x)], [result(1, "y", y, dtype)])
    # Exact values, so all digits are needed: they are few, because every one is a short dyadic fraction.
    cases[-1]["outputs"][0]["data"] = [float(v) for v in y.ravel()]
    case("copy", f"{dtype} to f32", step(n_tokens=1), [operand("x", y, dtype)], [result(1, "y", y)])
    cases[-1]["outputs"][0]["data"] = [float(v) for v in y.ravel()]
x = values(3, 5)
case("copy", "f32 to f32", step(n_tokens=3), [operand("x", x)], [result(1, "y", x)])


# ---- pages ----
def pages(rows, block_tokens, table_rows, blocks_per_row, n_blocks):
    """A table whose rows own distinct blocks in random order; block 0 is scratch and owned by nobody."""
    order = list(rng.permutation(np.arange(1, n_blocks)))
    table = np.zeros((table_rows, blocks_per_row), dtype=np.int64)
    for table_row, computed, query_len in rows:
        for index in range(-(-(computed + query_len) // block_tokens)):
            table[table_row, index] = order.pop()
    return table


# ---- kv_write: cache[table[row][position / block_tokens]][position % block_tokens] = x[t] ----
for component, heads, width, block_tokens, rows in [
    (0, 1, 4, 4, [(0, 0, 3)]),
    (1, 2, 3, 3, [(2, 4, 3), (0, 0, 1), (1, 2, 4)]),
]:
    step_ = step(rows)
    table = pages(rows, block_tokens, 3, 4, 9)
    x, cache = values(len(step_["tokens"]), heads, width), values(9, block_tokens, heads, width)
    after = cache.copy()
    for t, token in enumerate(step_["tokens"]):
        block = table[rows[token["row"]][0], token["position"] // block_tokens]
        after[block, token["position"] % block_tokens] = x[t]
    operands = [operand("x", x), operand("cache", cache), operand("table", table, "u32")]
    case("kv_write", f"rows {rows}, pages of {block_tokens}", step_, operands, [result(1, "cache", after)], [component])


# ---- paged_attention: causal softmax(scale q k) v over the sequence's pages ----
def attention(q, k, v, table, step_, block_tokens, window, scale):
    group = q.shape[1] // k.shape[2]
    y = np.zeros((q.shape[0], q.shape[1], v.shape[3]))
    for t, token in enumerate(step_["tokens"]):
        position, row = token["position"], step_["rows"][token["row"]]["table_row"]
        first = max(0, position - window + 1) if window else 0
        where = [(table[row, p // block_tokens], p % block_tokens) for p in range(first, position + 1)]
        for h in range(q.shape[1]):
            scores = [scale * dot(q[t, h], k[block, slot, h // group]) for block, slot in where]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            total = math.fsum(weights)
            for d in range(v.shape[3]):
                y[t, h, d] = dot(weights, [v[block, slot, h // group, d] for block, slot in where]) / total
    return y


for name, component, heads, kv_heads, width, value_width, block_tokens, window, scale, rows, top in [
    ("one token alone", 0, 1, 1, 4, 4, 4, 0, 0.5, [(0, 0, 1)], 192),
    ("a prompt", 0, 2, 2, 4, 4, 4, 0, 0.5, [(1, 0, 6)], 192),
    ("grouped heads, a chunk in the middle, several rows", 0, 6, 2, 5, 5, 3, 0, 0.4472135901451111, [(2, 4, 3), (0, 0, 2), (1, 8, 1)], 192),
    ("window", 1, 2, 1, 4, 4, 3, 4, 0.5, [(0, 5, 4), (1, 0, 2)], 192),
    ("window of one token", 0, 1, 1, 3, 2, 2, 1, 1.0, [(0, 2, 2)], 192),
    ("values narrower than keys", 0, 2, 1, 6, 3, 4, 0, 0.408248299, [(1, 3, 3)], 192),
    ("large scores", 0, 2, 1, 4, 4, 4, 0, 8.0, [(0, 6, 3)], 1920),
]:
    step_ = step(rows)
    scale = float(np.float32(scale))
    n_blocks, table = 12, pages(rows, block_tokens, 3, 4, 12)
    # Slots that no token of a row owns hold a value that would ruin any result it got into.
    k = np.full((n_blocks, block_tokens, kv_heads, width), 1024.0)
    v = np.full((n_blocks, block_tokens, kv_heads, value_width), 4096.0)
    for table_row, computed, query_len in rows:
        for p in range(computed + query_len):
            at = table[table_row, p // block_tokens], p % block_tokens
            k[at], v[at] = values(kv_heads, width, top=top), values(kv_heads, value_width)
    q = values(len(step_["tokens"]), heads, width, top=top)
    y = attention(q, k, v, table, step_, block_tokens, window, scale)
    operands = [operand("q", q), operand("k", k), operand("v", v), operand("table", table, "u32")]
    case("paged_attention", name, step_, operands, [result(4, "y", y)], [component, window], [scale])


# ---- kv_read: y[t] = cache[table[row][p / block_tokens]][p % block_tokens] with p = position - back; zeros if p < 0 ----
for component, heads, width, block_tokens, back, dtype, rows in [
    (0, 1, 4, 4, 0, "f32", [(0, 0, 3)]),
    (1, 2, 3, 3, 1, "f32", [(2, 4, 3), (0, 0, 2), (1, 3, 1)]),
    (2, 1, 5, 2, 2, "bf16", [(1, 1, 4), (0, 5, 1)]),
]:
    step_ = step(rows)
    table = pages(rows, block_tokens, 3, 4, 12)
    # Multiples of 1/64 below 2 are exact in bf16 too.
    cache = values(12, block_tokens, heads, width, top=127)
    y = np.zeros((len(step_["tokens"]), heads, width))
    for t, token in enumerate(step_["tokens"]):
        p = token["position"] - back
        if p >= 0:
            y[t] = cache[table[rows[token["row"]][0], p // block_tokens], p % block_tokens]
    operands = [operand("cache", cache, dtype), operand("table", table, "u32")]
    name = f"rows {rows}, pages of {block_tokens}, {back} back"
    case("kv_read", name, step_, operands, [result(2, "y", y)], [component, back])


# ---- branches: tokens of a row from `computed` on lie `offset` cache rows further behind ----
def branches(rows, block_tokens, table_rows, blocks_per_row, n_blocks):
    """`rows` are (table_row, computed, query_len, offset); the step, the table, and the place of a row's position."""
    step_ = step([row[:3] for row in rows])
    for made, (_, _, _, offset) in zip(step_["rows"], rows, strict=True):
        made["branch_offset"] = offset
    needed = {}
    for table_row, computed, query_len, offset in rows:
        needed[table_row] = max(needed.get(table_row, 0), computed + query_len + offset)
    table = pages([(table_row, 0, n) for table_row, n in needed.items()], block_tokens, table_rows, blocks_per_row, n_blocks)

    def place(row, position):
        table_row, computed, _, offset = rows[row]
        at = position + (offset if position >= computed else 0)
        return table[table_row, at // block_tokens], at % block_tokens

    return step_, table, place


TREE = [(0, 5, 3, 0), (0, 5, 4, 3), (1, 2, 2, 0), (0, 5, 2, 7)]
step_, table, place = branches(TREE, 4, 3, 4, 12)
x, cache = values(len(step_["tokens"]), 2, 3), values(12, 4, 2, 3)
after = cache.copy()
for t, token in enumerate(step_["tokens"]):
    after[place(token["row"], token["position"])] = x[t]
operands = [operand("x", x), operand("cache", cache), operand("table", table, "u32")]
case("kv_write", "branches", step_, operands, [result(1, "cache", after)], [0])

y = np.zeros((len(step_["tokens"]), 2, 3))
for t, token in enumerate(step_["tokens"]):
    if token["position"] >= 1:
        y[t] = cache[place(token["row"], token["position"] - 1)]
operands = [operand("cache", cache), operand("table", table, "u32")]
case("kv_read", "branches, 1 back", step_, operands, [result(2, "y", y)], [0, 1])

step_, table, place = branches(TREE, 3, 3, 5, 16)
k, v = np.full((16, 3, 2, 4), 1024.0), np.full((16, 3, 2, 4), 4096.0)
for row, (_, computed, query_len, _) in enumerate(TREE):
    for p in range(computed + query_len):
        k[place(row, p)], v[place(row, p)] = values(2, 4), values(2, 4)
q = values(len(step_["tokens"]), 4, 4)
y = np.zeros((len(step_["tokens"]), 4, 4))
for t, token in enumerate(step_["tokens"]):
    where = [place(token["row"], p) for p in range(token["position"] + 1)]
    for h in range(4):
        weights = [math.exp(0.5 * dot(q[t, h], k[at][h // 2])) for at in where]
        total = math.fsum(weights)
        y[t, h] = [dot(weights, [v[at][h // 2, d] for at in where]) / total for d in range(4)]
operands = [operand("q", q), operand("k", k), operand("v", v), operand("table", table, "u32")]
case("paged_attention", "branches", step_, operands, [result(4, "y", y)], [0, 0], [0.5])

# ---- kv_move: cache row p + offset to cache row p, for each token at p, in order ----
for name, rows, block_tokens, dtype in [
    ("one branch", [(0, 5, 3, 3)], 4, "f32"),
    ("nearer than it is long, and a row without an offset", [(1, 2, 5, 2), (0, 3, 2, 0), (2, 0, 3, 4)], 3, "bf16"),
]:
    step_, table, place = branches(rows, block_tokens, 3, 4, 12)
    cache = values(12, block_tokens, 2, 3, top=127)
    after = cache.copy()
    for row, (table_row, computed, query_len, _) in enumerate(rows):
        for p in range(computed, computed + query_len):
            after[table[table_row, p // block_tokens], p % block_tokens] = after[place(row, p)]
    operands = [operand("cache", cache, dtype), operand("table", table, "u32")]
    case("kv_move", name, step_, operands, [result(0, "cache", after, dtype)], [0])

# ---- sample: masks, biases, penalties; temperature, top_k, top_p, min_p; a draw by Philox4x32-10; log-probabilities ----
def philox4x32(key, counter):
    low, high, c = key & 0xFFFFFFFF, key >> 32, list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ high, a & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return c


NOTHING, TOKEN, NOT_FINITE, NOTHING_LEFT, BAD_RECORD = range(5)
IN_TEXT = 1 << 31


def sampled(row, n_ids, record, counts, bias, mask):
    """(what came of it, id, rank, alternatives, log-probabilities); counts the id in `counts`."""
    raw = [float(x) for x in row[:n_ids]]
    bad = next((i for i, x in enumerate(raw) if math.isnan(x) or x == math.inf), None)
    if bad is not None:
        return NOT_FINITE, bad, 0, [], []
    edited = list(raw)
    for i in range(n_ids):
        if mask is not None and not int(mask[i // 32]) >> (i % 32) & 1:
            edited[i] = -math.inf
        if bias is not None:
            edited[i] = float(np.float32(edited[i] + bias[i]))
        if counts is not None and counts[i]:
            repetition, n = record["repetition_penalty"], int(counts[i]) & (IN_TEXT - 1)
            edited[i] = float(np.float32(edited[i] / repetition if edited[i] > 0 else edited[i] * repetition))
            if n:
                edited[i] = float(np.float32(edited[i] - record["frequency_penalty"] * n))
                edited[i] = float(np.float32(edited[i] - record["presence_penalty"]))
    order = sorted((i for i in range(n_ids) if edited[i] > -math.inf), key=lambda i: (-edited[i], i))
    if not order:
        return NOTHING_LEFT, 0, 0, [], []
    if record["temperature"] == 0:
        chosen = order[0]
    else:
        kept = order[: record["top_k"]] if record["top_k"] else order
        weights = [math.exp((edited[i] - edited[order[0]]) / record["temperature"]) for i in kept]
        if record["top_p"] < 1:
            total = math.fsum(weights)
            count = next(n for n in range(1, len(kept) + 1) if math.fsum(weights[:n]) >= record["top_p"] * total)
            kept, weights = kept[:count], weights[:count]
        count = sum(w >= record["min_p"] for w in weights)
        kept, weights = kept[:count], weights[:count]
        words = philox4x32(record["seed"], [record["position"], record["sample_index"], 0, 0])
        target = ((words[0] << 32 | words[1]) >> 11) / 2**53 * math.fsum(weights)
        sums = [math.fsum(weights[: n + 1]) for n in range(len(weights))]
        # Far enough from a border that the order of summation does not matter.
        assert all(abs(s - target) > 1e-9 for s in sums)
        chosen = kept[next(n for n, s in enumerate(sums) if s > target)]
    if counts is not None:
        counts[chosen] = (int(counts[chosen]) & IN_TEXT) | ((int(counts[chosen]) + 1) & (IN_TEXT - 1))
    if record["n_logprobs"] == 0:
        return TOKEN, chosen, 0, [], []
    top = max(raw)
    total = top + math.log(math.fsum(math.exp(x - top) for x in raw))
    order = sorted((i for i in range(n_ids) if raw[i] > -math.inf), key=lambda i: (-raw[i], i))
    best = order[: record["n_logprobs"] - 1]
    return TOKEN, chosen, order.index(chosen) + 1, best, [raw[i] - total for i in [chosen, *best]]


PLAIN = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0,
    "presence_penalty": 0.0, "top_k": 0, "n_logprobs": 0, "seed": 0, "position": 0, "sample_index": 0,
    "counts_handle": 0, "bias_handle": 0, "mask_handle": 0, "relay_slot": 0,
}
PENALTIES = {"repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 0.25, "counts_handle": 1}
RECORDS = [
    ("greedy and plain", 9, 0, [
        {"temperature": 0.0}, {"n_logprobs": 1}, {"seed": 2**40 + 3}, {"sample_index": 2}, {"position": 77},
        {"temperature": 0.5, "n_logprobs": 4}, {"temperature": 1.75}, {"temperature": 2.0**-20}, {"relay_slot": 0},
    ]),
    ("filters", 40, 37, [
        {"top_k": 1}, {"top_k": 4}, {"top_k": 1000}, {"top_p": 0.125}, {"top_p": 0.75, "temperature": 1.5}, {"min_p": 0.25},
        {"min_p": 1.0}, {"top_k": 6, "top_p": 0.5, "min_p": 0.125, "n_logprobs": 21}, {"relay_slot": 99},
    ]),
    ("ties, no number, nothing", 12, 0, [
        {"top_k": 3}, {"temperature": 0.0, "n_logprobs": 6}, {"top_p": 0.5}, {"n_logprobs": 2}, {}, {"n_logprobs": 22},
    ]),
    ("side tables", 40, 37, [
        PENALTIES, PENALTIES | {"counts_handle": 2, "temperature": 0.0}, {"bias_handle": 1}, {"mask_handle": 1},
        {"mask_handle": 2, "temperature": 0.0}, {"mask_handle": 3},
        PENALTIES | {"counts_handle": 3, "bias_handle": 2, "mask_handle": 2, "top_k": 9, "n_logprobs": 3},
        {"bias_handle": 4}, {"mask_handle": 9},
    ]),
]
for name, v, n_ids, records in RECORDS:
    n = len(records)
    made = [PLAIN | {"seed": 11 * i, "position": 5 + i, "relay_slot": i + 1} | r for i, r in enumerate(records)]
    logits, n_ids_or_all = values(n, v), n_ids or v
    if name.startswith("ties"):
        logits = np.round(logits)
        logits[1:3] = 1.0
        logits[3, 7], logits[4, :] = math.nan, -math.inf
    logits[:, n_ids_or_all:] = 64.0  # padding is never chosen, whatever it holds
    step_ = step([(i, 5 + i, 1) for i in range(n)], logit_rows=range(n))
    step_["samples"] = made
    relay = np.full(n + 1, 7)
    has_tables = name == "side tables"
    counts, bias, mask = np.zeros((5, v)), values(5, v), rng.integers(0, 2**32, size=(5, -(-v // 32)))
    counts[1:] = rng.choice([0, 0, 1, 3, IN_TEXT, IN_TEXT + 2], size=(4, v))
    mask[3] = 0
    before = counts.copy()
    chosen, logprobs = np.zeros((n, 24), dtype=np.int64), np.zeros((n, 21))
    for i, record in enumerate(made):
        row = lambda table, handle: table[record[handle]] if record[handle] else None  # noqa: E731
        slot = record["relay_slot"]
        if slot == 0:
            continue
        exists = slot < len(relay) and max(record[h] for h in ("counts_handle", "bias_handle", "mask_handle")) < 5
        outcome = (BAD_RECORD, 0, 0, [], [])
        if exists and record["n_logprobs"] <= 21:
            found = (row(counts, "counts_handle"), row(bias, "bias_handle"), row(mask, "mask_handle"))
            outcome = sampled(logits[i], n_ids_or_all, record, *found)
        what, id_, rank, best, probs = outcome
        chosen[i, : 4 + len(best)] = [what, id_, rank, len(best), *best]
        logprobs[i, : len(probs)] = probs
        if slot < len(relay):
            relay[slot] = id_ if what == TOKEN else -1
    # Below the range of float32: -infinity.
    finite = [[None if math.isnan(x) else -1e39 if x == -math.inf else float(x) for x in row] for row in logits]
    first = operand("logits", np.zeros((n, v))) | {"data": [x for row in finite for x in row]}
    operands = [first, operand("relay", np.full(n + 1, 7), "i32")]
    if has_tables:
        operands += [operand("counts", before, "u32"), operand("bias", bias), operand("mask", mask, "u32")]
    last = len(operands)
    outputs = [result(1, "relay", relay, "i32"), result(last, "chosen", chosen, "u32"), result(last + 1, "logprobs", logprobs)]
    if has_tables:
        outputs.append(result(2, "counts", counts, "u32"))
    case("sample", name, step_, operands, outputs, [n_ids])

# ---- embedding: a negative id is -(slot) - 1 of the relay ----
table, relay = values(7, 5), [3, -1, 6]
ids = [2, -1, -3, -2, -9]
y = np.array([table[2], table[3], table[6], [math.nan] * 5, [math.nan] * 5])
operands = [operand("table", table), operand("relay", np.array(relay), "i32")]
outputs = [result(2, "y", np.zeros((5, 5))) | {"data": [None if math.isnan(x) else x for x in y.ravel()]}]
case("embedding", "relayed, with an empty slot and none", step(ids=ids, n_tokens=5), operands, outputs)

sys.stdout.write('{"cases":[\n')
sys.stdout.write(",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases))
sys.stdout.write("\n]}\n")
