//! Memory through a resource, into LDS, and into scalar registers: which components of which lanes it lets through, where they lie,
//! what the others get.
//!
//! From the manual, 9.1.5: a raw buffer's component is out of range if the lane's offset and the instruction's, not the scalar one,
//! reach the number of records; then loads give zero and stores do nothing. Kernels rely on that for masked lanes and for steps behind
//! the last one, whose offset is 2^31. What the manual leaves open (a component across the end, a sum of offsets beyond 32 bits) is
//! refused.

use amdhip64::isa::{Encoding, decode};

use crate::{
    bench::{LDS, Lane, Random, WAIT, attempt, ds, image, lanes, op, run, s_mov, v, v_mov, vector},
    widths::{LOADS, STORES},
};

/// Scalar offsets: none, a register (s20), an inline constant.
const SCALARS: [(u32, u64); 3] = [(128, 0), (20, 256), (128 + 48, 48)];

fn s_copy(d: u32, source: u32) -> u32 {
    0b1_0111_1101 << 23 | d << 16 | source
}

/// s[16:19] is a raw buffer of the records, s20 a scalar offset, v14 a lane's offset, from v8.
fn resource(records: u32) -> Vec<u32> {
    let [size, rest, scalar] = [s_mov(18, records), s_mov(19, 0x0002_7000), s_mov(20, 256)];
    [&[s_copy(16, 8), s_copy(17, 9)][..], &size, &rest, &scalar, &[v_mov(14, v(8))]].concat()
}

/// `name v[data], v14, s[16:19], scalar offen offset`.
fn buffer(name: &str, data: u32, scalar: u32, offset: u32) -> [u32; 2] {
    let number = op(Encoding::Mubuf, name);
    [0b11_1000 << 26 | number << 18 | 1 << 12 | offset, 14 | data << 8 | 4 << 16 | scalar << 24]
}

/// The same into LDS.
fn buffer_lds(name: &str, scalar: u32, offset: u32) -> [u32; 2] {
    let [first, second] = buffer(name, 0, scalar, offset);
    [first | 1 << 16, second]
}

/// Which lanes work.
fn exec(mask: u64) -> Vec<u32> {
    [s_mov(126, mask as u32), s_mov(127, (mask >> 32) as u32)].concat()
}

/// Offsets in multiples of `unit`: inside, at the end, behind it, and far behind it.
fn offsets(seed: u64, unit: u64, records: u64) -> Vec<Lane> {
    let mut r = Random(seed);
    let ends = [0, records - unit, records, records - 4 * unit, 0x8000_0000, 0x8000_0000 + unit, 0xffff_f000];
    let mut lanes = lanes(seed, &[0xfedc_ba98_7654_3210], Random::next);
    for x in &mut lanes {
        let pick = r.next();
        x.c =
            if pick.is_multiple_of(3) { ends[(pick >> 8) as usize % ends.len()] } else { (pick >> 8) % (2 * records) };
        x.c -= x.c % unit;
    }
    lanes
}

/// Little-endian number of up to four bytes that a resource lets through.
fn component(image: &[u8], records: u64, scalar: u64, offset: u64, bytes: u64) -> u64 {
    if offset >= records {
        return 0;
    }
    (0..bytes).map(|i| u64::from(image[(scalar + offset + i) as usize]) << (8 * i)).sum()
}

#[test]
pub fn loads() {
    let working = 0xf0f7_ffff_0fff_fff1u64;
    for (n, kind) in LOADS.into_iter().enumerate() {
        let (name, bytes) = (format!("buffer_load_{}", kind.0), kind.1 as u64);
        for (m, (scalar, shift)) in SCALARS.into_iter().enumerate() {
            let (unit, records, offset) = (bytes.min(4), [1000, 760][m % 2], [0, 4, 1020][m]);
            let lanes = offsets((n * 3 + m) as u64, unit, records);
            let load = buffer(&name, 10, scalar, offset as u32);
            let code = [&resource(records as u32)[..], &exec(working), &load, &[WAIT], &exec(u64::MAX)].concat();
            let (after, image) = (run(&code, &lanes), image(&lanes));
            for (l, x) in lanes.iter().enumerate() {
                let mut expected = [x.old as u32, (x.old >> 32) as u32, 0, 0];
                if working >> l & 1 == 1 {
                    for i in 0..bytes.div_ceil(4) {
                        let found = component(&image, records, shift, x.c + offset + 4 * i, unit);
                        let to = &mut expected[i as usize];
                        *to = kind.register(*to, found);
                    }
                }
                assert_eq!(after.v[l], expected, "{name} at {:x}+{offset}+{shift} of {records}, lane {l}", x.c);
            }
        }
    }
}

