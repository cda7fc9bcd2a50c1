//! Seeded bugs in the kernels' sources: each is compiled as the real ones are and must fail the conformance suite.
//!
//! The list was written before the suite was run on it; numbers are those of the public fault cases (`docs/reliability.md`).
//! A bug is one edit of one source line. Those in machine code are in `mutation.rs`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tokenspeed_backend_api::{
    conform::{self, Options},
    dtype::DType,
};

use crate::kda_mix;
use crate::support::{backend_device, configure, emulator, heal, kernels_folder, long_tests, report};

/// An edit: in `file` of `kernels/`, `from` becomes `to`; `kernels` are the variants to compile, by how their names begin.
struct Bug {
    file: &'static str,
    from: &'static str,
    to: &'static str,
    kernels: &'static str,
    op: &'static str,
    /// What the check says: part of the suite's or the emulator's words. Only a few kernels are compiled; that others are
    /// missing is no catch.
    check: &'static str,
}

/// Compiles the edited sources into a folder of their own.
fn compiled(name: &str, bug: &Bug, python: &Path) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("seeded-{}-{name}", std::process::id()));
    let (sources, out) = (folder.join("sources"), folder.join("amd-gfx950"));
    std::fs::create_dir_all(&sources).unwrap();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "py") {
            std::fs::copy(&path, sources.join(path.file_name().unwrap())).unwrap();
        }
    }
    let file = sources.join(bug.file);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(bug.from), "{name}: {} has no {:?}: the bug's line has changed", bug.file, bug.from);
    std::fs::write(&file, text.replacen(bug.from, bug.to, 1)).unwrap();
    let mut build = Command::new(python);
    build.arg("-B").arg(sources.join("build.py")).arg(&out).args(["--jobs", "1", "--match", bug.kernels]);
    // What the edit does not reach is what it was.
    build.arg("--keep").arg(kernels_folder());
    let done = build.output().unwrap();
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    folder
}

/// Makes the bug's kernels those that the backend will load; `None`, with a word about it, without a compiler.
fn planted(name: &str, bug: &Bug) -> Option<PathBuf> {
    let Some(python) = std::env::var_os("TOKENSPEED_KERNELS_PYTHON").map(PathBuf::from) else {
        eprintln!("not run: TOKENSPEED_KERNELS_PYTHON is not set; `cargo xtask test` sets it");
        return None;
    };
    let folder = compiled(name, bug, &python);
    // Launches beside a bug are no proof that a kernel is tested, also where it is one without a bug.
    // SAFETY: one test per process (`cargo nextest`), and nothing has read them yet.
    unsafe {
        std::env::set_var("TOKENSPEED_KERNELS", &folder);
        std::env::remove_var("TOKENSPEED_EMULATOR_LAUNCHED");
    }
    Some(folder)
}

fn caught(name: &str, bug: &Bug) {
    let Some(folder) = planted(name, bug) else { return };
    let options: &[(&str, &str)] = if bug.kernels.contains("fp8") { &[("precision", "fp8")] } else { &[] };
    let (_backend, device) = backend_device(options).expect("the bug's kernels were just made");
    configure(emulator(), true, 0);
    let only = Options { seed: 11, only: Some(bug.op.into()), ..Options::default() };
    let words = match conform::run(&device, 0, 0, &only) {
        Ok(done) => {
            assert!(!done.passed(), "{name}: not caught");
            done.to_string()
        }
        Err(error) => format!("{error}\n{}", report(emulator())),
    };
    heal(emulator());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(words.contains(bug.check), "{name}: {:?} is not in\n{words}", bug.check);
}

macro_rules! bugs {
    ($($(#[doc = $doc:literal])* $name:ident: $file:literal, $from:literal => $to:literal, $kernels:literal, $op:literal, $check:literal;)*) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            let bug = Bug { file: $file, from: $from, to: $to, kernels: $kernels, op: $op, check: $check };
            caught(stringify!($name), &bug);
        }
    )*};
}

