//! One pass over a row: its maximum, and whether every logit is a number. Written in lanes so that it vectorises.

/// A logit that is no number to sample from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// The first such id.
    pub id: u32,
}

const LANES: usize = 16;

/// The largest logit; -infinity (a masked id) is allowed, NaN and +infinity are errors.
pub fn finite_max(row: &[f32]) -> Result<f32, NotFinite> {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            bad[lane] |= !is_usable(x);
        }
    }
    let mut any_bad = bad.contains(&true);
    let mut best = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for &x in rest {
        best = best.max(x);
        any_bad |= !is_usable(x);
    }
    if any_bad {
        let id = row.iter().position(|&x| !is_usable(x)).expect("seen above");
        return Err(NotFinite { id: u32::try_from(id).expect("a vocabulary fits u32") });
    }
    Ok(best)
}

/// False for NaN and +infinity.
fn is_usable(x: f32) -> bool {
    x < f32::INFINITY
}

/// The lowest id whose logit equals `wanted`, which is in the row.
pub(super) fn first_index_of(row: &[f32], wanted: f32) -> u32 {
    const STRIDE: usize = 64;
    let chunk = row
        .chunks(STRIDE)
        .position(|chunk| chunk.iter().fold(false, |found, &x| found | (x == wanted)))
        .expect("the maximum is in the row");
    let start = chunk * STRIDE;
    let inside = row[start..].iter().position(|&x| x == wanted).expect("found in this chunk");
    u32::try_from(start + inside).expect("a vocabulary fits u32")
}
