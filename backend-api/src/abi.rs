//! The C table: every type that crosses the plugin boundary, and nothing else.
//!
//! This is the only file the header generator reads; `include/tokenspeed_backend.h` is its checked-in output, and a
//! C vendor needs that header alone. Names are the C names, so both languages read the same.
//!
//! Rules (the first three are checked by `loader.rs`):
//! * each struct passed by pointer starts with `struct_size`; the callee reads min(its, caller's) bytes and takes a
//!   missing tail as zero, which always means the documented default. Structs only ever grow at the end;
//! * enums are `u32`; an unknown value is `TS_ERR_UNSUPPORTED`, never undefined behaviour;
//! * negotiation is two-way: the host offers `[abi_min, abi_max]`, the plugin answers the newest both know;
//! * strings and arrays are (pointer, length), borrowed for the duration of the call;
//! * nothing unwinds across the boundary; errors are a status plus an optional caller-owned [`ts_error`];
//! * a device is externally synchronised: one thread per device at a time. Different devices run in parallel. Entries
//!   marked *thread-safe* may be called at any time from any thread;
//! * after `ready` (the first `program_run` or `op_launch`) the host allocates nothing more.
#![allow(non_camel_case_types, missing_debug_implementations)]

use core::ffi::{c_char, c_void};

/// `major << 16 | minor`. A plugin built for major N works with every host of major N.
pub const TS_ABI_VERSION: u32 = 0x0001_0000;
/// Name of the one exported symbol of a plugin, of type [`ts_backend_entry_fn`].
pub const TS_ENTRY_SYMBOL: &str = "ts_backend_entry";

/// Result of every fallible entry: `TS_OK` or one of `TS_ERR_*`.
pub type ts_status = i32;
pub const TS_OK: ts_status = 0;
/// The request is well-formed but this backend cannot do it.
pub const TS_ERR_UNSUPPORTED: ts_status = 1;
/// An argument is malformed or out of range.
pub const TS_ERR_INVALID: ts_status = 2;
pub const TS_ERR_OUT_OF_MEMORY: ts_status = 3;
/// Sticky: every later call on the device returns it too.
pub const TS_ERR_DEVICE_LOST: ts_status = 4;
/// A collective gave up on a peer, named in `ts_error::peer`.
pub const TS_ERR_PEER_TIMEOUT: ts_status = 5;
pub const TS_ERR_TIMEOUT: ts_status = 6;
/// No common ABI version, wrong driver, wrong architecture.
pub const TS_ERR_INCOMPATIBLE: ts_status = 7;
/// A defect of the backend, a caught panic or exception included.
pub const TS_ERR_INTERNAL: ts_status = 8;

pub const TS_ERROR_TEXT_BYTES: usize = 256;

/// Caller-owned error record; may be null wherever it is a parameter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_error {
    pub struct_size: u32,
    pub code: ts_status,
    /// The vendor runtime's own code, 0 if none.
    pub vendor_code: i64,
    /// Device index, -1 if unknown.
    pub device: i32,
    /// Rank in the group, -1 if none.
    pub rank: i32,
    /// Peer rank that was waited for, -1 if none.
    pub peer: i32,
    pub reserved: u32,
    /// UTF-8, zero-terminated.
    pub text: [c_char; TS_ERROR_TEXT_BYTES],
}

/// Borrowed UTF-8, not zero-terminated.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_str {
    pub data: *const c_char,
    pub len: usize,
}

pub const TS_LOG_ERROR: u32 = 0;
pub const TS_LOG_WARN: u32 = 1;
pub const TS_LOG_INFO: u32 = 2;
pub const TS_LOG_DEBUG: u32 = 3;

