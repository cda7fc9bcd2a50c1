//! Swarm generation: each seed draws which features it uses at all, then how often. A run that mixes everything a little
//! seldom reaches the states that one fault at a high rate does (Groce et al., "Swarm testing", ISSTA 2012).

mod million;

use tokenspeed_backend_api::exec::Via;
use tokenspeed_core::{
    driver::cost::Cost,
    engine::{ComponentClass, ComponentConfig, EngineConfig, Pass},
    request::SamplingParams,
    scheduler::policy::{Order, SchedulingConfig},
    speculation::{BRANCHES_MAX, DRAFT_MAX, DraftModel, SpeculationConfig},
};

use crate::{
    grammar::{Grammar, Trouble},
    graph::DRAFT,
    rng::Rng,
    scenario::{Abort, Arrival, Fault, LoadFault, Origin, Scenario, Text, Wire},
    world::StepFault,
};

/// Padding columns of the head.
const PADDING_IDS: u32 = 3;

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed, 1);
    let is_long = rng.one_in(40);
    let mood =
        rng.pick(&[Mood::Mixed, Mood::Mixed, Mood::Calm, Mood::Crowded, Mood::Crowded, Mood::Poisoned, Mood::Guessing]);
    // Drawn apart, so that the rest of a seed stays what it is.
    let tiers = &mut Rng::new(seed, 4);
    let mood = if !is_long && tiers.one_in(5) { tiers.pick(&[Mood::Tiered, Mood::Returning]) } else { mood };
    let mut config = config(rng, seed, is_long, mood);
    let pages = config.blocks_per_row;
    match mood {
        Mood::Mixed | Mood::Poisoned => {}
        Mood::Calm | Mood::Guessing => {
            config.prefix_cache = true;
            config.components.iter_mut().for_each(|component| component.n_blocks = component.n_blocks.max(pages * 30));
        }
        Mood::Tiered | Mood::Returning => {
            config.prefix_cache = true;
            let n_blocks = 1 + pages + rng.below(pages / 2 + 2);
            let paged = config.components.iter_mut().filter(|component| component.class == ComponentClass::Paged);
            paged.for_each(|component| component.n_blocks = n_blocks);
        }
        Mood::Crowded => {
            let n_blocks = 1 + pages + rng.below(pages + 2);
            let paged = config.components.iter_mut().filter(|component| component.class == ComponentClass::Paged);
            paged.for_each(|component| component.n_blocks = n_blocks);
        }
    }
    let n_arrivals = if is_long { rng.between(1, 10) } else { rng.pick(&[2, 6, 12, 24, 40]) };
    let n_arrivals = if mood == Mood::Crowded { n_arrivals.max(6) } else { rng.between(1, n_arrivals) };
    let mut arrivals = arrivals(rng, &config, n_arrivals, mood);
    add_grammars(seed, &mut arrivals, mood);
    add_early_aborts(seed, &mut arrivals, mood);
    leave_to_the_device(seed, &config, &mut arrivals);
    use_side_tables(seed, &config, &mut arrivals);
    add_boundaries(seed, &mut arrivals);
    let mut wire = wire(seed);
    if mood == Mood::Returning {
        (wire.delay, wire.trouble) = (wire.delay.min(5), 0);
        config.host_pages = pages * 8;
    }
    let gate = &mut Rng::new(seed, 6);
    let queue_delay_ns = (mood != Mood::Returning && gate.one_in(5)).then(|| gate.pick(&[0, 2_000, 20_000, 200_000]));
    if queue_delay_ns.is_some() && gate.one_in(2) {
        arrivals.iter_mut().for_each(|arrival| arrival.priority = gate.pick(&[0, 0, -1, 3]));
    }
    let last_tick = arrivals.last().map_or(0, |arrival| arrival.tick) + 40;
    let mut scenario = Scenario {
        seed,
        via: if rng.one_in(4) { Via::Walker } else { Via::Program },
        refuses_fused: rng.one_in(4),
        overlaps: Rng::new(seed, 2).one_in(2),
        lends_masks: Rng::new(seed, 8).one_in(2),
        queue_delay_ns,
        forecast: forecast(seed),
        faults: of_host(seed, wire, last_tick, of_drafts(seed, &config, faults(rng, last_tick, mood))),
        wire,
        load_faults: load_faults(rng),
        repeats: rng.one_in(16),
        varies: !is_long && rng.one_in(10),
        arrivals,
        config,
    };
    if million::is_drawn(seed) {
        million::stretch(&mut scenario);
    }
    scenario
}

