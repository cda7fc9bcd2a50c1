//! The side tables of the op `sample`, against what each request asks for and the text that its row is behind: every entry made
//! anew from the tokens, as slowly as can be.

use std::collections::BTreeSet;

use tokenspeed_backend_api::{abi::ts_sample, sdk::StepView, tensor::View};
use tokenspeed_core::grammar::TokenMask;

use super::{
    ops::{Outcome, fail},
    rows::holder_of,
};
use crate::{
    check::Check,
    grammar::Grammar,
    world::{Wishes, World},
};

/// The tables, or none.
struct Tables<'a>(Option<&'a [View]>);

impl Tables<'_> {
    fn has(&self, handles: [u32; 3]) -> bool {
        match self.0 {
            None => handles == [0; 3],
            Some(views) => views.iter().zip(handles).all(|(view, handle)| (handle as usize) < view.rows()),
        }
    }

    /// Entry `at` of a row that exists.
    fn word(&self, table: usize, handle: u32, at: u32) -> u32 {
        self.0.expect("there are rows")[table].load_u32(handle as usize, at as usize)
    }
}

/// Before the step's rows are sampled: `views` are the op's operands.
pub fn check(world: &mut World, step: &StepView<'_>, views: &[View]) -> Outcome {
    let tables = Tables((views.len() == 7).then(|| &views[2..5]));
    let mut counted = BTreeSet::new();
    for (sample, &token) in step.samples.iter().zip(step.logit_rows) {
        let token = &step.tokens[token as usize];
        let row = &step.rows[token.row as usize];
        let holder = holder_of(world, row)?;
        let wishes = world.wishes.get(&holder.id).cloned().unwrap_or_default();
        let tokens = &world.history(holder.id, row.branch_offset).tokens;
        let Some(text) = tokens.get(..=token.position as usize) else {
            let what = format!("{:?} is sampled at {}, behind its text", holder.id, token.position);
            return Err(fail(world, Check::Step, what));
        };
        let is_guess = text.len() > world.truths[&holder.id].tokens.len();
        let wrong = wrong(&tables, sample, &wishes, text, world.sizes.n_ids);
        let is_shared = sample.counts_handle > 0 && !counted.insert(sample.counts_handle);
        let wrong = wrong.or_else(|| is_shared.then(|| "counts where another row does".to_owned()));
        if let Some(wrong) = wrong {
            let what = format!("{:?} is sampled behind {} tokens and {wrong}: {sample:?}", holder.id, text.len());
            return Err(fail(world, Check::Side, what));
        }
        let handles = [sample.counts_handle, sample.bias_handle, sample.mask_handle];
        world.n_side_rows += u64::from(handles != [0; 3]);
        world.n_guided_rows += u64::from(wishes.grammar.is_some());
        world.n_side_guesses += u64::from(is_guess && sample.counts_handle > 0);
    }
    Ok(())
}

/// What is wrong with a row's record, or with what it names.
fn wrong(tables: &Tables<'_>, sample: &ts_sample, wishes: &Wishes, text: &[u32], n_ids: u32) -> Option<String> {
    let Wishes { sampling: s, prompt_tokens, eos_ids, grammar } = wishes;
    let penalties = [sample.repetition_penalty, sample.frequency_penalty, sample.presence_penalty];
    let wanted = [s.repetition_penalty, s.frequency_penalty, s.presence_penalty];
    if penalties != wanted && sample.counts_handle > 0 || wanted != [1.0, 0.0, 0.0] && sample.counts_handle == 0 {
        return Some(format!("has penalties {penalties:?}, wanted {wanted:?}"));
    }
    if !tables.has([sample.counts_handle, sample.bias_handle, sample.mask_handle]) {
        return Some("names rows that do not exist".to_owned());
    }
    let (prompt, answer) = text.split_at((*prompt_tokens).min(text.len()));
    let of_grammar = match grammar {
        None => None,
        Some(grammar) => match of_grammar(grammar, answer, eos_ids, n_ids) {
            Some(mask) => Some(mask),
            // Nobody looks at what is sampled there.
            None => return None,
        },
    };
    for id in 0..n_ids {
        let n = answer.iter().filter(|token| **token == id).count() as u32;
        if sample.counts_handle > 0 {
            let count = tables.word(0, sample.counts_handle, id);
            let is_there = n > 0 || s.repetition_penalty != 1.0 && prompt.contains(&id);
            if count & !(1 << 31) != n || (count != 0) != is_there {
                return Some(format!("counts id {id} {count:#x} times, it was generated {n} times"));
            }
        }
        let bias: f32 = s.logit_bias.iter().filter(|(other, _)| *other == id).map(|(_, bias)| bias).sum();
        let found = match sample.bias_handle {
            0 => 0.0,
            handle => f32::from_bits(tables.word(1, handle, id)),
        };
        if found != bias {
            return Some(format!("biases id {id} by {found}, wanted {bias}"));
        }
        let completes = |word: &Vec<u32>| word.last() == Some(&id) && text.ends_with(&word[..word.len() - 1]);
        let ends = eos_ids.contains(&id) || s.stop_token_ids.contains(&id);
        let is_allowed = s.allowed_token_ids.as_ref().is_none_or(|ids| ids.contains(&id))
            && of_grammar.as_ref().is_none_or(|mask| mask.allows(id))
            && !s.bad_words.iter().any(completes)
            && !(ends && answer.len() < s.min_tokens as usize);
        let found = match sample.mask_handle {
            0 => true,
            handle => tables.word(2, handle, id / 32) >> (id % 32) & 1 == 1,
        };
        if found != is_allowed {
            return Some(format!("may have id {id}: {found}, wanted {is_allowed}"));
        }
    }
    None
}

/// What may follow an answer, if the grammar lets it come this far and says.
fn of_grammar(grammar: &Grammar, answer: &[u32], eos_ids: &[u32], n_ids: u32) -> Option<TokenMask> {
    for (n, &id) in answer.iter().enumerate() {
        let is_over = grammar.is_whole(&answer[..n]) || eos_ids.contains(&id);
        if is_over || !grammar.mask(&answer[..n], n_ids).ok()?.allows(id) {
            return None;
        }
    }
    if grammar.is_whole(answer) { None } else { grammar.mask(answer, n_ids).ok() }
}
