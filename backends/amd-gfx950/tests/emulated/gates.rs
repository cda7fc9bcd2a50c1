//! Gates on what was compiled: nothing spills, nothing is too large, arguments lie where launches put them, no kernel loses occupancy;
//! and the build's own gate refuses what it should.
//!
//! `occupancy.txt` is the least that each kernel has to keep: waves per SIMD and work-groups per compute unit, which is what registers
//! and LDS are limited for. Rejected: limits of registers and bytes: most changes of them cost nothing, so that the list would be renewed with
//! every change of a kernel and read by nobody.

use std::{collections::BTreeMap, process::Command};

use tokenspeed_amd_gfx950::kernel::{Entry, Manifest};

use crate::support::{device, kernels_folder};

/// LDS of a compute unit.
const LDS_BYTES: u32 = 163_840;

/// Kernels that ship; `None`, with a word about it, without kernels.
fn shipped() -> Option<Vec<Entry>> {
    device()?;
    // Reading it compares every argument's place with what a launch makes.
    let manifest = Manifest::read(&kernels_folder()).unwrap();
    Some(manifest.kernels.into_iter().filter(|k| k.group == "shipped").collect())
}

#[test]
fn nothing_that_ships_spills_or_is_too_large() {
    let Some(kernels) = shipped() else { return };
    assert!(kernels.len() > 300, "{}", kernels.len());
    for k in &kernels {
        let spilt = [k.vgpr_spill_count, k.sgpr_spill_count, k.private_segment_fixed_size];
        assert_eq!(spilt, [0; 3], "{}: spilt vector and scalar registers, bytes of scratch", k.name);
        assert!(k.lds_bytes + k.group_segment_fixed_size <= LDS_BYTES, "{}: {} bytes of LDS", k.name, k.lds_bytes);
        // 512 registers of a lane are shared by all waves of a SIMD; a wave has at most all of them.
        let registers = k.vgpr_count.max(1).next_multiple_of(8);
        assert!(registers * k.waves_per_simd <= 512 && (1..=8).contains(&k.waves_per_simd), "{}", k.name);
        assert!(k.groups_per_unit * k.lds_bytes <= LDS_BYTES && k.groups_per_unit > 0, "{}", k.name);
    }
}

/// What a kernel has to keep, of one that is not in the list: all that a compute unit has.
fn most(k: &Entry) -> [u32; 2] {
    [8, 32 / (k.block / 64)]
}

/// Lines of the list: kernel, waves per SIMD, work-groups per compute unit.
fn listed() -> BTreeMap<&'static str, [u32; 2]> {
    let lines = include_str!("occupancy.txt").lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &'static str| {
        let [name, waves, groups] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        (name, [waves.parse().unwrap(), groups.parse().unwrap()])
    };
    lines.map(entry).collect()
}

/// Lines that are not kept, as they would have to be for these kernels.
fn losses(kernels: &[Entry], listed: &BTreeMap<&str, [u32; 2]>) -> Vec<String> {
    let lost = |k: &&Entry| {
        let [waves, groups] = listed.get(k.name.as_str()).copied().unwrap_or(most(k));
        k.waves_per_simd < waves || k.groups_per_unit < groups
    };
    let line = |k: &Entry| format!("{} {} {}", k.name, k.waves_per_simd, k.groups_per_unit);
    kernels.iter().filter(lost).map(line).collect()
}

#[test]
fn no_kernel_loses_occupancy() {
    let Some(mut kernels) = shipped() else { return };
    let listed = listed();
    let found = losses(&kernels, &listed);
    assert!(
        found.is_empty(),
        "fewer waves or work-groups than `occupancy.txt` says; if that is meant:\n{}",
        found.join("\n")
    );
    let gone: Vec<_> = listed.keys().filter(|name| kernels.iter().all(|k| k.name != **name)).collect();
    assert!(gone.is_empty(), "no such kernels: {gone:?}");
    // One wave less is found, in the list or not.
    for name in ["kda_decode_f32", "row_gather"] {
        let k = kernels.iter_mut().find(|k| k.name == name).unwrap();
        k.waves_per_simd -= 1;
    }
    assert_eq!(losses(&kernels, &listed).len(), 2);
}

