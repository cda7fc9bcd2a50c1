"""Writes Kimi's rank file from the crate `tiktoken` 4.1.2: kimi_vocabulary.py CRATE_FOLDER OUT_FILE

The crate keeps ranks compressed: a header (b"TKV1", number of tokens, first rank), the length of every token in rank order
as a variable-length integer, then the tokens' bytes, shorter ones first and in rank order within a length. The result is
checked against the digest of the published file. The vocabulary has a licence of its own: it is made where a test needs
it and never committed.
"""
import base64
import hashlib
import os
import struct
import sys

import zstandard

FILE = "src/encodings/kimi_k2.tkv.zst"
DIGEST = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"


def tokens(data):
    """(rank, bytes) of every token, in rank order."""
    if data[:4] != b"TKV1":
        sys.exit("not a TKV1 file; was another version of the crate fetched?")
    count, first = struct.unpack_from("<II", data, 4)
    lengths, at = [], 12
    for _ in range(count):
        length, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    found = {}
    # A stable sort by length gives the order in which the bytes are stored.
    for rank in sorted(range(count), key=lengths.__getitem__):
        found[rank] = data[at:at + lengths[rank]]
        at += lengths[rank]
    return [(first + rank, found[rank]) for rank in range(count)]


def main():
    crate, out = sys.argv[1:]
    with open(os.path.join(crate, FILE), "rb") as file:
        data = zstandard.ZstdDecompressor().decompress(file.read(), max_output_size=64 << 20)
    text = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in tokens(data))
    if hashlib.sha256(text).hexdigest() != DIGEST:
        sys.exit("the ranks are not those of the published file")
    with open(out, "wb") as file:
        file.write(text)


if __name__ == "__main__":
    main()
