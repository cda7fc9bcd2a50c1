//! Owners of HIP's objects: each frees what it holds, each failure names the call and the device.
//!
//! Every owner keeps its device's ordinal and makes that device current before a call, because HIP's current device is a
//! property of the thread.

use std::{
    ffi::{CString, c_void},
    sync::Arc,
};

use super::{
    error::{HipError, Place},
    table::Hip,
    types::*,
};

type Result<T> = std::result::Result<T, HipError>;

/// An open gfx950 device.
#[derive(Debug)]
pub struct Device {
    /// Functions.
    pub hip: &'static Hip,
    /// Ordinal.
    pub ordinal: i32,
    /// Product name.
    pub name: String,
    /// Architecture with its features.
    pub architecture: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Compute units.
    pub compute_units: u32,
}

/// Calls a HIP function with the device current.
macro_rules! call {
    ($device:expr, $name:ident($($a:expr),*)) => {{
        $device.make_current()?;
        // SAFETY: arguments are of the types that HIP declares (the table is checked against its header); handles and
        // addresses come from HIP and are owned by the objects that pass them.
        let status = unsafe { ($device.hip.$name)($($a),*) };
        $device.hip.check(stringify!($name), $device.place(), status)
    }};
}

impl Device {
    /// Number of devices.
    ///
    /// # Errors
    /// There are none.
    pub fn count(hip: &'static Hip) -> Result<i32> {
        let mut count = 0;
        // SAFETY: writes one integer.
        let status = unsafe { (hip.hipGetDeviceCount)(&mut count) };
        if status == NO_DEVICE || status == 0 && count == 0 {
            return Err(HipError::NoDevice { path: hip.path.clone() });
        }
        hip.check("hipGetDeviceCount", Place::Library, status)?;
        Ok(count)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// It does not exist or is no gfx950.
    pub fn open(hip: &'static Hip, ordinal: i32) -> Result<Arc<Self>> {
        Self::count(hip)?;
        let mut raw = DeviceProperties([0; properties::BYTES]);
        // SAFETY: writes one structure of this size.
        let status = unsafe { (hip.hipGetDevicePropertiesR0600)(&mut raw, ordinal) };
        hip.check("hipGetDeviceProperties", Place::Ordinal(ordinal), status)?;
        let text = |at: usize| {
            let bytes = &raw.0[at..at + 256];
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let int = |at: usize, len: usize| raw.0[at..at + len].iter().rev().fold(0, |all, b| all << 8 | u64::from(*b));
        let architecture = text(properties::GCN_ARCH_NAME);
        if architecture.split(':').next() != Some("gfx950") {
            return Err(HipError::WrongArchitecture { device: ordinal, found: architecture });
        }
        Ok(Arc::new(Self {
            hip,
            ordinal,
            name: text(properties::NAME),
            architecture,
            memory_bytes: int(properties::TOTAL_GLOBAL_MEM, 8),
            compute_units: int(properties::MULTI_PROCESSOR_COUNT, 4) as u32,
        }))
    }

    fn place(&self) -> Place<'_> {
        Place::Device(self.ordinal, &self.architecture)
    }

    fn make_current(&self) -> Result<()> {
        // SAFETY: takes a number.
        let status = unsafe { (self.hip.hipSetDevice)(self.ordinal) };
        self.hip.check("hipSetDevice", self.place(), status)
    }

    /// Bytes of memory that are free now.
    ///
    /// # Errors
    /// HIP's.
    pub fn free_bytes(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        call!(self, hipMemGetInfo(&mut free, &mut total))?;
        Ok(free as u64)
    }

    /// Waits for all work of the device.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        call!(self, hipDeviceSynchronize())
    }
}

/// Device memory.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    address: *mut c_void,
    /// Length in bytes.
    pub bytes: usize,
}

