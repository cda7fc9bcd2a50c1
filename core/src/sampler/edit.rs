//! Masks, bias and penalties: steps 1 to 4, on a copy of the row. A masked id is at -infinity.

use tokenspeed_backend_api::sampling::{Penalties, penalise};

use super::RowContext;

/// False if the row can be sampled as it is.
pub fn is_needed(context: &RowContext<'_>) -> bool {
    let params = context.params;
    params.allowed_token_ids.is_some()
        || context.mask.is_some()
        || !params.bad_words.is_empty()
        || !params.logit_bias.is_empty()
        || context.n_generated < params.min_tokens
        || !context.history.occurrences().is_empty()
}

/// Write the edited row to `out`.
pub fn apply(row: &[f32], context: &RowContext<'_>, out: &mut Vec<f32>) {
    let params = context.params;
    out.clear();
    match &params.allowed_token_ids {
        Some(ids) => {
            out.resize(row.len(), f32::NEG_INFINITY);
            for &id in ids {
                out[id as usize] = row[id as usize];
            }
        }
        None => out.extend_from_slice(row),
    }
    if let Some(mask) = context.mask {
        mask.apply(out);
    }
    for word in &params.bad_words {
        let (&last, before) = word.split_last().expect("validated: not empty");
        if context.tokens.ends_with(before) {
            out[last as usize] = f32::NEG_INFINITY;
        }
    }
    if context.n_generated < params.min_tokens {
        for &id in context.eos_ids.iter().chain(&params.stop_token_ids) {
            out[id as usize] = f32::NEG_INFINITY;
        }
    }
    for &(id, bias) in &params.logit_bias {
        out[id as usize] += bias;
    }
    let penalties = Penalties {
        repetition: params.repetition_penalty,
        frequency: params.frequency_penalty,
        presence: params.presence_penalty,
    };
    for occurrence in context.history.occurrences() {
        let logit = &mut out[occurrence.id as usize];
        *logit = penalise(*logit, occurrence.count, &penalties);
    }
}
