//! A model's graphs on two devices at once, op by op: with the same lists of ops, so that any operand of the one can be compared with,
//! or replaced by, the other's; or with the fused ops that each has, as the engine would run them. Programs of one device share its cache
//! and its tables, as those of the engine do.

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS},
    backend::{Arena, ArenaKind, Bindings, Device, Event, Queue},
    catalogue::{OpDesc, Role, role},
    graph::{Graph, WeightSource},
    op::{Attrs, OpKind},
    record::OpRecord,
    step::{StepData, StepView},
    support::{Rounding, Support},
    tensor::Tensor,
};
use tokenspeed_core::lower::{Capacity, Lowered, lower};

const TIMEOUT_NS: u64 = 600_000_000_000;

/// One device's half.
pub struct Side {
    device: Device,
    programs: Vec<Program>,
    /// The program that the methods are about.
    at: usize,
    queue: Queue,
    event: Event,
    value: u64,
}

struct Program {
    lowered: Lowered,
    ops: Vec<OpRecord>,
    bindings: Bindings,
}

fn ask(device: &Device, desc: &OpDesc, label: &str) -> Support {
    let operands = desc.operands.iter().map(|t| t.to_abi()).collect();
    device.op_support(&OpRecord::new(desc.kind, operands, desc.attrs, label)).unwrap_or_else(|e| panic!("{e}"))
}

/// Which fused ops a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fused {
    /// Those that both have: their lists of ops are the same.
    Both,
    /// Those that it has.
    Own,
}

/// Both halves, a program per graph and capacity. Capacities differ in tokens alone.
pub fn pair(
    devices: [Device; 2],
    fused: Fused,
    graphs: &[(&Graph, Capacity)],
    source: &dyn WeightSource,
    step_bytes: u64,
) -> [Side; 2] {
    let lowered = [0, 1].map(|own| {
        let mut support = |desc: &OpDesc, label: &str| {
            let other = ask(&devices[1 - own], desc, label);
            match fused == Fused::Both && desc.kind.is_fused() && !other.is_supported() {
                true => other,
                false => ask(&devices[own], desc, label),
            }
        };
        let alignment = devices[own].alignment();
        let mut lowered = |(graph, capacity): &(&Graph, Capacity)| lower(graph, *capacity, alignment, &mut support);
        graphs.iter().map(|g| lowered(g).unwrap_or_else(|e| panic!("{e}"))).collect::<Vec<_>>()
    });
    let kinds = |l: &Lowered| l.ops.iter().map(|op| op.desc.kind).collect::<Vec<_>>();
    for (one, other) in lowered[0].iter().zip(&lowered[1]) {
        assert!(fused == Fused::Own || kinds(one) == kinds(other));
    }
    let mut lowered = lowered.into_iter();
    devices.map(|device| Side::new(device, lowered.next().expect("two"), graphs, source, step_bytes))
}

impl Program {
    fn new(
        device: &Device,
        lowered: Lowered,
        graph: &Graph,
        source: &dyn WeightSource,
        mut bindings: Bindings,
    ) -> Self {
        // One arena with every form of every weight.
        let mut at = 0u64;
        let sizes: Vec<(u64, u64)> = lowered
            .weight_uses
            .iter()
            .map(|used| {
                let spec = &graph.weights[used.weight];
                let elements = spec.dims.iter().product::<u64>();
                let bytes = used.pack.map_or_else(|| spec.dtype.bytes(elements).expect("whole blocks"), |p| p.bytes);
                let offset = at;
                at = (at + bytes).next_multiple_of(device.alignment());
                (offset, bytes)
            })
            .collect();
        let weights = alloc(device, &mut bindings, TS_BIND_WEIGHTS, ArenaKind::Weights, at);
        let ops: Vec<OpRecord> = lowered
            .ops
            .iter()
            .map(|op| {
                let mut operands: Vec<_> = op.desc.operands.iter().map(|t| t.to_abi()).collect();
                for (operand, used) in &op.weights {
                    (operands[*operand].binding, operands[*operand].offset) = (TS_BIND_WEIGHTS, sizes[*used].0);
                }
                let mut record = OpRecord::new(op.desc.kind, operands, op.desc.attrs, op.label.clone());
                (record.workspace_offset, record.workspace_bytes) = op.workspace;
                record
            })
            .collect();
        for (used, (offset, bytes)) in lowered.weight_uses.iter().zip(&sizes) {
            let found = source.weight(&graph.weights[used.weight]).unwrap_or_else(|e| panic!("{e}"));
            let contents = found.contents(&source.regions()).into_owned();
            match used.pack {
                None => device.write(&weights, *offset, &contents).unwrap(),
                Some(pack) => {
                    device.op_pack(&ops[used.first_op], pack.operand, &contents, &weights, *offset, *bytes).unwrap();
                }
            }
        }
        Self { lowered, ops, bindings }
    }
}

fn alloc(device: &Device, bindings: &mut Bindings, slot: u32, kind: ArenaKind, bytes: u64) -> Arena {
    let arena = device.arena_alloc(kind, bytes.max(1)).unwrap_or_else(|e| panic!("{e}"));
    bindings.bind_all(slot, &arena);
    arena
}

