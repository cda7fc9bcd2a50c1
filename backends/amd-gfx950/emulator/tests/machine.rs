//! The machine on a few hand-assembled instructions: what is refused, what is reported, who waits for whom.

use std::sync::Mutex;

use amdhip64::{
    code::Kernel,
    machine::{Counters, Dispatch, Memory, Mode, Owner, SideCache, launch, launch_behind},
};

const ENDPGM: u32 = 0xbf81_0000;
const BARRIER: u32 = 0xbf8a_0000;
/// `s_waitcnt vmcnt(0) lgkmcnt(0)`.
const WAIT_ALL: u32 = 0xbf8c_0070;

fn vop1(op: u32, d: u32, source: u32) -> u32 {
    0x3f << 25 | d << 17 | op << 9 | source
}

fn mov(d: u32, source: u32) -> u32 {
    vop1(1, d, source)
}

const fn v(register: u32) -> u32 {
    256 + register
}

fn s_mov(d: u32, value: u32) -> [u32; 2] {
    [0b1_0111_1101 << 23 | d << 16 | 255, value]
}

fn ds(op: u32, address: u32, data: u32, d: u32, offset: u32) -> [u32; 2] {
    [0b11_0110 << 26 | op << 17 | offset, address | data << 8 | d << 24]
}

fn global(op: u32, address: u32, data: u32, d: u32) -> [u32; 2] {
    [0b11_0111 << 26 | op << 18 | 2 << 14, address | data << 8 | 0x7f << 16 | d << 24]
}

fn run_on(memory: &Memory, words: &[u32], lanes: u32, seed: u64) -> Result<Counters, String> {
    let kernel = Kernel::bare("test", words, 32).map_err(|e| e.to_string())?;
    let dispatch = Dispatch { groups: [2, 1, 1], block: [lanes, 1, 1], dynamic_lds: 1024, ..Dispatch::default() };
    let mode = Mode { check: true, seed, threads: 1, max_steps: 10_000, ..Mode::default() };
    launch(&kernel, memory, None, &dispatch, mode).map_err(|e| e.to_string())
}

fn run(parts: &[&[u32]]) -> Result<Counters, String> {
    run_on(&Memory::default(), &parts.concat(), 128, 1)
}

#[test]
fn an_unknown_opcode_is_an_error_of_loading() {
    let line = run(&[&[mov(1, 128), 0xd2ff_0000, 0, ENDPGM]]).unwrap_err();
    assert!(line.contains("kernel test at 0x4") && line.contains("unknown opcode"), "{line}");
    let line = run(&[&[0xbf82_0005, ENDPGM]]).unwrap_err();
    assert!(line.contains("branch"), "{line}");
    let line = run(&[&[mov(40, 128), ENDPGM]]).unwrap_err();
    assert!(line.contains("register 40 of 32"), "{line}");
}

#[test]
fn an_endless_loop_is_reported_with_everybodys_place() {
    let line = run(&[&[0xbf82_ffff, ENDPGM]]).unwrap_err();
    assert!(line.contains("deadlock") && line.contains("wave 0") && line.contains("s_branch"), "{line}");
}

#[test]
fn a_wave_that_never_comes_keeps_others_at_the_barrier() {
    // Wave 1 of each group spins; wave 0 waits. v_readfirstlane s8, v0; s_cmp_lg_u32 s8, 0; s_cbranch_scc1 +1; s_barrier.
    let words = [vop1(2, 8, v(0)), 0xbf07_8008, 0xbf85_0001, BARRIER, 0xbf85_ffff, ENDPGM];
    let line = run(&[&words]).unwrap_err();
    assert!(
        line.contains("deadlock") && line.contains("wave 0 at a barrier") && line.contains("wave 1 running"),
        "{line}"
    );
}