/// Services the host lends to a plugin for the life of the process. Thread-safe.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_host {
    pub struct_size: u32,
    /// Oldest and newest ABI version the host speaks.
    pub abi_min: u32,
    pub abi_max: u32,
    pub reserved: u32,
    pub context: *mut c_void,
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: u32, message: ts_str)>,
    /// Group bootstrap: publish `value` under `key`.
    pub kv_set: Option<
        unsafe extern "C" fn(context: *mut c_void, key: ts_str, value: *const u8, value_bytes: usize) -> ts_status,
    >,
    /// Group bootstrap: wait for `key`, copy at most `capacity` bytes, report the true size in `value_bytes`.
    pub kv_get: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            key: ts_str,
            buffer: *mut u8,
            capacity: usize,
            value_bytes: *mut usize,
            timeout_ms: u64,
        ) -> ts_status,
    >,
    /// Group bootstrap: return once `members` callers named the same barrier.
    pub barrier:
        Option<unsafe extern "C" fn(context: *mut c_void, name: ts_str, members: u32, timeout_ms: u64) -> ts_status>,
}

/// Opaque objects, owned by the plugin.
#[repr(C)]
pub struct ts_device {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ts_arena {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ts_queue {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ts_event {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ts_program {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ts_group {
    _private: [u8; 0],
}

/// Bits of `ts_backend_info::tiers`. T0 (lifecycle, memory, queues, op_support/op_launch) is implied.
pub const TS_TIER_PROGRAMS: u32 = 1 << 1;
pub const TS_TIER_COLLECTIVES: u32 = 1 << 2;
pub const TS_TIER_FUSED: u32 = 1 << 3;
pub const TS_TIER_TRANSFER: u32 = 1 << 4;

/// Bits of `ts_backend_info::profiles`: op sets the backend claims to cover completely.
pub const TS_PROFILE_LLAMA: u32 = 1 << 0;
pub const TS_PROFILE_MOE: u32 = 1 << 1;
pub const TS_PROFILE_KIMI: u32 = 1 << 2;
pub const TS_PROFILE_COLLECTIVE: u32 = 1 << 3;
pub const TS_PROFILE_SAMPLING: u32 = 1 << 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_backend_info {
    pub struct_size: u32,
    pub tiers: u32,
    pub profiles: u32,
    /// Higher wins when the user names no backend.
    pub score: u32,
    pub name: ts_str,
    pub version: ts_str,
    pub description: ts_str,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_device_info {
    pub struct_size: u32,
    /// Alignment in bytes every operand offset must have.
    pub alignment: u32,
    pub memory_bytes: u64,
    /// Preferred tokens per KV page, 0 = no preference.
    pub page_tokens: u32,
    /// 1: `arena_map` works and host and device share memory.
    pub host_mapped: u32,
    /// 1: at most one device of this backend may be opened per process.
    pub exclusive: u32,
    /// 1: ops over paged caches honour `ts_step_row::branch_offset`.
    pub branch_rows: u32,
    pub name: ts_str,
    /// 1: programs are faster prepared for few tokens (other kernels, captured launches), so the host prepares each for
    /// several buckets and runs the smallest that holds a step.
    pub bucketed: u32,
    pub reserved: u32,
}

/// A `--backend-option KEY=VALUE`. An unknown key or bad value is `TS_ERR_INVALID` naming it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_option {
    pub key: ts_str,
    pub value: ts_str,
}

pub const TS_ARENA_WEIGHTS: u32 = 0;
pub const TS_ARENA_CACHE: u32 = 1;
pub const TS_ARENA_ACTIVATIONS: u32 = 2;
pub const TS_ARENA_STEP: u32 = 3;
pub const TS_ARENA_TABLES: u32 = 4;
pub const TS_ARENA_OUTPUT: u32 = 5;
pub const TS_ARENA_STAGING: u32 = 6;

/// A range of an arena bound to a program's binding slot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_binding {
    pub arena: *mut ts_arena,
    pub offset: u64,
    pub bytes: u64,
}

/// Fixed binding slots; weights use `TS_BIND_WEIGHTS` and up, one per weight arena.
pub const TS_BIND_STEP: u32 = 0;
pub const TS_BIND_TABLES: u32 = 1;
pub const TS_BIND_CACHE: u32 = 2;
pub const TS_BIND_ACTIVATIONS: u32 = 3;
pub const TS_BIND_OUTPUT: u32 = 4;
pub const TS_BIND_WEIGHTS: u32 = 5;

/// Element formats. Block formats describe the GGUF layout of the same name.
pub const TS_DTYPE_F32: u32 = 1;
pub const TS_DTYPE_F16: u32 = 2;
pub const TS_DTYPE_BF16: u32 = 3;
pub const TS_DTYPE_F8_E4M3: u32 = 4;
pub const TS_DTYPE_I32: u32 = 5;
pub const TS_DTYPE_U32: u32 = 6;
pub const TS_DTYPE_U8: u32 = 7;
pub const TS_DTYPE_Q8_0: u32 = 16;
pub const TS_DTYPE_Q4_0: u32 = 17;
pub const TS_DTYPE_Q4_1: u32 = 18;
pub const TS_DTYPE_Q5_0: u32 = 19;
pub const TS_DTYPE_Q5_1: u32 = 20;
pub const TS_DTYPE_Q4_K: u32 = 21;
pub const TS_DTYPE_Q5_K: u32 = 22;
pub const TS_DTYPE_Q6_K: u32 = 23;
pub const TS_DTYPE_MXFP4: u32 = 24;
pub const TS_DTYPE_MXFP8: u32 = 25;

pub const TS_MAX_RANK: usize = 4;

/// `dims[0]` is a capacity; the actual count comes from the parameter block.
pub const TS_VARY_FIXED: u32 = 0;
pub const TS_VARY_TOKENS: u32 = 1;
pub const TS_VARY_ROWS: u32 = 2;
pub const TS_VARY_LOGIT_ROWS: u32 = 3;

/// One operand: a dense row-major tensor at `offset` of a binding. Fixed size for ABI major 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_tensor {
    pub dtype: u32,
    pub rank: u32,
    /// Outermost first; unused entries are 1.
    pub dims: [u64; TS_MAX_RANK],
    /// Bytes between consecutive entries of `dims[0]`; 0 = dense.
    pub stride0: u64,
    /// `TS_VARY_*`.
    pub vary: u32,
    pub binding: u32,
    pub offset: u64,
    /// 0 = canonical; otherwise a layout the backend itself named in [`ts_support`].
    pub layout: u32,
    pub reserved: u32,
}

pub const TS_MAX_ATTRS_I: usize = 12;
pub const TS_MAX_ATTRS_F: usize = 8;

/// One op record. Operand order and attribute meaning are those of the catalogue (see `docs/ops.md`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_op {
    pub struct_size: u32,
    /// `TS_OP_*`.
    pub kind: u32,
    /// Schema version of the op, from 1.
    pub version: u32,
    pub n_operands: u32,
    pub operands: *const ts_tensor,
    pub attrs_i: [i64; TS_MAX_ATTRS_I],
    pub attrs_f: [f64; TS_MAX_ATTRS_F],
    /// Scratch in the activations binding, of at least the size `op_support` asked for.
    pub workspace_offset: u64,
    pub workspace_bytes: u64,
    /// For messages and traces, e.g. `layers.3.q_proj`.
    pub label: ts_str,
}

pub const TS_OP_TABLE_UPDATE: u32 = 1;
pub const TS_OP_COPY: u32 = 2;
pub const TS_OP_GEMM: u32 = 3;
pub const TS_OP_RMSNORM: u32 = 4;
pub const TS_OP_ROPE: u32 = 5;
pub const TS_OP_SILU: u32 = 6;
pub const TS_OP_ADD: u32 = 7;
pub const TS_OP_MUL: u32 = 8;
pub const TS_OP_EMBEDDING: u32 = 9;
pub const TS_OP_KV_WRITE: u32 = 10;
pub const TS_OP_PAGED_ATTENTION: u32 = 11;
pub const TS_OP_ROW_GATHER: u32 = 12;
pub const TS_OP_KV_READ: u32 = 13;
pub const TS_OP_KV_MOVE: u32 = 14;
/// Optional: without it the host samples, and ids are not relayed on the device.
pub const TS_OP_SAMPLE: u32 = 15;
pub const TS_OP_SLICE: u32 = 16;
pub const TS_OP_CONCAT: u32 = 17;
pub const TS_OP_SIGMOID: u32 = 18;
pub const TS_OP_L2NORM: u32 = 19;
pub const TS_OP_SHORT_CONV: u32 = 20;
pub const TS_OP_KDA_GATE: u32 = 21;
pub const TS_OP_KDA_STEP: u32 = 22;
pub const TS_OP_KDA_VERIFY: u32 = 23;
pub const TS_OP_KDA_RECORD: u32 = 24;
pub const TS_OP_KDA_REPLAY: u32 = 25;
pub const TS_OP_MLA_ABSORB: u32 = 26;
pub const TS_OP_MLA_ATTENTION: u32 = 27;
pub const TS_OP_MLA_VALUE: u32 = 28;
pub const TS_OP_ATTN_RES_MIX: u32 = 29;
pub const TS_OP_SITU_MUL: u32 = 30;
pub const TS_OP_ROUTER_TOPK: u32 = 31;
pub const TS_OP_EXPERTS: u32 = 32;
pub const TS_OP_ATTN_RES_SCORES: u32 = 33;
pub const TS_OP_ATTN_RES_PARTIAL: u32 = 34;
pub const TS_OP_ATTN_RES_COMBINE: u32 = 35;
/// Fused ops start here; each has a public decomposition into the basic ops above.
pub const TS_OP_SILU_MUL: u32 = 256;
pub const TS_OP_ADD_RMSNORM: u32 = 257;
pub const TS_OP_SIGMOID_MUL: u32 = 272;
pub const TS_OP_GATED_RMSNORM: u32 = 273;
pub const TS_OP_MLA_WRITE: u32 = 274;
pub const TS_OP_KDA_CHUNK: u32 = 275;
pub const TS_OP_KDA_MIX: u32 = 276;
pub const TS_OP_MOE_INPUT: u32 = 277;
pub const TS_OP_MOE_OUTPUT: u32 = 278;
pub const TS_OP_MLA_MIX: u32 = 279;

pub const TS_SUPPORT_NO: u32 = 0;
pub const TS_SUPPORT_YES: u32 = 1;
/// Works, but the host may prefer the decomposition.
pub const TS_SUPPORT_YES_SLOW: u32 = 2;

/// Same inputs, same bits, whatever shares the batch.
pub const TS_DETERMINISM_BATCH_INVARIANT: u32 = 0;
/// Same inputs and same batch, same bits.
pub const TS_DETERMINISM_RUN_TO_RUN: u32 = 1;
pub const TS_DETERMINISM_NONE: u32 = 2;
/// Sums and factors of products are f32 or better.
pub const TS_ROUNDING_F32: u32 = 0;
/// Factors of matrix products are rounded to bf16, sums are f32.
pub const TS_ROUNDING_BF16: u32 = 1;
/// Factors of matrix products are rounded to e4m3, the greatest of a group scaled to its range, sums are f32.
pub const TS_ROUNDING_FP8: u32 = 2;

pub const TS_NO_OPERAND: u32 = 0xffff_ffff;
pub const TS_IMPL_NAME_BYTES: usize = 64;
pub const TS_REASON_BYTES: usize = 192;
pub const TS_MORE_PACKS: usize = 7;

/// An operand that the backend wants pre-packed at load.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_pack {
    pub operand: u32,
    /// As `ts_support::pack_layout`.
    pub layout: u32,
    pub bytes: u64,
}

/// Answer of `op_support` for one concrete op. Offsets and bindings of the operands are not yet set when it is asked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_support {
    pub struct_size: u32,
    pub answer: u32,
    pub capture_safe: u32,
    pub determinism: u32,
    pub workspace_bytes: u64,
    /// Estimated nanoseconds at the descriptor's full shape, 0 = unknown.
    pub cost_ns: u64,
    /// Operand the backend wants pre-packed at load, or `TS_NO_OPERAND`.
    pub pack_operand: u32,
    /// Non-zero layout id of the packed form; the host puts it in `ts_tensor::layout`.
    pub pack_layout: u32,
    pub pack_bytes: u64,
    /// Kernel name, zero-terminated.
    pub implementation: [c_char; TS_IMPL_NAME_BYTES],
    /// Why the answer is NO, zero-terminated.
    pub reason: [c_char; TS_REASON_BYTES],
    /// `TS_ROUNDING_*`: what the op may round, which decides how near its result has to be.
    pub rounding: u32,
    /// Entries of `more_packs`. A host whose struct ends before them packs the first operand alone, so such an answer is no
    /// answer for it.
    pub n_more_packs: u32,
    /// Operands to be packed beside `pack_operand`, each another one.
    pub more_packs: [ts_pack; TS_MORE_PACKS],
}

