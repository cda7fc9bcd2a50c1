"""Assembles instructions, one a line, from standard input; prints the code section's bytes as hexadecimal dwords.

The assembler is LLVM's, out of the pinned compiler: the second opinion on what the emulator's decoder prints.
"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build


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


def main():
    target = f'.amdgcn_target "{build.TRIPLE}--{build.ARCH}"\n.text\n'
    code = text_section(build.assemble(target + sys.stdin.read() + "\n"))
    print(" ".join(f"{word:08x}" for word, in struct.iter_unpack("<I", code)))


if __name__ == "__main__":
    main()
