//! Prompt lookup (Saxena 2023): what followed the last n tokens when they last occurred.
//!
//! A table holds, for each n-gram of the text so far, where its latest occurrence ends; both adding a token and looking
//! up cost O(1) whatever the length of the text. Entries are overwritten when two n-grams share one: a guess is lost,
//! never a wrong one made, because the tokens themselves are compared. The twin in the tests searches backwards.

/// The table of one request.
#[derive(Debug)]
pub struct NgramIndex {
    n: usize,
    /// Position after an n-gram, by its hash; 0 = none. The length is a power of two.
    ends: Vec<u32>,
    /// The entry before it.
    earlier: Vec<u32>,
    /// Tokens taken in so far.
    len: usize,
}

impl NgramIndex {
    /// For n-grams of `n` tokens in texts of at most `max_len`.
    pub fn new(n: u32, max_len: u32) -> Self {
        assert!(n > 0, "an n-gram has tokens");
        let ends = vec![0; (max_len as usize * 2).next_power_of_two()];
        Self { n: n as usize, earlier: ends.clone(), ends, len: 0 }
    }

    fn bucket(&self, ngram: &[u32]) -> usize {
        let hash =
            ngram.iter().fold(0u64, |h, &t| (h ^ u64::from(t)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        (hash >> 20) as usize & (self.ends.len() - 1)
    }

    /// Where the latest occurrence of the last n-gram of `tokens` ended before, if there is one. `tokens` continues the text of
    /// the call before.
    pub fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        // The last n-gram is looked up before it is entered, so that it does not find itself.
        while self.len < tokens.len() {
            if self.len >= self.n {
                let bucket = self.bucket(&tokens[self.len - self.n..self.len]);
                self.earlier[bucket] = std::mem::replace(&mut self.ends[bucket], self.len as u32);
            }
            self.len += 1;
        }
        let last = &tokens[tokens.len().checked_sub(self.n)?..];
        let end = self.ends[self.bucket(last)] as usize;
        (end != 0 && end != tokens.len() && tokens[end - self.n..end] == *last).then_some(end)
    }

    /// Guess what follows `tokens`, at most `at_most`; appends to `out`. `tokens` is as in [`NgramIndex::find`].
    pub fn propose(&mut self, tokens: &[u32], at_most: usize, out: &mut Vec<u32>) {
        if let Some(end) = self.find(tokens) {
            // The text may run into its own end: a loop goes on looping.
            let period = tokens.len() - end;
            out.extend((0..at_most).map(|i| tokens[end + i % period]));
        }
    }
}

impl NgramIndex {
    /// What followed the occurrence before the one that `chain` was guessed from, if it differs: after how many of the
    /// chain's tokens, and what. Call it after [`NgramIndex::propose`], with the same text.
    pub fn other<'t>(&self, tokens: &'t [u32], chain: &[u32]) -> Option<(u32, impl Iterator<Item = u32> + 't)> {
        let start = tokens.len().checked_sub(self.n)?;
        let last = &tokens[start..];
        let end = self.earlier[self.bucket(last)] as usize;
        if chain.is_empty() || end == 0 || tokens[end - self.n..end] != *last {
            return None;
        }
        let followed = &tokens[end..];
        let fork = followed.iter().zip(chain).position(|(a, b)| a != b)?;
        Some((fork as u32, followed[fork..].iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_occurrence_before_continues_otherwise() {
        let mut index = NgramIndex::new(2, 100);
        let text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 1, 2];
        let mut guess = Vec::new();
        index.propose(&text, 3, &mut guess);
        assert_eq!(guess, [3, 5, 6]);
        let (fork, other) = index.other(&text, &guess).expect("it goes on with 3 4 9");
        assert_eq!((fork, other.take(3).collect::<Vec<_>>()), (1, vec![4, 9, 1]));
        assert!(index.other(&text, &[3]).is_none() && index.other(&text, &[]).is_none());
    }

    /// Searches backwards.
    fn naive(tokens: &[u32], n: usize, at_most: usize) -> Vec<u32> {
        let Some(start) = tokens.len().checked_sub(n) else { return Vec::new() };
        let Some(end) = (n..tokens.len()).rev().find(|&end| tokens[end - n..end] == tokens[start..]) else {
            return Vec::new();
        };
        let mut text = tokens.to_vec();
        for i in 0..at_most {
            text.push(text[end + i]);
        }
        text.split_off(tokens.len())
    }

    #[test]
    fn equals_a_backward_search() {
        let mut random = 1u32;
        for n in 1..5 {
            let mut index = NgramIndex::new(n, 4096);
            let (mut tokens, mut found) = (Vec::new(), 0);
            for _ in 0..600 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                tokens.push((random >> 16) % 5);
                let mut guess = Vec::new();
                index.propose(&tokens, 4, &mut guess);
                found += usize::from(!guess.is_empty());
                let expected = naive(&tokens, n as usize, 4);
                // An overwritten entry loses a guess; 780 n-grams in 8192 places rarely meet.
                assert!(guess == expected || guess.is_empty() && n == 4, "{n}: {tokens:?}");
            }
            assert!(found > 150, "{n}-grams: {found} guesses");
        }
    }

    #[test]
    fn a_loop_goes_on_and_a_short_text_is_silent() {
        let mut index = NgramIndex::new(3, 100);
        let mut guess = Vec::new();
        index.propose(&[7, 8], 5, &mut guess);
        assert!(guess.is_empty());
        index.propose(&[7, 8, 7, 8, 7, 8], 5, &mut guess);
        assert_eq!(guess, [7, 8, 7, 8, 7]);
    }
}