bugs! {
    /// Off-by-one mask: a query does not see its own key.
    the_newest_key_is_masked: "paged.py", "p[None, :] <= position[:, None]" => "p[None, :] < position[:, None]",
        "paged_attention_f16_bf16_64", "paged_attention", "largest error";
    /// 116: softmax over nothing, where a window begins behind a tile of keys.
    a_row_without_keys_is_nan: "paged.py", "tl.where(higher == float(\"-inf\"), 0.0, higher)" => "higher",
        "paged_attention_f16_bf16_64", "paged_attention", "NaN";
    /// The last tile of keys is missed when it holds one key.
    the_last_tile_is_missed: "paged.py", "range(start, last + 1, BN)" => "range(start, last, BN)",
        "paged_attention_f16_bf16_64", "paged_attention", "largest error";
    /// A neighbour's slot of the page.
    a_row_goes_to_the_next_slot: "paged.py", "row = page.to(tl.int64) * PB + r % PB" => "row = page.to(tl.int64) * PB + (r + 1) % PB",
        "kv_write_", "kv_write", "cache";
    /// 98: rows beyond the step's are computed, as a replayed graph of a larger batch would.
    surplus_rows_are_computed: "step.py", "tl.load(step + count_word))" => "tl.load(step + count_word) + 2)",
        "binary_add", "add", "different bits";
    /// The largest number of another e4m3, the one of the generation before.
    e4m3_saturates_too_early: "elementwise.py", "tl.maximum(v, -448.0), 448.0)" => "tl.maximum(v, -240.0), 240.0)",
        "convert_", "copy", "expected";
    /// The mean of a row is taken over its padding.
    a_mean_over_the_padding: "inputs.py", "tl.sum(squares) / D + eps" => "tl.sum(squares) / B + eps",
        "rmsnorm_", "rmsnorm", "largest error";
    /// Of two changes of one entry in a step, any may win.
    an_earlier_change_wins: "tables.py", "mask=mine & (overwritten == 0)" => "mask=mine & (overwritten >= 0)",
        "table_update", "table_update", "different values at one address";
    /// An id outside the table reads wild memory.
    an_unknown_id_is_read: "tables.py", "row = tl.where(known, token, 0).to(tl.int64)" => "row = tl.where(known, token + 1, 0).to(tl.int64)",
        "embedding_", "embedding", "past the end";
    /// Angles of far positions lose their last bits.
    far_angles_lose_bits: "rope.py", "turns = turns - tl.floor(turns) + rest" => "turns = turns - tl.floor(turns)",
        "rope_", "rope", "largest error";
    /// Missing bounds check: columns beyond N are stored.
    the_last_columns_are_not_masked: "gemm.py", "tl.store(po, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))" => "tl.store(po, acc, mask=(rm[:, None] < M) & (rn[None, :] < N + 1))",
        "linear_bf16_bf16_16x,linear_few", "gemm", "outside every output";
    /// 122: half of the columns are never computed, as code for waves of 32 would leave them.
    half_of_a_wave_is_left_out: "elementwise.py", "tl.store(y + t.to(tl.int64) * ldy + c, apply(v, v, OP), mask=c < D)" => "tl.store(y + t.to(tl.int64) * ldy + c, apply(v, v, OP), mask=(c < D) & (c % 64 < 32))",
        "unary_", "silu", "expected";
    /// 98: a request that starts takes over what its state slot held.
    a_used_state_slot_is_taken_over: "kda.py", "mask=inside & (tl.load(row + 1) != 0)" => "mask=inside",
        "kda_step_32", "kda_step", "largest error";
    /// 98: tokens beyond the step's are written to the cache, as a replayed graph of a larger batch would.
    padding_tokens_are_cached: "paged.py", "if t < tl.load(step + st.N_TOKENS):" => "if t < tl.load(step + st.N_TOKENS) + 2:",
        "kv_write_", "kv_write", "past the end";
    /// 113: the kernel expects weights in another order.
    weights_in_another_order: "gemm.py", "pw = w + rn[None, :].to(tl.int64) * ldw + rk[:, None]\n        acc" => "pw = w + rn[None, :].to(tl.int64) * ldw + (rk ^ 1)[:, None]\n        acc",
        "linear_bf16_bf16_16x,linear_few", "gemm", "past the end";
    /// 113: the two values of a byte change places.
    swapped_nibbles: "experts.py", "tl.dot_scaled(high, None, \"bf16\", b, e" => "tl.dot_scaled(high, None, \"bf16\", (b >> 4) | (b << 4), e",
        "experts_up_mxfp4_bf16,experts_down_mxfp4_bf16_walk,experts_combine", "experts", "largest error";
    /// 113: a group of 32 values takes its neighbour's scale byte.
    the_neighbours_scale_byte: "experts_mxfp4.py", "os = n[None, :] * KS + gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(1, scale))[:, None]" => "os = n[None, :] * KS + (gl.arange(0, STEP // GROUP, layout=gl.SliceLayout(1, scale)) ^ 1)[:, None]",
        "experts_mxfp4_up_walk,experts_mxfp4_down_walk,experts_combine,convert_f32_bf16", "experts", "largest error";
    /// 116: softmax over nothing, for a row of another request in the same tile.
    another_requests_row_is_nan: "mla.py", "tl.where(peak == float(\"-inf\"), 0.0, peak)" => "peak",
        "mla_attention_f32_bf16_64_ragged", "mla_attention", "NaN";
    /// 117: the decay is a power of 2 instead of e.
    decay_to_base_two: "kda.py", "s = s * tl.exp2(g * LOG2_E)[None, :]" => "s = s * tl.exp2(g)[None, :]",
        "kda_step_32", "kda_step", "largest error";
    /// 117: softplus from e^z, which grows without bound, instead of e^-|z|.
    softplus_of_the_wrong_tail: "kda.py", "t = tl.exp2(-tl.abs(z) * LOG2_E)" => "t = tl.exp2(z * LOG2_E)",
        "kda_gate", "kda_gate", "largest error";
    /// 119: experts without tokens get a tile that nobody describes.
    an_unused_expert_gets_a_tile: "routes.py", "many = (counts + each - 1) // each\n    ends" => "many = tl.maximum((counts + each - 1) // each, 1)\n    ends",
        "routes_sort,experts_up_bf16_bf16_sorted_16,experts_down_bf16_bf16_sorted_16,experts_combine", "experts", "uninitialised";
    /// 120: right at some token counts, wrong at others: an expert's last tile goes on into the next expert's routes.
    a_tile_takes_the_next_experts_routes: "routes.py", "tl.minimum(counts - q * each, each)" => "counts * 0 + each",
        "routes_sort,experts_up_bf16_bf16_sorted_16,experts_down_bf16_bf16_sorted_16,experts_combine", "experts", "uninitialised";
    /// 120: what does not divide by the number of dies is left out, so that some tiles' last columns are nobody's.
    the_rest_behind_whole_rounds_of_dies_is_left_out: "experts_mxfp4.py", "gl.minimum(die, extra) + i // DIES" => "i // DIES",
        "routes_sort,experts_mxfp4_up_sorted_32,experts_mxfp4_down_sorted_32,experts_combine,convert_f32_bf16", "experts", "uninitialised";
    /// 121: ties go to the higher expert.
    ties_go_to_the_higher_expert: "router.py", "tl.min(tl.where(keys == largest, columns, 0x7FFFFFFF), 0)" => "tl.max(tl.where(keys == largest, columns, -1), 0)",
        "router_topk_1024", "router_topk", "must be exact";
    /// 121: of equal logits the last one is taken.
    ties_go_to_the_higher_token: "sample.py", "tl.min(tl.where(keys == largest, c, NOBODY), 0)" => "tl.max(tl.where(keys == largest, c, -1), 0)",
        "sample_", "sample", "must be exact";
    /// 122: half of the lanes add nothing to a sum.
    half_of_a_wave_is_not_summed: "headnorm.py", "v = tl.load(x + t.to(tl.int64) * ldx + at, mask=c < D, other=0.0)\n        tl.store" => "v = tl.load(x + t.to(tl.int64) * ldx + at, mask=(c < D) & (c % 64 < 32), other=0.0)\n        tl.store",
        "l2norm_head", "l2norm", "largest error";
    /// 122: half of the lanes' experts are never looked at.
    half_of_the_experts_are_never_chosen: "router.py", "keys = tl.where(c < E, key_of" => "keys = tl.where((c < E) & (c % 64 < 32), key_of",
        "router_topk_1024", "router_topk", "must be exact";
    /// A ring of LDS buffers whose keys are always the first one's.
    a_stale_lds_buffer: "mla_decode.py", "rope = ropes.index(slot)" => "rope = ropes.index(0)",
        "mla_decode_bf16_48,mla_deal,mla_merge", "mla_attention", "in flight";
    /// The two halves of a pair of lanes change places.
    swapped_lanes_of_a_pair: "rope.py", "first, second = 2 * i, 2 * i + 1" => "first, second = 2 * i + 1, 2 * i",
        "rope_pairs", "rope", "largest error";
    /// 113: a row of a quantised weight takes the scale of the row beside it.
    the_scale_of_the_row_beside: "gemm_fp8.py", "gl.load(scales + n, mask=n < N, other=0.0)" => "gl.load(scales + (n ^ 1), mask=n < N, other=0.0)",
        "linear_fp8_,fp8_quantise,linear_few,linear_bf16_bf16_", "gemm", "largest error";
    /// 113: the halves of a tile of a quantised weight change places.
    halves_of_a_quantised_tile_swapped: "gemm_fp8.py", "inner = k // 64 * (TILE // 2)" => "inner = (1 - k // 64) * (TILE // 2)",
        "linear_fp8_,fp8_quantise,linear_few,linear_bf16_bf16_", "gemm", "largest error";
    /// 113: both sides of a gate are made of one matrix.
    the_gate_is_multiplied_by_itself: "moe_edges_fp8.py", "ups = gemm_fp8.product(xq, xs, up," => "ups = gemm_fp8.product(xq, xs, gate,",
        "moe_input_fp8_,moe_input_bf16_bf16_,fp8_quantise,linear_bf16_bf16_", "moe_input", "largest error";
    /// Scales of the second input's rows are those of the first.
    the_first_inputs_scales: "moe_edges_fp8.py", "acc += gemm_fp8.product(hq, hs, down," => "acc += gemm_fp8.product(hq, rs, down,",
        "moe_output_fp8_,moe_output_bf16_bf16_", "moe_output", "uninitialised data stored";
    /// The mean of a row is taken over its padding, in the launch that makes factors.
    a_mean_over_the_panel: "moe_edges_fp8.py", "tree.total(squares) / L + eps" => "tree.total(squares) / B + eps",
        "moe_output_fp8_,moe_output_bf16_bf16_", "moe_output", "largest error";
    /// All steps take the first one's weights of the norm, where 17 tokens and more leave the experts.
    the_first_steps_norm: "gemm_many.py", "buffer_load(norm, k, mask=k < K)" => "buffer_load(norm, k % STEP, mask=k < K)",
        "moe_output_bf16_bf16_32x32", "moe_output", "largest error";
    /// A ring of registers takes up a step that it has multiplied already.
    a_step_is_multiplied_twice: "gemm_few.py", "start // STEP + j + RING, K, PAIR)" => "start // STEP + j, K, PAIR)",
        "linear_few,linear_bf16_bf16_", "gemm", "largest error";
}

