//! Latent attention with `mla_prefill=expanded`: right, whatever shares the step; and the same bits however contexts are cut into
//! rounds, prompts into steps, and waves into an order.
//!
//! Cache rows that no token has written are NaN, so that reading one into a sum shows.

use std::sync::Arc;

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Device as Hardware, Queue},
    kernel::{Argument, Kernel, Manifest},
    ops::Expansion,
};
use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES},
    backend::{ArenaKind, Bindings, Bucket, Device, StepBuffer},
    catalogue::{self, Case},
    conform,
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    quant,
    record::OpRecord,
    sdk::Determinism,
    step::{StepData, StepView},
};

use crate::support::{Bytes, Random, backend_device, configure, device, emulator, f32s, report};

/// Query values that meet a head's own keys, and those behind them; values; latent values.
const N: u64 = 128;
const P: u64 = 64;
const V: u64 = 128;
const R: u64 = 512;
/// Rows of outputs behind the step's tokens.
const SPARE: u64 = 3;
const TIMEOUT_NS: u64 = 600_000_000_000;

/// A step of requests (table row, tokens computed, tokens), over pages in falling order.
fn case(format: DType, heads: u64, page: u64, spans: &[(u32, u32, usize)]) -> Case {
    let mut random = Random(7);
    let ids: Vec<Vec<i32>> = spans.iter().map(|s| vec![0; s.2]).collect();
    let spans: Vec<(u32, u32, &[i32])> = spans.iter().zip(&ids).map(|(s, ids)| (s.0, s.1, &ids[..])).collect();
    let step = StepData::from_spans(&spans);
    let height = step.rows.iter().map(|r| r.table_row).max().unwrap() as usize + 1;
    let mut needs = vec![0u64; height];
    for r in &step.rows {
        let need = &mut needs[r.table_row as usize];
        *need = u64::from(r.cache_rows()).div_ceil(page).max(*need);
    }
    let (width, pages) = (needs.iter().max().unwrap() + 1, needs.iter().sum::<u64>() + 1);
    let (mut table, mut next) = (Vec::new(), pages as u32);
    for need in &needs {
        table.push(
            (0..width)
                .map(|i| {
                    if i < *need {
                        next -= 1;
                        next
                    } else {
                        0
                    }
                })
                .collect::<Vec<u32>>(),
        );
    }
    let row = (R + P) as usize;
    let mut values = vec![f32::NAN; (pages * page) as usize * row];
    for r in &step.rows {
        for position in 0..r.computed + r.query_len {
            let at = u64::from(r.cache_row(position));
            let slot = u64::from(table[r.table_row as usize][(at / page) as usize]) * page + at % page;
            values[slot as usize * row..][..row].fill_with(|| random.unit());
        }
    }
    let mut bytes = vec![0; values.len() * format.block_bytes()];
    quant::quantize_row(format, &values, &mut bytes);
    let mut numbers = |n: u64, scale: f32| (0..n).map(|_| scale * random.unit()).collect::<Vec<f32>>();
    let tokens = step.tokens.len() as u64;
    let (q, gate) = (numbers(tokens * heads * (N + P), 5.0), numbers(tokens * heads * V, 3.0));
    let mut attrs = Attrs::default();
    (attrs.i[1], attrs.f[0]) = (P as i64, 1.0 / ((N * (R + P)) as f64).sqrt());
    let mut case = Case { name: "expanded".into(), kind: OpKind::MlaMix, attrs, operands: Vec::new(), step };
    case.push(Vary::Tokens, &[tokens, heads, N + P], q);
    let weights = random.bf16((heads * (N + V) * R) as usize).bytes();
    case.push_raw(DType::BF16, Vary::Fixed, &[heads * (N + V), R], weights);
    case.push_raw(format, Vary::Fixed, &[pages, page, 1, R + P], bytes);
    case.push_table(&table);
    case.push(Vary::Tokens, &[tokens, heads, V], gate);
    case.push_output(Vary::Tokens, &[tokens, heads, V]);
    case
}

/// The step of some tokens of one request alone, which has computed everything before them.
fn part(case: &Case, row: usize, tokens: std::ops::Range<usize>) -> Case {
    let mut part = case.clone();
    let (mut request, from) = (case.step.rows[row], case.step.rows[row].query_start as usize);
    request.computed += tokens.start as u32;
    (request.query_start, request.query_len) = (0, tokens.len() as u32);
    part.step.rows = vec![request];
    part.step.tokens = case.step.tokens[from + tokens.start..from + tokens.end].to_vec();
    part.step.tokens.iter_mut().for_each(|t| t.row = 0);
    part.step.logit_rows = vec![0];
    for operand in part.operands.iter_mut().filter(|o| o.tensor.vary == Vary::Tokens) {
        let bytes = operand.tensor.row_bytes();
        operand.bytes = operand.bytes[(from + tokens.start) * bytes..(from + tokens.end) * bytes].to_vec();
        operand.tensor.dims[0] = tokens.len() as u64;
    }
    part
}