/// `gate` of `kernels/toolchain.py`, and `metadata_of` in front of it: what an assembly says that spills, or wants scratch, or too much LDS,
/// or has its arguments elsewhere, is refused, each with its reason. The script prints a line per input.
#[test]
fn the_build_refuses_what_spills_or_is_laid_out_otherwise() {
    let Some(python) = std::env::var_os("TOKENSPEED_KERNELS_PYTHON") else {
        return eprintln!("not run: TOKENSPEED_KERNELS_PYTHON is not set; `cargo xtask test` sets it");
    };
    let script = r#"
import toolchain

TEXT = """	.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count:     {agpr_count}
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         {n_offset}
        .size:           {n_size}
        .value_kind:     by_value
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .offset:         32
        .size:           4
        .value_kind:     hidden_block_count_x
    .group_segment_fixed_size: {group_segment_fixed_size}
    .kernarg_segment_size: 288
    .max_flat_workgroup_size: 256
    .private_segment_fixed_size: {private_segment_fixed_size}
    .sgpr_count:     16
    .sgpr_spill_count: {sgpr_spill_count}
    .vgpr_count:     24
    .vgpr_spill_count: {vgpr_spill_count}
"""
GOOD = dict(agpr_count=0, n_offset=8, n_size=4, group_segment_fixed_size=0, private_segment_fixed_size=0, sgpr_spill_count=0,
            vgpr_spill_count=0)


def says(shared, arguments, **changes):
    numbers, found = toolchain.metadata_of(TEXT.format(**{**GOOD, **changes}))
    try:
        toolchain.gate(numbers, found, toolchain.layout(arguments), shared)
    except RuntimeError as error:
        return str(error)
    return "taken"


ARGUMENTS = [("x", "*fp32"), ("n", "i32")]
LIMIT = 163840
print(says(LIMIT, ARGUMENTS))
print(says(LIMIT - 16, ARGUMENTS, group_segment_fixed_size=16))
print(says(0, ARGUMENTS, vgpr_spill_count=3))
print(says(0, ARGUMENTS, sgpr_spill_count=1))
print(says(0, ARGUMENTS, private_segment_fixed_size=64))
print(says(LIMIT + 1, ARGUMENTS))
print(says(LIMIT, ARGUMENTS, group_segment_fixed_size=16))
print(says(0, ARGUMENTS, n_offset=12))
print(says(0, ARGUMENTS, n_size=8))
print(says(0, [("n", "i32"), ("x", "*fp32")]))
print(says(0, ARGUMENTS[:1]))
print(says(0, ARGUMENTS, vgpr_spill_count=1, private_segment_fixed_size=4))
"#;
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let done = Command::new(python).args(["-B", "-c", script]).current_dir(kernels).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let said = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "taken",
        "taken",
        "vgpr_spill_count = 3",
        "sgpr_spill_count = 1",
        "private_segment_fixed_size = 64",
        "163841 bytes of LDS",
        "163856 bytes of LDS",
        "arguments at [(0, 8), (12, 4), (16, 8), (24, 8)], the launcher puts them at [(0, 8), (8, 4), (16, 8), (24, 8)]",
        "arguments at [(0, 8), (8, 8), (16, 8), (24, 8)], the launcher puts them at [(0, 8), (8, 4), (16, 8), (24, 8)]",
        "arguments at [(0, 8), (8, 4), (16, 8), (24, 8)], the launcher puts them at [(0, 4), (8, 8), (16, 8), (24, 8)]",
        "arguments at [(0, 8), (8, 4), (16, 8), (24, 8)], the launcher puts them at [(0, 8), (8, 8), (16, 8)]",
        "vgpr_spill_count = 1; private_segment_fixed_size = 4",
    ];
    assert_eq!(lines, expected);
}
