//! The kernels of one device: found by name in the manifest, loaded when a program first wants them, kept.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    launch::{Kernel, LaunchError},
    manifest::{Entry, Manifest, ManifestError},
};
use crate::hip::Device;

/// Names the folder that holds `amd-gfx950/manifest.json`, as `cargo xtask test` does for its tests.
pub const VARIABLE: &str = "TOKENSPEED_KERNELS";

/// Where kernels are looked for: the variable, else beside the plugin (`amd-gfx950/`), else where `cargo xtask kernels`
/// puts them as seen from cargo's product folder (`../kernels/amd-gfx950`).
pub fn folders(plugin: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|f| !f.is_empty()) {
        return vec![PathBuf::from(folder).join("amd-gfx950")];
    }
    let beside = plugin.as_deref().and_then(|p| p.parent()).map(|f| f.to_path_buf());
    beside.into_iter().flat_map(|f| [f.join("amd-gfx950"), f.join("../kernels/amd-gfx950")]).collect()
}

/// Kernels of a device.
#[derive(Debug)]
pub struct Library {
    device: Arc<Device>,
    manifest: Manifest,
    loaded: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl Library {
    /// Over a manifest that was read.
    pub fn new(device: &Arc<Device>, manifest: Manifest) -> Self {
        Self { device: device.clone(), manifest, loaded: Mutex::default() }
    }

    /// Reads the manifest of the first folder that has one.
    ///
    /// # Errors
    /// None has; then the last folder's reason, or that there is no folder to look in.
    pub fn open(device: &Arc<Device>, folders: &[PathBuf]) -> Result<Self, ManifestError> {
        let with_manifest = folders.iter().find(|f| f.join("manifest.json").is_file());
        let folder = with_manifest.or(folders.last()).cloned().unwrap_or_else(|| "amd-gfx950".into());
        Ok(Self::new(device, Manifest::read(&folder)?))
    }

    /// A kernel by name, loaded.
    ///
    /// # Errors
    /// There is none, its file is not the manifest's, or HIP refuses it.
    pub fn get(&self, name: &str) -> Result<Arc<Kernel>, LaunchError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = loaded.get(name) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(Kernel::load(&self.device, &self.manifest, name)?);
        loaded.insert(name.into(), kernel.clone());
        Ok(kernel)
    }

    /// A kernel's manifest entry.
    ///
    /// # Errors
    /// There is none.
    pub fn entry(&self, name: &str) -> Result<&Entry, ManifestError> {
        self.manifest.find(name)
    }
}
