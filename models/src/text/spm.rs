//! SentencePiece BPE: repeatedly join the adjacent pair whose piece has the best score, leftmost first among equals.
//!
//! Written out rather than turned into a merge list for the `tokenizers` BPE model: there a tie between two splits of one
//! piece is decided by rank and not by position, so runs of one character can come out otherwise than trained.
//! Source: Sennrich et al. 2016 with SentencePiece's score order (Kudo and Richardson 2018).

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap},
};

/// How a piece of the vocabulary may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceUse {
    /// Joined and emitted.
    Normal,
    /// Joined on the way to larger pieces, never emitted: taken apart again at the end.
    Intermediate,
}

/// The vocabulary of one SentencePiece BPE model.
#[derive(Clone, Debug)]
pub struct Spm {
    pieces: HashMap<String, (u32, f32, PieceUse)>,
    bytes: Box<[Option<u32>; 256]>,
    unknown: u32,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// A possible join; stale when either side has changed since (then the lengths no longer add up).
struct Join {
    score: f32,
    left: usize,
    right: usize,
    start: usize,
    end: usize,
}

impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}
impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Join {}

impl Spm {
    /// `pieces`: text (with `▁` for spaces), id, score, use. `bytes`: the id of each `<0xXX>` piece. `unknown`: what a
    /// character becomes that neither a piece nor byte pieces cover.
    pub fn new(
        pieces: impl IntoIterator<Item = (String, u32, f32, PieceUse)>,
        bytes: [Option<u32>; 256],
        unknown: u32,
    ) -> Self {
        let mut map = HashMap::new();
        for (text, id, score, usage) in pieces {
            map.entry(text).or_insert((id, score, usage)); // of equal pieces the first counts
        }
        Self { pieces: map, bytes: Box::new(bytes), unknown }
    }

