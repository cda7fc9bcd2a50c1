//! Run a flat program on a device: through `program_run` where the backend has programs, else by walking the op list
//! with `op_launch`. The walker also checks programs: both must give the same bits.
//!
//! One `Executable` is one device's share of a model: its programs (one per kind of step), their bindings, parameter
//! block and logits. Steps run one at a time; `run` returns when the logits are readable.

use crate::{
    abi::{TS_BIND_OUTPUT, TS_BIND_STEP},
    backend::{Arena, BackendError, Bindings, Bucket, Device, Event, Load, Program, Queue, Segment, StepBuffer},
    catalogue::{CHOSEN_WIDTH, LOGPROBS_WIDTH},
    record::OpRecord,
};

/// How ops reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// `program_prepare` once, `program_run` per step.
    Program,
    /// `op_launch` per op.
    Walker,
}

enum Runner {
    /// By bucket, smallest first; the last is the loader's own.
    Programs(Vec<(Bucket, Program)>),
    Walker(Vec<OpRecord>),
}

enum Logits {
    /// The output arena seen from the host.
    Mapped(*const f32),
    Copied(Vec<f32>),
}

/// What the op `sample` leaves in the output arena.
struct Sampled {
    /// Of `chosen` and of `logprobs`.
    offsets: [u64; 2],
    /// Of the last step.
    n_rows: usize,
    /// Where the arena cannot be mapped.
    copies: (Vec<u32>, Vec<f32>),
}

/// Longest wait for a step before the device counts as stuck.
const STEP_TIMEOUT_NS: u64 = 600_000_000_000;

/// Buckets of a program: tokens double from 1 until the full capacity, which comes last. Rows and wanted logits are held up to
/// as many as tokens, so a decode step of n requests finds the bucket of n.
fn ladder(full: Bucket) -> Vec<Bucket> {
    let up_to =
        |n: u32| Bucket { max_tokens: n, max_rows: n.min(full.max_rows), max_logit_rows: n.min(full.max_logit_rows) };
    let steps = std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(|n| *n < full.max_tokens);
    steps.map(up_to).chain([full]).collect()
}

/// Index of the smallest bucket that holds `wanted`, else of the last.
fn holding(buckets: impl ExactSizeIterator<Item = Bucket>, wanted: &Bucket) -> usize {
    let last = buckets.len() - 1;
    buckets.take(last).position(|b| b.covers(wanted)).unwrap_or(last)
}

/// Index of the smallest bucket that holds a step. The backend checks the block; one that is wrong or too large goes to the
/// largest, which says what is the matter with it.
fn fitting(buckets: impl ExactSizeIterator<Item = Bucket>, step: &[u8]) -> usize {
    // `ts_step`: size, tokens, rows, wanted rows of logits.
    let Some(header) = step.get(..16) else { return buckets.len() - 1 };
    let word = |i: usize| u32::from_ne_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    let wanted = Bucket { max_tokens: word(4), max_rows: word(8), max_logit_rows: word(12) };
    holding(buckets, &wanted)
}

/// One program: its ops over its bindings, which differ from the others' in the logits' arena alone.
struct Prepared {
    // Objects before the device: they go first.
    runner: Runner,
    bindings: Bindings,
    output: Arena,
    logits: Logits,
    /// Logits of the last step.
    n_logits: usize,
    sampled: Option<Sampled>,
}

/// Prepared programs with their memory.
pub struct Executable {
    programs: Vec<Prepared>,
    step: StepBuffer,
    queue: Queue,
    event: Event,
    step_arena: Arena,
    value: u64,
    device: Device,
}

// SAFETY: the only non-Send part is the address of the mapped output arena, which `bindings` keep alive and which is
// read on the thread that owns the executable.
unsafe impl Send for Executable {}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "executable via {:?} on {:?}", self.via(), self.device)
    }
}

