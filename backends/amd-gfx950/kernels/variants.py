"""What is compiled: every shipped kernel variant and every probe, as data.

`group` "shipped" goes beside the plugin; "probe" exists to show what instructions compute and is never launched in serving.
A name that ends in `_ragged` makes no promise; the launcher takes it where its sibling's are not kept. `divisible` names
arguments that must be multiples of 16 (pointers: of 16 bytes): a promise to the compiler that the launcher checks. `grid` gives work-groups per axis as formulas over arguments and constants.
"""

import functools

import attn_res
import cache
import elementwise
import experts
import experts_mxfp4
import fp8
import gemm
import gemm_few
import gemm_fp8
import gemm_many
import headnorm
import inputs
import kda
import kda_chunk
import kda_decode
import kda_finish
import kda_prepare
import kda_replay
import kda_scan
import mla
import mla_decode
import mla_expand
import mla_expand_e4m3
import mla_prefill
import mla_prefill_e4m3
import mla_split
import moe_edges
import moe_edges_fp8
import paged
import probe
import rope
import router
import routes
import sample
import short_conv
import tables

BF16, F16, F32, FP8, BF8, U8, I32 = "*bf16", "*fp16", "*fp32", "*fp8e4nv", "*fp8e5", "*u8", "i32"
STEP, TABLE, FLOAT = "*i32", "*i32", "fp32"
PLAIN = {"f32": F32, "bf16": BF16, "f16": F16, "fp8": FP8}
# The two arguments of `rows_of`, behind `step`.
COUNT = [STEP, I32, I32]
# Rows and columns of tiles of products of more than 16 rows, and steps that come ahead; `ops/gemm_many.rs` chooses. A wave for 16 columns,
# 8 at most.
MANY = ((32, 32, 4), (32, 64, 4), (64, 64, 4), (128, 256, 2))


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


def rounds(bm, tiles):
    """Work-groups for that many tiles of columns, BM rows each: low ones come in whole rounds of dies."""
    return tiles if bm >= gemm_many.TALL.value else f"8*ceil(({tiles})/8)"


def by_factors(exact):
    """How variants with factors of that kind come: f32 factors are for telling rounding from mistakes, not for speed, so they have
    one form, which makes no promise."""
    return (lambda *a, **o: [variant("shipped", *a[:-1], [], **o)]) if exact else promised


def elementwises():
    for op in ("silu", "sigmoid"):
        yield from promised(f"unary_{op}", elementwise.unary, [*COUNT, F32, F32, I32, I32, I32], {"OP": op, "B": 1024},
                            ["rows", "ceil(D/B)", "1"], ["x", "y", "D", "ldx", "ldy"])
    for op in ("add", "mul", "sigmoid_mul"):
        yield from promised(f"binary_{op}", elementwise.binary, [*COUNT, F32, F32, F32, I32, I32, I32, I32],
                            {"OP": op, "B": 1024}, ["rows", "ceil(D/B)", "1"], ["a", "b", "y", "D", "lda", "ldb", "ldy"])
    for op, options in (("silu_mul", {}), ("situ_mul", EXACTLY)):
        yield from promised(f"binary_{op}", inputs.gated, [*COUNT, F32, F32, F32, FP8, U8, I32, I32, I32, I32, FLOAT, FLOAT, I32],
                            {"OP": op, "B": 1024}, ["rows", "ceil(D/B)", "1"], ["a", "b", "y", "q", "D", "lda", "ldb", "ldy"], **options)
    for x, y in [("f32", k) for k in PLAIN] + [(k, "f32") for k in PLAIN if k != "f32"]:
        yield variant("shipped", f"convert_{x}_{y}", elementwise.convert, [*COUNT, PLAIN[x], PLAIN[y], I32, I32, I32],
                      {"B": 1024}, ["rows", "ceil(D/B)", "1"], [])
    for name, b, warps, rounds in (("head", 128, 1, False), ("row", 1024, 4, True)):
        yield from promised(f"rmsnorm_f32_{name}", inputs.rmsnorm, [*COUNT, F32, F32, F32, FP8, U8, I32, I32, I32, I32, FLOAT, I32],
                            {"ROUNDS": rounds, "B": b}, ["rows", "H", "1"], ["x", "w", "y", *["q"] * rounds, "D", "ldx", "ldy"],
                            warps=warps)
    yield from promised("add_rmsnorm_f32", inputs.add_rmsnorm,
                        [*COUNT, F32, F32, F32, F32, F32, FP8, U8, I32, I32, I32, I32, I32, FLOAT, I32], {"B": 1024}, ["rows", "1", "1"],
                        ["x", "residual", "w", "total", "y", "q", "D", "ldx", "ldr", "ldt", "ldy"])


