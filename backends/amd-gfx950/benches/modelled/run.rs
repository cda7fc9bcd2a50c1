//! Runs a row's ops on the emulator and collects what it logged.

use std::{ffi::CString, io::Read as _, io::Seek as _, path::PathBuf};

use tokenspeed_amd_gfx950::hip::Hip;
use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS},
    backend::{ArenaKind, Backend, Bindings, Bucket, Device, StepBuffer},
    loader::{SearchPaths, load},
    record::OpRecord,
};

use crate::{
    find,
    launches::Sum,
    op::Op,
    rows::Row,
    table::{self, Sets},
};

/// Kernels that run whole: on whose results the addresses of others depend, and some whose neighbouring work-groups share rows or lines in
/// part, which a sample does not see.
const WHOLE: &str = "sort,clear,count,cut,place,deal,survey,short_conv,short_conv_long,prepare_mix,mix,finish";
const TIMEOUT_NS: u64 = 3_600_000_000_000;
/// Bytes of the memory-side cache.
const SIDE_CACHE: u64 = 256 << 20;
/// Operands start at multiples of this.
const ALIGN: u64 = 256;

/// The backend on the emulator, by each set of options.
pub struct Session {
    devices: Vec<Device>,
    best: bool,
    _backend: Backend,
    hip: &'static Hip,
    log: PathBuf,
    listed: bool,
}

