"""Golden logits of the tiny Kimi models, in float64: needs numpy.

    cargo run -p tokenspeed-models --example tiny_kimi -- FOLDER > FOLDER/variants.txt
    python make.py FOLDER > golden.json

{"ids": [100 tokens], "variants": {name: {"latent_eps", "argmax": [per token], "logits": [[8 per token]]}}}

The logits kept of token t are those of vocabulary entries (37 t + 61 j) mod V, j = 0..7.
"""
import json
import pathlib
import sys

from oracle import K3

ids = [3 + (197 * i + 13 * i * i) % 509 for i in range(100)]
folder = pathlib.Path(sys.argv[1])
variants = {}
for line in (folder / "variants.txt").read_text().split("\n"):
    if not line:
        continue
    name, latent_eps = line.split()
    logits = K3(str(folder / name), float(latent_eps)).forward(ids)
    print(name, "logit std", logits.std(), file=sys.stderr)
    kept = [[round(float(row[(37 * t + 61 * j) % len(row)]), 7) for j in range(8)] for t, row in enumerate(logits)]
    variants[name] = {"latent_eps": float(latent_eps), "argmax": logits.argmax(-1).tolist(), "logits": kept}
lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in variants.items())
print(f'{{"ids": {json.dumps(ids, separators=(",", ":"))},\n"variants": {{\n{lines}\n}}}}')
