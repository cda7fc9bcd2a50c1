//! Modules, functions and launches.

use std::{
    ffi::{CStr, c_char, c_void},
    path::Path,
    sync::Arc,
};

use super::{Status, api, graph::permit_unsafe_call, properties::MAX_GROUP, put, runtime, stream::Stream, work::Work};
use crate::{
    code::{Kernel, LoadError, Object},
    machine::{Dispatch, LDS_BYTES, Occupancy},
};

/// A code object, loaded on a device.
#[derive(Debug)]
pub struct Module {
    object: Object,
    device: i32,
}

/// A kernel of a module. It keeps its code when the module goes.
#[derive(Debug)]
pub struct Function {
    kernel: Arc<Kernel>,
    device: i32,
}

fn load(module: *mut usize, bytes: &[u8]) -> Result<(), Status> {
    permit_unsafe_call()?;
    let runtime = runtime();
    let device = runtime.healthy()?;
    match Object::load(bytes, &runtime.memory) {
        Ok(object) => put(module, runtime.modules.add(Arc::new(Module { object, device }))),
        Err(error) => {
            eprintln!("gfx950 emulator: {error}");
            Err(match error {
                LoadError::Unsupported { .. } | LoadError::Code { .. } => Status::NOT_SUPPORTED,
                _ => Status::INVALID_IMAGE,
            })
        }
    }
}

api! {
    /// Loads a code object from a file, on the current device.
    fn hipModuleLoad(module: *mut usize, path: *const c_char) {
        if path.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and zero-terminated by contract.
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| Status::INVALID_VALUE)?;
        let bytes = std::fs::read(Path::new(path)).map_err(|_| Status::FILE_NOT_FOUND)?;
        load(module, &bytes)
    }
}

/// HIP gives no length: an ELF file says itself how long it is, by the end of its section headers.
fn elf_len(image: *const u8) -> Result<usize, Status> {
    // SAFETY: an image is at least an ELF header by contract; its magic is checked before anything else is believed.
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    if header.get(..4) != Some(b"\x7fELF") {
        return Err(Status::INVALID_IMAGE);
    }
    let int =
        |at: usize, len: usize| header[at..at + len].iter().rev().fold(0usize, |all, b| all << 8 | usize::from(*b));
    let len = int(40, 8).checked_add(int(58, 2) * int(60, 2)).filter(|len| *len < 1 << 30);
    len.ok_or(Status::INVALID_IMAGE)
}

api! {
    /// Loads a code object from memory, on the current device.
    fn hipModuleLoadData(module: *mut usize, image: *const c_void) {
        if image.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let len = elf_len(image.cast())?;
        // SAFETY: the image is as long as its headers say, by contract.
        load(module, unsafe { std::slice::from_raw_parts(image.cast(), len) })
    }
}
api! {
    /// Forgets a module.
    fn hipModuleUnload(module: usize) {
        permit_unsafe_call()?;
        let runtime = runtime();
        let module = runtime.modules.remove(module)?;
        for ordinal in 0..runtime.settings.devices {
            // A failed device does nothing any more; its code can go.
            let _failed = super::device::finish(ordinal);
        }
        module.object.unload(&runtime.memory);
        Ok(())
    }
}
api! {
    /// A kernel by name.
    fn hipModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        let module = runtime().modules.get(module)?;
        if name.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and zero-terminated by contract.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Status::NOT_FOUND)?;
        let kernel = module.object.kernels.get(name).ok_or(Status::NOT_FOUND)?.clone();
        put(function, runtime().functions.add(Arc::new(Function { kernel, device: module.device })))
    }
}
api! {
    /// An attribute of a kernel: largest work-group 0, static LDS 1, scratch 3, registers 4, largest dynamic LDS 8.
    fn hipFuncGetAttribute(value: *mut i32, attribute: u32, function: usize) {
        let kernel = &runtime().functions.get(function)?.kernel;
        let d = &kernel.descriptor;
        put(value, match attribute {
            0 => kernel.max_group as i32,
            1 => d.lds_bytes as i32,
            3 => d.scratch_bytes as i32,
            4 => d.vector_registers as i32,
            8 => LDS_BYTES.saturating_sub(d.lds_bytes) as i32,
            _ => return Err(Status::INVALID_VALUE),
        })
    }
}

