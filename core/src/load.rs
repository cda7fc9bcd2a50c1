//! Carry out a lowering: allocate arenas, bring in weights, prepare the program.
//!
//! Weights stay where they are whenever the backend can import host memory: a mapped checkpoint is then neither copied
//! nor read before it is used. Otherwise they are copied once into a weights arena. A packed form is made from the
//! stored bytes, into an arena of its own.

use std::{collections::HashMap, sync::Arc};

use tokenspeed_backend_api::{
    abi::{TS_BIND_ACTIVATIONS, TS_BIND_CACHE, TS_BIND_OUTPUT, TS_BIND_STEP, TS_BIND_TABLES, TS_BIND_WEIGHTS},
    backend::{Arena, ArenaKind, BackendError, Bindings, Bucket, Device, Load, Segment},
    exec::{Executable, Via},
    graph::{Graph, WeightBytes, WeightSource},
    op::OpKind,
    record::OpRecord,
};

use crate::{
    cache::copies::CopyOrder,
    driver::{CopyError, HostCache, StepRunner},
    engine::Pass,
    lower::{CacheLayout, Capacity, Lowered, cache_layout},
    memory::weight_bytes,
    sampler::{
        device::Sampled,
        side::{SideRow, SideUpdates},
    },
};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The checkpoint could not supply a weight.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// Name in the graph.
        name: String,
        /// The reader's words.
        reason: String,
    },
}

/// Told while loading: bytes done and in total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Where a weight use ended up.
#[derive(Clone, Copy, Debug)]
struct Place {
    binding: u32,
    offset: u64,
    /// Bytes between entries of dimension 0; 0 = dense.
    stride: u64,
}

/// A weight's name, and layout and size of its packed form.
type Form<'a> = (&'a str, Option<(u32, u64)>);

/// By weight use.
type Places = Vec<Place>;

/// What to load, decided beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The model's graphs, in the order of [`Pass`]: the forward pass, and the two others if guesses are to be checked;
    /// then those of a draft model, see [`DeviceProgram::with_draft`].
    pub graphs: &'a [&'a Graph],
    /// Their programs.
    pub lowered: &'a [Lowered],
    /// What it was lowered for.
    pub capacity: Capacity,
    /// The largest parameter block.
    pub step_bytes: u64,
    /// Programs or walker; `None` = programs where the backend has them.
    pub via: Option<Via>,
}

/// Load `plan` on `device`.
pub fn load(
    device: Device,
    plan: &Plan<'_>,
    source: Arc<dyn WeightSource>,
    progress: &mut Progress<'_>,
) -> Result<DeviceProgram, LoadError> {
    let Plan { graphs, lowered, capacity, step_bytes, via } = *plan;
    assert!(graphs.len() == lowered.len() && !graphs.is_empty(), "a program per graph");
    let first = &lowered[0];
    assert!(lowered.iter().all(|l| l.cache_bytes == first.cache_bytes), "the passes of a model share one cache");
    // Tables lie alike in all of them; those that sample have relay slots behind.
    let largest = |bytes: fn(&Lowered) -> u64| lowered.iter().map(bytes).max().unwrap_or(0);
    let mut bindings = Bindings::new();
    let alloc = |bindings: &mut Bindings, slot, kind, bytes: u64| -> Result<Arena, BackendError> {
        let arena = device.arena_alloc(kind, bytes.max(1))?;
        bindings.bind_all(slot, &arena);
        Ok(arena)
    };
    alloc(&mut bindings, TS_BIND_STEP, ArenaKind::Step, step_bytes)?;
    let table_bytes = largest(|l| l.table_bytes);
    let tables = alloc(&mut bindings, TS_BIND_TABLES, ArenaKind::Tables, table_bytes)?;
    let cache = alloc(&mut bindings, TS_BIND_CACHE, ArenaKind::Cache, first.cache_bytes)?;
    alloc(&mut bindings, TS_BIND_ACTIVATIONS, ArenaKind::Activations, largest(|l| l.activation_bytes))?;
    // Tables start at the scratch block: entries never written must still name memory that exists.
    // Rows of side tables are written whole before a step names them.
    let blank_bytes = lowered.iter().find_map(|l| l.side).map_or(table_bytes, |[counts, ..]| counts.0);
    device.write(&tables, 0, &vec![0; blank_bytes as usize])?;
    let places = load_weights(&device, plan, &source, &mut bindings, progress)?;
    let bucket = Bucket { max_tokens: capacity.tokens, max_rows: capacity.rows, max_logit_rows: capacity.logit_rows };
    let mut programs = Vec::with_capacity(lowered.len());
    for (lowered, places) in lowered.iter().zip(&places) {
        // Each its own: the logits of one pass are still wanted when the next has run.
        let mut bindings = bindings.clone();
        alloc(&mut bindings, TS_BIND_OUTPUT, ArenaKind::Output, lowered.output_bytes)?;
        programs.push((records(lowered, places), bindings, bucket));
    }
    // What ends these programs once more, alone: for steps that wait for masks.
    let mut sampling = [None; 2];
    for (at, (lowered, places)) in lowered.iter().zip(&places).enumerate().filter(|(_, (l, _))| l.side.is_some()) {
        let sample = (0..lowered.ops.len()).filter(|&op| lowered.ops[op].desc.kind == OpKind::Sample);
        let sample = sample.map(|op| record(lowered, op, places)).collect();
        sampling[at] = Some(programs.len());
        programs.push((sample, programs[at].1.clone(), bucket));
    }
    let layout = cache_layout(graphs[0], &capacity, device.alignment());
    let mut executable = Executable::new(device, programs, via)?;
    for (program, offsets) in lowered.iter().enumerate().filter_map(|(at, l)| Some((at, l.sampled?))) {
        executable = executable.with_sampling(program, offsets, capacity.logit_rows as usize);
        if let Some(alone) = sampling.get(program).copied().flatten() {
            executable = executable.with_sampling(alone, offsets, capacity.logit_rows as usize);
        }
    }
    // They lie alike in all programs that have them.
    let side = lowered.iter().find_map(|l| l.side).map(|places| Side { tables, places, row: Vec::new() });
    let vocab = lowered.iter().map(|l| l.vocab as usize).collect();
    Ok(DeviceProgram {
        executable,
        vocab,
        draft: None,
        replay: Pass::Replay as usize,
        cache,
        layout,
        host: None,
        side,
        sampling,
        is_apart: [false; 2],
    })
}