/// A draw is from all that top-k and top-p leave, whatever min-p leaves of it. All of sampling is compiled for it, as for equal
/// logits above: with the long tests.
#[test]
fn min_p_is_left_out() {
    if !long_tests() {
        return eprintln!("not run: a long test");
    }
    let (from, to) = ("kept = tl.where(least > 0.0, kept, whole)", "kept = whole");
    let bug = Bug { file: "sample.py", from, to, kernels: "sample_", op: "sample", check: "must be exact" };
    caught("min_p_is_left_out", &bug);
}

/// 113: every slab of columns takes the weights of the first. The suite's experts are too narrow for two slabs, so the check is one
/// made for them.
#[test]
fn a_slab_takes_the_first_ones_weights() {
    let bug = Bug {
        file: "experts_mxfp4.py",
        from: "places(first + c, NB,",
        to: "places(c, NB,",
        kernels: "experts_mxfp4_up_walk,experts_mxfp4_down_walk,experts_combine",
        op: "experts",
        check: "slabs_of_columns_change_no_bit",
    };
    let Some(folder) = planted("a_slab_takes_the_first_ones_weights", &bug) else { return };
    let [one, two] = crate::experts::slabs().expect("the bug's kernels were just made");
    std::fs::remove_dir_all(&folder).unwrap();
    assert_ne!(one, two, "not caught by {}", bug.check);
}