def movers():
    yield variant("shipped", "table_update", tables.table_update, [STEP, TABLE, I32, I32, I32], {"B": 32}, ["1", "1", "1"],
                  [], warps=1)
    for k in ("f32", "bf16", "f16"):
        yield from promised(f"embedding_{k}", tables.embedding, [STEP, PLAIN[k], TABLE, F32, I32, I32, I32, I32, I32], {"B": 1024},
                            ["tokens", "ceil(D/B)", "1"], ["table", "y", "D", "ldt", "ldy"])
    yield from promised("row_gather", tables.row_gather, [STEP, F32, F32, I32, I32, I32], {"B": 1024},
                        ["logit rows", "ceil(D/B)", "1"], ["x", "y", "D", "ldx", "ldy"])
    yield from promised("slice", tables.slice, [*COUNT, F32, F32, I32, I32, I32], {"B": 1024}, ["rows", "ceil(D/B)", "1"],
                        ["x", "y", "D", "ldx", "ldy"])
    yield from promised("concat", tables.concat, [*COUNT, F32, F32, F32, I32, I32, I32, I32, I32], {"B": 1024},
                        ["rows", "ceil((A+C)/B)", "1"], ["a", "b", "y", "A", "C", "lda", "ldb", "ldy"])
    for name, pairs in (("halves", False), ("pairs", True)):
        yield variant("shipped", f"rope_{name}", rope.rope, [STEP, F32, F32, F32, I32, I32, I32, I32, I32, FLOAT],
                      {"PAIRS": pairs, "B": 64}, ["tokens", "H", "1"], [], warps=1)


def residuals():
    # One tile holds a row, 8 columns a lane.
    for b, warps in ((512, 1), (2048, 4), (8192, 16)):
        for name, n, chain in (("mix", 9, False), ("chain", 4, True), ("combine", 1, True)):
            given = [f"v{i}" for i in range(n)] + [f"ld{i}" for i in range(n)]
            kinds = [*COUNT, F32, F32, *[F32] * 9, *[I32] * 10, *[F32] * 4, *[I32] * 5, FLOAT, I32, I32]
            yield from promised(f"attn_res_{name}_{b}", attn_res.mix, kinds, {"N": n, "CHAIN": chain, "B": b},
                                ["rows", "1", "1"], ["norm", "proj", *given, "acc", "y", "D", "lda", "ldy"], warps=warps)
        weights = [f"{k}{i}" for k in "np" for i in range(16)]
        yield from promised(f"attn_res_scores_{b}", attn_res.scores, [*COUNT, *[F32] * 34, *[I32] * 4, FLOAT, I32], {"B": b},
                            ["ceil(rows/each)", "ceil(n/4)", "1"], ["x", *weights, "D", "ldx"], warps=warps)
    given = [f"{k}{i}" for k in ("v", "ld") for i in range(8)]
    yield from promised("attn_res_partial", attn_res.partial, [*COUNT, *[F32] * 16, *[I32] * 17, *[F32] * 3, *[I32] * 4],
                        {"B": 1024}, ["rows", "ceil(D/B)", "1"], [*given, "acc", "D", "lda"])


def routers():
    for b, warps in ((64, 1), (256, 1), (1024, 1), (4096, 4)):
        for grouped in (False, True):
            yield variant("shipped", f"router_topk_{b}{'_grouped' if grouped else ''}", router.topk,
                          [*COUNT, F32, F32, "*i32", F32, *[I32] * 7, FLOAT, I32], {"GROUPED": grouped, "BG": 64, "BK": 64, "B": b},
                          ["rows", "1", "1"], [], warps=warps)