/// The result on the device: launched as a program or as an op. Spare rows must stay as they were.
fn run(device: &Device, case: &Case, as_program: bool) -> Vec<u8> {
    let (mut image, mut tensors) = (Vec::new(), Vec::new());
    for operand in &case.operands {
        let mut tensor = operand.tensor;
        if tensor.vary == Vary::Tokens {
            tensor.dims[0] += SPARE;
        }
        (tensor.binding, tensor.offset) = (TS_BIND_ACTIVATIONS, (image.len() as u64).next_multiple_of(256));
        image.resize(tensor.offset as usize, 0xa5);
        image.extend_from_slice(&operand.bytes);
        image.resize((tensor.offset + tensor.bytes()) as usize, 0xa5);
        tensors.push(tensor);
    }
    image.resize(image.len().next_multiple_of(256), 0xa5);
    let mut op = OpRecord::new(case.kind, tensors.iter().map(|t| t.to_abi()).collect(), case.attrs, case.name.clone());
    let support = device.op_support(&op).unwrap();
    assert!(support.is_supported(), "{}", support.reason);
    assert!(support.implementation.contains("expanded"), "{}", support.implementation);
    assert_eq!(support.determinism, Determinism::RunToRun, "bits depend on the cut, and the claim says so");
    (op.workspace_offset, op.workspace_bytes) = (image.len() as u64, support.workspace_bytes);
    let arena = device.arena_alloc(ArenaKind::Activations, image.len() as u64 + support.workspace_bytes).unwrap();
    device.write(&arena, 0, &image).unwrap();
    let block = case.step.to_bytes();
    let step = device.arena_alloc(ArenaKind::Step, block.len() as u64).unwrap();
    device.write(&step, 0, &block).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind_all(TS_BIND_STEP, &step).bind_all(TS_BIND_ACTIVATIONS, &arena);
    for (slot, kind) in
        [(TS_BIND_TABLES, ArenaKind::Tables), (TS_BIND_CACHE, ArenaKind::Cache), (TS_BIND_OUTPUT, ArenaKind::Output)]
    {
        bindings.bind_all(slot, &device.arena_alloc(kind, 64).unwrap());
    }
    let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
    if as_program {
        let tokens = case.step.tokens.len() as u32 + SPARE as u32;
        let bucket = Bucket { max_tokens: tokens, max_rows: tokens, max_logit_rows: tokens };
        let program = device.program_prepare(std::slice::from_ref(&op), &bindings, bucket).unwrap();
        let mut buffer = StepBuffer::with_capacity(block.len());
        buffer.bytes_mut().expect("not yet lent")[..block.len()].copy_from_slice(&block);
        buffer.set_len(block.len());
        device.program_run(&program, &queue, &mut buffer, &event, 1).unwrap();
        event.wait(1, TIMEOUT_NS).unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
    } else {
        device.op_launch(&queue, &op, &bindings).unwrap();
        device.queue_signal(&queue, &event, 1).unwrap();
        event.wait(1, TIMEOUT_NS).unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
    }
    let y = tensors.last().unwrap();
    let mut out = vec![0; y.bytes() as usize];
    device.read(&arena, y.offset, &mut out).unwrap();
    let spare = out.split_off(case.operands.last().unwrap().bytes.len());
    assert!(spare.iter().all(|b| *b == 0xa5), "rows behind the step's tokens were written");
    out
}

const OPTIONS: [(&str, &str); 1] = [("mla_prefill", "expanded")];

/// What is wrong with a result. Every token is judged by itself: a mean over few keys is large beside one over many.
fn judge(case: &Case, got: &[u8], want: &[u8]) -> Result<(), String> {
    // The tolerance of products of bf16 factors, which the op claims.
    let allowed = catalogue::BF16_PRODUCT;
    let bytes = case.operands.last().unwrap().tensor.row_bytes();
    for (token, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
        let (got, want) = (f32s(got), f32s(want));
        let power = want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let rms = (power / want.len() as f64).sqrt();
        let off: Vec<f64> = got.iter().zip(&want).map(|(g, w)| f64::from(g - w)).collect();
        // A NaN anywhere makes the sum one, which is no small number.
        let nmse = off.iter().map(|x| x * x).sum::<f64>() / power;
        let largest = off.iter().fold(0.0f64, |most, x| most.max(x.abs())) / rms;
        if !(nmse <= allowed.nmse && largest <= allowed.max_error) {
            return Err(format!("token {token}: NMSE {nmse:e}, largest error {largest:e}"));
        }
    }
    Ok(())
}

