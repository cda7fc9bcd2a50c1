//! One wave of 64 lanes around a piece of code: four 64-bit inputs per lane come from memory into v[4:11], v[10:13] go back.
//!
//! Opcode numbers are looked up in the decoder's tables, which `llvm.rs` compares with LLVM; meanings are not.

use std::{cell::RefCell, collections::BTreeSet};

use amdhip64::{
    code::Kernel,
    isa::{Encoding, all_tables, decode},
    machine::{Dispatch, Memory, Mode, Owner, launch},
};

use crate::evidence;

/// Dwords of a lane's record: a, b, c, old (two each), results (four), four more for the code.
const RECORD: usize = 16;
/// Bytes of LDS.
pub const LDS: u32 = 2048;
/// Where results are, in dwords.
const OUT: usize = 8;

/// Inputs of one lane; `old` is what the destination holds before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub old: u64,
}

/// v[10:13] of each lane behind the code, its first input's place in memory, and all of the records before v[10:13] went there.
#[derive(Debug)]
pub struct After {
    pub v: Vec<[u32; 4]>,
    pub memory: Vec<u64>,
    pub image: Vec<u8>,
}

thread_local! {
    static RUN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// What this thread's tests have run so far, as [`evidence::keys`] calls it.
pub fn has_run() -> BTreeSet<String> {
    RUN.with_borrow(Clone::clone)
}

fn note(code: &[u32]) {
    let mut at = 0;
    while at < code.len() {
        let inst = decode(&code[at..]).unwrap_or_else(|e| panic!("{e}"));
        at += inst.words as usize;
        RUN.with_borrow_mut(|all| all.extend(evidence::keys(&inst)));
    }
}

/// The records as a run finds them: what lanes do not begin with counts up.
pub fn image(lanes: &[Lane]) -> Vec<u8> {
    let mut out: Vec<u8> = (0..64 * RECORD * 4).map(|i| (i * 7 + i / 256) as u8).collect();
    for (record, x) in out.chunks_mut(RECORD * 4).zip(lanes) {
        for (to, value) in record.chunks_mut(8).zip([x.a, x.b, x.c, x.old]) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }
    out
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Lanes whose inputs are `corners` half of the time and `random` otherwise.
pub fn lanes(seed: u64, corners: &[u64], random: fn(&mut Random) -> u64) -> Vec<Lane> {
    let mut r = Random(seed);
    let mut one = || {
        let pick = r.next();
        if pick.is_multiple_of(2) { corners[(pick >> 8) as usize % corners.len()] } else { random(&mut r) }
    };
    (0..64).map(|_| Lane { a: one(), b: one(), c: one(), old: one() }).collect()
}

/// Number of an opcode.
pub fn op(encoding: Encoding, name: &str) -> u32 {
    let tables = all_tables();
    let found =
        tables.iter().filter(|(e, _)| *e == encoding).find_map(|(_, defs)| defs.iter().find(|d| d.name == name));
    u32::from(found.unwrap_or_else(|| panic!("no {name} in {encoding:?}")).op)
}

/// All names of an encoding that begin so.
pub fn names(encoding: Encoding, start: &str) -> Vec<&'static str> {
    let tables = all_tables();
    let of = tables.iter().filter(|(e, _)| *e == encoding).flat_map(|(_, defs)| defs.iter());
    of.map(|d| d.name).filter(|n| n.starts_with(start)).collect()
}

pub const fn v(register: u32) -> u32 {
    256 + register
}

/// VOP3 with up to three sources; `number` as VOP3 counts.
pub fn vop3(number: u32, d: u32, [a, b, c]: [u32; 3]) -> [u32; 2] {
    [0x34 << 26 | number << 16 | d, a | b << 9 | c << 18]
}

/// A vector opcode of any of the short encodings or of VOP3, as VOP3.
pub fn vector(name: &str, d: u32, sources: [u32; 3]) -> [u32; 2] {
    let of = [(Encoding::Vop3, 0), (Encoding::Vop2, 256), (Encoding::Vop1, 320)];
    let known = |(e, base)| names(e, name).contains(&name).then(|| base + op(e, name));
    let number = of.into_iter().find_map(known).unwrap_or_else(|| panic!("no {name}"));
    vop3(number, d, sources)
}

pub fn v_mov(d: u32, source: u32) -> u32 {
    0x3f << 25 | d << 17 | 1 << 9 | source
}

pub fn s_mov(d: u32, value: u32) -> [u32; 2] {
    [0b1_0111_1101 << 23 | d << 16 | 255, value]
}

/// `name v[d], v[address], v[data]`; LDS.
pub fn ds(name: &str, address: u32, data: u32, d: u32, offset: u32) -> [u32; 2] {
    [0b11_0110 << 26 | op(Encoding::Ds, name) << 17 | offset, address | data << 8 | d << 24]
}

/// `name v[d], v[2:3], v[data]` at `offset` bytes of the lane's record; with sc0, which makes an atomic return.
pub fn global(name: &str, data: u32, d: u32, offset: u32, sc0: bool) -> [u32; 2] {
    let number = op(Encoding::Global, name);
    [0b11_0111 << 26 | number << 18 | u32::from(sc0) << 16 | 2 << 14 | offset, 2 | data << 8 | 0x7f << 16 | d << 24]
}

/// `s_waitcnt vmcnt(0) lgkmcnt(0)`.
pub const WAIT: u32 = 0xbf8c_0070;

/// Runs the code on one wave, all checks on. s[8:9] is where the records are.
pub fn run(code: &[u32], lanes: &[Lane]) -> After {
    attempt(code, lanes).unwrap_or_else(|e| panic!("{e}"))
}

/// The same for code that may be refused.
pub fn attempt(code: &[u32], lanes: &[Lane]) -> Result<After, String> {
    note(code);
    let memory = Memory::default();
    let data = memory.allocate(64 * RECORD * 4, Owner::Device(0), true).unwrap();
    let at = |lane: usize, word: usize| {
        // SAFETY: within the allocation of 64 records, which nothing else uses.
        unsafe { std::ptr::with_exposed_provenance_mut::<u32>(data.base).add(lane * RECORD + word) }
    };
    let begin = image(lanes);
    // SAFETY: as above; both are of this length.
    unsafe { at(0, 0).cast::<u8>().copy_from_nonoverlapping(begin.as_ptr(), begin.len()) };
    data.mark(data.base, 64 * RECORD * 4, true);
    let mut words = [s_mov(8, data.base as u32), s_mov(9, (data.base as u64 >> 32) as u32)].concat();
    // v_lshlrev_b32 v1, 6, v0; v_add_co_u32 v2, vcc, s8, v1; v_mov v3, s9; v_addc_co_u32 v3, vcc, 0, v3, vcc
    words.extend([
        0x12 << 25 | 1 << 17 | 134,
        0x19 << 25 | 2 << 17 | 1 << 9 | 8,
        v_mov(3, 9),
        0x1c << 25 | 3 << 17 | 3 << 9 | 128,
    ]);
    for (register, offset) in [(4, 0), (6, 8), (8, 16), (10, 24)] {
        words.extend(global("global_load_dwordx2", 0, register, offset, false));
    }
    words.extend([v_mov(12, 128), v_mov(13, 128), WAIT]);
    words.extend(code);
    words.push(WAIT);
    words.extend(global("global_store_dwordx4", 10, 0, 4 * OUT as u32, false));
    words.extend([WAIT, 0xbf81_0000]);
    let kernel = Kernel::with_accumulators("semantics", &words, 32, 8).unwrap();
    let dispatch = Dispatch { groups: [1, 1, 1], block: [64, 1, 1], dynamic_lds: LDS, ..Dispatch::default() };
    let mode = Mode { check: true, seed: 1, threads: 1, max_steps: 10_000, ..Mode::default() };
    launch(&kernel, &memory, None, &dispatch, mode).map_err(|e| e.to_string())?;
    // SAFETY: as above; the launch is done.
    let word = |lane, word| unsafe { at(lane, word).read() };
    let mut image: Vec<u8> = (0..64 * RECORD).flat_map(|i| word(i / RECORD, i % RECORD).to_le_bytes()).collect();
    // Results went to places of their own; what the code itself left there is not looked at.
    for (record, begin) in image.chunks_mut(RECORD * 4).zip(begin.chunks(RECORD * 4)) {
        record[4 * OUT..4 * OUT + 16].copy_from_slice(&begin[4 * OUT..4 * OUT + 16]);
    }
    Ok(After {
        v: (0..64).map(|l| std::array::from_fn(|i| word(l, OUT + i))).collect(),
        memory: (0..64).map(|l| u64::from(word(l, 0)) | u64::from(word(l, 1)) << 32).collect(),
        image,
    })
}
