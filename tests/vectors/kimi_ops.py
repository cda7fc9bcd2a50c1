"""Vectors for the ops of Kimi Linear and Kimi K3, in float64 from the formulas: python kimi_ops.py > kimi_ops.json

Written from the definitions in docs/ops.md and independent of the engine's code; needs numpy. The format is that of
ops.py, with three additions: rows of a step name their state slots ("state_read", "state_write"); an operand whose first
dimension counts the step's tokens has "vary": "tokens"; values of mxfp4 operands are their 4-bit codes in element order.

Where the engine rounds a state to float32 after every token, so does this script (`f32`).
"""
import json
import sys

import numpy as np

rng = np.random.default_rng(20260802)
cases = []


def f32(x):
    return np.asarray(x, dtype=np.float32).astype(np.float64)


def values(*dims, top=192):
    """Multiples of 1/64 in [-top/64, top/64]."""
    return rng.integers(-top, top + 1, size=dims) / 64.0


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def silu(x):
    return x * sigmoid(x)


def tensor(name, data, dtype="f32", tokens=False):
    data = np.asarray(data)
    whole = dtype not in ("f32", "bf16")
    flat = [int(x) for x in data.ravel()] if whole else [float(f"{x:.12g}") for x in data.ravel()]
    made = {"name": name, "dtype": dtype, "dims": list(data.shape), "data": flat}
    return made | {"vary": "tokens"} if tokens else made


def T(name, data, dtype="f32"):
    return tensor(name, data, dtype, tokens=True)


def step(rows):
    """`rows` are (computed, query_len, state_read, state_write); table row r belongs to row r."""
    made, tokens = [], []
    for index, (computed, query_len, read, write) in enumerate(rows):
        made.append({"table_row": index, "computed": computed, "query_start": len(tokens), "query_len": query_len,
                     "state_read": read, "state_write": write})
        tokens += [{"id": 0, "position": computed + j, "row": index} for j in range(query_len)]
    return {"rows": made, "tokens": tokens, "logit_rows": [], "deltas": []}


def case(op, name, step_, operands, outputs, attrs_i=(), attrs_f=()):
    """`outputs` are (index in catalogue order, tensor)."""
    outputs = [{"index": index} | made for index, made in outputs]
    cases.append({"op": op, "name": name, "attrs_i": list(attrs_i), "attrs_f": list(attrs_f), "step": step_,
                  "operands": operands, "outputs": outputs})


def plain(n):
    return step([(0, n, 0, 0)])


def spans(step_):
    for row in step_["rows"]:
        yield row, slice(row["query_start"], row["query_start"] + row["query_len"])


# ---- slice, concat, sigmoid, sigmoid_mul, situ_mul ----
x = values(3, 11)
case("slice", "columns 4..9 of 11", plain(3), [T("x", x)], [(1, T("y", x[:, 4:9]))], [4])
a, b = values(2, 5), values(2, 3)
case("concat", "5 and 3", plain(2), [T("a", a), T("b", b)], [(2, T("y", np.hstack([a, b])))])
extremes = np.array([[0.0, 1.0, -1.0, 20.0, -20.0, 80.0, -80.0, 3.5, -1.25, 0.015625, 7.0, -4.0]])
up = values(1, 12, top=6400)
case("sigmoid", "extremes", plain(1), [T("x", extremes)], [(1, T("y", sigmoid(extremes)))])
case("sigmoid_mul", "extremes", plain(1), [T("gate", extremes), T("x", up)],
     [(2, T("y", f32(sigmoid(extremes)) * up))])
for beta, linear in [(4.0, 25.0), (1.0, 0.0), (2.5, 3.0)]:
    y = beta * np.tanh(extremes / beta) * sigmoid(extremes) * (linear * np.tanh(up / linear) if linear else up)
    case("situ_mul", f"betas {beta} and {linear}", plain(1), [T("gate", extremes), T("up", up)], [(2, T("y", y))],
         [], [beta, linear])


# ---- l2norm: eps on the sum; gated_rmsnorm: norm, then gate ----
def l2norm(x, eps, scale):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps) * scale


x = values(3, 2, 7)
x[0, 0] = 0.0
x[1] *= 2.0**-12  # so small that the epsilon decides
for eps, scale in [(1e-6, 1.0), (1e-6, 7**-0.5), (0.25, 2.0)]:
    case("l2norm", f"eps {eps} scale {scale:.3}", plain(3), [T("x", x)], [(1, T("y", l2norm(x, eps, scale)))], [], [eps, scale])


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


