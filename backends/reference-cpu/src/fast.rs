//! Fast mode: catalogue ops bound to kernels.
//!
//! An op is prepared once: pointers resolved, shapes turned into kernel arguments, and the byte ranges it reads and
//! writes kept, from which [`link`] decides where workers must wait for each other. Ops that touch disjoint memory
//! (q, k and v projections, say) run without a barrier between them.

mod kimi_linear;
mod latent;

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use tokenspeed_backend_api::{
    catalogue::{Role, role},
    dtype::DType,
    op::{Attrs, OpKind, ROPE_PAIRS},
    sdk::{BoundOp, Fault, Operand, StepView},
};

use crate::{
    activation::{SiluArgs, silu},
    attention::{self, AttentionArgs, paged_attention},
    copy::{CopyArgs, copy},
    elementwise::{Binary, BinaryArgs, binary},
    embedding::{EmbeddingArgs, embedding},
    gemm::{self, GemmArgs, Weight, gemm},
    kv_write::{Pages, kv_write},
    level::Level,
    part::Part,
    pool::Worker,
    residency::{Residency, Stacks},
    rmsnorm::{RmsNormArgs, rmsnorm},
    rope::{RopeArgs, Style, fill_table, rope},
    row_gather::row_gather,
    table_update::table_update,
};

/// Layout id of a packed GEMM weight.
pub(crate) const PACKED: u32 = 1;

/// Cosines and sines of one step, shared by every rope op with the same frequencies.
#[derive(Debug)]
pub(crate) struct RopeTable {
    key: (usize, i64, u64),
    rotated: usize,
    data: *mut f32,
    len: usize,
}

// SAFETY: the buffer is written between barriers, each worker its own tokens, and only read after.
unsafe impl Send for RopeTable {}
// SAFETY: as above.
unsafe impl Sync for RopeTable {}

impl Drop for RopeTable {
    fn drop(&mut self) {
        // SAFETY: made from a boxed slice of this length in `RopeTables::get`.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data, self.len)) });
    }
}

/// The tables of a device, so that layers share them.
#[derive(Debug, Default)]
pub(crate) struct RopeTables(Mutex<Vec<Arc<RopeTable>>>);

impl RopeTables {
    fn get(&self, key: (usize, i64, u64), tokens: usize, rotated: usize) -> Arc<RopeTable> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|t| Arc::strong_count(t) > 1);
        let len = tokens * 2 * rotated;
        if let Some(known) = tables.iter().find(|t| t.key == key && t.rotated == rotated && t.len >= len) {
            return Arc::clone(known);
        }
        let data = Box::into_raw(vec![0f32; len].into_boxed_slice()).cast();
        let table = Arc::new(RopeTable { key, rotated, data, len });
        tables.push(Arc::clone(&table));
        table
    }
}

/// An op bound to memory.
#[derive(Debug)]
pub struct FastOp {
    kind: OpKind,
    attrs: Attrs,
    operands: Vec<Operand>,
    rope: Option<Arc<RopeTable>>,
    kimi: kimi_linear::Prepared,
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    /// Workers meet before this op.
    barrier_before: bool,
    /// This op fills the rope table it uses.
    fills_rope: bool,
    /// Scratch one worker needs.
    pub(crate) scratch_bytes: usize,
    /// Address of the memory that workers share during the op.
    workspace: usize,
    /// Keeps mapped experts within the device's budget.
    residency: Option<(Arc<Residency>, Stacks)>,
}

