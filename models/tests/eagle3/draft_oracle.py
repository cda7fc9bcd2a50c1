"""The EAGLE3 draft in numpy float64, written from the formulas and independent of the engine's code.

Positions are those of the tokens: row p takes the embedding of token p and the target's hidden states of token p - 1,
which are zeros for p = 0.
Keys and values are expanded per head, frequencies follow the YaRN paper, so neither absorption nor tables are shared with
what is tested.
"""
import json
import math
import pathlib
import struct

import numpy as np


class Tensors:
    """The tensors of a safetensors file as float64 (or integers)."""

    def __init__(self, file):
        data = pathlib.Path(file).read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        self.header = json.loads(data[8 : 8 + length])
        self.data = data[8 + length :]

    def __contains__(self, name):
        return name in self.header

    def __getitem__(self, name):
        entry = self.header[name]
        start, end = entry["data_offsets"]
        raw = self.data[start:end]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            values = bits.view(np.float32).astype(np.float64)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}[entry["dtype"]])
        return values.reshape(entry["shape"])


def rms(x, w, eps):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def silu(x):
    return x / (1 + np.exp(-x))


def yarn_frequencies(dims, theta, scaling):
    """Angles per position of each pair: slow ones divided by the factor, fast ones kept, a ramp between."""
    plain = theta ** (-np.arange(0, dims, 2) / dims)

    def dim_of(turns):
        turned = scaling["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return dims * math.log(turned) / (2 * math.log(theta))

    low = max(math.floor(dim_of(scaling["beta_fast"])), 0)
    high = min(math.ceil(dim_of(scaling["beta_slow"])), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    return plain / scaling["factor"] * ramp + plain * (1 - ramp)


class Draft:
    def __init__(self, folder, target_embedding):
        folder = pathlib.Path(folder)
        self.c = json.loads((folder / "config.json").read_text())
        self.w = Tensors(folder / "model.safetensors")
        self.embedding = self.w["embed_tokens.weight"] if "embed_tokens.weight" in self.w else target_embedding
        scaling = self.c["rope_scaling"]
        self.frequencies = yarn_frequencies(self.c["qk_rope_head_dim"], self.c["rope_theta"], scaling)
        magnitude = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1
        width = self.c["qk_nope_head_dim"] + self.c["qk_rope_head_dim"]
        self.scale = magnitude**2 / math.sqrt(width)
        self.rows = {}  # position -> (normalised latent, rotated key)
        self.hidden = {}  # position -> what the next pass reads

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def norm(self, x, name):
        return rms(x, self.w[name + ".weight"], self.c["rms_norm_eps"])

    def rotate(self, x, position):
        angle = position * self.frequencies
        c, s = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 1::2] * c + x[..., 0::2] * s
        return out

    def first(self, position, taps, token):
        """Over the target's taps; returns (hidden state before the head, logits)."""
        normed = [self.norm(tap, f"fc_norm.{i}") for i, tap in enumerate(taps)]
        return self.step(position, self.linear(np.concatenate(normed), "fc"), token)

    def next(self, position, token):
        """Over the pass before, one position back."""
        return self.step(position, self.hidden[position - 1], token)

    def step(self, position, h, token):
        layer = "layers.0."
        x = np.concatenate(
            [self.norm(self.embedding[token], layer + "input_layernorm"), self.norm(h, layer + "hidden_norm")]
        )
        res = h + self.attention(x, position, layer + "self_attn.")
        y = self.norm(res, layer + "post_attention_layernorm")
        gate, up = self.linear(y, layer + "mlp.gate_proj"), self.linear(y, layer + "mlp.up_proj")
        total = res + self.linear(silu(gate) * up, layer + "mlp.down_proj")
        out = self.norm(total, "norm")
        self.hidden[position] = out if self.c["norm_output"] else total
        return out, self.linear(out, "lm_head")

    def attention(self, x, position, name):
        c = self.c
        heads, nope, v_dim, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        q = self.linear(self.norm(self.linear(x, name + "q_a_proj"), name + "q_a_layernorm"), name + "q_b_proj")
        q = q.reshape(heads, -1)
        q_pe = self.rotate(q[:, nope:], position)
        low = self.linear(x, name + "kv_a_proj_with_mqa")
        latent = self.norm(low[:rank], name + "kv_a_layernorm")
        self.rows[position] = (latent, self.rotate(low[rank:], position))
        rows = [self.rows[p] for p in range(position + 1)]
        w = self.w[name + "kv_b_proj.weight"].reshape(heads, nope + v_dim, rank)
        out = []
        for head in range(heads):
            keys = np.stack([np.concatenate([w[head, :nope] @ latent, key]) for latent, key in rows])
            values = np.stack([w[head, nope:] @ latent for latent, _ in rows])
            scores = keys @ np.concatenate([q[head, :nope], q_pe[head]]) * self.scale
            weights = np.exp(scores - scores.max())
            out.append(weights @ values / weights.sum())
        return self.linear(np.concatenate(out), name + "o_proj")