// SAFETY: an address of device memory; all use of it goes through HIP.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory with unknown contents.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        call!(device, hipMalloc(&mut address, bytes.max(1)))?;
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Allocates memory that holds these bytes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn with(device: &Arc<Device>, contents: &[u8]) -> Result<Self> {
        let buffer = Self::new(device, contents.len())?;
        buffer.write(contents)?;
        Ok(buffer)
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Copies from the host, from the start; waits.
    ///
    /// # Errors
    /// HIP's; too many bytes are its "invalid value".
    pub fn write(&self, from: &[u8]) -> Result<()> {
        self.write_at(0, from)
    }

    /// Copies from the host to `offset`; waits.
    ///
    /// # Errors
    /// HIP's; bytes outside are its "invalid value".
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        let to = self.address.wrapping_byte_add(offset);
        call!(self.device, hipMemcpy(to, from.as_ptr().cast(), from.len(), HOST_TO_DEVICE))
    }

    /// Copies to the host; waits.
    ///
    /// # Errors
    /// HIP's, those of kernels that ran before included.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut to = vec![0; self.bytes];
        self.read_at(0, &mut to)?;
        Ok(to)
    }

    /// Copies from `offset` to the host; waits.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let from = self.address.wrapping_byte_add(offset);
        call!(self.device, hipMemcpy(to.as_mut_ptr().cast(), from, to.len(), DEVICE_TO_HOST))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and after a fault of a kernel every call fails.
        let _ignored = (|| call!(self.device, hipFree(self.address)))();
    }
}

/// Host memory that the device reads and writes by itself (pinned).
#[derive(Debug)]
pub struct HostBuffer {
    device: Arc<Device>,
    address: *mut c_void,
    /// Length in bytes.
    pub bytes: usize,
}

// SAFETY: an address of memory that nobody else frees; whoever dereferences it says why that is sound.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates pinned memory, zeroed.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        call!(device, hipHostMalloc(&mut address, bytes.max(1), 0))?;
        // SAFETY: as many bytes were just allocated, and nobody else knows them.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Its address, the same for host and device.
    pub fn address(&self) -> *mut u8 {
        self.address.cast()
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipHostFree(self.address)))();
    }
}

/// A stream.
#[derive(Debug)]
pub struct Queue {
    device: Arc<Device>,
    /// Handle.
    pub handle: HipStream,
}

impl Queue {
    /// A stream that does not wait for the default stream.
    ///
    /// # Errors
    /// HIP's.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let mut handle = HipStream::NULL;
        call!(device, hipStreamCreateWithFlags(&mut handle, STREAM_NON_BLOCKING))?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Waits for its work.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        call!(self.device, hipStreamSynchronize(self.handle))
    }

    /// Makes later work wait for an event.
    ///
    /// # Errors
    /// HIP's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        call!(self.device, hipStreamWaitEvent(self.handle, event.handle, 0))
    }

    /// Queues a copy; the kind of memory follows from the addresses' kind.
    ///
    /// # Safety
    /// Both ranges are memory that the device reaches and stay allocated until the copy is done; host memory is pinned.
    ///
    /// # Errors
    /// HIP's.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize, kind: MemcpyKind) -> Result<()> {
        call!(self.device, hipMemcpyAsync(to as *mut c_void, from as *const c_void, bytes, kind, self.handle))
    }

    /// Records what `work` queues here instead of doing it. Only this thread is restricted meanwhile: no allocation, no wait.
    ///
    /// # Errors
    /// HIP's, or that of `work`.
    pub fn capture<E: From<HipError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        call!(self.device, hipStreamBeginCapture(self.handle, CAPTURE_THREAD_LOCAL))?;
        let done = work();
        let mut handle = HipGraph::NULL;
        let ended = call!(self.device, hipStreamEndCapture(self.handle, &mut handle));
        let graph = Graph { device: self.device.clone(), handle };
        done?;
        ended?;
        Ok(graph)
    }

    /// Queues a captured graph.
    ///
    /// # Errors
    /// HIP's.
    pub fn replay(&self, executable: &Executable) -> Result<()> {
        call!(self.device, hipGraphLaunch(executable.handle, self.handle))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipStreamDestroy(self.handle)))();
    }
}

/// An event.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: HipEvent,
}