/// What the device expects its steps to take. Nothing says that it is right: a step of the simulator takes some thousand, whatever is in
/// it.
fn forecast(seed: u64) -> Option<Cost> {
    let rng = &mut Rng::new(seed, 13);
    rng.one_in(6).then(|| Cost {
        fixed_ns: rng.pick(&[1.0, 1_000.0, 1e9]),
        row_ns: rng.pick(&[0.0, 0.0, 10.0, 1e4, 1e9]),
        token_ns: rng.pick(&[1e-3, 1.0, 1e3, 1e9]),
    })
}

fn config(rng: &mut Rng, seed: u64, is_long: bool, mood: Mood) -> EngineConfig {
    let block_tokens = match (is_long, mood) {
        (true, _) => rng.pick(&[16, 32, 64]),
        (false, Mood::Crowded) => rng.pick(&[1, 1, 1, 2]),
        (false, Mood::Guessing) => rng.pick(&[2, 2, 3, 4, 8]),
        (false, Mood::Tiered | Mood::Returning) => rng.pick(&[1, 2, 2, 4, 8]),
        (false, _) => rng.pick(&[1, 2, 3, 4, 8, 16]),
    };
    let max_model_len = match is_long {
        false => rng.between(4, 100),
        true if rng.one_in(20) => 20_000,
        true => rng.between(500, 3000),
    };
    let n_ids = match mood {
        Mood::Crowded => rng.pick(&[2, 3, 21]),
        Mood::Guessing => rng.pick(&[2, 2, 4]),
        _ => rng.pick(&[2, 5, 21, 60]),
    };
    let pages = max_model_len.div_ceil(block_tokens);
    // From barely enough for one request to plenty for all.
    let n_blocks = 1 + pages + rng.pick(&[0, 1, pages / 4, pages / 2, pages, pages * 6, pages * 40]);
    let mut config = EngineConfig::paged(max_model_len, block_tokens, n_blocks, n_ids + PADDING_IDS);
    let max_num_seqs = rng.pick(&[1, 3, 8, 8, 16]);
    config.max_num_seqs = rng.between(if mood == Mood::Crowded { 4 } else { 1 }, max_num_seqs.max(4));
    config.table_rows = config.max_num_seqs + rng.below(2);
    config.blocks_per_row = pages + rng.below(2);
    config.chunked_prefill_size = if is_long { rng.pick(&[64, 256, 8192]) } else { rng.between(1, 40) };
    let least = config.max_num_seqs + config.chunk_grid();
    config.max_batch_tokens = least + rng.below(if is_long { 1000 } else { 60 });
    config.max_logit_rows = least + rng.below(10);
    config.tokenizer_vocab_size = n_ids;
    config.eos_ids = if rng.one_in(2) { vec![0] } else { vec![0, n_ids - 1] };
    config.prefix_cache = !rng.one_in(6);
    config.secret = [rng.bits(), rng.bits()];
    config.cache_events = 1 << 12;
    config.max_waiting = if rng.one_in(8) { rng.between(1, 4) } else { 4096 };
    for (stream, feature) in FEATURES.iter().enumerate() {
        let rng = &mut Rng::new(seed, 100 + stream as u64);
        if rng.one_in((feature.one_in)(mood)) {
            (feature.add)(rng, &mut config);
        }
    }
    config
}

/// Something an engine has or has not.
struct Feature {
    /// One seed in so many has it.
    one_in: fn(Mood) -> u32,
    add: fn(&mut Rng, &mut EngineConfig),
}