impl Side {
    fn new(
        device: Device,
        lowered: Vec<Lowered>,
        graphs: &[(&Graph, Capacity)],
        source: &dyn WeightSource,
        step_bytes: u64,
    ) -> Self {
        let most = |bytes: fn(&Lowered) -> u64| lowered.iter().map(bytes).max().expect("a program");
        let (tables, cache) = (most(|l| l.table_bytes), most(|l| l.cache_bytes));
        assert!(
            lowered.iter().all(|l| (l.table_bytes, l.cache_bytes) == (tables, cache)),
            "one cache for all programs"
        );
        let mut shared = Bindings::new();
        for (slot, kind, bytes) in [
            (TS_BIND_STEP, ArenaKind::Step, step_bytes),
            (TS_BIND_TABLES, ArenaKind::Tables, tables),
            (TS_BIND_CACHE, ArenaKind::Cache, cache),
            (TS_BIND_ACTIVATIONS, ArenaKind::Activations, most(|l| l.activation_bytes)),
            (TS_BIND_OUTPUT, ArenaKind::Output, most(|l| l.output_bytes)),
        ] {
            let arena = alloc(&device, &mut shared, slot, kind, bytes);
            if slot == TS_BIND_TABLES {
                device.write(&arena, 0, &vec![0; tables as usize]).unwrap();
            }
        }
        let programs = lowered.into_iter().zip(graphs);
        let programs =
            programs.map(|(l, (graph, _))| Program::new(&device, l, graph, source, shared.clone())).collect();
        let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
        Self { device, programs, at: 0, queue, event, value: 0 }
    }

    fn program(&self) -> &Program {
        &self.programs[self.at]
    }

    fn arena(&self, binding: u32) -> Arena {
        self.program().bindings.arena(binding).cloned().expect("bound")
    }

    /// Turns to another program, and begins a step of it.
    pub fn begin(&mut self, program: usize, step: &StepData) {
        self.at = program;
        self.device.write(&self.arena(TS_BIND_STEP), 0, &step.to_bytes()).unwrap();
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.program().ops.len()
    }

    /// What op `index` is.
    pub fn op(&self, index: usize) -> (OpKind, &str) {
        (self.program().ops[index].kind, &self.program().ops[index].label)
    }

    /// The kernels that the device takes for it.
    pub fn implementation(&self, index: usize) -> &str {
        &self.program().lowered.ops[index].support.implementation
    }

    /// What the device rounds in it.
    pub fn rounding(&self, index: usize) -> Rounding {
        self.program().lowered.ops[index].support.rounding
    }

    /// Its attributes, for tests that want them wrong.
    pub fn attrs(&mut self, index: usize) -> &mut Attrs {
        &mut self.programs[self.at].ops[index].attrs
    }

    /// Runs op `index` to its end.
    pub fn run(&mut self, index: usize) {
        self.value += 1;
        let Program { ops, bindings, .. } = self.program();
        let fail = |e| panic!("{}: {e}", ops[index].label);
        self.device.op_launch(&self.queue, &ops[index], bindings).unwrap_or_else(fail);
        self.device.queue_signal(&self.queue, &self.event, self.value).unwrap();
        self.event.wait(self.value, TIMEOUT_NS).unwrap_or_else(fail);
    }

    /// Operands of op `index` outside the weights: number, role, descriptor cut to the step's counts.
    pub fn operands(&self, index: usize, step: &StepView<'_>) -> Vec<(usize, Role, Tensor)> {
        let op = &self.program().lowered.ops[index];
        let all = op.desc.operands.iter().enumerate().filter(|(i, _)| !op.weights.iter().any(|(w, _)| w == i));
        all.map(|(i, t)| (i, role(op.desc.kind, i, op.desc.operands.len()), t.cut(step))).collect()
    }

    /// Where an operand lies: its binding, and its bytes there as far as the step uses it.
    pub fn place(&self, index: usize, operand: usize, tensor: &Tensor) -> (u32, std::ops::Range<u64>) {
        let place = &self.program().ops[index].operands[operand];
        (place.binding, place.offset..place.offset + tensor.bytes())
    }

    /// Bytes of an operand, as far as the step uses it.
    pub fn read(&self, index: usize, operand: usize, tensor: &Tensor) -> Vec<u8> {
        let place = &self.program().ops[index].operands[operand];
        let mut bytes = vec![0; tensor.bytes() as usize];
        self.device.read(&self.arena(place.binding), place.offset, &mut bytes).unwrap();
        bytes
    }

    /// Replaces them.
    pub fn write(&self, index: usize, operand: usize, bytes: &[u8]) {
        let place = &self.program().ops[index].operands[operand];
        self.device.write(&self.arena(place.binding), place.offset, bytes).unwrap();
    }

    /// The first `n` logits of the step that was run.
    pub fn logits(&self, n: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * n];
        self.device.read(&self.arena(TS_BIND_OUTPUT), 0, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}
