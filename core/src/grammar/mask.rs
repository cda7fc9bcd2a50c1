//! A set of token ids, one bit each.

/// Allowed tokens of one row of logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32`; bits at or above the vocabulary are 0.
    words: Vec<u32>,
    vocab_size: u32,
}

impl TokenMask {
    /// Nothing is allowed of `vocab_size` ids.
    pub fn new(vocab_size: u32) -> Self {
        Self { words: vec![0; vocab_size.div_ceil(32) as usize], vocab_size }
    }

    /// Ids there are.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Bit `id % 32` of word `id / 32`.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Allow nothing.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Allow an id; ids that do not exist change nothing.
    pub fn allow(&mut self, id: u32) {
        if id < self.vocab_size {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Take over a set with the same layout; missing words are empty, ids that do not exist are left out.
    pub fn copy_from(&mut self, words: &[u32]) {
        let n = words.len().min(self.words.len());
        self.words[..n].copy_from_slice(&words[..n]);
        self.words[n..].fill(0);
        let used = self.vocab_size % 32;
        if let (Some(last), 1..) = (self.words.last_mut(), used) {
            *last &= (1 << used) - 1;
        }
    }

    /// Whether an id is allowed.
    pub fn allows(&self, id: u32) -> bool {
        id < self.vocab_size && self.words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// Nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Set every logit whose id is not allowed to -infinity; whole words at a time where they agree.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (chunk, &word) in logits.chunks_mut(32).zip(&self.words) {
            match word {
                0 => chunk.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                _ => {
                    for (bit, logit) in chunk.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ids_and_padding_is_never_allowed() {
        for vocab_size in [1, 31, 32, 33, 64, 70] {
            let mut mask = TokenMask::new(vocab_size);
            assert!(mask.is_empty());
            mask.copy_from(&[u32::MAX; 5]);
            let allowed: Vec<u32> = (0..200).filter(|id| mask.allows(*id)).collect();
            assert_eq!(allowed, (0..vocab_size).collect::<Vec<_>>());
            mask.copy_from(&[2]);
            mask.allow(vocab_size);
            mask.allow(vocab_size - 1);
            let mut logits = vec![1.0; vocab_size as usize];
            mask.apply(&mut logits);
            for (id, logit) in (0..).zip(logits) {
                assert_eq!(logit == 1.0, id == 1 || id == vocab_size - 1, "{id} of {vocab_size}");
            }
        }
    }
}