/// Capacities a program is prepared for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_bucket {
    pub struct_size: u32,
    pub max_tokens: u32,
    pub max_rows: u32,
    pub max_logit_rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_program_desc {
    pub struct_size: u32,
    pub n_ops: u32,
    pub ops: *const ts_op,
    pub n_bindings: u32,
    pub reserved: u32,
    pub bindings: *const ts_binding,
    pub bucket: ts_bucket,
}

/// One run of a program. `step` is host memory, valid until `signal_value` is reached; the backend copies it once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_run {
    pub struct_size: u32,
    pub n_bindings: u32,
    /// Null = the bindings of `program_prepare`.
    pub bindings: *const ts_binding,
    /// The parameter block; starts with [`ts_step`].
    pub step: *const u8,
    pub step_bytes: u64,
    pub event: *mut ts_event,
    pub signal_value: u64,
}

pub const TS_SEGMENT_EAGER: u32 = 0;
pub const TS_SEGMENT_CAPTURED: u32 = 1;
pub const TS_SEGMENT_PERSISTENT: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_segment {
    pub first_op: u32,
    pub n_ops: u32,
    pub kind: u32,
    pub reserved: u32,
}

/// One counter of a device: what it counts is in the name, e.g. `expert_hits`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_counter {
    pub name: ts_str,
    pub value: u64,
}

