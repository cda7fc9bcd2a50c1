//! Latent attention with `mla_prefill=expanded`, of bf16 and e4m3 factors: right, whatever shares the step; and the same bits however
//! contexts are cut into rounds, prompts into steps, and waves into an order.
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
    catalogue::{self, Case, Tolerance},
    conform,
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    quant,
    record::OpRecord,
    sdk::Determinism,
    step::{StepData, StepView},
    support::Rounding,
};

use crate::{
    mla_rounded,
    support::{Bytes, Random, backend_device, configure, device, emulator, f32s, report},
};

/// Query values that meet a head's own keys, and those behind them; values; latent values.
pub const N: u64 = 128;
pub const P: u64 = 64;
pub const V: u64 = 128;
pub const R: u64 = 512;
/// Rows of outputs behind the step's tokens.
const SPARE: u64 = 3;
const TIMEOUT_NS: u64 = 600_000_000_000;

/// A step of requests (table row, tokens computed, tokens), over pages in falling order.
fn case(form: &Form, format: DType, heads: u64, page: u64, spans: &[(u32, u32, usize)]) -> Case {
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
    // Neighbouring groups of 32 differ in size, so that in e4m3 no scale is another one's.
    let loud = |i: usize| if form.e4m3 { [0.5, 2.0, 1.0][i / 32 % 3] } else { 1.0 };
    for r in &step.rows {
        for position in 0..r.computed + r.query_len {
            let at = u64::from(r.cache_row(position));
            let slot = u64::from(table[r.table_row as usize][(at / page) as usize]) * page + at % page;
            let to = &mut values[slot as usize * row..][..row];
            to.fill_with(|| random.unit());
            let behind = (R as usize..).zip(&mut to[R as usize..]);
            behind.for_each(|(c, x)| *x *= loud(c - R as usize));
            to.iter_mut().for_each(|x| *x *= loud(position as usize));
        }
    }
    let mut bytes = vec![0; values.len() * format.block_bytes()];
    quant::quantize_row(format, &values, &mut bytes);
    let mut numbers = |n: u64, scale: f32| (0..n).map(|_| scale * random.unit()).collect::<Vec<f32>>();
    let tokens = step.tokens.len() as u64;
    // So that no key of a loud position takes all.
    let size = if form.e4m3 { 2.5 } else { 5.0 };
    let (mut q, gate) = (numbers(tokens * heads * (N + P), size), numbers(tokens * heads * V, 3.0));
    for row in q.chunks_mut((N + P) as usize) {
        row.iter_mut().enumerate().for_each(|(c, x)| *x /= loud(c % N as usize));
    }
    let mut attrs = Attrs::default();
    (attrs.i[1], attrs.f[0]) = (P as i64, 1.0 / ((N * (R + P)) as f64).sqrt());
    let mut case = Case { name: "expanded".into(), kind: OpKind::MlaMix, attrs, operands: Vec::new(), step };
    case.push(Vary::Tokens, &[tokens, heads, N + P], q);
    let mut weights = random.bf16((heads * (N + V) * R) as usize);
    for (at, row) in weights.chunks_mut(R as usize).enumerate() {
        // A power of two more or less is no rounding.
        let louder = |x: u16| (f32::from_bits(u32::from(x) << 16) * loud(at % N as usize)).to_bits() >> 16;
        row.iter_mut().for_each(|x| *x = louder(*x) as u16);
    }
    let weights = weights.bytes();
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
    let e4m3 = support.implementation.contains("e4m3");
    assert_eq!(e4m3, support.rounding == Rounding::Fp8, "what the name says is claimed: {}", support.implementation);
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

/// What attention multiplies.
struct Form {
    options: &'static [(&'static str, &'static str)],
    e4m3: bool,
    /// Of a token.
    allowed: Tolerance,
    /// What begins the names of kernels.
    prefix: &'static str,
    /// Bytes of 128 positions of a head in scratch, and of what all heads share.
    bytes: [usize; 2],
    /// Positions that the planner's scratch holds.
    most: u32,
}

/// The tolerance is that of bf16 products, which the op claims.
const BF16: Form = Form {
    options: &[("mla_prefill", "expanded")],
    e4m3: false,
    allowed: catalogue::BF16_PRODUCT,
    prefix: "mla_",
    bytes: [1 << 16, 1 << 14],
    most: 1 << 14,
};

/// The tolerance is that of e4m3 products, which the op claims, for the mean. A value is off by 6% of itself, where bf16's is by 0.37%, and
/// values of these cases differ by a factor of four and more: the worst of a token's 256 is as much as 0.7 of their mean off.
const E4M3: Form = Form {
    options: &[("mla_prefill", "expanded"), ("precision", "fp8")],
    e4m3: true,
    allowed: Tolerance { max_error: 1.0, ..catalogue::FP8_PRODUCT },
    prefix: "mla_e4m3_",
    bytes: [4 * (8192 + 256), 8192 + 256],
    most: 1 << 15,
};

/// What is wrong with a result. Every token is judged by itself: a mean over few keys is large beside one over many.
fn judge(case: &Case, got: &[u8], want: &[u8], allowed: Tolerance) -> Result<(), String> {
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
fn is_the_reference(form: &Form, format: DType, heads: u64, page: u64, spans: &[(u32, u32, usize)]) {
    let Some((_backend, device)) = backend_device(form.options) else { return };
    configure(emulator(), true, 1);
    let case = case(form, format, heads, page, spans);
    let want = case.run_reference(1).pop().unwrap();
    let got = run(&device, &case, false);
    println!("rms error {:.3}% of the result's", 100.0 * nmse(&f32s(&got), &f32s(&want)).sqrt());
    judge(&case, &got, &want, form.allowed).unwrap();
    rounded_well(form, &case, &got).unwrap();
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

/// Normalised mean squared error.
fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let power = want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum::<f64>() / power
}

/// Long requests of e4m3 factors are those of `mla_rounded`, but for a rounding that falls to the other side: 1e-11 is usual.
fn rounded_well(form: &Form, case: &Case, got: &[u8]) -> Result<(), String> {
    let bytes = case.operands.last().unwrap().tensor.row_bytes();
    for (row, request) in case.step.rows.iter().enumerate().filter(|(_, r)| form.e4m3 && r.query_len > 256) {
        let want = mla_rounded::want(case, row);
        let error = nmse(&f32s(&got[request.query_start as usize * bytes..][..want.len() * 4]), &want);
        // NaN is no small number.
        let fine = error < 1e-7;
        if !fine {
            return Err(format!("request {row}: NMSE {error:e} of what is rounded"));
        }
    }
    Ok(())
}

#[test]
fn bf16_long_requests_among_short_ones() {
    is_the_reference(&BF16, DType::BF16, 2, 32, &[(1, 40, 1), (0, 130, 300), (3, 77, 5), (2, 0, 257)]);
}

#[test]
fn fp8_long_requests_among_short_ones() {
    if std::env::var_os("TOKENSPEED_LONG_TESTS").is_none() {
        return eprintln!("not run: a long test");
    }
    is_the_reference(&BF16, DType::F8E4M3, 2, 64, &[(0, 64, 256), (1, 7, 260), (2, 90, 2)]);
}

#[test]
fn e4m3_factors_of_long_requests_among_short_ones() {
    is_the_reference(&E4M3, DType::BF16, 2, 32, &[(1, 40, 1), (0, 130, 300), (3, 77, 5), (2, 0, 257)]);
}

/// The suite's steps hold no long request: with the option they are what they are without.
#[test]
fn the_suite_passes_with_the_option() {
    let Some((backend, device)) = backend_device(E4M3.options) else { return };
    configure(emulator(), true, 4);
    let only = conform::Options { seed: 11, only: Some("mla_mix".into()), ..conform::Options::default() };
    let done = conform::run(&device, backend.info().tiers, 0, &only).unwrap();
    assert!(done.passed() && done.totals().0 > 0, "{done}");
}

/// Steps of a prompt that are all expanded give its bits, whatever they are; a step that is too short is absorbed.
#[test]
fn cuts_between_long_steps_change_no_bit() {
    cuts_agree(&BF16);
}

#[test]
fn cuts_between_long_steps_of_e4m3_change_no_bit() {
    cuts_agree(&E4M3);
}

fn cuts_agree(form: &Form) {
    let Some((_backend, device)) = backend_device(form.options) else { return };
    configure(emulator(), true, 3);
    let whole = case(form, DType::BF16, 1, 64, &[(0, 0, 600)]);
    let got = run(&device, &whole, false);
    let bytes = whole.operands.last().unwrap().tensor.row_bytes();
    for cut in [0..330, 330..600] {
        let expanded = run(&device, &part(&whole, 0, cut.clone()), false);
        assert!(expanded == got[cut.start * bytes..cut.end * bytes], "tokens {cut:?} in a step of their own");
    }
    let short = run(&device, &part(&whole, 0, 590..600), false);
    let rest = &got[590 * bytes..];
    assert!(short != rest, "the absorbed form has bits of its own, else the option were no choice");
    judge(&whole, &short, rest, form.allowed).unwrap();
}

/// The kernels by themselves, `size` positions in scratch, and launches of `each` jobs where tiles are halved.
fn rounds(
    device: &Arc<Hardware>,
    manifest: &Manifest,
    case: &Case,
    form: &Form,
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
    let state = poison(tokens * heads * 8);
    let (blocks, ropes) = (poison(heads * size / 128 * form.bytes[0]), poison(size / 128 * form.bytes[1]));
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
        launch(&format!("{}expand_{format}", form.prefix), [groups, heads, 2], &[&common[..], &more].concat());
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
            launch(&format!("{}prefill", form.prefix), [2, groups.div_ceil(2), 1], &more);
        }
    }
    queue.synchronize().map_err(|e| format!("{e}: {}", report(emulator())))?;
    out.read().map_err(|e| e.to_string())
}