fn load_weights(
    device: &Device,
    plan: &Plan<'_>,
    source: &Arc<dyn WeightSource>,
    bindings: &mut Bindings,
    progress: &mut Progress<'_>,
) -> Result<Vec<Places>, LoadError> {
    let Plan { graphs, lowered, .. } = *plan;
    let regions = if device.can_import() { source.regions().len() } else { 0 };
    for region in 0..regions {
        let arena = device.arena_import(ArenaKind::Weights, Arc::clone(source), |s| s.regions()[region])?;
        bindings.bind_all(TS_BIND_WEIGHTS + region as u32, &arena);
    }
    let (copied_slot, packed_slot) = (TS_BIND_WEIGHTS + regions as u32, TS_BIND_WEIGHTS + regions as u32 + 1);
    let alignment = device.alignment();
    // Pass and weight use of what is made here; passes share whatever they want in the same form.
    let (mut copied, mut packed) = (Vec::new(), Vec::new());
    let (mut copied_bytes, mut packed_bytes) = (0u64, 0u64);
    let mut known: HashMap<Form<'_>, Place> = HashMap::new();
    let mut places = vec![Places::new(); graphs.len()];
    let spec = |(pass, index): (usize, usize)| &graphs[pass].weights[lowered[pass].weight_uses[index].weight];
    let weight = |at| {
        let spec = spec(at);
        source.weight(spec).map_err(|reason| LoadError::Weight { name: spec.name.clone(), reason })
    };
    let uses = lowered.iter().enumerate().flat_map(|(pass, l)| (0..l.weight_uses.len()).map(move |i| (pass, i)));
    for at in uses {
        let (pass, index) = at;
        let (dtype, wanted) = (spec(at).dtype, &lowered[pass].weight_uses[index]);
        let form = (spec(at).name.as_str(), wanted.pack.map(|p| (p.layout, p.bytes)));
        if let Some(place) = known.get(&form) {
            places[pass].push(*place);
            continue;
        }
        // Shared memory needs no more than the format's own alignment.
        let needed = if device.host_mapped() {
            if dtype.block_len() == 1 { dtype.block_bytes() as u64 } else { 2 }
        } else {
            alignment
        };
        let dense = |binding, offset| Place { binding, offset, stride: 0 };
        let place = match (wanted.pack, weight(at)?) {
            (Some(pack), _) => {
                let offset = packed_bytes;
                packed_bytes = (offset + pack.bytes).next_multiple_of(alignment);
                packed.push(at);
                dense(packed_slot, offset)
            }
            (None, WeightBytes::Mapped { region, offset, .. }) if regions > 0 && offset.is_multiple_of(needed) => {
                dense(TS_BIND_WEIGHTS + region as u32, offset)
            }
            (None, WeightBytes::Pitched { region, offset, pitch, .. })
                if regions > 0
                    && offset.is_multiple_of(needed)
                    && pitch.is_multiple_of(needed)
                    && takes_stride(device, &lowered[pass], index, pitch)? =>
            {
                Place { binding: TS_BIND_WEIGHTS + region as u32, offset, stride: pitch }
            }
            (None, _) => {
                let offset = copied_bytes;
                copied_bytes = (offset + weight_bytes(spec(at))).next_multiple_of(alignment);
                copied.push((offset, at));
                dense(copied_slot, offset)
            }
        };
        known.insert(form, place);
        places[pass].push(place);
    }
    let total: u64 = copied_bytes + packed_bytes;
    let mut done = 0;
    progress(done, total);
    let arena = |slot, bytes: u64, bindings: &mut Bindings| -> Result<Arena, BackendError> {
        let arena = device.arena_alloc(ArenaKind::Weights, bytes.max(1))?;
        bindings.bind_all(slot, &arena);
        Ok(arena)
    };
    let copies = arena(copied_slot, copied_bytes, bindings)?;
    for (offset, at) in copied {
        let bytes = weight(at)?;
        let regions = source.regions();
        let bytes = bytes.contents(&regions);
        device.write(&copies, offset, &bytes)?;
        done += bytes.len() as u64;
        progress(done, total);
    }
    let packs = arena(packed_slot, packed_bytes, bindings)?;
    for at in packed {
        let (pass, index) = at;
        let wanted = &lowered[pass].weight_uses[index];
        let pack = wanted.pack.expect("listed for it");
        let op = record(&lowered[pass], wanted.first_op, &places[pass]);
        let bytes = weight(at)?;
        let bytes = bytes.contents(&source.regions());
        device.op_pack(&op, pack.operand, &bytes, &packs, places[pass][index].offset, pack.bytes)?;
        done += pack.bytes;
        progress(done, total);
    }
    Ok(places)
}