/// Bugs of the three launches of a layer whose program can hold a chunk: the suite's Kimi heads are in smaller programs, so the check is
/// `kda_mix::three_launches_are_the_reference`.
fn caught_by_layers(name: &str, gate: kda_mix::Gate, file: &'static str, from: &'static str, to: &'static str) {
    let kernels = "kda_mix_prepare_f32,kda_mix_scan_f32,kda_mix_finish_f32";
    let bug = Bug { file, from, to, kernels, op: "kda_mix", check: "three_launches_are_the_reference" };
    let Some(folder) = planted(name, &bug) else { return };
    let [largest, mean] = kda_mix::worst(gate, DType::F32).expect("the bug's kernels were just made");
    std::fs::remove_dir_all(&folder).unwrap();
    // NaN is no small error.
    let fine = largest <= kda_mix::LARGEST && mean <= kda_mix::MEAN;
    assert!(!fine, "{name}: not caught by {}: largest error {largest}, {mean} rms", bug.check);
}

/// A chunk that begins with the request's tokens of the step does not see the window.
#[test]
fn a_chunk_forgets_the_window() {
    let (from, to) = ("    if before < 3:", "    if before < 0:");
    caught_by_layers("a_chunk_forgets_the_window", kda_mix::BOUNDED, "kda_prepare.py", from, to);
}