#[test]
fn uninitialised_values_may_travel_but_not_decide() {
    // A copy of nothing is fine as long as nobody looks.
    run(&[&[mov(2, v(1)), mov(3, v(2)), ENDPGM]]).unwrap();
    let line = run(&[&[mov(2, v(1))], &ds(54, 2, 0, 3, 0), &[ENDPGM]]).unwrap_err();
    assert!(line.contains("uninitialised LDS address") && line.contains("lane 0"), "{line}");
    // s_cbranch_scc1 before any compare.
    let line = run(&[&[0xbf85_0000, ENDPGM]]).unwrap_err();
    assert!(line.contains("uninitialised scc"), "{line}");
    // v_cmp_eq_u32 vcc, v1, v1; s_and_saveexec_b64 s[8:9], vcc
    let line = run(&[&[0x3e << 25 | 202 << 17 | 1 << 9 | v(1), 0xbe88_206a, ENDPGM]]).unwrap_err();
    assert!(line.contains("EXEC from an uninitialised value"), "{line}");
}

#[test]
fn a_half_of_a_packed_result_is_as_initialised_as_what_it_was_made_of() {
    // v_pk_mul_f32 v[4:5], v[2:3], v[2:3], where v2 alone was written: the high half of v2 twice, then of v3.
    let product = |op_sel_hi: u32| [0xd3b1_0004, v(2) | v(2) << 9 | op_sel_hi << 27];
    let use_of = |register| ds(54, register, 0, register + 2, 0);
    run(&[&[mov(2, 128)], &product(0), &use_of(4), &use_of(5), &[ENDPGM]]).unwrap();
    run(&[&[mov(2, 128)], &product(3), &use_of(4), &[ENDPGM]]).unwrap();
    let line = run(&[&[mov(2, 128)], &product(1), &use_of(5), &[ENDPGM]]).unwrap_err();
    assert!(line.contains("uninitialised LDS address"), "{line}");
}

#[test]
fn lds_needs_waits_and_barriers() {
    // Each lane writes its number at 4·lane and reads what lies 64 lanes away: the other wave's.
    let address = [0x12 << 25 | 1 << 17 | 130];
    let write = ds(13, 1, 0, 0, 0);
    // v_xor_b32 v2, 0x100, v1
    let other = [0x15 << 25 | 2 << 17 | 1 << 9 | 255, 0x100];
    let read = ds(54, 2, 0, 3, 0);
    let use_it = [mov(4, v(3))];
    let whole: &[&[u32]] = &[&address, &write, &[WAIT_ALL, BARRIER], &other, &read, &[WAIT_ALL], &use_it, &[ENDPGM]];
    for seed in 0..8 {
        run_on(&Memory::default(), &whole.concat(), 128, seed).unwrap();
    }
    let without = |skip: &dyn Fn(usize) -> &'static [u32]| {
        let parts: &[&[u32]] = &[&address, &write, skip(0), &other, &read, skip(1), &use_it, &[ENDPGM]];
        (0..8).map(|seed| run_on(&Memory::default(), &parts.concat(), 128, seed)).find_map(Result::err)
    };
    let line = without(&|_| &[WAIT_ALL]).unwrap();
    assert!(line.contains("LDS race") || line.contains("uninitialised"), "no barrier: {line}");
    let line = without(&|part| if part == 0 { &[BARRIER] } else { &[WAIT_ALL] }).unwrap();
    assert!(line.contains("LDS race"), "no wait before the barrier: {line}");
    let line = without(&|part| if part == 0 { &[WAIT_ALL, BARRIER] } else { &[] }).unwrap();
    assert!(line.contains("reads v3 while a load into it is outstanding"), "{line}");
}

