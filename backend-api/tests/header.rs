//! The checked-in C header says the same as `abi.rs`: the C and the C++ compiler agree with Rust on the size of every
//! struct, the offset of every field and the value of every constant. (That the header is up to date is
//! `cargo xtask header --check`.)

use std::{fmt::Write, fs, path::PathBuf, process::Command};
use tokenspeed_backend_api::abi::*;

/// `CHECK` lines for every struct, and the field names for the completeness check.
struct Layouts {
    asserts: String,
    listed: Vec<(&'static str, Vec<&'static str>)>,
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {{
        let (mut asserts, mut listed) = (String::new(), Vec::new());
        $(
            let size = size_of::<$name>();
            writeln!(asserts, "CHECK(sizeof({0}) == {size}, \"size of {0}\");", stringify!($name)).unwrap();
            $(
                let (s, f, at) = (stringify!($name), stringify!($field), std::mem::offset_of!($name, $field));
                writeln!(asserts, "CHECK(offsetof({s}, {f}) == {at}, \"{s}.{f}\");").unwrap();
            )*
            listed.push((stringify!($name), vec![$(stringify!($field)),*]));
        )*
        Layouts { asserts, listed }
    }};
}

fn layouts() -> Layouts {
    layouts! {
        ts_error { struct_size, code, vendor_code, device, rank, peer, reserved, text }
        ts_str { data, len }
        ts_host { struct_size, abi_min, abi_max, reserved, context, log, kv_set, kv_get, barrier }
        ts_backend_info { struct_size, tiers, profiles, score, name, version, description }
        ts_device_info {
            struct_size, alignment, memory_bytes, page_tokens, host_mapped, exclusive, branch_rows, name, bucketed, reserved,
        }
        ts_option { key, value }
        ts_binding { arena, offset, bytes }
        ts_tensor { dtype, rank, dims, stride0, vary, binding, offset, layout, reserved }
        ts_op {
            struct_size, kind, version, n_operands, operands, attrs_i, attrs_f, workspace_offset, workspace_bytes, label,
        }
        ts_pack { operand, layout, bytes }
        ts_support {
            struct_size, answer, capture_safe, determinism, workspace_bytes, cost_ns, pack_operand, pack_layout,
            pack_bytes, implementation, reason, rounding, n_more_packs, more_packs,
        }
        ts_bucket { struct_size, max_tokens, max_rows, max_logit_rows }
        ts_program_desc { struct_size, n_ops, ops, n_bindings, reserved, bindings, bucket }
        ts_run { struct_size, n_bindings, bindings, step, step_bytes, event, signal_value }
        ts_segment { first_op, n_ops, kind, reserved }
        ts_counter { name, value }
        ts_load { struct_size, n_tokens, n_rows, n_logit_rows, attention_pairs }
        ts_step {
            struct_size, n_tokens, n_rows, n_logit_rows, n_deltas, n_samples, sequence, rows_offset, tokens_offset,
            logit_rows_offset, deltas_offset, samples_offset, bytes,
        }
        ts_step_row {
            table_row, computed, query_start, query_len, state_read, state_write, state_tokens, branch_offset,
        }
        ts_step_token { id, position, row, reserved }
        ts_table_delta { component, table_row, index, block }
        ts_sample {
            temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, top_k, n_logprobs,
            seed, position, sample_index, counts_handle, bias_handle, mask_handle, relay_slot,
        }
        ts_group_desc { struct_size, rank, world, reserved, name, timeout_ms }
        ts_backend_table {
            struct_size, abi_version, backend_info, device_count, device_info, device_open, device_close,
            device_status, arena_alloc, arena_import, arena_free, arena_map, arena_write, arena_read, queue_create,
            queue_destroy, queue_copy, queue_signal, queue_wait, event_create, event_destroy, event_query, event_wait,
            op_support, op_launch, op_pack, cache_export, cache_import, program_prepare, program_run,
            program_describe, program_cost, program_drop, group_create, group_destroy, group_heap_create, extension,
            device_counters,
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn source() -> String {
    fs::read_to_string(root().join("src/abi.rs")).unwrap()
}

/// Structs and their fields as `abi.rs` has them, handles left out.
fn structs(source: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for text in source.split("\npub struct ").skip(1) {
        let (name, rest) = text.split_once(" {").unwrap();
        let body = rest.split("\n}").next().unwrap();
        if body.contains("_private") {
            continue;
        }
        // Fields are indented by four; parameters of function pointers by more.
        let fields = body
            .lines()
            .filter_map(|l| l.strip_prefix("    pub "))
            .map(|l| l.split(':').next().unwrap().to_owned())
            .collect();
        all.push((name.to_owned(), fields));
    }
    all
}

/// Integer constants with their values as Rust source text, digit separators removed.
fn constants(source: &str) -> Vec<(String, String)> {
    source
        .lines()
        .filter_map(|l| l.strip_prefix("pub const "))
        .filter_map(|l| {
            let (name, rest) = l.split_once(':')?;
            let (ty, value) = rest.trim_end_matches(';').split_once(" = ")?;
            (!ty.contains("str")).then(|| (name.to_owned(), value.replace('_', "")))
        })
        .collect()
}

#[test]
fn every_field_is_compared() {
    let listed: Vec<(String, Vec<String>)> = layouts()
        .listed
        .into_iter()
        .map(|(name, fields)| (name.to_owned(), fields.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(listed, structs(&source()), "list every struct and field of abi.rs above, in order");
}

#[test]
fn c_and_cpp_agree_with_rust() {
    let constants = constants(&source());
    assert!(constants.len() > 60, "found only {} constants", constants.len());
    let mut text = String::from(
        "#include \"tokenspeed_backend.h\"\n\
         #ifdef __cplusplus\n#define CHECK static_assert\n#else\n#define CHECK _Static_assert\n#endif\n",
    );
    text += &layouts().asserts;
    for (name, value) in &constants {
        writeln!(text, "CHECK({name} == ({value}), \"{name}\");").unwrap();
    }
    writeln!(text, "CHECK(sizeof(TS_ENTRY_SYMBOL) == {}, \"symbol\");", TS_ENTRY_SYMBOL.len() + 1).unwrap();
    // The prototype and the type that the host calls are one.
    text += "ts_backend_entry_fn ts_entry_has_this_type = ts_backend_entry;\n";
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (compiler, standard, file) in [("cc", "-std=c11", "layout.c"), ("c++", "-std=c++17", "layout.cpp")] {
        let file = folder.join(file);
        fs::write(&file, &text).unwrap();
        let out = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
            .arg(root().join("include"))
            .arg(&file)
            .output()
            .unwrap_or_else(|e| panic!("{compiler}: {e}"));
        assert!(out.status.success(), "{compiler}: {}", String::from_utf8_lossy(&out.stderr));
    }
}