/// Long requests with and without a context, beginning and ending within tiles and steps of keys, among short ones.
fn is_the_reference(format: DType, heads: u64, page: u64, spans: &[(u32, u32, usize)]) {
    let Some((_backend, device)) = backend_device(&OPTIONS) else { return };
    configure(emulator(), true, 1);
    let case = case(format, heads, page, spans);
    let want = case.run_reference(1).pop().unwrap();
    let got = run(&device, &case, false);
    judge(&case, &got, &want).unwrap();
    configure(emulator(), true, 2);
    assert!(run(&device, &case, true) == got, "a program gives other bits");
    // Alone, and as two requests would come: what a request's own step holds decides, nothing else.
    let bytes = case.operands.last().unwrap().tensor.row_bytes();
    for (row, request) in case.step.rows.iter().enumerate() {
        let (start, n) = (request.query_start as usize, request.query_len as usize);
        let alone = run(&device, &part(&case, row, 0..n), false);
        assert!(alone == got[start * bytes..(start + n) * bytes], "request {row} alone gives other bits");
    }
}

#[test]
fn bf16_long_requests_among_short_ones() {
    is_the_reference(DType::BF16, 2, 32, &[(1, 40, 1), (0, 130, 300), (3, 77, 5), (2, 0, 257)]);
}

#[test]
fn fp8_long_requests_among_short_ones() {
    is_the_reference(DType::F8E4M3, 2, 64, &[(0, 64, 256), (1, 7, 260), (2, 90, 2)]);
}

/// The suite's steps hold no long request: with the option they are what they are without.
#[test]
fn the_suite_passes_with_the_option() {
    let Some((backend, device)) = backend_device(&OPTIONS) else { return };
    configure(emulator(), true, 4);
    let only = conform::Options { seed: 11, only: Some("mla_mix".into()), ..conform::Options::default() };
    let done = conform::run(&device, backend.info().tiers, 0, &only).unwrap();
    assert!(done.passed() && done.totals().0 > 0, "{done}");
}

/// Steps of a prompt that are all expanded give its bits, whatever they are; a step that is too short is absorbed.
#[test]
fn cuts_between_long_steps_change_no_bit() {
    let Some((_backend, device)) = backend_device(&OPTIONS) else { return };
    configure(emulator(), true, 3);
    let whole = case(DType::BF16, 1, 64, &[(0, 0, 600)]);
    let got = run(&device, &whole, false);
    let bytes = whole.operands.last().unwrap().tensor.row_bytes();
    for cut in [0..330, 330..600] {
        let expanded = run(&device, &part(&whole, 0, cut.clone()), false);
        assert!(expanded == got[cut.start * bytes..cut.end * bytes], "tokens {cut:?} in a step of their own");
    }
    let short = run(&device, &part(&whole, 0, 590..600), false);
    let rest = &got[590 * bytes..];
    assert!(short != rest, "the absorbed form has bits of its own, else the option were no choice");
    judge(&whole, &short, rest).unwrap();
}

