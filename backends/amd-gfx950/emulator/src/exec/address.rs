//! Addresses of global and buffer accesses.

use super::transfer::Addresses;
use crate::{
    isa::{File, Inst},
    lanes,
    machine::Cx,
};

/// Global: 64-bit register pair, or scalar base plus 32-bit register; plus the signed immediate.
pub fn global(cx: &mut Cx, inst: &Inst) -> Option<Addresses> {
    if !(cx.require(&inst.s[0], "address") && cx.require_scalar(&inst.s[2], "base address")) {
        return None;
    }
    let low = &cx.w.v[inst.s[0].at()];
    let offset = i64::from(inst.f.offset);
    let mut out = [0; 64];
    if inst.s[2].file == File::None {
        let high = &cx.w.v[inst.s[0].at() + 1];
        for l in 0..64 {
            out[l] = (u64::from(low[l]) | u64::from(high[l]) << 32).wrapping_add_signed(offset);
        }
    } else {
        let base = cx.w.pair(inst.s[2].at());
        for l in 0..64 {
            out[l] = base.wrapping_add(u64::from(low[l])).wrapping_add_signed(offset);
        }
    }
    Some(out)
}

/// Buffer addresses with, per dword, the lanes that are inside the resource.
#[derive(Debug)]
pub struct Buffer {
    /// First byte per lane.
    pub address: Addresses,
    /// Lanes inside, per dword of the access.
    pub inside: Vec<u64>,
}

/// A raw buffer: base + scalar offset + (register offset + immediate); the bracket is compared with the resource's size.
/// Accesses of several dwords are checked dword by dword. Whether the bracket wraps at 32 bits, and what a dword across the end gives,
/// no manual says: either is a fault.
pub fn buffer(cx: &mut Cx, inst: &Inst, bytes: usize) -> Option<Buffer> {
    let known = cx.require(&inst.s[0], "buffer offset")
        && cx.require_scalar(&inst.s[1], "buffer resource")
        && cx.require_scalar(&inst.s[2], "scalar offset");
    if !known {
        return None;
    }
    let r = inst.s[1].at();
    let (low, high) = (cx.w.pair(r), cx.w.pair(r + 2));
    let (base, stride, records) = (low & 0xffff_ffff_ffff, low >> 48 & 0x3fff, high & 0xffff_ffff);
    let swizzled = low >> 63 != 0;
    let adds_lane = high >> 32 >> 23 & 1 != 0;
    if swizzled || adds_lane || stride != 0 {
        cx.w.fail("a buffer resource with stride, swizzle or lane numbers is not modelled", None);
        return None;
    }
    let scalar = crate::machine::scalar_source(cx.w, &inst.s[2]) & 0xffff_ffff;
    let mut out = Buffer { address: [0; 64], inside: vec![0; bytes.div_ceil(4)] };
    let zero = [0; 64];
    let offsets = if inst.s[0].file == File::None { &zero } else { &cx.w.v[inst.s[0].at()] };
    let offset: Addresses = std::array::from_fn(|l| u64::from(offsets[l]) + inst.f.offset as u64);
    for l in 0..64 {
        out.address[l] = base + scalar + offset[l];
    }
    let exec = cx.w.exec();
    let wraps = exec & lanes::mask(|l| offset[l] >> 32 != 0);
    if wraps != 0 {
        cx.w.fail_at("a buffer offset beyond 32 bits", wraps);
        return None;
    }
    for (i, inside) in out.inside.iter_mut().enumerate() {
        let (start, end) = (4 * i as u64, 4 * i as u64 + bytes.min(4) as u64);
        *inside = lanes::mask(|l| offset[l] + end <= records);
        let across = exec & !*inside & lanes::mask(|l| offset[l] + start < records);
        if across != 0 {
            cx.w.fail_at(format!("a buffer access across the end of a resource of {records} bytes"), across);
            return None;
        }
    }
    Some(out)
}
