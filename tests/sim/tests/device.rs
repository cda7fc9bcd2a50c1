//! The device finds what it is there to find: each case is a right step with one thing made wrong.

use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token, ts_table_delta},
    backend::Backend,
    exec::Via,
};
use tokenspeed_core::{
    driver::StepRunner,
    engine::{ComponentClass, ComponentConfig, EngineConfig, Pass},
    load::DeviceProgram,
    request::RequestId,
    step::{StepBuffer, StepContent},
};
use tokenspeed_sim::{
    check::Check,
    fingerprint,
    model::{self, DeviceChoice},
    world::{Held, Registered, Sizes, StepFault, Truth, World},
};

const B: u32 = 4;
const BLOCKS: u32 = 8;
const VOCABULARY: u32 = 10;

/// A device, a step, and what the simulator would say about it.
struct Bench {
    program: DeviceProgram,
    registered: Registered,
    buffer: StepBuffer,
    rows: Vec<ts_step_row>,
    deltas: Vec<ts_table_delta>,
    logit_rows: Vec<u32>,
}

fn config() -> EngineConfig {
    let mut config = EngineConfig::paged(32, B, BLOCKS, VOCABULARY);
    config.max_num_seqs = 2;
    config.table_rows = 2;
    config.tokenizer_vocab_size = VOCABULARY - 2;
    let state = ComponentConfig { name: "kda".into(), class: ComponentClass::State, n_blocks: 5 };
    config.components.push(state);
    config
}

fn bench(backend: &Backend, via: Via) -> Bench {
    let config = config();
    let sizes = Sizes {
        blocks: BLOCKS,
        states: 5,
        block_tokens: B,
        draft_max: 0,
        chunk_grid: B,
        chunk_cap: 100,
        n_ids: VOCABULARY - 2,
        ..Sizes::default()
    };
    let mut world = World::new(sizes);
    for id in [1, 2] {
        world.truths.insert(RequestId(id), Truth::new(None, &[1, 2, 3, 4, 5, id as u32]));
    }
    let registered = Registered::new(world);
    let choice = DeviceChoice { via, refuse: None, prepare: "ok" };
    let bytes = config.step_capacity().bytes() as u64;
    let program = model::open(backend, &config, registered.number, bytes, choice).unwrap();
    let buffer = StepBuffer::new(config.step_capacity());
    let mut bench = Bench { program, registered, buffer, rows: vec![], deltas: vec![], logit_rows: vec![] };
    // Request 1 has computed its first page; request 2 is new.
    bench.row(0, 0, 4, (0, 1));
    bench.delta(0, 0, 1);
    bench.run().unwrap();
    (bench.rows, bench.deltas) = (vec![], vec![]);
    bench.row(0, 4, 2, (1, 1));
    bench.row(1, 0, 6, (0, 2));
    bench.delta(0, 1, 2);
    bench.delta(1, 0, 3);
    bench.delta(1, 1, 4);
    bench.logit_rows = vec![1, 7];
    bench
}

impl Bench {
    fn row(&mut self, table_row: u32, computed: u32, query_len: u32, (state_read, state_write): (u32, u32)) {
        let query_start = self.rows.iter().map(|row| row.query_len).sum();
        let state_tokens = computed;
        self.rows.push(ts_step_row {
            table_row,
            computed,
            query_start,
            query_len,
            state_read,
            state_write,
            state_tokens,
            branch_offset: 0,
        });
    }

    fn delta(&mut self, table_row: u32, index: u32, block: u32) {
        self.deltas.push(ts_table_delta { component: 0, table_row, index, block });
    }

    /// The first check that fails, or the logits.
    fn run(&mut self) -> Result<Vec<f32>, Check> {
        self.run_with(None)
    }

    fn run_with(&mut self, fault: Option<StepFault>) -> Result<Vec<f32>, Check> {
        let mut world = self.registered.world.lock();
        let held = |row: &ts_step_row| Held {
            id: RequestId(u64::from(row.table_row) + 1),
            table_row: row.table_row,
            computed: row.computed,
            planned: row.query_len,
        };
        world.begin_turn(self.rows.iter().map(held).collect());
        world.begin_pass(Pass::Forward, true, fault);
        let mut tokens = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            let truth = &world.truths[&RequestId(u64::from(row.table_row) + 1)];
            for position in row.computed..row.computed + row.query_len {
                let id = truth.tokens[position as usize].cast_signed();
                tokens.push(ts_step_token { id, position, row: at as u32, reserved: 0 });
            }
        }
        drop(world);
        let content = StepContent {
            sequence: 1,
            rows: &self.rows,
            tokens: &tokens,
            logit_rows: &self.logit_rows,
            deltas: &self.deltas,
        };
        self.buffer.write(&content);
        let result = self.program.run(Pass::Forward, self.buffer.bytes(), self.logit_rows.len() as u32);
        let result = result.map(|()| self.program.logits(Pass::Forward).to_vec());
        let failure = self.registered.world.lock().failure.take();
        assert_eq!(result.is_err(), failure.is_some(), "{result:?} {failure:?}");
        result.map_err(|_| failure.unwrap().check)
    }
}

