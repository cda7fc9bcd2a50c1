//! The decoder against LLVM's assembler: what is decoded and printed must assemble to the same bits.
//!
//! Needs `TOKENSPEED_KERNELS` and `TOKENSPEED_KERNELS_PYTHON`, which `cargo xtask test` sets; says so and does nothing
//! without. The assembler is the one of the pinned kernel compiler.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use amdhip64::{
    code::Object,
    isa::{Encoding, Inst, all_tables, decode, print},
    machine::Memory,
};

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).map(PathBuf::from);
    if value.is_none() {
        eprintln!("not run: {name} is not set; `cargo xtask test` sets it");
    }
    value
}

/// Each line's dwords, `None` where LLVM refuses the line.
fn assemble(python: &Path, lines: &[String]) -> Vec<Option<Vec<u32>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/assemble.py");
    let mut command = Command::new(python);
    // Refusals are part of the answer; LLVM's words about each would drown a test's output.
    command.arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the kernels' python");
    let mut stdin = child.stdin.take().unwrap();
    let text = lines.join("\n");
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(out.status.success());
    let words = |line: &str| line.split(' ').map(|w| u32::from_str_radix(w, 16)).collect::<Result<Vec<u32>, _>>().ok();
    let found: Vec<_> = String::from_utf8(out.stdout).unwrap().lines().map(words).collect();
    assert_eq!(found.len(), lines.len());
    found
}

#[test]
fn every_instruction_of_every_object_is_llvms() {
    let (Some(folder), Some(python)) = (variable("TOKENSPEED_KERNELS"), variable("TOKENSPEED_KERNELS_PYTHON")) else {
        return;
    };
    let (mut lines, mut words) = (Vec::new(), Vec::new());
    for file in std::fs::read_dir(folder.join("amd-gfx950")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "hsaco") {
            continue;
        }
        let object = Object::load(&std::fs::read(&path).unwrap(), &Memory::default()).unwrap();
        for kernel in object.kernels.values() {
            for (_, dwords, text) in kernel.listing() {
                lines.push(text);
                words.push(dwords.to_vec());
            }
        }
    }
    assert!(lines.len() > 1000);
    for ((line, words), found) in lines.iter().zip(&words).zip(assemble(&python, &lines)) {
        assert_eq!(found.as_ref(), Some(words), "{line}");
    }
}