/// What a step would cost: input of `program_cost`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_load {
    pub struct_size: u32,
    pub n_tokens: u32,
    pub n_rows: u32,
    pub n_logit_rows: u32,
    /// Sum over rows of query length times context length.
    pub attention_pairs: u64,
}

/// Header of the parameter block, written once per step by the host and read by every op. Array offsets count bytes
/// from the start of the header, each aligned to 16.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ts_step {
    pub struct_size: u32,
    pub n_tokens: u32,
    pub n_rows: u32,
    pub n_logit_rows: u32,
    pub n_deltas: u32,
    pub n_samples: u32,
    /// Collective and step counter; grows by one per step.
    pub sequence: u64,
    /// `[n_rows]` of [`ts_step_row`].
    pub rows_offset: u32,
    /// `[n_tokens]` of [`ts_step_token`].
    pub tokens_offset: u32,
    /// `[n_logit_rows]` of `u32`: token index whose logits are wanted.
    pub logit_rows_offset: u32,
    /// `[n_deltas]` of [`ts_table_delta`].
    pub deltas_offset: u32,
    /// `[n_samples]` of [`ts_sample`]; only for backends with the `sample` op.
    pub samples_offset: u32,
    pub bytes: u32,
}

/// One request's share of a step.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ts_step_row {
    /// Row of the block tables.
    pub table_row: u32,
    /// Tokens already in the cache before this step.
    pub computed: u32,
    /// First token of this row in the step's token array.
    pub query_start: u32,
    pub query_len: u32,
    /// Recurrent-state slots; 0 is the scratch slot.
    pub state_read: u32,
    pub state_write: u32,
    /// Token count the read state encodes; backends assert it equals `computed`.
    pub state_tokens: u32,
    /// Cache rows of positions from `computed` on lie this much further: rows of one request are branches of a tree of
    /// guesses, each with cache rows of its own. 0 unless the device claims `branch_rows`.
    pub branch_offset: u32,
}