#[test]
pub fn stores() {
    for (kind, bytes, low) in STORES {
        let (name, bytes) = (format!("buffer_store_{kind}"), bytes as u64);
        for (m, (scalar, shift)) in SCALARS.into_iter().enumerate() {
            // Places of their own, of which the last ones are out of range, one of them in part.
            let (records, offset, working) = (16 * 40 + 8, [0, 4, 2000][m], 0x7fff_fff3_ffff_fffbu64);
            let mut lanes = lanes(m as u64, &[0x0123_4567_89ab_cdef], Random::next);
            for (l, x) in lanes.iter_mut().enumerate() {
                let place = 16 * ((37 * l as u64 + 5) % 64) + 4u64.saturating_sub(bytes);
                x.c = if l % 7 == 3 { 0x8000_0000 + place } else { place };
            }
            let store = buffer(&name, 4, scalar, offset as u32);
            let code = [&resource(records as u32)[..], &exec(working), &store, &[WAIT], &exec(u64::MAX)].concat();
            let (after, mut expected) = (run(&code, &lanes), image(&lanes));
            let begin = expected.clone();
            for (_, x) in lanes.iter().enumerate().filter(|(l, _)| working >> l & 1 == 1) {
                let data: Vec<u8> = [x.a >> low, x.b].iter().flat_map(|x| x.to_le_bytes()).collect();
                for i in 0..bytes {
                    let at = x.c + offset + i;
                    if at - i % 4 < records {
                        expected[(at + shift) as usize] = data[i as usize];
                    }
                }
            }
            // What the bench writes into records itself.
            for (to, from) in expected.chunks_mut(64).zip(begin.chunks(64)) {
                to[32..48].copy_from_slice(&from[32..48]);
            }
            assert!(after.image == expected, "{name} +{offset}+{shift}");
        }
    }
}

/// LDS as lanes fill it: 16 bytes of a and b each, then zeros.
fn filled(lanes: &[Lane]) -> (Vec<u32>, Vec<u8>) {
    let mut code = vector("v_lshlrev_b32", 15, [132, 256, 0]).to_vec();
    code.extend([v_mov(16, 128), v_mov(17, 128), v_mov(18, 128), v_mov(19, 128)]);
    code.extend([ds("ds_write_b128", 15, 4, 0, 0), ds("ds_write_b128", 15, 16, 0, 1024)].concat());
    code.push(WAIT);
    let mut bytes: Vec<u8> = lanes.iter().flat_map(|x| [x.a.to_le_bytes(), x.b.to_le_bytes()].concat()).collect();
    bytes.resize(LDS as usize, 0);
    (code, bytes)
}

/// Compares LDS, each lane's 16 bytes of both halves.
fn compare_lds(code: &[u32], lanes: &[Lane], expected: &[u8], what: &str) {
    for half in [0, 1024] {
        let after = run(&[code, &ds("ds_read_b128", 15, 0, 10, half)].concat(), lanes);
        let found: Vec<u8> = after.v.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        assert!(found == expected[half as usize..][..1024], "{what}: half {half}");
    }
}

