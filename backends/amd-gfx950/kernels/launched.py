"""Was every kernel that ships launched by a test? Compares the emulator's list with the manifest.

usage: launched.py FOLDER LOG [--long]

LOG is what `TOKENSPEED_EMULATOR_LAUNCHED` gave (`emulator/src/hip/launched.rs`): the hash of each code object that ran to its end,
so a variant that was queued and never ran does not count, nor does one whose launch faulted. Tests with seeded bugs are left
out of it. Variants whose objects are equal to the last byte count as one.
"""

import argparse
import json
import re
import sys
from pathlib import Path

# Variants that only tests with `--long` launch, as patterns of whole names, with the reason: the form of the same source that every
# run launches, and so holds what is not particular to the variant. One that is launched all the same has no business here.
LONG = {}

# Variants that no test is known to launch, with the reason.
OPEN = {}


def fnv1a(data):
    """64 bits, as the emulator names objects."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def missing(shipped, ran, long):
    """Complaints; `shipped`: names and hashes, `ran`: hashes."""
    found = []
    for name, value in shipped:
        listed = any(re.fullmatch(pattern, name) for pattern in LONG)
        if value not in ran and name not in OPEN and (long or not listed):
            found.append(f"{name} was launched by no test")
        if value in ran and listed and not long:
            found.append(f"{name} was launched, and is said to be by tests with --long alone: take it off the list")
    for pattern in [*LONG, *OPEN]:
        if not any(re.fullmatch(pattern, name) for name, _ in shipped):
            found.append(f"no kernel is named {pattern}: take it off the list")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--long", action="store_true", help="tests with --long were run")
    options = parser.parse_args()
    ran = {line.split()[0] for line in options.log.read_text().splitlines()} if options.log.is_file() else set()
    kernels = json.loads((options.folder / "manifest.json").read_text())["kernels"]
    shipped = [(k["name"], fnv1a((options.folder / k["file"]).read_bytes())) for k in kernels if k["group"] == "shipped"]
    found = missing(shipped, ran, options.long)
    for line in found:
        print(f"kernels: {line}", file=sys.stderr)
    if found:
        raise SystemExit(1)
    launched = sum(value in ran for _, value in shipped)
    print(f"kernels: {launched} of {len(shipped)} shipped variants launched by tests")


if __name__ == "__main__":
    main()
