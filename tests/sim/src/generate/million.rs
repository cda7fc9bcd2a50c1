//! Prompts of a million tokens, in one seed of some hundred.
//!
//! The rest of a seed is drawn as ever and then stretched: the features of its engine, its faults and the habits of its requests
//! stay, what depends on length becomes larger. Pages and steps become larger too, because the device looks at every row of a
//! text in every step: with twenty steps to a prompt a run takes a few hundred milliseconds, with ten thousand it would take
//! minutes. Left out for the same reason: reports about every prompt token, and runs of other configurations (in chunks of one
//! token, for example). Rejected: a mood of its own, which would have to say again what all others say.

use tokenspeed_core::engine::{ComponentClass, EngineConfig};

use crate::{
    rng::Rng,
    scenario::{Arrival, Fault, MILLION, Origin, Scenario, Text},
};

/// One seed in so many.
const ONE_SEED_IN: u32 = 800;
/// Room behind a million tokens, for turns that follow.
const ROOM: u32 = 20_000;
/// Tokens of an answer, at most: every token looks at the whole text.
const ANSWER_MAX: u32 = 12;

/// Whether a seed has them.
pub(super) fn is_drawn(seed: u64) -> bool {
    Rng::new(seed, 29).one_in(ONE_SEED_IN)
}

/// Make a scenario long.
pub(super) fn stretch(scenario: &mut Scenario) {
    let rng = &mut Rng::new(scenario.seed, 30);
    stretch_engine(rng, &mut scenario.config);
    scenario.arrivals.truncate(rng.between(2, 5) as usize);
    let is_patient = scenario.config.host_pages > 0 && !rng.one_in(3);
    stretch_requests(rng, &mut scenario.arrivals, is_patient);
    for (_, fault) in &mut scenario.faults {
        if let Fault::StepTokens(tokens) = fault {
            *tokens = rng.pick(&[50_000, 200_000, u32::MAX]);
        }
    }
    // Its bounds are a step or two, which would refuse most of these requests.
    scenario.queue_delay_ns = None;
    scenario.varies = false;
}

fn stretch_engine(rng: &mut Rng, config: &mut EngineConfig) {
    let spare_rows = config.max_logit_rows - config.max_num_seqs - config.chunk_grid();
    config.max_model_len = MILLION + 2 * ROOM + rng.below(ROOM);
    // A step takes a few pages to host memory, so there they are fewer.
    let has_host = config.host_pages > 0;
    config.block_tokens = rng.pick(if has_host { &[1024, 4096, 16_384, 16_384] } else { &[256, 1024, 1024, 4096] });
    config.chunked_prefill_size = rng.pick(&[50_000, 131_072, 300_000]);
    config.max_batch_tokens = config.max_num_seqs + config.chunked_prefill_size + rng.below(ROOM);
    config.max_logit_rows = config.max_num_seqs + config.chunk_grid() + spare_rows;
    let pages = config.max_model_len.div_ceil(config.block_tokens);
    config.blocks_per_row = pages + rng.below(2);
    // Where there is host memory something has to go there.
    let spare = if has_host { [0, 1, pages / 8] } else { [pages / 8, pages, pages * 2] };
    let n_blocks = 1 + pages + rng.pick(&spare);
    let paged = config.components.iter_mut().filter(|component| component.class == ComponentClass::Paged);
    paged.for_each(|component| component.n_blocks = n_blocks);
    if has_host {
        config.host_pages = rng.pick(&[pages / 4, pages, pages * 2]);
    }
    config.prefix_cache |= !rng.one_in(4);
    // An event has the tokens of its page.
    config.cache_events = 1 << 10;
    config.max_waiting = config.max_waiting.max(8);
}

/// The first has a million tokens of its own. Of the others most begin with it; some are as long and share nothing, so that not
/// all fit; the rest is short. `is_patient`: they leave time to store what is let go, and the second is often one that needs its
/// room, so that the first text has to come back.
fn stretch_requests(rng: &mut Rng, arrivals: &mut Vec<Arrival>, is_patient: bool) {
    if let [only] = &arrivals[..] {
        arrivals.push(Arrival { label: only.label + 1, ..only.clone() });
    }
    let salt = arrivals[0].salt.clone();
    for (at, arrival) in arrivals.iter_mut().enumerate() {
        let own = |fresh| Text { origin: Origin::Base(0), keep: 0, edit: None, fresh, seed: 0 };
        arrival.text = Text {
            seed: rng.bits(),
            ..match rng.below(8) {
                _ if at == 0 => own(MILLION + rng.below(ROOM)),
                0..5 if at == 1 && is_patient => own(MILLION + rng.below(ROOM)),
                0 => own(MILLION + rng.below(ROOM)),
                1 | 2 => own(rng.pick(&[1, 40, 5000])),
                _ => {
                    arrival.salt.clone_from(&salt);
                    Text {
                        origin: Origin::Turn { of: 0, waits: !rng.one_in(4) },
                        keep: rng.pick(&[1000, 1000, 1000, 999, 700]),
                        edit: rng.one_in(4).then(|| rng.between(600, 1000)),
                        fresh: rng.pick(&[0, 1, 30, 3000]),
                        seed: 0,
                    }
                }
            }
        };
        arrival.tick = if is_patient { 40 * at as u32 } else { arrival.tick.min(20 * at as u32) };
        let sampling = &mut arrival.sampling;
        sampling.prompt_logprobs = None;
        sampling.max_tokens = sampling.max_tokens.min(ANSWER_MAX);
        sampling.min_tokens = sampling.min_tokens.min(sampling.max_tokens);
    }
}
