//! The device finds what is wrong with the passes that check guesses: each case is a right turn with one thing made wrong.

use std::collections::BTreeSet;

use tokenspeed_backend_api::{
    abi::{ts_sample, ts_step_row, ts_step_token, ts_table_delta},
    exec::Via,
};
use tokenspeed_core::{
    driver::StepRunner,
    engine::{ComponentClass, ComponentConfig, EngineConfig, Pass},
    load::DeviceProgram,
    request::RequestId,
    speculation::SpeculationConfig,
    step::{StepBuffer, StepContent},
};
use tokenspeed_sim::{
    check::Check,
    model::{self, DeviceChoice},
    world::{Held, Registered, Sizes, StepFault, Truth, World},
};

const ID: RequestId = RequestId(1);

/// A device, and the rows of the one request it knows.
struct Bench {
    program: DeviceProgram,
    registered: Registered,
    buffer: StepBuffer,
    /// Pages are announced by the first pass.
    deltas: Vec<ts_table_delta>,
}

/// The request's row in a pass, its tokens, and which of them want logits.
#[derive(Clone)]
struct Part {
    pass: Pass,
    row: ts_step_row,
    ids: Vec<u32>,
    logit_rows: Vec<u32>,
    /// One per row of logits, if the device samples.
    samples: Vec<ts_sample>,
}

fn part(pass: Pass, computed: u32, ids: &[u32], (state_read, state_write): (u32, u32)) -> Part {
    let (query_len, state_tokens) = (ids.len() as u32, computed);
    let row = ts_step_row { computed, query_len, state_read, state_write, state_tokens, ..ts_step_row::default() };
    let logit_rows = if pass == Pass::Replay { Vec::new() } else { (0..query_len).collect() };
    Part { pass, row, ids: ids.to_vec(), logit_rows, samples: Vec::new() }
}

impl Bench {
    /// Five tokens, of which four have been computed, their state in slot 1.
    fn new(via: Via) -> Self {
        let mut config = EngineConfig::paged(32, 4, 8, 20);
        (config.max_num_seqs, config.table_rows) = (2, 2);
        let state = ComponentConfig { name: "kda".into(), class: ComponentClass::State, n_blocks: 5 };
        config.components.push(state);
        config.speculation = Some(SpeculationConfig { draft_max: 3, ngram: 1, branches: 0 });
        config.relay = true;
        let sizes = Sizes { blocks: 8, states: 5, block_tokens: 4, draft_max: 3, ..Sizes::default() };
        let sizes = Sizes { chunk_grid: 4, chunk_cap: 100, n_ids: 20, table_rows: 2, ..sizes };
        let registered = Registered::new(World::new(sizes));
        registered.world.lock().truths.insert(ID, Truth::new(None, &[1, 2, 3, 4, 5]));
        let choice = DeviceChoice { via, refuse: None, prepare: "ok" };
        let bytes = config.step_capacity().bytes() as u64;
        let program = model::open(&model::backend(), &config, registered.number, bytes, choice).unwrap();
        let deltas = [(0, 1), (1, 2)].map(|(index, block)| ts_table_delta { component: 0, table_row: 0, index, block });
        let buffer = StepBuffer::new(config.step_capacity());
        let mut bench = Self { program, registered, buffer, deltas: deltas.to_vec() };
        bench.run(&part(Pass::Forward, 0, &[1, 2, 3, 4], (0, 1)), None).unwrap();
        bench
    }

    /// The request hears tokens.
    fn hear(&self, ids: &[u32]) {
        let mut world = self.registered.world.lock();
        let truth = world.truths.get_mut(&ID).unwrap();
        ids.iter().for_each(|id| truth.push(*id));
    }

    /// The check that failed, if one did.
    fn run(&mut self, part: &Part, fault: Option<StepFault>) -> Result<(), Check> {
        let Part { pass, row, ids, logit_rows, samples } = part;
        let mut world = self.registered.world.lock();
        if *pass == Pass::Replay {
            world.begin_replay(BTreeSet::new(), fault);
        } else {
            let held = Held { id: ID, table_row: 0, computed: row.computed, planned: row.query_len };
            world.begin_turn(vec![held]);
            world.begin_pass(*pass, true, fault);
        }
        drop(world);
        let token = |(position, id): (u32, &u32)| ts_step_token { id: id.cast_signed(), position, row: 0, reserved: 0 };
        let tokens: Vec<_> = (row.computed..).zip(ids).map(token).collect();
        let deltas = std::mem::take(&mut self.deltas);
        let content = StepContent { sequence: 1, rows: &[*row], tokens: &tokens, logit_rows, deltas: &deltas };
        self.buffer.write_ids(&content, &[], samples);
        let result = match samples.is_empty() {
            true => self.program.run(*pass, self.buffer.bytes(), logit_rows.len() as u32),
            false => self.program.run_sampled(*pass, self.buffer.bytes(), logit_rows.len() as u32),
        };
        match self.registered.world.lock().failure.take() {
            Some(failure) => Err(failure.check),
            None => {
                assert_eq!(result.is_err(), fault == Some(StepFault::Fails), "{result:?}");
                Ok(())
            }
        }
    }
}

/// Guesses 6 and 7 after 5: 6 is right, 7 is not.
fn verify() -> Part {
    part(Pass::Verify, 4, &[5, 6, 7], (1, 2))
}

