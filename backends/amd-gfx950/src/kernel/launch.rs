//! Launching a kernel by the names of its arguments: types, ranges and promises are checked against the manifest.

use std::{collections::HashMap, ffi::c_void, sync::Arc};

use tokenspeed_backend_api::sdk::Bucket;

use super::manifest::{Entry, Manifest, ManifestError, SCRATCH};
use crate::hip::{Device, Function, HipError, Module, Queue};

/// A value for an argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// A device address.
    Pointer(u64),
    /// A 32-bit integer.
    I32(i32),
    /// A float.
    F32(f32),
}

impl Argument {
    /// As a launch takes it.
    pub(super) fn bits(self) -> u64 {
        match self {
            Argument::Pointer(p) => p,
            Argument::I32(i) => u64::from(i as u32),
            Argument::F32(f) => u64::from(f.to_bits()),
        }
    }
}

/// Why a kernel was not launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// HIP's.
    #[error("kernel {kernel}: {error}")]
    Hip {
        /// Kernel.
        kernel: String,
        /// Reason.
        error: HipError,
    },
    /// The kernel's files.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// An argument is missing, surplus, or of another type.
    #[error("kernel {kernel}: argument {argument}: {what}")]
    Argument {
        /// Kernel.
        kernel: String,
        /// Argument.
        argument: String,
        /// What is wrong.
        what: String,
    },
    /// Work-groups along an axis are not those of the manifest.
    #[error("kernel {kernel}: axis {axis} is `{formula}` in the manifest: {what}")]
    Grid {
        /// Kernel.
        kernel: String,
        /// Axis.
        axis: usize,
        /// The manifest's formula.
        formula: String,
        /// What is wrong.
        what: String,
    },
}

/// A kernel that is loaded on a device.
#[derive(Debug)]
pub struct Kernel {
    /// Its manifest entry.
    pub entry: Entry,
    function: Function,
}

/// Pointers must be multiples of this many bytes, integers of this many units, where the compiler was promised so.
const PROMISED: u64 = 16;

impl Kernel {
    /// Loads a kernel by its name in the manifest.
    ///
    /// # Errors
    /// Its files are wrong, or HIP refuses them.
    pub fn load(device: &Arc<Device>, manifest: &Manifest, name: &str) -> Result<Self, LaunchError> {
        let entry = manifest.find(name)?.clone();
        let code = manifest.code(&entry)?;
        Self::from_code(device, entry, &code)
    }

    /// Loads a kernel from given code, which has the entry's arguments.
    ///
    /// # Errors
    /// HIP refuses it.
    pub fn from_code(device: &Arc<Device>, entry: Entry, code: &[u8]) -> Result<Self, LaunchError> {
        let wrap = |error| LaunchError::Hip { kernel: entry.name.clone(), error };
        let function = Module::load(device, code).and_then(|m| m.function(&entry.symbol)).map_err(wrap)?;
        Ok(Self { entry, function })
    }

    /// Queues a launch over `groups` work-groups.
    ///
    /// # Safety
    /// Pointers are of the right kind of memory, large enough for what the kernel does with the other arguments, and stay
    /// allocated until the work is done.
    ///
    /// # Errors
    /// An argument does not fit the manifest, or HIP refuses.
    pub unsafe fn launch(
        &self,
        queue: &Queue,
        groups: [u32; 3],
        arguments: &[(&str, Argument)],
    ) -> Result<(), LaunchError> {
        let mut values = self.values(arguments)?;
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        // SAFETY: one value of eight bytes per argument, none of which is larger; the rest is the caller's promise.
        let launched =
            unsafe { self.function.launch(queue, groups, self.entry.block, self.entry.lds_bytes, &mut pointers) };
        launched.map_err(|error| LaunchError::Hip { kernel: self.entry.name.clone(), error })
    }

