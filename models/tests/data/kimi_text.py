"""Writes kimi_text.json: pieces and ids of random text in many scripts, by the packages `tiktoken` and `regex`.

    pip install tiktoken==0.14.0 regex==2026.11.19 && python kimi_text.py

The rank file is made up: the bytes, then merges learned from the text itself, so that long and short tokens of every
script occur. `tiktoken` gives the ids; where the `regex` package cuts the text is recorded too, so that a wrong cut that
happens to give the right ids shows. Characters that Unicode assigned only lately are left out, because the packages
follow different versions of it.

    python kimi_text.py --ranks FILE --out FILE [--megabytes N]

does the same for a rank file that is there already, into a file that is not to be committed (the long test), and prints
how long tiktoken took.
"""
import argparse
import base64
import collections
import json
import os
import random
import time

import regex
import tiktoken

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    LEAD + UPPER + "*" + LOWER + "+" + CONTRACTION,
    LEAD + UPPER + "+" + LOWER + "*" + CONTRACTION,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

WORDS = """the quick Brown fox JUMPS over LazyDogs don't I'LL we've SHE'D it'S XMLHttpRequest fooBAR snake_case kebab-case
print("hello") x+=1 #include <stdio.h> \\frac{1}{2} a.b//c?d=e&f 3.14159 1234567 0x1F 5kg v2 e.g. (a)[b]{c} !? ...
Übermaß straße ÇİĞŞ ığdır naïve café cafe\u0301 Ǆungla ǅ ǆ ªº ʰa A\u0301\u0302B \u0301x Привет МИР Москва'm Ελλάδα ΌΧΙ
中文 汉字 漢字かな カタカナ ひらがな 〇一二 々 ⺀⺁ 한국어 테스트 abc中文def 中A a中 \U00020000\U00020001 「引用」 ，。！
שלום עולם مرحبا بالعالم हिन्दी नमस्ते தமிழ் ไทย ภาษา ქართული ᏣᎳᎩ አማርኛ ខ្មែរ མི་ 🙂🙃 👨‍👩‍👧 🇩🇪 ❤️ ½ ² Ⅷ ٣٤٥ १२३ ① ∑∫√ €£¥
<|open|> <|sep|>message<|close|> [BOS] 'sS 'ſ s'ſt ''''s 'Re'vE'LL \u00a0nb\u00a0 \u2003em\u2003 \u200bzw\u200b \ufeff \u0085x \u2028y \x1c \x00 \x7f""".split()
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "    ", "\u3000", "\u00a0", "\n \n", "\x0b", "\u2029"]
# Letters, marks, numbers, punctuation and blanks of many blocks, all assigned since Unicode 10 or before.
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x2B0, 0x370), (0x400, 0x460), (0x5D0, 0x5EB), (0x620, 0x6D4), (0x904, 0x950), (0xE01, 0xE3B),
          (0x10A0, 0x10C6), (0x1E00, 0x1F00), (0x2000, 0x2070), (0x2160, 0x2189), (0x3005, 0x3096), (0x30A0, 0x3100), (0x4E00, 0x4E80),
          (0xAC00, 0xAC40), (0x1F600, 0x1F640), (0x16F00, 0x16F40), (0x2E80, 0x2E9A), (0x1D400, 0x1D455), (0x9, 0xE)]


def text(rng, words):
    """Mostly words with blanks between them, glued ones now and then, and single characters of every block."""
    out = []
    for _ in range(words):
        kind = rng.random()
        if kind < 0.75:
            out.append(rng.choice(WORDS))
        else:
            low, high = rng.choice(BLOCKS)
            out.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 6))))
        if rng.random() < 0.6:
            out.append(rng.choice(SPACES))
    return "".join(out)


def learn(texts, count):
    """Byte-pair merges of the most frequent pairs, as rank -> bytes."""
    words = collections.Counter(piece for t in texts for piece in regex.findall(PATTERN, t, regex.V1))
    words = {tuple(bytes([b]) for b in word.encode()): n for word, n in words.items()}
    tokens = [bytes([b]) for b in range(256)]
    seen = set(tokens)
    while len(tokens) < 256 + count:
        pairs = collections.Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        joined = pair[0] + pair[1]
        if joined not in seen:
            seen.add(joined)
            tokens.append(joined)
        merged = {}
        for word, n in words.items():
            out, at = [], 0
            while at < len(word):
                if word[at:at + 2] == pair:
                    out.append(joined)
                    at += 2
                else:
                    out.append(word[at])
                    at += 1
            merged[tuple(out)] = merged.get(tuple(out), 0) + n
        words = merged
    return tokens


def slices(s):
    """Where the published tokenizer cuts long texts, written from its description."""
    for start in range(0, len(s), 400_000):
        block, begin, run = s[start:start + 400_000], 0, 0
        for i, c in enumerate(block):
            run = run + 1 if i and c.isspace() == block[i - 1].isspace() else 1
            if run > 25_000:
                yield block[begin:i]
                begin, run = i, 1
        yield block[begin:]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    options = argparse.ArgumentParser()
    options.add_argument("--ranks")
    options.add_argument("--out", default=os.path.join(here, "kimi_text.json"))
    options.add_argument("--megabytes", type=float, default=0)
    options = options.parse_args()
    rng = random.Random(20261129)
    texts = [text(rng, n) for n in [1, 2, 3, 5, 8] * 12 + [60] * 25]
    texts += ["", " ", "\n", "  x", "a" * 300, "ab" * 200, " " * 300 + "x", "\n" * 50 + " ", "!" * 120, "1" * 100, "中" * 150]
    if options.ranks:
        lines = open(options.ranks, "rb").read().split(b"\n")
        tokens = [base64.b64decode(line.split()[0]) for line in lines if line]
        texts += [text(rng, 400) for _ in range(300)]
        texts += ["x" * 60_000, " " * 60_000 + "y", "中英 hello\n" * 8_000, "abc def\n" * 51_000, "é\x1c " * 30_000]
    else:
        tokens = learn(texts, 700)
    encoding = tiktoken.Encoding("made-up", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens={})
    cases = []
    for t in texts:
        ids = [i for part in slices(t) for i in encoding.encode_ordinary(part)]
        case = {"text": t, "ids": ids}
        if not options.ranks:
            case["cuts"] = [len(p.encode()) for p in regex.findall(PATTERN, t, regex.V1)]
        cases.append(case)
    if options.megabytes:
        mixed = text(rng, 200_000)
        while len(mixed.encode()) < options.megabytes * 1e6:
            mixed += mixed
        mixed = mixed.encode()[:int(options.megabytes * 1e6)].decode(errors="ignore")
        encoding.encode_ordinary(mixed[:10_000])
        times = []
        for _ in range(5):
            start = time.perf_counter()
            ids = encoding.encode_ordinary(mixed)
            times.append(time.perf_counter() - start)
        print(f"tiktoken: {len(mixed.encode()) / 1e6 / min(times):.2f} MB/s, {len(ids)} tokens")
        cases.append({"text": mixed, "ids": [i for part in slices(mixed) for i in encoding.encode_ordinary(part)]})
    ranks = [] if options.ranks else [base64.b64encode(t).decode() for t in tokens]
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump({"ranks": ranks, "cases": cases}, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