#[test]
fn global_accesses_stay_inside_allocations_of_written_memory() {
    let memory = Memory::default();
    let data = memory.allocate(256, Owner::Device(0), true).unwrap();
    let base = data.base as u64;
    // v_lshlrev_b32 v1, 2, v0; v_add_co_u32 v2, vcc, s8, v1; v_mov v3, s9; v_addc_co_u32 v3, vcc, 0, v3, vcc
    let low = s_mov(8, base as u32);
    let high = s_mov(9, (base >> 32) as u32);
    let address =
        [0x12 << 25 | 1 << 17 | 130, 0x19 << 25 | 2 << 17 | 1 << 9 | 8, mov(3, 9), 0x1c << 25 | 3 << 17 | 3 << 9 | 128];
    let store = global(28, 2, 0, 0);
    let load = global(20, 2, 0, 4);
    let program = |ops: &[&[u32]]| [&low[..], &high, &address, &ops.concat(), &[ENDPGM]].concat();
    let line = run_on(&memory, &program(&[&load, &[WAIT_ALL], &store]), 64, 1);
    assert!(line.is_ok(), "loading what nobody wrote is no fault before it is used: {line:?}");
    let stored = global(28, 2, 4, 0);
    let fresh = memory.allocate(256, Owner::Device(0), true).unwrap();
    assert!(!fresh.written(fresh.base, 4));
    data.mark(data.base, 256, false);
    let line = run_on(&memory, &program(&[&load, &[WAIT_ALL], &stored]), 64, 1).unwrap_err();
    assert!(line.contains("uninitialised data stored"), "{line}");
    // 65 lanes: the last one is past the end.
    let line = run_on(&memory, &program(&[&store]), 65, 1).unwrap_err();
    assert!(line.contains("out of bounds") && line.contains("wave 1") && line.contains("lane 0"), "{line}");
    run_on(&memory, &program(&[&store, &[WAIT_ALL], &load, &[WAIT_ALL], &stored]), 64, 1).unwrap();
    // Loads return in order: a second one into the same register is fine, but nobody may read before it, nor compute into it.
    // s_waitcnt vmcnt(1) waits for the first alone.
    run_on(&memory, &program(&[&load, &load, &[WAIT_ALL], &stored]), 64, 1).unwrap();
    let line = run_on(&memory, &program(&[&load, &load, &[0xbf8c_0f71], &stored]), 64, 1).unwrap_err();
    assert!(line.contains("reads v4 while a load into it is outstanding"), "{line}");
    // Of 64 loads the oldest is there at vmcnt(63), the most that the counter holds.
    let many = [load.to_vec(), global(20, 2, 0, 5).repeat(63)].concat();
    run_on(&memory, &program(&[&many, &[0xbf8c_cf7f], &stored]), 64, 1).unwrap();
    let line = run_on(&memory, &program(&[&many, &stored]), 64, 1).unwrap_err();
    assert!(line.contains("reads v4 while a load into it is outstanding"), "{line}");
    let line = run_on(&memory, &program(&[&load, &[mov(4, 128)], &[WAIT_ALL]]), 64, 1).unwrap_err();
    assert!(line.contains("writes v4 while a load into it is outstanding"), "{line}");
    assert!(data.written(data.base, 4) && data.written(data.base + 252, 4));
}

#[test]
fn halves_of_pairs_are_initialised_on_their_own() {
    // v1 is known, v2 is not: v_mov_b64 v[4:5], v[1:2] carries both, and v4 may decide while v5 may not.
    let start = [mov(1, 128), vop1(56, 4, v(1))];
    let use_ = |register: u32| ds(54, register, 0, 12, 0);
    run(&[&start, &use_(4), &[WAIT_ALL, ENDPGM]]).unwrap();
    assert!(run(&[&start, &use_(5), &[WAIT_ALL, ENDPGM]]).unwrap_err().contains("uninitialised LDS address"));
    // v_pk_mul_f32 v[6:7], v[4:5], v[4:5]: the low halves for both results, then each half for its own.
    let pk = |high: u32| [0x1a7 << 23 | 49 << 16 | 6, high << 27 | v(4) << 9 | v(4)];
    run(&[&start, &pk(0), &use_(7), &[WAIT_ALL, ENDPGM]]).unwrap();
    assert!(run(&[&start, &pk(3), &use_(7), &[WAIT_ALL, ENDPGM]]).unwrap_err().contains("uninitialised LDS address"));
    // v_mad_u64_u32 v[8:9], vcc, v1, v1, v[4:5]
    let mad = [0x34 << 26 | 488 << 16 | 106 << 8 | 8, v(4) << 18 | v(1) << 9 | v(1)];
    run(&[&start, &mad, &use_(8), &[WAIT_ALL, ENDPGM]]).unwrap();
    assert!(run(&[&start, &mad, &use_(9), &[WAIT_ALL, ENDPGM]]).unwrap_err().contains("uninitialised LDS address"));
}

