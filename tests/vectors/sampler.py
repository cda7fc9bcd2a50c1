"""Vectors for the sampler, computed in float64 from the definitions: python sampler.py > sampler.json

{"cases": [{"name", "logits", "prompt_ids", "generated_ids", "params": only what differs from the defaults,
            "logprobs": log-softmax of the unmodified logits,
            "probs": the distribution that is sampled from; 0 where a filter removed the token}],
 "philox": [{"key": u64 seed, "counter": [4 x u32], "output": [4 x u32]}]}

Definitions. Penalties act on logits first: repetition divides a positive and multiplies a negative logit of every token
seen in prompt or output; frequency subtracts its value times the count among generated tokens; presence subtracts its
value once if generated. Then logit_bias is added, then all logits are divided by the temperature. Filters act on the
softmax of that: top_k keeps the k most likely; top_p keeps the smallest set, most likely first, whose probability
reaches p; min_p keeps what has at least min_p times the largest probability. Ties go to the lower id. What is kept is
scaled to sum to 1. No case depends on the order of
two filters, or of a penalty and a bias.

Philox4x32-10 is the generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""
import json
import math
import sys

import numpy as np

rng = np.random.default_rng(7)


def softmax(logits):
    top = max(logits)
    weights = [math.exp(v - top) for v in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def log_softmax(logits):
    top = max(logits)
    total = math.log(math.fsum(math.exp(v - top) for v in logits))
    return [v - top - total for v in logits]


def distribution(logits, prompt, generated, p):
    logits = list(logits)
    for i in set(prompt) | set(generated):
        repetition = p.get("repetition_penalty", 1.0)
        logits[i] = logits[i] / repetition if logits[i] > 0 else logits[i] * repetition
    for i in set(generated):
        logits[i] -= p.get("frequency_penalty", 0.0) * generated.count(i) + p.get("presence_penalty", 0.0)
    for i, bias in p.get("logit_bias", []):
        logits[i] += bias
    probs = softmax([v / p.get("temperature", 1.0) for v in logits])
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = list(order)
    if p.get("top_k"):
        kept = kept[: p["top_k"]]
    if p.get("top_p", 1.0) < 1.0:
        count = next(n for n in range(1, len(kept) + 1) if math.fsum(probs[i] for i in kept[:n]) >= p["top_p"])
        kept = kept[:count]
    if p.get("min_p"):
        kept = [i for i in kept if probs[i] >= p["min_p"] * probs[order[0]]]
    total = math.fsum(probs[i] for i in kept)
    return [probs[i] / total if i in kept else 0.0 for i in range(len(probs))]


def philox4x32(key, counter):
    low, high, c = key & 0xFFFFFFFF, key >> 32, list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ high, a & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return c


# Known answers published with the generator.
assert philox4x32(0, [0] * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox4x32(2**64 - 1, [2**32 - 1] * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]

SEEN = dict(prompt=[3, 5, 5, 0], generated=[5, 8, 5, 1])
CASES = [
    ("plain", {}, {}),
    ("temperature 0.5", {"temperature": 0.5}, {}),
    ("temperature 1.75", {"temperature": 1.75}, {}),
    ("top_k 1", {"top_k": 1}, {}),
    ("top_k 4", {"top_k": 4}, {}),
    ("top_k beyond the vocabulary", {"top_k": 1000}, {}),
    ("top_p 0.1 keeps one", {"top_p": 0.1}, {}),
    ("top_p 0.8", {"top_p": 0.8}, {}),
    ("top_p 0.95, temperature 1.5", {"top_p": 0.95, "temperature": 1.5}, {}),
    ("min_p 0.2", {"min_p": 0.2}, {}),
    ("min_p 1 keeps the best", {"min_p": 1.0}, {}),
    ("repetition 1.3", {"repetition_penalty": 1.3}, SEEN),
    ("repetition 0.8", {"repetition_penalty": 0.8}, SEEN),
    ("frequency 0.5", {"frequency_penalty": 0.5}, SEEN),
    ("presence 0.75", {"presence_penalty": 0.75}, SEEN),
    ("negative frequency and presence", {"frequency_penalty": -0.25, "presence_penalty": -0.5}, SEEN),
    ("all penalties, bias, temperature", {"repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 0.25, "logit_bias": [[2, 3.0], [6, -100.0]], "temperature": 0.75}, SEEN),
    ("top_k of ties keeps the lower ids", {"top_k": 3}, {"tied": True}),
    ("top_p of ties keeps the lower ids", {"top_p": 0.4}, {"tied": True}),
]

cases = []
for name, params, extra in CASES:
    logits = [1.0] * 8 if extra.get("tied") else [int(v) / 32 for v in rng.integers(-128, 129, size=11)]
    prompt, generated = extra.get("prompt", []), extra.get("generated", [])
    probs = distribution(logits, prompt, generated, params)
    cases.append(
        {
            "name": name,
            "logits": logits,
            "prompt_ids": prompt,
            "generated_ids": generated,
            "params": params,
            "logprobs": [float(f"{v:.12g}") for v in log_softmax(logits)],
            "probs": [float(f"{v:.12g}") for v in probs],
        }
    )
philox = [
    {"key": key, "counter": counter, "output": philox4x32(key, counter)}
    for key, counter in [(0, [0] * 4), (2**64 - 1, [2**32 - 1] * 4), (42, [7, 0, 0, 0]), (2**40 + 3, [1000, 2, 0, 0])]
]
sys.stdout.write('{"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
sys.stdout.write('\n],\n"philox":' + json.dumps(philox, separators=(",", ":")) + "}\n")