impl FastOp {
    pub(crate) fn new(
        level: Level,
        tables: &RopeTables,
        residency: Option<&Arc<Residency>>,
        op: &BoundOp<'_>,
    ) -> Result<Self, Fault> {
        let (kind, attrs, o) = (op.op.kind(), *op.op.attrs(), op.operands);
        if o.iter().enumerate().any(|(i, t)| !t.tensor.is_dense() && !latent::takes_stride(kind, i, o.len())) {
            return Err(Fault::unsupported(format!("{kind}: operands with a stride")));
        }
        let span = |o: &Operand| o.data as usize..o.data as usize + o.bytes;
        let by = |wanted: fn(Role) -> bool| {
            let hit = |i: usize| wanted(role(kind, i, o.len()));
            (0..o.len()).filter(|i| hit(*i)).map(|i| span(&o[i])).collect::<Vec<_>>()
        };
        let rope = (kind == OpKind::Rope).then(|| {
            let key = (o[1].data as usize, attrs.i[0], attrs.f[0].to_bits());
            tables.get(key, o[0].tensor.dims[0], 2 * o[1].tensor.dims[0])
        });
        let scratch_bytes = match kind {
            OpKind::Gemm => {
                let (x, w) = (&o[0].tensor, &o[1].tensor);
                gemm::scratch_bytes(level, w.dtype, x.dims[0], x.row_len())
            }
            OpKind::PagedAttention => {
                let (q, k) = (&o[0].tensor, &o[1].tensor);
                attention::scratch_bytes(q.dims[1], k.dims[2], q.dims[2])
            }
            _ if kimi_linear::handles(kind) => kimi_linear::scratch_bytes(level, kind, o),
            _ => 0,
        };
        let mut writes = by(|r| r != Role::In);
        let workspace = op.workspace as usize;
        if op.op.workspace_bytes() > 0 {
            writes.push(workspace..workspace + op.op.workspace_bytes() as usize);
        }
        let mut bound = Self {
            kimi: kimi_linear::Prepared::new(kind, attrs.i[0] as usize, o),
            kind,
            attrs,
            operands: o.to_vec(),
            rope,
            reads: by(|r| r != Role::Out),
            writes,
            barrier_before: true,
            fills_rope: true,
            scratch_bytes,
            workspace,
            residency: None,
        };
        if let Some(residency) = residency {
            bound.residency = latent::residency(kind, op.op.label(), o, residency)?;
        }
        if latent::handles(kind) {
            bound.scratch_bytes = latent::scratch_bytes(level, &bound);
        }
        Ok(bound)
    }

    /// Rows of operand `i` in this step.
    fn count(&self, step: &StepView<'_>, i: usize) -> usize {
        let t = &self.operands[i].tensor;
        step.count(t.vary, t.dims[0])
    }

    fn f32(&self, i: usize) -> *mut f32 {
        self.operands[i].data.cast()
    }

    /// One worker's share.
    ///
    /// # Errors
    /// A step that names what does not exist; nothing is written outside the operands.
    pub(crate) fn run(&self, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) -> Result<(), Fault> {
        if self.barrier_before {
            worker.barrier();
        }
        let part = worker.part();
        let rows = self.count(step, 0);
        let width = self.operands[0].tensor.row_len();
        // SAFETY: the SDK checked every operand against its binding and the step against the capacities; `level` was
        // detected when the device was opened; shares are disjoint; `link` placed barriers between dependent ops.
        unsafe {
            match self.kind {
                OpKind::TableUpdate => return self.update_tables(part, step),
                OpKind::Copy => copy(
                    part,
                    CopyArgs {
                        x: self.operands[0].data,
                        from: self.operands[0].tensor.dtype,
                        y: self.operands[1].data,
                        to: self.operands[1].tensor.dtype,
                        n: rows * width,
                    },
                ),
                OpKind::Gemm => self.gemm(level, worker, rows),
                OpKind::RmsNorm => {
                    let width = self.operands[1].tensor.dims[0];
                    let rows = rows * self.operands[0].tensor.row_len() / width;
                    self.norm(level, part, std::ptr::null(), std::ptr::null_mut(), [0, 1, 2], rows, width);
                }
                OpKind::AddRmsNorm => {
                    self.norm(level, part, self.f32(1), self.f32(3), [0, 2, 4], rows, width);
                }
                OpKind::Rope => self.rotate(level, worker, step),
                OpKind::Silu | OpKind::SiluMul => {
                    let fused = self.kind == OpKind::SiluMul;
                    let up = if fused { self.f32(1).cast_const() } else { std::ptr::null() };
                    let y = self.f32(self.operands.len() - 1);
                    silu(level, part, SiluArgs { x: self.f32(0), up, y, n: rows * width });
                }
                OpKind::Add | OpKind::Mul => {
                    let op = if self.kind == OpKind::Add { Binary::Add } else { Binary::Mul };
                    let args = BinaryArgs { a: self.f32(0), b: self.f32(1), y: self.f32(2), n: rows * width };
                    binary(level, part, op, args);
                }
                OpKind::Embedding => self.embed(part, step),
                OpKind::KvWrite => kv_write(part, self.f32(0), step.tokens, step.rows, self.pages(1, 2)),
                OpKind::PagedAttention => self.attend(level, worker, step),
                OpKind::RowGather => row_gather(part, self.f32(0), width, step.logit_rows, self.f32(1)),
                kind if latent::handles(kind) => return latent::run(self, level, worker, step),
                kind if kimi_linear::handles(kind) => return kimi_linear::run(self, level, worker, step),
                other => unreachable!("{other} has no kernel: `has_kernel` sends it to the reference"),
            }
        }
        Ok(())
    }