/// Into LDS: lane l's bytes go to m0, the instruction's offset and l times 4, or 16 where they are more than four; what is out of range
/// goes there as zeros. Global loads ignore the two lowest bits of m0 (10.3); of buffer loads that is not said.
#[test]
pub fn loads_into_lds() {
    for (name, bytes) in [("buffer_load_dword", 4), ("buffer_load_dwordx3", 12), ("buffer_load_dwordx4", 16)] {
        for (m, (scalar, shift)) in SCALARS.into_iter().enumerate() {
            let (base, offset, records) = ([0, 68, 512][m], [64, 0, 128][m], [1000, 760][m % 2]);
            let working = 0x8fff_ff7f_ffff_fffeu64;
            let lanes = offsets(40 + m as u64, 4, records);
            let (fill, mut expected) = filled(&lanes);
            let load = buffer_lds(name, scalar, offset as u32);
            let parts = [&resource(records as u32)[..], &fill, &s_mov(124, base), &exec(working), &load];
            let code = [&parts.concat()[..], &[WAIT], &exec(u64::MAX)].concat();
            let image = image(&lanes);
            for (l, x) in lanes.iter().enumerate().filter(|(l, _)| working >> l & 1 == 1) {
                let to = u64::from(base) + offset + l as u64 * if bytes > 4 { 16 } else { 4 };
                for i in 0..bytes / 4 {
                    let found = component(&image, records, shift, x.c + offset + 4 * i, 4) as u32;
                    expected[(to + 4 * i) as usize..][..4].copy_from_slice(&found.to_le_bytes());
                }
            }
            compare_lds(&code, &lanes, &expected, &format!("{name} to {base}+{offset}"));
        }
    }
    for (name, bytes) in
        [("global_load_lds_dword", 4u64), ("global_load_lds_dwordx3", 12), ("global_load_lds_dwordx4", 16)]
    {
        for (base, offset, working) in [(0u32, 0u64, u64::MAX), (131, 16, 0x0ff0_0f0f_ffff_f0ff), (640, 12, u64::MAX)] {
            let lanes = lanes(base.into(), &[3], Random::next);
            let (fill, mut expected) = filled(&lanes);
            // v[2:3] is the address of a lane's record.
            let number = op(Encoding::Global, name);
            let load = [0b11_0111 << 26 | number << 18 | 2 << 14 | offset as u32, 2 | 0x7f << 16];
            let parts = [&fill[..], &s_mov(124, base), &exec(working), &load, &[WAIT], &exec(u64::MAX)];
            let image = image(&lanes);
            for l in (0..64).filter(|l| working >> l & 1 == 1) {
                let to = u64::from(base) / 4 * 4 + offset + l * if bytes > 4 { 16 } else { 4 };
                let from = &image[(64 * l + offset) as usize..][..bytes as usize];
                expected[to as usize..][..bytes as usize].copy_from_slice(from);
            }
            compare_lds(&parts.concat(), &lanes, &expected, &format!("{name} to {base}+{offset}"));
        }
    }
}

/// What no manual settles is refused where it happens: by the resource, by the sum of offsets, by the end of the resource.
#[test]
fn what_is_not_documented_is_refused() {
    let lanes = offsets(1, 4, 64);
    let at = |offset: u64| vec![Lane { c: offset, ..Lane::default() }; 64];
    let load = |resource: &[u32], offset: u32, lanes: &[Lane]| {
        let code = [resource, &buffer("buffer_load_dword", 10, 128, offset), &[WAIT]].concat();
        attempt(&code, lanes).err()
    };
    assert_eq!(load(&resource(64), 0, &lanes), None);
    let refused = |found: Option<String>, words: &str| {
        let line = found.unwrap_or_else(|| panic!("not refused: {words}"));
        assert!(line.contains(words) && !line.contains('\n'), "no {words:?} in {line}");
    };
    // A stride, a swizzle, numbers of lanes.
    for (word, value) in [(17, 16 << 16), (17, 1 << 31), (19, 1 << 23)] {
        let bits = [
            &resource(64)[..],
            &s_mov(21, value),
            &[0b10 << 30 | op(Encoding::Sop2, "s_or_b32") << 23 | word << 16 | 21 << 8 | word],
        ]
        .concat();
        refused(load(&bits, 0, &lanes), "stride, swizzle or lane numbers");
    }
    refused(load(&resource(64), 32, &at(0xffff_fff0)), "beyond 32 bits");
    assert_eq!(load(&resource(64), 12, &at(0xffff_fff0)), None);
    refused(load(&resource(62), 0, &at(60)), "across the end");
    refused(load(&resource(64), 0, &at(61)), "across the end");
    assert_eq!(load(&resource(62), 0, &at(64)), None);
    let into_lds = |base: u32| {
        attempt(
            &[&resource(64)[..], &s_mov(124, base), &buffer_lds("buffer_load_dword", 128, 0), &[WAIT]].concat(),
            &lanes,
        )
        .err()
    };
    assert_eq!(into_lds(64), None);
    refused(into_lds(66), "no multiple of four");
    // A structured buffer is not even decoded.
    let [first, second] = buffer("buffer_load_dword", 10, 128, 0);
    refused(decode(&[first | 1 << 13, second]).err().map(|e| e.to_string()), "structured");
    // A resource that is larger than what is there does not help.
    refused(load(&resource(1 << 20), 0, &at(4096)), "out of bounds");
}
