//! Memory operations that were issued and have not landed.
//!
//! Adversarial: an operation lands at the last moment that the program allows, which is the wait that demands it. Vector
//! memory returns in order (vmcnt counts loads, stores and DMA together); LDS in order; scalar loads in any order, so only a
//! wait that covers everything outstanding is sure of one. A register whose value is outstanding may be neither read nor
//! written, except by another load of vector memory. Rejected: landing at random moments; the last moment finds every missing wait in one run.

use std::collections::VecDeque;

use crate::isa::{L, Operand};

/// How loaded data enters its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Whole dwords.
    Full,
    /// The low half; the high half stays.
    Low,
    /// The high half; the low half stays.
    High,
}

/// Data on its way to vector registers.
#[derive(Debug)]
pub struct Landing {
    /// First register and width.
    pub d: Operand,
    /// Values per register.
    pub data: Vec<L>,
    /// Lanes of each register that hold written data.
    pub valid: Vec<u64>,
    /// Lanes that take part.
    pub mask: u64,
    /// How it enters.
    pub merge: Merge,
}

impl Landing {
    fn covers(&self, register: usize) -> bool {
        (self.d.at()..self.d.at() + self.d.width as usize).contains(&register)
    }
}

/// A vector memory operation.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Stores carry nothing; boxing the others would cost an allocation per load.
pub enum Pending {
    /// Data for registers.
    Load(Landing),
    /// Data for LDS: byte address per lane, dwords per lane.
    Dma {
        /// LDS byte address per lane.
        to: L,
        /// Values per dword.
        data: Vec<L>,
        /// Initialised lanes per dword.
        valid: Vec<u64>,
        /// Lanes that take part.
        mask: u64,
    },
    /// Counted, nothing to land.
    Store,
}

/// An LDS operation: executed in order when waited for.
#[derive(Debug)]
pub struct LdsOp {
    /// Index of its instruction.
    pub at: usize,
    /// Byte address per lane, without offsets.
    pub address: L,
    /// Source registers as they were at issue.
    pub data: Vec<L>,
    /// Their initialised lanes.
    pub valid: Vec<u64>,
    /// Active lanes.
    pub mask: u64,
}

/// A scalar load.
#[derive(Debug)]
pub struct ScalarLoad {
    /// First register.
    pub d: usize,
    /// Values.
    pub data: Vec<u32>,
    /// Initialised bits of each.
    pub valid: Vec<u32>,
}

/// Everything outstanding of one wave.
#[derive(Debug, Default)]
pub struct Queues {
    /// Vector memory, oldest first.
    pub vector: VecDeque<Pending>,
    /// LDS, oldest first.
    pub lds: VecDeque<LdsOp>,
    /// Scalar memory.
    pub scalar: Vec<ScalarLoad>,
    /// Vector registers outstanding, a bit each.
    pub vector_registers: [u64; 8],
    /// Scalar registers outstanding.
    pub scalar_registers: u128,
    /// Registers outstanding at all.
    pub any: bool,
    /// Some register has several vector loads outstanding.
    pub overlapping: bool,
}

impl Queues {
    /// Marks or clears the registers of an operand.
    pub fn mark(&mut self, o: &Operand, outstanding: bool) {
        for r in o.at()..o.at() + o.width as usize {
            let bit = 1u64 << (r % 64);
            let cell = &mut self.vector_registers[r / 64];
            *cell = if outstanding { *cell | bit } else { *cell & !bit };
        }
        self.update();
    }

    /// Whether the load of a vector register that is outstanding came by vector memory. Such loads return in order, so that
    /// another one may follow into the same register: what it loads comes later.
    pub fn is_loading(&self, register: usize) -> bool {
        self.vector.iter().any(|p| matches!(p, Pending::Load(l) if l.covers(register)))
    }

    /// Marks again what later loads will bring to registers that have just landed.
    pub fn mark_later(&mut self, o: &Operand) {
        if self.overlapping {
            let registers = o.at()..o.at() + o.width as usize;
            let later: Vec<_> = registers.filter(|r| self.is_loading(*r)).collect();
            for r in later {
                self.mark(&Operand { index: r as u16, width: 1, ..*o }, true);
            }
            self.overlapping = !self.vector.is_empty();
        }
    }

    /// Marks or clears scalar registers.
    pub fn mark_scalar(&mut self, first: usize, count: usize, outstanding: bool) {
        let bits = ((1u128 << count) - 1) << first;
        self.scalar_registers = if outstanding { self.scalar_registers | bits } else { self.scalar_registers & !bits };
        self.update();
    }

    fn update(&mut self) {
        self.any = self.scalar_registers != 0 || self.vector_registers.iter().any(|r| *r != 0);
    }

    /// The first outstanding vector register of an operand.
    pub fn vector_conflict(&self, o: &Operand) -> Option<usize> {
        (o.at()..o.at() + o.width as usize).find(|r| self.vector_registers[r / 64] >> (r % 64) & 1 != 0)
    }

    /// The first outstanding scalar register of an operand.
    pub fn scalar_conflict(&self, o: &Operand) -> Option<usize> {
        (o.at()..o.at() + o.width as usize).find(|r| self.scalar_registers >> r & 1 != 0)
    }

    /// LDS operations that have surely landed at `lgkmcnt(n)`: the oldest of them, if all others counted are unfinished.
    pub fn lds_landed(&self, n: usize) -> usize {
        (self.lds.len() + self.scalar.len()).saturating_sub(n + self.scalar.len()).min(self.lds.len())
    }

    /// Whether all scalar loads have surely landed at `lgkmcnt(n)`; they return in any order, so one alone never has.
    pub fn scalar_landed(&self, n: usize) -> bool {
        n == 0
    }
}