/// One token of a step.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ts_step_token {
    /// Token id, or `-(relay slot) - 1` for an id sampled on the device, which `embedding` finds in its operand `relay`. Never
    /// negative for a program whose `embedding` has none.
    pub id: i32,
    pub position: u32,
    /// Index into the step's rows.
    pub row: u32,
    pub reserved: u32,
}

/// `block_table[component][table_row][index] = block`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ts_table_delta {
    pub component: u32,
    pub table_row: u32,
    pub index: u32,
    pub block: u32,
}

/// Most alternatives that the op `sample` reports per row.
pub const TS_TOP_LOGPROBS_MAX: usize = 20;

/// Values of column 0 of `chosen`, an output of the op `sample`.
///
/// The row's record asked for nothing.
pub const TS_SAMPLED_NOTHING: u32 = 0;
/// Column 1 is the token id.
pub const TS_SAMPLED_TOKEN: u32 = 1;
/// A logit is NaN or +infinity; column 1 is the first such id.
pub const TS_SAMPLED_NOT_FINITE: u32 = 2;
/// Mask and biases leave no id.
pub const TS_SAMPLED_NOTHING_LEFT: u32 = 3;
/// The record names a slot or a handle that does not exist.
pub const TS_SAMPLED_BAD_RECORD: u32 = 4;

