"""Compiles every variant for gfx950, without a GPU, into a folder: one .hsaco each and manifest.json.

usage: build.py FOLDER [--jobs N] [--verify [N]] [--match PREFIX,...]

What is there already and was made from the same sources by the same compiler is kept. `--verify`
compiles every Nth variant (1: all) again in another folder and fails unless all bytes are equal. A variant that spills, needs scratch or more than 160 KiB of LDS, or
whose arguments do not lie where the launcher puts them, fails the build.
"""

import os

# Before triton is imported: no paths in the object, no choice left to a default that changes with the version.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import argparse
import ctypes
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCH = "gfx950"
TRIPLE = "amdgcn-amd-amdhsa"
LDS_LIMIT = 160 * 1024
SIZES = {"i32": 4, "fp32": 4, "i64": 8}


def sources(module):
    """A source file and those it imports from this folder, names sorted."""
    seen, todo = set(), [module]
    while todo:
        path = HERE / f"{todo.pop()}.py"
        if path.is_file() and path not in seen:
            seen.add(path)
            todo += re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
    return sorted(seen)


def source_hash(v):
    """Changes with the variant, the sources of its kernel, the way it is compiled, and the compiler."""
    import triton

    what = {k: v[k] for k in ("name", "group", "arguments", "constants", "grid", "divisible", "options")}
    digest = hashlib.sha256(f"{triton.__version__} {json.dumps(what, sort_keys=True)}".encode())
    for path in [HERE / "build.py", *sources(v["fn"].__module__)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def layout(arguments):
    """Where the launcher puts arguments: in order, naturally aligned, then two null pointers for scratch."""
    placed, at = [], 0
    for name, kind in [*arguments, ("global_scratch", "*"), ("profile_scratch", "*")]:
        size = 8 if kind.startswith("*") else SIZES[kind]
        at = (at + size - 1) // size * size
        placed.append({"name": name, "type": kind, "offset": at, "size": size})
        at += size
    return placed


def metadata_of(assembly):
    """The numbers of the assembly's metadata, and the explicit arguments as (offset, size)."""
    text = assembly.split(".amdgpu_metadata", 1)[1]
    number = lambda key: int(re.search(rf"\.{key}:\s*(\d+)", text)[1])
    keys = ("vgpr_count", "agpr_count", "sgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size",
            "group_segment_fixed_size", "kernarg_segment_size", "max_flat_workgroup_size")
    arguments = []
    for entry in re.split(r"\n\s+- ", text.split(".args:", 1)[1].split(".group_segment_fixed_size", 1)[0])[1:]:
        fields = dict(re.findall(r"\.(\w+):\s*(\S+)", entry))
        if not fields["value_kind"].startswith("hidden_"):
            arguments.append((int(fields["offset"]), int(fields["size"])))
    return {k: number(k) for k in keys}, arguments


def code_generator():
    """The LLVM that Triton ships for this architecture; found without importing Triton, which takes long."""
    package = Path(importlib.util.find_spec("triton").submodule_search_locations[0])
    library = ctypes.CDLL(str(package / "backends/amd/lib/libtriton_amd_codegen.so"))
    out = ctypes.POINTER(ctypes.c_void_p)
    library.triton_amdgpu_assemble.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *[ctypes.c_char_p] * 3, out,
                                               ctypes.POINTER(ctypes.c_size_t), out]
    library.triton_amdgpu_assemble.restype = ctypes.c_int
    library.triton_amdgpu_free.argtypes = [ctypes.c_void_p]
    library.triton_amdgpu_free.restype = None
    return library


def assemble(text):
    """Object file bytes of an assembly text; an error carries the assembler's words."""
    library, source = code_generator(), text.encode()
    data, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    status = library.triton_amdgpu_assemble(source, len(source), TRIPLE.encode(), ARCH.encode(), b"", ctypes.byref(data),
                                            ctypes.byref(size), ctypes.byref(error))
    result = data if not status else error
    try:
        if status:
            raise RuntimeError(ctypes.string_at(error).decode() if error.value else "assembler: unknown failure")
        return ctypes.string_at(data, size.value)
    finally:
        library.triton_amdgpu_free(result)


def link(assembly):
    """A code object with the classic target name, which every runtime knows."""
    from triton._C.libtriton import amd

    text = re.sub(r'\.amdgcn_target\s+"[^"]*"', f'.amdgcn_target "{TRIPLE}--{ARCH}"', assembly)
    text = re.sub(r"amdhsa\.target:\s*\S+", f"amdhsa.target:   {TRIPLE}--{ARCH}", text)
    with tempfile.TemporaryDirectory() as folder:
        source, out = f"{folder}/a.o", f"{folder}/a.hsaco"
        Path(source).write_bytes(assemble(text))
        amd.link_hsaco(source, out)
        return Path(out).read_bytes()