def moes():
    i32 = "*i32"
    yield variant("shipped", "routes_sort", routes.sort, [*COUNT, i32, i32, i32, I32, I32, I32], {"B": 1024}, ["1", "1", "1"],
                  [], warps=4)
    yield variant("shipped", "routes_clear", routes.clear, [i32, I32], {"B": 1024}, ["ceil(E/B)", "1", "1"], [])
    yield variant("shipped", "routes_count", routes.count, [*COUNT, i32, i32, i32, I32, I32], {"B": 1024},
                  ["ceil(routes/B)", "1", "1"], [])
    yield variant("shipped", "routes_cut", routes.cut, [i32, i32, i32, I32, I32], {"B": 1024}, ["1", "1", "1"], [], warps=16)
    yield variant("shipped", "routes_place", routes.place, [*COUNT, i32, i32, i32, i32, I32, I32], {"B": 1024},
                  ["ceil(routes/B)", "1", "1"], [])
    for form, o, warps in (("f32", F32, 4), ("bf16", BF16, 2)):
        yield from promised(f"experts_combine_{form}", experts.combine, [*COUNT, o, F32, F32, *[I32] * 5], {"B": 1024},
                            ["rows", "ceil(width/B)", "1"], ["o", "y", "width", "first", "ldy"], warps=warps)
    # One order of K for all tiles: BK and the instruction are the same.
    plain = (("walk_16", False, 16), ("sorted_16", True, 16))
    for form, w, exact, bk, tiles in (
        ("f32_f32", F32, True, 32, plain), ("f32_bf16", F32, False, 64, plain), ("f16_f32", F16, True, 32, plain),
        ("f16_bf16", F16, False, 64, plain), ("bf16_f32", BF16, True, 32, plain),
        ("bf16_bf16", BF16, False, 64, (*plain, ("sorted_64", True, 64))), ("mxfp4_f32", U8, True, 128, plain),
        ("mxfp4_bf16", U8, False, 128, (*plain, ("sorted_64", True, 64)))):
        hidden = F32 if exact else BF16
        # MXFP4 has whole groups of 32 in any case; its siblings are for stacks that lie at odd addresses. Taller tiles
        # have none. Products of f32 are for telling rounding from mistakes: one variant each.
        extents = ["N", "K"] if w == U8 else []
        for name, by_expert, bm in tiles:
            up_types = [*COUNT, F32, i32, i32, w, w, U8, U8, i32, i32, hidden, *[I32] * 10, FLOAT, FLOAT]
            down_types = [*COUNT, hidden, i32, i32, w, U8, i32, i32, hidden, *[I32] * 8]
            for suffix in ("",) if exact or bm > 16 else ("", "_ragged"):
                firm = not exact and not suffix
                constants = {"SORTED": by_expert, "SPARE": firm, "MX": w == U8, "EXACT": exact, "BM": bm, "BN": 64 if firm else 32, "BK": bk}
                options = {"warps": 4, "matrix_instr_nonkdim": 16, "num_stages": 2 if firm else 1}
                up_kept = ["x", "w1", "w3", "h", "N", "K", "ldx", "pitch1", "pitch3"] if firm else extents
                down_kept = ["h", "w2", "o", "N", "K", "first", "width", "pitch"] if firm else extents
                yield variant("shipped", f"experts_up_{form}_{name}{suffix}", experts.up, up_types, constants,
                              ["tiles", "ceil(N/BN)", "1"], up_kept, **options)
                yield variant("shipped", f"experts_down_{form}_{name}{suffix}", experts.down, down_types, constants,
                              ["tiles", "ceil(width/BN)", "1"], down_kept, **options)
    for name, by_expert, bm in (*plain, ("sorted_32", True, 32), ("sorted_64", True, 64), ("sorted_128", True, 128)):
        for form, fp8_rows, rows in (("mxfp4", False, BF16), ("fp8", True, FP8)):
            constants = {"SORTED": by_expert, "FP8": fp8_rows, "BM": bm}
            warps = 1 if bm == 16 else 4
            # A group of 32 activations in e4m3 is the work of two waves.
            pair = 2 if fp8_rows and bm == 16 else warps
            yield variant("shipped", f"experts_{form}_up_{name}", experts_mxfp4.up,
                          [*COUNT, rows, U8, i32, i32, U8, U8, U8, U8, i32, i32, rows, U8, *[I32] * 10, FLOAT, FLOAT],
                          {**constants, "BN": 16 * pair, "RING": 4 if bm == 16 else 2}, ["N/BN", "tiles", "1"],
                          ["x", "xs", "w1", "w3", "h", "N", "K", "KB", "pitch1", "pitch3"], warps=pair)
            yield variant("shipped", f"experts_{form}_down_{name}", experts_mxfp4.down,
                          [*COUNT, rows, U8, i32, i32, U8, U8, i32, i32, BF16, *[I32] * 9],
                          {**constants, "BN": 32 * warps, "RING": 3}, ["width/BN", "tiles", "1"],
                          ["h", "hs", "w2", "o", "N", "NB", "K", "first", "width", "pitch"], warps=warps)
    yield variant("shipped", "fp8_quantise", fp8.quantise, [*COUNT, F32, FP8, U8, I32, I32], {"B": 1024},
                  ["rows", "ceil(D/B)", "1"], ["x", "y", "D", "ldx"])


def caches():
    for k in PLAIN:
        yield variant("shipped", f"kv_write_{k}", paged.kv_write, [STEP, F32, PLAIN[k], TABLE, I32, I32, I32, I32], {"B": 1024},
                      ["tokens", "ceil(W/B)", "1"], [])
        for exact, rows in ((False, (16, 64)), (True, (16,))):
            for bm in rows:
                for bd in (64, 128):
                    yield from by_factors(exact)(
                        f"paged_attention_{k}_{'f32' if exact else 'bf16'}_{bm}x{bd}", paged.paged_attention,
                        [STEP, F32, PLAIN[k], PLAIN[k], TABLE, F32] + [I32] * 9 + [FLOAT, I32],
                        {"EXACT": exact, "BM": bm, "BN": 32, "BD": bd, "R": 4 * bd}, ["query tiles", "HKV", "1"],
                        ["q", "k", "v", "y", "D", "DV", "ldq", "ldy"], warps=4 if bd == 64 else 8, matrix_instr_nonkdim=16,
                        num_stages=1)


