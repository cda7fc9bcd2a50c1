//! A timeline on top of HIP events: the ABI's values only grow, HIP's events happen once per recording.
//!
//! Each signal records an event of a small pool; the value is reached when that event has happened, which is asked for when
//! somebody wants to know. Rejected: `hipStreamWriteValue`, which many driver configurations lack.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokenspeed_backend_api::sdk::Fault;

use crate::hip::{Device, Event, Queue};

/// A wait that is shorter than a step spins; then it gives the core away between looks.
const SPIN: Duration = Duration::from_millis(2);
/// Pause between looks after that.
const NAP: Duration = Duration::from_micros(50);

/// A value that only grows; an error sticks.
#[derive(Debug)]
pub struct Timeline {
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Reached for certain.
    value: u64,
    /// Last value that was promised.
    promised: u64,
    /// Recorded, oldest first.
    pending: VecDeque<(u64, Event)>,
    /// To be recorded again.
    free: Vec<Event>,
    fault: Option<Fault>,
}

impl Timeline {
    /// At 0.
    pub fn new(device: &Arc<Device>) -> Self {
        Self { device: device.clone(), state: Mutex::default() }
    }

    /// Reaches `value` when what the queue holds now is done. Going back is the host's mistake and refused.
    pub fn signal(&self, queue: &Queue, value: u64) -> Result<(), Fault> {
        let mut state = self.lock();
        if value < state.promised {
            let promised = state.promised;
            return Err(Fault::invalid(format!(
                "event signalled with {value} after {promised}: a timeline only grows"
            )));
        }
        let event = state.free.pop().map_or_else(|| Event::new(&self.device), Ok)?;
        event.record(queue)?;
        state.promised = value;
        state.pending.push_back((value, event));
        Ok(())
    }

    /// The work behind it failed; the first fault stays.
    pub fn fail(&self, fault: Fault) {
        self.lock().fault.get_or_insert(fault);
    }

    /// The value now, or the fault.
    pub fn query(&self) -> Result<u64, Fault> {
        let mut state = self.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        while let Some((value, event)) = state.pending.front() {
            let value = *value;
            match event.is_done() {
                Ok(false) => break,
                Ok(true) => {
                    let (_, event) = state.pending.pop_front().expect("there is a front");
                    state.value = value;
                    state.free.push(event);
                }
                Err(error) => {
                    let fault = Fault::from(error);
                    state.fault = Some(fault.clone());
                    return Err(fault);
                }
            }
        }
        Ok(state.value)
    }

    /// Blocks until `value` is reached, the event fails, or the time is over.
    pub fn wait(&self, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        let start = Instant::now();
        loop {
            let now = self.query()?;
            if now >= value {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited.as_nanos() >= u128::from(timeout_ns) {
                return Err(Fault::timeout(format!("event is at {now}, waited {timeout_ns} ns for {value}")));
            }
            match waited < SPIN {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(NAP),
            }
        }
    }

    /// Later work of the queue waits on the device until `value` is reached, which somebody must have promised already.
    pub fn hold(&self, queue: &Queue, value: u64) -> Result<(), Fault> {
        if self.query()? >= value {
            return Ok(());
        }
        let state = self.lock();
        let Some((_, event)) = state.pending.iter().find(|(promised, _)| *promised >= value) else {
            return Err(Fault::invalid(format!("nobody has signalled {value} yet, only {}", state.promised)));
        };
        Ok(queue.wait(event)?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves a whole state behind: it stays usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