impl Session {
    /// Loads emulator and backend.
    ///
    /// # Errors
    /// What is missing, and how it is made.
    pub fn new(listed: bool, best: bool) -> Result<Self, String> {
        let log = std::env::temp_dir().join(format!("gfx950-launches-{}", std::process::id()));
        let variables = [
            ("TOKENSPEED_EMULATOR_CHECKS", "0".into()),
            ("TOKENSPEED_EMULATOR_COUNTERS", log.clone()),
            ("TOKENSPEED_HIP_LIBRARY", find::profile().join("libamdhip64.so")),
            ("TOKENSPEED_KERNELS", find::target().join("kernels")),
        ];
        for (name, value) in variables {
            if std::env::var_os(name).is_none() || name.contains("EMULATOR") {
                // SAFETY: the program's only thread, and the libraries that read these are loaded below.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let hip = tokenspeed_amd_gfx950::hip::load().map_err(|e| e.to_string())?;
        let backend = load("amd-gfx950", &SearchPaths::only([])).map_err(|e| e.to_string())?;
        let open = |options: &[_]| backend.open(0, options).map_err(|e| e.to_string());
        let (expanded, fp8) = (("mla_prefill", "expanded"), ("precision", "fp8"));
        let options: [&[_]; 5] =
            [&[("kernels", "best")], &[("kernels", "portable")], &[expanded], &[fp8], &[expanded, fp8]];
        let devices = options.into_iter().map(open).collect::<Result<_, _>>()?;
        std::fs::write(&log, "").map_err(|e| format!("{}: {e}", log.display()))?;
        Ok(Self { devices, _backend: backend, hip, log, listed, best })
    }

    /// Both lines of a row, and what is wrong with the first.
    ///
    /// # Errors
    /// Whatever the backend says.
    pub fn measure(&self, row: &Row, sets: &Sets) -> Result<(String, Vec<String>), String> {
        let needs = |ops: &[Op]| ops.iter().map(|op| op.floor_bytes).sum::<f64>();
        let own = [needs(&row.ops[0]), needs(&row.ops[1])];
        // Whichever cut needs less: what lies between the ops of the other is no need, unless they run apart.
        let apart = row.ops.iter().flatten().any(|op| op.apart);
        let floors = if apart { own } else { [own[0].min(own[1]); 2] };
        let mut sums = Vec::new();
        for (i, (device, ops)) in sets.devices.iter().zip(&row.ops).take(if self.best { 1 } else { 2 }).enumerate() {
            let device = &self.devices[*device];
            let before = std::fs::metadata(&self.log).map_err(|e| e.to_string())?.len();
            // Portable kernels do many times the work: there a sample has to do.
            let behind = row.behind && (i == 0 || row.sample == 0);
            self.sample(if behind { 0 } else { row.sample })?;
            if behind {
                self.hollow(true, SIDE_CACHE)?;
            }
            for op in ops {
                launch(device, op)?;
            }
            let left = self.hollow(false, 0)?;
            let log = self.logged(before)?;
            if self.listed {
                eprint!("{}", Sum::list(&log)?);
            }
            let mut sum = Sum::of(&log)?;
            // What the cache still holds for memory goes there, sooner or later.
            sum.behind = sum.behind.map(|bytes| bytes + left as f64);
            sums.push(sum);
        }
        Ok((table::lines(row, floors, &sums, sets), table::problems(row, floors[0], &sums[0])))
    }

    fn logged(&self, from: u64) -> Result<String, String> {
        let wrap = |e: std::io::Error| format!("{}: {e}", self.log.display());
        let mut file = std::fs::File::open(&self.log).map_err(wrap)?;
        file.seek(std::io::SeekFrom::Start(from)).map_err(wrap)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(wrap)?;
        Ok(text)
    }

    /// Counts with or without products and behind a fresh memory-side cache; bytes that the one before held for memory.
    fn hollow(&self, hollow: bool, cache_bytes: u64) -> Result<u64, String> {
        type Hollow = unsafe extern "C" fn(i32, u64, *mut u64) -> i32;
        // SAFETY: the library is loaded already, so nothing new runs.
        let library = unsafe { libloading::Library::new(&self.hip.path) }.map_err(|e| e.to_string())?;
        // SAFETY: the emulator's function has this type.
        let f = unsafe { library.get::<Hollow>(b"tokenspeedEmulatorHollow") };
        let f = f.map_err(|_| format!("{} is not the emulator", self.hip.path.display()))?;
        let mut changed = 0;
        // SAFETY: takes two numbers and a place for a third.
        match unsafe { f(hollow.into(), cache_bytes, &mut changed) } {
            0 => Ok(changed),
            status => Err(format!("tokenspeedEmulatorHollow: status {status}")),
        }
    }

    fn sample(&self, most: u32) -> Result<(), String> {
        type Sample = unsafe extern "C" fn(u32, *const std::ffi::c_char) -> i32;
        // SAFETY: the library is loaded already, so nothing new runs.
        let library = unsafe { libloading::Library::new(&self.hip.path) }.map_err(|e| e.to_string())?;
        // SAFETY: the emulator's function has this type.
        let f = unsafe { library.get::<Sample>(b"tokenspeedEmulatorSample") };
        let f = f.map_err(|_| format!("{} is not the emulator", self.hip.path.display()))?;
        let whole = CString::new(WHOLE).expect("no zero in it");
        // SAFETY: takes a number and a zero-terminated text that lives through the call.
        match unsafe { f(most, whole.as_ptr()) } {
            0 => Ok(()),
            status => Err(format!("tokenspeedEmulatorSample: status {status}")),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Best effort: a file of temporary data.
        let _gone = std::fs::remove_file(&self.log);
    }
}

/// Runs an op once, or the program that it begins: operands in one arena of zeros, contents written where there are any.
fn launch(device: &Device, first: &Op) -> Result<(), String> {
    let fail = |e: tokenspeed_backend_api::backend::BackendError| format!("{}: {e}", first.kind);
    let mut at = 0;
    let mut named: Vec<(&str, u64)> = Vec::new();
    let mut contents = Vec::new();
    let mut ops = Vec::new();
    for op in first.all() {
        let mut tensors = Vec::new();
        for operand in &op.operands {
            let mut tensor = operand.tensor;
            let known = named.iter().find(|(name, _)| !name.is_empty() && *name == operand.name);
            (tensor.binding, tensor.offset) = (TS_BIND_ACTIVATIONS, known.map_or(at, |(_, offset)| *offset));
            if known.is_none() {
                named.push((operand.name, at));
                at += tensor.bytes().next_multiple_of(ALIGN);
            }
            contents.extend(operand.bytes.as_ref().map(|bytes| (tensor.offset, bytes)));
            tensors.push(tensor.to_abi());
        }
        ops.push((OpRecord::new(op.kind, tensors, op.attrs, "modelled"), op));
    }
    let mut bindings = Bindings::new();
    let mut records = Vec::new();
    let mut slots = TS_BIND_WEIGHTS..;
    for (mut record, op) in ops {
        let support = device.op_support(&record).map_err(fail)?;
        if !support.is_supported() {
            return Err(format!("{}: refused: {}", op.kind, support.reason));
        }
        (record.workspace_offset, record.workspace_bytes) = (at, support.workspace_bytes);
        at += support.workspace_bytes.next_multiple_of(ALIGN);
        for pack in &support.packs {
            let slot = slots.next().expect("no end");
            // Zeros in whatever form.
            bindings.bind_all(slot, &device.arena_alloc(ArenaKind::Weights, pack.bytes).map_err(fail)?);
            let operand = &mut record.operands[pack.operand as usize];
            (operand.binding, operand.offset, operand.layout) = (slot, 0, pack.layout);
        }
        records.push(record);
    }
    let arena = device.arena_alloc(ArenaKind::Activations, at.max(1)).map_err(fail)?;
    let block = first.step.to_bytes();
    let step = device.arena_alloc(ArenaKind::Step, block.len() as u64).map_err(fail)?;
    bindings.bind_all(TS_BIND_STEP, &step).bind_all(TS_BIND_ACTIVATIONS, &arena);
    for (slot, kind) in
        [(TS_BIND_TABLES, ArenaKind::Tables), (TS_BIND_CACHE, ArenaKind::Cache), (TS_BIND_OUTPUT, ArenaKind::Output)]
    {
        bindings.bind_all(slot, &device.arena_alloc(kind, 64).map_err(fail)?);
    }
    device.write(&step, 0, &block).map_err(fail)?;
    for (offset, bytes) in contents {
        device.write(&arena, offset, bytes).map_err(fail)?;
    }
    let (queue, event) = (device.queue_create().map_err(fail)?, device.event_create().map_err(fail)?);
    if let [record] = &records[..] {
        device.op_launch(&queue, record, &bindings).map_err(fail)?;
        device.queue_signal(&queue, &event, 1).map_err(fail)?;
        return event.wait(1, TIMEOUT_NS).map_err(fail);
    }
    let rows = first.step.rows.len() as u32;
    let bucket = Bucket { max_tokens: first.tokens() as u32, max_rows: rows, max_logit_rows: rows };
    let program = device.program_prepare(&records, &bindings, bucket).map_err(fail)?;
    let mut buffer = StepBuffer::with_capacity(block.len());
    buffer.bytes_mut().expect("not yet lent")[..block.len()].copy_from_slice(&block);
    buffer.set_len(block.len());
    device.program_run(&program, &queue, &mut buffer, &event, 1).map_err(fail)?;
    event.wait(1, TIMEOUT_NS).map_err(fail)
}
