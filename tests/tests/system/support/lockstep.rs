//! A model's graph on two devices at once, op by op: both run the same list of ops, so that any operand of the one can be
//! compared with, or replaced by, the other's.

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS},
    backend::{Arena, ArenaKind, Bindings, Device, Event, Queue},
    catalogue::{OpDesc, Role, role},
    graph::{Graph, WeightSource},
    op::OpKind,
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
    lowered: Lowered,
    ops: Vec<OpRecord>,
    bindings: Bindings,
    queue: Queue,
    event: Event,
    value: u64,
}

fn ask(device: &Device, desc: &OpDesc, label: &str) -> Support {
    let operands = desc.operands.iter().map(|t| t.to_abi()).collect();
    device.op_support(&OpRecord::new(desc.kind, operands, desc.attrs, label)).unwrap_or_else(|e| panic!("{e}"))
}

/// Both halves; fused ops are taken only where both devices have them, so that the lists are the same.
pub fn pair(
    devices: [Device; 2],
    graph: &Graph,
    capacity: Capacity,
    source: &dyn WeightSource,
    step_bytes: u64,
) -> [Side; 2] {
    let lowered = [0, 1].map(|own| {
        let mut support = |desc: &OpDesc, label: &str| {
            let other = ask(&devices[1 - own], desc, label);
            match desc.kind.is_fused() && !other.is_supported() {
                true => other,
                false => ask(&devices[own], desc, label),
            }
        };
        lower(graph, capacity, devices[own].alignment(), &mut support).unwrap_or_else(|e| panic!("{e}"))
    });
    let kinds = |l: &Lowered| l.ops.iter().map(|op| op.desc.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&lowered[0]), kinds(&lowered[1]));
    let mut lowered = lowered.into_iter();
    devices.map(|device| Side::new(device, lowered.next().expect("two"), graph, source, step_bytes))
}

impl Side {
    fn new(device: Device, lowered: Lowered, graph: &Graph, source: &dyn WeightSource, step_bytes: u64) -> Self {
        let mut bindings = Bindings::new();
        let mut alloc = |slot, kind, bytes: u64| {
            let arena = device.arena_alloc(kind, bytes.max(1)).unwrap_or_else(|e| panic!("{e}"));
            bindings.bind_all(slot, &arena);
            arena
        };
        alloc(TS_BIND_STEP, ArenaKind::Step, step_bytes);
        let tables = alloc(TS_BIND_TABLES, ArenaKind::Tables, lowered.table_bytes);
        alloc(TS_BIND_CACHE, ArenaKind::Cache, lowered.cache_bytes);
        alloc(TS_BIND_ACTIVATIONS, ArenaKind::Activations, lowered.activation_bytes);
        alloc(TS_BIND_OUTPUT, ArenaKind::Output, lowered.output_bytes);
        device.write(&tables, 0, &vec![0; lowered.table_bytes as usize]).unwrap();
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
        let weights = alloc(TS_BIND_WEIGHTS, ArenaKind::Weights, at);
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
        let (queue, event) = (device.queue_create().unwrap(), device.event_create().unwrap());
        Self { device, lowered, ops, bindings, queue, event, value: 0 }
    }

    fn arena(&self, binding: u32) -> Arena {
        self.bindings.arena(binding).cloned().expect("bound")
    }

    /// Begins a step.
    pub fn begin(&self, step: &StepData) {
        self.device.write(&self.arena(TS_BIND_STEP), 0, &step.to_bytes()).unwrap();
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.ops.len()
    }

    /// What op `index` is.
    pub fn op(&self, index: usize) -> (OpKind, &str) {
        (self.ops[index].kind, &self.ops[index].label)
    }

    /// What the device rounds in it.
    pub fn rounding(&self, index: usize) -> Rounding {
        self.lowered.ops[index].support.rounding
    }

    /// Runs op `index` to its end.
    pub fn run(&mut self, index: usize) {
        let fail = |e| panic!("{}: {e}", self.ops[index].label);
        self.value += 1;
        self.device.op_launch(&self.queue, &self.ops[index], &self.bindings).unwrap_or_else(fail);
        self.device.queue_signal(&self.queue, &self.event, self.value).unwrap();
        self.event.wait(self.value, TIMEOUT_NS).unwrap_or_else(fail);
    }

    /// Operands of op `index` outside the weights: number, role, descriptor cut to the step's counts.
    pub fn operands(&self, index: usize, step: &StepView<'_>) -> Vec<(usize, Role, Tensor)> {
        let op = &self.lowered.ops[index];
        let all = op.desc.operands.iter().enumerate().filter(|(i, _)| !op.weights.iter().any(|(w, _)| w == i));
        all.map(|(i, t)| (i, role(op.desc.kind, i, op.desc.operands.len()), t.cut(step))).collect()
    }

    /// Bytes of an operand, as far as the step uses it.
    pub fn read(&self, index: usize, operand: usize, tensor: &Tensor) -> Vec<u8> {
        let place = &self.ops[index].operands[operand];
        let mut bytes = vec![0; tensor.bytes() as usize];
        self.device.read(&self.arena(place.binding), place.offset, &mut bytes).unwrap();
        bytes
    }

    /// Replaces them.
    pub fn write(&self, index: usize, operand: usize, bytes: &[u8]) {
        let place = &self.ops[index].operands[operand];
        self.device.write(&self.arena(place.binding), place.offset, bytes).unwrap();
    }

    /// The first `n` logits of the step that was run.
    pub fn logits(&self, n: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * n];
        self.device.read(&self.arena(TS_BIND_OUTPUT), 0, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}
