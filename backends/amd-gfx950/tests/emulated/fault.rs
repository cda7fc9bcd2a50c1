//! What a host sees when something is wrong: one clear line, never a crash.

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Module, Queue},
    kernel::{Argument, Kernel},
};

use tokenspeed_backend_api::{abi::TS_ERR_OUT_OF_MEMORY, backend::ArenaKind};

use crate::{
    gemm::{Case, Shape},
    support::{backend_device, configure, device, heal, report},
};

/// A kernel that is told of more rows than its buffer has.
#[test]
fn out_of_bounds_is_reported_with_its_place() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let mut case = Case::new(&device, Shape { m: 8, n: 64, k: 64 }, 4, 1);
    case.shape.m = 40;
    let queue = Queue::new(&device).unwrap();
    case.launch(&kernel, &queue).unwrap();
    let line = queue.synchronize().unwrap_err().to_string();
    assert!(line.contains("hipErrorIllegalAddress"), "{line}");
    let report = report(device.hip);
    for word in ["kernel gemm", "out of bounds", "past the end of a", "global_", "work-group", "lane"] {
        assert!(report.contains(word), "{word}: {report}");
    }
    // Sticky until the device is reset, as on hardware.
    assert!(Buffer::new(&device, 16).is_err());
    heal(device.hip);
    Buffer::new(&device, 16).unwrap();
}

/// Operands that nobody wrote.
#[test]
fn uninitialised_memory_is_reported_where_it_matters() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let mut case = Case::new(&device, Shape { m: 64, n: 64, k: 64 }, 4, 1);
    case.w = Buffer::new(&device, 64 * 64 * 2).unwrap();
    let queue = Queue::new(&device).unwrap();
    case.launch(&kernel, &queue).unwrap();
    queue.synchronize().unwrap_err();
    let text = report(device.hip);
    assert!(text.contains("uninitialised data stored") && text.contains("global_store"), "{text}");
    heal(device.hip);
}

/// Asynchronous work has not happened before somebody waits for it.
#[test]
fn results_are_not_there_before_the_wait() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let case = Case::new(&device, Shape { m: 4, n: 16, k: 16 }, 4, 1);
    let queue = Queue::new(&device).unwrap();
    case.launch(&kernel, &queue).unwrap();
    // The stream does not wait for the default stream, and a copy there does not wait for it.
    assert!(case.check(false).is_err());
    queue.synchronize().unwrap();
    case.check(false).unwrap();
}

#[test]
fn damaged_code_objects_are_refused() {
    let Some((device, manifest)) = device() else { return };
    let entry = manifest.find("gemm_bf16_f32_64x64x64").unwrap();
    let good = manifest.code(entry).unwrap();
    Module::load(&device, &good).unwrap();
    let refused = |bytes: &[u8]| Module::load(&device, bytes).unwrap_err().to_string();
    let line = refused(b"not a code object");
    assert!(line.contains("hipErrorInvalidImage") && !line.contains('\n'), "{line}");
    let mut other = good.clone();
    // e_flags: another processor.
    other[48] = 0x4c;
    assert!(refused(&other).contains("hipErrorInvalidImage"));
    // Metadata cut short in place.
    let note = good.windows(6).position(|w| w == b"AMDGPU").unwrap();
    let mut other = good.clone();
    other[note + 8..note + 40].fill(0xc1);
    assert!(refused(&other).contains("hipErrorInvalidImage"));
    let line = Module::load(&device, &good).unwrap().function("nothing").unwrap_err().to_string();
    assert!(line.contains("hipModuleGetFunction") && line.contains("hipErrorNotFound"), "{line}");
}

#[test]
fn a_file_that_differs_from_its_manifest_is_refused() {
    let Some((device, mut manifest)) = device() else { return };
    let name = manifest.kernels[0].name.clone();
    manifest.kernels[0].sha256 = "00".repeat(32);
    let line = Kernel::load(&device, &manifest, &name).unwrap_err().to_string();
    assert!(line.contains("not what manifest.json describes") && line.contains(&name), "{line}");
}

#[test]
fn impossible_launches_are_refused() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let mut kernel = Kernel::load(&device, &manifest, "reduce").unwrap();
    let buffer = Buffer::with(&device, &[0; 64]).unwrap();
    let queue = Queue::new(&device).unwrap();
    let arguments = [
        ("x", Argument::Pointer(buffer.address())),
        ("out", Argument::Pointer(buffer.address())),
        ("n", Argument::I32(1)),
    ];
    let good = kernel.entry.clone();
    for (block, lds) in [(2048, 32), (256, 200 << 10)] {
        (kernel.entry.block, kernel.entry.lds_bytes) = (block, lds);
        // SAFETY: refused before anything runs.
        let line = unsafe { kernel.launch(&queue, [1, 1, 1], &arguments) }.unwrap_err().to_string();
        assert!(line.contains("hipErrorInvalidConfiguration") && line.contains("reduce"), "{line}");
    }
    kernel.entry = good;
    // SAFETY: one value in, five out.
    unsafe { kernel.launch(&queue, [1, 1, 1], &arguments) }.unwrap();
    queue.synchronize().unwrap();
}

/// More than the device has is out of memory to the host, in one line with what is asked for and what is left; and no more than that:
/// the device goes on, with nothing lost.
#[test]
fn memory_that_is_not_there_is_refused() {
    let Some((_backend, device)) = backend_device(&[]) else { return };
    let first = device.arena_alloc(ArenaKind::Cache, 1 << 20).unwrap();
    for _ in 0..2 {
        let error = device.arena_alloc(ArenaKind::Weights, 289 << 30).unwrap_err();
        assert_eq!(error.code, TS_ERR_OUT_OF_MEMORY);
        let line = error.to_string();
        // 288 GiB but for the first arena.
        for word in [
            "310311387136 bytes of device memory",
            "309236596736 are free",
            "hipMalloc",
            "device 0",
            "hipErrorOutOfMemory",
        ] {
            assert!(line.contains(word) && !line.contains('\n'), "no {word:?} in {line}");
        }
    }
    device.write(&first, 0, &[7; 64]).unwrap();
    let second = device.arena_alloc(ArenaKind::Weights, 1 << 30).unwrap();
    device.write(&second, (1 << 30) - 64, &[9; 64]).unwrap();
    let mut found = [0; 64];
    device.read(&first, 0, &mut found).unwrap();
    assert_eq!(found, [7; 64]);
}
