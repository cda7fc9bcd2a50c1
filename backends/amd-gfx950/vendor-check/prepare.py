"""Assembles the HIP installation that the build of `hip-runtime-sys` wants, and prints the environment that points at it.

usage: prepare.py FOLDER LIBRARIES

FOLDER gets `include/`, the public headers that come with the kernels' compiler, and `lib/libamdhip64.so`, the emulator's
library from LIBRARIES. Run by the interpreter of the kernels' environment.
"""

import importlib.util
import sys
from pathlib import Path

folder, libraries = (Path(p).resolve() for p in sys.argv[1:])
package = Path(importlib.util.find_spec("triton").submodule_search_locations[0])
library = libraries / "libamdhip64.so"
if not library.is_file():
    raise SystemExit(f"{library} is missing; `cargo build --workspace` makes it")
for link, to in ((folder / "include", package / "backends/amd/include"), (folder / "lib/libamdhip64.so", library)):
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(to)
print(f"HIP_PATH={folder}")
print(f"LD_LIBRARY_PATH={folder / 'lib'}")
