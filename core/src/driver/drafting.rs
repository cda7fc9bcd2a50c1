//! The draft model's passes between two turns, where the engine has one.

use super::device::{DeviceThread, Turn};
use crate::engine::EngineState;

/// Run the passes that the state machine asks for, on the device's thread; `now_ns` is the clock. What failed is in the
/// turn's outcome.
pub(super) fn run(
    state: &mut EngineState,
    device: &DeviceThread,
    mut turn: Box<Turn>,
    now_ns: &dyn Fn() -> u64,
) -> Box<Turn> {
    while turn.outcome.is_ok()
        && let Some(draft) = state.draft_step(now_ns())
    {
        let pass = draft.pass;
        turn.set_draft(&draft);
        turn = device.launch(turn).wait();
        if turn.outcome.is_ok() {
            state.drafted(now_ns(), turn.runner.logits(pass));
        }
    }
    turn
}
