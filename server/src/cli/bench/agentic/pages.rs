//! Token sequences as paths of pages: two prompts share a page if they agree in all tokens up to its end.
//!
//! Pages are numbered, so that the bounds below compare numbers; the tokens themselves decide, not a hash of them.

use std::collections::HashMap;

/// Numbers every distinct page.
#[derive(Debug)]
pub struct Pages {
    tokens: usize,
    numbers: HashMap<(Option<u32>, Box<[u32]>), u32>,
}

/// What a request reads and leaves behind, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Whole pages of prompt and answer, first page first.
    pub pages: Vec<u32>,
    /// Of these, how many a cache could have provided: whole pages of the prompt without its last token.
    pub n_usable: usize,
    /// Prompt and answer end in the middle of a page, which takes memory while the request runs.
    pub has_tail: bool,
}

impl Pages {
    /// Pages of so many tokens.
    pub fn new(tokens: u32) -> Self {
        Self { tokens: tokens.max(1) as usize, numbers: HashMap::new() }
    }

    /// The path of a request. The prompt has at least one token.
    pub fn path(&mut self, prompt: &[u32], answer: &[u32]) -> Path {
        let all = [prompt, answer].concat();
        let mut pages = Vec::with_capacity(all.len() / self.tokens);
        for page in all.chunks_exact(self.tokens) {
            let next = self.numbers.len() as u32;
            pages.push(*self.numbers.entry((pages.last().copied(), page.into())).or_insert(next));
        }
        let n_usable = prompt.len().saturating_sub(1) / self.tokens;
        Path { pages, n_usable, has_tail: !all.len().is_multiple_of(self.tokens) }
    }

    /// Distinct pages so far.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// No page was seen.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_its_whole_history() {
        let mut pages = Pages::new(2);
        let a = pages.path(&[1, 2, 3, 4], &[5]);
        assert_eq!(a, Path { pages: vec![0, 1], n_usable: 1, has_tail: true });
        let b = pages.path(&[9, 9, 3, 4, 5], &[6]);
        assert_eq!((b.pages.len(), b.n_usable, b.has_tail), (3, 2, false));
        assert!(!b.pages.contains(&1), "the same tokens behind another beginning are another page");
        assert_eq!(pages.path(&[1, 2, 3, 4, 5], &[]).pages, [0, 1]);
        assert_eq!(pages.len(), 5);
    }
}
