//! `tokenspeed logits`: one step with every position's logits, without the scheduler.

use tokenspeed_backend_api::{abi::ts_table_delta, step::StepData};
use tokenspeed_core::{driver::StepRunner, engine::ComponentClass};

use super::prepare::{Prepared, Shape};
use crate::{cli::engine_options::EngineOptions, error::CliError, progress::Progress};

/// One row of logits per position of `ids`, vocabulary wide.
pub fn prompt_logits(
    options: &EngineOptions,
    ids: &[u32],
    progress: &mut dyn Progress,
) -> Result<Vec<Vec<f32>>, CliError> {
    let n = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let prepared = Prepared::new(options, Shape::Logits(n))?;
    let vocab = prepared.lowered.vocab;
    if let Some(id) = ids.iter().find(|id| **id >= vocab) {
        let what = format!("token id {id} is outside the model's vocabulary of {vocab}");
        return Err(CliError::usage(what, "--ids", ""));
    }
    let context = prepared.model.config.context_tokens_max();
    if u64::from(n) > context {
        let what = format!("{n} token ids are more than the model's context of {context}");
        return Err(CliError::usage(what, "--ids", "give fewer"));
    }
    let blocks = prepared.engine.pages_of(n);
    let paged: Vec<u32> = prepared.engine.components_of(ComponentClass::Paged).map(|at| at as u32).collect();
    let mut program = prepared.load(progress)?;
    let signed: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    let mut step = StepData::from_spans(&[(0, 0, &signed)]);
    step.logit_rows = (0..n).collect();
    // A recurrent state starts at zero and ends in the first slot behind the scratch slot.
    step.rows[0].state_write = 1;
    for component in paged {
        let delta = |index| ts_table_delta { component, table_row: 0, index, block: index + 1 };
        step.deltas.extend((0..blocks).map(delta));
    }
    let logits = program.run(&step.to_bytes(), n).map_err(|e| CliError::new(e, "while computing", ""))?;
    Ok(logits.chunks_exact(vocab as usize).map(<[f32]>::to_vec).collect())
}