    /// Append the ids of `text`, in which spaces are already `▁`. O(n log n).
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let index = symbols.len();
            symbols.push(Symbol { start, end: start + c.len_utf8(), previous: index.checked_sub(1), next: None });
            if index > 0 {
                symbols[index - 1].next = Some(index);
            }
        }
        let mut joins = BinaryHeap::new();
        let mut splits: HashMap<(usize, usize), usize> = HashMap::new();
        for index in 1..symbols.len() {
            self.consider(text, &symbols, index - 1, index, &mut joins, &mut splits);
        }
        while let Some(join) = joins.pop() {
            let (left, right) = (symbols[join.left], symbols[join.right]);
            // A swallowed symbol is empty (start == end), so it can never fill a join's span.
            if left.start != join.start
                || right.end != join.end
                || left.next != Some(join.right)
                || right.start == right.end
            {
                continue;
            }
            symbols[join.left].end = right.end;
            symbols[join.left].next = right.next;
            symbols[join.right].start = right.end;
            if let Some(next) = right.next {
                symbols[next].previous = Some(join.left);
                self.consider(text, &symbols, join.left, next, &mut joins, &mut splits);
            }
            if let Some(previous) = left.previous {
                self.consider(text, &symbols, previous, join.left, &mut joins, &mut splits);
            }
        }
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(index) = at {
            let symbol = symbols[index];
            self.emit(text, symbol.start, symbol.end, &splits, out);
            at = symbol.next;
        }
    }

    fn consider(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        joins: &mut BinaryHeap<Join>,
        splits: &mut HashMap<(usize, usize), usize>,
    ) {
        let (start, end) = (symbols[left].start, symbols[right].end);
        if let Some(&(_, score, usage)) = self.pieces.get(&text[start..end]) {
            joins.push(Join { score, left, right, start, end });
            if usage == PieceUse::Intermediate {
                splits.insert((start, end), symbols[right].start);
            }
        }
    }

    fn emit(&self, text: &str, start: usize, end: usize, splits: &HashMap<(usize, usize), usize>, out: &mut Vec<u32>) {
        // Explicit stack: an intermediate piece can be long, and recursion depth would be the text's to choose.
        let mut stack = vec![(start, end)];
        while let Some((start, end)) = stack.pop() {
            match self.pieces.get(&text[start..end]) {
                Some(&(id, _, PieceUse::Normal)) => out.push(id),
                _ => match splits.get(&(start, end)) {
                    Some(&middle) => stack.extend([(middle, end), (start, middle)]),
                    None => {
                        let bytes: Option<Vec<u32>> =
                            text.as_bytes()[start..end].iter().map(|&byte| self.bytes[byte as usize]).collect();
                        match bytes {
                            Some(ids) => out.extend(ids),
                            None => out.push(self.unknown),
                        }
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spm(pieces: &[(&str, f32)]) -> Spm {
        let mut bytes = [None; 256];
        (0..256).for_each(|b| bytes[b] = Some(1000 + b as u32));
        let pieces = pieces.iter().enumerate().map(|(i, &(t, s))| (t.to_owned(), i as u32, s, PieceUse::Normal));
        Spm::new(pieces, bytes, 0)
    }

    fn encode(spm: &Spm, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        spm.encode(text, &mut out);
        out
    }

    /// The definition, without any cleverness: scan for the best pair, join it, start again.
    fn naive(spm: &Spm, text: &str) -> Vec<u32> {
        let mut symbols: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for i in 1..symbols.len() {
                let joined = format!("{}{}", symbols[i - 1], symbols[i]);
                if let Some(&(_, score, _)) = spm.pieces.get(&joined)
                    && best.is_none_or(|(s, _)| score > s)
                {
                    best = Some((score, i));
                }
            }
            let Some((_, i)) = best else { break };
            let right = symbols.remove(i);
            symbols[i - 1].push_str(&right);
        }
        let byte = |b: u8| spm.bytes[b as usize].unwrap();
        symbols
            .iter()
            .flat_map(|s| match spm.pieces.get(s) {
                Some(&(id, ..)) => vec![id],
                None => s.bytes().map(byte).collect(),
            })
            .collect()
    }

    #[test]
    fn equal_scores_join_leftmost_first_and_unknown_characters_become_bytes() {
        let model = spm(&[("a", -9.0), ("aa", -1.0), ("aaa", -2.0)]);
        assert_eq!(encode(&model, "aaaaaé"), [1, 2, 1000 + 0xC3, 1000 + 0xA9]);
        assert!(encode(&model, "").is_empty());
    }

    #[test]
    fn the_heap_agrees_with_the_definition_on_random_vocabularies() {
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let mut pieces: Vec<(String, f32)> = Vec::new();
            for _ in 0..random(30) {
                let text: String = (0..1 + random(5)).map(|_| ['a', 'b', '▁'][random(3) as usize]).collect();
                if !pieces.iter().any(|(t, _)| *t == text) {
                    pieces.push((text, -(random(4) as f32)));
                }
            }
            let model = spm(&pieces.iter().map(|(t, s)| (t.as_str(), *s)).collect::<Vec<_>>());
            let text: String = (0..random(40)).map(|_| ['a', 'b', '▁', 'é'][random(4) as usize]).collect();
            assert_eq!(encode(&model, &text), naive(&model, &text), "{pieces:?} {text:?}");
        }
    }

    #[test]
    fn an_intermediate_piece_is_taken_apart_again() {
        let pieces = [
            ("a", PieceUse::Normal),
            ("ab", PieceUse::Intermediate),
            ("b", PieceUse::Normal),
            ("abb", PieceUse::Normal),
        ];
        let pieces = pieces.iter().enumerate().map(|(i, &(t, u))| (t.to_owned(), i as u32, -(i as f32), u));
        let model = Spm::new(pieces, [None; 256], 7);
        assert_eq!(encode(&model, "abb"), [3]);
        assert_eq!(encode(&model, "abab?"), [0, 2, 0, 2, 7]);
    }
}
