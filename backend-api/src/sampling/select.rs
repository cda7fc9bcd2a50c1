//! The k best logits of a row, best first, without sorting the row.
//!
//! A candidate is one u64: the logit, mapped so that integers order as floats do, above the inverted id. One integer
//! comparison then gives the documented order: larger logit first, equal ones by lower id. Ids at -infinity are masked
//! and never candidates.

/// Pack a logit and its id.
fn key(logit: f32, id: usize) -> u64 {
    // Adding 0 turns -0 into +0: the two are equal and must tie.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

/// The id of a packed candidate.
pub fn id_of(key: u64) -> u32 {
    !(key as u32)
}

/// The logit of a packed candidate.
pub fn logit_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & 0x7fff_ffff } else { !ordered })
}

/// Fill `best` with the `k` best candidates of the row in order, or all of them if there are fewer.
///
/// Candidates are collected until twice k are there, then the worse half is dropped and its best logit becomes the bar
/// for later ones: O(row) whatever k is, and most of a row is skipped with one vector comparison.
pub(super) fn best_of(row: &[f32], k: usize, best: &mut Vec<u64>) {
    const STRIDE: usize = 32;
    best.clear();
    if k == 0 {
        return;
    }
    let room = (2 * k).max(256).min(row.len().max(1));
    let mut bar = f32::NEG_INFINITY;
    for (chunk_index, chunk) in row.chunks(STRIDE).enumerate() {
        if !chunk.iter().fold(false, |any, &x| any | (x > bar)) {
            continue;
        }
        for (lane, &x) in chunk.iter().enumerate() {
            // A logit equal to the bar loses: every one kept so far has a lower id.
            if x > bar {
                if best.len() == room {
                    best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
                    best.truncate(k);
                    bar = logit_of(best[k - 1]);
                    if x <= bar {
                        continue;
                    }
                }
                best.push(key(x, chunk_index * STRIDE + lane));
            }
        }
    }
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        best.truncate(k);
    }
    best.sort_unstable_by(|a, b| b.cmp(a));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_order_and_content() {
        let logits = [f32::MIN, -2.5, -1e-40, 0.0, 1e-40, 1.0, f32::MAX];
        for pair in logits.windows(2) {
            assert!(key(pair[0], 5) < key(pair[1], 5));
        }
        for (id, x) in logits.into_iter().enumerate() {
            assert_eq!((logit_of(key(x, id)), id_of(key(x, id)) as usize), (x, id));
        }
        assert!(key(1.0, 3) > key(1.0, 4), "the lower id is better");
        assert_eq!(key(-0.0, 9), key(0.0, 9));
    }

    #[test]
    fn equals_a_full_sort_for_every_k() {
        let mut state = 1u32;
        for n in [1usize, 31, 32, 33, 700, 2000] {
            // Few distinct values: ties everywhere, and some masked ids.
            let row: Vec<f32> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if state >> 28 == 0 { f32::NEG_INFINITY } else { (state >> 26) as f32 - 20.0 }
                })
                .collect();
            let mut sorted: Vec<usize> = (0..n).filter(|&i| row[i] > f32::NEG_INFINITY).collect();
            sorted.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
            for k in [0, 1, 2, 3, 64, 128, 300, 699, 2000, 5000] {
                let mut best = Vec::new();
                best_of(&row, k, &mut best);
                let ids: Vec<usize> = best.iter().map(|&key| id_of(key) as usize).collect();
                assert_eq!(ids, sorted[..k.min(sorted.len())], "n {n} k {k}");
            }
        }
    }
}
