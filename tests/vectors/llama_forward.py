"""Golden logits of tiny models of the Llama family: a numpy float64 forward pass written from the formulas.

    cargo run -p tokenspeed-models --example write_tiny -- DIR
    python tests/vectors/llama_forward.py DIR > tests/vectors/llama_forward.json

Reads every DIR/*/config.json with its model.safetensors (float32). Dense attention over the whole sequence, one head at
a time; no cache, no batching. Needs numpy only. llama.cpp (f32 KV, no flash attention) gives the same logits within
3e-6 on the GGUF form of these models, except `mistral`, because it does not apply a window to the llama architecture.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

IDS = [1, 17, 5, 39, 0, 22, 22, 8, 31, 3, 14, 27]


def load(path):
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "F32", name
        begin, end = t["data_offsets"]
        tensors[name] = np.frombuffer(raw[8 + n + begin : 8 + n + end], "<f4").astype(np.float64).reshape(t["shape"])
    return tensors, raw


def fnv1a(raw):
    h = 0xCBF29CE484222325
    for b in raw:
        h = (h ^ b) * 0x100000001B3 & (1 << 64) - 1
    return f"{h:016x}"


def frequencies(c, dim):
    """(angular frequencies, factor on cos and sin)"""
    theta = c.get("rope_theta", 10000.0)
    f = theta ** -(np.arange(0, dim, 2) / dim)
    s = c.get("rope_scaling")
    if not s:
        return f, 1.0
    kind, factor, original = s.get("rope_type", s.get("type")), s["factor"], s["original_max_position_embeddings"]
    if kind == "llama3":
        turns = original * f / (2 * np.pi)
        keep = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
        return f / factor * (1 - keep) + f * keep, 1.0
    assert kind == "yarn"
    at = lambda turns: dim * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(theta))
    low, high = max(np.floor(at(32)), 0), min(np.ceil(at(1)), dim - 1)
    keep = 1 - np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return f / factor * (1 - keep) + f * keep, 0.1 * np.log(factor) + 1.0


def forward(c, w, ids):
    t, eps = len(ids), c["rms_norm_eps"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim", c["hidden_size"] // heads)
    window = c.get("sliding_window") if c["model_type"] == "mistral" else None
    f, magnitude = frequencies(c, dim)
    angle = np.arange(t)[:, None] * f[None, :]
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude

    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g
    linear = lambda x, name: x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rotate(x):  # [t, dim]: pairs are (d, d + dim/2)
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)

    distance = np.arange(t)[:, None] - np.arange(t)[None, :]
    hidden = distance < 0
    if window:
        hidden |= distance >= window

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q = linear(h, p + "self_attn.q_proj").reshape(t, heads, dim)
        k = linear(h, p + "self_attn.k_proj").reshape(t, kv_heads, dim)
        v = linear(h, p + "self_attn.v_proj").reshape(t, kv_heads, dim)
        if p + "self_attn.q_norm.weight" in w:
            q, k = norm(q, w[p + "self_attn.q_norm.weight"]), norm(k, w[p + "self_attn.k_norm.weight"])
        out = np.empty((t, heads, dim))
        for i in range(heads):
            j = i // (heads // kv_heads)
            score = rotate(q[:, i]) @ rotate(k[:, j]).T / np.sqrt(dim)
            score[hidden] = -np.inf
            e = np.exp(score - score.max(1, keepdims=True))
            out[:, i] = e / e.sum(1, keepdims=True) @ v[:, j]
        x = x + linear(out.reshape(t, heads * dim), p + "self_attn.o_proj")
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = linear(h, p + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return linear(norm(x, w["model.norm.weight"]), head)


rows = []
for folder in sorted(p.parent for p in Path(sys.argv[1]).glob("*/config.json")):
    w, raw = load(folder / "model.safetensors")
    logits = forward(json.loads((folder / "config.json").read_text()), w, IDS)
    digits = [[float(f"{v:.9g}") for v in row] for row in logits]
    rows.append(json.dumps({"name": folder.name, "weights_fnv1a": fnv1a(raw), "ids": IDS, "logits": digits}))
print("[" + ",\n".join(rows) + "]")
