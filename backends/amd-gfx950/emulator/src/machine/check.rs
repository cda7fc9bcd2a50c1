//! Landing of outstanding operations, and what is checked before an instruction runs in checked mode.

use super::{
    context::Cx,
    pending::{Landing, Merge, Pending, Queues},
};
use crate::{
    exec,
    isa::{Encoding, File, Inst, L},
    lanes,
};

/// Whether an instruction that writes a register with an outstanding load is a load of the same kind, which lands behind it.
fn follows(queues: &Queues, inst: &Inst, register: usize) -> bool {
    matches!(inst.encoding, Encoding::Global | Encoding::Mubuf) && queues.is_loading(register)
}

impl Cx<'_> {
    /// Writes loaded data into registers.
    pub fn land(&mut self, landing: &Landing) {
        for (i, (value, valid)) in landing.data.iter().zip(&landing.valid).enumerate() {
            let register = landing.d.at() + i;
            let old = &mut self.w.v[register];
            match landing.merge {
                Merge::Full => lanes::merge(old, value, landing.mask),
                Merge::Low => {
                    let merged: L = std::array::from_fn(|l| old[l] & 0xffff_0000 | value[l] & 0xffff);
                    lanes::merge(old, &merged, landing.mask);
                }
                Merge::High => {
                    let merged: L = std::array::from_fn(|l| old[l] & 0xffff | value[l] << 16);
                    lanes::merge(old, &merged, landing.mask);
                }
            }
            // A half-written register counts as initialised: the compiler fills the other half, or ignores it.
            let lanes = &mut self.w.valid_v[register];
            *lanes = *lanes & !landing.mask | valid & landing.mask;
        }
        if self.env.check {
            self.w.queues.mark(&landing.d, false);
            self.w.queues.mark_later(&landing.d);
        }
    }

    /// Writes loaded data into LDS.
    pub fn land_dma(&mut self, to: &L, data: &[L], valid: &[u64], mask: u64) {
        let bytes = 4 * data.len();
        for l in lanes::of(mask) {
            let mut words = [0; 4];
            for (word, value) in words.iter_mut().zip(data) {
                *word = value[l];
            }
            let known = valid.iter().all(|v| v >> l & 1 != 0);
            if !self.lds.write(self.w, l, to[l], bytes, &words, known) {
                return;
            }
        }
        self.count.lds_write_bytes += u64::from(mask.count_ones()) * bytes as u64;
    }

    /// `vmcnt(n)`: all but the newest n vector memory operations land.
    pub fn land_vector(&mut self, n: usize) {
        while self.w.queues.vector.len() > n {
            match self.w.queues.vector.pop_front() {
                Some(Pending::Load(landing)) => self.land(&landing),
                Some(Pending::Dma { to, data, valid, mask }) => {
                    self.lds.end_dma(&to, mask, 4 * data.len());
                    self.land_dma(&to, &data, &valid, mask);
                }
                Some(Pending::Store) | None => {}
            }
        }
    }

    /// `lgkmcnt(n)`: what has surely landed lands.
    pub fn land_lds(&mut self, n: usize) {
        for _ in 0..self.w.queues.lds_landed(n) {
            if let Some(op) = self.w.queues.lds.pop_front() {
                let kernel = self.env.kernel;
                let inst = &kernel.code[op.at];
                exec::lds::complete(self, inst, &op);
                self.w.queues.mark(&inst.d, false);
                if self.w.fault.is_some() {
                    return;
                }
            }
        }
        if self.w.queues.scalar_landed(n) {
            for load in std::mem::take(&mut self.w.queues.scalar) {
                for (i, (value, valid)) in load.data.iter().zip(&load.valid).enumerate() {
                    (self.w.s[load.d + i], self.w.valid_s[load.d + i]) = (*value, *valid);
                }
                self.w.queues.mark_scalar(load.d, load.data.len(), false);
            }
        }
    }

    /// No operand may be outstanding. False after a fault.
    pub fn check_outstanding(&mut self, inst: &Inst) -> bool {
        if !self.w.queues.any {
            return true;
        }
        // Reads first: an instruction that also overwrites the register is reported for what it needs.
        for (o, written) in inst.operands().skip(2).chain(inst.operands().take(2)) {
            let conflict = match o.file {
                File::Vector => match self.w.queues.vector_conflict(o) {
                    Some(r) if written && follows(&self.w.queues, inst, r) => {
                        self.w.queues.overlapping = true;
                        None
                    }
                    conflict => conflict.map(|r| format!("v{r}")),
                },
                File::Scalar => self.w.queues.scalar_conflict(o).map(|r| format!("s{r}")),
                _ => None,
            };
            if let Some(register) = conflict {
                let verb = if written { "writes" } else { "reads" };
                self.w.fail(format!("{verb} {register} while a load into it is outstanding: a wait is missing"), None);
                return false;
            }
        }
        true
    }
}