impl Executable {
    /// Prepare programs, each a list of ops over its bindings, which include the parameter block's arena in slot
    /// `TS_BIND_STEP` (the same for all) and the logits' in `TS_BIND_OUTPUT` (each its own). `via: None` takes programs
    /// if the device has them.
    ///
    /// # Panics
    /// Without any program, or if a slot is not bound: the caller is the loader.
    pub fn new(
        device: Device,
        programs: Vec<(Vec<OpRecord>, Bindings, Bucket)>,
        via: Option<Via>,
    ) -> Result<Self, BackendError> {
        let (queue, event) = (device.queue_create()?, device.event_create()?);
        let via = via.unwrap_or(if device.has_programs() { Via::Program } else { Via::Walker });
        let arena = |bindings: &Bindings, slot| bindings.arena(slot).cloned().expect("the loader binds every slot");
        let step_arena = arena(&programs.first().expect("a model has a program").1, TS_BIND_STEP);
        let programs: Result<Vec<Prepared>, BackendError> = programs
            .into_iter()
            .map(|(ops, bindings, bucket)| {
                let output = arena(&bindings, TS_BIND_OUTPUT);
                let runner = match via {
                    Via::Program => {
                        let buckets = if device.bucketed() { ladder(bucket) } else { vec![bucket] };
                        let prepare = |b| Ok((b, device.program_prepare(&ops, &bindings, b)?));
                        Runner::Programs(buckets.into_iter().map(prepare).collect::<Result<_, BackendError>>()?)
                    }
                    Via::Walker => Runner::Walker(ops),
                };
                let logits = if device.host_mapped() {
                    Logits::Mapped(device.arena_map(&output)?.cast_const().cast())
                } else {
                    Logits::Copied(vec![0.0; output.bytes() as usize / 4])
                };
                Ok(Prepared { runner, bindings, output, logits, n_logits: 0, sampled: None })
            })
            .collect();
        let step = StepBuffer::with_capacity(step_arena.bytes() as usize);
        Ok(Self { programs: programs?, step, queue, event, step_arena, value: 0, device })
    }

    /// Say where program `program` leaves what it samples: the offsets of `chosen` and `logprobs` in its output arena, for at
    /// most `max_rows` rows of logits.
    ///
    /// # Panics
    /// If there is no such program, or its arena is smaller.
    pub fn with_sampling(mut self, program: usize, offsets: [u64; 2], max_rows: usize) -> Self {
        let Prepared { output, logits, sampled, .. } = &mut self.programs[program];
        let widths = [CHOSEN_WIDTH, LOGPROBS_WIDTH];
        let fits = |(offset, width): (u64, usize)| offset + (max_rows * width * 4) as u64 <= output.bytes();
        assert!(offsets.into_iter().zip(widths).all(fits), "{offsets:?} in {} bytes", output.bytes());
        let n = if matches!(logits, Logits::Copied(_)) { max_rows } else { 0 };
        let copies = (vec![0; n * CHOSEN_WIDTH], vec![0.0; n * LOGPROBS_WIDTH]);
        *sampled = Some(Sampled { offsets, n_rows: 0, copies });
        self
    }

    /// How ops reach the device.
    pub fn via(&self) -> Via {
        match self.programs[0].runner {
            Runner::Programs(_) => Via::Program,
            Runner::Walker(_) => Via::Walker,
        }
    }

    /// How the device executes each prepared program: its bucket and its segments, bucket by bucket of program after program. Nothing
    /// where ops are walked.
    pub fn segments(&self) -> Result<Vec<(Bucket, Vec<Segment>)>, BackendError> {
        let prepared = self.programs.iter().flat_map(|program| match &program.runner {
            Runner::Programs(programs) => &programs[..],
            Runner::Walker(_) => &[],
        });
        prepared.map(|(bucket, program)| Ok((*bucket, self.device.program_describe(program)?))).collect()
    }

    /// What the backend expects a step of program `program` to take, in nanoseconds; `None` if it has no model, or where ops are
    /// walked.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn cost(&self, program: usize, load: &Load) -> Result<Option<u64>, BackendError> {
        let Runner::Programs(programs) = &self.programs[program].runner else { return Ok(None) };
        let (_, program) = &programs[holding(programs.iter().map(|(bucket, _)| *bucket), &Bucket::of_load(load))];
        self.device.program_cost(program, load)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn run_ops(&mut self, program: usize, step: &[u8]) -> Result<(), BackendError> {
        self.value += 1;
        let Prepared { runner, bindings, .. } = &self.programs[program];
        match runner {
            Runner::Programs(programs) => {
                let (_, program) = &programs[fitting(programs.iter().map(|(bucket, _)| *bucket), step)];
                let block = self.step.bytes_mut().expect("the last step was waited for");
                block[..step.len()].copy_from_slice(step);
                self.step.set_len(step.len());
                self.device.program_run(program, &self.queue, &mut self.step, &self.event, self.value)?;
            }
            Runner::Walker(ops) => {
                self.device.write(&self.step_arena, 0, step)?;
                for op in ops {
                    self.device.op_launch(&self.queue, op, bindings)?;
                }
                self.device.queue_signal(&self.queue, &self.event, self.value)?;
            }
        }
        self.event.wait(self.value, STEP_TIMEOUT_NS)
    }