gate, w = values(3, 2, 7, top=400), values(7)
y = f32(rms(x, 1e-5) * w) * f32(sigmoid(gate))
case("gated_rmsnorm", "two heads", plain(3), [T("x", x), T("gate", gate), tensor("w", w)], [(3, T("y", y))], [], [1e-5])


# ---- short_conv ----
def short_conv(x, w, window, step_):
    """Output and the window after each row; x [T, C], w [C, W], window [slots, W - 1, C]."""
    taps, y, after = w.shape[1], np.zeros_like(x), window.copy()
    for row, span in spans(step_):
        history = window[row["state_read"]] if row["computed"] else np.zeros_like(window[0])
        z = np.vstack([history, x[span]])
        n = row["query_len"]
        y[span] = silu(sum(z[j : j + n] * w[:, j] for j in range(taps)))
        if row["state_write"]:
            after[row["state_write"]] = z[len(z) - taps + 1 :]
    return y, after


# A start shorter than the window, a continuation into another slot, one in place, one that keeps nothing.
STATES = [(0, 2, 0, 1), (9, 5, 2, 3), (4, 1, 4, 4), (6, 3, 5, 0)]
for frozen in (0, 1):
    step_ = step(STATES)
    xs, ws, window = [values(11, 3) for _ in range(3)], [values(3, 4) for _ in range(3)], values(6, 3, 9)
    results = [short_conv(x, w, window[..., 3 * i : 3 * i + 3], step_) for i, (x, w) in enumerate(zip(xs, ws))]
    after = window if frozen else np.concatenate([r[1] for r in results], -1)
    operands = [T(n, x) for n, x in zip(("q", "k", "v"), xs)] + [tensor(n, w) for n, w in zip(("wq", "wk", "wv"), ws)]
    outputs = [(6, tensor("window", after))] + [(7 + i, T(n, r[0])) for i, (n, r) in enumerate(zip(("yq", "yk", "yv"), results))]
    case("short_conv", f"frozen {frozen}", step_, operands + [tensor("window", window)], outputs, [frozen])


# ---- kda_gate ----
def kda_gate(f, a_log, dt_bias, bound):
    z = f + dt_bias.reshape(f.shape[1:])
    a = np.exp(a_log)[:, None]
    return -a * np.where(z > 20, z, np.log1p(np.exp(np.minimum(z, 20)))) if bound is None else bound * sigmoid(a * z)


f, a_log, dt_bias = values(3, 2, 5, top=1600), values(2, top=64), values(10)
for bound in (-5.0, None):
    y = kda_gate(f, a_log, dt_bias, bound)
    case("kda_gate", f"bound {bound}", plain(3), [T("f", f), tensor("A_log", a_log), tensor("dt_bias", dt_bias)],
         [(3, T("g", y))], [int(bound is not None)], [bound or 0.0])


# ---- kda_step, kda_verify, kda_chunk ----
def kda(q, k, v, g, beta, state, step_):
    """State [slots, H, V, K]."""
    o, after = np.zeros(v.shape), state.copy()
    for row, span in spans(step_):
        S = state[row["state_read"]] if row["computed"] else np.zeros_like(state[0])
        for t in range(span.start, span.stop):
            S = S * np.exp(g[t])[:, None, :]
            u = v[t] - np.einsum("hvk,hk->hv", S, k[t])
            S = f32(S + (beta[t][:, None] * u)[:, :, None] * k[t][:, None, :])
            o[t] = np.einsum("hvk,hk->hv", S, q[t])
        if row["state_write"]:
            after[row["state_write"]] = S
    return o, after


def kda_inputs(n, heads, keys, width, slots):
    q, k = (f32(l2norm(values(n, heads, keys), 1e-6, s)) for s in (keys**-0.5, 1.0))
    g = -np.abs(values(n, heads, keys, top=64)) * 5 * values(n, heads, keys, top=64) ** 2
    return q, k, values(n, heads, width), f32(g), f32(sigmoid(values(n, heads))), values(slots, heads, width, keys, top=64)