    /// Queues a launch with an address per argument value.
    ///
    /// # Safety
    /// As [`Self::launch`]; `pointers` is what [`Self::values`] gave, one address per value.
    ///
    /// # Errors
    /// HIP refuses.
    pub(super) unsafe fn launch_values(
        &self,
        queue: &Queue,
        groups: [u32; 3],
        pointers: &mut [*mut c_void],
    ) -> Result<(), HipError> {
        // SAFETY: promised by the caller.
        unsafe { self.function.launch(queue, groups, self.entry.block, self.entry.lds_bytes, pointers) }
    }

    /// Whether these arguments keep what the compiler was promised about multiples of 16.
    pub fn keeps_promises(&self, arguments: &[(&str, Argument)]) -> bool {
        let value = |a: &Argument| match *a {
            Argument::Pointer(p) => p,
            Argument::I32(i) => u64::from(i as u32),
            Argument::F32(_) => 0,
        };
        let promised = |name: &str| self.entry.divisible_by_16.iter().any(|d| d == name);
        arguments.iter().all(|(name, a)| !promised(name) || value(a).is_multiple_of(PROMISED))
    }

    /// Compares an axis, as `planned` makes it for some counts of a step, with the manifest's formula; see `grid.rs`.
    pub(super) fn check_axis(
        &self,
        axis: usize,
        arguments: &[(&str, Argument)],
        counts: &Bucket,
        planned: u32,
    ) -> Result<(), LaunchError> {
        let argument = |wanted: &str| {
            arguments.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| match value {
                Argument::I32(i) => u64::try_from(*i).ok(),
                _ => None,
            })
        };
        let constant = |wanted: &str| match self.entry.constants.get(wanted)? {
            serde_json::Value::Bool(b) => Some(u64::from(*b)),
            value => value.as_u64(),
        };
        let name = |wanted: &str| match wanted {
            "tokens" => Some(counts.max_tokens.into()),
            "requests" => Some(counts.max_rows.into()),
            "logit rows" => Some(counts.max_logit_rows.into()),
            // See `rows_of` in `kernels/step.py`.
            "rows" => match argument("count_word")? {
                0 => argument("count_fixed"),
                1 => Some(counts.max_tokens.into()),
                2 => Some(counts.max_rows.into()),
                _ => Some(counts.max_logit_rows.into()),
            },
            other => argument(other).or_else(|| constant(other)),
        };
        let formula = &self.entry.grid[axis];
        let what = match super::grid::groups(formula, &name) {
            Ok(Some(groups)) if groups != u64::from(planned) => format!("{groups}, planned are {planned}, {counts:?}"),
            Ok(_) => return Ok(()),
            Err(what) => what,
        };
        Err(LaunchError::Grid { kernel: self.entry.name.clone(), axis, formula: formula.clone(), what })
    }

    /// Values in the kernel's order, little-endian in eight bytes each.
    pub(super) fn values(&self, arguments: &[(&str, Argument)]) -> Result<Vec<u64>, LaunchError> {
        let fail = |argument: &str, what: String| LaunchError::Argument {
            kernel: self.entry.name.clone(),
            argument: argument.into(),
            what,
        };
        let mut given: HashMap<&str, Argument> = arguments.iter().copied().collect();
        let mut values = Vec::new();
        for placed in &self.entry.arguments {
            if SCRATCH.contains(&placed.name.as_str()) {
                values.push(0);
                continue;
            }
            let value = given.remove(placed.name.as_str()).ok_or_else(|| fail(&placed.name, "missing".into()))?;
            let fits = match value {
                Argument::Pointer(_) => placed.kind.starts_with('*'),
                Argument::I32(_) => placed.kind == "i32",
                Argument::F32(_) => placed.kind == "fp32",
            };
            let value = value.bits();
            if !fits {
                return Err(fail(&placed.name, format!("is a {}", placed.kind)));
            }
            if value % PROMISED != 0 && self.entry.divisible_by_16.contains(&placed.name) {
                return Err(fail(&placed.name, format!("{value} is not a multiple of {PROMISED}")));
            }
            values.push(value);
        }
        match given.keys().next() {
            Some(name) => Err(fail(name, "the kernel has no such argument".into())),
            None => Ok(values),
        }
    }
}