/// Sampling record of one logit row (optional op `sample`): a step has none, or one per logit row. The order of the filters
/// and the formulas stand in the op's documentation.
///
/// Handles are rows of the op's side tables, 0 = none. No two records of a step name the same relay slot or the same row of
/// `counts`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ts_sample {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off. Penalties need counts.
    pub repetition_penalty: f32,
    /// 0 = off.
    pub frequency_penalty: f32,
    /// 0 = off.
    pub presence_penalty: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 0 = no log-probabilities; 1 + n = the token's own, its rank, and the n best, at most [`TS_TOP_LOGPROBS_MAX`].
    pub n_logprobs: u32,
    /// Key of the generator.
    pub seed: u64,
    /// Of the token to be sampled: how many come before it. First word of the generator's counter.
    pub position: u32,
    /// Second word of the generator's counter.
    pub sample_index: u32,
    /// Row of `counts`: per id how often it was generated, and bit 31 if it is in the text before that. The op counts the
    /// id it samples.
    pub counts_handle: u32,
    /// Row of `bias`: added to the logits.
    pub bias_handle: u32,
    /// Row of `mask`: bit `id % 32` of word `id / 32` allows an id.
    pub mask_handle: u32,
    /// Where the id goes; -1 is written if there is none. 0: the row is not sampled.
    pub relay_slot: u32,
}

/// Group of ranks for collectives.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_group_desc {
    pub struct_size: u32,
    pub rank: u32,
    pub world: u32,
    pub reserved: u32,
    /// Distinguishes groups in the host's key/value store.
    pub name: ts_str,
    pub timeout_ms: u64,
}

