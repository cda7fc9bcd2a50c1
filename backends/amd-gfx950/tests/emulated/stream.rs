//! Streams, events, capture and replay.

use tokenspeed_amd_gfx950::{
    hip::{Buffer, Event, HipError, Queue},
    kernel::Kernel,
};

use crate::{
    gemm::{Case, Shape},
    support::{configure, device},
};

fn hip(e: tokenspeed_amd_gfx950::kernel::LaunchError) -> HipError {
    match e {
        tokenspeed_amd_gfx950::kernel::LaunchError::Hip { error, .. } => error,
        other => panic!("{other}"),
    }
}

/// A replayed graph reads its operands anew and gives the bits of a direct launch.
#[test]
fn a_captured_launch_runs_when_replayed() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let case = Case::new(&device, Shape { m: 5, n: 20, k: 32 }, 4, 3);
    let queue = Queue::new(&device).unwrap();
    let graph = queue.capture(|| case.launch(&kernel, &queue).map_err(hip)).unwrap();
    assert_eq!(graph.nodes().unwrap(), 1);
    queue.synchronize().unwrap();
    assert!(case.check(false).is_err(), "capturing must not run anything");
    let executable = graph.instantiate().unwrap();
    drop(graph);
    for _ in 0..2 {
        queue.replay(&executable).unwrap();
        queue.synchronize().unwrap();
        case.check(false).unwrap();
    }
}

/// A second stream joins a capture through events, and must be joined back.
#[test]
fn captures_span_streams_that_wait_for_each_other() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let cases = [1, 2].map(|seed| Case::new(&device, Shape { m: 3, n: 16, k: 16 }, 4, seed));
    let (first, second) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
    let (fork, join) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    let body = |joins: bool| {
        first.capture(|| {
            cases[0].launch(&kernel, &first).map_err(hip)?;
            fork.record(&first)?;
            second.wait(&fork)?;
            cases[1].launch(&kernel, &second).map_err(hip)?;
            join.record(&second)?;
            if joins { first.wait(&join) } else { Ok(()) }
        })
    };
    let graph = body(true).unwrap();
    assert_eq!(graph.nodes().unwrap(), 2);
    first.replay(&graph.instantiate().unwrap()).unwrap();
    first.synchronize().unwrap();
    cases.iter().for_each(|c| c.check(false).unwrap());
    let line = body(false).unwrap_err().to_string();
    assert!(line.contains("hipErrorStreamCaptureUnjoined"), "{line}");
    // Both streams work as before.
    cases[1].launch(&kernel, &second).unwrap();
    second.synchronize().unwrap();
}

/// Thread-local mode: the capturing thread may not allocate or wait, other threads may.
#[test]
fn capture_restricts_its_own_thread_only() {
    let Some((device, _)) = device() else { return };
    let queue = Queue::new(&device).unwrap();
    let outcome = queue.capture(|| {
        let other = device.clone();
        std::thread::spawn(move || Buffer::new(&other, 64).map(drop)).join().unwrap()?;
        Buffer::new(&device, 64).map(drop)
    });
    let line = outcome.unwrap_err().to_string();
    assert!(line.contains("hipMalloc") && line.contains("hipErrorStreamCaptureUnsupported"), "{line}");
    let line = queue
        .capture::<HipError>(|| Buffer::new(&device, 64).map(drop).or(Ok::<_, HipError>(())))
        .unwrap_err()
        .to_string();
    assert!(line.contains("hipErrorStreamCaptureInvalidated"), "{line}");
    Buffer::new(&device, 64).unwrap();
}

/// Events order streams and can be polled.
#[test]
fn streams_wait_for_events() {
    let Some((device, manifest)) = device() else { return };
    configure(device.hip, true, 0);
    let kernel = Kernel::load(&device, &manifest, "gemm_bf16_f32_64x64x64").unwrap();
    let case = Case::new(&device, Shape { m: 3, n: 16, k: 16 }, 4, 5);
    let (first, second) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
    let event = Event::new(&device).unwrap();
    assert!(event.is_done().unwrap(), "an event that was never recorded has happened");
    case.launch(&kernel, &first).unwrap();
    event.record(&first).unwrap();
    second.wait(&event).unwrap();
    second.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    case.check(false).unwrap();
}