/// Whether every op that uses weight use `index` takes it with this stride. Lowering asked about dense weights.
fn takes_stride(device: &Device, lowered: &Lowered, index: usize, stride: u64) -> Result<bool, BackendError> {
    for op in &lowered.ops {
        let Some((operand, _)) = op.weights.iter().find(|(_, slot)| *slot == index) else { continue };
        let mut operands: Vec<_> = op.desc.operands.iter().map(|t| t.to_abi()).collect();
        operands[*operand].stride0 = stride;
        let record = OpRecord::new(op.desc.kind, operands, op.desc.attrs, op.label.clone());
        if !device.op_support(&record)?.is_supported() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn records(lowered: &Lowered, places: &Places) -> Vec<OpRecord> {
    (0..lowered.ops.len()).map(|index| record(lowered, index, places)).collect()
}

fn record(lowered: &Lowered, index: usize, places: &Places) -> OpRecord {
    let op = &lowered.ops[index];
    let mut operands: Vec<_> = op.desc.operands.iter().map(|t| t.to_abi()).collect();
    for (operand, slot) in &op.weights {
        let (operand, place) = (&mut operands[*operand], &places[*slot]);
        (operand.binding, operand.offset, operand.stride0) = (place.binding, place.offset, place.stride);
    }
    let mut record = OpRecord::new(op.desc.kind, operands, op.desc.attrs, op.label.clone());
    (record.workspace_offset, record.workspace_bytes) = op.workspace;
    record
}

/// A loaded model on one device.
#[derive(Debug)]
pub struct DeviceProgram {
    executable: Executable,
    /// Width of the logits of each program.
    vocab: Vec<usize>,
    /// Programs of the draft's first and next pass.
    draft: Option<[usize; 2]>,
    /// The program that commits guesses.
    replay: usize,
    cache: Arena,
    layout: CacheLayout,
    host: Option<HostCache>,
    side: Option<Side>,
    /// Programs that only sample, of the forward and the verify pass.
    sampling: [Option<usize>; 2],
    /// Whether that was how these were last sampled.
    is_apart: [bool; 2],
}

/// The side tables of the op `sample`.
#[derive(Debug)]
struct Side {
    tables: Arena,
    /// Of counts, biases and masks: the first byte, and the words of a row.
    places: [(u64, u32); 3],
    /// One row.
    row: Vec<u8>,
}

impl Side {
    fn write(&mut self, device: &Device, row: &SideRow<'_>) -> Result<(), BackendError> {
        let (offset, words) = self.places[row.table as usize];
        self.row.clear();
        self.row.extend(std::iter::repeat_n(row.fill.to_ne_bytes(), words as usize).flatten());
        let values = self.row.as_chunks_mut::<4>().0;
        for entry in row.entries.into_iter().flatten() {
            values[entry.at as usize] = entry.word.to_ne_bytes();
        }
        let bytes = self.row.len() as u64;
        device.write(&self.tables, offset + u64::from(row.handle) * bytes, &self.row)
    }
}

impl DeviceProgram {
    /// Keep up to so many pages and states in host memory.
    pub fn with_host_cache(mut self, n_pages: u32, n_states: u32) -> Self {
        self.host = (n_pages > 0).then(|| HostCache::new(n_pages, n_states, self.layout.clone()));
        self
    }

    /// What is in host memory, if there is a host tier.
    pub fn host_cache(&mut self) -> Option<&mut HostCache> {
        self.host.as_mut()
    }

    /// Fill every page and state with bytes that are no number in any type a cache may have: for tests of what reads a place
    /// that nobody wrote.
    pub fn poison_cache(&mut self) -> Result<(), BackendError> {
        const PIECE: u64 = 1 << 20;
        let (device, bytes) = (self.executable.device(), self.cache.bytes());
        let poison = vec![0xff; PIECE.min(bytes) as usize];
        for offset in (0..bytes).step_by(PIECE as usize) {
            device.write(&self.cache, offset, &poison[..PIECE.min(bytes - offset) as usize])?;
        }
        Ok(())
    }

    /// Programs or walker.
    pub fn via(&self) -> Via {
        self.executable.via()
    }

    /// How the device executes each prepared program: its bucket and its segments.
    ///
    /// # Errors
    /// The backend's.
    pub fn segments(&self) -> Result<Vec<(Bucket, Vec<Segment>)>, BackendError> {
        self.executable.segments()
    }

    /// Say which of the programs are the draft model's first and next pass; they may be one.
    ///
    /// # Panics
    /// If there are no such programs.
    pub fn with_draft(self, first: usize, next: usize) -> Self {
        assert!(
            first.max(next) < self.vocab.len(),
            "{} programs, the draft's are {first} and {next}",
            self.vocab.len()
        );
        Self { draft: Some([first, next]), ..self }
    }

    /// Say which of the programs commits guesses, if it is not the third.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn with_replay(self, replay: usize) -> Self {
        assert!(replay < self.vocab.len(), "{} programs, the one that commits is {replay}", self.vocab.len());
        Self { replay, ..self }
    }

    fn program(&self, pass: Pass) -> usize {
        let draft = || self.draft.expect("only an engine with a draft model drafts");
        match pass {
            Pass::Forward | Pass::Verify => pass as usize,
            Pass::Replay => self.replay,
            Pass::DraftFirst => draft()[0],
            Pass::DraftNext => draft()[1],
        }
    }
}

impl StepRunner for DeviceProgram {
    fn run(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let program = self.program(pass);
        self.executable.run(program, step, n_logit_rows as usize * self.vocab[program]).map_err(|e| e.to_string())
    }

    fn run_sampled(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let program = self.program(pass);
        self.is_apart[program] = false;
        self.executable.run_sampled(program, step, n_logit_rows as usize).map_err(|e| e.to_string())
    }

    fn sample(&mut self, pass: Pass, step: &[u8], n_logit_rows: u32) -> Result<(), String> {
        let program = self.program(pass);
        let alone = self.sampling.get(program).copied().flatten().ok_or("the program has no side tables")?;
        self.is_apart[program] = true;
        self.executable.run_sampled(alone, step, n_logit_rows as usize).map_err(|e| e.to_string())
    }

    fn write_side(&mut self, updates: &SideUpdates) -> Result<(), String> {
        let side = self.side.as_mut().ok_or("the program has no side tables")?;
        updates.rows().try_for_each(|row| side.write(self.executable.device(), &row)).map_err(|e| e.to_string())
    }

    fn sampled(&self, pass: Pass) -> Sampled<'_> {
        let program = self.program(pass);
        let apart = self.sampling.get(program).copied().flatten().filter(|_| self.is_apart[program]);
        let (chosen, logprobs) = self.executable.sampled(apart.unwrap_or(program));
        Sampled { chosen, logprobs }
    }

    fn logits(&self, pass: Pass) -> &[f32] {
        self.executable.logits(self.program(pass))
    }

    fn copy(&mut self, order: &CopyOrder) -> Result<(), CopyError> {
        let host = self.host.as_mut().ok_or(CopyError::NoHostMemory)?;
        host.carry_out(order, self.executable.device(), &self.cache)
    }

    fn forecast(&self, pass: Pass, load: &Load) -> Result<Option<u64>, String> {
        self.executable.cost(self.program(pass), load).map_err(|e| e.to_string())
    }

    fn status(&self) -> Result<(), String> {
        self.executable.device().status().map_err(|e| e.to_string())
    }
}
