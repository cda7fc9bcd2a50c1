"""Vectors for the stored weight formats, from the `gguf` Python package (0.19.0) and, for FP8, the OCP formula.

    python -m venv venv && venv/bin/pip install numpy gguf==0.19.0
    venv/bin/python tests/vectors/quant.py > tests/vectors/quant.json

Random blocks (fixed seed) are dequantised, random values quantised; f32 are printed as their bits, so the comparison
is exact.
"""

import json

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

rng = np.random.default_rng(20240607)


def half(n, scale):
    """n finite f16 of both signs around `scale`, as bytes [n, 2]."""
    v = (rng.uniform(0.2, 1.0, n) * scale * rng.choice([-1.0, 1.0], n)).astype(np.float16)
    return v.view(np.uint8).reshape(n, 2)


def raw(n, bytes_):
    return rng.integers(0, 256, (n, bytes_), dtype=np.uint8)


def hexbytes(a):
    return np.ascontiguousarray(a).tobytes().hex()


def hexfloats(a):
    return "".join(f"{b:08x}" for b in np.ascontiguousarray(a, dtype=np.float32).reshape(-1).view(np.uint32))


def e4m3(code):
    s, e, m = code >> 7, code >> 3 & 15, code & 7
    if e == 15 and m == 7:
        return np.nan
    v = m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    return -v if s else v


def e4m3_nearest(x):
    """Search of all finite codes; ties to the even code; saturating."""
    finite = [c for c in range(128) if c != 0x7F]
    best = min(finite, key=lambda c: (abs(e4m3(c) - abs(float(x))), c & 1))
    return best | (0x80 if np.signbit(x) else 0)


blocks = {
    "q8_0": (Kind.Q8_0, np.concatenate([half(3, 0.01), raw(3, 32)], axis=1)),
    "q4_0": (Kind.Q4_0, np.concatenate([half(3, 0.1), raw(3, 16)], axis=1)),
    "q4_1": (Kind.Q4_1, np.concatenate([half(3, 0.1), half(3, 1), raw(3, 16)], axis=1)),
    "q5_0": (Kind.Q5_0, np.concatenate([half(3, 0.1), raw(3, 20)], axis=1)),
    "q5_1": (Kind.Q5_1, np.concatenate([half(3, 0.1), half(3, 1), raw(3, 20)], axis=1)),
    "q4_k": (Kind.Q4_K, np.concatenate([half(1, 0.01), half(1, 0.02), raw(1, 140)], axis=1)),
    "q5_k": (Kind.Q5_K, np.concatenate([half(1, 0.01), half(1, 0.02), raw(1, 172)], axis=1)),
    "q6_k": (Kind.Q6_K, np.concatenate([raw(1, 208), half(1, 0.001)], axis=1)),
    "f32": (Kind.F32, rng.normal(size=(1, 8)).astype(np.float32).view(np.uint8)),
    "f16": (Kind.F16, np.array([[0, 1, -2.5, 65504, 6e-8, -6e-5, np.inf, 0.1]], np.float16).view(np.uint8)),
    "bf16": (Kind.BF16, np.array([[0, 1, -2.5, 3e38, 1e-40, np.inf, -7, 0.1]], np.float32).view(np.uint8).reshape(8, 4)[:, 2:].reshape(1, 16)),
}
out = {"dequantize": [], "quantize": []}
for name, (kind, data) in blocks.items():
    values = dequantize(data, kind)
    out["dequantize"].append({"dtype": name, "bytes": hexbytes(data), "values": hexfloats(values)})
codes = np.arange(256, dtype=np.uint8)
out["dequantize"].append({"dtype": "fp8_e4m3", "bytes": hexbytes(codes), "values": hexfloats([e4m3(int(c)) for c in codes])})

rows = rng.normal(size=(4, 32)).astype(np.float32)
rows[1] = 0.0  # a zero block: scale 0
rows[2] = np.abs(rows[2]) + 1  # one sign only
rows[3, 7] = -40.0  # an outlier
for name, kind in [("f32", Kind.F32), ("f16", Kind.F16), ("bf16", Kind.BF16), ("q8_0", Kind.Q8_0), ("q4_0", Kind.Q4_0), ("q4_1", Kind.Q4_1)]:
    out["quantize"].append({"dtype": name, "values": hexfloats(rows), "bytes": hexbytes(quantize(rows, kind))})
fp8 = np.concatenate([rows[0], rows[3] * 20, [0.0, -0.0, 1e-3, 2.0**-10, 3 * 2.0**-10]]).astype(np.float32)
out["quantize"].append({"dtype": "fp8_e4m3", "values": hexfloats(fp8), "bytes": hexbytes(np.array([e4m3_nearest(v) for v in fp8], np.uint8))})

print("{" + ",\n".join(f'"{k}": [\n' + ",\n".join(json.dumps(c) for c in v) + "\n]" for k, v in out.items()) + "}")
