//! Random weights for `dummy:CONFIG.json`: sizing, benchmarks and tests of everything but the text.
//!
//! Values depend on the seed, the weight's name and their place alone, so every run and every process makes the same
//! model. Projections are uniform with variance 1/K, so activations and logits stay near 1 through any depth; norms
//! are 1; biases small. The generator is splitmix64: no dependency, and its whole state is one counter.
#![forbid(unsafe_code)]

use tokenspeed_backend_api::{dtype::DType, quant::quantize_row};

/// The splitmix64 generator (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A stream for one named thing.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a over the name; the generator's own mixing does the rest.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1), on a grid of 2^-23.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// The bytes of a random weight. `dims` are outermost first and end in whole blocks of `dtype`.
pub fn weight(seed: u64, name: &str, dims: &[u64], dtype: DType) -> Vec<u8> {
    let mut random = SplitMix64::named(seed, name);
    let row = dims.last().copied().unwrap_or(1) as usize;
    let rows = dims[..dims.len().saturating_sub(1)].iter().product::<u64>() as usize;
    let row_bytes = dtype.bytes(row as u64).expect("rows are whole blocks") as usize;
    let mut values = vec![0f32; row];
    let mut out = vec![0; rows * row_bytes];
    for bytes in out.chunks_exact_mut(row_bytes) {
        match (dims.len(), name.ends_with(".bias")) {
            (1, true) => values.iter_mut().for_each(|v| *v = random.unit() * 0.01),
            (1, false) => values.fill(1.0),
            _ => {
                // Uniform in [-a, a) has variance a²/3.
                let a = (3.0 / row as f32).sqrt();
                values.iter_mut().for_each(|v| *v = random.unit() * a);
            }
        }
        quantize_row(dtype, &values, bytes);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenspeed_backend_api::quant::dequantize_row;

    #[test]
    fn depends_on_seed_and_name_only() {
        let make = |seed, name| weight(seed, name, &[4, 32], DType::F32);
        assert_eq!(make(1, "a"), make(1, "a"));
        assert_ne!(make(1, "a"), make(2, "a"));
        assert_ne!(make(1, "a"), make(1, "b"));
    }

    #[test]
    fn variance_is_one_over_k() {
        for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
            let bytes = weight(7, "w", &[64, 256], dtype);
            let mut values = vec![0f32; 64 * 256];
            dequantize_row(dtype, &bytes, &mut values);
            let variance = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
            assert!((variance * 256.0 - 1.0).abs() < 0.05, "{dtype}: {variance}");
        }
    }
}