    fn update_tables(&self, part: Part, step: &StepView<'_>) -> Result<(), Fault> {
        // Deltas are few and in order: one worker applies them.
        if part.index != 0 {
            return Ok(());
        }
        for (component, o) in self.operands.iter().enumerate() {
            let n = o.tensor.dims[0] * o.tensor.dims[1];
            // SAFETY: the whole checked operand; only this worker touches it before the next barrier.
            let table = unsafe { std::slice::from_raw_parts_mut(o.data.cast::<u32>(), n) };
            table_update(table, o.tensor.dims[1], component as u32, step.deltas)
                .map_err(|e| Fault::invalid(e.to_string()))?;
        }
        Ok(())
    }

    /// # Safety
    /// As in [`Self::run`].
    unsafe fn gemm(&self, level: Level, worker: &mut Worker<'_>, m: usize) {
        let (x, w, last) = (&self.operands[0], &self.operands[1], self.operands.len() - 1);
        let (n, k) = (w.tensor.dims[0], x.tensor.row_len());
        let bias = if self.attrs.i[0] == 1 { self.f32(2).cast_const() } else { std::ptr::null() };
        let weight = Weight { data: w.data, dtype: w.tensor.dtype, packed: w.tensor.layout == PACKED };
        let args = GemmArgs { x: self.f32(0), ldx: k, weight, bias, y: self.f32(last), ldy: n, m, n, k };
        let part = worker.part();
        // SAFETY: the caller's promise.
        unsafe { gemm(level, part, worker.scratch(), &args) };
    }

    /// # Safety
    /// As in [`Self::run`].
    #[allow(clippy::too_many_arguments, reason = "two ops that differ in which operand is what")]
    unsafe fn norm(
        &self,
        level: Level,
        part: Part,
        residual: *const f32,
        sum: *mut f32,
        [x, w, y]: [usize; 3],
        rows: usize,
        width: usize,
    ) {
        let args = RmsNormArgs {
            x: self.f32(x),
            residual,
            sum,
            weight: self.f32(w),
            y: self.f32(y),
            rows,
            width,
            eps: self.attrs.f[0] as f32,
        };
        // SAFETY: the caller's promise.
        unsafe { rmsnorm(level, part, args) };
    }