/// What a seed switches on or leaves off, each drawn from a stream of its own: one more at the end changes nothing in the
/// seeds that do not have it.
const FEATURES: [Feature; 9] = [
    // A second paged component.
    Feature {
        one_in: |_| 3,
        add: |rng, config| {
            let (class, n_blocks) = (ComponentClass::Paged, config.components[0].n_blocks + rng.below(3));
            config.components.push(ComponentConfig { name: DRAFT.into(), class, n_blocks });
        },
    },
    // A recurrent state, with few slots or some to spare.
    Feature {
        one_in: |mood| match mood {
            Mood::Crowded => 4,
            Mood::Guessing => 1,
            Mood::Returning => 1000,
            _ => 2,
        },
        add: |rng, config| {
            let few = rng.between(1, config.max_num_seqs + 1);
            let n_blocks = 1 + if rng.one_in(2) { few } else { few + rng.between(0, 40) };
            let at = rng.below(config.components.len() as u32 + 1) as usize;
            let state = ComponentConfig { name: "kda".into(), class: ComponentClass::State, n_blocks };
            config.components.insert(at, state);
        },
    },
    // Prompt lookup.
    Feature {
        one_in: |mood| if mood == Mood::Guessing { 1 } else { 2 },
        add: |rng, config| {
            let any = rng.between(1, DRAFT_MAX);
            let draft_max = rng.pick(&[1, any, any, DRAFT_MAX]);
            config.speculation = Some(SpeculationConfig { draft_max, ngram: rng.between(1, 3), branches: 0 });
            config.max_logit_rows += rng.pick(&[0, 20, 100]);
        },
    },
    // Trees of guesses.
    Feature {
        one_in: |mood| if mood == Mood::Guessing { 2 } else { 3 },
        add: |rng, config| {
            if let Some(speculation) = &mut config.speculation {
                speculation.branches = rng.between(1, BRANCHES_MAX);
                make_room(config, rng.pick(&[0, 20, 100]));
            }
        },
    },
    // A draft model makes the guesses.
    Feature {
        one_in: |mood| if mood == Mood::Guessing { 2 } else { 3 },
        add: |rng, config| {
            if config.speculation.is_some() {
                add_draft(config);
                make_room(config, rng.pick(&[0, 20, 100]));
            }
            if let (Some(draft), true) = (&mut config.draft, rng.one_in(3)) {
                // Columns for some of the ids, and for some that are none.
                let (n, first) = (rng.between(1, config.vocab_size), rng.below(config.vocab_size));
                let ids: Vec<u32> = (first..first + n).map(|id| id % config.vocab_size).collect();
                (draft.vocab_size, draft.token_ids) = (n, Some(ids.into()));
            }
        },
    },
    // Host memory behind the device.
    Feature {
        one_in: |mood| if matches!(mood, Mood::Tiered | Mood::Returning) { 1 } else { 3 },
        add: |rng, config| {
            let pages = config.blocks_per_row;
            let few = rng.between(1, pages);
            config.host_pages = rng.pick(&[few, pages * 2, pages * 8, pages * 8]);
            config.host_states = rng.pick(&[0, 1, 4, 40, 40]);
        },
    },
    // Who goes first: without a prefix cache what remains of a prompt is known.
    Feature {
        one_in: |_| 2,
        add: |rng, config| {
            config.scheduling = SchedulingConfig {
                order: rng.pick(&[Order::FirstCome, Order::ShortestPrefill, Order::ShortestPrefill]),
                overtaken_steps_max: rng.pick(&[0, 1, 3, 3, 64]),
                // A step takes some thousand.
                coalescing_ns: rng.pick(&[0, 0, 5_000, 30_000, 200_000, u64::MAX]),
            };
            config.prefix_cache &= !rng.one_in(3);
        },
    },
    // The device samples, and without guesses it relays; beside host memory in every second case.
    Feature {
        one_in: |mood| if mood == Mood::Guessing { 1 } else { 2 },
        add: |rng, config| config.relay = config.host_pages == 0 || rng.one_in(2),
    },
    // It does so with side tables, which have rows for all or for a few.
    Feature {
        one_in: |_| 2,
        add: |rng, config| config.side_rows = if config.relay { rng.pick(&[2, 7, 200, 200]) } else { 0 },
    },
];

