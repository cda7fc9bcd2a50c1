//! What an instruction may touch, and the helpers that all instructions share: reading sources, writing under EXEC,
//! initialised-ness.

use super::{counters::Counters, lds::Lds, memory::View, wave::Wave};
use crate::{
    code::Kernel,
    isa::{File, Inst, L, Operand, W},
    lanes,
};

/// What stays the same during a launch.
#[derive(Debug)]
pub struct Env<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Device memory.
    pub memory: &'a View,
    /// All checks and late landing.
    pub check: bool,
    /// Matrix products are computed, not only counted.
    pub products: bool,
}

/// Buffers for sources and a result, so that nothing is cleared per instruction.
#[derive(Debug)]
pub struct Scratch {
    /// First source.
    pub a: L,
    /// Second source.
    pub b: L,
    /// Third source.
    pub c: L,
    /// Result.
    pub out: L,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { a: [0; 64], b: [0; 64], c: [0; 64], out: [0; 64] }
    }
}

/// Everything an instruction may touch.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The wave.
    pub w: &'a mut Wave,
    /// Its work-group's LDS.
    pub lds: &'a mut Lds,
    /// The launch.
    pub env: &'a Env<'a>,
    /// Sums.
    pub count: &'a mut Counters,
    /// Buffers.
    pub scratch: &'a mut Scratch,
}

/// All lanes.
pub const ALL: u64 = u64::MAX;

/// A 32-bit source as 64 lanes, modifiers applied.
#[inline(always)]
pub fn fetch<'a>(w: &'a Wave, o: &Operand, buffer: &'a mut L) -> &'a L {
    if o.file == File::Vector {
        let row = &w.v[o.at()];
        if !o.modified() {
            return row;
        }
        lanes::modify(row, o.abs, o.neg, buffer);
        return buffer;
    }
    let mut value = scalar32(w, o);
    if o.abs {
        value &= 0x7fff_ffff;
    }
    if o.neg {
        value ^= 0x8000_0000;
    }
    buffer.fill(value);
    buffer
}

/// A 32-bit scalar source.
#[inline(always)]
pub fn scalar32(w: &Wave, o: &Operand) -> u32 {
    match o.file {
        File::Scalar => w.s[o.at()],
        File::Constant => o.value,
        File::Scc => u32::from(w.scc),
        File::Vccz => u32::from(w.pair(106) == 0),
        File::Execz => u32::from(w.exec() == 0),
        File::None | File::Vector => 0,
    }
}

/// A scalar source of one or two dwords; constants are sign-extended.
#[inline(always)]
pub fn scalar64(w: &Wave, o: &Operand) -> u64 {
    match o.file {
        File::Scalar if o.width == 2 => w.pair(o.at()),
        // A literal is zero-extended to 64 bits by unsigned, sign-extended by signed operations; LLVM only uses literals
        // whose top bit is clear there.
        File::Constant if o.width == 2 => o.value as i32 as i64 as u64,
        _ => u64::from(scalar32(w, o)),
    }
}