impl Event {
    /// An event without time stamps.
    ///
    /// # Errors
    /// HIP's.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let mut handle = HipEvent::NULL;
        call!(device, hipEventCreateWithFlags(&mut handle, EVENT_DISABLE_TIMING))?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Marks the end of what a stream holds now.
    ///
    /// # Errors
    /// HIP's.
    pub fn record(&self, queue: &Queue) -> Result<()> {
        call!(self.device, hipEventRecord(self.handle, queue.handle))
    }

    /// Waits until it has happened; one that was never recorded has.
    ///
    /// # Errors
    /// A kernel before it failed.
    pub fn synchronize(&self) -> Result<()> {
        call!(self.device, hipEventSynchronize(self.handle))
    }

    /// Whether it has happened.
    ///
    /// # Errors
    /// A kernel before it failed.
    pub fn is_done(&self) -> Result<bool> {
        self.device.make_current()?;
        // SAFETY: a handle that HIP gave us and that we own.
        let status = unsafe { (self.device.hip.hipEventQuery)(self.handle) };
        if status == NOT_READY {
            return Ok(false);
        }
        self.device.hip.check("hipEventQuery", self.device.place(), status).map(|()| true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipEventDestroy(self.handle)))();
    }
}

/// A captured graph.
#[derive(Debug)]
pub struct Graph {
    device: Arc<Device>,
    handle: HipGraph,
}

impl Graph {
    /// An instance that can be replayed.
    ///
    /// # Errors
    /// HIP's.
    pub fn instantiate(&self) -> Result<Executable> {
        let mut handle = HipGraphExec::NULL;
        call!(self.device, hipGraphInstantiateWithFlags(&mut handle, self.handle, 0))?;
        Ok(Executable { device: self.device.clone(), handle })
    }

    /// Pieces of work in it.
    ///
    /// # Errors
    /// HIP's.
    pub fn nodes(&self) -> Result<usize> {
        let mut count = 0;
        call!(self.device, hipGraphGetNodes(self.handle, std::ptr::null_mut(), &mut count))?;
        Ok(count)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipGraphDestroy(self.handle)))();
    }
}

/// An instance of a graph.
#[derive(Debug)]
pub struct Executable {
    device: Arc<Device>,
    handle: HipGraphExec,
}

impl Drop for Executable {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipGraphExecDestroy(self.handle)))();
    }
}

/// A loaded code object.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    handle: HipModule,
}

impl Module {
    /// Loads a code object.
    ///
    /// # Errors
    /// HIP refuses it.
    pub fn load(device: &Arc<Device>, image: &[u8]) -> Result<Arc<Self>> {
        let mut handle = HipModule::NULL;
        // HIP is given no length and believes the image's headers; an image shorter than a header is refused here.
        let padded: Vec<u8> = if image.len() < 64 { vec![0; 64] } else { Vec::new() };
        let image = if padded.is_empty() { image } else { &padded };
        call!(device, hipModuleLoadData(&mut handle, image.as_ptr().cast()))?;
        Ok(Arc::new(Self { device: device.clone(), handle }))
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let name = CString::new(name).unwrap_or_default();
        let mut handle = HipFunction::NULL;
        call!(self.device, hipModuleGetFunction(&mut handle, self.handle, name.as_ptr()))?;
        Ok(Function { module: self.clone(), handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ignored = (|| call!(self.device, hipModuleUnload(self.handle)))();
    }
}

/// A kernel.
#[derive(Debug)]
pub struct Function {
    module: Arc<Module>,
    handle: HipFunction,
}

impl Function {
    /// Queues a launch. `arguments` are pointers to values, one per explicit argument.
    ///
    /// # Safety
    /// Each pointer is valid for its argument's size, there is one for every argument of the kernel, and device addresses
    /// among them stay allocated until the work is done.
    ///
    /// # Errors
    /// HIP's.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        groups: [u32; 3],
        block: u32,
        lds_bytes: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let [x, y, z] = groups;
        let params = arguments.as_mut_ptr();
        let none = std::ptr::null_mut();
        call!(
            self.module.device,
            hipModuleLaunchKernel(self.handle, x, y, z, block, 1, 1, lds_bytes, queue.handle, params, none)
        )
    }
}
