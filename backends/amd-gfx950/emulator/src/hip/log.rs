//! Counters of launches as a file: `TOKENSPEED_EMULATOR_COUNTERS=FILE` gets one JSON object per line and launch, appended.
//!
//! | member | meaning |
//! |---|---|
//! | `kernel`, `object` | symbol, and the FNV-1a hash of its code object, hexadecimal: which file it came from |
//! | `grid`, `block`, `registers`, `lds_bytes` | work-groups and lanes per axis, vector registers, LDS of a work-group |
//! | `spills` | registers that the compiler spilt, vector and scalar |
//! | `waves_per_simd`, `groups_per_unit` | what a compute unit holds |
//! | `groups`, `groups_run` | work-groups of the launch, and how many of them ran; the sums below are of those |
//! | `instructions` | wave instructions by class |
//! | `matrix_macs`, `matrix_cycles` | multiply-adds, cycles of matrix units |
//! | `asked_bytes` | that lanes asked for, read and written |
//! | `access_bytes` | lines that each wave access touches, read and written |
//! | `l1_cycles` | of L1 |
//! | `group_bytes` | lines that each work-group touches |
//! | `lds_bytes_moved`, `lds_cycles`, `lds_conflict_cycles` | read and written; cycles, and those that bank conflicts cost |
//! | `line_bytes`, `touched_bytes` | lines and dwords that the **whole** launch touches at all, read and written; see [`crate::machine::Detail`] |
//! | `hbm_bytes` | read and written, where a memory-side cache is modelled ([`crate::machine::SideCache`]) |
//! | `modelled` | microseconds per resource, in total, the resource that decides, and the matrix units' share |
//!
//! Decision: written by hand, six formats of numbers need no JSON library. A file that cannot be written is said once and
//! then forgotten: counting must not end a run.

use std::{
    fmt::Write as _,
    fs::File,
    io::Write as _,
    sync::{Mutex, OnceLock},
};

use crate::{
    code::Kernel,
    isa::CLASSES,
    machine::{Counters, Detail, Dispatch, LINE_BYTES, Mode, Occupancy, RESOURCES, estimate, sampled},
};

/// Names the file.
const VARIABLE: &str = "TOKENSPEED_EMULATOR_COUNTERS";

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|p| !p.is_empty())?;
        let opened = File::options().create(true).append(true).open(&path);
        let said = opened.map_err(|e| eprintln!("gfx950 emulator: {VARIABLE}: {}: {e}", path.to_string_lossy()));
        said.ok().map(Mutex::new)
    })
    .as_ref()
}

/// Whether there is a file to write to.
pub fn wanted() -> bool {
    file().is_some()
}

/// Writes a launch.
pub fn write(kernel: &Kernel, dispatch: &Dispatch, mode: Mode, counters: &Counters) {
    let Some(file) = file() else { return };
    let line = line(kernel, dispatch, mode, counters);
    let mut file = file.lock().unwrap_or_else(|e| e.into_inner());
    if let Err(e) = file.write_all(line.as_bytes()) {
        eprintln!("gfx950 emulator: {VARIABLE}: {e}");
    }
}