    /// # Safety
    /// As in [`Self::run`].
    unsafe fn rotate(&self, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) {
        let table = self.rope.as_ref().expect("made with the op");
        let style = if self.attrs.i[0] == ROPE_PAIRS { Style::Pairs } else { Style::Halves };
        let (x, part, tokens) = (&self.operands[0].tensor, worker.part(), step.tokens.len());
        if self.fills_rope {
            let factor = if self.attrs.f[0] == 0.0 { 1.0 } else { self.attrs.f[0] as f32 };
            // SAFETY: the frequencies are a checked operand; the table has room for the capacity in tokens.
            unsafe {
                let inv_freq = std::slice::from_raw_parts(self.f32(1), table.rotated / 2);
                fill_table(part, style, inv_freq, factor, tokens, |t| step.tokens[t].position, table.data);
            }
            worker.barrier();
        }
        let args = RopeArgs {
            x: self.f32(0),
            y: self.f32(2),
            table: table.data,
            tokens,
            heads: x.dims[1],
            width: x.dims[2],
            rotated: table.rotated,
            style,
        };
        // SAFETY: the caller's promise.
        unsafe { rope(level, part, args) };
    }

    /// # Safety
    /// As in [`Self::run`].
    unsafe fn embed(&self, part: Part, step: &StepView<'_>) {
        let (table, width) = (&self.operands[0], self.operands[0].tensor.row_len());
        // SAFETY: the whole checked operand.
        let bytes = unsafe { std::slice::from_raw_parts(table.data, table.tensor.bytes) };
        let args = |y, tokens| EmbeddingArgs { table: bytes, dtype: table.tensor.dtype, width, y, tokens };
        let last = self.operands.len() - 1;
        // SAFETY: the whole checked operand, which nobody writes before the step's logits are there.
        let relay = unsafe {
            match last {
                2 => std::slice::from_raw_parts(self.operands[1].data.cast::<i32>(), self.operands[1].tensor.dims[0]),
                _ => &[],
            }
        };
        let id = |t: usize| match step.tokens[t].id {
            id if id < 0 => i64::from(*relay.get(id.unsigned_abs() as usize - 1).unwrap_or(&-1)),
            id => i64::from(id),
        };
        // SAFETY: the caller's promise.
        if unsafe { embedding(part, args(self.f32(last), step.tokens.len()), id) }.is_ok() {
            return;
        }
        // An id outside the table ends its own request: its row becomes NaN, the others their embedding.
        for t in part.of(step.tokens.len()) {
            // SAFETY: row t is this worker's.
            unsafe {
                let y = self.f32(last).add(t * width);
                if embedding(Part::WHOLE, args(y, 1), |_| id(t)).is_err() {
                    std::slice::from_raw_parts_mut(y, width).fill(f32::NAN);
                }
            }
        }
    }

    fn pages(&self, cache: usize, table: usize) -> Pages {
        let (c, t) = (&self.operands[cache], &self.operands[table]);
        Pages {
            data: c.data,
            dtype: c.tensor.dtype,
            blocks: c.tensor.dims[0],
            block_tokens: c.tensor.dims[1],
            width: c.tensor.dims[2] * c.tensor.dims[3],
            table: t.data.cast(),
            blocks_per_row: t.tensor.dims[1],
        }
    }

    /// # Safety
    /// As in [`Self::run`].
    unsafe fn attend(&self, level: Level, worker: &mut Worker<'_>, step: &StepView<'_>) {
        let (q, k) = (&self.operands[0].tensor, &self.operands[1].tensor);
        let args = AttentionArgs {
            q: self.f32(0),
            k: self.pages(1, 3),
            v: self.pages(2, 3),
            y: self.f32(4),
            rows: step.rows,
            heads: q.dims[1],
            kv_heads: k.dims[2],
            head_dim: q.dims[2],
            scale: self.attrs.f[0] as f32,
            window: self.attrs.i[1] as usize,
        };
        let part = worker.part();
        // SAFETY: the caller's promise.
        unsafe { paged_attention(level, part, worker.scratch(), &args) };
    }
}

