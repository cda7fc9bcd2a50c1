//! Byte-pair merging by rank: in each piece, the adjacent pair whose joined bytes have the lowest rank is joined, the
//! leftmost of equals first, until no pair is a token.
//!
//! Short pieces are merged by scanning a small list again and again, long ones with a heap of candidate pairs, so that a
//! piece of a megabyte takes n log n steps. Both give the same ids; a test holds them against each other.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{pre_tokenizer::Pieces, ranks::Ranks, slices::slices};

/// Longest piece, in bytes, that is merged by scanning.
const SCAN_BYTES_MAX: usize = 96;
const NONE: u32 = u32::MAX;

/// Reusable work space.
#[derive(Default)]
struct Scratch {
    /// Where each part starts, and the rank of it joined with the next (`NONE`: no token).
    parts: Vec<(u32, u32)>,
}

/// Append the ids of `text`.
pub(crate) fn encode(ranks: &Ranks, text: &str, ids: &mut Vec<u32>) {
    let mut scratch = Scratch::default();
    for slice in slices(text) {
        for piece in Pieces::new(slice) {
            let piece = piece.as_bytes();
            match ranks.id(piece) {
                Some(id) => ids.push(id),
                None if piece.len() <= SCAN_BYTES_MAX => merge_by_scanning(ranks, piece, &mut scratch, ids),
                None => merge_by_heap(ranks, piece, ids),
            }
        }
    }
}

fn rank_of(ranks: &Ranks, bytes: &[u8]) -> u32 {
    if bytes.len() > ranks.longest() { NONE } else { ranks.id(bytes).unwrap_or(NONE) }
}

fn id_of(ranks: &Ranks, bytes: &[u8]) -> u32 {
    ranks.id(bytes).expect("single bytes are tokens, and only tokens are joined")
}

fn merge_by_scanning(ranks: &Ranks, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
    let parts = &mut scratch.parts;
    parts.clear();
    // One entry per byte and one for the end; the last two have no pair.
    parts.extend((0..=piece.len() as u32).map(|at| (at, NONE)));
    for at in 0..piece.len() - 1 {
        parts[at].1 = rank_of(ranks, &piece[at..at + 2]);
    }
    loop {
        let mut best = (NONE, 0);
        for (index, part) in parts.iter().enumerate() {
            if part.1 < best.0 {
                best = (part.1, index);
            }
        }
        let (rank, index) = best;
        if rank == NONE {
            break;
        }
        parts.remove(index + 1);
        let joined = |index: usize, parts: &[(u32, u32)]| match parts.get(index + 2) {
            Some(end) => rank_of(ranks, &piece[parts[index].0 as usize..end.0 as usize]),
            None => NONE,
        };
        parts[index].1 = joined(index, parts);
        if index > 0 {
            parts[index - 1].1 = joined(index - 1, parts);
        }
    }
    ids.extend(parts.windows(2).map(|pair| id_of(ranks, &piece[pair[0].0 as usize..pair[1].0 as usize])));
}

fn merge_by_heap(ranks: &Ranks, piece: &[u8], ids: &mut Vec<u32>) {
    // Parts as a linked list over byte positions: `next[start]` is where the part ends, 0 if none starts there.
    let length = piece.len() as u32;
    let mut next: Vec<u32> = (1..=length).collect();
    let mut before: Vec<u32> = (0..=length).map(|at| at.wrapping_sub(1)).collect();
    let mut heap: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::with_capacity(piece.len());
    let pair = |start: u32, next: &[u32]| -> u32 {
        let middle = next[start as usize];
        if middle >= length {
            return NONE;
        }
        rank_of(ranks, &piece[start as usize..next[middle as usize] as usize])
    };
    for start in 0..length {
        let rank = pair(start, &next);
        if rank != NONE {
            heap.push(Reverse((rank, start)));
        }
    }
    while let Some(Reverse((rank, start))) = heap.pop() {
        // An entry is stale when its part is gone or has another neighbour; a rank stands for exactly one string.
        if next[start as usize] == 0 || pair(start, &next) != rank {
            continue;
        }
        let middle = next[start as usize];
        let end = next[middle as usize];
        next[start as usize] = end;
        next[middle as usize] = 0;
        before[end as usize] = start;
        for start in [start, before[start as usize]] {
            if start < length {
                let rank = pair(start, &next);
                if rank != NONE {
                    heap.push(Reverse((rank, start)));
                }
            }
        }
    }
    let mut start = 0;
    while start < length {
        let end = next[start as usize];
        ids.push(id_of(ranks, &piece[start as usize..end as usize]));
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks() -> Ranks {
        let words = ["ab", "ba", "aa", "bb", "aba", "abab", "aaaa", "bba", "cab", "ccc", "cc", "ca"];
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        Ranks::build("test", bytes.chain(words.iter().map(|word| word.as_bytes().to_vec()))).unwrap()
    }

    /// The definition, with a list of strings.
    fn naive(ranks: &Ranks, piece: &[u8]) -> Vec<u32> {
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|byte| vec![*byte]).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let best = pairs.filter_map(|(at, pair)| Some((ranks.id(&pair.concat())?, at))).min();
            let Some((_, at)) = best else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| ranks.id(part).unwrap()).collect()
    }

    #[test]
    fn scanning_heap_and_definition_agree() {
        let ranks = ranks();
        let mut state = 1u64;
        for length in (1..60).cycle().take(3000) {
            let piece: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    b"abcx"[(state >> 33) as usize % 4]
                })
                .collect();
            let (mut by_scanning, mut by_heap) = (Vec::new(), Vec::new());
            merge_by_scanning(&ranks, &piece, &mut Scratch::default(), &mut by_scanning);
            merge_by_heap(&ranks, &piece, &mut by_heap);
            assert_eq!(by_scanning, by_heap, "{piece:?}");
            assert_eq!(by_heap, naive(&ranks, &piece), "{piece:?}");
        }
    }

    #[test]
    fn a_megabyte_of_one_piece_is_merged_and_comes_back() {
        let ranks = ranks();
        for unit in ["a", "ab", " ", "x", "!"] {
            let text = unit.repeat(1_000_000 / unit.len());
            let mut ids = Vec::new();
            encode(&ranks, &text, &mut ids);
            let back: usize = ids.iter().map(|id| ranks.token(*id).len()).sum();
            assert_eq!(back, text.len());
        }
    }
}
