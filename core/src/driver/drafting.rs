//! The draft model's passes between two turns, where the engine has one.

use super::StepRunner;
use crate::engine::EngineState;

/// Run the passes that the state machine asks for; `now_ns` is the clock.
pub(super) fn run(
    state: &mut EngineState,
    runner: &mut dyn StepRunner,
    now_ns: &dyn Fn() -> u64,
) -> Result<(), String> {
    while let Some(draft) = state.draft_step(now_ns()) {
        let pass = draft.pass;
        runner.run(pass, draft.step.bytes(), draft.n_logit_rows)?;
        state.drafted(now_ns(), runner.logits(pass));
    }
    Ok(())
}
