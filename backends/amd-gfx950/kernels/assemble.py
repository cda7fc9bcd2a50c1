"""Assembles instructions, one a line, from standard input; prints each one's dwords in hexadecimal, or `-` if refused.

The assembler is LLVM's, out of the pinned compiler: the second opinion on what the emulator's decoder prints.
"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import toolchain

# A word that no instruction contains marks where one ends and the next begins.
MARK = 0xFFFFFFFF


def text_section(data):
    """Bytes of `.text` in an ELF64 object."""
    start, size, count, names = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HHH", data, 58)
    section = lambda i: struct.unpack_from("<IIQQQQ", data, start + size * i)
    name_table = section(names)[4]
    for i in range(count):
        name, _, _, _, offset, length = section(i)
        if data[name_table + name:].split(b"\0", 1)[0] == b".text":
            return data[offset:offset + length]
    raise SystemExit("no .text in the object")


def words(lines):
    """Dwords of each line; a refused line halves the list until it stands alone."""
    target = f'.amdgcn_target "{toolchain.TRIPLE}--{toolchain.ARCH}"\n.text\n'
    text = "".join(f"{line}\n.long {MARK}\n" for line in lines)
    try:
        code = text_section(toolchain.assemble(target + text))
    except RuntimeError:
        if len(lines) == 1:
            return ["-"]
        half = len(lines) // 2
        return words(lines[:half]) + words(lines[half:])
    found, current = [], []
    for (word,) in struct.iter_unpack("<I", code):
        if word == MARK:
            found.append(" ".join(f"{w:08x}" for w in current))
            current = []
        else:
            current.append(word)
    assert len(found) == len(lines)
    return found


def main():
    lines = sys.stdin.read().splitlines()
    for at in range(0, len(lines), 64):
        sys.stdout.write("".join(f"{w}\n" for w in words(lines[at:at + 64])))


if __name__ == "__main__":
    main()
