"""What is compiled: every shipped kernel variant and every probe, as data.

`group` "shipped" goes beside the plugin; "probe" exists to show what instructions compute and is never launched in serving.
A name that ends in `_ragged` makes no promise; the launcher takes it where its sibling's are not kept. `divisible` names
arguments that must be multiples of 16 (pointers: of 16 bytes): a promise to the compiler that the launcher checks. `grid` gives work-groups per axis as formulas over arguments and constants.
"""

import cache
import elementwise
import gemm
import mla
import mla_decode
import mla_split
import paged
import probe
import rope
import tables

BF16, F16, F32, FP8, BF8, U8, I32 = "*bf16", "*fp16", "*fp32", "*fp8e4nv", "*fp8e5", "*u8", "i32"
STEP, TABLE, FLOAT = "*i32", "*i32", "fp32"
PLAIN = {"f32": F32, "bf16": BF16, "f16": F16, "fp8": FP8}
# The two arguments of `rows_of`, behind `step`.
COUNT = [STEP, I32, I32]


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


def promised(name, fn, types, constants, grid, divisible, **options):
    """A variant whose rows are whole vectors, and its sibling for all others."""
    yield variant("shipped", name, fn, types, constants, grid, divisible, **options)
    yield variant("shipped", f"{name}_ragged", fn, types, constants, grid, [], **options)


def elementwises():
    for op in ("silu", "sigmoid"):
        yield from promised(f"unary_{op}", elementwise.unary, [*COUNT, F32, F32, I32, I32, I32], {"OP": op, "B": 1024},
                            ["rows", "ceil(D/B)", "1"], ["x", "y", "D", "ldx", "ldy"])
    for op in ("add", "mul", "silu_mul", "sigmoid_mul"):
        yield from promised(f"binary_{op}", elementwise.binary, [*COUNT, F32, F32, F32, I32, I32, I32, I32],
                            {"OP": op, "B": 1024}, ["rows", "ceil(D/B)", "1"], ["a", "b", "y", "D", "lda", "ldb", "ldy"])
    for x, y in [("f32", k) for k in PLAIN] + [(k, "f32") for k in PLAIN if k != "f32"]:
        yield variant("shipped", f"convert_{x}_{y}", elementwise.convert, [*COUNT, PLAIN[x], PLAIN[y], I32, I32, I32],
                      {"B": 1024}, ["rows", "ceil(D/B)", "1"], [])
    for w in ("f32", "bf16"):
        for name, b, warps in (("head", 128, 1), ("row", 1024, 4)):
            yield from promised(f"rmsnorm_{w}_{name}", elementwise.rmsnorm,
                                [*COUNT, F32, PLAIN[w], F32, I32, I32, I32, I32, FLOAT], {"B": b}, ["rows", "H", "1"],
                                ["x", "w", "y", "D", "ldx", "ldy"], warps=warps)
        yield from promised(f"add_rmsnorm_{w}", elementwise.add_rmsnorm,
                            [*COUNT, F32, F32, PLAIN[w], F32, F32, I32, I32, I32, I32, I32, FLOAT], {"B": 1024},
                            ["rows", "1", "1"], ["x", "residual", "w", "total", "y", "D", "ldx", "ldr", "ldt", "ldy"])


def movers():
    yield variant("shipped", "table_update", tables.table_update, [STEP, TABLE, I32, I32, I32], {"B": 32}, ["1", "1", "1"],
                  [], warps=1)
    for k in ("f32", "bf16", "f16"):
        yield from promised(f"embedding_{k}", tables.embedding, [STEP, PLAIN[k], F32, I32, I32, I32, I32], {"B": 1024},
                            ["tokens", "ceil(D/B)", "1"], ["table", "y", "D", "ldt", "ldy"])
    yield from promised("row_gather", tables.row_gather, [STEP, F32, F32, I32, I32, I32], {"B": 1024},
                        ["logit rows", "ceil(D/B)", "1"], ["x", "y", "D", "ldx", "ldy"])
    for name, pairs in (("halves", False), ("pairs", True)):
        yield variant("shipped", f"rope_{name}", rope.rope, [STEP, F32, F32, F32, I32, I32, I32, I32, I32, FLOAT],
                      {"PAIRS": pairs, "B": 64}, ["tokens", "H", "1"], [], warps=1)


def caches():
    for k in PLAIN:
        yield variant("shipped", f"kv_write_{k}", paged.kv_write, [STEP, F32, PLAIN[k], TABLE, I32, I32, I32, I32], {"B": 1024},
                      ["tokens", "ceil(W/B)", "1"], [])
        for exact, rows in ((False, (16, 64)), (True, (16,))):
            for bm in rows:
                for bd in (64, 128):
                    yield from promised(
                        f"paged_attention_{k}_{'f32' if exact else 'bf16'}_{bm}x{bd}", paged.paged_attention,
                        [STEP, F32, PLAIN[k], PLAIN[k], TABLE, F32] + [I32] * 9 + [FLOAT, I32],
                        {"EXACT": exact, "BM": bm, "BN": 32, "BD": bd, "R": 4 * bd}, ["query tiles", "HKV", "1"],
                        ["q", "k", "v", "y", "D", "DV", "ldq", "ldy"], warps=4 if bd == 64 else 8, matrix_instr_nonkdim=16,
                        num_stages=1)


