//! State of one wave: 64 lanes of vector registers, scalar registers, program counter, what is outstanding.

use super::{fault::Fault, pending::Queues};
use crate::isa::L;

/// Value of a register that nobody wrote: NaN as f32 and as the upper bf16.
pub const POISON: u32 = 0xffba_dbad;

/// Why a wave stopped running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It did not.
    Run,
    /// It waits at a barrier.
    Barrier,
    /// It gives others a turn.
    Yield,
    /// It ended.
    End,
    /// It did something wrong.
    Fault,
}

/// One wave.
#[derive(Debug)]
pub struct Wave {
    /// Vector registers, accumulation registers behind them.
    pub v: Vec<L>,
    /// Scalar registers by encoding.
    pub s: [u32; 128],
    /// Scalar condition.
    pub scc: bool,
    /// Index of the next instruction.
    pub pc: usize,
    /// MODE register.
    pub mode: u32,
    /// Per register, lanes that hold a value.
    pub valid_v: Vec<u64>,
    /// Per scalar register, bits that hold a value.
    pub valid_s: [u32; 128],
    /// `scc` holds a value.
    pub valid_scc: bool,
    /// Outstanding memory operations.
    pub queues: Queues,
    /// Barriers passed.
    pub epoch: u32,
    /// Number in its work-group.
    pub index: u32,
    /// Work-group.
    pub group: [u32; 3],
    /// Instructions executed.
    pub steps: u64,
    /// Set by an instruction that stops the wave.
    pub signal: Signal,
    /// The fault, if `signal` says so.
    pub fault: Option<Fault>,
}

impl Wave {
    /// A wave with poisoned registers.
    pub fn new(vector_registers: usize, index: u32, group: [u32; 3]) -> Self {
        Self {
            v: vec![[POISON; 64]; vector_registers],
            s: [POISON; 128],
            scc: false,
            pc: 0,
            mode: 0,
            valid_v: vec![0; vector_registers],
            valid_s: [0; 128],
            valid_scc: false,
            queues: Queues::default(),
            epoch: 0,
            index,
            group,
            steps: 0,
            signal: Signal::Run,
            fault: None,
        }
    }

    /// Makes the wave as new for another work-group.
    pub fn reset(&mut self, index: u32, group: [u32; 3]) {
        self.v.fill([POISON; 64]);
        self.valid_v.fill(0);
        let (v, valid_v) = (std::mem::take(&mut self.v), std::mem::take(&mut self.valid_v));
        *self = Self { v, valid_v, ..Self::new(0, index, group) };
    }

    /// Active lanes.
    #[inline(always)]
    pub fn exec(&self) -> u64 {
        self.pair(126)
    }

    /// A 64-bit scalar.
    #[inline(always)]
    pub fn pair(&self, index: usize) -> u64 {
        u64::from(self.s[index]) | u64::from(self.s[index + 1]) << 32
    }

    /// Writes a 64-bit scalar.
    #[inline(always)]
    pub fn set_pair(&mut self, index: usize, value: u64) {
        (self.s[index], self.s[index + 1]) = (value as u32, (value >> 32) as u32);
    }

    /// Writes a scalar register that counts as initialised.
    pub fn set_valid(&mut self, index: usize, value: u32) {
        (self.s[index], self.valid_s[index]) = (value, u32::MAX);
    }

    /// Stops the wave with a fault; the first one counts.
    #[cold]
    pub fn fail(&mut self, what: impl Into<String>, lane: Option<u32>) {
        if self.fault.is_none() {
            self.fault = Some(Fault { what: what.into(), lane });
        }
        self.signal = Signal::Fault;
    }

    /// Stops the wave with a fault at the first lane of a mask.
    #[cold]
    pub fn fail_at(&mut self, what: impl Into<String>, lanes: u64) {
        self.fail(what, Some(lanes.trailing_zeros()));
    }
}
