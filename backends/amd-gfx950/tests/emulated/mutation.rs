//! Seeded bugs in a shipped kernel are caught, each by a named check.
//!
//! The list was written before the checks were tried on it. Each mutation edits machine code in the code object, as a
//! compiler bug or a mistake in hand-written code would look; "caught" means a fault whose words name the kind of mistake.

use tokenspeed_amd_gfx950::kernel::Kernel;

use crate::{
    gemm::{Shape, run},
    support::{configure, device, heal, report},
};

/// `s_nop 0`.
const NOP: u32 = 0xbf80_0000;
/// `s_waitcnt` for nothing.
const WAIT_NOTHING: u32 = 0xbf8c_cf7f;

/// Edits the words of the code that match; returns how many did.
fn edit(code: &mut [u8], f: impl Fn(u32) -> Option<u32>) -> usize {
    let start = text_start(code);
    let mut edited = 0;
    for word in code[start..].chunks_exact_mut(4) {
        let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if let Some(new) = f(old) {
            word.copy_from_slice(&new.to_le_bytes());
            edited += 1;
        }
    }
    edited
}

/// File offset of the executable segment.
fn text_start(code: &[u8]) -> usize {
    let int = |at: usize, len: usize| code[at..at + len].iter().rev().fold(0usize, |all, b| all << 8 | usize::from(*b));
    let (headers, size, count) = (int(32, 8), int(54, 2), int(56, 2));
    let header = (0..count).map(|i| headers + size * i).find(|h| int(*h, 4) == 1 && int(h + 4, 4) & 1 != 0);
    int(header.unwrap() + 8, 8)
}

fn is_wait(word: u32) -> bool {
    word >> 16 == 0xbf8c
}

/// Runs a mutated kernel under several seeds; every run must fail, and the reports must name the mistake.
fn caught(name: &str, words: &[&str], f: impl Fn(u32) -> Option<u32>) {
    let Some((device, manifest)) = device() else { return };
    let entry = manifest.find("gemm_bf16_f32_64x64x64").unwrap();
    let mut code = manifest.code(entry).unwrap();
    assert!(edit(&mut code, f) > 0, "{name}: nothing to edit");
    let kernel = Kernel::from_code(&device, entry.clone(), &code).unwrap();
    for seed in 0..4 {
        configure(device.hip, true, seed);
        let outcome = run(&device, &kernel, Shape { m: 70, n: 64, k: 200 }, seed);
        let text = report(device.hip);
        assert!(outcome.is_err(), "{name}, seed {seed}: not caught");
        assert!(words.iter().any(|w| text.contains(w)), "{name}, seed {seed}: {outcome:?}, report: {text}");
        heal(device.hip);
    }
}

#[test]
fn a_dropped_wait_for_vector_memory() {
    caught("no vmcnt", &["while a DMA load to it is in flight", "a wait is missing"], |w| {
        is_wait(w).then_some(w | 0xc00f)
    });
}

#[test]
fn a_dropped_wait_for_lds() {
    caught("no lgkmcnt", &["a wait is missing"], |w| is_wait(w).then_some(w | 0x0f00));
}

#[test]
fn all_waits_dropped() {
    caught("no waits", &["a wait is missing", "in flight"], |w| is_wait(w).then_some(WAIT_NOTHING));
}

#[test]
fn dropped_barriers() {
    caught("no barriers", &["LDS race", "in flight", "uninitialised"], |w| (w == 0xbf8a_0000).then_some(NOP));
}

/// The first LDS read of each kind 32 bytes off: still inside LDS, wrong numbers.
#[test]
fn a_shifted_lds_read_gives_wrong_numbers() {
    let Some((device, manifest)) = device() else { return };
    let entry = manifest.find("gemm_bf16_f32_64x64x64").unwrap();
    let mut code = manifest.code(entry).unwrap();
    let done = std::cell::Cell::new(false);
    let is_read = |w: u32| w >> 17 == 0xd9fe_0000 >> 17 && !done.replace(true);
    assert_eq!(edit(&mut code, |w| is_read(w).then_some(w ^ 32)), 1);
    let kernel = Kernel::from_code(&device, entry.clone(), &code).unwrap();
    configure(device.hip, true, 0);
    assert!(run(&device, &kernel, Shape { m: 64, n: 64, k: 128 }, 1).is_err());
    heal(device.hip);
}

/// A store that ignores its mask: the bounds check of rows is turned into "always".
#[test]
fn a_dropped_bounds_check() {
    caught("no mask", &["out of bounds", "uninitialised"], |w| {
        // `s_and_saveexec_b64` becomes `s_or_saveexec_b64`: all lanes that ran before run on.
        (w >> 23 == 0x17d && w >> 8 & 0xff == 32).then_some(w & !0xff00 | 33 << 8)
    });
}