NAMES = ("q", "k", "v", "g", "beta")
for op, rows in [("kda_step", STATES), ("kda_verify", STATES), ("kda_chunk", STATES), ("kda_chunk", [(50, 90, 1, 2), (64, 3, 3, 3)])]:
    step_ = step(rows)
    inputs = kda_inputs(len(step_["tokens"]), 2, 6, 5, 6)
    o, after = kda(*inputs, step_)
    outputs = [(5, tensor("S", after))] if op != "kda_verify" else []
    operands = [T(n, x) for n, x in zip(NAMES, inputs)] + [tensor("S", inputs[5])]
    case(op, f"rows {rows}", step_, operands, outputs + [(6, T("o", o))])

# ---- kda_record, kda_replay ----
step_ = step(STATES[:1] + [(9, 3, 2, 3)] + STATES[2:])
parts = [values(9, n) for n in (4, 4, 4, 3, 2)]
record = values(6, 4, 17)
after = record.copy()
for row, span in spans(step_):
    if row["state_write"]:
        after[row["state_write"], : row["query_len"]] = np.hstack(parts)[span]
case("kda_record", "rows", step_, [T(n, x) for n, x in zip(("q", "k", "v", "f", "b"), parts)] + [tensor("record", record)],
     [(5, tensor("record", after))])

heads, dim, low = 2, 4, 3
channels = heads * dim
for bound in (-5.0, None):
    step_ = step([(0, 2, 0, 1), (9, 3, 2, 3), (4, 1, 4, 4)])
    record = values(6, 4, 3 * channels + low + heads)
    ws, wf = [values(channels, 4) for _ in range(3)], values(channels, low)
    a_log, dt_bias = values(heads, top=64), values(channels)
    window, state = values(6, 3, 3 * channels), values(6, heads, dim, dim, top=64)
    rows = np.vstack([record[r["state_write"], : r["query_len"]] for r in step_["rows"]])
    raw = [rows[:, i * channels : (i + 1) * channels] for i in range(3)]
    convolved = [short_conv(x, w, window[..., i * channels : (i + 1) * channels], step_) for i, (x, w) in enumerate(zip(raw, ws))]
    q, k, v = (f32(y).reshape(-1, heads, dim) for y, _ in convolved)
    q, k = f32(l2norm(q, 1e-6, dim**-0.5)), f32(l2norm(k, 1e-6, 1.0))
    f = f32(rows[:, 3 * channels : 3 * channels + low] @ wf.T).reshape(-1, heads, dim)
    g, beta = f32(kda_gate(f, a_log, dt_bias, bound)), f32(sigmoid(rows[:, 3 * channels + low :]))
    _, after = kda(q, k, v, g, beta, state, step_)
    operands = [tensor("record", record)] + [tensor(n, w) for n, w in zip(("wq", "wk", "wv"), ws)]
    operands += [tensor("wf", wf), tensor("A_log", a_log), tensor("dt_bias", dt_bias), tensor("window", window), tensor("S", state)]
    outputs = [(7, tensor("window", np.concatenate([w for _, w in convolved], -1))), (8, tensor("S", after))]
    case("kda_replay", f"bound {bound}", step_, operands, outputs, [int(bound is not None)], [bound or 0.0, 1e-6, dim**-0.5])

# ---- mla_absorb, mla_value ----
heads, nope, rope, width, rank = 3, 5, 2, 4, 7
q, w = values(4, heads, nope + rope), values(heads * (nope + width), rank)
per_head = w.reshape(heads, nope + width, rank)
y = np.concatenate([np.einsum("thn,hnr->thr", q[..., :nope], per_head[:, :nope]), q[..., nope:]], -1)
case("mla_absorb", "3 heads", plain(4), [T("q", q), tensor("w", w)], [(2, T("y", y))], [rope])
x = values(4, heads, rank)
case("mla_value", "3 heads", plain(4), [T("x", x), tensor("w", w)], [(2, T("y", np.einsum("thr,hvr->thv", x, per_head[:, nope:])))])

