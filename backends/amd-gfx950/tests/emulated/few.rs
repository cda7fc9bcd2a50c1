//! Products of few tokens that share launches, and quantised ones: whatever tile a step takes, whatever stands beside a
//! product in its launch, and whoever rounds its rows, a row has the same bits.

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_STEP, TS_BIND_WEIGHTS},
    backend::{Arena, ArenaKind, Bindings, Bucket, Device, StepBuffer},
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    record::OpRecord,
    step::StepData,
    tensor::Tensor,
};

use crate::support::{Bytes, Launches, Random, backend_device, configure, emulator, f32s, report};

/// Tokens of a step: one for each height of tile.
const TOKENS: [usize; 5] = [1, 3, 9, 20, 300];
/// Inputs, and rows of the weights that read them: some with whole tiles, some too narrow to be quantised.
const K: u64 = 288;
const ROWS: [u64; 4] = [160, 12, 200, 136];
/// Rows of a weight whose product is added to something.
const OUT: u64 = 160;

/// Ops of one step over an arena, with weights packed where the device wants it.
struct Bench<'a> {
    device: &'a Device,
    arena: Arena,
    bindings: Bindings,
    block: Vec<u8>,
    ops: Vec<OpRecord>,
    results: Vec<Tensor>,
    image: Vec<u8>,
}

impl<'a> Bench<'a> {
    /// With `over`, scratch lies where the first op has its input, which nobody wants any more when scratch is used.
    fn new(device: &'a Device, tokens: usize, over: bool) -> Self {
        let mut random = Random(5);
        let mut image: Vec<u8> = Vec::new();
        let mut place = |dtype, vary, dims: &[u64], bytes: Option<Vec<u8>>| {
            let mut tensor = Tensor::new(dtype, vary, dims);
            image.resize(image.len().next_multiple_of(256), 0);
            (tensor.binding, tensor.offset) = (TS_BIND_ACTIVATIONS, image.len() as u64);
            let bytes = bytes.unwrap_or_else(|| vec![0xff; tensor.bytes() as usize]);
            assert_eq!(bytes.len() as u64, tensor.bytes());
            image.extend(bytes);
            tensor
        };
        let t = tokens as u64;
        // The same first rows in every step: tokens come one after the other.
        let x: Vec<f32> = (0..t * K).map(|_| random.unit()).collect();
        let mut random = Random(6);
        let before: Vec<f32> = (0..t * OUT).map(|_| random.unit()).collect();
        let mut weights = Random(7);
        let raw = place(DType::F32, Vary::Tokens, &[t, K], Some(x.bytes()));
        let before = place(DType::F32, Vary::Tokens, &[t, OUT], Some(before.bytes()));
        let [norm, other] = [K, OUT].map(|n| {
            let values: Vec<f32> = (0..n).map(|_| 1.0 + weights.unit()).collect();
            place(DType::F32, Vary::Fixed, &[n], Some(values.bytes()))
        });
        let mut attrs = Attrs::default();
        attrs.f[0] = 1e-5;
        let x = place(DType::F32, Vary::Tokens, &[t, K], None);
        let mut ops = vec![(OpKind::RmsNorm, vec![raw, norm, x], attrs)];
        let mut results = Vec::new();
        for n in ROWS {
            let w = place(DType::BF16, Vary::Fixed, &[n, K], Some(weights.bf16((n * K) as usize).bytes()));
            let y = place(DType::F32, Vary::Tokens, &[t, n], None);
            ops.push((OpKind::Gemm, vec![x, w, y], Attrs::default()));
            results.push(y);
        }
        let [w, last] = [(); 2].map(|()| {
            let values = weights.bf16((OUT * ROWS[0]) as usize).bytes();
            place(DType::BF16, Vary::Fixed, &[OUT, ROWS[0]], Some(values))
        });
        let [h, y, sum, total, z, out] = [(); 6].map(|()| place(DType::F32, Vary::Tokens, &[t, OUT], None));
        ops.push((OpKind::SiluMul, vec![results[0], before, h], Attrs::default()));
        ops.push((OpKind::Gemm, vec![h, w, y], Attrs::default()));
        ops.push((OpKind::Add, vec![before, y, sum], Attrs::default()));
        ops.push((OpKind::AddRmsNorm, vec![sum, before, other, total, z], attrs));
        ops.push((OpKind::Gemm, vec![z, last, out], Attrs::default()));
        results.extend([x, h, y, sum, total, z, out]);

        let mut step = StepData::from_spans(&[(0, 0, &vec![0; tokens])]);
        step.rows[0].query_len = tokens as u32;
        let block = step.to_bytes().to_vec();
        let mut bindings = Bindings::new();
        let step_arena = device.arena_alloc(ArenaKind::Step, block.len() as u64).unwrap();
        device.write(&step_arena, 0, &block).unwrap();
        bindings.bind_all(TS_BIND_STEP, &step_arena);

        let behind = image.len().next_multiple_of(256) as u64;
        let workspace_at = if over { raw.offset } else { behind };
        let (mut records, mut packs, mut packed_bytes, mut workspace) = (Vec::new(), Vec::new(), 0u64, 0);
        for (kind, operands, attrs) in ops {
            let mut op = OpRecord::new(kind, operands.into_iter().map(Tensor::to_abi).collect(), attrs, kind.name());
            let support = device.op_support(&op).unwrap();
            assert!(support.is_supported(), "{}", support.reason);
            (op.workspace_offset, op.workspace_bytes) = (workspace_at, support.workspace_bytes);
            workspace = workspace.max(support.workspace_bytes);
            assert!(!over || workspace <= raw.bytes(), "scratch reaches beyond the input that it may overwrite");
            for pack in support.packs {
                let source = &op.operands[pack.operand as usize];
                let bytes = Tensor::from_abi(source).unwrap().bytes() as usize;
                packs.push((records.len(), pack, packed_bytes, source.offset as usize..source.offset as usize + bytes));
                packed_bytes = (packed_bytes + pack.bytes).next_multiple_of(256);
            }
            records.push(op);
        }
        let arena = device.arena_alloc(ArenaKind::Activations, behind + workspace.max(1)).unwrap();
        device.write(&arena, 0, &image).unwrap();
        bindings.bind_all(TS_BIND_ACTIVATIONS, &arena);
        let packed = device.arena_alloc(ArenaKind::Weights, packed_bytes.max(1)).unwrap();
        bindings.bind_all(TS_BIND_WEIGHTS, &packed);
        for (op, pack, offset, source) in packs {
            device.op_pack(&records[op], pack.operand, &image[source], &packed, offset, pack.bytes).unwrap();
            let operand = &mut records[op].operands[pack.operand as usize];
            (operand.binding, operand.offset, operand.layout) = (TS_BIND_WEIGHTS, offset, pack.layout);
        }
        Self { device, arena, bindings, block, ops: records, results, image }
    }

