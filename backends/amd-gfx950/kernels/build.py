"""Compiles every variant for gfx950, without a GPU, into a folder: one .hsaco each and manifest.json.

usage: build.py FOLDER [--jobs N] [--verify [N]] [--match PREFIX,...] [--keep FOLDER] [--times]

What is there already, or in the folder of `--keep`, and was made from the same sources by the same compiler is kept. `--verify`
compiles every Nth variant (1: all) again for another folder and fails unless all bytes are equal. A variant that spills, needs
scratch or more than 160 KiB of LDS, or whose arguments do not lie where the launcher puts them, fails the build. `--times` says
where time went.

Workers are forked when the compiler is imported, and take one variant after the other from a queue, the dear ones first: shares
dealt out beforehand left one of two cores idle at the end. One worker is this process: a test that compiles two variants
should not start Python twice.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import toolchain

HERE = Path(__file__).resolve().parent

# Of the manifest's form: what `src/kernel/manifest.rs` reads.
VERSION = 1


@functools.cache
def contents(module):
    """Name and bytes of a source file of this folder, and which modules it imports; `None` for a module from elsewhere."""
    path = HERE / f"{module}.py"
    if not path.is_file():
        return None
    data = path.read_bytes()
    return path.name, data, re.findall(r"^(?:import|from) (\w+)", data.decode(), re.MULTILINE)


@functools.cache
def sources(module):
    """Names and bytes of a source file and of those it imports from this folder, names sorted."""
    seen, todo = {}, [module, "toolchain"]
    while todo:
        found = contents(todo.pop())
        if found and found[0] not in seen:
            seen[found[0]] = found[1]
            todo += found[2]
    return b"".join(name.encode() + b"\0" + data for name, data in sorted(seen.items()))


def source_hash(v):
    """Changes with the variant, the sources of its kernel, the way it is compiled, and the compiler."""
    import triton

    what = {k: v[k] for k in ("name", "group", "arguments", "constants", "grid", "divisible", "options")}
    digest = hashlib.sha256(f"{triton.__version__} {json.dumps(what, sort_keys=True)}".encode())
    digest.update(sources(v["fn"].__module__))
    return digest.hexdigest()


@functools.cache
def by_name():
    import variants

    return {v["name"]: v for v in variants.variants()}


def build_one(name, folder):
    """Compiles one variant into a folder; its manifest entry or what is wrong with it, and seconds."""
    import triton

    v, start = by_name()[name], time.process_time()
    try:
        data, said = toolchain.compiled(v)
    except Exception as error:  # The compiler's own kinds are many; the build fails behind the last variant.
        return None, f"{name}: {error}", time.process_time() - start
    (Path(folder) / f"{name}.hsaco").write_bytes(data)
    made = {"source_sha256": source_hash(v), "compiler": f"triton {triton.__version__}"}
    entry = {"name": name, "group": v["group"], "file": f"{name}.hsaco", **said, **made}
    return {**entry, **toolchain.occupancy(entry)}, None, time.process_time() - start


# Modules whose variants take a second and more, the longest first; most take half a second.
DEAR = ("kda_chunk", "sample", "mla_decode", "kda_prepare", "mla_prefill", "routes", "kda_finish", "experts_mxfp4", "moe_edges_fp8")


def turn(v):
    """Whose turn it is: what takes long comes first, so that no worker is left with it at the end."""
    module = v["fn"].__module__
    return DEAR.index(module) if module in DEAR else len(DEAR)


def compile_all(work, jobs):
    """Pairs of a name and a folder, each with its outcome, as they come."""
    if jobs == 1 or len(work) < 2:
        yield from ((pair, build_one(*pair)) for pair in work)
        return
    # Forked before any of the compiler's objects exists.
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(work)), mp_context=fork) as pool:
        waiting = {pool.submit(build_one, *pair): pair for pair in work}
        for done in concurrent.futures.as_completed(waiting):
            try:
                yield waiting[done], done.result()
            except concurrent.futures.process.BrokenProcessPool:
                raise SystemExit(f"kernels: the compiler crashed, at {waiting[done][0]} or one beside it") from None


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


def build(folder, options):
    """Compiles what is not there yet, of the variants whose names begin with one of `match`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [n for n in by_name() if n.startswith(tuple(options.match.split(",")))]
    wanted = {n: source_hash(by_name()[n]) for n in names}
    entries = kept(folder, wanted)
    if options.keep:
        for name, entry in kept(options.keep, {n: wanted[n] for n in names if n not in entries}).items():
            shutil.copyfile(options.keep / entry["file"], folder / entry["file"])
            entries[name] = entry
    todo = [n for n in names if n not in entries]
    again, times, failed = {}, [], []
    with tempfile.TemporaryDirectory() as other:
        work = [(n, folder) for n in todo]
        work += [(n, other) for n in (names[::options.verify] if options.verify else [])]
        work.sort(key=lambda pair: turn(by_name()[pair[0]]))
        for (name, where), (entry, complaint, seconds) in compile_all(work, options.jobs):
            times.append((seconds, name))
            if complaint:
                failed += [name]
                print(f"kernels: {complaint}", file=sys.stderr)
            else:
                (entries if where == folder else again)[name] = entry
    for stale in {p.name for p in folder.glob("*.hsaco")} - {f"{n}.hsaco" for n in names}:
        (folder / stale).unlink()
    # What did compile is kept, so that the next attempt is quick.
    manifest = {"version": VERSION, "architecture": toolchain.ARCH, "kernels": [entries[n] for n in names if n in entries]}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    if options.times:
        print("".join(f"{seconds:8.3f} s {name}\n" for seconds, name in sorted(times, reverse=True)), end="")
    if failed:
        raise SystemExit(f"kernels: {len(set(failed))} of {len(names)} failed: {', '.join(sorted(set(failed)))}")
    print(f"kernels: {len(todo)} compiled, {len(names) - len(todo)} kept, {sum(s for s, _ in times):.0f} s of CPU time")
    differing = [n for n, entry in again.items() if entry != entries[n]]
    if differing:
        raise SystemExit(f"not reproducible: {', '.join(differing)}")
    if again:
        print(f"kernels: {len(again)} reproduced byte for byte")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--verify", type=int, nargs="?", const=1)
    parser.add_argument("--match", default="", help="only variants whose names begin so, by commas")
    parser.add_argument("--keep", type=Path, help="take what is still good from a build in another folder")
    parser.add_argument("--times", action="store_true", help="print how long each variant took")
    options = parser.parse_args()
    build(options.folder, options)


if __name__ == "__main__":
    main()