/// The window behind a step is a token too old.
#[test]
fn a_window_is_moved_too_little() {
    let (from, to) = ("p = length - 3 + m", "p = length - 4 + m");
    caught_by_layers("a_window_is_moved_too_little", kda_mix::BOUNDED, "kda_finish.py", from, to);
}

/// 117: the same in the kernel that prepares chunks from the layer's inputs.
#[test]
fn strong_decay_overflows_in_a_layer() {
    let (from, to) = ("WEAKEST = gl.constexpr(-115.0)", "WEAKEST = gl.constexpr(-1e30)");
    caught_by_layers("strong_decay_overflows_in_a_layer", kda_mix::STRONG, "kda_prepare.py", from, to);
}

/// 98: a request that goes on in the next slab begins anew there. The check is one made for slabs.
#[test]
fn a_slab_begins_without_a_state() {
    let bug = Bug {
        file: "kda_scan.py",
        from: "if start < begin:",
        to: "if start < 0:",
        kernels: "kda_mix_prepare_bf16,kda_mix_scan_bf16,kda_mix_finish,kda_decode_bf16",
        op: "kda_mix",
        check: "slabs_of_tokens_change_no_bit",
    };
    let Some(folder) = planted("a_slab_begins_without_a_state", &bug) else { return };
    let [together, alone] = kda_mix::slabs(DType::BF16).expect("the bug's kernels were just made");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(together != alone, "not caught by {}", bug.check);
}

/// 117: decay ratios inside a tile are formed as products whatever the gate. The suite's gates are too weak for that, so the
/// check is one made for strong gates.
#[test]
fn strong_decay_overflows() {
    let bug = Bug {
        file: "kda_chunk.py",
        from: "> -80.0:",
        to: "> -1e30:",
        kernels: "kda_prepare_bf16_128,kda_scan_bf16_128,kda_step_128",
        op: "kda_chunk",
        check: "chunks_of_strong_gates_are_their_tokens",
    };
    let Some(folder) = planted("strong_decay_overflows", &bug) else { return };
    let worst = crate::replay::strong_gates().expect("the bug's kernels were just made");
    std::fs::remove_dir_all(&folder).unwrap();
    // NaN is no small error.
    assert!(worst.is_nan() || worst > 0.04, "not caught by {}: largest error {worst} rms", bug.check);
}

/// Plants a bug that the suite's steps are too short for; the check is one made for it, and the bug's words are to be in what it says.
fn caught_by(name: &str, bug: &Bug, check: fn() -> Option<Result<(), String>>) {
    let Some(folder) = planted(name, bug) else { return };
    let found = check().expect("the bug's kernels were just made");
    heal(emulator());
    std::fs::remove_dir_all(&folder).unwrap();
    let Err(words) = found else { panic!("{name}: not caught") };
    assert!(words.contains(bug.check), "{:?} is not in {words}", bug.check);
}

/// Bugs in the expanded form of latent attention, and in parts of its splits: the words that stand last are those of the check.
macro_rules! latent_bugs {
    ($file:literal, $kernels:literal, $checked:path; $($(#[doc = $doc:literal])* $name:ident: $from:literal => $to:literal, $check:literal;)*) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            let bug = Bug { file: $file, from: $from, to: $to, kernels: $kernels, op: "mla_mix", check: $check };
            caught_by(stringify!($name), &bug, $checked);
        }
    )*};
}

