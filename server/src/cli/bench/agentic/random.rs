//! A small generator for workloads: splitmix64, keyed by a seed and a stream, the same on every machine.

/// Numbers of one stream.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        Self(mixed.bits())
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In [low, high].
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.bits() % (u64::from(high.max(low) - low) + 1)) as u32
    }

    /// Within `share` of `mean`, at least 1.
    pub fn around(&mut self, mean: u32, share: f64) -> u32 {
        let spread = (f64::from(mean) * share).floor() as u32;
        self.between((mean - spread.min(mean)).max(1), (mean + spread).max(1))
    }

    /// True this often.
    pub fn chance(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept_and_filled() {
        let mut random = Random::new(1, 2);
        let mut seen = [false; 4];
        (0..100).for_each(|_| seen[random.between(5, 8) as usize - 5] = true);
        assert_eq!(seen, [true; 4]);
        assert!((0..100).all(|_| (50..=150).contains(&random.around(100, 0.5)) && random.around(1, 0.5) == 1));
        assert!((0..100).all(|_| !random.chance(0.0) && random.chance(1.0)));
        assert_ne!(Random::new(1, 2).bits(), Random::new(1, 3).bits());
    }
}