# ---- mla_write, mla_attention ----
step_ = step([(4, 3, 0, 0), (0, 2, 0, 0), (8, 1, 0, 0)])
block_tokens, n_blocks = 3, 8
table = np.zeros((3, 4), dtype=int)
order = list(rng.permutation(np.arange(1, n_blocks)))
for row in step_["rows"]:
    for index in range(-(-(row["computed"] + row["query_len"]) // block_tokens)):
        table[row["table_row"], index] = order.pop()


def place(token):
    return table[token["row"], token["position"] // block_tokens], token["position"] % block_tokens


x, w, cache = values(6, rank + rope, top=3), values(rank), values(n_blocks, block_tokens, 1, rank + rope)
after = cache.copy()
for t, token in enumerate(step_["tokens"]):
    after[place(token)] = np.concatenate([rms(x[t, :rank], 1e-6) * w, x[t, rank:]])
case("mla_write", "three rows", step_, [T("x", x), tensor("w", w), tensor("cache", cache), tensor("table", table, "u32")],
     [(2, tensor("cache", after))], [0], [1e-6])
for scale, top in [(0.375, 192), (4.0, 1920)]:
    q = values(6, heads, rank + rope, top=top)
    y = np.zeros((6, heads, rank))
    for t, token in enumerate(step_["tokens"]):
        rows = np.stack([cache[place({"row": token["row"], "position": p})][0] for p in range(token["position"] + 1)])
        scores = q[t] @ rows.T * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y[t] = weights / weights.sum(-1, keepdims=True) @ rows[:, :rank]
    case("mla_attention", f"scale {scale}", step_, [T("q", q), tensor("cache", cache), tensor("table", table, "u32")],
         [(3, T("y", y))], [0], [scale])

# ---- attn_res_mix ----
for snapshots in (1, 3):
    norm, proj = values(9), values(9, top=64)
    candidates = [values(4, 9) * (i + 1) for i in range(snapshots + 1)]
    V = np.stack(candidates)
    scores = (rms(V, 1e-5) * norm * proj).sum(-1)
    weights = np.exp(scores - scores.max(0))
    y = (weights[..., None] * V).sum(0) / weights.sum(0)[:, None]
    operands = [tensor("norm", norm), tensor("proj", proj)] + [T("candidate", c) for c in candidates]
    case("attn_res_mix", f"{snapshots} snapshots", plain(4), operands, [(len(operands), T("y", y))], [snapshots], [1e-5])

# ---- router_topk ----
for experts, top, groups, used, renormalise, scale in [(8, 3, 1, 1, 1, 2.446), (8, 3, 4, 2, 1, 1.0), (8, 2, 4, 2, 0, 0.5), (8, 1, 1, 1, 0, 1.0)]:
    logits, bias = values(5, experts), values(experts, top=32)
    logits[0], bias = logits[0, 0], bias if groups > 1 else np.where(np.arange(experts) % 2, bias, bias[0])
    s = f32(sigmoid(logits))
    c = f32(s + bias)
    if used < groups:
        best = np.sort(c.reshape(5, groups, -1), -1)[..., -2:]
        order = np.argsort(-f32(best.sum(-1)), -1, kind="stable")[:, :used]
        open_ = np.zeros((5, groups), bool)
        np.put_along_axis(open_, order, True, 1)
        c = np.where(np.repeat(open_, experts // groups, 1), c, -np.inf)
    ids = np.argsort(-c, -1, kind="stable")[:, :top]
    weights = np.take_along_axis(s, ids, 1)
    weights = (weights / (weights.sum(-1, keepdims=True) + 1e-20) if renormalise else weights) * scale
    case("router_topk", f"{top} of {experts}, {used} of {groups} groups, renormalise {renormalise}", plain(5),
         [T("logits", logits), tensor("bias", bias)], [(2, T("ids", ids, "u32")), (3, T("weights", weights))],
         [groups, used, renormalise], [scale])

# ---- experts ----
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
for mx, act in [(0, 0), (0, 1), (1, 1)]:
    experts, top, width, inner = 5, 2, (32 if mx else 6), (64 if mx else 7)
    x, weights = values(4, width, top=64), values(4, top)
    ids = np.stack([rng.permutation(experts)[:top] for _ in range(4)])
    slots = rng.permutation(experts)
    shapes = [(experts, inner, width), (experts, inner, width), (experts, width, inner)]
    if mx:
        codes = [rng.integers(0, 16, size=s) for s in shapes]
        scales = [rng.integers(120, 128, size=(*s[:2], s[2] // 32)) for s in shapes]
        w1, w3, w2 = (E2M1[c] * np.repeat(2.0 ** (s - 127.0), 32, -1) for c, s in zip(codes, scales))
    else:
        w1, w3, w2 = (values(*s, top=64) for s in shapes)
    y = np.zeros_like(x)
    for t in range(4):
        for i in np.argsort(ids[t]):
            place_ = slots[ids[t, i]]
            gate, up = f32(w1[place_] @ x[t]), f32(w3[place_] @ x[t])
            h = 4 * np.tanh(gate / 4) * sigmoid(gate) * 25 * np.tanh(up / 25) if act else f32(silu(gate)) * up
            y[t] += weights[t, i] * f32(w2[place_] @ f32(h))
    operands = [T("x", x), T("ids", ids, "u32"), T("weights", weights), tensor("slots", slots, "u32")]
    if mx:
        operands += [tensor(n, c, "mxfp4") for n, c in zip(("w1", "w3", "w2"), codes)]
        operands += [tensor(n + " scales", s, "u8") for n, s in zip(("w1", "w3", "w2"), scales)]
    else:
        operands += [tensor(n, w) for n, w in zip(("w1", "w3", "w2"), (w1, w3, w2))]
    case("experts", f"mxfp4 {mx}, act {act}", plain(4), operands, [(len(operands), T("y", y))], [act], [4.0, 25.0])

# ---- attn_res_scores, attn_res_partial, attn_res_combine: attn_res_mix in three steps ----
for snapshots, later in ((1, 1), (3, 2)):
    # Mixture `mix` is the one looked at; `later - 1` come after it. Snapshot j has scores for `snapshots - 1 - j` mixtures
    # before it as well.
    bank = [values(4, 9) * (i + 1) for i in range(snapshots)]
    total = values(4, 9) * 2
    norms, projs = values(snapshots + later - 1, 9), values(snapshots + later - 1, 9, top=64)
    tables = [f32(rms(B, 1e-5) @ (norms * projs)[j:].T) for j, B in enumerate(bank)]
    mix = snapshots - 1
    for j, (B, table) in enumerate(zip(bank, tables)):
        weights = [tensor("norm", n) for n in norms[j:]] + [tensor("proj", p) for p in projs[j:]]
        n = len(weights) // 2
        case("attn_res_scores", f"{n} scores", plain(4), [T("snapshot", B)] + weights, [(1 + 2 * n, T("y", table))], [n], [1e-5])
    scores = np.stack([table[:, table.shape[1] - later] for table in tables])
    largest = scores.max(0)
    weights = np.exp(scores - largest)
    acc, z = (weights[..., None] * np.stack(bank)).sum(0), weights.sum(0)
    stats = np.stack([largest, z], -1)
    operands = [T("snapshot", B) for B in bank] + [T("scores", s) for s in tables]
    case("attn_res_partial", f"{snapshots} snapshots, {later} left", plain(4), operands,
         [(2 * snapshots, T("acc", acc)), (2 * snapshots + 1, T("stats", stats))], [snapshots, later])
    own = (rms(total, 1e-5) * norms[mix] * projs[mix]).sum(-1)
    acc, stats = f32(acc), f32(stats)
    top = np.maximum(stats[:, 0], own)
    a, b = np.exp(stats[:, 0] - top), np.exp(own - top)
    y = (a[:, None] * acc + b[:, None] * total) / (a * stats[:, 1] + b)[:, None]
    operands = [tensor("norm", norms[mix]), tensor("proj", projs[mix]), T("acc", acc), T("stats", stats), T("sum", total)]
    case("attn_res_combine", f"{snapshots} snapshots", plain(4), operands, [(5, T("y", y))], [], [1e-5])
    # The three steps are attn_res_mix.
    V = np.stack(bank + [total])
    s = (rms(V, 1e-5) * norms[mix] * projs[mix]).sum(-1)
    w = np.exp(s - s.max(0))
    assert np.abs((w[..., None] * V).sum(0) / w.sum(0)[:, None] - y).max() < 1e-5

# ---- kda_mix ----
def kda_mix(bound, frozen, low):
    """A case; with `low`, f is of that width and projected inside."""
    heads, dim = 2, 4
    channels = heads * dim
    step_ = step(STATES)
    n = len(step_["tokens"])
    raw, f, b, gate = [values(n, channels) for _ in range(3)], values(n, low or channels), values(n, heads), values(n, channels)
    ws, a_log, dt_bias, norm = [values(channels, 4) for _ in range(3)], values(heads, top=64), values(channels), values(dim)
    window, state = values(6, 3, 3 * channels), values(6, heads, dim, dim, top=64)
    projection = [values(channels, low)] if low else []
    convolved = [short_conv(x, w, window[..., i * channels : (i + 1) * channels], step_) for i, (x, w) in enumerate(zip(raw, ws))]
    q, k, v = (f32(y).reshape(-1, heads, dim) for y, _ in convolved)
    q, k = f32(l2norm(q, 1e-6, dim**-0.5)), f32(l2norm(k, 1e-6, 1.0))
    decays = (f32(f @ projection[0].T) if low else f).reshape(-1, heads, dim)
    g, beta = f32(kda_gate(decays, a_log, dt_bias, bound)), f32(sigmoid(b))
    o, after = kda(q, k, v, g, beta, state, step_)
    y = f32(rms(f32(o), 1e-5) * norm) * f32(sigmoid(gate)).reshape(-1, heads, dim)
    operands = [T(name, x) for name, x in zip(("q", "k", "v", "f", "b", "gate"), raw + [f, b, gate])]
    operands += [tensor(name, w) for name, w in zip(("wq", "wk", "wv", "A_log", "dt_bias", "norm"), ws + [a_log, dt_bias, norm])]
    operands += [tensor("window", window), tensor("S", state)] + [tensor("wf", w) for w in projection]
    moved = [] if frozen else [(12, tensor("window", np.concatenate([w for _, w in convolved], -1))), (13, tensor("S", after))]
    case("kda_mix", f"bound {bound} frozen {frozen}" + (f" low {low}" if low else ""), step_, operands,
         moved + [(len(operands), T("y", y))], [int(bound is not None), frozen] + ([1] if low else []), [bound or 0.0, 1e-6, dim**-0.5, 1e-5])

kda_mix(-5.0, 0, None)
kda_mix(None, 1, None)

# ---- moe_input, moe_output ----
for linear, residual in [(25.0, 1), (0.0, 0)]:
    x = values(3, 6)
    router, down, gate, up = values(5, 6), values(4, 6), values(3, 6), values(3, 6)
    g, u = f32(x @ gate.T), f32(x @ up.T)
    h = 4 * np.tanh(g / 4) * sigmoid(g) * (linear * np.tanh(u / linear) if linear else u)
    operands = [T("x", x)] + [tensor(name, w) for name, w in zip(("router", "down", "gate", "up"), (router, down, gate, up))]
    case("moe_input", f"linear {linear}", plain(3), operands,
         [(5, T("logits", x @ router.T)), (6, T("z", x @ down.T)), (7, T("h", h))], [], [4.0, linear])
    r, norm, wide, inner, narrow, before = values(3, 4), values(4), values(7, 4), values(3, 5), values(7, 5), values(3, 7)
    y = f32(f32(f32(rms(r, 1e-5) * norm) @ wide.T) + f32(inner @ narrow.T))
    operands = [T("r", r), tensor("norm", norm), tensor("up", wide), T("h", inner), tensor("down", narrow)]
    operands += [T("residual", before)] if residual else []
    case("moe_output", f"residual {residual}", plain(3), operands, [(len(operands), T("y", y + before if residual else y))],
         [residual], [1e-5])

# ---- mla_mix ----
heads, nope, rope, width, rank = 2, 3, 2, 4, 5
step_ = step([(4, 2, 0, 0), (0, 1, 0, 0)])
q, w, cache = values(3, heads, nope + rope), values(heads * (nope + width), rank), values(4, 4, 1, rank + rope)
table = np.array([[2, 3], [1, 0]])
gate = values(3, heads, width)
per_head = w.reshape(heads, nope + width, rank)
absorbed = f32(np.concatenate([np.einsum("thn,hnr->thr", q[..., :nope], per_head[:, :nope]), q[..., nope:]], -1))
mixed = np.zeros((3, heads, rank))
for t, token in enumerate(step_["tokens"]):
    rows = np.stack([cache[table[token["row"], p // 4], p % 4, 0] for p in range(token["position"] + 1)])
    scores = absorbed[t] @ rows.T * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed[t] = f32(weights / weights.sum(-1, keepdims=True) @ rows[:, :rank])
y = f32(np.einsum("thr,hvr->thv", mixed, per_head[:, nope:])) * f32(sigmoid(gate))
operands = [T("q", q), tensor("w", w), tensor("cache", cache), tensor("table", table, "u32"), T("gate", gate)]
case("mla_mix", "two rows", step_, operands, [(5, T("y", y))], [0, rope], [0.5])

# Behind all others, whose numbers it would change.
kda_mix(-5.0, 0, 3)

sys.stdout.write('{"cases":[\n')
sys.stdout.write(",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases))
sys.stdout.write("\n]}\n")