/// Let steps have more tokens and rows of logits.
fn make_room(config: &mut EngineConfig, tokens: u32) {
    config.max_batch_tokens += tokens;
    config.max_logit_rows += tokens;
}

/// A draft model that knows all tokens, with its component of the cache.
pub(crate) fn add_draft(config: &mut EngineConfig) {
    if config.components.iter().all(|component| component.name != DRAFT) {
        let paged = config.components_of(ComponentClass::Paged).next().expect("one component is paged");
        let n_blocks = config.components[paged].n_blocks;
        config.components.push(ComponentConfig { name: DRAFT.into(), class: ComponentClass::Paged, n_blocks });
    }
    config.draft = Some(DraftModel { vocab_size: config.vocab_size, token_ids: None });
}

/// What the requests of a seed have in common.
struct Habits {
    gap: u32,
    turn_rate: u32,
    fork_rate: u32,
    edit_rate: u32,
    abort_rate: u32,
    n_salts: u32,
    priorities: Vec<i32>,
    fresh: Vec<u32>,
    max_tokens: Vec<u32>,
    samples: bool,
    penalises: bool,
    reports: u32,
    talks_on: bool,
}

/// What a seed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Everything, faults included.
    Mixed,
    /// Plenty of memory, time between turns and nothing wrong: then what must be cached is known.
    Calm,
    /// Many logits that are not finite, and turns after them.
    Poisoned,
    /// Long answers, all at once, in little memory: preemption.
    Crowded,
    /// Turns of conversations that hardly fit on the device together, and host memory.
    Tiered,
    /// The same one after the other, with plenty of host memory and nothing wrong: then what must come back is known.
    Returning,
    /// As calm, with recurrent states and guesses of which half are right.
    Guessing,
}

