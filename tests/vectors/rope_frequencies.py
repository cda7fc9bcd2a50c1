"""Angular frequencies of rotary embeddings under every supported scaling, numpy float64, from the papers' formulas.

    python tests/vectors/rope_frequencies.py > tests/vectors/rope_frequencies.json

linear: positions divided by `factor`. llama3: by wavelength (Llama 3.1). yarn: arXiv 2309.00071, section 3.
"""

import json

import numpy as np


def base(theta, dims):
    return theta ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)


def llama3(f, factor, low, high, original):
    wavelength = 2 * np.pi / f
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 - smooth) * f / factor + smooth * f


def yarn(theta, dims, factor, original, fast, slow, truncate):
    # Rotations of dimension pair d over the original context: r(d) = original * theta^(-2d/dims) / 2 pi; solve for d.
    solve = lambda r: np.log(original / (2 * np.pi * r)) * dims / (2 * np.log(theta))
    low, high = solve(fast), solve(slow)
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    keep = 1 - np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    f = base(theta, dims)
    return f / factor * (1 - keep) + f * keep


cases = {
    "none": ({"rope_theta": 100000.0}, base(1e5, 64)),
    "linear": ({"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}, base(1e4, 64) / 4),
    "llama3": (
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
        llama3(base(5e5, 64), 8, 1, 4, 8192),
    ),
    "yarn": (
        {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        yarn(1e6, 64, 4, 32768, 32, 1, True),
    ),
    "yarn_untruncated": (
        {"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 24, "beta_slow": 2, "truncate": False}},
        yarn(1e4, 64, 16, 4096, 24, 2, False),
    ),
}
rows = [json.dumps({"name": n, "config": c, "frequencies": [float(x) for x in f]}) for n, (c, f) in cases.items()]
print("[" + ",\n".join(rows) + "]")