/// Decide where workers meet, over the whole program in order.
pub(crate) fn link<'a>(ops: impl Iterator<Item = &'a mut FastOp>) {
    let overlap =
        |a: &[Range<usize>], b: &[Range<usize>]| a.iter().any(|x| b.iter().any(|y| x.start < y.end && y.start < x.end));
    let (mut reads, mut writes): (Vec<Range<usize>>, Vec<Range<usize>>) = Default::default();
    let mut table: *const RopeTable = std::ptr::null();
    for op in ops {
        op.barrier_before = overlap(&op.reads, &writes) || overlap(&op.writes, &writes) || overlap(&op.writes, &reads);
        if let Some(rope) = &op.rope {
            op.fills_rope = table != Arc::as_ptr(rope);
            table = Arc::as_ptr(rope);
        }
        if op.barrier_before {
            (reads, writes) = Default::default();
        }
        reads.extend(op.reads.iter().cloned());
        writes.extend(op.writes.iter().cloned());
    }
}

/// Whether a kernel exists. Other basic ops run as the catalogue's reference, other fused ones are expanded.
const fn has_kernel(kind: OpKind) -> bool {
    if latent::handles(kind) {
        return true;
    }
    matches!(
        kind,
        OpKind::TableUpdate
            | OpKind::Copy
            | OpKind::Gemm
            | OpKind::RmsNorm
            | OpKind::Rope
            | OpKind::Silu
            | OpKind::Add
            | OpKind::Mul
            | OpKind::Embedding
            | OpKind::KvWrite
            | OpKind::PagedAttention
            | OpKind::RowGather
            | OpKind::SiluMul
            | OpKind::AddRmsNorm
    ) || kimi_linear::handles(kind)
}

/// Whether an op with operands of these formats has one.
pub(crate) fn has_kernel_for(kind: OpKind, dtype: impl Fn(usize) -> DType) -> bool {
    has_kernel(kind) && (!latent::handles(kind) || latent::takes(kind, dtype))
}

/// Why the kernels cannot run an op that passed the catalogue's schema.
pub(crate) fn refusal(kind: OpKind, operands: &[tokenspeed_backend_api::tensor::Tensor]) -> Option<String> {
    let strided = |t: &tokenspeed_backend_api::tensor::Tensor| t.stride0 != 0 && t.stride() != t.row_bytes();
    let refused = |i: usize| strided(&operands[i]) && !latent::takes_stride(kind, i, operands.len());
    if let Some(i) = (0..operands.len()).find(|i| refused(*i)) {
        return Some(format!("operand {i} has a stride"));
    }
    let dtype = |i: usize| operands[i].dtype;
    match kind {
        OpKind::Gemm if !gemm::supported(dtype(1), operands[0].row_len()) => {
            Some(format!("no kernel for {}", dtype(1)))
        }
        OpKind::Copy if !crate::copy::supported(dtype(0), dtype(1)) => {
            Some(format!("no kernel from {} to {}", dtype(0), dtype(1)))
        }
        OpKind::PagedAttention if operands[2].dims[3] != operands[1].dims[3] => {
            Some("values of another width than keys".into())
        }
        _ if kimi_linear::handles(kind) => kimi_linear::refusal(kind, operands),
        _ => None,
    }
}

/// Memory of the activations arena that workers share during an op.
pub(crate) fn workspace_bytes(kind: OpKind, operands: &[tokenspeed_backend_api::tensor::Tensor]) -> u64 {
    latent::workspace_bytes(kind, operands)
}

/// Kernel name of an op bound in a file of its own.
pub(crate) fn special_kernel_name(
    level: Level,
    kind: OpKind,
    operands: &[tokenspeed_backend_api::tensor::Tensor],
) -> Option<String> {
    latent::handles(kind).then(|| latent::kernel_name(level, kind, operands))
}

/// Kernel name for the support table.
pub(crate) fn kernel_name(level: Level, kind: OpKind, weight: Option<DType>) -> String {
    match (kind, weight) {
        (OpKind::Gemm, Some(dtype)) => format!("{}-{dtype}", gemm::kernel_name(level, dtype)),
        _ => format!("{kind}-{level}"),
    }
}