fn arrivals(rng: &mut Rng, config: &EngineConfig, n: u32, mood: Mood) -> Vec<Arrival> {
    let long = config.max_model_len;
    let mut habits = Habits {
        gap: rng.pick(&[0, 0, 2, 10, 60]),
        turn_rate: rng.pick(&[0, 2, 2, 4]),
        fork_rate: rng.pick(&[2, 8, 1000]),
        edit_rate: rng.pick(&[3, 10, 1000]),
        abort_rate: rng.pick(&[0, 0, 3, 10]),
        n_salts: rng.pick(&[1, 1, 2, 4]),
        priorities: rng.pick(&[vec![0], vec![0], vec![0, 0, 0, -1, 3]]),
        fresh: rng.pick(&[vec![0, 1, 3, 9], vec![0, 1], vec![long / 4, long / 2], vec![1, 2, long]]),
        max_tokens: rng.pick(&[vec![0, 1, 2, 5, 12, 40, 400], vec![1, 2, 3], vec![30, 400], vec![400]]),
        samples: rng.one_in(2),
        penalises: rng.one_in(3),
        reports: rng.pick(&[2, 6, 1000]),
        talks_on: false,
    };
    match mood {
        Mood::Mixed => {}
        Mood::Poisoned => (habits.turn_rate, habits.n_salts, habits.fresh) = (2, 1, vec![long / 4, 3]),
        Mood::Calm => (habits.abort_rate, habits.turn_rate, habits.gap) = (0, 2, rng.pick(&[2, 10, 60])),
        Mood::Tiered => {
            (habits.turn_rate, habits.gap, habits.n_salts) = (rng.pick(&[1, 2]), rng.pick(&[1, 10, 60]), 1);
            (habits.fork_rate, habits.edit_rate, habits.talks_on) = (8, 10, rng.one_in(2));
            habits.abort_rate = rng.pick(&[0, 2, 3]);
            (habits.fresh, habits.max_tokens) = (vec![1, long / 4, long / 2], vec![2, 5, 12]);
            habits.reports = rng.pick(&[2, 1000, 1000]);
        }
        Mood::Returning => {
            (habits.turn_rate, habits.gap, habits.n_salts) = (2, 200, 1);
            (habits.fork_rate, habits.edit_rate, habits.abort_rate) = (1000, 10, 0);
            (habits.fresh, habits.max_tokens, habits.reports) = (vec![1, long / 4, long / 2], vec![2, 5], 1000);
        }
        Mood::Guessing => {
            (habits.abort_rate, habits.turn_rate, habits.gap) = (0, 1, rng.pick(&[10, 60]));
            (habits.fork_rate, habits.edit_rate, habits.n_salts, habits.reports) = (1000, 1000, 1, 1000);
            (habits.fresh, habits.max_tokens, habits.talks_on) = (vec![0, 1, 3], vec![2, 5, 12], rng.one_in(3));
        }
        Mood::Crowded => {
            (habits.max_tokens, habits.gap, habits.talks_on) = (vec![40, 400], rng.pick(&[0, 2]), true);
            habits.priorities = vec![0, 0, -1, 3];
        }
    }
    let mut tick = 0;
    let mut arrivals: Vec<Arrival> = Vec::new();
    while (arrivals.len() as u32) < n {
        if habits.gap > 0 && !rng.one_in(3) {
            tick += rng.below(habits.gap);
        }
        let label = arrivals.len() as u32;
        let origin = if habits.turn_rate > 0 && label > 0 && rng.one_in(habits.turn_rate) {
            Origin::Turn { of: rng.below(label), waits: !rng.one_in(habits.fork_rate) }
        } else {
            Origin::Base(rng.below(3))
        };
        let keep = match origin {
            Origin::Turn { .. } if !rng.one_in(4) => 1000,
            _ => rng.pick(&[0, 1000, 1000, 500, 930]),
        };
        let text = Text {
            origin,
            keep,
            edit: rng.one_in(habits.edit_rate).then(|| rng.below(1000)),
            fresh: rng.pick(&habits.fresh),
            seed: rng.bits(),
        };
        let salt = match rng.below(habits.n_salts) {
            0 => None,
            1 => Some(String::new()),
            number => Some(["a", "ab"][number as usize - 2].to_owned()),
        };
        let abort = (habits.abort_rate > 0 && rng.one_in(habits.abort_rate))
            .then(|| Abort { after: rng.pick(&[0, 1, 2, 5, 20]), in_flight: rng.one_in(2) });
        let sampling = sampling(rng, config, &habits);
        let priority = rng.pick(&habits.priorities);
        let arrival =
            Arrival { label, tick, text, sampling, priority, salt, boundaries: Vec::new(), grammar: None, abort };
        // `n` choices of one prompt.
        let n_choices = if rng.one_in(12) { rng.between(2, 4) } else { 1 };
        for choice in 0..n_choices {
            let mut arrival = arrival.clone();
            (arrival.label, arrival.sampling.sample_index) = (arrivals.len() as u32, choice);
            arrivals.push(arrival);
        }
    }
    arrivals
}

fn sampling(rng: &mut Rng, config: &EngineConfig, habits: &Habits) -> SamplingParams {
    let n_ids = config.tokenizer_vocab_size;
    let max_tokens = rng.pick(&habits.max_tokens);
    let mut s = SamplingParams { temperature: 0.0, seed: rng.bits(), max_tokens, ..SamplingParams::default() };
    if habits.samples {
        s.temperature = rng.pick(&[0.0, 0.7, 1.5]);
        s.top_k = rng.pick(&[0, 0, 5]);
        s.top_p = rng.pick(&[1.0, 0.8]);
        s.min_p = rng.pick(&[0.0, 0.0, 0.1]);
    }
    if habits.penalises {
        let [a, b, c] = [(); 3].map(|()| rng.below(n_ids));
        s.repetition_penalty = rng.pick(&[1.0, 1.3]);
        s.frequency_penalty = rng.pick(&[0.0, 0.5]);
        s.presence_penalty = rng.pick(&[0.0, 0.5]);
        s.logit_bias = rng.pick(&[vec![], vec![(a, 2.0)]]);
        s.bad_words = rng.pick(&[vec![], vec![vec![b, c]]]);
    }
    s.min_tokens = rng.pick(&[0, 0, 4]).min(max_tokens);
    s.stop_token_ids = if !habits.talks_on && rng.one_in(3) { vec![rng.below(n_ids)] } else { vec![] };
    s.ignore_eos = habits.talks_on || rng.one_in(2);
    if rng.one_in(habits.reports) {
        s.logprobs = rng.pick(&[None, Some(0), Some(3.min(n_ids))]);
        s.prompt_logprobs = rng.pick(&[None, None, Some(2)]);
    }
    s
}

