"""Golden logits of the tiny Kimi Linear, by Hugging Face transformers (5.23 has `kimi_linear`): needs torch.

    tokenspeed tiny kimi-linear --out FOLDER
    python transformers_golden.py FOLDER > transformers.json

The library loads the published layout with its own name mapping (gates under `forget_gate`, one fused convolution,
stacked experts), so that our reading of the layout is checked too. All arithmetic in float32.

{"versions", "ids": [90 tokens], "argmax": [per token], "margin": least lead of an argmax over the next,
 "last": all logits of the last token, "early": all logits of token 2, whose convolutions reach before the start}
"""
import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

folder = pathlib.Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())["text_config"]
tensors = safetensors.torch.load_file(folder / "model.safetensors")
with tempfile.TemporaryDirectory() as published:
    published = pathlib.Path(published)
    (published / "config.json").write_text(json.dumps(config))
    tensors = {name.removeprefix("language_model."): t.contiguous() for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, published / "model.safetensors", metadata={"format": "pt"})
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        published, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
left = {k: v for k, v in report.items() if v}
assert not left, f"not every tensor found its place: {left}"

ids = [3 + (197 * i + 13 * i * i) % 509 for i in range(90)]
with torch.inference_mode():
    logits = model.eval()(torch.tensor([ids]), use_cache=False).logits[0]
    stepwise = model(torch.tensor([ids[:80]]), use_cache=True)
    tail = [stepwise.logits[0, -1]]
    for token in ids[80:]:
        stepwise = model(torch.tensor([[token]]), past_key_values=stepwise.past_key_values, use_cache=True)
        tail.append(stepwise.logits[0, -1])
drift = (torch.stack(tail) - logits[79:]).abs().max().item()
print(f"logit std {logits.std():.3f}; prefill and decode of transformers differ by {drift:.1e}", file=sys.stderr)
top = logits.topk(2, dim=-1).values
golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "ids": ids,
    "argmax": logits.argmax(-1).tolist(),
    "margin": round((top[:, 0] - top[:, 1]).min().item(), 6),
    "last": [round(v, 6) for v in logits[-1].tolist()],
    "early": [round(v, 6) for v in logits[2].tolist()],
}
print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in golden.items()) + "}")
