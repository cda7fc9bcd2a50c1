//! Every instruction of every shipped object has a second source of its meaning, or is named as having none.
//!
//! Second sources are the tests beside this one, which run here once more while what they run is noted, and the probes, compiled
//! kernels that are compared with f64 (`tests/emulated/probe.rs`). What has neither must stand in the README's paragraph "No second
//! source". Matrix instructions count with their formats and need a probe: their lane maps are the compiler's to show. Rejected: a list
//! of what is tested, kept by hand beside the tests.
//!
//! Needs `TOKENSPEED_KERNELS`, which `cargo xtask test` sets; says so and does nothing without.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use amdhip64::{
    code::Object,
    isa::{Encoding, Form, Inst, all_tables},
    machine::Memory,
};

use crate::{bench, buffer, compare, control, convert, divide, float, integer, lanes, lds, memory, scalar};

/// Formats of f8f6f4 operands by their codes.
const FORMATS: [&str; 5] = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"];

/// What has to be known to execute an instruction: its opcode, a matrix instruction's formats and bytes of scales, and what changes any opcode's operands
/// or result.
pub fn keys(inst: &Inst) -> Vec<String> {
    let name = inst.def.name;
    let mut out = vec![match inst.encoding {
        Encoding::Mai if name.contains("f8f6f4") => {
            let formats = format!("{name} of {} and {}", FORMATS[inst.f.cbsz as usize], FORMATS[inst.f.blgp as usize]);
            // Which byte of its register is the scale: a bit each of `op_sel` and `op_sel_hi` per factor.
            let [a, b] = [inst.f.scale_sel & 3, inst.f.scale_sel >> 2];
            if name.contains("scale") { format!("{formats}, scale bytes {a} and {b}") } else { formats }
        }
        Encoding::Mubuf if inst.f.lds => format!("{name} lds"),
        _ => name.to_string(),
    }];
    let mut also = |there: bool, what: &str| out.extend(there.then(|| what.to_string()));
    also(matches!(inst.form, Form::Sdwa { .. }), "SDWA");
    also(matches!(inst.form, Form::Dpp { .. }), "DPP");
    also(inst.f.clamp, &format!("clamp of {name}"));
    also(inst.f.omod != 0, &format!("output scaling of {name}"));
    // A negated or absolute operand of a packed instruction has fields of its own.
    let float = inst.encoding != Encoding::Vop3p;
    also(float && inst.s.iter().any(|s| s.neg), "negation");
    also(float && inst.s.iter().any(|s| s.abs), "magnitude");
    also(inst.s.iter().any(|s| s.sext), "sign-extended SDWA");
    out
}

/// Is only to be shown by a compiler's kernel.
fn wants_probe(key: &str) -> bool {
    key.starts_with("v_mfma") || key.starts_with("v_smfma")
}

/// Keys of a group's objects: how often, and in which kernel first.
fn used(group: &str) -> Option<BTreeMap<String, (usize, String)>> {
    let Some(folder) = std::env::var_os("TOKENSPEED_KERNELS").map(PathBuf::from) else {
        eprintln!("not run: TOKENSPEED_KERNELS is not set; `cargo xtask test` sets it");
        return None;
    };
    let folder = folder.join("amd-gfx950");
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let mut out = BTreeMap::new();
    let text = |kernel: &serde_json::Value, member: &str| kernel[member].as_str().unwrap().to_string();
    for entry in manifest["kernels"].as_array().unwrap().iter().filter(|k| text(k, "group") == group) {
        let bytes = std::fs::read(folder.join(text(entry, "file"))).unwrap();
        let object = Object::load(&bytes, &Memory::default()).unwrap();
        for inst in object.kernels.values().flat_map(|kernel| &kernel.code) {
            for key in keys(inst) {
                out.entry(key).or_insert_with(|| (0, text(entry, "name"))).0 += 1;
            }
        }
    }
    assert!(out.len() > 50, "{group}: {out:?}");
    Some(out)
}

/// What the README says has no second source: names, `*` for anything.
fn admitted() -> Vec<String> {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("**No second source**").expect("the paragraph");
    let paragraph = rest.split("\n\n").next().unwrap_or_default();
    paragraph.split('`').skip(1).step_by(2).flat_map(|text| text.split('/')).map(str::to_string).collect()
}