fn faults(rng: &mut Rng, last_tick: u32, mood: Mood) -> Vec<(u32, Fault)> {
    let mut faults = Vec::new();
    if matches!(mood, Mood::Calm | Mood::Crowded | Mood::Guessing | Mood::Tiered | Mood::Returning) {
        return faults;
    }
    let mut some = |rng: &mut Rng, one_seed_in: u32, rates: &[u32], make: &dyn Fn(&mut Rng) -> Fault| {
        if rng.one_in(one_seed_in) {
            let rate = rng.pick(rates);
            let ticks: Vec<u32> = (0..last_tick).filter(|_| rng.one_in(rate)).collect();
            faults.extend(ticks.into_iter().map(|tick| (tick, make(rng))));
        }
    };
    let passes = [Pass::Forward, Pass::Forward, Pass::Verify, Pass::Replay];
    some(rng, 6, &[60, 15], &|rng| Fault::Step(StepFault::Fails, rng.pick(&passes)));
    some(rng, 12, &[80, 30], &|rng| Fault::Step(StepFault::Lost, rng.pick(&passes)));
    let (one_seed_in, rates) = if mood == Mood::Poisoned { (1, [20, 6]) } else { (4, [40, 10]) };
    some(rng, one_seed_in, &rates, &|rng| Fault::Step(StepFault::NotFinite(rng.below(64)), rng.pick(&passes[..3])));
    some(rng, 3, &[20, 4], &|rng| Fault::Stall(rng.between(1, 12)));
    some(rng, 4, &[20], &|rng| Fault::Clock(rng.pick(&[-1_000_000_000_000, 1, 3_600_000_000_000, i64::MAX / 4])));
    some(rng, 3, &[10, 30], &|rng| Fault::StepTokens(rng.pick(&[0, 1, 7, 40, u32::MAX])));
    some(rng, 4, &[15, 50], &|_| Fault::Flush);
    faults.sort_by_key(|(tick, _)| *tick);
    faults
}

/// With a draft model, some of the faults hit its passes.
fn of_drafts(seed: u64, config: &EngineConfig, mut faults: Vec<(u32, Fault)>) -> Vec<(u32, Fault)> {
    let rng = &mut Rng::new(seed, 3);
    for (_, fault) in &mut faults {
        if let Fault::Step(_, pass) = fault
            && config.draft.is_some()
            && rng.one_in(2)
        {
            *pass = rng.pick(&[Pass::DraftFirst, Pass::DraftNext]);
        }
    }
    faults
}

/// Callers who leave while pages are on their way to them.
fn add_early_aborts(seed: u64, arrivals: &mut [Arrival], mood: Mood) {
    let rng = &mut Rng::new(seed, 10);
    if matches!(mood, Mood::Tiered | Mood::Returning) && rng.one_in(3) {
        for arrival in arrivals {
            if rng.one_in(3) {
                arrival.abort = Some(Abort { after: rng.between(1, 4), in_flight: false });
            }
        }
    }
}

/// Some answers, or all, have a grammar.
fn add_grammars(seed: u64, arrivals: &mut [Arrival], mood: Mood) {
    let rng = &mut Rng::new(seed, 5);
    let rate = if mood == Mood::Guessing { rng.pick(&[0, 0, 2]) } else { rng.pick(&[0, 0, 0, 4, 1]) };
    for arrival in arrivals.iter_mut().filter(|_| rate > 0) {
        if rng.one_in(rate) {
            let trouble = rng.pick(&[None, None, None, Some(Trouble::Refuses), Some(Trouble::Panics)]);
            let trouble = trouble.map(|trouble| (rng.pick(&[0, 2, 4, 8]), trouble));
            let whole_after = rng.pick(&[1, 3, 8, 20, 60]);
            arrival.grammar = Some(Grammar { seed: rng.bits(), whole_after, trouble });
            // The answer ends where its grammar does.
            arrival.sampling.ignore_eos = false;
        }
    }
}

