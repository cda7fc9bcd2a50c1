"""What is compiled: every shipped kernel variant and every probe, as data.

`group` "shipped" goes beside the plugin; "probe" exists to show what instructions compute and is never launched in serving.
`divisible` names arguments that must be multiples of 16 (pointers: of 16 bytes): a promise to the compiler that the
launcher checks. `grid` gives work-groups per axis as formulas over arguments and constants.
"""

import gemm
import probe

BF16, F16, F32, FP8, BF8, U8, I32 = "*bf16", "*fp16", "*fp32", "*fp8e4nv", "*fp8e5", "*u8", "i32"


def variant(group, name, fn, types, constants, grid, divisible, warps=4, **options):
    """One variant; `types` in argument order, constants by name."""
    names = [n for n in fn.arg_names if n not in constants]
    assert len(names) == len(types), (name, names, types)
    return {
        "group": group,
        "name": name,
        "fn": fn,
        "arguments": list(zip(names, types)),
        "constants": constants,
        "grid": grid,
        "divisible": divisible,
        "options": {"num_warps": warps, "num_stages": 2, **options},
    }


def gemms():
    for out, out_type in (("bf16", BF16), ("f32", F32)):
        for bm, bn, bk in ((16, 64, 128), (64, 64, 64), (128, 128, 64)):
            yield variant(
                "shipped", f"gemm_bf16_{out}_{bm}x{bn}x{bk}", gemm.gemm,
                [BF16, BF16, out_type] + [I32] * 6, {"BM": bm, "BN": bn, "BK": bk},
                ["ceil(M/BM)", "ceil(N/BN)", "1"], ["x", "w", "out", "ldx", "ldw", "ldo"],
            )


def probes():
    # One output tile per program, so that one launch shows one lane map. 16 and 32 are the two shapes of result.
    for name, kind, depth in (("bf16", BF16, 64), ("f16", F16, 64), ("f32", F32, 32), ("fp8", FP8, 128), ("bf8", BF8, 128)):
        for shape in (16, 32):
            yield variant(
                "probe", f"dot_{name}_{shape}", probe.dot, [kind, kind, F32, I32],
                {"BM": 64, "BN": 64, "BK": depth}, ["1", "1", "1"], ["a", "b", "out", "K"], matrix_instr_nonkdim=shape,
            )
    kinds = {"e2m1": (U8, 2), "e4m3": (FP8, 1), "e5m2": (BF8, 1)}
    for fa, fb in (("e2m1", "e2m1"), ("e4m3", "e4m3"), ("e4m3", "e2m1"), ("e5m2", "e4m3")):
        (ta, pa), (tb, pb) = kinds[fa], kinds[fb]
        for shape in (16, 32):
            yield variant(
                "probe", f"scaled_{fa}_{fb}_{shape}", probe.dot_scaled, [ta, U8, tb, U8, F32, I32],
                {"FA": fa, "FB": fb, "PA": pa, "PB": pb, "BM": 64, "BN": 64, "BK": 256},
                ["1", "1", "1"], ["a", "sa", "b", "sb", "out", "K"], matrix_instr_nonkdim=shape,
            )
    yield variant("probe", "reduce", probe.reduce, [F32, F32, I32], {"B": 1024}, ["rows", "1", "1"], [])
    yield variant("probe", "ticket", probe.ticket, [F32, F32, "*i32", "*i32", I32], {"B": 256}, ["programs", "1", "1"], [])


def variants():
    """All variants, names unique."""
    every = [*gemms(), *probes()]
    assert len({v["name"] for v in every}) == len(every)
    return every
