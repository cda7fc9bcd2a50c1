//! Temperature, top-k, top-p, min-p and the draw.
//!
//! All three filters keep a head of the order of falling probability, so the work is a walk down that order, which
//! stops where the draw or the filters stop. Without `top_k` the order is made lazily: the best 128, then more.

use super::{
    exp::{exp_nonpositive, sum_of_weights},
    select,
};
/// Growth of the ordered head while a walk has not ended.
const FIRST_HEAD: usize = 128;
const HEAD_GROWTH: usize = 8;

/// What is kept of the candidates.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    /// So many; 0 = all.
    pub top_k: u32,
    /// Of their probability, this much; 1 or more = all.
    pub top_p: f32,
    /// Those at least this likely, as a fraction of the most likely one; 0 = all.
    pub min_p: f32,
}

/// Draw an id. `max` is the largest of `logits` and finite; `uniform` is in [0, 1).
pub(super) fn draw(
    logits: &[f32],
    max: f32,
    temperature: f32,
    filters: &Filters,
    uniform: f64,
    keys: &mut Vec<u64>,
) -> u32 {
    let temperature = f64::from(temperature);
    let weight = |logit: f32| exp_nonpositive((f64::from(logit) - f64::from(max)) / temperature);
    let &Filters { top_k, top_p, min_p } = filters;
    let filters = Bars { top_p: (top_p < 1.0).then_some(f64::from(top_p)), min_p: f64::from(min_p) };
    if top_k > 0 && (top_k as usize) < logits.len() {
        select::best_of(logits, top_k as usize, keys);
        let total = keys.iter().map(|&key| weight(select::logit_of(key))).sum();
        return walk(keys, true, total, weight, &filters, uniform).expect("the head is all there is");
    }
    let total = sum_of_weights(logits, max, temperature);
    let mut head = FIRST_HEAD;
    loop {
        select::best_of(logits, head, keys);
        let is_complete = keys.len() < head || head >= logits.len();
        if let Some(id) = walk(keys, is_complete, total, weight, &filters, uniform) {
            return id;
        }
        head *= HEAD_GROWTH;
    }
}

struct Bars {
    /// `None` if off.
    top_p: Option<f64>,
    min_p: f64,
}

/// Draw from an ordered head of the candidates whose weights add up to `total`; `None` if it is too short to tell.
fn walk(
    keys: &[u64],
    is_complete: bool,
    total: f64,
    weight: impl Fn(f32) -> f64,
    filters: &Bars,
    uniform: f64,
) -> Option<u32> {
    let weight_of = |key: u64| weight(select::logit_of(key));
    let is_filtering = filters.top_p.is_some() || filters.min_p > 0.0;
    let (kept, kept_total) = if is_filtering {
        let enough = filters.top_p.map_or(f64::INFINITY, |p| p * total);
        let mut sum = 0.0;
        let mut kept = 0;
        let mut is_cut = false;
        while kept < keys.len() {
            let w = weight_of(keys[kept]);
            // The most likely id has weight 1 and always stays.
            if w < filters.min_p {
                is_cut = true;
                break;
            }
            sum += w;
            kept += 1;
            if sum >= enough {
                is_cut = true;
                break;
            }
        }
        if !is_cut && !is_complete {
            return None;
        }
        (kept, sum)
    } else {
        (keys.len(), total)
    };
    let target = uniform * kept_total;
    let mut sum = 0.0;
    for &key in &keys[..kept] {
        sum += weight_of(key);
        if sum > target {
            return Some(select::id_of(key));
        }
    }
    // Only rounding of the sum can get here with every candidate at hand: the last one it is.
    (is_filtering || is_complete).then(|| select::id_of(keys[kept - 1]))
}