#[test]
fn a_choice_by_mask_selects_parts_of_its_sources() {
    let set = [mov(1, 255), 0xabcd_1234, mov(2, 255), 0x0056_0000, mov(5, 255), 0x7777_7777];
    // v_cndmask_b32_sdwa v5, v1, v2, vcc dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1 src1_sel:WORD_1
    let vcc = [s_mov(106, 0xaaaa_aaaa), s_mov(107, 0xaaaa_aaaa)].concat();
    let choose = [5 << 17 | 2 << 9 | 249, 5 << 24 | 1 << 16 | 2 << 11 | 5 << 8 | 1];
    let memory = Memory::default();
    let data = memory.allocate(256, Owner::Device(0), true).unwrap();
    let (low, high) = (s_mov(8, data.base as u32), s_mov(9, (data.base as u64 >> 32) as u32));
    // v_lshlrev_b32 v6, 2, v0; v_add_co_u32 v6, vcc, s8, v6; v_mov v7, s9; v_addc_co_u32 v7, vcc, 0, v7, vcc
    let at =
        [0x12 << 25 | 6 << 17 | 130, 0x19 << 25 | 6 << 17 | 6 << 9 | 8, mov(7, 9), 0x1c << 25 | 7 << 17 | 7 << 9 | 128];
    let store = global(28, 6, 5, 0);
    let words = [&set[..], &low, &high, &vcc, &choose, &at, &store, &[WAIT_ALL, ENDPGM]].concat();
    run_on(&memory, &words, 64, 1).unwrap();
    for lane in 0..64 {
        // SAFETY: the allocation is 64 dwords, all written by the launch that is done.
        let word = unsafe { std::ptr::with_exposed_provenance::<u32>(data.base).add(lane).read() };
        assert_eq!(word, if lane % 2 == 1 { 0x0056_7777 } else { 0x0012_7777 }, "lane {lane}");
    }
}

/// Sums of one unchecked launch with details.
fn counted(words: &[u32], groups: u32, sample: u32) -> Counters {
    let kernel = Kernel::bare("counted", words, 32).unwrap();
    let dispatch = Dispatch { groups: [groups, 1, 1], block: [64, 1, 1], dynamic_lds: 16 << 10, ..Dispatch::default() };
    let mode = Mode { threads: 1, max_steps: 10_000, detail: true, sample, ..Mode::default() };
    launch(&kernel, &Memory::default(), None, &dispatch, mode).unwrap()
}

#[test]
fn bank_conflicts_of_a_column_of_rows_of_256_bytes() {
    // v_lshlrev_b32 v1, 8, v0: every lane's dword is in the same bank.
    let column = [0x12 << 25 | 1 << 17 | 136];
    let words = [&column[..], &ds(13, 1, 0, 0, 0), &ds(54, 1, 0, 2, 0), &[ENDPGM]].concat();
    let detail = counted(&words, 3, 0).detail.unwrap();
    // A write takes two phases of 32 lanes, one dword a cycle; the read is one phase of 64.
    assert_eq!((detail.lds_cycles, detail.lds_conflict_cycles), (3 * (64 + 64), 3 * (62 + 63)));
    // Both parts of a two-part read count: offsets 0 and 4 of each row.
    let words = [&column[..], &ds(55, 1, 0, 2, 1 << 8), &[ENDPGM]].concat();
    assert_eq!(counted(&words, 1, 0).detail.unwrap().lds_cycles, 128);
}

#[test]
fn matrix_instructions_keep_their_unit_for_as_long_as_published() {
    let mai = |op: u32, d: u32, cbsz: u32, blgp: u32| {
        [0x1a7 << 23 | op << 16 | cbsz << 8 | d, 260 | 264 << 9 | (256 + d) << 18 | blgp << 29]
    };
    for (op, d, cbsz, blgp, cycles) in [
        // 16x16x32 and 32x32x16 bf16, their older halves, and 16x16x4 f32.
        (53, 12, 0, 0, 16),
        (55, 16, 0, 0, 32),
        (97, 12, 0, 0, 16),
        (96, 16, 0, 0, 32),
        (70 - 1, 12, 0, 0, 32),
        // 16x16x32 fp8; f8f6f4 with e4m3, with e2m1, with one of each.
        (115, 12, 0, 0, 16),
        (45, 20, 0, 0, 32),
        (45, 20, 4, 4, 16),
        (45, 20, 4, 0, 32),
    ] {
        let words = [&mai(op, d, cbsz, blgp)[..], &[ENDPGM]].concat();
        let counters = counted(&words, 2, 0);
        assert_eq!(counters.matrix_cycles, 2 * cycles, "opcode {op}, formats {cbsz} and {blgp}");
    }
}