/// Where the device samples and somebody guesses, nothing needs the host in half of the seeds; some want to know how likely
/// their tokens were.
fn leave_to_the_device(seed: u64, config: &EngineConfig, arrivals: &mut [Arrival]) {
    let rng = &mut Rng::new(seed, 11);
    if config.relay && config.speculation.is_some() && rng.one_in(2) {
        for arrival in arrivals {
            arrival.grammar = None;
            let s = &mut arrival.sampling;
            (s.repetition_penalty, s.frequency_penalty, s.presence_penalty) = (1.0, 0.0, 0.0);
            (s.min_tokens, s.prompt_logprobs) = (0, None);
            s.logprobs = rng.pick(&[None, None, Some(0), Some(2)]);
            s.logit_bias.clear();
            s.bad_words.clear();
        }
    }
}

/// Where there are side tables, half of the seeds need nothing of the host but what these cannot say.
fn use_side_tables(seed: u64, config: &EngineConfig, arrivals: &mut [Arrival]) {
    let rng = &mut Rng::new(seed, 12);
    if config.side_rows == 0 || !rng.one_in(2) {
        return;
    }
    let (n_ids, leaves_grammars) = (config.tokenizer_vocab_size, rng.one_in(2));
    for arrival in arrivals {
        if !leaves_grammars {
            arrival.grammar = None;
        }
        let s = &mut arrival.sampling;
        s.prompt_logprobs = None;
        let [a, b, c] = [(); 3].map(|()| rng.below(n_ids));
        s.repetition_penalty = rng.pick(&[1.0, 1.0, 1.3]);
        s.frequency_penalty = rng.pick(&[0.0, 0.0, 0.5, -0.5]);
        s.presence_penalty = rng.pick(&[0.0, 0.0, 0.5]);
        s.logit_bias = rng.pick(&[vec![], vec![], vec![(a, 2.0)], vec![(b, -100.0), (a, 1.5)]]);
        s.bad_words = rng.pick(&[vec![], vec![], vec![vec![b]], vec![vec![b, c], vec![a]]]);
        s.allowed_token_ids = rng.pick(&[None, None, None, Some(vec![a, b, c])]);
        s.min_tokens = rng.pick(&[0, 0, 2, 4]).min(s.max_tokens);
    }
}

/// In some seeds callers know where others part from them, or believe so.
fn add_boundaries(seed: u64, arrivals: &mut [Arrival]) {
    let rng = &mut Rng::new(seed, 13);
    if !rng.one_in(4) {
        return;
    }
    for arrival in arrivals {
        let mut some = [(); 4].map(|()| rng.below(1001));
        some.sort_unstable();
        arrival.boundaries = rng.pick(&[vec![], vec![1000], vec![1000], vec![some[0], 1000], some.into()]);
    }
}

fn wire(seed: u64) -> Wire {
    let rng = &mut Rng::new(seed, 7);
    Wire { seed: rng.bits(), delay: rng.pick(&[0, 1, 5, 30]), trouble: rng.pick(&[0, 0, 10, 3]) }
}

/// Where copies fare badly, bits flip too.
fn of_host(seed: u64, wire: Wire, last_tick: u32, mut faults: Vec<(u32, Fault)>) -> Vec<(u32, Fault)> {
    let rng = &mut Rng::new(seed, 9);
    if wire.trouble > 0 && rng.one_in(3) {
        faults.extend((0..last_tick).filter(|_| rng.one_in(40)).map(|tick| (tick, Fault::Damage)));
        faults.sort_by_key(|(tick, _)| *tick);
    }
    faults
}

fn load_faults(rng: &mut Rng) -> Vec<LoadFault> {
    if !rng.one_in(10) {
        return Vec::new();
    }
    vec![rng.pick(&[LoadFault::NoArena, LoadFault::NoMemory, LoadFault::NoCapture, LoadFault::RefusedOp])]
}