fn replay() -> Part {
    part(Pass::Replay, 4, &[5, 6], (1, 2))
}

#[test]
fn a_turn_with_guesses_goes_on_where_they_stopped_being_right() {
    for via in [Via::Program, Via::Walker] {
        let mut bench = Bench::new(via);
        bench.run(&verify(), None).unwrap();
        // The state is still the one before: the same guesses can be checked again.
        bench.run(&verify(), None).unwrap();
        bench.hear(&[6, 9]);
        bench.run(&replay(), None).unwrap();
        bench.run(&part(Pass::Forward, 6, &[9], (2, 2)), None).unwrap();
        assert_eq!(bench.registered.world.lock().n_replays, 1);
    }
}

#[test]
fn each_wrong_thing_is_found_in_its_pass() {
    type Damage = fn(&mut Part);
    let of_verify: [(&str, Check, Damage); 5] = [
        ("guesses in the pass that advances states", Check::State, |p| p.pass = Pass::Forward),
        ("no guesses in the pass that does not", Check::Step, |p| *p = part(Pass::Verify, 4, &[5], (1, 2))),
        ("the state of nothing", Check::State, |p| p.row.state_read = 3),
        ("another count", Check::State, |p| p.row.state_tokens = 3),
        ("records in the scratch slot", Check::State, |p| p.row.state_write = 0),
    ];
    let of_replay: [(&str, Check, Damage); 6] = [
        ("a guess too few", Check::Step, |p| *p = part(Pass::Replay, 4, &[5], (1, 2))),
        ("the wrong guess too", Check::Step, |p| *p = part(Pass::Replay, 4, &[5, 6, 7], (1, 2))),
        ("other tokens", Check::Step, |p| p.ids[1] = 8),
        ("from another slot", Check::Step, |p| p.row.state_read = 2),
        ("into another slot", Check::Step, |p| p.row.state_write = 3),
        ("logits of nothing", Check::Step, |p| p.logit_rows = vec![0]),
    ];
    for via in [Via::Program, Via::Walker] {
        for (name, check, damage) in of_verify {
            let mut part = verify();
            damage(&mut part);
            assert_eq!(Bench::new(via).run(&part, None), Err(check), "{name}");
        }
        for (name, check, damage) in of_replay {
            let (mut bench, mut part) = (Bench::new(via), replay());
            bench.run(&verify(), None).unwrap();
            bench.hear(&[6, 9]);
            damage(&mut part);
            assert_eq!(bench.run(&part, None), Err(check), "{name}");
        }
    }
}

#[test]
fn what_is_left_out_or_wrong_shows_in_the_next_turn() {
    let prepare = || {
        let mut bench = Bench::new(Via::Program);
        bench.run(&verify(), None).unwrap();
        bench.hear(&[6, 9]);
        bench
    };
    let next = part(Pass::Forward, 6, &[9], (2, 2));
    assert_eq!(prepare().run(&next, None), Err(Check::State), "without a replay");
    let mut bench = prepare();
    bench.run(&replay(), None).unwrap();
    bench.hear(&[3]);
    // The row of the wrong guess 7 is where 9 should have been written.
    let later = part(Pass::Forward, 7, &[3], (2, 2));
    assert_eq!(bench.run(&later, None), Err(Check::Page), "the row of a wrong guess counts");
    let mut bench = prepare();
    bench.run(&replay(), Some(StepFault::Fails)).unwrap();
    assert_eq!(bench.run(&next, None), Err(Check::State), "after a failed replay");
    let mut bench = Bench::new(Via::Program);
    bench.run(&verify(), Some(StepFault::Fails)).unwrap();
    bench.hear(&[6, 9]);
    assert_eq!(bench.run(&replay(), None), Err(Check::State), "from the records of a failed pass");
}

/// The same guesses, sampled by the device: the token behind 5 goes to the request's slot, the others where nobody looks.
fn sampled() -> Part {
    let record = |(position, relay_slot)| ts_sample { position, relay_slot, ..ts_sample::default() };
    Part { samples: [(5, 1), (6, 4), (7, 5)].map(record).to_vec(), ..verify() }
}

#[test]
fn each_wrong_record_of_a_row_behind_guesses_is_found() {
    type Damage = fn(&mut Part);
    let cases: [(&str, Damage); 6] = [
        ("at the position of the row before", |p| p.samples[1].position = 5),
        ("into the slot of another request", |p| p.samples[2].relay_slot = 2),
        ("the text's next token where nobody looks", |p| p.samples[0].relay_slot = 3),
        ("two into one slot", |p| p.samples[2].relay_slot = 4),
        ("into no slot", |p| p.samples[1].relay_slot = 0),
        ("into a slot that is not there", |p| p.samples[1].relay_slot = 100_000),
    ];
    for via in [Via::Program, Via::Walker] {
        let mut bench = Bench::new(via);
        bench.run(&sampled(), None).unwrap();
        let chosen = bench.program.sampled(Pass::Verify);
        assert_eq!((chosen.n_rows(), bench.registered.world.lock().n_sampled_guesses), (Some(3), 2));
        assert!((0..3).all(|row| chosen.token(row, 20, false).is_ok()));
        bench.hear(&[6, 9]);
        bench.run(&replay(), None).unwrap();
        for (name, damage) in cases {
            let mut part = sampled();
            damage(&mut part);
            assert_eq!(Bench::new(via).run(&part, None), Err(Check::Step), "{name}");
        }
    }
}