def linears():
    # One order of K for all tiles: BK and the instruction are the same.
    for bias in (False, True):
        for w, exact, tiles in (("bf16", False, ((16, 64, 64), (64, 64, 64), (128, 128, 64))),
                                ("bf16", True, ((16, 64, 32), (64, 64, 32))), ("f32", True, ((16, 64, 32), (64, 64, 32)))):
            for bm, bn, bk in tiles:
                name = f"linear_{w}_{'f32' if exact else 'bf16'}_{bm}x{bn}" + ("_bias" if bias else "")
                yield from promised(
                    name, gemm.linear, [*COUNT, F32, PLAIN[w], F32, F32] + [I32] * 5,
                    {"EXACT": exact, "BIAS": bias, "BM": bm, "BN": bn, "BK": bk}, ["ceil(rows/BM)", "ceil(N/BN)", "1"],
                    ["x", "w", "y", "K", "ldx", "ldw", "ldy"], warps=8 if bm == 128 else 4,
                    matrix_instr_nonkdim=16)


def pages():
    for k, kind in PLAIN.items():
        yield variant("shipped", f"kv_read_{k}", cache.kv_read, [STEP, kind, TABLE, F32] + [I32] * 6, {"B": 1024},
                      ["tokens", "ceil(D/B)", "1"], [])
    for k, kind in (("8", "*i8"), ("16", "*i16"), ("32", "*i32")):
        yield variant("shipped", f"kv_move_{k}", cache.kv_move, [STEP, kind, TABLE] + [I32] * 4, {"B": 1024},
                      ["rows", "ceil(D/B)", "1"], [])


def mlas():
    for k, kind in PLAIN.items():
        yield from promised(f"mla_write_{k}", mla.write, [STEP, F32, F32, kind, TABLE] + [I32] * 6 + [FLOAT], {"B": 1024},
                            ["tokens", "1", "1"], ["x", "w", "cache", "R", "W", "ldx", "ldc"])
        # With f32 factors, the masks of wide ragged tiles do not fit into scalar registers.
        for exact, tiles in ((False, ((False, 64), (False, 512), (True, 512))), (True, ((False, 64), (True, 512)))):
            for full, rb in tiles:
                name = f"mla_attention_{k}_{'f32' if exact else 'bf16'}_{rb}{'' if full else '_ragged'}"
                yield variant("shipped", name, mla.attention, [STEP, F32, kind, TABLE, F32] + [I32] * 8 + [FLOAT],
                              {"EXACT": exact, "FULL": full, "RB": rb, "BM": 16, "BN": 64 if exact else 32, "BK": 32 if exact else 64},
                              ["ceil(tokens*H/BM)", "1", "1"],
                              ["q", "cache", "y", "R", "W", "ldq", "ldc", "ldy"] if full else [],
                              matrix_instr_nonkdim=16)
    for k, keys in (("bf16", 32), ("fp8", 64)):
        for rows, ra, rb, fold in ((16, 16, 0, False), (64, 32, 16, False), (64, 32, 16, True), (128, 64, 32, False)):
            yield variant("shipped", f"mla_decode_{k}_{ra + rb}{'_fold' if fold else ''}", mla_decode.decode,
                          ["*i32", F32, PLAIN[k], TABLE, F32, BF16, F32] + [I32] * 8 + [FLOAT],
                          {"ROWS": rows, "RA": ra, "RB": rb, "KEYS": keys, "STAGES": 3, "FOLD": fold}, ["groups", "1", "1"],
                          ["q", "cache", "y", "partial", "sums", "ldq", "ldc", "ldy"])
    yield variant("shipped", "mla_deal", mla_split.deal, [STEP, "*i32", I32, I32], {"B": 64}, ["rows", "1", "1"], [], warps=1)
    yield variant("shipped", "mla_merge", mla_split.merge, [STEP, BF16, F32, F32] + [I32] * 4, {"R": 512, "AHEAD": 8},
                  ["tokens", "H", "1"], ["partial", "sums", "y", "ldy"], warps=1)
    for name, absorb in (("absorb", True), ("value", False)):
        for w, exact, bk in (("bf16", False, 64), ("bf16", True, 32), ("f32", True, 32)):
            for bm, full in ((16, True), (16, False), (64, True), (64, False)):
                yield variant("shipped", f"mla_{name}_{w}_{'f32' if exact else 'bf16'}_{bm}{'' if full else '_ragged'}", mla.project,
                              [*COUNT, F32, PLAIN[w], F32] + [I32] * 10,
                              {"ABSORB": absorb, "EXACT": exact, "FULL": full, "BM": bm, "BN": 64, "BK": bk},
                              ["ceil(rows/BM)", "H", "ceil(N/BN)+ABSORB"],
                              ["x", "w", "y", "N", "K", "xh", "yh", "ldw", "ldx", "ldy"] if full else [],
                              matrix_instr_nonkdim=16)


def probes():
    for out, out_type in (("bf16", BF16), ("f32", F32)):
        for bm, bn, bk in ((16, 64, 128), (64, 64, 64), (128, 128, 64)):
            yield variant(
                "probe", f"gemm_bf16_{out}_{bm}x{bn}x{bk}", gemm.gemm,
                [BF16, BF16, out_type] + [I32] * 6, {"BM": bm, "BN": bn, "BK": bk},
                ["ceil(M/BM)", "ceil(N/BN)", "1"], ["x", "w", "out", "ldx", "ldw", "ldo"],
            )
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


# One line each: what this file lists.
LISTS = [
    elementwises,
    movers,
    caches,
    pages,
    mlas,
    linears,
    probes,
]


def variants():
    """All variants, names unique."""
    every = [v for list_of in LISTS for v in list_of()]
    assert len({v["name"] for v in every}) == len(every)
    return every
