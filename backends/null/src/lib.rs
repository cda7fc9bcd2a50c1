//! The null backend: right shapes, no maths.
//!
//! Two uses. It measures the host alone: a step costs what the engine costs, plus a delay of your choosing. And it is
//! the template of a backend in Rust; read it from top to bottom, then replace the parts marked 1 to 5.
//!
//! A backend is two crates. This one is an rlib: [`embed_backend!`] registers it in any binary it is linked into. The
//! crate in `plugin/` is a cdylib of one line, `export_backend!`, and makes `libtokenspeed_null.so` from it.
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `step_us` | microseconds a run takes; slept, but for the last 300, which are spun | 0 |
//! | `token_us` | microseconds more per token of the step | 0 |
//! | `logits` | `zero`, or `ramp`: best token = (last token + its position + 1) mod vocabulary | `zero` |
//! | `sample` | `no`: the op is refused, and the host samples; `best`: the best token, whatever is asked for | `no` |
//!
//! A host that launches op by op instead of running programs pays the delay per op.
#![deny(missing_docs)]

use std::time::{Duration, Instant};
use tokenspeed_backend_api::{
    abi::{TS_BIND_OUTPUT, TS_PROFILE_LLAMA, TS_SAMPLED_TOKEN, TS_TIER_FUSED, ts_step_token},
    dtype::DType,
    embed_backend,
    graph::Vary,
    op::OpKind,
    sdk::{
        BackendImpl, BoundOp, DeviceInfo, Fault, HostBacked, HostDevice, HostServices, Info, Load, OpView, Operand,
        Options, StepView, Support,
    },
};

/// **1.** The backend: a kind of device. A unit struct, because there is nothing to keep before a device is open.
#[derive(Debug)]
pub struct Null;

impl BackendImpl for Null {
    /// `HostBacked` adds arenas, queues, events and programs in host memory. A backend with memory of its own
    /// implements `DeviceImpl` itself instead.
    type Device = HostBacked<NullDevice>;

    fn info() -> Info {
        Info {
            name: "null",
            version: env!("CARGO_PKG_VERSION"),
            description: "right shapes, no maths: measures the host, and is the template for backends",
            // T0 is implied and T1 (programs) follows from `HostBacked`.
            tiers: TS_TIER_FUSED,
            // Claims that every op of the profile is supported; the conformance suite checks such claims.
            profiles: TS_PROFILE_LLAMA,
            // Never chosen unless asked for by name.
            score: 0,
        }
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn device_info(_index: u32) -> Result<DeviceInfo, Fault> {
        Ok(DeviceInfo {
            name: "null".to_owned(),
            alignment: NullDevice::ALIGNMENT as u32,
            // Nothing is ever touched but logits and the parameter block, so plan as if memory were plenty.
            memory_bytes: 64 << 30,
            page_tokens: None,
            host_mapped: true,
            exclusive: false,
            branch_rows: true,
            bucketed: false,
        })
    }

    /// **2.** Options come as text. `Options` makes sure that each is either used or refused by name.
    fn open(_index: u32, options: &[(&str, &str)], _host: HostServices) -> Result<Self::Device, Fault> {
        let mut o = Options::new(options)?;
        let step_us: u32 = o.parse("step_us", "microseconds", 0)?;
        let token_us: u32 = o.parse("token_us", "microseconds", 0)?;
        let logits = o.choice("logits", &[("zero", Logits::Zero), ("ramp", Logits::Ramp)])?;
        let samples = o.choice("sample", &[("no", false), ("best", true)])?;
        o.finish()?;
        let us = |n: u32| Duration::from_micros(n.into());
        Ok(HostBacked(NullDevice { step: us(step_us), token: us(token_us), logits, samples }))
    }
}

embed_backend!(Null);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logits {
    Zero,
    Ramp,
}

/// **3.** An open device: whatever is constant while it is open. It is shared between threads, so it is not changed; state
/// that changes with each run belongs into `Scratch`.
#[derive(Debug)]
pub struct NullDevice {
    step: Duration,
    token: Duration,
    logits: Logits,
    samples: bool,
}

/// **4.** An op made ready. Choose the kernel and keep the pointers here, once, instead of in every run. The only memory
/// this backend writes is what the host reads back, so that is all it keeps.
#[derive(Debug)]
pub enum Prepared {
    /// Nobody reads what it would write.
    Nothing,
    /// `logits=ramp`.
    Ramp(Operand),
    /// The op `sample`.
    Sample {
        /// Where ids go.
        relay: Operand,
        /// And where they are reported.
        chosen: Operand,
    },
}

impl HostDevice for NullDevice {
    type Scratch = ();
    type Prepared = Prepared;