#[test]
fn a_sample_of_work_groups_runs_and_no_other() {
    let words = [mov(1, 128), ENDPGM];
    let (all, some) = (counted(&words, 100, 0), counted(&words, 100, 3));
    assert_eq!((all.groups, some.groups), (100, 3));
    assert_eq!((all.total(), some.total()), (200, 6));
}

/// Behind a memory-side cache of four lines, kept from launch to launch.
#[test]
fn what_a_launch_wrote_the_next_one_finds_in_the_memory_side_cache() {
    let memory = Memory::default();
    let data = memory.allocate(4096, Owner::Device(0), false).unwrap();
    let cache = Mutex::new(SideCache::new(4));
    // Each work-group touches line `first` + s0, its number.
    let traffic = |op: &[u32], first: u64, groups: u32, threads: usize| {
        let base = data.base as u64 + 128 * first;
        let (low, high) = (s_mov(8, base as u32), s_mov(9, (base >> 32) as u32));
        let words = [
            // s_lshl_b32 s4, s0, 7; s_add_u32 s8, s8, s4; s_addc_u32 s9, s9, 0
            &low[..],
            &high,
            &[0x8e << 24 | 4 << 16 | 135 << 8, 0x80 << 24 | 8 << 16 | 4 << 8 | 8],
            &[0x82 << 24 | 9 << 16 | 128 << 8 | 9, 0x12 << 25 | 1 << 17 | 130],
            &[0x19 << 25 | 2 << 17 | 1 << 9 | 8, mov(3, 9), 0x1c << 25 | 3 << 17 | 3 << 9 | 128],
            op,
            &[WAIT_ALL, ENDPGM],
        ];
        let kernel = Kernel::bare("lines", &words.concat(), 32).unwrap();
        let dispatch = Dispatch { groups: [groups, 1, 1], block: [32, 1, 1], ..Dispatch::default() };
        let mode = Mode { threads, max_steps: 10_000, detail: true, ..Mode::default() };
        let counters = launch_behind(Some(&cache), &kernel, &memory, None, &dispatch, mode).unwrap();
        let moved = counters.detail.unwrap().hbm.unwrap();
        (moved.read, moved.written)
    };
    let (store, load) = (global(28, 2, 0, 0), global(20, 2, 0, 4));
    assert_eq!(traffic(&store, 0, 3, 1), (0, 0));
    assert_eq!(traffic(&load, 0, 4, 1), (1, 0), "three of four lines are there");
    assert_eq!(traffic(&load, 4, 8, 3), (8, 3), "a stream pushes out what was written");
    assert_eq!(
        traffic(&store, 8, 4, 2),
        (0, 0),
        "in the order of work-groups, whichever thread runs them: 8 to 11 were last"
    );
    assert_eq!(cache.lock().unwrap().changed(), 4);
    // A launch of which not all runs does not know what it does to a cache.
    let kernel = Kernel::bare("nothing", &[ENDPGM], 32).unwrap();
    let dispatch = Dispatch { groups: [9, 1, 1], block: [32, 1, 1], ..Dispatch::default() };
    let mode = Mode { threads: 1, max_steps: 100, detail: true, sample: 2, ..Mode::default() };
    let counters = launch_behind(Some(&cache), &kernel, &memory, None, &dispatch, mode).unwrap();
    assert_eq!(counters.detail.unwrap().hbm, None);
}

#[test]
fn hollow_matrix_instructions_count_and_compute_nothing() {
    let mai = [0x1a7 << 23 | 53 << 16 | 12, 260 | 264 << 9 | (256 + 12) << 18];
    let run = |hollow| {
        let words = [&[mov(4, 0xf2)][..], &mai, &[ENDPGM]].concat();
        let kernel = Kernel::bare("matrix", &words, 32).unwrap();
        let dispatch = Dispatch { groups: [2, 1, 1], block: [64, 1, 1], ..Dispatch::default() };
        let mode = Mode { threads: 1, max_steps: 100, hollow, ..Mode::default() };
        launch(&kernel, &Memory::default(), None, &dispatch, mode).unwrap()
    };
    let (full, hollow) = (run(false), run(true));
    assert_eq!(full, hollow);
    assert_eq!(hollow.matrix_macs, 2 * 16 * 16 * 32);
}