/// A launch as one line.
pub fn line(kernel: &Kernel, dispatch: &Dispatch, mode: Mode, c: &Counters) -> String {
    let d = &kernel.descriptor;
    let (registers, lds) = (d.vector_registers as u32, d.lds_bytes + dispatch.dynamic_lds);
    let occupancy = Occupancy::new(registers, dispatch.block.iter().product(), lds);
    let groups: u64 = dispatch.groups.iter().map(|g| u64::from(*g)).product();
    let nothing = Detail::default();
    let detail = c.detail.as_deref().unwrap_or(&nothing);
    let footprint = detail.footprint(dispatch.groups, &sampled(dispatch, mode));
    let e = estimate(c, groups, occupancy, &footprint);
    let mut out = String::from("{");
    let mut member = |name: &str, value: &dyn std::fmt::Display| {
        let comma = if out.len() > 1 { "," } else { "" };
        let _infallible = write!(out, "{comma}\"{name}\":{value}");
    };
    let text = |s: &str| format!("\"{}\"", s.replace(['"', '\\'], "_"));
    let list = |all: &[f64]| format!("[{}]", all.iter().map(f64::to_string).collect::<Vec<_>>().join(","));
    let lines = |n: u64| (n * LINE_BYTES) as f64;
    member("kernel", &text(&kernel.name));
    member("object", &text(&format!("{:016x}", kernel.object)));
    member("grid", &list(&dispatch.groups.map(f64::from)));
    member("block", &list(&dispatch.block.map(f64::from)));
    member("registers", &registers);
    member("lds_bytes", &lds);
    member("spills", &list(&kernel.spills.map(f64::from)));
    member("waves_per_simd", &occupancy.waves_per_simd);
    member("groups_per_unit", &occupancy.groups_per_unit);
    member("groups", &groups);
    member("groups_run", &c.groups);
    let classes = CLASSES.iter().zip(c.instructions).map(|(name, n)| format!("\"{name}\":{n}"));
    member("instructions", &format!("{{{}}}", classes.collect::<Vec<_>>().join(",")));
    member("matrix_macs", &c.matrix_macs);
    member("matrix_cycles", &c.matrix_cycles);
    member("asked_bytes", &list(&[c.global_read_bytes as f64, c.global_write_bytes as f64]));
    member("access_bytes", &list(&detail.access_lines.map(lines)));
    member("l1_cycles", &detail.l1_cycles);
    member("group_bytes", &lines(detail.group_lines));
    member("lds_bytes_moved", &list(&[c.lds_read_bytes as f64, c.lds_write_bytes as f64]));
    member("lds_cycles", &detail.lds_cycles);
    member("lds_conflict_cycles", &detail.lds_conflict_cycles);
    let line = LINE_BYTES as f64;
    member("line_bytes", &list(&[footprint.read_lines * line, footprint.written_lines * line]));
    member("touched_bytes", &list(&[footprint.read_bytes, footprint.written_bytes]));
    if let Some(t) = detail.hbm {
        member("hbm_bytes", &list(&[t.read, t.written].map(lines)));
    }
    let micros = RESOURCES.iter().zip(e.seconds).map(|(name, s)| format!("\"{name}\":{:.4}", s * 1e6));
    let micros = micros.collect::<Vec<_>>().join(",");
    let rest =
        format!("\"total\":{:.4},\"bound\":\"{}\",\"matrix_share\":{:.4}", e.total * 1e6, e.bound, e.matrix_share);
    member("modelled", &format!("{{{micros},{rest}}}"));
    out.push_str("}\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Memory, launch};

    #[test]
    fn a_line_has_the_launch_in_it() {
        // v_mov_b32 v1, 0; s_endpgm
        let kernel = Kernel::bare("k\"", &[0x7e02_0280, 0xbf81_0000], 40).unwrap();
        let dispatch = Dispatch { groups: [100, 3, 1], block: [256, 1, 1], ..Dispatch::default() };
        let mode = Mode { threads: 1, max_steps: 100, detail: true, sample: 2, ..Mode::default() };
        let counters = launch(&kernel, &Memory::default(), None, &dispatch, mode).unwrap();
        let line = line(&kernel, &dispatch, mode, &counters);
        for part in [
            r#""kernel":"k_","object":"0000000000000000","grid":[100,3,1],"block":[256,1,1],"registers":40,"#,
            r#""spills":[0,0],"waves_per_simd":8,"groups_per_unit":8,"groups":300,"groups_run":4,"#,
            r#""branch":0,"wait":16,"#,
            r#""vector":16,"transcendental":0,"matrix":0,"#,
            r#""line_bytes":[0,0],"#,
            r#""bound":"vector","#,
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(line.starts_with('{') && line.ends_with("}}\n") && line.matches('\n').count() == 1);
    }
}
