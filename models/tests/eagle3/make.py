"""Golden logits of the tiny drafts on the tiny Kimi K3, in float64: needs numpy.

    cargo run -p tokenspeed-models --example tiny_eagle3 -- FOLDER
    python make.py FOLDER > golden.json

{"ids": [tokens], "drafts": {name: {"first": [[8 logits] per row], "next": [[8 logits] per row], "argmax": [per row]}}}

The target's hidden states are the oracle's too (tests/golden/kimi). The first pass runs over all tokens but the
last two; two next passes follow, on the given tokens. The logits kept of row p are those of entries
(37 p + 61 j) mod V, j = 0..7, V = rows of the draft's head; argmax is over all of them.
"""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "../../../tests/golden/kimi"))
from draft_oracle import Draft  # noqa: E402
from oracle import K3 as Target  # noqa: E402

ids = [3 + (197 * i + 13 * i * i) % 509 for i in range(24)]
folder = pathlib.Path(sys.argv[1])
target = Target(str(folder / "target"))
sums = []  # [token][layer]
for token in ids:
    trace = []
    target.forward([token], trace)
    sums.append([np.array(layer["prefix_sum"]) for layer in trace])

drafts = {}
for path in sorted(folder.iterdir()):
    if path.name == "target":
        continue
    draft = Draft(path, target.w["model.embed_tokens.weight"])
    completed = draft.c["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    kept = {"first": [], "next": [], "argmax": []}
    for p in range(len(ids)):
        name = "first" if p < len(ids) - 2 else "next"
        if name == "first":
            taps = [sums[p - 1][layer - 1] if p > 0 else np.zeros_like(sums[0][0]) for layer in completed]
            _, logits = draft.first(p, taps, ids[p])
        else:
            _, logits = draft.next(p, ids[p])
        kept[name].append([round(float(logits[(37 * p + 61 * j) % len(logits)]), 7) for j in range(8)])
        kept["argmax"].append(int(logits.argmax()))
    drafts[path.name] = kept
    print(path.name, "logit std", logits.std(), file=sys.stderr)
lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in drafts.items())
print(f'{{"ids": {json.dumps(ids, separators=(",", ":"))},\n"drafts": {{\n{lines}\n}}}}')
