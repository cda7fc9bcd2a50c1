//! Host memory for pages and states that left the device, and the copying.
//!
//! A page is many pieces on the device, one per cache tensor; in host memory it is one stretch of bytes with a checksum,
//! and so is a recurrent state. What is read back must have the checksum of what was stored under the same name, or it is
//! refused before anything is written to the device. Memory is taken when a place is first used and kept.
//!
//! The checksum is made of four lanes of multiply and rotate, each step a bijection of the lane: any change within one lane
//! shows for certain, any other but for one in 2^64. Rejected: a cryptographic hash, ten times as slow for bits that flip.

use tokenspeed_backend_api::backend::{Arena, BackendError, Device};

use crate::{
    bug::seeded,
    cache::copies::{CopyOrder, Direction, Ends},
    lower::CacheLayout,
};

/// Why a copy did not work.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The device refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// What is in host memory is not what was stored.
    #[error("{what} {number} in host memory does not have the checksum of what was stored there; it is computed again")]
    Checksum {
        /// Page or state.
        what: &'static str,
        /// Which.
        number: u32,
    },
    /// Nothing can be stored.
    #[error("no host memory for {bytes} more bytes of cache; lower --host-cache-bytes")]
    Memory {
        /// Wanted.
        bytes: usize,
    },
    /// This device was loaded without host memory.
    #[error("there is no host memory to copy to or from")]
    NoHostMemory,
}

/// One place in host memory.
#[derive(Debug, Default)]
struct Place {
    bytes: Vec<u8>,
    sum: u64,
}

impl Place {
    fn damage(&mut self) {
        if let Some(byte) = self.bytes.last_mut() {
            *byte ^= 4;
        }
    }
}

/// All places of one kind.
#[derive(Debug)]
struct Places {
    what: &'static str,
    places: Vec<Place>,
    /// Where block 0 of each tensor begins on the device, and the bytes of one block.
    tensors: Vec<(u64, u64)>,
}

impl Places {
    fn new(what: &'static str, n: u32, tensors: Vec<(u64, u64)>) -> Self {
        Self { what, places: (0..n).map(|_| Place::default()).collect(), tensors }
    }

    fn carry_out(&mut self, order: &CopyOrder, ends: Ends, device: &Device, cache: &Arena) -> Result<(), CopyError> {
        let Self { what, places, tensors } = self;
        let place = &mut places[ends.host as usize];
        match order.direction {
            Direction::Store => {
                let bytes = tensors.iter().map(|(_, bytes)| *bytes as usize).sum();
                if place.bytes.len() != bytes {
                    place.bytes.try_reserve_exact(bytes).map_err(|_| CopyError::Memory { bytes })?;
                    place.bytes.resize(bytes, 0);
                }
                let mut rest = &mut place.bytes[..];
                for &(offset, bytes) in tensors.iter() {
                    let (piece, after) = rest.split_at_mut(bytes as usize);
                    device.read(cache, offset + u64::from(ends.device) * bytes, piece)?;
                    rest = after;
                }
                place.sum = checksum(order.hash, &place.bytes);
            }
            Direction::Load => {
                if place.sum != checksum(order.hash, &place.bytes) && !seeded!(ChecksumIsNotLookedAt) {
                    return Err(CopyError::Checksum { what, number: ends.host });
                }
                let mut rest = &place.bytes[..];
                for &(offset, bytes) in tensors.iter() {
                    let (piece, after) = rest.split_at(bytes as usize);
                    device.write(cache, offset + u64::from(ends.device) * bytes, piece)?;
                    rest = after;
                }
            }
        }
        Ok(())
    }
}

/// The host tier of one device.
#[derive(Debug)]
pub struct HostCache {
    pages: Places,
    states: Places,
}

impl HostCache {
    /// Room for so many pages and states of a cache that lies on the device like this.
    pub fn new(n_pages: u32, n_states: u32, layout: CacheLayout) -> Self {
        Self {
            pages: Places::new("page", n_pages, layout.pages),
            states: Places::new("state", n_states, layout.states),
        }
    }

    /// Copy. The device must not be writing the ends meanwhile.
    pub fn carry_out(&mut self, order: &CopyOrder, device: &Device, cache: &Arena) -> Result<(), CopyError> {
        for (ends, places) in [(order.page, &mut self.pages), (order.state, &mut self.states)] {
            if let Some(ends) = ends {
                places.carry_out(order, ends, device, cache)?;
            }
        }
        Ok(())
    }

    /// Flip a bit of every stored page and state: for tests of what happens then.
    pub fn damage(&mut self) {
        self.pages.places.iter_mut().chain(&mut self.states.places).for_each(Place::damage);
    }

    /// Flip a bit of what the orders so far stored in one place for pages.
    pub fn damage_page(&mut self, number: u32) {
        self.pages.places[number as usize].damage();
    }
}

/// Of bytes stored under a name.
fn checksum(name: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [name, !name, name.rotate_left(32), bytes.len() as u64];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    for &byte in rest {
        lanes[0] = step(lanes[0], byte.into());
    }
    lanes.into_iter().fold(0, |sum, lane| step(sum.rotate_left(17), lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_name_count() {
        let mut bytes: Vec<u8> = (0..133u32).map(|i| (i * 7) as u8).collect();
        let sum = checksum(9, &bytes);
        assert_ne!(sum, checksum(8, &bytes));
        assert_ne!(sum, checksum(9, &bytes[..132]));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum, checksum(9, &bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(sum, checksum(9, &bytes));
        bytes.swap(3, 40);
        assert_ne!(sum, checksum(9, &bytes), "two blocks changed");
    }
}
