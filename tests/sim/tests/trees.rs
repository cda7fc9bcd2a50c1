//! The device finds what is wrong with trees of guesses and with passes of a draft model: each case is a right turn with one
//! thing made wrong.

use std::collections::BTreeSet;

use tokenspeed_backend_api::{
    abi::{ts_step_row, ts_step_token, ts_table_delta},
    exec::Via,
};
use tokenspeed_core::{
    driver::StepRunner,
    engine::{ComponentClass, ComponentConfig, EngineConfig, Pass},
    load::DeviceProgram,
    request::RequestId,
    speculation::{DraftModel, SpeculationConfig},
    step::{StepBuffer, StepContent},
};
use tokenspeed_sim::{
    check::Check,
    fingerprint,
    model::{self, DeviceChoice},
    world::{Held, Registered, Sizes, Truth, World},
};

const ID: RequestId = RequestId(1);
const VOCABULARY: u32 = 20;

/// A row of the one request: computed, offset, and its tokens.
type Row = (u32, u32, Vec<u32>);

struct Bench {
    config: EngineConfig,
    program: DeviceProgram,
    registered: Registered,
    buffer: StepBuffer,
    deltas: Vec<ts_table_delta>,
    logits: Vec<u32>,
}

impl Bench {
    /// Five tokens, of which four have been computed, in pages 1 to 4.
    fn new(has_state: bool, has_draft: bool) -> Self {
        let mut config = EngineConfig::paged(32, 4, 8, VOCABULARY);
        (config.max_num_seqs, config.table_rows) = (2, 2);
        config.speculation = Some(SpeculationConfig { draft_max: 3, ngram: 1, branches: 2 });
        let mut component = |name: &str, class| {
            config.components.push(ComponentConfig { name: name.into(), class, n_blocks: 8 });
        };
        if has_state {
            component("kda", ComponentClass::State);
        }
        if has_draft {
            component("draft", ComponentClass::Paged);
            config.draft = Some(DraftModel { vocab_size: VOCABULARY, token_ids: None });
        }
        let sizes = Sizes { blocks: 8, states: if has_state { 8 } else { 0 }, block_tokens: 4, ..Sizes::default() };
        let sizes = Sizes { draft_max: 3, branches: 2, drafts: has_draft, n_ids: VOCABULARY, ..sizes };
        let registered = Registered::new(World::new(Sizes { chunk_grid: 4, chunk_cap: 100, ..sizes }));
        registered.world.lock().truths.insert(ID, Truth::new(None, &[1, 2, 3, 4, 5]));
        let choice = DeviceChoice { via: Via::Program, refuse: None, prepare: "ok" };
        let bytes = config.step_capacity().bytes() as u64;
        let program = model::open(&model::backend(), &config, registered.number, bytes, choice).unwrap();
        let paged: Vec<u32> = config.components_of(ComponentClass::Paged).map(|at| at as u32).collect();
        let entry = |component, index| ts_table_delta { component, table_row: 0, index, block: index + 1 };
        let deltas = paged.iter().flat_map(|component| (0..4).map(move |index| entry(*component, index))).collect();
        let buffer = StepBuffer::new(config.step_capacity());
        let mut bench = Self { config, program, registered, buffer, deltas, logits: Vec::new() };
        bench.run(Pass::Forward, &[(0, 0, vec![1, 2, 3, 4])]).unwrap();
        bench
    }

    fn checking(&self) -> Pass {
        if self.config.verifies() { Pass::Verify } else { Pass::Forward }
    }

    fn hear(&self, ids: &[u32]) {
        let mut world = self.registered.world.lock();
        ids.iter().for_each(|id| world.truths.get_mut(&ID).unwrap().push(*id));
    }

    fn cache(&self, page: u32) {
        self.registered.world.lock().cached_pages.insert(page);
    }

