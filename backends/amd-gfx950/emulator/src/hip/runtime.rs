//! State of the process: memory, devices, handles.
//!
//! Handles are numbers in tables, never addresses: a stale or invented handle is an error, not a crash.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{Status, event::Event, graph::Graph, module::Function, module::Module, settings::Settings, stream::Stream};
use crate::machine::{Counters, Memory, Report};

/// A table of objects by handle.
#[derive(Debug)]
pub struct Table<T>(Mutex<HashMap<usize, Arc<T>>>);

static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);

impl<T> Table<T> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Locks, whatever happened to other holders.
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds an object and returns its handle.
    pub fn add(&self, object: Arc<T>) -> usize {
        let handle = NEXT_HANDLE.fetch_add(16, Ordering::Relaxed);
        self.lock().insert(handle, object);
        handle
    }

    /// The object of a handle.
    pub fn get(&self, handle: usize) -> Result<Arc<T>, Status> {
        self.lock().get(&handle).cloned().ok_or(Status::INVALID_HANDLE)
    }

    /// Removes an object.
    pub fn remove(&self, handle: usize) -> Result<Arc<T>, Status> {
        self.lock().remove(&handle).ok_or(Status::INVALID_HANDLE)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }
}

/// A device.
#[derive(Debug)]
pub struct Device {
    /// Its default stream.
    pub default_stream: Arc<Stream>,
    /// Status of the fault that ended it, 0 if none.
    pub fault: AtomicI32,
    /// Bytes allocated, those of other processes included.
    pub used_bytes: AtomicU64,
    /// Devices whose memory its kernels may touch.
    pub peers: Mutex<HashSet<i32>>,
}

/// The process.
#[derive(Debug)]
pub struct Runtime {
    /// How kernels run.
    pub settings: Settings,
    /// All memory.
    pub memory: Memory,
    /// Devices by ordinal.
    pub devices: Vec<Device>,
    /// Streams.
    pub streams: Table<Stream>,
    /// Events.
    pub events: Table<Event>,
    /// Modules.
    pub modules: Table<Module>,
    /// Functions.
    pub functions: Table<Function>,
    /// Graphs.
    pub graphs: Table<Graph>,
    /// Instantiated graphs.
    pub executables: Table<Graph>,
    /// Host allocations: base to bytes.
    pub host: Mutex<BTreeMap<usize, usize>>,
    report: Mutex<Option<Report>>,
    counters: Mutex<Counters>,
}

thread_local! {
    static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// The process's state, made at first use.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let settings = Settings::from_environment();
        let device = |i| Device {
            default_stream: Arc::new(Stream::new(i, false)),
            fault: AtomicI32::new(0),
            used_bytes: AtomicU64::new(settings.used_bytes),
            peers: Mutex::new(HashSet::new()),
        };
        Runtime {
            memory: Memory::default(),
            devices: (0..settings.devices).map(device).collect(),
            settings,
            streams: Table::new(),
            events: Table::new(),
            modules: Table::new(),
            functions: Table::new(),
            graphs: Table::new(),
            executables: Table::new(),
            host: Mutex::new(BTreeMap::new()),
            report: Mutex::new(None),
            counters: Mutex::new(Counters::default()),
        }
    })
}

impl Runtime {
    /// The calling thread's device.
    pub fn current(&self) -> Result<i32, Status> {
        if self.devices.is_empty() { Err(Status::NO_DEVICE) } else { Ok(CURRENT.get()) }
    }

    /// Makes a device the calling thread's.
    pub fn set_current(&self, ordinal: i32) -> Result<(), Status> {
        self.device(ordinal)?;
        CURRENT.set(ordinal);
        Ok(())
    }

    /// A device by ordinal.
    pub fn device(&self, ordinal: i32) -> Result<&Device, Status> {
        if self.devices.is_empty() {
            return Err(Status::NO_DEVICE);
        }
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(Status::INVALID_DEVICE)
    }

    /// The calling thread's device, if it has not failed: a fault is sticky, as on hardware.
    pub fn healthy(&self) -> Result<i32, Status> {
        let ordinal = self.current()?;
        match self.device(ordinal)?.fault.load(Ordering::Relaxed) {
            0 => Ok(ordinal),
            fault => Err(Status(fault)),
        }
    }

    /// A stream by handle; null is the default stream of the calling thread's device.
    pub fn stream(&self, handle: usize) -> Result<Arc<Stream>, Status> {
        if handle == 0 {
            return Ok(self.device(self.healthy()?)?.default_stream.clone());
        }
        let stream = self.streams.get(handle)?;
        match self.device(stream.device)?.fault.load(Ordering::Relaxed) {
            0 => Ok(stream),
            fault => Err(Status(fault)),
        }
    }

    /// Ends a device after a fault.
    pub fn fail(&self, device: i32, report: Report) -> Status {
        let status =
            if report.what.contains("out of bounds") { Status::ILLEGAL_ADDRESS } else { Status::LAUNCH_FAILURE };
        // HIP has no channel for words; a one-line report on standard error is what its own runtime prints, too.
        eprintln!("gfx950 emulator: device {device}: {report}");
        if let Ok(device) = self.device(device) {
            device.fault.store(status.0, Ordering::Relaxed);
        }
        *self.report.lock().unwrap_or_else(|e| e.into_inner()) = Some(report);
        status
    }

    /// Forgets faults of a device.
    pub fn heal(&self, device: i32) {
        if let Ok(device) = self.device(device) {
            device.fault.store(0, Ordering::Relaxed);
        }
        *self.report.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }

    /// The last fault in words.
    pub fn report(&self) -> String {
        let report = self.report.lock().unwrap_or_else(|e| e.into_inner());
        report.as_ref().map(Report::to_string).unwrap_or_default()
    }

    /// Adds a launch's counters.
    pub fn count(&self, counters: Counters) {
        self.counters.lock().unwrap_or_else(|e| e.into_inner()).add(&counters);
    }

    /// Counters since the last call.
    pub fn take_counters(&self) -> Counters {
        std::mem::take(&mut *self.counters.lock().unwrap_or_else(|e| e.into_inner()))
    }
}