impl Cx<'_> {
    /// A 32-bit source, copied.
    pub fn lanes(&self, o: &Operand) -> L {
        let mut buffer = [0; 64];
        *fetch(self.w, o, &mut buffer)
    }

    /// A source of packed or single 16-bit values, without modifiers; inline float constants are f16.
    pub fn lanes_16(&self, o: &Operand) -> L {
        match o.file {
            File::Vector => self.w.v[o.at()],
            File::Constant if o.index >= 240 && !o.literal => {
                [u32::from(crate::exec::formats::f32_to_f16(f32::from_bits(o.value), false)); 64]
            }
            _ => [scalar32(self.w, o); 64],
        }
    }

    /// A source of one or two dwords as 64-bit lanes.
    pub fn wide(&self, o: &Operand, is_f64: bool) -> W {
        let mut out = [0; 64];
        match (o.file, o.width) {
            (File::Vector, 2) => {
                let (low, high) = (&self.w.v[o.at()], &self.w.v[o.at() + 1]);
                for l in 0..64 {
                    out[l] = u64::from(low[l]) | u64::from(high[l]) << 32;
                }
            }
            (File::Vector, _) => {
                let low = &self.w.v[o.at()];
                for l in 0..64 {
                    out[l] = u64::from(low[l]);
                }
            }
            (File::Constant, 2) if is_f64 && o.index >= 240 => {
                let value =
                    if o.literal { u64::from(o.value) << 32 } else { f64::from(f32::from_bits(o.value)).to_bits() };
                out.fill(value);
            }
            _ => out.fill(scalar64(self.w, o)),
        }
        if is_f64 && o.width == 2 {
            for x in &mut out {
                if o.abs {
                    *x &= !(1 << 63);
                }
                if o.neg {
                    *x ^= 1 << 63;
                }
            }
        }
        out
    }

    /// Writes a vector register under EXEC.
    pub fn write(&mut self, register: usize, value: &L) {
        let exec = self.w.exec();
        lanes::merge(&mut self.w.v[register], value, exec);
    }

    /// Writes a 64-bit vector register pair, or one register, under EXEC.
    pub fn write_wide(&mut self, d: &Operand, value: &W) {
        let mut half = [0; 64];
        for part in 0..d.width as usize {
            for l in 0..64 {
                half[l] = (value[l] >> (32 * part)) as u32;
            }
            self.write(d.at() + part, &half);
        }
    }

    /// Writes one register of a pair under EXEC, with lanes of its own that are initialised.
    pub fn write_half(&mut self, d: &Operand, part: usize, value: &L, valid: u64) {
        self.write(d.at() + part, value);
        if self.env.check {
            self.set_valid(&Operand { index: d.index + part as u16, width: 1, ..*d }, valid);
        }
    }

    /// Lanes in which a source is initialised.
    pub fn valid(&self, o: &Operand) -> u64 {
        let registers = o.at()..o.at() + o.width as usize;
        match o.file {
            File::Vector => registers.fold(ALL, |all, r| all & self.w.valid_v[r]),
            File::Scalar => {
                if registers.clone().all(|r| self.w.valid_s[r] == u32::MAX) {
                    ALL
                } else {
                    0
                }
            }
            File::Scc if !self.w.valid_scc => 0,
            _ => ALL,
        }
    }

    /// Initialised bits of a lane mask in scalar registers.
    pub fn valid_mask(&self, o: &Operand) -> u64 {
        match o.file {
            File::Scalar => u64::from(self.w.valid_s[o.at()]) | u64::from(self.w.valid_s[o.at() + 1]) << 32,
            _ => ALL,
        }
    }

    /// Sets the initialised lanes of vector registers under EXEC.
    pub fn set_valid(&mut self, d: &Operand, lanes: u64) {
        let exec = self.w.exec();
        for r in d.at()..d.at() + d.width as usize {
            let old = &mut self.w.valid_v[r];
            *old = *old & !exec | lanes & exec;
        }
    }

    /// Sets the initialised bits of a scalar lane mask.
    pub fn set_valid_mask(&mut self, d: &Operand, bits: u64) {
        self.w.valid_s[d.at()] = bits as u32;
        if d.width == 2 {
            self.w.valid_s[d.at() + 1] = (bits >> 32) as u32;
        }
    }

    /// The rule for plain arithmetic: a lane of the result is initialised if it is in every source.
    pub fn spread_valid(&mut self, inst: &Inst) {
        if !self.env.check {
            return;
        }
        let all = inst.s.iter().filter(|s| s.file != File::None).fold(ALL, |all, s| all & self.valid(s));
        match inst.d.file {
            File::Vector => self.set_valid(&inst.d, all),
            File::Scalar => {
                let bits = all | !self.w.exec();
                self.set_valid_mask(&inst.d, bits);
            }
            _ => {}
        }
        if inst.m.file == File::Scalar {
            let bits = all | !self.w.exec();
            self.set_valid_mask(&inst.m, bits);
        }
    }

    /// Faults if a source is not initialised in some active lane.
    pub fn require(&mut self, o: &Operand, what: &str) -> bool {
        if !self.env.check {
            return true;
        }
        let bad = self.w.exec() & !self.valid(o);
        if bad != 0 {
            self.w.fail_at(format!("uninitialised {what}"), bad);
        }
        bad == 0
    }

    /// Faults if a scalar source is not initialised.
    pub fn require_scalar(&mut self, o: &Operand, what: &str) -> bool {
        let fine = !self.env.check || self.valid(o) == ALL;
        if !fine {
            self.w.fail(format!("uninitialised {what}"), None);
        }
        fine
    }
}