    fn scratch(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Answers for exactly these shapes and formats. A real backend says no to what it cannot do: the host then
    /// expands a fused op, or tells the user at load which op is missing and why (the text of `Support::no`).
    fn support(&self, op: &OpView<'_>) -> Support {
        if op.version() != 1 {
            return Support::no(format!("schema version {} of {} is unknown", op.version(), op.kind()));
        }
        if op.kind() == OpKind::Sample && !self.samples {
            return Support::no("the option sample=best is off");
        }
        Support::yes("null")
    }

    fn prepare(&self, op: &BoundOp<'_>) -> Result<Prepared, Fault> {
        if let (OpKind::Sample, [_, relay, .., chosen, logprobs]) = (op.op.kind(), op.operands) {
            // SAFETY: `bytes` bytes of writable memory, and no run is in progress.
            unsafe { [chosen, logprobs].into_iter().for_each(|o| o.data.write_bytes(0, o.bytes)) };
            return Ok(Prepared::Sample { relay: *relay, chosen: *chosen });
        }
        let outputs = op.op.descriptors().iter().zip(op.operands).enumerate();
        let Some((_, (_, logits))) =
            outputs.into_iter().find(|(i, (d, _))| d.binding == TS_BIND_OUTPUT && op.op.is_written(*i))
        else {
            return Ok(Prepared::Nothing);
        };
        if self.logits == Logits::Ramp && (logits.tensor.dtype != DType::F32 || logits.tensor.rank != 2) {
            return Err(Fault::unsupported(format!("{}: logits=ramp wants f32 [rows, vocabulary]", op.op.label())));
        }
        // Zero logits are written here, once: nobody else writes them, and a run should cost the host's time alone.
        // SAFETY: `bytes` bytes of writable memory, and no run is in progress.
        unsafe { logits.data.write_bytes(0, logits.bytes) };
        Ok(if self.logits == Logits::Ramp { Prepared::Ramp(*logits) } else { Prepared::Nothing })
    }

    /// **5.** The whole step in one call: run the ops in order, however suits the hardware. It must not allocate.
    fn run(&self, _scratch: &mut (), ops: &[Prepared], step: &StepView<'_>) -> Result<(), Fault> {
        let wanted = self.step + self.token * step.header.n_tokens;
        // Reading the clock can cost more than everything else here.
        let start = (!wanted.is_zero()).then(Instant::now);
        let relay = ops.iter().find_map(|op| match op {
            Prepared::Sample { relay, .. } => Some(*relay),
            Prepared::Nothing | Prepared::Ramp(_) => None,
        });
        let mut columns = 1;
        for op in ops {
            match op {
                Prepared::Nothing => {}
                Prepared::Ramp(logits) => {
                    columns = logits.tensor.dims[1];
                    ramp(logits, relay.as_ref(), step);
                }
                // Without a ramp there is one column, and its token is 0.
                Prepared::Sample { relay, chosen } => sample(relay, chosen, columns, step),
            }
        }
        if let Some(start) = start {
            wait(start, wanted);
        }
        Ok(())
    }

    fn cost(&self, _ops: &[Prepared], load: &Load) -> Option<u64> {
        Some((self.step + self.token * load.n_tokens).as_nanos() as u64)
    }
}

/// Until `wanted` after `start`. A device leaves the host's cores alone, so most of it is slept; a sleep may be long by this much.
fn wait(start: Instant, wanted: Duration) {
    const SPUN: Duration = Duration::from_micros(300);
    let slept = wanted.saturating_sub(start.elapsed() + SPUN);
    if !slept.is_zero() {
        std::thread::sleep(slept);
    }
    while start.elapsed() < wanted {
        std::hint::spin_loop();
    }
}

/// The best token after `token`, of `vocabulary`.
fn best(token: &ts_step_token, relay: Option<&Operand>, vocabulary: usize) -> usize {
    let id = match (usize::try_from(token.id), relay) {
        (Ok(id), _) => id,
        (Err(_), Some(relay)) => {
            let slot = token.id.unsigned_abs() as usize - 1;
            // SAFETY: the slot is in the operand, which holds one i32 per slot.
            if slot < relay.tensor.dims[0] { unsafe { relay.data.cast::<u32>().add(slot).read() as usize } } else { 0 }
        }
        (Err(_), None) => 0,
    };
    (id + token.position as usize + 1) % vocabulary
}

/// Report the best token of each row that asks for one, and leave it in its slot.
fn sample(relay: &Operand, chosen: &Operand, vocabulary: usize, step: &StepView<'_>) {
    let rows = step.count(chosen.tensor.vary, chosen.tensor.dims[0]).min(chosen.tensor.dims[0]);
    // A slot is read before it is written: by the one row whose request it belongs to.
    let ids = |row: usize| step.logit_rows.get(row).and_then(|&token| step.tokens.get(token as usize));
    for (row, sample) in step.samples.iter().enumerate().take(rows).filter(|(_, sample)| sample.relay_slot > 0) {
        let Some(token) = ids(row) else { continue };
        let id = best(token, Some(relay), vocabulary) as u32;
        let slot = sample.relay_slot as usize;
        // SAFETY: `row` is below the capacity and holds `CHOSEN_WIDTH` words; the slot is in the operand.
        unsafe {
            let words = chosen.row(row).cast::<u32>();
            words.write(TS_SAMPLED_TOKEN);
            words.add(1).write(id);
            if slot < relay.tensor.dims[0] {
                relay.data.cast::<u32>().add(slot).write(id);
            }
        }
    }
}

/// Logits fall from 0 at the best token by 1/vocabulary per id, around the end of the vocabulary.
fn ramp(logits: &Operand, relay: Option<&Operand>, step: &StepView<'_>) {
    let (t, vocabulary) = (&logits.tensor, logits.tensor.dims[1]);
    let rows = step.count(t.vary, t.dims[0]).min(t.dims[0]);
    for row in 0..rows {
        // Rows of logits name their token; with one row per token the row is the token.
        let token = match t.vary {
            Vary::LogitRows => step.logit_rows[row] as usize,
            _ => row,
        };
        let Some(token) = step.tokens.get(token) else { continue };
        let best = best(token, relay, vocabulary);
        // SAFETY: `row` is below the capacity; the row holds `vocabulary` f32, aligned, which the SDK checked.
        let out = unsafe { std::slice::from_raw_parts_mut(logits.row(row).cast::<f32>(), vocabulary) };
        for (id, value) in out.iter_mut().enumerate() {
            *value = -(((id + vocabulary - best) % vocabulary) as f32) / vocabulary as f32;
        }
    }
}