/// The kernels by themselves, `size` positions in scratch, and launches of `each` jobs where tiles are halved.
fn rounds(
    device: &Arc<Hardware>,
    manifest: &Manifest,
    case: &Case,
    size: usize,
    each: usize,
) -> Result<Vec<u8>, String> {
    let [q, w, cache, table, gate, y] = &case.operands[..] else { unreachable!("six operands") };
    let heads = q.tensor.dims[1] as usize;
    let (tokens, page) = (case.step.tokens.len(), cache.tensor.dims[1] as usize);
    let block = case.step.to_bytes();
    let positions = Expansion::of(&StepView::new(&block).unwrap()).positions as usize;
    let poison = |bytes: usize| Buffer::with(device, &vec![0xff; bytes]).unwrap();
    let buffer = |bytes: &[u8]| Buffer::with(device, bytes).unwrap();
    let (step, out) = (buffer(&block), poison(y.bytes.len()));
    let [q_, w_, cache_, table_, gate_] = [q, w, cache, table, gate].map(|o| buffer(&o.bytes));
    let requests = case.step.rows.len();
    let (flags, listed, tiles) =
        (poison(4 * requests), poison(64 + 32 * requests), poison(32 * (tokens / 256 + requests)));
    let (state, blocks) = (poison(tokens * heads * 8), poison(heads * size * 512));
    let ropes = poison(size * 128);
    let queue = Queue::new(device).unwrap();
    let at = |buffer: &Buffer| Argument::Pointer(buffer.address());
    let int = |x: usize| Argument::I32(x as i32);
    let launch = |name: &str, groups: [usize; 3], arguments: &[(&str, Argument)]| {
        let kernel = Kernel::load(device, manifest, name).unwrap();
        // SAFETY: buffers are as large as the sizes say and live until the queue was waited for.
        unsafe { kernel.launch(&queue, groups.map(|n| n as u32), arguments) }.unwrap();
    };
    let arguments = [
        ("step", at(&step)),
        ("flags", at(&flags)),
        ("listed", at(&listed)),
        ("tiles", at(&tiles)),
        ("least", int(257)),
        ("most", int(1 << 20)),
    ];
    launch("mla_survey", [requests, 1, 1], &arguments);
    let format = if cache.tensor.dtype == DType::BF16 { "bf16" } else { "fp8" };
    for start in (0..positions).step_by(size) {
        let common = [
            ("listed", at(&listed)),
            ("blocks", at(&blocks)),
            ("ropes", at(&ropes)),
            ("start", int(start)),
            ("size", int(size)),
        ];
        let more = [
            ("cache", at(&cache_)),
            ("table", at(&table_)),
            ("w", at(&w_)),
            ("width", int(table.tensor.dims[1] as usize)),
            ("block_tokens", int(page)),
            ("per_head", int((N + V) as usize)),
            ("ldc", int(page * (R + P) as usize)),
            ("ldw", int(R as usize)),
        ];
        let groups = (positions - start).min(size).div_ceil(128);
        launch(&format!("mla_expand_{format}"), [groups, heads, 2], &[&common[..], &more].concat());
        let more = [
            ("tiles", at(&tiles)),
            ("q", at(&q_)),
            ("state", at(&state)),
            ("gate", at(&gate_)),
            ("y", at(&out)),
            ("H", int(heads)),
            ("ldq", int(heads * (N + P) as usize)),
            ("ldy", int(heads * V as usize)),
            ("scale", Argument::F32((case.attrs.f[0] * std::f64::consts::LOG2_E) as f32)),
        ];
        let jobs = case.step.rows.iter().map(|r| r.query_len.div_ceil(256) as usize).sum::<usize>() * heads;
        let halved = jobs >= each && case.step.rows[0].computed as usize >= start + size;
        for wave in 0..if halved { (2 * jobs).div_ceil(each) } else { 1 } {
            let groups = if halved { (2 * jobs - wave * each).min(each) } else { jobs };
            let more = [&common[..], &more, &[("wave", int(wave)), ("each", int(each))]].concat();
            launch("mla_prefill", [2, groups.div_ceil(2), 1], &more);
        }
    }
    queue.synchronize().map_err(|e| format!("{e}: {}", report(emulator())))?;
    out.read().map_err(|e| e.to_string())
}

/// A context that scratch does not hold, through the planner: what the kernels give when it does. Without checks, for time.
#[test]
fn contexts_beyond_scratch_take_further_rounds() {
    let (Some((_backend, planner)), Some((hardware, manifest))) = (backend_device(&OPTIONS), device()) else { return };
    configure(emulator(), false, 0);
    let case = case(DType::F8E4M3, 1, 64, &[(0, 16_500, 300)]);
    let got = run(&planner, &case, true);
    let whole = rounds(&hardware, &manifest, &case, 16_896, 256).unwrap();
    assert!(got == whole, "other bits in two rounds");
    assert!(f32s(&got).iter().all(|x| x.is_finite() && *x != 0.0), "not every value is there");
}

/// Rounds that end within a context, at its end, within tiles of tokens, and behind everything, each in an interleaving of its own,
/// give the same bits, and the reference's numbers. `None` without kernels, else what is wrong.
pub fn rounds_agree() -> Option<Result<(), String>> {
    let (device, manifest) = device()?;
    let case = case(DType::BF16, 1, 32, &[(0, 290, 300), (1, 0, 257)]);
    let run = |seed, size, each| {
        configure(emulator(), true, seed);
        rounds(&device, &manifest, &case, size, each)
    };
    let agree = || {
        let whole = run(0, 1024, 256)?;
        judge(&case, &whole, &case.run_reference(1).pop().unwrap())?;
        for (seed, size, each) in [(1, 128, 256), (2, 384, 256), (3, 640, 256), (4, 128, 4), (5, 256, 3)] {
            if run(seed, size, each)? != whole {
                return Err(format!("other bits in rounds of {size}, {each} jobs to a launch"));
            }
        }
        Ok(())
    };
    Some(agree())
}

#[test]
fn rounds_and_interleavings_change_no_bit() {
    rounds_agree().transpose().unwrap();
}