    /// The check that failed, if one did.
    fn run(&mut self, pass: Pass, parts: &[Row]) -> Result<(), Check> {
        let (computed, planned) = (parts[0].0, parts[0].2.len() as u32);
        let held = vec![Held { id: ID, table_row: 0, computed, planned }];
        let is_draft = matches!(pass, Pass::DraftFirst | Pass::DraftNext);
        let mut world = self.registered.world.lock();
        if pass == Pass::Replay {
            world.begin_replay(BTreeSet::new(), None);
        } else if is_draft {
            let cached = world.cached_pages.clone();
            world.begin_draft(pass, held, cached, None);
        } else {
            world.begin_turn(held);
            world.begin_pass(pass, true, None);
        }
        let (has_state, len) = (world.sizes.states > 0 && !is_draft, world.truths[&ID].tokens.len() as u32);
        drop(world);
        let (mut rows, mut tokens, mut logit_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (computed, branch_offset, ids) in parts {
            let (row, query_start, query_len) = (rows.len() as u32, tokens.len() as u32, ids.len() as u32);
            let [state_read, state_write] = if has_state { [u32::from(*computed > 0), 1] } else { [0; 2] };
            let state_tokens = if has_state { *computed } else { 0 };
            rows.push(ts_step_row {
                computed: *computed,
                query_start,
                query_len,
                state_read,
                state_write,
                state_tokens,
                branch_offset: *branch_offset,
                ..ts_step_row::default()
            });
            let token =
                |(position, id): (u32, &u32)| ts_step_token { id: id.cast_signed(), position, row, reserved: 0 };
            tokens.extend((*computed..).zip(ids).map(token));
            if pass != Pass::Replay && (!is_draft || computed + query_len >= len) {
                logit_rows.push(query_start + query_len - 1);
            }
        }
        let (deltas, logit_rows) = (std::mem::take(&mut self.deltas), logit_rows);
        let content =
            StepContent { sequence: 1, rows: &rows, tokens: &tokens, logit_rows: &logit_rows, deltas: &deltas };
        self.buffer.write(&content);
        let result = self.program.run(pass, self.buffer.bytes(), logit_rows.len() as u32);
        if let Some(failure) = self.registered.world.lock().failure.take() {
            println!("{failure}");
            return Err(failure.check);
        }
        result.unwrap();
        self.logits = if pass == Pass::Replay { vec![] } else { best(self.program.logits(pass)) };
        Ok(())
    }
}

fn best(logits: &[f32]) -> Vec<u32> {
    let likeliest = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    logits.chunks(VOCABULARY as usize).map(likeliest).collect()
}

/// After 5: the chain 6 7, or 9 10, or 11.
fn tree() -> Vec<Row> {
    vec![(4, 0, vec![5, 6, 7]), (4, 3, vec![5, 9, 10]), (4, 6, vec![5, 11])]
}

#[test]
fn a_right_branch_is_moved_and_gone_on_from() {
    for has_state in [false, true] {
        for (offset, right) in [(3, &[9, 10][..]), (6, &[11]), (0, &[6, 7])] {
            let mut bench = Bench::new(has_state, false);
            bench.run(bench.checking(), &tree()).unwrap();
            bench.hear(&[right, &[12]].concat());
            bench.run(Pass::Replay, &[(4, offset, [&[5], right].concat())]).unwrap();
            bench.run(Pass::Forward, &[(5 + right.len() as u32, 0, vec![12])]).unwrap();
            assert_eq!(bench.registered.world.lock().n_branches, 2);
        }
    }
}

#[test]
fn each_wrong_thing_about_a_tree_is_found() {
    type Damage = fn(&mut Vec<Row>);
    let of_check: [(&str, Check, Damage); 6] = [
        ("two branches in the same rows", Check::Table, |rows| rows[2].1 = 3),
        ("a branch that begins in the chain's rows", Check::Table, |rows| rows[1].1 = 2),
        ("a branch longer than the chain", Check::Step, |rows| rows[1].2.push(1)),
        ("a branch before its chain", Check::Step, |rows| rows.swap(0, 1)),
        ("a branch of another text", Check::Step, |rows| rows[1].2[0] = 4),
        ("one branch too many", Check::Step, |rows| rows.push((4, 8, vec![5, 12]))),
    ];
    for has_state in [false, true] {
        for (name, check, damage) in of_check {
            let (mut bench, mut rows) = (Bench::new(has_state, false), tree());
            damage(&mut rows);
            assert_eq!(bench.run(bench.checking(), &rows), Err(check), "{name}");
        }
        let in_place = if has_state { Check::State } else { Check::Page };
        for (name, check, offset, ids) in [
            ("not moved", in_place, 0, vec![5, 9, 10]),
            ("from the other branch", in_place, 6, vec![5, 9, 10]),
            ("from where none was", Check::Step, 5, vec![5, 9, 10]),
            ("a token too few", Check::Step, 3, vec![5, 9]),
        ] {
            let mut bench = Bench::new(has_state, false);
            bench.run(bench.checking(), &tree()).unwrap();
            bench.hear(&[9, 10, 12]);
            assert_eq!(bench.run(Pass::Replay, &[(4, offset, ids)]), Err(check), "{name}");
        }
    }
    let mut bench = Bench::new(false, false);
    bench.run(Pass::Forward, &tree()).unwrap();
    bench.hear(&[9, 10, 12]);
    assert_eq!(bench.run(Pass::Forward, &[(7, 0, vec![12])]), Err(Check::Page), "no replay at all");
}

/// What the draft guesses after a text, and the next best.
fn guesses(text: &[u32]) -> [u32; 2] {
    let last = text.iter().fold(fingerprint::start(None), |f, &id| fingerprint::mix(f, id));
    let mut logits = [0f32; VOCABULARY as usize];
    fingerprint::logits(last ^ u64::from(last.is_multiple_of(4)), logits.len(), &mut logits);
    let first = best(&logits)[0];
    logits[first as usize] = f32::NEG_INFINITY;
    [first, best(&logits)[0]]
}

#[test]
fn guesses_of_a_draft_are_made_and_checked() {
    let mut bench = Bench::new(true, true);
    let text = [1, 2, 3, 4, 5];
    let [first, second] = guesses(&text);
    // In two parts: the page of the cache lacks its draft rows, and anybody may make them.
    bench.cache(1);
    bench.run(Pass::DraftFirst, &[(0, 0, text[..3].to_vec())]).unwrap();
    bench.run(Pass::DraftFirst, &[(3, 0, text[3..].to_vec())]).unwrap();
    assert_eq!(bench.logits, [first]);
    let [next, other] = guesses(&[&text[..], &[first]].concat());
    bench.run(Pass::DraftNext, &[(5, 0, vec![first])]).unwrap();
    assert_eq!(bench.logits, [next]);
    let rows = [(4, 0, vec![5, first, next]), (4, 3, vec![5, second]), (4, 5, vec![5, first, other])];
    bench.run(Pass::Verify, &rows).unwrap();
    let mut wrong = rows.clone();
    wrong[0].2[2] = (next + 1) % VOCABULARY;
    assert_eq!(bench.run(Pass::Verify, &wrong), Err(Check::Step), "not what it guessed");
    let mut wrong = rows.clone();
    wrong[1].2[1] = (second + 1) % VOCABULARY;
    assert_eq!(bench.run(Pass::Verify, &wrong), Err(Check::Step), "not the next best");
}

#[test]
fn each_wrong_thing_about_a_draft_is_found() {
    let text = [1, 2, 3, 4, 5];
    let [first, _] = guesses(&text);
    let prepare = || {
        let mut bench = Bench::new(false, true);
        bench.run(Pass::DraftFirst, &[(0, 0, text.to_vec())]).unwrap();
        bench
    };
    let run = |pass, row: Row| prepare().run(pass, &[row]);
    assert_eq!(run(Pass::DraftNext, (5, 0, vec![first])), Ok(()));
    let other = (first + 1) % VOCABULARY;
    assert_eq!(run(Pass::DraftNext, (5, 0, vec![other])), Err(Check::Step), "a guess of nobody");
    assert_eq!(run(Pass::DraftNext, (4, 0, vec![5])), Err(Check::Step), "the text again");
    assert_eq!(run(Pass::DraftNext, (4, 0, vec![5, first])), Err(Check::Step), "two tokens");
    assert_eq!(run(Pass::DraftFirst, (3, 0, vec![4, 6])), Err(Check::Step), "another text");
    let mut bench = Bench::new(false, true);
    assert_eq!(bench.run(Pass::DraftFirst, &[(4, 0, vec![5])]), Err(Check::Page), "rows that nobody made");
    assert_eq!(Bench::new(false, true).run(Pass::DraftNext, &[(5, 0, vec![first])]), Err(Check::Step), "no first pass");
    let mut bench = prepare();
    bench.hear(&[7]);
    assert_eq!(bench.run(Pass::DraftNext, &[(5, 0, vec![first])]), Err(Check::Step), "the text went on");
    // The row of the guess is where that of 7 belongs.
    let mut bench = prepare();
    bench.run(Pass::DraftNext, &[(5, 0, vec![first])]).unwrap();
    let another = if first == 7 { 8 } else { 7 };
    bench.hear(&[another, 9]);
    assert_eq!(bench.run(Pass::DraftFirst, &[(6, 0, vec![9])]), Err(Check::Page), "the row of a wrong guess");
    let mut bench = prepare();
    bench.cache(2);
    assert_eq!(bench.run(Pass::DraftNext, &[(5, 0, vec![first])]), Err(Check::Table), "a guess in the cache");
}