def linears():
    # One order of K for all tiles: BK and the instruction are the same. Narrow tiles are for weights with too few rows to fill a device
    # with wide ones.
    for w, exact, tiles in (("bf16", False, ((16, 16, 64), (16, 64, 64), (64, 64, 64))),
                            ("bf16", True, ((16, 64, 32), (64, 64, 32))), ("f32", True, ((16, 64, 32), (64, 64, 32)))):
        for bm, bn, bk in tiles:
            yield from by_factors(exact)(
                f"linear_{w}_{'f32' if exact else 'bf16'}_{bm}x{bn}", gemm.linear, [*COUNT, F32, PLAIN[w], F32, F32] + [I32] * 6,
                {"EXACT": exact, "BM": bm, "BN": bn, "BK": bk}, ["ceil(rows/BM)", "ceil(N/BN)", "1"],
                ["x", "w", "y", "K", "ldx", "ldw", "ldy"], warps=1 if bm == bn == 16 else 4,
                matrix_instr_nonkdim=16)
    # A wave per 16 columns; the same bits as above.
    single, parts = [*COUNT, F32, BF16, *[F32] * 4] + [I32] * 10, [*COUNT, F32, *[BF16] * 6, *[F32] * 6] + [I32] * 20
    outs = [f"y{i}" for i in range(6)]
    weights = [f"{k}{i}" for k in ("w", "lw") for i in range(6)]
    grid = ["ceil(rows/16)", "sum(ceil(ni/16))", "1"]
    yield variant("shipped", "linear_few", gemm_few.linear, single, {"RING": 4}, ["ceil(rows/16)", "ceil(N/16)", "1"],
                  ["x", "w", "K", "ldx", "ldw"], warps=1)
    yield variant("shipped", "linear_few_several", gemm_few.several, parts, {"RING": 4}, grid, ["x", *weights, *outs, "K", "ldx"], warps=1)
    for bm, bn, ring in MANY:
        constants, warps = {"BM": bm, "BN": bn, "RING": ring}, min(bn // 16, 8)
        yield variant("shipped", f"linear_many_{bm}x{bn}", gemm_many.linear, single, constants,
                      ["ceil(rows/BM)", rounds(bm, "ceil(N/BN)"), "1"], ["x", "w", "K", "ldx", "ldw"], warps=warps)
        yield variant("shipped", f"linear_many_several_{bm}x{bn}", gemm_many.several, parts, constants,
                      ["ceil(rows/BM)", rounds(bm, "sum(ceil(ni/BN))"), "1"], ["x", *weights, *outs, "K", "ldx"], warps=warps)
    # Without contraction, as `binary_situ_mul`. Of programs of up to 64 tokens, two tiles do.
    pair = [*COUNT, F32, BF16, BF16, F32, F32, F32] + [I32] * 8 + [FLOAT, FLOAT] + [I32] * 3
    promises = ["x", "gate", "up", "gates", "ups", "h", "K", "ldx", "ldg", "ldu", "lda", "ldb", "ldh"]
    yield variant("shipped", "gate_up_few", gemm_few.gate_up, pair, {"RING": 4}, ["ceil(rows/16)", "ceil(2*N/16)", "1"], promises,
                  warps=1, **EXACTLY)
    for bm, bn, ring in MANY[:2]:
        yield variant("shipped", f"gate_up_{bm}x{bn}", gemm_many.gate_up, pair, {"BM": bm, "BN": bn, "RING": ring},
                      ["ceil(rows/BM)", rounds(bm, "ceil(2*N/BN)"), "1"], promises, warps=bn // 16, **EXACTLY)
    for form, x, done in (("", F32, False), ("_rounded", FP8, True)):
        constants = {"ROUNDED": done, "RING": 4 if done else 3}
        yield variant("shipped", f"linear_fp8_few{form}", gemm_fp8.few, [*COUNT, x, U8, FP8, *[F32] * 4] + [I32] * 10, constants,
                      ["ceil(rows/16)", "ceil(N/16)", "1"], ["x", "w", "K", "KP", "ldx"], warps=1)
        yield variant("shipped", f"linear_fp8_several{form}", gemm_fp8.several, [*COUNT, x, U8, *[FP8] * 6, *[F32] * 6] + [I32] * 15,
                      constants, grid, ["x", *[f"w{i}" for i in range(6)], *outs, "K", "KP", "ldx"], warps=1)
    yield variant("shipped", "linear_fp8_several_64x32", gemm_fp8.several_many,
                  [*COUNT, FP8, U8, *[FP8] * 6, *[F32] * 6] + [I32] * 14, {"BM": 64, "BN": 32, "RING": 2},
                  ["ceil(rows/BM)", "sum(ceil(ni/BN))", "1"], ["x", *[f"w{i}" for i in range(6)], *outs, "K", "KP"], warps=2)
    for bm, bn, warps in ((64, 32, 2), (128, 128, 4)):
        yield variant("shipped", f"linear_fp8_{bm}x{bn}", gemm_fp8.many, [*COUNT, FP8, U8, FP8, F32, F32] + [I32] * 5,
                      {"BM": bm, "BN": bn, "RING": 2}, ["ceil(rows/BM)", "ceil(N/BN)", "1"], ["x", "w", "K", "KP"], warps=warps)


def moe_edge_products():
    # `situ` without contraction, so that it has the bits of `situ_mul` whatever its operands come from. Tiles, formats and the order of K are
    # those of `linears`. No ragged siblings: their masks spill scalar registers.
    for w, exact, tiles in (("bf16", False, ((16, 16, 64), (16, 64, 64), *MANY)),
                            ("bf16", True, ((16, 64, 32), (64, 64, 32))), ("f32", True, ((16, 64, 32), (64, 64, 32)))):
        for bm, bn, bk in tiles:
            form = f"{w}_{'f32' if exact else 'bf16'}_{bm}x{bn}"
            if (bm, bn, bk) in MANY:
                edges, constants, options = gemm_many, {"BM": bm, "BN": bn, "RING": bk}, {"warps": min(bn // 16, 8)}
                whole = functools.partial(rounds, bm)
            else:
                edges, constants = moe_edges, {"EXACT": exact, "BM": bm, "BN": bn, "BK": bk}
                options = {"warps": 1 if bm == bn == 16 else 4, "matrix_instr_nonkdim": 16}
                whole = lambda columns: columns
            yield variant("shipped", f"moe_input_{form}", edges.into,
                          [*COUNT, F32, *[PLAIN[w]] * 4, F32, F32, F32, BF16] + [I32] * 12 + [FLOAT, FLOAT, I32], constants,
                          ["ceil(rows/BM)", whole("ceil(E/BN) + ceil(L/BN) + ceil(2*S/BN)"), "1"],
                          ["x", "router", "down", "gate", "up", "logits", "z", "h", "q", "L", "S", "K", "ldx", "ldr", "ldd", "ldg", "ldu",
                           "ldz", "ldh"], **options, **EXACTLY)
            yield variant("shipped", f"moe_output_{form}", edges.out,
                          [*COUNT, F32, F32, PLAIN[w], F32, PLAIN[w], F32, F32] + [I32] * 10 + [FLOAT], constants,
                          ["ceil(rows/BM)", whole("ceil(N/BN)"), "1"],
                          ["r", "norm", "up", "h", "down", "residual", "y", "N", "L", "S", "ldr", "ldu", "ldh", "ldd", "lde", "ldy"],
                          **options)


def moe_edges_of_e4m3():
    # Tiles and the order of K are those of e4m3 products in `linears`. No ragged siblings.
    edges, weights = moe_edges_fp8, [FP8] * 3
    inputs = [*COUNT, F32, FP8, U8, BF16, *weights, *[F32] * 3] + [I32] * 10 + [FLOAT] * 2
    rows = ["x", "xq", "router", "down", "gate", "up", "logits", "z", "h", "K", "KP", "ldx", "ldr"]
    yield variant("shipped", "moe_input_fp8_few", edges.into, inputs,
                  {"RING": 4}, ["ceil(rows/16)", "ceil(S/16) + ceil(E/16) + ceil(L/16)", "1"],
                  rows, warps=1, **EXACTLY)
    yield variant("shipped", "moe_output_fp8_ready", edges.ready, [*COUNT, F32, F32, F32, FP8, U8, FP8, U8] + [I32] * 4 + [FLOAT],
                  {"B": 4096}, ["rows", "1 + ceil(S/B)", "1"], ["r", "norm", "h", "rq", "hq", "L", "S", "ldr", "ldh"], warps=8)
    products = [*COUNT, FP8, U8, FP8, U8, FP8, FP8, F32, F32] + [I32] * 8
    promises = ["rq", "hq", "up", "down", "residual", "y", "L", "S", "LP", "SP", "lde", "ldy"]
    yield variant("shipped", "moe_output_fp8_few", edges.out, products, {"RING": 4}, ["ceil(rows/16)", "ceil(N/16)", "1"], promises, warps=1)
    for bm, bn, warps in ((64, 32, 2), (128, 128, 4)):
        constants, router = {"BM": bm, "BN": bn, "RING": 2}, bm == 64
        yield variant("shipped", f"moe_input_fp8_{bm}x{bn}", edges.into_many, inputs, {**constants, "ROUTER": router},
                      ["ceil(rows/BM)", f"ceil(S/BN){' + BM/16*ceil(E/BN)' if router else ''} + ceil(L/BN)", "1"], rows, warps=warps, **EXACTLY)
        yield variant("shipped", f"moe_output_fp8_{bm}x{bn}", edges.out_many, products, constants, ["ceil(rows/BM)", "ceil(N/BN)", "1"],
                      promises, warps=warps)


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
                          ["*i32", F32, PLAIN[k], TABLE, F32, "*i32", F32] + [I32] * 8 + [FLOAT],
                          {"ROWS": rows, "RA": ra, "RB": rb, "KEYS": keys, "STAGES": 3, "FOLD": fold}, ["groups", "1", "1"],
                          ["q", "cache", "y", "partial", "sums", "ldq", "ldc", "ldy"])
    for name, flags in (("", []), ("_rest", ["*i32"])):
        yield variant("shipped", f"mla_deal{name}", mla_split.deal, [STEP, *flags, "*i32", I32, I32],
                      {"B": 64, **({} if flags else {"flags": None})}, ["rows", "1", "1"], [], warps=1)
    yield variant("shipped", "mla_merge", mla_split.merge, [STEP, "*i32", F32, F32] + [I32] * 4, {"R": 512, "B": 128, "AHEAD": 8},
                  ["tokens", "H", "R/B"], ["partial", "sums", "y", "ldy"], warps=2)
    yield variant("shipped", "mla_settle", mla_split.settle, [STEP, "*i32", *[F32] * 2, BF16, *[F32] * 2] + [I32] * 7,
                  {"R": 512, "BN": 32, "AHEAD": 16}, ["tokens", "H", "V/BN"], ["partial", "sums", "mixed", "w", "gate", "y", "V", "ldw"],
                  warps=4, num_stages=1, matrix_instr_nonkdim=16)
    full = ["x", "w", "gate", "y", "N", "K", "xh", "yh", "ldw", "ldx", "ldy"]
    for name, flags in (("", []), ("_rest", ["*i32"])):
        for kind, absorb in (("gated_value", False), ("absorb", True)):
            if absorb and not flags:
                continue
            constants = {"ABSORB": absorb, "GATED": not absorb, "EXACT": False, "FULL": True, "BM": 64, "BN": 64, "BK": 64}
            yield variant("shipped", f"mla_{kind}{name}", mla.project, [*COUNT, F32, BF16, F32, *flags, F32] + [I32] * 10,
                          {**constants, **({} if flags else {"flags": None})}, ["ceil(rows/BM)", "H", "N/BN+ABSORB"], full,
                          matrix_instr_nonkdim=16)
    # Kimi K3's widths: contexts of requests with many tokens are expanded to keys and values per head.
    yield variant("shipped", "mla_survey", mla_expand.survey, [STEP, *["*i32"] * 3, I32, I32], {"B": 64}, ["rows", "1", "1"], [], warps=1)
    for form, into, expand, rows, attend in (("", BF16, mla_expand.expand, 16, mla_prefill.attend),
                                             ("e4m3_", U8, mla_expand_e4m3.expand, 32, mla_prefill_e4m3.attend)):
        for k in ("bf16", "fp8"):
            yield variant("shipped", f"mla_{form}expand_{k}", expand, ["*i32", PLAIN[k], TABLE, BF16, into, into] + [I32] * 7,
                          {"N": 128, "R": 512, "P": 64, "BK": 64, "B": 64}, ["ceil(positions/128)", "H", "2"],
                          ["cache", "w", "blocks", "ropes", "start", "size", "ldc", "ldw"], warps=8, matrix_instr_nonkdim=rows)
        yield variant("shipped", f"mla_{form}prefill", attend, ["*i32", "*i32", F32, into, into, F32, F32, F32] + [I32] * 7 + [FLOAT],
                      {}, ["16", "ceil(jobs/16)", "1"], ["q", "blocks", "ropes", "state", "gate", "y", "start", "size", "ldq", "ldy"],
                      warps=8, llvm_fn_attrs=(("amdgpu-agpr-alloc", "0,0"), ))
    for name, absorb in (("absorb", True), ("value", False)):
        for w, exact, bk in (("bf16", False, 64), ("bf16", True, 32), ("f32", True, 32)):
            # f32 factors have one form, as in `by_factors`.
            for bm, full in ((16, False), (64, False)) if exact else ((16, True), (16, False), (64, True), (64, False)):
                ragged = "" if full or exact else "_ragged"
                yield variant("shipped", f"mla_{name}_{w}_{'f32' if exact else 'bf16'}_{bm}{ragged}", mla.project,
                              [*COUNT, F32, PLAIN[w], F32, F32] + [I32] * 10,
                              {"flags": None, "ABSORB": absorb, "GATED": False, "EXACT": exact, "FULL": full, "BM": bm, "BN": 64, "BK": bk},
                              ["ceil(rows/BM)", "H", "ceil(N/BN)+ABSORB"],
                              ["x", "w", "y", "N", "K", "xh", "yh", "ldw", "ldx", "ldy"] if full else [],
                              matrix_instr_nonkdim=16)


# Ops whose bits agree with those of a fused form or a replay: nothing is contracted behind the source's back.
EXACTLY = {"enable_fp_fusion": False}


def linear_attention():
    for size, b in (("head", 128), ("wide", 256)):
        yield from promised(f"l2norm_{size}", headnorm.l2norm, [*COUNT, F32, F32, I32, I32, I32, I32, FLOAT, FLOAT], {"B": b},
                            ["rows", "H", "1"], ["x", "y", "D", "ldx", "ldy"], warps=1, **EXACTLY)
        yield from promised(f"gated_rmsnorm_{size}", headnorm.gated_rmsnorm,
                            [*COUNT, F32, F32, F32, F32, I32, I32, I32, I32, I32, FLOAT], {"B": b}, ["rows", "H", "1"],
                            ["x", "gate", "w", "y", "D", "ldx", "ldg", "ldy"], warps=1, **EXACTLY)
    yield from promised("kda_gate", kda.gate, [*COUNT, F32, F32, F32, F32, I32, I32, I32, I32, I32, FLOAT], {"B": 512},
                        ["rows", "ceil(C/B)", "1"], ["f", "dt_bias", "g", "C", "K", "ldf", "ldg"], **EXACTLY)
    for w in ("f32", "bf16", "f16"):
        for frozen in (False, True):
            yield from promised(
                f"short_conv_{w}" + ("_frozen" if frozen else ""), short_conv.short_conv,
                [STEP, F32, F32, F32, F32, F32, F32, PLAIN[w], F32, F32, F32] + [I32] * 9, {"FROZEN": frozen, "B": 256},
                ["tokens", "ceil(C/B)", "3"],
                ["q", "k", "v", "wq", "wk", "wv", "window", "yq", "yk", "yv", "C", "ldq", "ldk", "ldv", "ldw", "ldyq", "ldyk", "ldyv"],
                warps=1, **EXACTLY)
        # Windows of f16 take the plain kernel: no model needs them.
        if w != "f16":
            yield from promised(
                f"short_conv_long_{w}", short_conv.short_conv_long,
                [STEP, F32, F32, F32, F32, F32, F32, PLAIN[w], F32, F32, F32] + [I32] * 8, {"EACH": 16, "B": 256},
                ["ceil(tokens/EACH)", "ceil(C/B)", "3"],
                ["q", "k", "v", "wq", "wk", "wv", "window", "yq", "yk", "yv", "C", "ldq", "ldk", "ldv", "ldw", "ldyq", "ldyk", "ldyv"],
                warps=1, **EXACTLY)
        yield variant("shipped", f"kda_record_{w}", kda_replay.record,
                      [STEP, F32, F32, F32, F32, F32, PLAIN[w]] + [I32] * 9, {"B": 1024}, ["tokens", "1", "1"], [])
    for keep, form in ((True, "step"), (False, "verify")):
        yield variant("shipped", f"kda_{form}_32", kda.recurrence, [STEP] + [F32] * 7 + [I32] * 9,
                      {"KEEP": keep, "BK": 32, "BV": 32}, ["requests", "H", "ceil(V/BV)"], [], warps=1, **EXACTLY)
        yield from promised(f"kda_{form}_128", kda.recurrence, [STEP] + [F32] * 7 + [I32] * 9,
                            {"KEEP": keep, "BK": 128, "BV": 32}, ["requests", "H", "ceil(V/BV)"],
                            ["q", "k", "v", "g", "state", "o", "K", "V", "ldq", "ldk", "ldv", "ldg", "lds", "ldo"], **EXACTLY)
    for b in (32, 128):
        for m, exact in (("bf16", False), ("f32", True)):
            make = by_factors(exact) if b == 128 else lambda *a, **o: [variant("shipped", *a, **o)]
            yield from make(f"kda_prepare_{m}_{b}", kda_chunk.prepare,
                            [STEP] + [F32] * 5 + [PLAIN[m]] * 5 + [F32] + [I32] * 8, {"EXACT": exact, "BK": b, "BV": b},
                            ["ceil(tokens/64)", "H", "1"],
                            ["q", "k", "v", "g", "ws_w", "ws_q", "ws_k", "ws_u", "ws_a", "ws_decay", "K", "V", "ldq", "ldk", "ldv", "ldg"]
                            if b == 128 else [], num_stages=1, matrix_instr_nonkdim=16, **EXACTLY)
            yield variant("shipped", f"kda_scan_{m}_{b}", kda_chunk.scan, [STEP] + [F32] * 5 + [PLAIN[m]] * 5 + [F32] * 3 + [I32] * 10,
                          {"EXACT": exact, "BK": b, "BV": b, "PV": 16}, ["requests", "H", "ceil(V/PV)"],
                          ["ws_w", "ws_q", "ws_k", "ws_u", "ws_a", "ws_decay"], num_stages=1, matrix_instr_nonkdim=16, **EXACTLY)
    for w in ("f32", "bf16"):
        for keep, form in ((True, "decode"), (False, "candidates")):
            yield variant("shipped", f"kda_{form}_{w}", kda_decode.decode,
                          [STEP] + [F32] * 12 + [PLAIN[w], F32, BF16, F32] + [I32] * 13 + [FLOAT] * 4, {"KEEP": keep},
                          ["requests", "H", "1"],
                          ["q", "k", "v", "f", "gate", "wq", "wk", "wv", "dt_bias", "norm", "window", "state", "wf", "y", "ldq", "ldk",
                           "ldv", "ldf", "ldg", "ldw", "lds", "ldwf", "ldy"], num_stages=1, **EXACTLY)
    # A layer whose program can hold a chunk, in three launches per slab; heads of Kimi's size, bf16 factors.
    for w in ("f32", "bf16"):
        scratch = ["ws_w", "ws_q", "ws_k", "ws_u", "ws_a", "ws_decay"]
        vectors = ["q", "k", "v", "f", "wq", "wk", "wv", "dt_bias", "window", *scratch, "ldq", "ldk", "ldv", "ldf", "ldw"]
        yield variant("shipped", f"kda_mix_prepare_{w}", kda_prepare.prepare_mix,
                      [STEP] + [F32] * 10 + [PLAIN[w]] + [BF16] * 5 + [F32] + [I32] * 9 + [FLOAT] * 3, {}, ["pairs", "1", "1"],
                      vectors, num_stages=1)
        yield variant("shipped", f"kda_mix_scan_{w}", kda_scan.mix,
                      [STEP] + [F32] * 10 + [PLAIN[w]] + [BF16] * 3 + [F32] * 3 + [I32] * 11 + [F32, I32] + [FLOAT] * 3, {},
                      ["requests", "H", "8"],
                      [v for v in vectors if v not in ("ws_q", "ws_a")] + ["state", "y", "carry", "lds", "ldy"],
                      warps=1, num_stages=1, **EXACTLY)
        # Programs that fill the device with whole blocks take those.
        for size, each in (("", 8), ("_long", 64)):
            yield variant("shipped", f"kda_mix_finish{size}_{w}", kda_finish.finish,
                          [STEP] + [F32] * 5 + [PLAIN[w]] + [BF16] * 3 + [F32] + [I32] * 8 + [FLOAT], {"EACH": each},
                          ["pairs", "64/EACH", "1"],
                          ["q", "k", "v", "gate", "norm", "window", "ws_q", "ws_u", "ws_a", "y", "ldq", "ldk", "ldv", "ldg", "ldw", "ldy"],
                          num_stages=1, **EXACTLY)
    # A record's format, a window's; the factors of the gate projection as `linears` have them.
    for r, w in (("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")):
        for m, exact, bf in (("bf16", False, 64), ("bf16", True, 32), ("f32", True, 32)):
            types = [STEP, PLAIN[r], F32, F32, PLAIN[m], F32, F32, PLAIN[w], F32] + [I32] * 9 + [FLOAT, FLOAT]
            constants = {"EXACT": exact, "BM": 16, "BF": bf, "BV": 32}
            name = f"kda_replay_{r}_{w}_{m}_{'f32' if exact else 'bf16'}"
            # Heads of any size up to 32; and those of Kimi, with nothing to mask: masks of longer ones spill scalar registers.
            yield variant("shipped", f"{name}_32", kda_replay.replay, types, {**constants, "B": 32},
                          ["requests", "H", "ceil(D/BV)"], [], matrix_instr_nonkdim=16, num_stages=1, **EXACTLY)
            yield variant("shipped", f"{name}_full", kda_replay.replay, types[:10] + types[12:],
                          {**constants, "B": 128, "D": 128, "F": 128}, ["requests", "H", "ceil(D/BV)"],
                          ["wk", "wv", "wf", "dt_bias", "state", "ldf", "lds"], matrix_instr_nonkdim=16, num_stages=1, **EXACTLY)
        yield variant("shipped", f"kda_replay_window_{r}_{w}", kda_replay.replay_window,
                      [STEP, PLAIN[r], PLAIN[w]] + [I32] * 5, {"B": 256}, ["requests", "ceil(3*C/B)", "1"], [], warps=1)


def samples():
    i32 = "*i32"
    for suffix, tables in (("", False), ("_tables", True)):
        yield variant("shipped", f"sample_scan{suffix}", sample.scan, [STEP, F32, i32, F32, i32, i32, *[I32] * 10],
                      {"TABLES": tables, "B": 1024}, ["logit rows", "CHUNKS", "1"], [], **EXACTLY)
        yield variant("shipped", f"sample_weigh{suffix}", sample.weigh, [STEP, F32, i32, F32, i32, i32, i32, "*fp64", *[I32] * 10],
                      {"TABLES": tables, "CH": 256, "B": 1024}, ["logit rows", "CHUNKS", "1"], [], **EXACTLY)
        yield variant("shipped", f"sample_pick{suffix}", sample.pick,
                      [STEP, F32, i32, F32, i32, i32, i32, "*fp64", i32, *[I32] * 10],
                      {"TABLES": tables, "CH": 256, "B": 1024}, ["logit rows", "1", "1"], [], warps=8, **EXACTLY)
        yield variant("shipped", f"sample_choose{suffix}", sample.choose,
                      [STEP, F32, i32, i32, F32, i32, i32, F32, i32, *[I32] * 12],
                      {"TABLES": tables, "CH": 256, "B": 1024}, ["logit rows", "1", "1"], [], warps=8, **EXACTLY)


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
    # Steps of 16 values take the older instruction of half the depth, as products of few keys do.
    yield variant(
        "probe", "dot_bf16_16_shallow", probe.dot, [BF16, BF16, F32, I32],
        {"BM": 64, "BN": 64, "BK": 16}, ["1", "1", "1"], ["a", "b", "out", "K"], matrix_instr_nonkdim=16,
    )
    kinds = {"e2m1": (U8, 2), "e4m3": (FP8, 1), "e5m2": (BF8, 1), "bf16": (BF16, 1)}
    # bf16 rows and e2m1 weights are those of experts.
    for fa, fb in (("e2m1", "e2m1"), ("e4m3", "e4m3"), ("e4m3", "e2m1"), ("e5m2", "e4m3"), ("bf16", "e2m1")):
        (ta, pa), (tb, pb) = kinds[fa], kinds[fb]
        for shape in (16, 32):
            yield variant(
                "probe", f"scaled_{fa}_{fb}_{shape}", probe.dot_scaled, [ta, U8, tb, U8, F32, I32],
                {"FA": fa, "FB": fb, "PA": pa, "PB": pb, "BM": 64, "BN": 64, "BK": 256},
                ["1", "1", "1"], ["a", "sa", "b", "sb", "out", "K"], matrix_instr_nonkdim=shape,
            )
    # One depth a step: bytes of scales then differ by tile alone, so that both factors take each of two, in all four pairs.
    for fa, fb, shape, bm, bk, warps in (("e4m3", "e4m3", 16, 64, 128, 4), ("e4m3", "e2m1", 16, 64, 128, 4),
                                         ("e4m3", "e4m3", 32, 128, 64, 2)):
        (ta, pa), (tb, pb) = kinds[fa], kinds[fb]
        yield variant("probe", f"scaled_{fa}_{fb}_{shape}_bytes", probe.dot_scaled, [ta, U8, tb, U8, F32, I32],
                      {"FA": fa, "FB": fb, "PA": pa, "PB": pb, "BM": bm, "BN": 64, "BK": bk}, ["1", "1", "1"],
                      ["a", "sa", "b", "sb", "out", "K"], warps=warps, matrix_instr_nonkdim=shape)
    yield variant("probe", "reduce", probe.reduce, [F32, F32, I32], {"B": 1024}, ["rows", "1", "1"], [])
    yield variant("probe", "ticket", probe.ticket, [F32, F32, "*i32", "*i32", I32], {"B": 256}, ["programs", "1", "1"], [])


# One line each: what this file lists.
LISTS = [
    elementwises,
    movers,
    residuals,
    routers,
    moes,
    caches,
    pages,
    mlas,
    linears,
    moe_edge_products,
    moe_edges_of_e4m3,
    linear_attention,
    samples,
    probes,
]


def variants():
    """All variants, names unique."""
    every = [v for list_of in LISTS for v in list_of()]
    assert len({v["name"] for v in every}) == len(every)
    return every