latent_bugs! {
    "mla_parts.py", "mla_decode_bf16_48,mla_deal,mla_merge", crate::mla::ways_agree;
    /// Of four columns the last one loses two bits, for which its word has no room.
    a_part_loses_bits_of_every_fourth_column: "(((d >> 2) & 255)" => "(((d >> 4) & 255)",
        "wrong numbers";
    /// What is rounded to 512 steps becomes -512.
    a_part_wraps_at_its_greatest_value: "(peak + 0x4000)" => "peak",
        "wrong numbers";
    /// What walks all splits of a tile rounds less than what leaves parts of them.
    a_fold_rounds_to_other_steps: "0x7F800000, 9 << 23)" => "0x7F800000, 9 << 23) - (1 << 23)",
        "other bits";
}

latent_bugs! {
    "mla_prefill.py", "mla_survey,mla_expand_bf16,mla_prefill", crate::mla_prefill::rounds_agree;
    /// Values are loaded over those that the other group of waves is still multiplying: a ring one step too short.
    the_other_groups_values_are_overwritten: "VALUES = gl.constexpr(4)" => "VALUES = gl.constexpr(3)",
        "in flight";
    /// The stage that multiplies begins before its keys and values are there.
    nobody_waits_for_the_next_keys: "                async_copy.wait_group(0)" => "                async_copy.wait_group(1)",
        "in flight";
    /// A round begins with the greatest scores of the round before, but without its sums of weights.
    sums_of_weights_are_forgotten_between_rounds: "total = gl.load(state + pair + 1)" => "total = gl.load(state + pair)",
        "other bits in rounds";
    /// Off-by-one mask: a token does not see itself.
    a_long_requests_newest_key_is_masked: "k[None, None, None, :] <= last, parts" => "k[None, None, None, :] < last, parts",
        "NMSE";
}

latent_bugs! {
    "mla_expand_e4m3.py", "mla_survey,mla_e4m3_expand_fp8,mla_e4m3_prefill", crate::mla_prefill::e4m3_rounds_agree;
    /// The two scales of a block's row change places.
    the_scale_of_the_group_beside: "return g * 128 +" => "return (1 - g) * 128 +",
        "NMSE";
}

/// 113: gate and up change places where they are activated beside their products. The suite's programs are single ops, so the check is the
/// one for three of them; with the long tests.
#[test]
fn the_sides_of_a_gate_change_places() {
    if !long_tests() {
        return eprintln!("not run: a long test");
    }
    let (from, to) = ("a * sigmoid(a) * b", "b * sigmoid(b) * a");
    let kernels = "gate_up_few,linear_few,binary_silu_mul";
    let bug = Bug { file: "gemm_few.py", from, to, kernels, op: "silu_mul", check: "other bits" };
    caught_by("the_sides_of_a_gate_change_places", &bug, crate::gate_up::few);
}

/// The README's list names every test of a bug, and no other.
#[test]
fn every_bug_stands_in_the_readme() {
    let readme = include_str!("../../README.md");
    let list = readme.split("\n## Seeded bugs\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the list");
    let rows = list.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.split('|').nth(5).unwrap_or_else(|| panic!("no test: {row}")));
    let mut named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    named.sort_unstable();
    // In macros a bug is a line that begins with its name and goes on with what it edits; elsewhere it is a test.
    let mut bugs: Vec<&str> = Vec::new();
    for source in [include_str!("seeded.rs"), include_str!("mutation.rs")] {
        let (mut test, mut inside) = (false, false);
        for line in source.lines() {
            inside = if line.starts_with("bugs! {") || line.starts_with("latent_bugs! {") {
                true
            } else {
                inside && line != "}"
            };
            let word = |rest: &'static str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            if inside && line.contains("\" => \"") && !line.starts_with("     ") {
                bugs.extend(word(line.trim_start()));
            }
            if let Some(rest) = line.strip_prefix("fn ").filter(|_| test) {
                bugs.extend(word(rest));
            }
            test = line == "#[test]";
        }
    }
    bugs.retain(|name| *name != "every_bug_stands_in_the_readme");
    bugs.sort_unstable();
    assert!(bugs.len() > 50, "{bugs:?}");
    assert_eq!(named, bugs);
}
