//! Checked access to the ranges bound to a program's slots.

use super::{
    device::{DeviceImpl, Span},
    fault::Fault,
    glue::Object,
};
use crate::abi::*;
use core::{marker::PhantomData, mem::size_of};

/// The bindings of a call.
pub struct Bindings<'a, D: DeviceImpl> {
    raw: &'a [ts_binding],
    device: PhantomData<fn() -> D>,
}

impl<D: DeviceImpl> Clone for Bindings<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: DeviceImpl> Copy for Bindings<'_, D> {}

impl<'a, D: DeviceImpl> Bindings<'a, D> {
    /// # Safety
    /// `data` points to `n` bindings whose arenas are null or live objects of this device, for `'a`.
    pub(crate) unsafe fn from_abi(data: *const ts_binding, n: u32) -> Result<Self, Fault> {
        if data.is_null() && n > 0 {
            return Err(Fault::invalid(format!("{n} bindings at null")));
        }
        assert!(size_of::<ts_binding>() * n as usize <= isize::MAX as usize);
        // SAFETY: promised by the caller.
        let raw = if n == 0 { &[] } else { unsafe { core::slice::from_raw_parts(data, n as usize) } };
        Ok(Self { raw, device: PhantomData })
    }

    /// The range bound to `slot`, `None` if nothing is.
    pub fn get(&self, slot: u32) -> Option<Span<'a, D::Arena>> {
        self.raw.get(slot as usize).and_then(|b| {
            // SAFETY: live or null, promised to `from_abi`.
            unsafe { span::<D>(b) }
        })
    }

    /// The range of an operand: `offset` inside the binding, and how many bytes are left from there.
    pub fn locate(&self, tensor: &ts_tensor) -> Result<Span<'a, D::Arena>, Fault> {
        let slot = tensor.binding;
        let bound = self.get(slot).ok_or_else(|| Fault::invalid(format!("nothing is bound to slot {slot}")))?;
        let bytes = bound.bytes.checked_sub(tensor.offset).ok_or_else(|| {
            Fault::invalid(format!("offset {} is outside the {} bytes of slot {slot}", tensor.offset, bound.bytes))
        })?;
        Ok(Span { arena: bound.arena, offset: bound.offset + tensor.offset, bytes })
    }

    /// Whether they are the ranges of these records.
    pub fn are(&self, other: &[ts_binding]) -> bool {
        let same = |a: &ts_binding, b: &ts_binding| a.arena == b.arena && a.offset == b.offset && a.bytes == b.bytes;
        self.raw.len() == other.len() && self.raw.iter().zip(other).all(|(a, b)| same(a, b))
    }

    /// The C records, to keep.
    pub fn raw(&self) -> &'a [ts_binding] {
        self.raw
    }
}

impl<D: DeviceImpl> std::fmt::Debug for Bindings<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.raw.iter().map(|b| (b.arena, b.offset, b.bytes))).finish()
    }
}

/// # Safety
/// The arena is null or a live object of a device of type `D`, for `'a`.
pub(crate) unsafe fn span<'a, D: DeviceImpl>(b: &ts_binding) -> Option<Span<'a, D::Arena>> {
    if b.arena.is_null() || b.offset.checked_add(b.bytes).is_none() {
        return None;
    }
    // SAFETY: promised by the caller.
    let object = unsafe { &*b.arena.cast::<Object<D, D::Arena>>() };
    Some(Span { arena: &object.value, offset: b.offset, bytes: b.bytes })
}
