//! Where the experts of a layer lie in a checkpoint's files.
//!
//! A stack of experts is used in place if its tensors lie in one file at a constant pitch. In which order is free, as the
//! op looks places up, but all stacks of a layer share one order: the first stack that has a pitch decides it, and one
//! that disagrees is copied in that order.

use crate::weights::Tensor;

/// Entries of a stack inside a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pitch {
    /// Index of the file.
    pub region: usize,
    /// First byte of the expert at place 0.
    pub offset: u64,
    /// Bytes from one place to the next.
    pub pitch: u64,
}

/// The places of one matrix of all experts, by their order in one file; `None` if they lie in several.
pub(super) fn order(tensors: &[&Tensor]) -> Option<Vec<u32>> {
    let mut by_offset: Vec<usize> = (0..tensors.len()).collect();
    by_offset.sort_by_key(|e| tensors[*e].offset);
    let mut slots = vec![0; tensors.len()];
    by_offset.iter().enumerate().for_each(|(place, expert)| slots[*expert] = place as u32);
    pitch(tensors, &slots).map(|_| slots)
}

/// The pitch at which the tensors lie in this order, if there is one.
pub(super) fn pitch(tensors: &[&Tensor], slots: &[u32]) -> Option<Pitch> {
    let at = |place: u32| slots.iter().position(|s| *s == place).map(|expert| tensors[expert]);
    let first = at(0)?;
    let pitch = match at(1) {
        Some(second) => second.offset.checked_sub(first.offset).filter(|pitch| *pitch >= first.bytes)?,
        None => first.bytes,
    };
    let fits = |(tensor, slot): (&&Tensor, &u32)| {
        tensor.region == first.region && tensor.offset == first.offset + u64::from(*slot) * pitch
    };
    tensors.iter().zip(slots).all(fits).then_some(Pitch { region: first.region, offset: first.offset, pitch })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Format;
    use tokenspeed_backend_api::dtype::DType;

    fn tensors(places: &[(usize, u64)]) -> Vec<Tensor> {
        let tensor = |(region, offset): &(usize, u64)| Tensor {
            name: String::new(),
            format: Format::Known(DType::U8),
            shape: vec![8],
            region: *region,
            offset: *offset,
            bytes: 8,
        };
        places.iter().map(tensor).collect()
    }

    #[test]
    fn any_order_at_one_pitch_in_one_file() {
        let list = tensors(&[(1, 70), (1, 30), (1, 50)]);
        let all: Vec<&Tensor> = list.iter().collect();
        let slots = order(&all).unwrap();
        assert_eq!(slots, [2, 0, 1]);
        assert_eq!(pitch(&all, &slots), Some(Pitch { region: 1, offset: 30, pitch: 20 }));
        assert_eq!(pitch(&all, &[0, 1, 2]), None, "another order");
        for places in [[(1, 70), (1, 30), (1, 51)], [(1, 70), (0, 30), (1, 50)], [(0, 0), (0, 4), (0, 8)]] {
            let list = tensors(&places);
            assert_eq!(order(&list.iter().collect::<Vec<_>>()), None, "{places:?}");
        }
        let one = tensors(&[(0, 5)]);
        assert_eq!(pitch(&[&one[0]], &[0]), Some(Pitch { region: 0, offset: 5, pitch: 8 }));
    }
}