fn matches(pattern: &str, key: &str) -> bool {
    let name = key.split(' ').next().unwrap_or(key);
    match pattern.split_once('*') {
        Some((start, end)) => name.len() >= pattern.len() - 1 && name.starts_with(start) && name.ends_with(end),
        None => pattern == name,
    }
}

/// Runs the tests of the other files.
fn tested() -> BTreeSet<String> {
    let tests: &[fn()] = &[
        buffer::loads,
        buffer::loads_into_lds,
        buffer::stores,
        compare::classes,
        compare::every_condition_of_every_type,
        control::branches,
        control::hints,
        convert::doubles,
        convert::from_f16_bf16_and_bytes,
        convert::overflows,
        convert::scaled_by_an_exponent,
        convert::sub_dwords,
        convert::to_and_from_fp8,
        convert::to_bf16_and_f16,
        convert::whole_numbers,
        divide::quotients,
        float::doubles,
        float::functions,
        float::mixed_multiply_adds,
        float::modifiers,
        float::pairs,
        float::sums_products_and_choices,
        float::with_constants_and_powers,
        integer::carries,
        integer::of_64_bits,
        integer::one_source,
        integer::three_sources,
        integer::truth_tables,
        integer::saturation,
        integer::two_sources,
        lanes::accumulators,
        lanes::dpp_controls,
        lanes::permutations,
        lanes::rows_change_places,
        lanes::single_lanes,
        lds::transposing_reads,
        lds::wide_accesses,
        memory::atomics_in_lds,
        memory::atomics_in_memory,
        memory::global_widths,
        memory::two_places_of_lds,
        memory::widths_of_lds,
        scalar::compares,
        scalar::exec_from_masks,
        scalar::immediates,
        scalar::loads,
        scalar::one_source,
        scalar::single_bits,
        scalar::two_sources,
    ];
    tests.iter().for_each(|test| test());
    bench::has_run()
}

#[test]
fn every_shipped_instruction_has_a_second_source() {
    let (Some(shipped), Some(probes)) = (used("shipped"), used("probe")) else { return };
    let (tested, admitted) = (tested(), admitted());
    let sourced = |key: &str| probes.contains_key(key) || !wants_probe(key) && tested.contains(key);
    let missing: Vec<String> = shipped
        .iter()
        .filter(|(key, _)| !sourced(key) && !admitted.iter().any(|pattern| matches(pattern, key)))
        .map(|(key, (count, kernel))| format!("{count:6}  {key}, in {kernel}"))
        .collect();
    assert!(
        missing.is_empty(),
        "neither a semantics test nor a probe, nor an entry in the README's \"No second source\":\n{}",
        missing.join("\n")
    );
    // And nothing is admitted there that is not an instruction.
    let names: BTreeSet<&str> = all_tables().iter().flat_map(|(_, defs)| defs.iter().map(|d| d.name)).collect();
    let unknown: Vec<_> = admitted.iter().filter(|p| !names.iter().any(|name| matches(p, name))).collect();
    assert!(unknown.is_empty(), "the README names no instruction: {unknown:?}");
    // The list is whole: what is executed and does not ship has a source or stands there, too.
    let sourced: BTreeSet<&str> =
        tested.iter().chain(probes.keys()).map(|key| key.split(' ').next().unwrap_or(key)).collect();
    let silent: Vec<_> =
        names.iter().filter(|n| !sourced.contains(**n) && !admitted.iter().any(|p| matches(p, n))).collect();
    assert!(silent.is_empty(), "no second source, and the README does not say so: {silent:?}");
}

/// The matrix forms, transposing reads and loads into LDS that are shipped are those that probes show.
#[test]
fn probes_show_what_ships() {
    let (Some(shipped), Some(probes)) = (used("shipped"), used("probe")) else { return };
    let shown =
        |key: &&String| wants_probe(key) || key.contains("_tr_") || key.contains("_lds_") || key.ends_with(" lds");
    let wanted: Vec<_> = shipped.keys().filter(shown).collect();
    assert!(wanted.len() >= 8, "{wanted:?}");
    let missing: Vec<_> = wanted.into_iter().filter(|key| !probes.contains_key(*key)).collect();
    assert!(missing.is_empty(), "no probe contains {missing:?}");
}