/// The table a plugin fills in. Entries marked *mandatory* must be non-null; the others may be, and the host then
/// does without (tier by tier) or refuses by name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ts_backend_table {
    pub struct_size: u32,
    /// In: the host's newest version. Out: the version both speak.
    pub abi_version: u32,

    /// Mandatory, thread-safe. Strings live as long as the process.
    pub backend_info: Option<unsafe extern "C" fn(info: *mut ts_backend_info) -> ts_status>,
    /// Mandatory, thread-safe.
    pub device_count: Option<unsafe extern "C" fn(count: *mut u32, error: *mut ts_error) -> ts_status>,
    /// Mandatory, thread-safe.
    pub device_info:
        Option<unsafe extern "C" fn(index: u32, info: *mut ts_device_info, error: *mut ts_error) -> ts_status>,
    /// Mandatory.
    pub device_open: Option<
        unsafe extern "C" fn(
            index: u32,
            options: *const ts_option,
            n_options: u32,
            device: *mut *mut ts_device,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory. Frees everything the device still owns.
    pub device_close: Option<unsafe extern "C" fn(device: *mut ts_device)>,
    /// Mandatory, thread-safe: TS_OK or the sticky error.
    pub device_status: Option<unsafe extern "C" fn(device: *mut ts_device, error: *mut ts_error) -> ts_status>,

    /// Mandatory. Contents start undefined.
    pub arena_alloc: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            kind: u32,
            bytes: u64,
            arena: *mut *mut ts_arena,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Optional: use host memory in place (read-only, outlives the arena).
    pub arena_import: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            kind: u32,
            data: *const u8,
            bytes: u64,
            arena: *mut *mut ts_arena,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory.
    pub arena_free: Option<unsafe extern "C" fn(device: *mut ts_device, arena: *mut ts_arena)>,
    /// Optional: host address of the arena, valid until it is freed.
    pub arena_map: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            arena: *mut ts_arena,
            data: *mut *mut u8,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory. Synchronous host-to-device copy.
    pub arena_write: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            arena: *mut ts_arena,
            offset: u64,
            data: *const u8,
            bytes: u64,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory. Synchronous device-to-host copy.
    pub arena_read: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            arena: *mut ts_arena,
            offset: u64,
            data: *mut u8,
            bytes: u64,
            error: *mut ts_error,
        ) -> ts_status,
    >,

    /// Mandatory. Work in one queue runs in order.
    pub queue_create: Option<
        unsafe extern "C" fn(device: *mut ts_device, queue: *mut *mut ts_queue, error: *mut ts_error) -> ts_status,
    >,
    /// Mandatory.
    pub queue_destroy: Option<unsafe extern "C" fn(device: *mut ts_device, queue: *mut ts_queue)>,
    /// Mandatory. Device-to-device copy in queue order.
    pub queue_copy: Option<
        unsafe extern "C" fn(
            queue: *mut ts_queue,
            destination: *const ts_binding,
            source: *const ts_binding,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory. The event reaches `value` once everything before it in the queue is done.
    pub queue_signal: Option<
        unsafe extern "C" fn(queue: *mut ts_queue, event: *mut ts_event, value: u64, error: *mut ts_error) -> ts_status,
    >,
    /// Mandatory. Later work in the queue waits for the event to reach `value`.
    pub queue_wait: Option<
        unsafe extern "C" fn(queue: *mut ts_queue, event: *mut ts_event, value: u64, error: *mut ts_error) -> ts_status,
    >,

    /// Mandatory. A timeline that starts at 0 and only grows.
    pub event_create: Option<
        unsafe extern "C" fn(device: *mut ts_device, event: *mut *mut ts_event, error: *mut ts_error) -> ts_status,
    >,
    /// Mandatory.
    pub event_destroy: Option<unsafe extern "C" fn(device: *mut ts_device, event: *mut ts_event)>,
    /// Mandatory, thread-safe. An error of the work behind the event sticks to it and is returned here.
    pub event_query:
        Option<unsafe extern "C" fn(event: *mut ts_event, value: *mut u64, error: *mut ts_error) -> ts_status>,
    /// Mandatory, thread-safe. TS_ERR_TIMEOUT after `timeout_ns`.
    pub event_wait: Option<
        unsafe extern "C" fn(event: *mut ts_event, value: u64, timeout_ns: u64, error: *mut ts_error) -> ts_status,
    >,

    /// Mandatory, thread-safe. Answers for one concrete descriptor.
    pub op_support: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            op: *const ts_op,
            support: *mut ts_support,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Mandatory. Enqueues one op; the parameter block is in binding `TS_BIND_STEP`.
    pub op_launch: Option<
        unsafe extern "C" fn(
            queue: *mut ts_queue,
            op: *const ts_op,
            bindings: *const ts_binding,
            n_bindings: u32,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Optional (needed if `op_support` ever asks for packing): write the packed form of `source` (canonical, host
    /// memory) to `destination`.
    pub op_pack: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            op: *const ts_op,
            operand: u32,
            source: *const u8,
            source_bytes: u64,
            destination: *const ts_binding,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Optional, T4: private cache layout to canonical bytes in host memory, and back.
    pub cache_export: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            tensor: *const ts_tensor,
            source: *const ts_binding,
            data: *mut u8,
            bytes: u64,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    pub cache_import: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            tensor: *const ts_tensor,
            destination: *const ts_binding,
            data: *const u8,
            bytes: u64,
            error: *mut ts_error,
        ) -> ts_status,
    >,

    /// T1. If null, the host walks the op list with `op_launch`.
    pub program_prepare: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            desc: *const ts_program_desc,
            program: *mut *mut ts_program,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    pub program_run: Option<
        unsafe extern "C" fn(
            program: *mut ts_program,
            queue: *mut ts_queue,
            run: *const ts_run,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Copies at most `capacity` segments and reports how many there are.
    pub program_describe: Option<
        unsafe extern "C" fn(
            program: *mut ts_program,
            segments: *mut ts_segment,
            capacity: u32,
            count: *mut u32,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    /// Optional: predicted nanoseconds of a run under `load`. The engine asks at start and goes by ratios of the answers until it has
    /// measured its steps.
    pub program_cost: Option<
        unsafe extern "C" fn(
            program: *mut ts_program,
            load: *const ts_load,
            nanoseconds: *mut u64,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    pub program_drop: Option<unsafe extern "C" fn(device: *mut ts_device, program: *mut ts_program)>,

    /// T2. Collective over all ranks of the group.
    pub group_create: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            desc: *const ts_group_desc,
            group: *mut *mut ts_group,
            error: *mut ts_error,
        ) -> ts_status,
    >,
    pub group_destroy: Option<unsafe extern "C" fn(device: *mut ts_device, group: *mut ts_group)>,
    /// T2. Symmetric heap; a collective itself, at load only.
    pub group_heap_create: Option<
        unsafe extern "C" fn(
            group: *mut ts_group,
            bytes: u64,
            arena: *mut *mut ts_arena,
            error: *mut ts_error,
        ) -> ts_status,
    >,

    /// Optional: extension table by name and version, or TS_ERR_UNSUPPORTED.
    pub extension: Option<
        unsafe extern "C" fn(name: ts_str, version: u32, table: *mut *const c_void, error: *mut ts_error) -> ts_status,
    >,

    /// Optional, thread-safe: what the device counted since it was opened. Copies at most `capacity` counters and reports
    /// how many there are, always the same ones in the same order. Names live as long as the process.
    pub device_counters: Option<
        unsafe extern "C" fn(
            device: *mut ts_device,
            counters: *mut ts_counter,
            capacity: u32,
            count: *mut u32,
            error: *mut ts_error,
        ) -> ts_status,
    >,
}

/// The exported symbol `ts_backend_entry`: negotiate, then fill in `table`.
///
/// `table->struct_size` is the host's size; the plugin writes at most that many bytes. Returns `TS_ERR_INCOMPATIBLE`
/// with its own range and a reason in `error` when no version is common.
pub type ts_backend_entry_fn =
    unsafe extern "C" fn(host: *const ts_host, table: *mut ts_backend_table, error: *mut ts_error) -> ts_status;