    fn read(&self) -> Vec<Vec<u8>> {
        let one = |t: &Tensor| {
            let mut out = vec![0; t.bytes() as usize];
            self.device.read(&self.arena, t.offset, &mut out).unwrap();
            out
        };
        self.results.iter().map(one).collect()
    }

    /// Results op by op.
    fn alone(&self) -> Vec<Vec<u8>> {
        self.device.write(&self.arena, 0, &self.image).unwrap();
        let (queue, event) = (self.device.queue_create().unwrap(), self.device.event_create().unwrap());
        for op in &self.ops {
            self.device.op_launch(&queue, op, &self.bindings).unwrap();
        }
        self.device.queue_signal(&queue, &event, 1).unwrap();
        event.wait(1, 60_000_000_000).unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
        self.read()
    }

    /// Results of a program.
    fn program(&self, tokens: u32) -> Vec<Vec<u8>> {
        self.device.write(&self.arena, 0, &self.image).unwrap();
        let bucket = Bucket { max_tokens: tokens, max_rows: 1, max_logit_rows: 1 };
        let program = self.device.program_prepare(&self.ops, &self.bindings, bucket).unwrap();
        let mut step = StepBuffer::with_capacity(self.block.len());
        step.bytes_mut().expect("not yet lent")[..self.block.len()].copy_from_slice(&self.block);
        step.set_len(self.block.len());
        let (queue, event) = (self.device.queue_create().unwrap(), self.device.event_create().unwrap());
        self.device.program_run(&program, &queue, &mut step, &event, 1).unwrap();
        event.wait(1, 60_000_000_000).unwrap_or_else(|e| panic!("{e}\n{}", report(emulator())));
        self.read()
    }
}

/// `few` and `more` are what programs of up to 16 and up to 256 tokens launch.
fn agree(options: &[(&str, &str)], few: &[&str], more: &[&str]) {
    let launches = Launches::recorded();
    let Some((_backend, device)) = backend_device(options) else { return };
    configure(emulator(), true, 4);
    let mut first: Option<Vec<Vec<u8>>> = None;
    for (tokens, over) in TOKENS.into_iter().flat_map(|tokens| [(tokens, false), (tokens, true)]) {
        // What is in bf16 needs no scratch.
        if over && (options.is_empty() || !(9..=256).contains(&tokens)) {
            continue;
        }
        let bench = Bench::new(&device, tokens, over);
        let alone = bench.alone();
        launches.take();
        assert!(alone.iter().all(|y| f32s(y).iter().all(|v| v.is_finite())), "{tokens} tokens");
        assert!(bench.program(tokens as u32) == alone, "{tokens} tokens: a program gives other bits than its ops");
        let launched = launches.take();
        let rounding = launched.iter().filter(|kernel| *kernel == "quantise").count();
        let launched: Vec<&str> = launched.iter().map(String::as_str).filter(|kernel| *kernel != "quantise").collect();
        if tokens <= 256 {
            assert_eq!(launched, if tokens <= 16 { few } else { more }, "{tokens} tokens");
        }
        // Whoever makes rows leaves them rounded, but where others of them still have to be read. Of more than 256 tokens each product
        // has rows of its own, and the first has these.
        let more = if options.is_empty() { 0 } else { 2 };
        assert_eq!(rounding, if tokens > 256 { more } else { usize::from(over) }, "{tokens} tokens");
        let first = first.get_or_insert_with(|| alone.clone());
        for (i, (y, of_one)) in alone.iter().zip(&*first).enumerate() {
            assert!(y[..of_one.len()] == of_one[..], "result {i}: a row has other bits among {tokens} tokens");
        }
    }
}

#[test]
fn products_side_by_side_have_the_bits_they_have_alone() {
    let launches = ["rmsnorm", "several", "gated", "linear", "add_rmsnorm", "linear"];
    agree(&[], &launches, &launches);
}

#[test]
fn quantised_products_have_the_same_bits_in_every_tile() {
    // Twelve rows are too few to be quantised.
    let few = ["rmsnorm", "several", "linear", "gated", "few", "add_rmsnorm", "few"];
    let more = ["rmsnorm", "several_many", "linear", "gated", "many", "binary", "add_rmsnorm", "many"];
    agree(&[("precision", "fp8")], &few, &more);
}
