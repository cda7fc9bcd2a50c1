//! What a launch did: instructions by class, matrix work, bytes moved.

use super::detail::Detail;
use crate::isa::Class;

/// Sums over all waves of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Wave instructions by [`Class`].
    pub instructions: [u64; 9],
    /// Multiply-adds of matrix instructions.
    pub matrix_macs: u64,
    /// Cycles in which matrix instructions keep a SIMD's matrix unit.
    pub matrix_cycles: u64,
    /// Bytes that lanes asked of global memory.
    pub global_read_bytes: u64,
    /// Bytes that lanes wrote to global memory.
    pub global_write_bytes: u64,
    /// 128-byte lines touched by global accesses, lanes in order, a line counted again when left and met again.
    pub global_lines: u64,
    /// Bytes read from LDS.
    pub lds_read_bytes: u64,
    /// Bytes written to LDS, DMA included.
    pub lds_write_bytes: u64,
    /// Work-groups run.
    pub groups: u64,
    /// Barriers passed, per wave.
    pub barriers: u64,
    /// Lines and bank conflicts, where they are wanted.
    pub detail: Option<Box<Detail>>,
}

impl Counters {
    /// Counts one instruction.
    pub fn count(&mut self, class: Class) {
        self.instructions[class as usize] += 1;
    }

    /// Adds another launch's or thread's sums.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.instructions.iter_mut().zip(other.instructions) {
            *a += b;
        }
        self.matrix_macs += other.matrix_macs;
        self.matrix_cycles += other.matrix_cycles;
        self.global_read_bytes += other.global_read_bytes;
        self.global_write_bytes += other.global_write_bytes;
        self.global_lines += other.global_lines;
        self.lds_read_bytes += other.lds_read_bytes;
        self.lds_write_bytes += other.lds_write_bytes;
        self.groups += other.groups;
        self.barriers += other.barriers;
        match (&mut self.detail, &other.detail) {
            (Some(mine), Some(theirs)) => mine.add(theirs),
            (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
            (_, None) => {}
        }
    }

    /// All instructions.
    pub fn total(&self) -> u64 {
        self.instructions.iter().sum()
    }
}