/// A context that scratch does not hold, through the planner: what the kernels give when it does. Without checks, for time.
#[test]
fn contexts_beyond_scratch_take_further_rounds() {
    rounds_follow(&BF16);
}

#[test]
fn contexts_beyond_scratch_of_e4m3_take_further_rounds() {
    if std::env::var_os("TOKENSPEED_LONG_TESTS").is_none() {
        return eprintln!("not run: a long test");
    }
    rounds_follow(&E4M3);
}

fn rounds_follow(form: &Form) {
    let (Some((_backend, planner)), Some((hardware, manifest))) = (backend_device(form.options), device()) else {
        return;
    };
    configure(emulator(), false, 0);
    let case = case(form, DType::F8E4M3, 1, 64, &[(0, form.most + 116, 300)]);
    let got = run(&planner, &case, true);
    let whole = rounds(&hardware, &manifest, &case, form, form.most as usize + 512, 256).unwrap();
    assert!(got == whole, "other bits in two rounds");
    assert!(f32s(&got).iter().all(|x| x.is_finite() && *x != 0.0), "not every value is there");
}

/// Rounds that end within a context, at its end, within tiles of tokens, and behind everything, each in an interleaving of its own,
/// give the same bits, and the reference's numbers. `None` without kernels, else what is wrong.
pub fn rounds_agree() -> Option<Result<(), String>> {
    agreement(&BF16)
}

/// The same of e4m3 factors.
pub fn e4m3_rounds_agree() -> Option<Result<(), String>> {
    agreement(&E4M3)
}

fn agreement(form: &Form) -> Option<Result<(), String>> {
    let (device, manifest) = device()?;
    let cache = if form.e4m3 { DType::F8E4M3 } else { DType::BF16 };
    let case = case(form, cache, 1, 32, &[(0, 290, 300), (1, 0, 257)]);
    let run = |seed, size, each| {
        configure(emulator(), true, seed);
        rounds(&device, &manifest, &case, form, size, each)
    };
    let agree = || {
        let whole = run(0, 1024, 256)?;
        judge(&case, &whole, &case.run_reference(1).pop().unwrap(), form.allowed)?;
        rounded_well(form, &case, &whole)?;
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

#[test]
fn rounds_and_interleavings_of_e4m3_change_no_bit() {
    e4m3_rounds_agree().transpose().unwrap();
}