/// Explicit arguments from the array of pointers, or from the packed buffer in `extra`.
///
/// # Safety
/// The pointers are as HIP demands: one per explicit argument, each valid for its size; or the packed form.
unsafe fn arguments(kernel: &Kernel, params: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Vec<u8>, Status> {
    let mut bytes = vec![0; kernel.kernarg_bytes];
    if !params.is_null() {
        for (i, a) in kernel.arguments.iter().filter(|a| !a.kind.starts_with("hidden_")).enumerate() {
            // SAFETY: one pointer per explicit argument.
            let from = unsafe { *params.add(i) };
            if from.is_null() {
                return Err(Status::INVALID_VALUE);
            }
            // SAFETY: valid for the argument's size; the loader checked that it lies inside the segment.
            unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr().add(a.offset), a.size) };
        }
        return Ok(bytes);
    }
    if extra.is_null() {
        let needs = kernel.arguments.iter().any(|a| !a.kind.starts_with("hidden_"));
        return if needs { Err(Status::INVALID_VALUE) } else { Ok(bytes) };
    }
    // Pairs of a tag and a value: 1 the buffer, 2 a pointer to its size, 3 the end.
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    for i in (0..6).step_by(2) {
        // SAFETY: the list is terminated by tag 3, and has at most two entries before it.
        match unsafe { *extra.add(i) } as usize {
            // SAFETY: a value follows its tag.
            1 => buffer = unsafe { *extra.add(i + 1) }.cast_const().cast::<u8>(),
            // SAFETY: a value follows its tag, here a pointer to a size.
            2 => size = unsafe { *(*extra.add(i + 1)).cast::<usize>() },
            _ => break,
        }
    }
    if buffer.is_null() || size > bytes.len() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the buffer is valid for `size` bytes, which fit.
    unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), size) };
    Ok(bytes)
}

fn check_shape(kernel: &Kernel, groups: [u32; 3], block: [u32; 3], dynamic_lds: u32) -> Result<(), Status> {
    let lanes: u64 = block.iter().map(|b| u64::from(*b)).product();
    let limit = if kernel.max_group == 0 { MAX_GROUP } else { kernel.max_group.min(MAX_GROUP) };
    let lds = u64::from(kernel.descriptor.lds_bytes) + u64::from(dynamic_lds);
    let fine = !groups.contains(&0) && lanes != 0 && lanes <= u64::from(limit) && lds <= u64::from(LDS_BYTES);
    if fine { Ok(()) } else { Err(Status::INVALID_CONFIGURATION) }
}

/// A kernel and the stream that it is launched in, which is of the current device and of the device that has the kernel's module.
fn on_one_device(function: usize, stream: usize) -> Result<(Arc<Kernel>, Arc<Stream>), Status> {
    let (function, stream) = (runtime().functions.get(function)?, runtime().stream(stream)?);
    if stream.device != runtime().current()? {
        return Err(Status::INVALID_HANDLE);
    }
    if stream.device != function.device {
        return Err(Status::INVALID_DEVICE);
    }
    Ok((function.kernel.clone(), stream))
}

api! {
    /// Launches a kernel; grid sizes count work-groups.
    fn hipModuleLaunchKernel(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, dynamic_lds: u32,
                             stream: usize, params: *mut *mut c_void, extra: *mut *mut c_void) {
        let (kernel, stream) = on_one_device(function, stream)?;
        check_shape(&kernel, [gx, gy, gz], [bx, by, bz], dynamic_lds)?;
        // SAFETY: as HIP demands of this function.
        let kernarg = unsafe { arguments(&kernel, params, extra)? };
        let dispatch = Dispatch { groups: [gx, gy, gz], block: [bx, by, bz], dynamic_lds, kernarg };
        stream.add(Work::Kernel { kernel, dispatch: Arc::new(dispatch) })
    }
}
api! {
    /// Launches a kernel whose work-groups may wait for each other; refused if they do not all fit on the device.
    fn hipModuleLaunchCooperativeKernel(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
                                        dynamic_lds: u32, stream: usize, params: *mut *mut c_void) {
        let (kernel, stream) = on_one_device(function, stream)?;
        check_shape(&kernel, [gx, gy, gz], [bx, by, bz], dynamic_lds)?;
        let groups: u64 = [gx, gy, gz].iter().map(|g| u64::from(*g)).product();
        if groups > 256 * u64::from(groups_per_unit(&kernel, bx * by * bz, dynamic_lds)) {
            return Err(Status::COOPERATIVE_TOO_LARGE);
        }
        // SAFETY: as HIP demands of this function.
        let kernarg = unsafe { arguments(&kernel, params, std::ptr::null_mut())? };
        let dispatch = Dispatch { groups: [gx, gy, gz], block: [bx, by, bz], dynamic_lds, kernarg };
        stream.add(Work::Kernel { kernel, dispatch: Arc::new(dispatch) })
    }
}

/// Work-groups that a compute unit holds.
fn groups_per_unit(kernel: &Kernel, lanes: u32, dynamic_lds: u32) -> u32 {
    let d = &kernel.descriptor;
    Occupancy::new(d.vector_registers as u32, lanes, d.lds_bytes + dynamic_lds).groups_per_unit
}

api! {
    /// Work-groups of a kernel that a compute unit holds.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(count: *mut i32, function: usize, lanes: i32, dynamic_lds: usize) {
        let kernel = runtime().functions.get(function)?.kernel.clone();
        put(count, groups_per_unit(&kernel, lanes.max(1) as u32, dynamic_lds as u32) as i32)
    }
}
