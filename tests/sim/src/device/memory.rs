//! Operands as arrays of records: the only `unsafe` of the simulator.

use tokenspeed_backend_api::{
    abi::ts_tensor,
    sdk::{Operand, StepView},
    tensor,
};

/// Bytes of a [`Record`]; rows of values are one record wide.
const RECORD_BYTES: usize = size_of::<Record>();

/// What a cache row, the head of a state slot and a row of values hold.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Low and high half of the fingerprint.
    pub fingerprint: [u32; 2],
    /// Position of the token, or number of tokens in a state.
    pub count: u32,
    /// Token id.
    pub token: u32,
}

impl Record {
    /// Of a history that ends with `token` at position `count`.
    pub fn new(fingerprint: u64, count: u32, token: u32) -> Self {
        Self { fingerprint: [fingerprint as u32, (fingerprint >> 32) as u32], count, token }
    }

    /// Both halves.
    pub fn fingerprint(&self) -> u64 {
        u64::from(self.fingerprint[0]) | u64::from(self.fingerprint[1]) << 32
    }
}

#[inline]
fn place<T>(operand: &Operand, byte: usize) -> *mut T {
    assert!(byte + size_of::<T>() <= operand.bytes, "byte {byte} of an operand of {} bytes", operand.bytes);
    // SAFETY: inside the operand, by the assertion.
    unsafe { operand.data.add(byte).cast() }
}

/// Record `index` of an operand.
#[inline]
pub fn load(operand: &Operand, index: usize) -> Record {
    // SAFETY: inside a live arena of initialised bytes, any of which are valid; one thread uses a device at a time.
    unsafe { place::<Record>(operand, index * RECORD_BYTES).read_unaligned() }
}

/// Write record `index` of an operand.
#[inline]
pub fn store(operand: &Operand, index: usize, record: Record) {
    // SAFETY: as in `load`; the SDK gives writable memory for operands that an op writes.
    unsafe { place::<Record>(operand, index * RECORD_BYTES).write_unaligned(record) }
}

/// An operand as the catalogue's references see it, at capacity.
pub fn view(descriptor: &ts_tensor, operand: &Operand) -> tensor::View {
    let tensor = tensor::Tensor::from_abi(descriptor).expect("the SDK checked it");
    // SAFETY: the operand's memory, which the SDK checked to be of this size; one thread uses a device at a time.
    unsafe { tensor::View::new(tensor, operand.data) }
}

/// The first entries of a view, as many as the step has.
pub fn cut(view: &tensor::View, step: &StepView<'_>) -> tensor::View {
    // SAFETY: the same memory, at most as many rows.
    unsafe { tensor::View::new(view.tensor.cut(step), view.data()) }
}

/// Word `index` of an operand.
#[inline]
pub fn load_word(operand: &Operand, index: usize) -> u32 {
    // SAFETY: as in `load`.
    unsafe { place::<u32>(operand, index * 4).read_unaligned() }
}

/// Write word `index` of an operand.
#[inline]
pub fn store_word(operand: &Operand, index: usize, word: u32) {
    // SAFETY: as in `store`.
    unsafe { place::<u32>(operand, index * 4).write_unaligned(word) }
}