/// Whatever a damaged file says, loading it ends with an error or with kernels that decode, never with a panic.
#[test]
fn corrupted_objects_never_panic() {
    let Some(folder) = variable("TOKENSPEED_KERNELS") else { return };
    let good = std::fs::read(folder.join("amd-gfx950/reduce.hsaco")).unwrap();
    let (mut random, mut refused) = (Random(1), 0);
    for _ in 0..600 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.next() % 4 {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(if random.next() % 8 == 0 { random.next() as usize % bytes.len() } else { bytes.len() });
        let memory = Memory::default();
        match Object::load(&bytes, &memory) {
            Ok(object) => object.unload(&memory),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as u32
    }
}

/// Random dwords with an opcode in place. Registers are kept even, and at most one source is scalar, so that most of what
/// comes out is legal.
fn random_words(encoding: Encoding, op: u32, random: &mut Random) -> Vec<u32> {
    let even = !0x0101_0101;
    let (a, b, c) = (random.next(), random.next() & even, random.next());
    // One nine-bit source of any kind, the others vector registers.
    let sources = |first: u32| first & 0x1ff | 0x100 << 9 | (b & 0xfe) << 9 | 0x100 << 18 | (b >> 8 & 0xfe) << 18;
    let vector = |x: u32| 0x100 | x & 0xfe;
    match encoding {
        Encoding::Sop2 => vec![0b10 << 30 | op << 23 | a & 0x3e_0000 | a & 0x3e3e, c],
        Encoding::Sopk => vec![0b1011 << 28 | op << 23 | a & 0x3e_0000 | a & 0xffff, c],
        Encoding::Sop1 => vec![0b1_0111_1101 << 23 | a & 0x3e_0000 | op << 8 | a & 0x3e, c],
        Encoding::Sopc => vec![0b1_0111_1110 << 23 | op << 16 | a & 0x3e3e, c],
        Encoding::Sopp => vec![0b1_0111_1111 << 23 | op << 16 | a & 0xf],
        Encoding::Smem => vec![0b11_0000 << 26 | op << 18 | 1 << 17 | (a & 0x30) << 6 | a >> 8 & 0x1e, b & 0xfffff],
        Encoding::Vop1 if a & 7 == 0 => vec![0x3f << 25 | (b & 0xfe) << 17 | op << 9 | 250, dpp(c)],
        Encoding::Vop1 if a & 7 == 1 => vec![0x3f << 25 | (b & 0xfe) << 17 | op << 9 | 249, c & 0x0007_06fe | 6 << 24],
        Encoding::Vop1 if a & 7 == 2 => vec![0b11_0100 << 26 | (op + 320) << 16 | b & 0xfe, vector(c)],
        Encoding::Vop1 => vec![0x3f << 25 | (b & 0xfe) << 17 | op << 9 | vector(a >> 3), c],
        Encoding::Vop2 if a & 7 == 0 => vec![op << 25 | (b & 0xfe) << 17 | (b >> 8 & 0xfe) << 9 | 250, dpp(c)],
        Encoding::Vop2 if a & 7 == 1 => {
            vec![op << 25 | (b & 0xfe) << 17 | (b >> 8 & 0xfe) << 9 | 249, c & 0x0707_06fe]
        }
        Encoding::Vop2 if a & 7 == 2 => {
            vec![0b11_0100 << 26 | (op + 256) << 16 | (a >> 8 & 0x3e) << 8 | b & 0xfe, sources(c & 0xfe | 0x100)]
        }
        Encoding::Vop2 => vec![op << 25 | (b & 0xfe) << 17 | (b >> 8 & 0xfe) << 9 | vector(a >> 3), c],
        Encoding::Vopc if a & 1 == 0 => vec![0b11_0100 << 26 | op << 16 | b & 0x3e, sources(c & 0xfe | 0x100)],
        Encoding::Vopc => vec![0x3e << 25 | op << 17 | (b & 0xfe) << 9 | vector(a >> 3), c],
        // Lane numbers are scalars, and so is what is written into a lane.
        Encoding::Vop3 if op == 649 => vec![0b11_0100 << 26 | op << 16 | b & 0x3e, vector(c) | (c >> 16 & 0x3e) << 9],
        Encoding::Vop3 if op == 650 => vec![0b11_0100 << 26 | op << 16 | b & 0xfe, 129 | (c >> 16 & 0x3e) << 9],
        Encoding::Vop3 => {
            let modifiers = if a & 3 == 0 { (a >> 8 & 7) << 29 } else { 0 };
            // Three of these opcodes have a scalar destination in bits 8 to 14.
            let scalar = if matches!(op, 480 | 488 | 489) { (a >> 16 & 0x3e) << 8 } else { 0 };
            vec![0b11_0100 << 26 | op << 16 | scalar | b & 0xfe, modifiers | sources(c & 0xfe | 0x100)]
        }
        Encoding::Vop3p => {
            // Dot products have no choice of halves.
            let halves = if matches!(op, 26 | 35) { 0 } else { a & 0x3800 };
            vec![0x1a7 << 23 | op << 16 | halves | 0x4000 | b & 0xfe, 3 << 27 | sources(c & 0xfe | 0x100)]
        }
        Encoding::Mai if op & 0x100 != 0 => {
            let sources = vector(c) | vector(c >> 8) << 9 | vector(c >> 16) << 18;
            let formats = if a & 1 == 0 { (0, 0) } else { (4, 4) };
            vec![
                0xd3ac << 16 | a & 0x1800,
                (a >> 16 & 3) << 27 | vector(b) | vector(b >> 8) << 9,
                0x1a7 << 23 | (op & 0x7f) << 16 | 1 << 11 | formats.0 << 8 | a & 0x8000 | b >> 16 & 0xfc,
                (a >> 20 & 3) << 27 | formats.1 << 29 | sources,
            ]
        }
        Encoding::Mai => {
            let sources = vector(c) | vector(c >> 8) << 9 | vector(c >> 16) << 18;
            vec![0x1a7 << 23 | op << 16 | a & 0x8000 | b & 0xfc, (a & 3) << 27 | sources]
        }
        Encoding::Ds => vec![0b11_0110 << 26 | op << 17 | (a & 1) << 25 | a >> 8 & 0xfffe, b],
        Encoding::Mubuf => {
            let scalar = if a >> 31 != 0 { 128 } else { b >> 24 & 0x3e };
            vec![0b11_1000 << 26 | op << 18 | a & 0x3_dfff & !0x2000 | 0x1000, b & 0x001c_fefe | scalar << 24]
        }
        Encoding::Global => {
            let base = if a & 1 == 0 { 0x7f } else { a >> 4 & 0x3e };
            vec![
                0b11_0111 << 26 | op << 18 | 2 << 14 | (a >> 8 & 0x203_0fff) & !(7 << 18),
                b & 0xff80_fefe | base << 16,
            ]
        }
    }
}

/// A second dword that moves lanes.
fn dpp(c: u32) -> u32 {
    let controls = [0x1b, 0x101, 0x112, 0x123, 0x130, 0x134, 0x138, 0x13c, 0x140, 0x141, 0x142, 0x143, 0x155];
    c & 0xff08_00fe | controls[(c >> 9) as usize % controls.len()] << 8
}

fn same(a: &Inst, b: &Inst) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

/// LLVM's bits must decode to the same instruction, and differ from ours only where a bit means nothing.
fn compare(words: &[u32], inst: &Inst, found: &[u32]) -> Result<(), String> {
    if found.len() != words.len() {
        return Err("another length".into());
    }
    let again = decode(found).map_err(|e| e.to_string())?;
    if !same(inst, &again) {
        return Err("means something else".into());
    }
    for (at, (ours, theirs)) in words.iter().zip(found).enumerate() {
        for bit in (0..32).filter(|bit| (ours ^ theirs) >> bit & 1 != 0) {
            let mut flipped = words.to_vec();
            flipped[at] ^= 1 << bit;
            if !decode(&flipped).map_or(true, |other| same(inst, &other)) {
                return Err(format!("dword {at} bit {bit} means something"));
            }
        }
    }
    Ok(())
}

/// For every opcode of every table: random fields. LLVM's bits may differ from ours only where a bit means nothing, and
/// every opcode must be accepted at least once.
#[test]
fn random_encodings_are_llvms() {
    let Some(python) = variable("TOKENSPEED_KERNELS_PYTHON") else { return };
    let mut random = Random(950);
    let (mut samples, mut lines) = (Vec::new(), Vec::new());
    for (encoding, defs) in all_tables() {
        for def in defs {
            for _ in 0..10 {
                let mut words = random_words(encoding, u32::from(def.op), &mut random);
                if let Ok(inst) = decode(&words) {
                    words.truncate(inst.words as usize);
                    lines.push(print(&inst));
                    samples.push((format!("{encoding:?} {}", def.name), words, inst));
                }
            }
        }
    }
    let mut accepted = std::collections::BTreeMap::new();
    let mut problems = Vec::new();
    for ((name, words, inst), (line, found)) in samples.iter().zip(lines.iter().zip(assemble(&python, &lines))) {
        let count: &mut u32 = accepted.entry(name.clone()).or_default();
        let Some(found) = found else { continue };
        *count += 1;
        if let Err(problem) = compare(words, inst, &found) {
            problems.push(format!("{line}: {words:08x?}, LLVM has {found:08x?}: {problem}"));
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems[..problems.len().min(40)].join("\n"));
    let refused: Vec<_> = accepted.iter().filter(|(_, count)| **count == 0).map(|(name, _)| name).collect();
    assert!(refused.is_empty(), "LLVM accepts none of the samples of {refused:?}");
    let all = all_tables();
    let names =
        all.iter().flat_map(|(encoding, defs)| defs.iter().map(move |def| format!("{encoding:?} {}", def.name)));
    let unseen: Vec<_> = names.filter(|name| !accepted.contains_key(name)).collect();
    assert!(unseen.is_empty(), "opcodes without a decodable sample: {unseen:?}");
}