def gate(numbers, found, placed, shared):
    problems = [f"{k} = {numbers[k]}" for k in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size") if numbers[k]]
    lds = shared + numbers["group_segment_fixed_size"]
    if lds > LDS_LIMIT:
        problems.append(f"{lds} bytes of LDS")
    wanted = [(a["offset"], a["size"]) for a in placed]
    if found != wanted:
        problems.append(f"arguments at {found}, the launcher puts them at {wanted}")
    if problems:
        raise RuntimeError("; ".join(problems))


def occupancy(entry):
    """Waves per SIMD and work-groups per compute unit: 512 registers in eights, 8 waves, 160 KiB of LDS in pieces of 1280."""
    registers = -(-max(entry["vgpr_count"], 1) // 8) * 8
    waves = min(512 // registers, 8)
    pieces = -(-entry["lds_bytes"] // 1280)
    by_lds = LDS_LIMIT // (1280 * pieces) if pieces else 32
    return {"waves_per_simd": waves, "groups_per_unit": min(4 * waves // (entry["block"] // 64), by_lds)}


def build_one(v, folder):
    """Compiles one variant; returns its manifest entry."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    name, fn, kinds = v["name"], v["fn"], dict(v["arguments"])
    signature = {n: kinds.get(n, "constexpr") for n in fn.arg_names}
    attrs = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in v["divisible"]}
    kind = GluonASTSource if isinstance(fn, GluonJITFunction) else ASTSource
    source = kind(fn=fn, signature=signature, constexprs=v["constants"], attrs=attrs)
    compiled = triton.compile(source, target=GPUTarget("hip", ARCH, 64), options=v["options"])
    if compiled.metadata.global_scratch_size or compiled.metadata.profile_scratch_size:
        raise RuntimeError("needs scratch memory")
    numbers, found = metadata_of(compiled.asm["amdgcn"])
    placed = layout(v["arguments"])
    gate(numbers, found, placed, compiled.metadata.shared)
    data = link(compiled.asm["amdgcn"])
    (Path(folder) / f"{name}.hsaco").write_bytes(data)
    return {
        "name": name,
        "group": v["group"],
        "file": f"{name}.hsaco",
        "symbol": compiled.metadata.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "source_sha256": source_hash(v),
        "compiler": f"triton {triton.__version__}",
        "arguments": placed,
        "constants": v["constants"],
        "grid": v["grid"],
        "block": 64 * compiled.metadata.num_warps,
        "divisible_by_16": v["divisible"],
        "lds_bytes": compiled.metadata.shared,
        **numbers,
    }


def kept(folder, wanted):
    """Entries of an earlier build that are still good: name to entry."""
    try:
        entries = json.loads((folder / "manifest.json").read_text())["kernels"]
    except (OSError, ValueError, KeyError):
        return {}
    good = {}
    for e in entries:
        path = folder / e["file"]
        if e["source_sha256"] == wanted.get(e["name"]) and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == e["sha256"]:
            good[e["name"]] = e
    return good


def build(folder, jobs, every=1, match=("",)):
    """Compiles what is not there yet, of every `every`th variant whose name begins with one of `match`; returns the manifest."""
    import variants

    folder.mkdir(parents=True, exist_ok=True)
    chosen = [v for v in variants.variants() if v["name"].startswith(tuple(match))]
    wanted = {v["name"]: source_hash(v) for v in chosen[::every]}
    names = list(wanted)
    entries = kept(folder, wanted)
    todo = [n for n in names if n not in entries]
    # The compiler's own cache would hide a change of the compiler; ours is the manifest.
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        shares = [share for share in (todo[i::jobs] for i in range(jobs)) if share]
        command = [sys.executable, "-B", __file__, str(folder), "--only"]
        workers = [subprocess.Popen([*command, ",".join(s)], env=environment, stdout=subprocess.PIPE) for s in shares]
        for worker in workers:
            out, _ = worker.communicate()
            if worker.returncode:
                raise SystemExit("kernels: the compiler failed, see above")
            entries.update((e["name"], e) for e in json.loads(out))
    failed = [n for n in names if n not in entries]
    for stale in {p.name for p in folder.glob("*.hsaco")} - {f"{n}.hsaco" for n in names}:
        (folder / stale).unlink()
    # What did compile is kept, so that the next attempt is quick.
    manifest = {"architecture": ARCH, "kernels": [{**entries[n], **occupancy(entries[n])} for n in names if n in entries]}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    if failed:
        raise SystemExit(f"kernels: {len(failed)} of {len(names)} failed: {', '.join(failed)}")
    print(f"kernels: {len(todo)} compiled, {len(names) - len(todo)} kept")
    return manifest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--verify", type=int, nargs="?", const=1)
    parser.add_argument("--match", default="", help="only variants whose names begin so, by commas")
    parser.add_argument("--only", help="compile these variants and print their manifest entries")
    options = parser.parse_args()
    if options.only:
        import variants

        chosen = options.only.split(",")
        entries = []
        for v in [v for v in variants.variants() if v["name"] in chosen]:
            try:
                entries.append(build_one(v, options.folder))
            except Exception as error:  # The compiler's own kinds are many; the build fails behind the last variant.
                print(f"kernels: {v['name']}: {error}", file=sys.stderr)
        print(json.dumps(entries))
        return
    manifest = build(options.folder, options.jobs, 1, options.match.split(","))
    if options.verify:
        with tempfile.TemporaryDirectory() as other:
            again = build(Path(other), options.jobs, options.verify)
        first = {k["name"]: k for k in manifest["kernels"]}
        differing = [k["name"] for k in again["kernels"] if k != first[k["name"]]]
        if differing:
            raise SystemExit(f"not reproducible: {', '.join(differing)}")
        print(f"kernels: {len(again['kernels'])} reproduced byte for byte")


if __name__ == "__main__":
    main()
