//! LDS: accesses of more than a dword, at one place and at two, and reads that transpose.

use crate::bench::{Lane, Random, WAIT, ds, lanes, run, v_mov, vector};

/// v14 = 16 v0: each lane's own sixteen bytes, which hold a and b; v15 = where the lane reads: those of another lane, from c.
fn filled() -> Vec<u32> {
    let own = vector("v_lshlrev_b32", 14, [132, 256, 0]);
    [&own[..], &[v_mov(15, 256 + 8)], &ds("ds_write_b128", 14, 4, 0, 0), &[WAIT]].concat()
}

/// Lanes that read from multiples of `unit` of 1024 bytes.
fn readers(seed: u64, unit: u64) -> (Vec<Lane>, Vec<u8>) {
    let mut lanes = lanes(seed, &[0x8000_0000_0000_0001], Random::next);
    let mut r = Random(seed + 77);
    // Room for sixteen bytes behind an offset of as many.
    lanes.iter_mut().for_each(|x| x.c = r.next() % (992 / unit) * unit);
    let bytes = lanes.iter().flat_map(|x| [x.a.to_le_bytes(), x.b.to_le_bytes()].concat()).collect();
    (lanes, bytes)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// A two-place instruction's second data register.
fn second_data([first, second]: [u32; 2], data: u32) -> [u32; 2] {
    [first, second | data << 16]
}

#[test]
pub fn wide_accesses() {
    for (name, bytes, offset) in
        [("ds_read_b32", 4, 8), ("ds_read_b64", 8, 16), ("ds_read_b96", 12, 4), ("ds_read_b128", 16, 16)]
    {
        let (lanes, image) = readers(bytes as u64, if bytes == 16 { 16 } else { 8 });
        let after = run(&[&filled()[..], &ds(name, 15, 0, 10, offset)].concat(), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let mut expected = vec![x.old as u32, (x.old >> 32) as u32, 0, 0];
            let found = words(&image[(x.c + u64::from(offset)) as usize..][..bytes]);
            expected[..bytes / 4].copy_from_slice(&found);
            assert_eq!(after.v[l][..], expected, "{name}, lane {l}");
        }
    }
    // Two places; offsets count elements, or 64 of them.
    for (name, bytes, unit) in [("ds_read2_b32", 4, 4), ("ds_read2_b64", 8, 8), ("ds_read2st64_b32", 4, 256)] {
        let (mut lanes, image) = readers(unit as u64, 8);
        let (first, second) = if unit == 256 { (0, 2) } else { (1, 2) };
        lanes.iter_mut().filter(|_| unit == 256).for_each(|x| x.c %= 496);
        lanes.iter_mut().for_each(|x| x.c -= x.c % 8);
        let after = run(&[&filled()[..], &ds(name, 15, 0, 10, first | second << 8)].concat(), &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let at = |offset: u32| &image[x.c as usize + offset as usize * unit..][..bytes];
            let found = words(&[at(first), at(second)].concat());
            assert_eq!(after.v[l][..bytes / 2], found, "{name}, lane {l}");
        }
    }
    // ds_read2st64_b64 reaches 512 bytes; every lane reads the own one of each half.
    let (lanes, image) = readers(9, 8);
    let own = vector("v_lshlrev_b32", 15, [131, 256, 0]);
    let after = run(&[&filled()[..], &own, &ds("ds_read2st64_b64", 15, 0, 10, 1 << 8)].concat(), &lanes);
    for l in 0..64 {
        let found = words(&[&image[8 * l..][..8], &image[512 + 8 * l..][..8]].concat());
        assert_eq!(after.v[l][..], found, "ds_read2st64_b64, lane {l}");
    }
    // Writes: what was there, a over it, b over that, each lane in its own sixteen bytes or, with 64 elements between, in halves.
    for (name, bytes, [first, second], stride, unit) in [
        ("ds_write_b96", 12, [0, 0], 16, 1),
        ("ds_write_b128", 16, [0, 0], 16, 1),
        ("ds_write2_b32", 4, [1, 3], 16, 4),
        ("ds_write2_b64", 8, [1, 0], 16, 8),
        ("ds_write2st64_b32", 4, [0, 3], 4, 256),
        ("ds_write2st64_b64", 8, [1, 0], 8, 512),
    ] {
        let (lanes, mut image) = readers(bytes as u64 + 30, 16);
        let two = name.contains("write2");
        let address = vector("v_lshlrev_b32", 15, [128 + u32::trailing_zeros(stride), 256, 0]);
        // v[16:19] = b, a.
        let data = [v_mov(16, 256 + 6), v_mov(17, 256 + 7), v_mov(18, 256 + 4), v_mov(19, 256 + 5)];
        let write =
            if two { second_data(ds(name, 15, 16, 0, first | second << 8), 18) } else { ds(name, 15, 16, 0, first) };
        let code = [&filled()[..], &address, &data, &write, &[WAIT], &ds("ds_read_b128", 14, 0, 10, 0)].concat();
        let after = run(&code, &lanes);
        for (l, x) in lanes.iter().enumerate() {
            let data = [x.b.to_le_bytes(), x.a.to_le_bytes()].concat();
            let base = l * stride as usize;
            let mut put = |offset: u32, from: &[u8]| {
                image[base + (offset * unit) as usize..][..from.len()].copy_from_slice(from);
            };
            put(first, &data[..bytes]);
            if two {
                put(second, &data[8..8 + bytes]);
            }
        }
        for (l, found) in after.v.iter().enumerate() {
            assert_eq!(found[..], words(&image[16 * l..][..16]), "{name}, lane {l}");
        }
    }
}

/// Sixteen lanes read a matrix of sixteen columns, some lanes a row, and get a column each: the manual's "four consecutive values" of
/// two bytes, eight of one.
#[test]
pub fn transposing_reads() {
    for (name, bytes) in [("ds_read_b64_tr_b16", 2), ("ds_read_b64_tr_b8", 1)] {
        let (lanes, image) = readers(bytes as u64, 8);
        let after = run(&[&filled()[..], &ds(name, 15, 0, 10, 8)].concat(), &lanes);
        let rows_in_group = 8 / bytes;
        let lanes_in_row = 16 / rows_in_group;
        for group in 0..4 {
            let rows: Vec<Vec<u8>> = (0..rows_in_group)
                .map(|row| {
                    let of = (0..lanes_in_row).map(|i| lanes[16 * group + lanes_in_row * row + i].c as usize + 8);
                    of.flat_map(|at| image[at..at + 8].to_vec()).collect()
                })
                .collect();
            for column in 0..16 {
                let expected: Vec<u8> = rows.iter().flat_map(|row| row[column * bytes..][..bytes].to_vec()).collect();
                assert_eq!(after.v[16 * group + column][..2], words(&expected), "{name}, group {group}, {column}");
            }
        }
    }
}
