"""How one variant becomes a code object: Triton's own stages up to assembly, then the assembler and the linker.

Decision: the stages are called one after the other, in memory. `triton.compile` runs the same ones and does more that nobody here
reads: prints every intermediate form into a cache, hashes itself, assembles and links what is assembled and linked again below
for the classic target name, and starts threads per context that one function gives no work. That was a good part of the time.
The functions it is made of are internal to Triton, so they may change with the pinned version; the gate below and
`--verify` would tell.
"""

import os

# Before triton is imported: no paths in the object, no choice left to a default that changes with the version.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import ctypes
import functools
import hashlib
import importlib.util
import re
import tempfile
from pathlib import Path

ARCH = "gfx950"
TRIPLE = "amdgcn-amd-amdhsa"
LDS_LIMIT = 160 * 1024
SIZES = {"i32": 4, "fp32": 4, "i64": 8}


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


@functools.cache
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


@functools.cache
def backend():
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return make_backend(GPUTarget("hip", ARCH, 64))


def assembly(v):
    """A variant's assembly, and what the compiler says of it."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    fn, kinds, amd = v["fn"], dict(v["arguments"]), backend()
    signature = {n: kinds.get(n, "constexpr") for n in fn.arg_names}
    attrs = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in v["divisible"]}
    kind = GluonASTSource if isinstance(fn, GluonJITFunction) else ASTSource
    source = kind(fn=fn, signature=signature, constexprs=v["constants"], attrs=attrs)
    options = amd.parse_options({**v["options"], **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    amd.load_dialects(context)
    module = source.make_ir(amd.target, options, amd.get_codegen_implementation(options), amd.get_module_map(), context)
    stages, said = {}, {"target": amd.target, **vars(options)}
    amd.add_stages(stages, options, source.language)
    for stage in list(stages)[list(stages).index(source.ext):list(stages).index("amdgcn") + 1]:
        module = stages[stage](module, said)
    return module, said


def compiled(v):
    """A variant's code object, and what its manifest entry says of it."""
    text, said = assembly(v)
    if said["global_scratch_size"] or said["profile_scratch_size"]:
        raise RuntimeError("needs scratch memory")
    numbers, found = metadata_of(text)
    placed = layout(v["arguments"])
    gate(numbers, found, placed, said["shared"])
    data = link(text)
    return data, {
        "symbol": said["name"],
        "sha256": hashlib.sha256(data).hexdigest(),
        "arguments": placed,
        "constants": v["constants"],
        "grid": v["grid"],
        "block": 64 * said["num_warps"],
        "divisible_by_16": v["divisible"],
        "lds_bytes": said["shared"],
        **numbers,
    }