    /// Run one parameter block on program `program`; the first `n_logits` values of its logits are in
    /// [`Executable::logits`] until it runs again. Allocates nothing on success.
    ///
    /// # Panics
    /// If there is no such program, or the block or the logits are larger than the arenas: the plan was made for them.
    pub fn run(&mut self, program: usize, step: &[u8], n_logits: usize) -> Result<(), BackendError> {
        self.run_to_the_end(program, step)?;
        let Prepared { output, logits, n_logits: of_last, .. } = &mut self.programs[program];
        assert!(n_logits as u64 * 4 <= output.bytes(), "{n_logits} logits in {} bytes", output.bytes());
        if let Logits::Copied(values) = logits {
            // SAFETY: f32 has no padding and any bytes are valid values.
            let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), n_logits * 4) };
            self.device.read(output, 0, bytes)?;
        }
        *of_last = n_logits;
        Ok(())
    }

    fn run_to_the_end(&mut self, program: usize, step: &[u8]) -> Result<(), BackendError> {
        let Err(error) = self.run_ops(program, step) else { return Ok(()) };
        // An error sticks to the timeline; the next step gets a new one if the device can still make it.
        if let Ok(event) = self.device.event_create() {
            (self.event, self.value) = (event, 0);
        }
        Err(error)
    }

    /// Run a block whose rows of logits are sampled on the device; what came of the first `n_rows` is in
    /// [`Executable::sampled`] until the program runs again. Allocates nothing on success.
    ///
    /// # Panics
    /// As [`Executable::run`], and if the program does not sample.
    pub fn run_sampled(&mut self, program: usize, step: &[u8], n_rows: usize) -> Result<(), BackendError> {
        self.run_to_the_end(program, step)?;
        let Prepared { output, logits, sampled, .. } = &mut self.programs[program];
        let sampled = sampled.as_mut().expect("the program samples");
        if matches!(logits, Logits::Copied(_)) {
            let (chosen, logprobs) = &mut sampled.copies;
            let (chosen, logprobs) = (&mut chosen[..n_rows * CHOSEN_WIDTH], &mut logprobs[..n_rows * LOGPROBS_WIDTH]);
            // SAFETY: u32 has no padding and any bytes are valid values.
            let chosen = unsafe { std::slice::from_raw_parts_mut(chosen.as_mut_ptr().cast(), size_of_val(chosen)) };
            // SAFETY: so has f32.
            let logprobs =
                unsafe { std::slice::from_raw_parts_mut(logprobs.as_mut_ptr().cast(), size_of_val(logprobs)) };
            self.device.read(output, sampled.offsets[0], chosen)?;
            self.device.read(output, sampled.offsets[1], logprobs)?;
        }
        sampled.n_rows = n_rows;
        Ok(())
    }

    /// Rows of `chosen` and of `logprobs` of the last sampled step of a program; empty for one that does not sample.
    pub fn sampled(&self, program: usize) -> (&[u32], &[f32]) {
        let Prepared { logits, sampled, .. } = &self.programs[program];
        let Some(Sampled { offsets, n_rows, copies }) = sampled else { return (&[], &[]) };
        let (n_chosen, n_logprobs) = (n_rows * CHOSEN_WIDTH, n_rows * LOGPROBS_WIDTH);
        match logits {
            // SAFETY: as in `logits`; `with_sampling` checked that the arena holds so many rows at these offsets, which are
            // aligned as operands are.
            Logits::Mapped(data) => unsafe {
                let at = |offset: u64| data.cast::<u8>().add(offset as usize);
                (
                    std::slice::from_raw_parts(at(offsets[0]).cast(), n_chosen),
                    std::slice::from_raw_parts(at(offsets[1]).cast(), n_logprobs),
                )
            },
            Logits::Copied(_) => (&copies.0[..n_chosen], &copies.1[..n_logprobs]),
        }
    }

    /// Logits of the last step of a program.
    pub fn logits(&self, program: usize) -> &[f32] {
        let Prepared { logits, n_logits, .. } = &self.programs[program];
        match logits {
            // SAFETY: mapped for as long as the arena lives, large enough (asserted by `run`), aligned as every arena is,
            // and the device is done writing: only `run`, which needs `self` for itself, starts it again.
            Logits::Mapped(data) => unsafe { std::slice::from_raw_parts(*data, *n_logits) },
            Logits::Copied(values) => &values[..*n_logits],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_ends_with_the_full_capacity() {
        let full = Bucket { max_tokens: 24, max_rows: 4, max_logit_rows: 6 };
        let ladder: Vec<_> = super::ladder(full).iter().map(|b| (b.max_tokens, b.max_rows, b.max_logit_rows)).collect();
        let step = |tokens: u32, rows: u32, logits: u32| [64, tokens, rows, logits].map(u32::to_ne_bytes).concat();
        let index = |step: &[u8]| fitting(super::ladder(full).into_iter(), step);
        assert_eq!(
            [step(1, 1, 1), step(3, 3, 3), step(4, 4, 5), step(17, 1, 1), step(99, 1, 1)].map(|s| index(&s)),
            [0, 2, 3, 5, 5]
        );
        assert_eq!(index(&[0; 3]), 5);
        assert_eq!(ladder, [(1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 4, 6), (16, 4, 6), (24, 4, 6)]);
    }
}