#[test]
fn a_right_step_gives_the_logits_of_its_histories_through_programs_and_walker() {
    for via in [Via::Program, Via::Walker] {
        let mut bench = bench(&model::backend(), via);
        let logits = bench.run().unwrap();
        let mut wanted = vec![0.0; VOCABULARY as usize];
        for (row, id) in logits.chunks(VOCABULARY as usize).zip([1, 2]) {
            let last = bench.registered.world.lock().truths[&RequestId(id)].last();
            fingerprint::logits(last, VOCABULARY as usize - 2, &mut wanted);
            assert_eq!(
                row.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                wanted.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn each_wrong_thing_is_found_where_it_happens() {
    type Damage = fn(&mut Bench);
    let cases: [(&str, Check, Damage); 17] = [
        ("the page of the other", Check::Table, |b| b.deltas[2].block = 1),
        ("one page for two", Check::Table, |b| b.deltas[2].block = 2),
        ("a page nobody announced", Check::Table, |b| b.deltas.truncate(2)),
        ("scratch", Check::Table, |b| b.deltas[1].block = 0),
        ("past the pool", Check::Table, |b| b.deltas[1].block = BLOCKS),
        ("an entry twice", Check::Table, |b| b.delta(1, 1, 4)),
        ("a page of the cache", Check::Table, |b| _ = b.registered.world.lock().cached_pages.insert(4)),
        ("another page as the first one", Check::Page, |b| b.delta(0, 0, 5)),
        ("computing starts late", Check::Step, |b| {
            let mut world = b.registered.world.lock();
            world.truths.insert(RequestId(1), Truth::new(None, &[1, 2, 3, 4, 5, 1, 1]));
        }),
        ("another history before", Check::Page, |b| {
            let mut world = b.registered.world.lock();
            world.truths.insert(RequestId(1), Truth::new(None, &[7, 2, 3, 4, 5, 1]));
        }),
        ("another salt before", Check::Page, |b| {
            let mut world = b.registered.world.lock();
            world.truths.insert(RequestId(1), Truth::new(Some(""), &[1, 2, 3, 4, 5, 1]));
        }),
        ("the state of nothing", Check::State, |b| b.rows[0].state_read = 3),
        ("the scratch state", Check::State, |b| b.rows[0].state_read = 0),
        ("another count", Check::State, |b| b.rows[0].state_tokens = 3),
        ("the state of the other", Check::State, |b| b.rows[1].state_write = 1),
        ("two states in one slot", Check::State, |b| (b.rows[0].state_write, b.rows[1].state_write) = (4, 4)),
        ("one row too many", Check::Step, |b| {
            (b.rows[1].query_len, b.logit_rows[1]) = (5, 6);
            b.registered.world.lock().truths.insert(RequestId(2), Truth::new(None, &[1, 2, 3, 4, 5, 2, 2]));
        }),
    ];
    let backend = model::backend();
    for (name, check, damage) in cases {
        for via in [Via::Program, Via::Walker] {
            let mut bench = bench(&backend, via);
            damage(&mut bench);
            assert_eq!(bench.run().err(), Some(check), "{name}");
        }
    }
}

#[test]
fn a_state_may_move_to_another_slot_and_the_old_one_stays() {
    let mut bench = bench(&model::backend(), Via::Program);
    bench.rows[0].state_write = 3;
    bench.run().unwrap();
    assert_eq!(bench.registered.world.lock().n_state_moves, 1);
    // The slot it came from still holds the four tokens: a snapshot. Going on from it again is fine.
    bench.deltas.clear();
    bench.rows.truncate(1);
    bench.logit_rows = vec![1];
    bench.run().unwrap();
    // Writing in place destroys it.
    bench.rows[0].state_write = 1;
    bench.run().unwrap();
    assert_eq!(bench.run().err(), Some(Check::State));
}

#[test]
fn a_logit_that_is_not_finite_is_told_to_the_simulator_and_to_no_other_row() {
    let mut bench = bench(&model::backend(), Via::Program);
    let logits = bench.run_with(Some(StepFault::NotFinite(1))).unwrap();
    let n_ids = VOCABULARY as usize - 2;
    let bad: Vec<usize> =
        logits.chunks(VOCABULARY as usize).map(|row| row[..n_ids].iter().filter(|x| !x.is_finite()).count()).collect();
    assert_eq!(bad, [0, 1]);
    assert_eq!(bench.registered.world.lock().poisoned.map(|(id, ..)| id), Some(RequestId(2)));
}
