//! Where the experts of one layer lie in memory.

use super::windows::{self, Advice, MappedFile, Windows};
use std::ops::Range;
use tokenspeed_backend_api::sdk::Operand;

/// The stacks of a layer that lie in mapped files.
#[derive(Debug)]
pub struct Stacks {
    /// (first byte, bytes from one place to the next, bytes of one place).
    parts: Vec<(usize, usize, usize)>,
    places: u32,
    /// The files that hold them.
    files: Vec<MappedFile>,
}

impl Stacks {
    /// Of the operands, those that are used in place and lie in a mapped file; `None` if there are none. Nothing of them
    /// is mapped afterwards: whatever looked at them before, the books start from nothing.
    pub fn of(operands: &[Operand]) -> Option<Self> {
        let range = |o: &Operand| o.data as usize..o.data as usize + o.bytes;
        let mut files = windows::mapped_files();
        files.retain(|f| operands.iter().any(|o| o.imported && f.holds(&range(o))));
        let part = |o: &Operand| {
            let place = o.tensor.dtype.bytes(o.tensor.row_len() as u64).expect("whole blocks, checked") as usize;
            (o.data as usize, o.tensor.row_bytes, place)
        };
        let is_file = |o: &&Operand| o.imported && files.iter().any(|f| f.holds(&range(o)));
        let parts: Vec<_> = operands.iter().filter(is_file).map(part).collect();
        let stacks = Self { parts, places: operands.first()?.tensor.dims[0] as u32, files };
        (0..stacks.places).for_each(|place| windows::advise(&stacks.windows(place), Advice::Drop));
        (!stacks.parts.is_empty()).then_some(stacks)
    }

    /// Tells layers apart.
    pub fn id(&self) -> usize {
        self.parts[0].0
    }

    fn ranges(&self, place: u32) -> Vec<Range<usize>> {
        let part = |(base, stride, bytes): &(usize, usize, usize)| {
            let start = base + place as usize * stride;
            start..start + bytes
        };
        self.parts.iter().map(part).collect()
    }

    /// The windows of the expert at `place`.
    pub(super) fn windows(&self, place: u32) -> Windows {
        let ranges = self.ranges(place);
        self.files.iter().flat_map(|f| f.windows(&ranges)).collect()
    }

    /// Its pages.
    pub(super) fn pages(&self, place: u32) -> Windows {
        let ranges = self.ranges(place);
        self.files.iter().flat_map(|f| f.pages(&ranges)).collect()
    }

    /// Bytes of its windows.
    pub fn bytes(&self, place: u32) -> u64 {
        windows::bytes(&self.windows(place))
    }

    /// Bytes of the largest expert's windows.
    pub fn largest(&self) -> u64 {
        (0..self.places).map(|place| self.bytes(place)).max().unwrap_or(0)
    }
}
