//! LDS instructions that touch no memory: permutations through its crossbar.

use super::{def, lds};
use crate::{
    isa::{Def, Inst, Sem},
    lanes,
    machine::{Cx, LdsOp, Merge},
};

/// Completes a permutation. Lanes that are inactive at the source give zero.
pub fn complete(cx: &mut Cx, inst: &Inst, op: &LdsOp) {
    let (name, offset) = (inst.def.name, inst.f.offset as u32);
    let active = |l: usize| op.mask >> l & 1 != 0;
    let mut out = [0; 64];
    let mut valid = u64::MAX;
    if name == "ds_permute_b32" {
        // Forward: a later lane wins.
        for l in lanes::of(op.mask) {
            let to = (op.address[l].wrapping_add(offset) >> 2 & 63) as usize;
            out[to] = op.data[0][l];
            valid = valid & !(1 << to) | (op.valid[0] >> l & 1) << to;
        }
    } else {
        for l in lanes::of(op.mask) {
            let (from, data, known) = match name {
                "ds_swizzle_b32" => (swizzle(l, offset), &op.address, u64::MAX),
                _ => ((op.address[l].wrapping_add(offset) >> 2 & 63) as usize, &op.data[0], op.valid[0]),
            };
            if active(from) {
                out[l] = data[from];
                valid = valid & !(1 << l) | (known >> from & 1) << l;
            }
        }
    }
    lds::give(cx, inst, vec![out], vec![valid], op.mask, Merge::Full);
}

/// Source lane of a swizzle: a permutation of four lanes, or and/or/xor masks on the lane number within 32.
fn swizzle(lane: usize, offset: u32) -> usize {
    if offset >> 15 & 1 != 0 {
        return lane & !3 | (offset >> (2 * (lane & 3)) & 3) as usize;
    }
    let (and, or, xor) = (offset & 31, offset >> 5 & 31, offset >> 10 & 31);
    lane & 32 | ((lane as u32 & 31 & and | or) ^ xor) as usize
}

/// DS without memory.
pub static DS: &[Def] = &[
    def!(61, "ds_swizzle_b32", "D1A1", Lds, Sem::X(lds::issue)),
    def!(62, "ds_permute_b32", "D1A1B1", Lds, Sem::X(lds::issue)),
    def!(63, "ds_bpermute_b32", "D1A1B1", Lds, Sem::X(lds::issue)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzles() {
        assert_eq!((swizzle(5, 0x1f), swizzle(37, 0x1f)), (5, 37));
        assert_eq!((swizzle(5, 1 << 10 | 0x1f), swizzle(40, 0x8000 | 0b00_01_10_11)), (4, 43));
    }
}
